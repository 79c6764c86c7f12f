"""Noise against claims: two independent accountants, fifty digits, and the integer lemma."""

from itertools import pairwise
from math import ceil, exp, inf, log, sqrt

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from capri.errors import ConfigurationError
from capri.privacy import calibration
from capri.privacy.budget import Budget
from capri.privacy.calibration import (
    NOISE_UNITS,
    analytic_multiplier,
    continuous_budget,
    delivered_by_integers,
    delivered_epsilon,
    gaussian_delta,
    paper_noise_scale,
)
from capri.privacy.vector import vector_layout

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
BUDGETS = [Budget(epsilon=epsilon, delta=delta) for epsilon in EPSILONS for delta in (1e-5, 1e-6)]
EXTREMES = [
    Budget(epsilon=epsilon, delta=delta)
    for epsilon in (1e-3, 1e-2, 1.0, 30.0, 200.0)
    for delta in (1e-30, 1e-12, 1e-5, 1e-2, 0.4)
]
TINY = [
    Budget(epsilon=epsilon, delta=delta)
    for epsilon in (1e-12, 1e-6, 1e-5, 1e-4)
    for delta in (1e-30, 1e-20, 1e-12, 1e-8, 1e-5)
]


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Theorem 8 of Balle & Wang at fifty digits."""
    with mpmath.workdps(80):  # the difference loses up to thirty digits at delta 1e-30
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def pld_epsilon(multiplier: float, delta: float) -> float:
    """What dp-accounting says of the Gaussian mechanism at ``sigma / (2 B C)``.

    ``sensitivity=1`` and a single composition: the add-or-remove-one relation, whose shift of 1 is
    our replace-one shift of ``2 B C``. The estimate is pessimistic ("connect the dots"), hence an
    upper bound; at this discretisation it is within 1e-9 of the exact value, as the agreement with
    fifty digits shows.
    """
    distribution = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=multiplier,
        sensitivity=1.0,
        value_discretization_interval=2e-4,
        pessimistic_estimate=True,
    )
    return float(distribution.get_epsilon_for_delta(delta))


# -- the claim ------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_accountant_agrees_with_the_claim(budget: Budget) -> None:
    """From the integers a release really uses to the epsilon an outsider computes."""
    grid = vector_layout(value_bound=0.83, rank=200, length=1000, budget=budget)
    reported = pld_epsilon(grid.noise_units / grid.diameter, budget.delta)
    assert budget.epsilon - 1e-3 <= reported <= budget.epsilon + 1e-6
    ours = delivered_by_integers(grid.diameter / grid.noise_units, budget, rank=200)
    assert budget.epsilon - 1e-3 <= ours <= budget.epsilon * (1 + 1e-9)
    assert ours == pytest.approx(reported, abs=1e-6)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_accountant_sees_one_per_mille_less_noise(budget: Budget) -> None:
    """The check above has teeth: it notices a thousandth of the noise missing."""
    assert pld_epsilon(0.999 * analytic_multiplier(budget), budget.delta) > budget.epsilon + 1e-6


@pytest.mark.parametrize("budget", BUDGETS + EXTREMES, ids=str)
def test_search_for_noise_ends_on_the_private_side(budget: Budget) -> None:
    """At fifty digits the returned multiplier keeps delta, and a hair less does not."""
    multiplier = analytic_multiplier(budget)
    with mpmath.workdps(50):
        assert exact_delta(budget.epsilon, 1 / mpmath.mpf(multiplier)) <= budget.delta
        less = mpmath.mpf(multiplier) * (1 - mpmath.mpf(10) ** -9)
        assert exact_delta(budget.epsilon, 1 / less) > budget.delta


def test_search_for_noise_ends_on_the_private_side_for_tiny_budgets() -> None:
    """``erfcx(x) - erfcx(z)`` keeps about ``mu / x`` of its digits: a fixed margin is too small."""
    for budget in TINY:
        mu = 1 / mpmath.mpf(analytic_multiplier(budget))
        assert exact_delta(budget.epsilon, mu) <= budget.delta


@pytest.mark.parametrize("mu", [1e-3, 0.01, 0.3, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 1e-2])
def test_search_for_epsilon_ends_on_the_private_side(mu: float, delta: float) -> None:
    epsilon = delivered_epsilon(mu, delta)
    assert exact_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert exact_delta(epsilon * (1 - 1e-8), mu) > delta


def test_delta_has_full_relative_precision() -> None:
    """Over 60 orders of magnitude, in both branches of the formula."""
    for mu in (1e-3, 0.1, 1.0, 5.0, 30.0):
        for ratio in (0.0, 0.1, 0.5, 1.0, 3.0, 8.0, 15.0):
            epsilon = mu * mu * 0.5 + ratio * mu - (0.3 * mu * mu if ratio == 0 else 0)
            exact = float(exact_delta(epsilon, mu))
            assert gaussian_delta(epsilon, mu) == pytest.approx(exact, rel=1e-10)


def test_no_difference_costs_nothing_and_no_noise_costs_everything() -> None:
    assert gaussian_delta(1.0, 0.0) == 0.0
    assert delivered_epsilon(0.0, 1e-5) == 0.0
    assert delivered_epsilon(inf, 1e-5) == inf
    assert delivered_epsilon(float("nan"), 1e-5) == inf


# -- published values -----------------------------------------------------------------------------


def balle_wang(budget: Budget) -> float:
    """Algorithm 1 of Balle & Wang (2018), written from the paper: sigma at sensitivity 1."""
    with mpmath.workdps(50):
        epsilon, delta = mpmath.mpf(budget.epsilon), mpmath.mpf(budget.delta)
        phi, root = mpmath.ncdf, mpmath.sqrt
        threshold = phi(0) - mpmath.exp(epsilon) * phi(-root(2 * epsilon))
        if delta >= threshold:

            def excess(v: mpmath.mpf) -> mpmath.mpf:
                minus = mpmath.exp(epsilon) * phi(-root(epsilon * (v + 2)))
                return phi(root(epsilon * v)) - minus - delta

            sign = -1
        else:

            def excess(v: mpmath.mpf) -> mpmath.mpf:
                minus = mpmath.exp(epsilon) * phi(-root(epsilon * (v + 2)))
                return delta - (phi(-root(epsilon * v)) - minus)

            sign = 1
        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while excess(high) < 0:
            low, high = high, 2 * high
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        alpha = root(1 + high / 2) + sign * root(high / 2)
        return float(alpha / root(2 * epsilon))


@pytest.mark.parametrize("budget", [*BUDGETS, Budget(epsilon=0.1, delta=0.3)], ids=str)
def test_multiplier_is_that_of_balle_and_wang(budget: Budget) -> None:
    assert analytic_multiplier(budget) == pytest.approx(balle_wang(budget), rel=1e-9)


def test_published_values() -> None:
    """sigma at sensitivity 1 as the authors' code prints it, and the failure of the classic.

    Balle & Wang, Section 2: the classical formula is not private at large epsilon, and at delta
    fixed sigma falls like 1/sqrt(2 epsilon).
    """
    published = {(1.0, 1e-5): 3.730631634}
    for (epsilon, delta), sigma in published.items():
        budget = Budget(epsilon=epsilon, delta=delta)
        assert analytic_multiplier(budget) == pytest.approx(sigma, rel=1e-8)

    def classical(budget: Budget) -> float:
        return sqrt(2 * log(1.25 / budget.delta)) / budget.epsilon

    small, large = Budget(epsilon=0.5, delta=1e-6), Budget(epsilon=30.0, delta=1e-6)
    assert analytic_multiplier(small) < classical(small)
    assert analytic_multiplier(large) > classical(large)
    huge = Budget(epsilon=1e6, delta=1e-5)
    assert analytic_multiplier(huge) == pytest.approx(1 / sqrt(2 * huge.epsilon), rel=0.01)


# -- monotone and inverse -------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_more_epsilon_needs_less_noise(delta: float) -> None:
    noise = [analytic_multiplier(Budget(epsilon=e, delta=delta)) for e in np.geomspace(0.01, 50)]
    assert all(more > less for more, less in pairwise(noise))


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
def test_more_delta_needs_less_noise(epsilon: float) -> None:
    deltas = np.geomspace(1e-15, 0.5)
    noise = [analytic_multiplier(Budget(epsilon=epsilon, delta=float(d))) for d in deltas]
    assert all(more > less for more, less in pairwise(noise))


@settings(max_examples=200)
@given(st.floats(1e-3, 50.0), st.floats(-30.0, -0.7).map(lambda power: 10.0**power))
def test_account_inverts_calibration(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon=epsilon, delta=delta)
    delivered = delivered_epsilon(1 / analytic_multiplier(budget), delta)
    assert delivered == pytest.approx(epsilon, rel=1e-8)
    assert delivered <= epsilon * (1 + 1e-9)  # both searches round up; the ledger allows for it


@settings(max_examples=200)
@given(st.floats(1e-3, 50.0), st.floats(-30.0, -0.7), st.integers(1, 100_000))
def test_account_of_integers_inverts_their_calibration(
    epsilon: float, power: float, rank: int
) -> None:
    budget = Budget(epsilon=epsilon, delta=10.0**power)
    mu = 1 / analytic_multiplier(continuous_budget(budget, rank))
    assert delivered_by_integers(mu, budget, rank) == pytest.approx(epsilon, rel=1e-8)
    assert delivered_by_integers(mu, budget, rank) <= epsilon * (1 + 1e-9)
    assert delivered_by_integers(1.001 * mu, budget, rank) > epsilon


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="out of reach of the integer noise"):
        continuous_budget(Budget(epsilon=1e-12, delta=1e-5), rank=1000)
    with pytest.raises(ConfigurationError, match="out of reach of the integer noise"):
        continuous_budget(Budget(epsilon=1.0, delta=1e-43), rank=1000)


# -- the paper's noise ----------------------------------------------------------------------------


def test_paper_noise_by_hand() -> None:
    """sigma~_max 0.5, B 2, T 100, eps 1, delta 1e-5: 0.5 * 4 * 2 * ln 100 * sqrt(ln(575646.27))."""
    budget = Budget(epsilon=1.0, delta=1e-5)
    scale = paper_noise_scale(budget, sigma_max=0.5, reward_bound=2.0, horizon=100)
    # ln 100 = 4.605170186; 1.25 ln(100) / 1e-5 = 575646.2732; its ln = 13.26325. sqrt = 3.641875
    assert scale == pytest.approx(4 * 4.605170186 * 3.641875, rel=1e-5)


def test_paper_noise_is_eighteen_times_too_large() -> None:
    """At eps 1, delta 1e-5, T 1e4 it really delivers eps 0.04."""
    budget = Budget(epsilon=1.0, delta=1e-5)
    scale = paper_noise_scale(budget, sigma_max=1.0, reward_bound=1.0, horizon=10_000)
    assert scale / (2 * analytic_multiplier(budget)) == pytest.approx(18, abs=0.8)
    assert delivered_epsilon(2 / scale, budget.delta) == pytest.approx(0.04, abs=0.005)


def test_paper_noise_at_a_delta_without_meaning_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="paper's noise needs delta"):
        paper_noise_scale(
            Budget(epsilon=1.0, delta=0.9), sigma_max=1.0, reward_bound=1.0, horizon=2
        )


# -- from continuous to integer noise -------------------------------------------------------------


def discrete_and_rounded(scale: int, reach: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """``(p(k), r(k))`` for k = 0 .. reach: discrete Gaussian, rounded continuous Gaussian."""
    s = mpmath.mpf(scale)
    weight = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s * s)) for k in range(40 * scale)]
    total = weight[0] + 2 * mpmath.fsum(weight[1:])
    half = mpmath.mpf(1) / 2
    return [
        # Upper tails: the difference of two values near 1 would lose all digits.
        (weight[k] / total, mpmath.ncdf(-(k - half) / s) - mpmath.ncdf(-(k + half) / s))
        for k in range(reach)
    ]


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_integer_lemma_holds_at_every_integer(scale: int) -> None:
    """Both inequalities of ``continuous_budget``, at scales where they matter, 30 sigma far."""
    with mpmath.workdps(300):  # r(k) at 30 sigma is 1e-198
        e, s = mpmath.exp, mpmath.mpf(scale)
        pairs = discrete_and_rounded(scale, 30 * scale)
        tiny = 1 + 3 * e(-2 * mpmath.pi**2 * s * s)
        for k, (discrete, rounded) in enumerate(pairs):
            assert discrete <= e(1 / (8 * s * s)) * rounded
            t = k / s
            assert rounded <= e(t * t / (8 * s * s)) * discrete * tiny
        # Neither factor could be left out, and neither is far from what is needed.
        assert pairs[0][0] > pairs[0][1]
        assert pairs[0][0] > e(1 / (25 * s * s)) * pairs[0][1]
        assert pairs[-1][1] > pairs[-1][0] * tiny


def worst_delta(scale: float, shift: tuple[int, ...], epsilon: float) -> float:
    """Exact delta of discrete Gaussian noise on integers moved by ``shift``, by summation."""
    axes = np.meshgrid(
        *(np.arange(-ceil(14 * scale), ceil(14 * scale) + s + 1) for s in shift), indexing="ij"
    )
    here = np.exp(-sum(axis**2 for axis in axes) / (2 * scale**2))
    there = np.exp(
        -sum((axis - s) ** 2 for axis, s in zip(axes, shift, strict=True)) / (2 * scale**2)
    )
    one_dimension = np.arange(-ceil(20 * scale), ceil(20 * scale) + 1)
    total = np.exp(-(one_dimension**2) / (2 * scale**2)).sum() ** len(shift)
    return float(np.maximum(here - exp(epsilon) * there, 0.0).sum() / total)


@pytest.mark.parametrize("scale", [3.0, 50.0])
@pytest.mark.parametrize("share", [0.25, 0.9, 1.5])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_exact_delta_of_integers_is_within_the_lemma(
    scale: float, share: float, epsilon: float
) -> None:
    """One dimension, summed: ``(eps' + (1 + t^2)/(8 s^2), e^{1/(8 s^2)} (delta' + ...))``."""
    shift = max(1, round(share * scale))
    tail = 7.0
    slack = (1 + tail**2) / (8 * scale**2)
    continuous = gaussian_delta(epsilon, shift / scale)
    outside = float(mpmath.erfc((tail - 0.5 / scale) / sqrt(2)))
    bound = exp(1 / (8 * scale**2)) * (continuous + exp(epsilon) * outside)
    exact = worst_delta(scale, (shift,), epsilon + slack)
    assert exact <= bound
    # Both are about the same mechanism: the bound is not met by being absurdly loose.
    if scale == 50.0 and continuous > 1e-6:
        assert exact > 0.8 * continuous


@pytest.mark.parametrize("rank", [1, 50, 100_000])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_what_is_set_aside_for_integers_covers_the_lemma(budget: Budget, rank: int) -> None:
    """At fifty digits: both terms of the lemma at the largest ``t`` that was thought of."""
    left = continuous_budget(budget, rank)
    with mpmath.workdps(50):
        s = mpmath.mpf(NOISE_UNITS)
        t = mpmath.sqrt(2 * mpmath.mpf(budget.epsilon) + 200)
        slack = rank * (1 + t**2) / (8 * s**2)
        assert left.epsilon + slack <= budget.epsilon
        outside = rank * mpmath.erfc((t - 1 / (2 * s)) / mpmath.sqrt(2))
        delta = mpmath.exp(rank / (8 * s**2)) * (
            mpmath.mpf(left.delta) + mpmath.exp(left.epsilon) * outside
        )
        assert delta <= budget.delta


@pytest.mark.parametrize("direction", [(1,), (1, 1), (3, 4)])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_budget_is_kept_by_integers_at_a_coarse_grid(
    monkeypatch: pytest.MonkeyPatch, direction: tuple[int, ...], epsilon: float
) -> None:
    """The calibration itself, run at a resolution where a sum over all integers is possible."""
    resolution = 40
    monkeypatch.setattr(calibration, "NOISE_UNITS", resolution)
    budget = Budget(epsilon=epsilon, delta=1e-5)
    multiplier = analytic_multiplier(continuous_budget(budget, rank=len(direction)))
    length = int(resolution / multiplier / np.linalg.norm(direction))
    shift = tuple(length * step for step in direction)
    scale = float(multiplier * np.linalg.norm(shift))
    scale = max(scale, float(resolution))
    assert worst_delta(scale, shift, epsilon) <= budget.delta
    # Two thirds of the noise would break the promise, so this is not true of any noise.
    assert worst_delta(scale / 1.5, shift, epsilon) > budget.delta


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("rank", [1, 100, 1000])
def test_price_of_integers_is_below_a_millionth(budget: Budget, rank: int) -> None:
    """The issue allows 11 % more noise than the analytic value."""
    price = analytic_multiplier(continuous_budget(budget, rank)) / analytic_multiplier(budget) - 1
    assert 0 <= price < 1e-6
    # With the rounding of contributions, which the sensitivity includes.
    grid = vector_layout(value_bound=0.83, rank=rank, length=1000, budget=budget)
    noise = grid.noise_units * grid.step
    assert 0 <= noise / (2 * 0.83 * analytic_multiplier(budget)) - 1 < 1e-4


def test_noise_is_never_coarser_than_the_lemma_assumes() -> None:
    for budget in BUDGETS:
        for rank in (1, 1000):
            grid = vector_layout(value_bound=1.0, rank=rank, length=10, budget=budget)
            assert grid.noise_units >= NOISE_UNITS * (1 - 1e-12)
