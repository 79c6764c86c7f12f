"""How much noise a promise needs, and what promise a noise keeps.

All searches end on the private side: the noise is never smaller, and the reported epsilon and delta
never smaller, than the exact value.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, expm1, inf, isfinite, log, nextafter, sqrt

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget

# Relative margin that covers the rounding of a few float64 operations in the formulas below.
ROUNDING = 1e-12


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta of the Gaussian mechanism with ``mu = sensitivity / sigma`` at epsilon.

    ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`` (Balle & Wang 2018, arXiv
    1805.06530v2, Theorem 8). Where both terms are tails, their common factor is taken out
    (``z^2 - x^2 = 2 eps``), which keeps full relative precision for tiny deltas.
    """
    from scipy.special import erfcx, log_ndtr, ndtr

    if mu <= 0:
        return 0.0
    x, z = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if x > 0:
        return float(0.5 * exp(-x * x / 2) * (erfcx(x / sqrt(2)) - erfcx(z / sqrt(2))))
    return float(ndtr(-x) - exp(epsilon + log_ndtr(-z)))


def _delta_from_above(epsilon: float, mu: float) -> float:
    """:func:`gaussian_delta` with its rounding errors added: never below the exact value.

    Besides a relative error, the difference of two terms is off by a rounding of the larger one,
    ``Phi(mu/2 - eps/mu)``, which matters when epsilon and mu are tiny.
    """
    from scipy.special import ndtr

    larger_term = float(ndtr(mu / 2 - epsilon / mu)) if mu > 0 else 0.0
    return gaussian_delta(epsilon, mu) * (1 + ROUNDING) + 4e-15 * larger_term


@lru_cache(maxsize=1024)
def analytic_multiplier(budget: Budget) -> float:
    """Smallest ``sigma / sensitivity`` of a Gaussian mechanism that keeps the budget.

    Valid for every epsilon, where the classical ``sqrt(2 ln(1.25/delta))/eps`` is proved for
    epsilon <= 1 only.

    >>> round(analytic_multiplier(Budget(epsilon=1.0, delta=1e-5)), 6)
    3.730632
    """
    if budget.delta == 0:
        raise ConfigurationError(
            "Gaussian noise needs delta above 0, such as Budget(epsilon=1.0, delta=1e-5): delta = "
            "0 is kept by messages of one cell (the joint model) and by reports of devices"
        )
    small, _ = _edge(lambda mu: _delta_from_above(budget.epsilon, mu) <= budget.delta)
    if small == 0.0:
        raise ConfigurationError(f"no finite noise keeps {budget}: epsilon and delta are too small")
    return (1 + ROUNDING) / small


@lru_cache(maxsize=1024)
def delivered_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon a Gaussian mechanism of ``mu = sensitivity / sigma`` keeps at this delta.

    >>> round(delivered_epsilon(1 / analytic_multiplier(Budget(epsilon=2.0, delta=1e-6)), 1e-6), 6)
    2.0
    """
    if not isfinite(mu):
        return float("inf")
    if _delta_from_above(0.0, mu) <= delta:
        return 0.0
    return _edge(lambda epsilon: _delta_from_above(epsilon, mu) > delta)[1]


def _edge(holds: Callable[[float], bool]) -> tuple[float, float]:
    """The largest number above 0 up to which a condition holds, and the next one."""
    small, large = 0.0, 1.0
    while holds(large):
        small, large = large, 2 * large
    while small < (middle := (small + large) / 2) < large:
        if holds(middle):
            small = middle
        else:
            large = middle
    return small, large


def paper_noise_scale(
    budget: Budget, *, sigma_max: float, reward_bound: float, horizon: int
) -> float:
    """``sigma_0 = sigma~_max (4 B ln T / eps) sqrt(ln(1.25 ln T / delta))`` (Appendix C).

    The same in both models, as printed.
    """
    if budget.delta == 0:
        raise ConfigurationError(
            "the paper's noise divides by delta: give one above 0, such as "
            f"Budget(epsilon={budget.epsilon:g}, delta=1e-5)"
        )
    log_horizon = log(horizon)
    argument = 1.25 * log_horizon / budget.delta
    if argument <= 1:
        raise ConfigurationError(
            f"the paper's noise needs delta < 1.25 ln(horizon) = {1.25 * log_horizon:.3g}, "
            f"got {budget.delta}"
        )
    return sigma_max * 4 * reward_bound * log_horizon / budget.epsilon * sqrt(log(argument))


def laplace_scale(epsilon: float, diameter: float, contributions: float = 1.0) -> float:
    """Smallest scale of discrete Laplace noise with ``contributions diameter / scale <= epsilon``.

    Compared in exact fractions. ``k`` contributions of a user, in one release or in several, are
    ``k`` times as far apart.

    >>> laplace_scale(1.0, 2.0), laplace_scale(0.1, 1.0) > 1 / 0.1
    (2.0, False)
    """
    return _from_above(Fraction(contributions) * Fraction(diameter) / Fraction(epsilon))


def laplace_epsilon(diameter: float, scale: float, contributions: float = 1.0) -> float:
    """``contributions diameter / scale``: what discrete Laplace noise delivers, rounded up."""
    if scale <= 0:
        return inf
    return _from_above(Fraction(contributions) * Fraction(diameter) / Fraction(scale))


def _from_above(exact: Fraction) -> float:
    """The smallest floating-point number that is not below."""
    number = float(exact)
    return number if Fraction(number) >= exact else nextafter(number, inf)


# The discrete Gaussian at the gate has at least this standard deviation in grid units.
NOISE_UNITS = 1 << 24


def continuous_budget(budget: Budget, rank: int) -> Budget:
    """Budget to calibrate a continuous Gaussian with, so that the discrete one keeps ``budget``.

    Rounding a continuous Gaussian to integers is post-processing, so ``q + round(N(0, s^2))`` keeps
    exactly the analytic guarantee on an integer ``q``. The discrete Gaussian ``p(k)`` we sample is
    almost that rounded Gaussian ``r(k)``. With ``p~(k) = e^{-k^2/2s^2} / (s sqrt(2 pi))``, which is
    ``p(k)`` up to a factor ``1 + 3 e^{-2 pi^2 s^2}``, and ``1 <= cosh(a) <= e^{a^2/2}`` in
    ``r(k) = p~(k) int e^{-u^2/2s^2} cosh(k u / s^2) du`` over ``|u| <= 1/2``,

        p(k) <= e^{1/(8 s^2)} r(k)                 for every k,
        r(k) <= e^{t^2/(8 s^2)} p(k)  (1 + tiny)    for |k| <= t s.

    Over ``rank`` coordinates the mechanism with ``p`` is therefore
    ``(eps' + rank (1 + t^2)/(8 s^2), e^{rank/(8 s^2)} (delta' + e^eps' rank P(|N| > t)))``-private
    when the continuous one is ``(eps', delta')``-private. At ``s >= 2^24`` and rank 1000 this costs
    1e-10 of epsilon. docs/proofs/calibration.md has the proof in full.
    """
    if budget.delta == 0:
        return budget  # refused by the calibration
    slack, delta = _integer_slack(budget, rank)
    if budget.epsilon <= 2 * slack or delta <= budget.delta / 2:
        raise ConfigurationError(
            f"{budget} is out of reach of the integer noise at rank {rank}: raise epsilon or delta"
        )
    # A rounding error kept free, so that accounting for the result never exceeds the budget.
    return Budget(epsilon=budget.epsilon * (1 - ROUNDING) - slack, delta=delta)


def _integer_slack(budget: Budget, rank: int) -> tuple[float, float]:
    """Epsilon to set aside, and delta left, for the step from continuous to integer noise."""
    variance = float(NOISE_UNITS) ** 2
    tail_squared = 2 * budget.epsilon + 200  # t^2, so that e^eps P(|N| > t) <= e^-100
    slack = rank * (2 + tail_squared) / (8 * variance)
    return slack, budget.delta * (1 - expm1(rank / (4 * variance))) - rank * exp(-100.0)


def delivered_by_integers(mu: float, budget: Budget, rank: int) -> float:
    """Epsilon that integer noise at ``mu = sensitivity / sigma`` delivers at ``budget.delta``.

    The inverse of calibrating with :func:`continuous_budget`.
    """
    if mu == 0:
        return 0.0
    slack, delta = _integer_slack(budget, rank)
    if delta <= 0:  # so small that the step to integers alone exceeds it
        return float("inf")
    return delivered_epsilon(mu, delta) + slack


def noise_multiplier(budget: Budget, dimension: int, composition: float = 1.0) -> float:
    """Noise scale per unit of the contribution bound: replace-one sensitivity is twice the bound.

    ``composition`` multiplies the noise for users who contribute more than once; such a user takes
    part in at most ``composition^2`` releases, whose integer slack adds up.
    """
    releases = ceil(composition**2)
    return 2 * composition * analytic_multiplier(continuous_budget(budget, dimension * releases))
