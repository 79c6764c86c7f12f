"""Kernels without a distance: constant, linear, categories, of some columns, and an unknown one."""

from dataclasses import dataclass
from typing import NoReturn, final

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import between, not_negative, positive, whole
from capri.errors import ConfigurationError, ShapeError
from capri.kernels.algebra import Kernel, _check_parts
from capri.kernels.stationary import BLOCK


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

    def _diagonal(self, points: FloatArray) -> FloatArray:
        return np.full(len(points), self.variance)


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
