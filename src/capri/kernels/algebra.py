"""What a kernel is, and how kernels are joined: sums, products, and context times action."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import whole
from capri.errors import ConfigurationError, DataError, ShapeError


def _rows(points: object, name: str) -> FloatArray:
    """Return points as a float matrix, one row per point."""
    try:
        rows = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError):
        raise ShapeError(f"{name} must be a matrix of numbers, one row per point") from None
    if rows.ndim != 2:
        raise ShapeError(f"{name} must be a matrix with one row per point, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise DataError(f"{name} must be finite numbers, got NaN or infinity")
    return rows


class Kernel(ABC):
    """A positive semi-definite function of two rows."""

    @property
    @abstractmethod
    def constant_diagonal(self) -> float | None:
        """The value of ``k(w, w)`` when it is the same for every ``w``, else None."""

    @abstractmethod
    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Fresh matrix of ``k(left_i, right_j)``, for matrices with the same number of columns."""

    @abstractmethod
    def _diagonal(self, points: FloatArray) -> FloatArray:
        """Fresh vector of ``k(w, w)`` for every row of a matrix."""

    def __call__(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Matrix of ``k(left_i, right_j)``, shape ``(len(left), len(right))``."""
        left, right = _rows(left, "left"), _rows(right, "right")
        if left.shape[1] != right.shape[1]:
            raise ShapeError(
                "left and right must have the same number of columns, "
                f"got {left.shape[1]} and {right.shape[1]}"
            )
        return self._cross(left, right)

    def diagonal(self, points: FloatArray) -> FloatArray:
        """Vector of ``k(w, w)``, the diagonal of ``kernel(points, points)`` without the rest."""
        return self._diagonal(_rows(points, "points"))

    def __add__(self, other: "Kernel") -> "Sum":
        """``k = self + other``."""
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Product":
        """``k = self * other``."""
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented

    def to_dict(self) -> dict[str, object]:
        """A description that JSON can hold exactly; ``from_dict`` reads it back.

        >>> from capri.kernels import Matern
        >>> Matern(nu=math.inf, lengthscale=[0.1, 2]).to_dict()
        {'type': 'Matern', 'nu': 'inf', 'lengthscale': [0.1, 2.0], 'variance': 1.0}
        """
        described: dict[str, object] = {"type": type(self).__name__}
        for field in fields(self):  # type: ignore[arg-type]  # every final kernel is a dataclass
            described[field.name] = _to_json(getattr(self, field.name))
        return described


def _to_json(value: object) -> object:
    """A field as JSON can hold it; JSON has no infinity, so that is a word."""
    if isinstance(value, Kernel):
        return value.to_dict()
    if isinstance(value, tuple):
        return list(value)
    return "inf" if value == math.inf else value


@dataclass(frozen=True)
class _Pair(Kernel):
    """Two kernels on the same rows, joined entry by entry."""

    left: Kernel
    right: Kernel
    _joined: ClassVar[np.ufunc]

    def __post_init__(self) -> None:
        _check_parts(self, "left", "right")

    @property
    def constant_diagonal(self) -> float | None:
        """Both diagonals joined, when both are constant."""
        left, right = self.left.constant_diagonal, self.right.constant_diagonal
        return None if left is None or right is None else float(self._joined(left, right))

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        values = self.left._cross(left, right)
        self._joined(values, self.right._cross(left, right), out=values)
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        values = self.left._diagonal(points)
        self._joined(values, self.right._diagonal(points), out=values)
        return values


@final
@dataclass(frozen=True)
class Sum(_Pair):
    """``k = left + right``; written ``left + right``.

    >>> from capri.kernels import RBF, Matern
    >>> (RBF(variance=0.5) + Matern(variance=0.25)).constant_diagonal
    0.75
    """

    _joined: ClassVar[np.ufunc] = np.add


@final
@dataclass(frozen=True)
class Product(_Pair):
    """``k = left * right``; written ``left * right``."""

    _joined: ClassVar[np.ufunc] = np.multiply


@final
@dataclass(frozen=True)
class ContextAction(Kernel):
    """``k((c, x), (c', x')) = context(c, c') * action(x, x')``, for rows ``(c, x)``.

    The first ``context_dimension`` columns are the context, the rest is the action.

    >>> from capri.kernels import RBF, Linear
    >>> kernel = ContextAction(context=RBF(lengthscale=2.0), action=Linear(), context_dimension=1)
    >>> kernel(np.array([[0.0, 0.5]]), np.array([[0.0, 0.5]]))
    array([[0.25]])
    """

    context: Kernel
    action: Kernel
    context_dimension: int

    def __post_init__(self) -> None:
        _check_parts(self, "context", "action")
        dimension = whole("context_dimension", self.context_dimension)
        object.__setattr__(self, "context_dimension", dimension)

    @property
    def constant_diagonal(self) -> float | None:
        """The product of both diagonals, when both are constant."""
        context, action = self.context.constant_diagonal, self.action.constant_diagonal
        return None if context is None or action is None else context * action

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        left_context, left_action = self._split(left)
        right_context, right_action = self._split(right)
        values = self.context._cross(left_context, right_context)
        values *= self.action._cross(left_action, right_action)
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        context, action = self._split(points)
        return self.context._diagonal(context) * self.action._diagonal(action)

    def _split(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        if rows.shape[1] <= self.context_dimension:
            raise ShapeError(
                f"rows must have more than {self.context_dimension} columns, "
                f"the context followed by the action, got {rows.shape[1]}"
            )
        return rows[:, : self.context_dimension], rows[:, self.context_dimension :]


def _check_parts(kernel: Kernel, *names: str) -> None:
    for name in names:
        part = getattr(kernel, name)
        if not isinstance(part, Kernel):
            raise ConfigurationError(f"{name} must be a kernel, got {type(part).__name__}")


def check_bounded(kernel: Kernel, points: FloatArray) -> None:
    """Refuse a kernel with ``k(w, w) > 1`` at one of the (public) points.

    >>> from capri.kernels import RBF, Linear
    >>> check_bounded(RBF(), np.zeros((1, 1)))
    >>> check_bounded(Linear(), np.array([[2.0]]))
    Traceback (most recent call last):
    capri.errors.ConfigurationError: k(w, w) must be at most 1, got 4.0: lower the variance or, \
for a Linear kernel, scale the rows down
    """
    largest = kernel.constant_diagonal
    if largest is None:
        largest = float(np.max(kernel.diagonal(points), initial=0.0))
    if not largest <= 1.0 + 1e-9:
        raise ConfigurationError(
            f"k(w, w) must be at most 1, got {largest}: lower the variance or, for a Linear "
            "kernel, scale the rows down"
        )


def random_coefficients(
    kernel: Kernel, centres: FloatArray, norm: float, generator: np.random.Generator
) -> FloatArray:
    """Coefficients ``a`` of ``f = sum_j a_j k(., z_j)`` with ``|f| = sqrt(a^T K a) = norm``.

    A standard normal direction, scaled. A kernel that vanishes on the centres gives 0.

    >>> from capri.kernels import RBF
    >>> centres = np.array([[0.0], [1.0]])
    >>> a = random_coefficients(RBF(), centres, 2.0, np.random.default_rng(0))
    >>> round(float(a @ RBF()(centres, centres) @ a), 12)
    4.0
    """
    return scaled_coefficients(kernel(centres, centres), norm, generator)


def scaled_coefficients(
    gram: FloatArray, norm: float, generator: np.random.Generator
) -> FloatArray:
    """The same, where the matrix ``K`` of the centres is at hand."""
    coefficients = generator.standard_normal(len(gram))
    squared = float(coefficients @ gram @ coefficients)
    return coefficients * (norm / math.sqrt(squared)) if squared > 0 else np.zeros(len(gram))
