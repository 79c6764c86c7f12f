"""Kernels of a distance: RBF, Matern, rational quadratic.

Distances come from SciPy where it pays, and without it on a device.

The Matern function is there for every order: no NaN, no overflow, at any distance. Each of its
forms replaces a flat block of distances ``r`` (already divided by the lengthscale) by

    2^(1-nu) / Gamma(nu) * z^nu K_nu(z),    z = sqrt(2 nu) r,

in the way that suits its order ``nu``.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import positive
from capri.errors import ConfigurationError, ShapeError
from capri.kernels.basic import BLOCK, Kernel

Lengthscale = float | Sequence[float] | FloatArray

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


class _Stationary(ABC):
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
class RBF(_Stationary, Kernel):
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
class Matern(_Stationary, Kernel):
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
            _matern(distance, self.nu)


@final
@dataclass(frozen=True)
class RationalQuadratic(_Stationary, Kernel):
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


# exp(-750) is 0 in double precision, so arguments are cut here: infinity times 0 never arises.
DEAD = 1500.0

# From this order on the expansion in 1/nu is exact to 1e-14, while K_nu would soon overflow.
LARGE_ORDER = 20.0


def _matern(distance: FloatArray, nu: float) -> None:
    """Replace distances by the Matern function of any finite order."""
    if nu >= LARGE_ORDER:
        _large_order(distance, nu)
    elif (nu - 0.5).is_integer():
        half_integer(distance, int(nu - 0.5))
    else:
        _bessel(distance, nu)


def half_integer(distance: FloatArray, order: int) -> None:
    """``exp(-z) sum_i b_i z^i`` with ``z = sqrt(2 nu) r`` and ``nu = order + 1/2``."""
    z = np.multiply(distance, math.sqrt(2 * order + 1), out=distance)
    np.minimum(z, DEAD, out=z)
    polynomial = _horner(_half_integer_coefficients(order), z) if order else None
    np.negative(z, out=z)
    np.exp(z, out=z)
    if polynomial is not None:
        z *= polynomial


@cache
def _half_integer_coefficients(order: int) -> tuple[float, ...]:
    """``b_i = p! (2p - i)! 2^i / ((2p)! (p - i)! i!)`` for ``p = order`` (DLMF 10.49.12).

    >>> _half_integer_coefficients(2)  # 1 + z + z^2 / 3
    (1.0, 1.0, 0.3333333333333333)
    """
    factorial = math.factorial
    scale = Fraction(factorial(order), factorial(2 * order))
    return tuple(
        float(scale * factorial(2 * order - i) * 2**i / (factorial(order - i) * factorial(i)))
        for i in range(order + 1)
    )


def _bessel(distance: FloatArray, nu: float) -> None:
    """``2^(1-nu) / Gamma(nu) * z^nu K_nu(z)`` with ``z = sqrt(2 nu) r``, in logarithms.

    ``kve(nu, z) = exp(z) K_nu(z)`` does not underflow. It overflows at ``r = 0``, and for the
    orders that come here only where the kernel is 1 to the last digit.
    """
    from scipy.special import gammaln, kve

    z = np.minimum(distance * math.sqrt(2.0 * nu), DEAD)
    bessel: FloatArray = kve(nu, z)
    apart = ~np.isinf(bessel)
    z, bessel = z[apart], bessel[apart]
    constant = (1.0 - nu) * math.log(2.0) - float(gammaln(nu))
    distance[:] = 1.0
    # Rounding of the logarithms could lift a value above 1, the value at r = 0.
    distance[apart] = np.exp(np.minimum(constant + nu * np.log(z) + np.log(bessel) - z, 0.0))


def _large_order(distance: FloatArray, nu: float) -> None:
    """``exp(nu (log(1 + t/2) - t)) / sqrt(1 + t) * E(1 / (1 + t)) / E(1)``, ``nu`` large.

    The uniform expansion of ``K_nu(nu x)`` (DLMF 10.41.4) at ``x = r sqrt(2 / nu)``, with
    ``1 + t = sqrt(1 + x^2)``. All powers of ``nu`` cancel against those of ``2^(1-nu) / Gamma(nu)``
    by Stirling's series, which is ``E(1)``, so nothing overflows and the value at ``r = 0`` is
    exactly 1. As ``nu`` grows ``E`` tends to 1 and the whole to ``exp(-r^2 / 2)``.
    """
    x = np.multiply(distance, math.sqrt(2.0 / nu), out=distance)
    np.minimum(x, DEAD, out=x)
    x *= x
    t = x / (1.0 + np.sqrt(1.0 + x))
    coefficients = _large_order_coefficients(nu)
    correction = _horner(coefficients, 1.0 / (1.0 + t)) / _horner(coefficients, np.ones(1))
    distance[:] = np.exp(nu * (np.log1p(0.5 * t) - t) - 0.5 * np.log1p(t)) * correction


@cache
def _large_order_coefficients(nu: float) -> tuple[float, ...]:
    """Coefficients in ``p`` of ``E(p) = sum_k U_k(p) (-1/nu)^k``."""
    total = [0.0] * len(_debye_polynomials()[-1])
    for k, polynomial in enumerate(_debye_polynomials()):
        for power, coefficient in enumerate(polynomial):
            total[power] += float(coefficient) * (-1.0 / nu) ** k
    return tuple(total)


@cache
def _debye_polynomials() -> tuple[tuple[Fraction, ...], ...]:
    """``U_0 .. U_10`` by ``U' = p^2 (1 - p^2) dU/dp / 2 + int_0^p (1 - 5 s^2) U(s) ds / 8``.

    DLMF 10.41.9; ten terms give 3e-15 at nu = 20.

    >>> [str(coefficient) for coefficient in _debye_polynomials()[1]]  # (3 p - 5 p^3) / 24
    ['0', '1/8', '0', '-5/24']
    """
    polynomials: list[tuple[Fraction, ...]] = [(Fraction(1),)]
    for _ in range(10):
        following = [Fraction(0)] * (len(polynomials[-1]) + 3)
        for power, coefficient in enumerate(polynomials[-1]):
            following[power + 1] += coefficient * (Fraction(power, 2) + Fraction(1, 8 * power + 8))
            following[power + 3] -= coefficient * (Fraction(power, 2) + Fraction(5, 8 * power + 24))
        polynomials.append(tuple(following))
    return tuple(polynomials)


def _horner(coefficients: Sequence[float], argument: FloatArray) -> FloatArray:
    """``sum_i coefficients[i] argument^i`` for two coefficients or more, with one temporary."""
    total = argument * coefficients[-1]
    for coefficient in reversed(coefficients[1:-1]):
        total += coefficient
        total *= argument
    total += coefficients[0]
    return total
