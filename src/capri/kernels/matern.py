"""The Matern function of a distance, for every order: no NaN, no overflow, at any distance.

Each function replaces a flat block of distances ``r`` (already divided by the lengthscale) by

    2^(1-nu) / Gamma(nu) * z^nu K_nu(z),    z = sqrt(2 nu) r,

in the form that suits its order ``nu``.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from capri.arrays import FloatArray

# exp(-750) is 0 in double precision, so arguments are cut here: infinity times 0 never arises.
DEAD = 1500.0

# From this order on the expansion in 1/nu is exact to 1e-14, while K_nu would soon overflow.
LARGE_ORDER = 20.0


def shape(distance: FloatArray, nu: float) -> None:
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
