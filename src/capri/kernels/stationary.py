"""Kernels of a distance: RBF, Matern, rational quadratic.

Distances come from SciPy where it pays, and without it on a device.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import positive
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import matern
from capri.kernels.algebra import Kernel

Lengthscale = float | Sequence[float] | FloatArray

# Entries handled at once: a block and its temporaries stay in the processor's cache.
BLOCK = 8192
# Larger matrices are worth loading SciPy for, which takes longer than all of NumPy.
_WORTH_LOADING = 1 << 18


def distances(left: FloatArray, right: FloatArray, metric: str) -> FloatArray:
    """``|l - r|`` ("euclidean") or ``|l - r|^2`` ("sqeuclidean") for all pairs of rows.

    Both ways add the squares of the columns in order, so they agree to the last bit: whether SciPy
    is there changes nothing but the time.
    """
    if "scipy.spatial" in sys.modules or len(left) * len(right) > _WORTH_LOADING:
        try:
            from scipy.spatial.distance import cdist
        except ImportError:
            pass
        else:
            return np.asarray(cdist(left, right, metric))
    squares = squared_distances(left, right)
    return np.sqrt(squares, out=squares) if metric == "euclidean" else squares


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """``|l - r|^2`` by NumPy alone, a few rows at a time."""
    columns = np.ascontiguousarray(right.T)
    found = np.empty((len(left), len(right)))
    step = max(1, BLOCK // max(1, len(right)))
    room = np.empty((step, len(right)))
    for start in range(0, len(left), step):
        block = found[start : start + step]
        rows, difference = left[start : start + step], room[: len(block)]
        np.subtract(rows[:, 0, None], columns[0], out=block)
        block *= block
        for column in range(1, left.shape[1]):
            np.subtract(rows[:, column, None], columns[column], out=difference)
            difference *= difference
            block += difference
    return found


def _lengthscale(value: object) -> float | tuple[float, ...]:
    """Return one lengthscale as a float, or one per dimension as a tuple."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        return positive("lengthscale", value)
    if len(value) == 0:
        raise ConfigurationError("lengthscale must be a number or one per dimension, got none")
    return tuple(positive("lengthscale", entry) for entry in value)


def blocks(values: FloatArray) -> Iterator[FloatArray]:
    """Walk through a contiguous matrix in flat, writable pieces."""
    flat = values.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield flat[start : start + BLOCK]


class _Stationary(Kernel):
    """``k(w, w') = variance * shape(|(w - w') / lengthscale|)`` with ``shape(0) = 1``."""

    lengthscale: Lengthscale
    variance: float

    @property
    def _metric(self) -> str:
        """What ``_shape`` is a function of: "euclidean" or, cheaper, "sqeuclidean"."""
        return "sqeuclidean"

    @abstractmethod
    def _shape(self, distance: FloatArray) -> None:
        """Replace a flat block of distances by the values of the kernel at variance 1."""

    @property
    def constant_diagonal(self) -> float | None:
        """The variance."""
        return self.variance

    def _diagonal(self, points: FloatArray) -> FloatArray:
        self._check_dimension(points)
        return np.full(len(points), self.variance)

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        self._check_dimension(left)
        values = distances(self._scaled(left), self._scaled(right), self._metric)
        for block in blocks(values):
            self._shape(block)
            if self.variance != 1.0:
                block *= self.variance
        return values

    def _scaled(self, rows: FloatArray) -> FloatArray:
        """``rows / lengthscale``; infinity is refused, as a difference would make it NaN."""
        with np.errstate(over="ignore"):
            scaled: FloatArray = rows / np.asarray(self.lengthscale)
        if not np.isfinite(scaled).all():
            raise ConfigurationError(
                f"lengthscale {self.lengthscale} is too small for these rows: "
                "rows / lengthscale must be finite"
            )
        return scaled

    def _check_dimension(self, rows: FloatArray) -> None:
        if isinstance(self.lengthscale, tuple) and len(self.lengthscale) != rows.shape[1]:
            raise ShapeError(
                f"rows must have {len(self.lengthscale)} columns, one per lengthscale, "
                f"got {rows.shape[1]}"
            )

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengthscale", _lengthscale(self.lengthscale))
        object.__setattr__(self, "variance", positive("variance", self.variance))


def _gaussian(squared: FloatArray) -> None:
    """``exp(-r^2 / 2)``, from squared distances."""
    squared *= -0.5
    np.exp(squared, out=squared)


@final
@dataclass(frozen=True)
class RBF(_Stationary):
    """``k = variance * exp(-r^2 / 2)`` with ``r = |(w - w') / lengthscale|``.

    >>> float(RBF(lengthscale=0.5)(np.array([[0.0]]), np.array([[0.5]]))[0, 0]) == math.exp(-0.5)
    True
    """

    lengthscale: Lengthscale = 1.0
    variance: float = 1.0

    def _shape(self, distance: FloatArray) -> None:
        _gaussian(distance)


@final
@dataclass(frozen=True)
class Matern(_Stationary):
    """``k = variance * 2^(1-nu) / Gamma(nu) * z^nu K_nu(z)`` with ``z = sqrt(2 nu) r``.

    Half-integer ``nu`` (1/2, 3/2, 5/2, ...) is an exponential times a polynomial, ``nu = inf`` is
    the RBF; other values take the Bessel function and are some seventy times slower below nu = 20.

    >>> Matern(nu=0.5)(np.array([[0.0]]), np.array([[0.0], [800.0]]))
    array([[1., 0.]])
    """

    nu: float = 2.5
    lengthscale: Lengthscale = 1.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        if self.nu != math.inf:
            object.__setattr__(self, "nu", positive("nu", self.nu))
        super().__post_init__()

    @property
    def _metric(self) -> str:
        return "sqeuclidean" if self.nu == math.inf else "euclidean"

    def _shape(self, distance: FloatArray) -> None:
        if self.nu == math.inf:
            _gaussian(distance)
        else:
            matern.shape(distance, self.nu)


@final
@dataclass(frozen=True)
class RationalQuadratic(_Stationary):
    """``k = variance * (1 + r^2 / (2 alpha))^-alpha`` with ``r = |(w - w') / lengthscale|``.

    >>> RationalQuadratic()(np.array([[0.0]]), np.array([[0.0], [2.0]])).round(12)
    array([[1.        , 0.33333333]])
    """

    alpha: float = 1.0
    lengthscale: Lengthscale = 1.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", positive("alpha", self.alpha))
        super().__post_init__()

    def _shape(self, distance: FloatArray) -> None:
        distance *= 0.5 / self.alpha
        if self.alpha == 1.0:  # the default needs no logarithm
            distance += 1.0
            np.reciprocal(distance, out=distance)
            return
        np.log1p(distance, out=distance)
        distance *= -self.alpha
        np.exp(distance, out=distance)
