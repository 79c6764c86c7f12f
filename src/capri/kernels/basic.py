"""What a kernel is, kernels without a distance, and how kernels are joined."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NoReturn, final

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import between, not_negative, positive, whole
from capri.errors import ConfigurationError, DataError, ShapeError

# Entries handled at once: a block and its temporaries stay in the processor's cache.
BLOCK = 8192


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

    def _diagonal(self, points: FloatArray) -> FloatArray:
        """Fresh vector of ``k(w, w)`` for every row of a matrix: by default the constant one."""
        return np.full(len(points), self.constant_diagonal)

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
class _Pair:
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
class Sum(_Pair, Kernel):
    """``k = left + right``; written ``left + right``.

    >>> from capri.kernels import RBF, Matern
    >>> (RBF(variance=0.5) + Matern(variance=0.25)).constant_diagonal
    0.75
    """

    _joined: ClassVar[np.ufunc] = np.add


@final
@dataclass(frozen=True)
class Product(_Pair, Kernel):
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


def _check_parts(kernel: object, *names: str) -> None:
    for name in names:
        part = getattr(kernel, name)
        if not isinstance(part, Kernel):
            raise ConfigurationError(f"{name} must be a kernel, got {type(part).__name__}")


@final
@dataclass(frozen=True)
class Constant(Kernel):
    """``k = variance`` at every two rows: a level that all of them share.

    >>> Constant(0.25)(np.array([[0.0]]), np.array([[1.0], [9.0]]))
    array([[0.25, 0.25]])
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", positive("variance", self.variance))

    @property
    def constant_diagonal(self) -> float | None:
        """The variance."""
        return self.variance

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return np.full((len(left), len(right)), self.variance)


@final
@dataclass(frozen=True)
class Categories(Kernel):
    """``k = variance`` where two rows are equal in every column, else ``variance * similarity``.

    The rows are levels of one category, however they are coded: as indicators or as whole numbers.
    ``similarity`` of 0 makes levels unrelated; towards 1 they share more and more of what is
    learnt. With ``E`` the matrix of 1 where rows are equal and 0 elsewhere,

        K = variance * (similarity * 1 1^T + (1 - similarity) * E),

    a sum of two positive semi-definite matrices: ``E`` is made of blocks of ones. So any rows will
    do, and a row that is no declared level is a level of its own.

    >>> Categories(similarity=0.25)(np.eye(2), np.eye(2))
    array([[1.  , 0.25],
           [0.25, 1.  ]])
    """

    similarity: float = 0.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "similarity", between("similarity", self.similarity, 0.0, 1.0))
        object.__setattr__(self, "variance", positive("variance", self.variance))

    @property
    def constant_diagonal(self) -> float | None:
        """The variance."""
        return self.variance

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        values = np.empty((len(left), len(right)))
        columns = np.ascontiguousarray(right.T)
        step = max(1, BLOCK // max(1, len(right)))
        differ = (1.0 - self.similarity) * self.variance
        for start in range(0, len(left), step):
            block = values[start : start + step]
            equal = _equal(left[start : start + step], columns)
            # One product and one sum for equal and for different rows: the same time for both.
            np.multiply(equal, differ, out=block)
            block += self.variance - differ
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        differ = (1.0 - self.similarity) * self.variance
        return np.full(len(points), differ + (self.variance - differ))


def _equal(rows: FloatArray, columns: FloatArray) -> BoolArray:
    """Whether each row equals each row of the other side, given by its columns."""
    equal = np.ones((len(rows), columns.shape[1]), dtype=np.bool_)
    for feature, column in zip(rows.T, columns, strict=True):
        equal &= feature[:, None] == column
    return equal


@final
@dataclass(frozen=True)
class Columns(Kernel):
    """``k`` of some columns of the rows: the others do not matter to it.

    Joined by ``*`` and ``+`` such kernels give every column the kernel that suits it;
    :func:`capri.kernels.schema_kernel` does that for a schema.

    >>> from capri.kernels import RBF
    >>> kernel = Columns(RBF(), (0,)) * Columns(Categories(0.5), (1, 2))
    >>> kernel(np.array([[0.0, 1.0, 0.0]]), np.array([[0.0, 0.0, 1.0]]))
    array([[0.5]])
    """

    kernel: Kernel
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_parts(self, "kernel")
        try:
            chosen = tuple(whole("a column", column, least=0) for column in self.columns)
        except TypeError:
            raise ConfigurationError(
                f"columns must be whole numbers from 0, got {type(self.columns).__name__}"
            ) from None
        if not chosen or len(set(chosen)) < len(chosen):
            raise ConfigurationError(
                f"columns must name at least one column, each once, got {list(chosen)}"
            )
        object.__setattr__(self, "columns", chosen)

    @property
    def constant_diagonal(self) -> float | None:
        """That of the kernel."""
        return self.kernel.constant_diagonal

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self.kernel._cross(self._chosen(left), self._chosen(right))

    def _diagonal(self, points: FloatArray) -> FloatArray:
        return self.kernel._diagonal(self._chosen(points))

    def _chosen(self, rows: FloatArray) -> FloatArray:
        if max(self.columns) >= rows.shape[1]:
            raise ShapeError(
                f"rows must have more than {max(self.columns)} columns, the last one that this "
                f"kernel reads, got {rows.shape[1]}"
            )
        return np.ascontiguousarray(rows[:, self.columns])


@final
@dataclass(frozen=True)
class Linear(Kernel):
    """``k = variance * <w, w'> + bias``.

    ``k(w, w)`` grows with ``w``: on the unit cube of ``d`` dimensions it stays within 1 when
    ``variance * d + bias <= 1``.

    >>> Linear(variance=0.5, bias=0.25)(np.array([[1.0, 1.0]]), np.array([[1.0, 0.5]]))
    array([[1.]])
    """

    variance: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", positive("variance", self.variance))
        object.__setattr__(self, "bias", not_negative("bias", self.bias))

    @property
    def constant_diagonal(self) -> float | None:
        """None: the diagonal grows with the rows."""
        return None

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        values = np.zeros((len(left), len(right)))
        columns = np.ascontiguousarray(right.T)
        step = max(1, BLOCK // max(1, len(right)))
        for start in range(0, len(left), step):
            block = values[start : start + step]
            product = np.empty_like(block)
            # One feature after the other, not BLAS: its rounding depends on the batch.
            for feature, column in zip(left[start : start + step].T, columns, strict=True):
                np.multiply(feature[:, None], column, out=product)
                block += product
            block *= self.variance
            block += self.bias
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        values = np.zeros(len(points))
        for feature in points.T:
            values += feature * feature
        values *= self.variance
        values += self.bias
        return values


_NO_VALUES = (
    "kernel='auto' is built by a policy from its public contexts: it has no values of its own. "
    "Where values are needed, give a kernel such as capri.kernels.Matern"
)


@final
@dataclass(frozen=True)
class Auto(Kernel):
    """A whole family of kernels, weighed by the evidence of the releases.

    A policy builds the family from its public contexts and actions, and what it believes is told by
    ``policy.explain()``. There is nothing to evaluate before that.
    """

    @property
    def constant_diagonal(self) -> float | None:
        """1: features are bounded whatever they are."""
        return 1.0

    def _cross(self, left: FloatArray, right: FloatArray) -> NoReturn:
        raise ConfigurationError(_NO_VALUES)

    def _diagonal(self, points: FloatArray) -> NoReturn:
        raise ConfigurationError(_NO_VALUES)


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
