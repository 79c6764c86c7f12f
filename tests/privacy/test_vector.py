"""The integer grid: every bound in exact integers, every sum exact, never too little noise."""

from dataclasses import replace
from math import erfc, exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, analytic_multiplier
from capri.privacy.vector import VectorLayout, vector_layout

BUDGETS = [
    Budget(epsilon=epsilon, delta=delta)
    for epsilon in (1e-3, 0.1, 1.0, 3.0, 20.0)
    for delta in (1e-10, 1e-5, 0.1)
]


def exact_square(row: np.ndarray) -> int:
    """Squared norm in Python's unbounded integers."""
    return sum(int(entry) ** 2 for entry in row)


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Theorem 8 of Balle & Wang, written a second time, at ``sigma = multiplier * sensitivity``."""
    phi = lambda x: 0.5 * erfc(-x / sqrt(2))  # noqa: E731
    mu = 1 / multiplier
    return phi(mu / 2 - epsilon / mu) - exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@st.composite
def contributions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, float, Budget | None]:
    """Whitened features of any size, some zero, some far above the clip; rewards up to 1e308."""
    rank, count = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-12, 12))
    whitened = rng.normal(size=(count, rank)) * scale * 10.0 ** rng.integers(-3, 4, (count, 1))
    if draw(st.booleans()):  # all weight on one coordinate, or all equal: worst for rounding
        whitened[0] = 0.0
        whitened[0, 0] = scale
        whitened[-1] = scale / sqrt(rank)
    if draw(st.booleans()):
        whitened[rng.integers(count)] = 0.0
    extreme = st.sampled_from([1e308, -1e308, 1.7976931348623157e308, 0.0, 5e-324, 1.0, -1.0])
    rewards = np.array(draw(st.lists(extreme, min_size=count, max_size=count)))
    value_bound = draw(st.sampled_from([1e-6, 0.3, 1.0, 1e6]))
    clip_norm = draw(st.sampled_from([0.1, 1.0, 3.0])) * scale
    return whitened, rewards, value_bound, clip_norm, draw(st.sampled_from([None, *BUDGETS]))


@settings(max_examples=400)
@given(contributions())
def test_every_contribution_is_within_the_bound_in_integers(
    problem: tuple[np.ndarray, np.ndarray, float, float, Budget | None],
) -> None:
    """The sensitivity that the noise is calibrated to holds for any psi and any reward."""
    whitened, rewards, value_bound, clip_norm, budget = problem
    rank = whitened.shape[1]
    grid = vector_layout(
        value_bound=value_bound, clip_norm=clip_norm, rank=rank, length=1000, budget=budget
    )
    units = grid.messages(whitened, rewards, clip_norm=clip_norm)
    assert units.dtype == np.int64
    for row in units:
        assert exact_square(row) <= grid.norm_limit**2
    # And the limit is not slack: it is the bound in units plus the rounding of `rank` coordinates.
    assert grid.norm_limit <= value_bound * clip_norm / grid.step * (1 + 1e-12) + sqrt(rank) / 2 + 1


@settings(max_examples=200)
@given(contributions(), st.sampled_from([0.1, 0.5, 0.9, 0.999]))
def test_contribution_with_a_moment_is_within_the_same_bound(
    problem: tuple[np.ndarray, np.ndarray, float, float, Budget | None], share: float
) -> None:
    """The extra coordinate ``s B C (2 y^2/B^2 - 1)`` costs no sensitivity."""
    whitened, rewards, value_bound, clip_norm, budget = problem
    rank = whitened.shape[1] + 1
    grid = vector_layout(
        value_bound=value_bound,
        clip_norm=clip_norm,
        rank=rank - 1,
        moment_share=share,
        length=1000,
        budget=budget,
    )
    units = grid.messages(whitened, rewards, clip_norm=clip_norm)
    assert units.shape[1] == rank
    clipped = np.clip(rewards, -value_bound, value_bound) / value_bound
    exact = share * (2 * clipped**2 - 1) * value_bound * clip_norm / grid.step
    for row, moment in zip(units, exact, strict=True):
        assert exact_square(row) <= grid.norm_limit**2
        assert abs(int(row[-1]) - moment) <= 0.5 + 1e-12 * abs(moment)


@settings(max_examples=200)
@given(contributions())
def test_contribution_is_the_clipped_product_up_to_half_a_unit(
    problem: tuple[np.ndarray, np.ndarray, float, float, Budget | None],
) -> None:
    """``q = clip(y) psi min(1, C/|psi|) / step``, coordinate by coordinate."""
    whitened, rewards, value_bound, clip_norm, budget = problem
    grid = vector_layout(
        value_bound=value_bound,
        clip_norm=clip_norm,
        rank=whitened.shape[1],
        length=1000,
        budget=budget,
    )
    units = grid.messages(whitened, rewards, clip_norm=clip_norm)
    for row, psi, reward in zip(units, whitened, rewards, strict=True):
        norm = float(np.linalg.norm(psi))
        clipped = max(-value_bound, min(value_bound, reward))
        exact = clipped * psi * (min(1.0, clip_norm / norm) if norm else 1.0) / grid.step
        slack = 1e-14 * np.abs(exact).max()
        assert (np.abs(row - exact) <= 0.5 + slack).all()


def test_rounding_is_unbiased() -> None:
    """Rounding errors are uniform in [-1/2, 1/2]: mean 0, variance 1/12, both signs alike.

    20,000 errors; five standard deviations, false alarm 6e-7. A floor or a truncation towards 0,
    with a mean error of 0.5 in size, is off by 245 standard deviations.
    """
    rng = np.random.default_rng(4)
    whitened, rewards = rng.uniform(-1, 1, (20_000, 1)), np.full(20_000, 0.77)
    grid = vector_layout(
        value_bound=1.0, rank=1, length=20_000, budget=Budget(epsilon=1.0, delta=1e-5)
    )
    units = grid.messages(whitened, rewards)[:, 0]
    exact = whitened[:, 0] * 0.77 / grid.step
    error = units - exact
    assert abs(error.mean()) < 5 * sqrt(1 / 12 / 20_000)
    # Relative to the size of the number: truncation towards zero would shrink every contribution.
    assert abs((error * np.sign(exact)).mean()) < 5 * sqrt(1 / 12 / 20_000)
    # Variance of e^2 is 1/180 for a uniform error.
    assert abs((error**2).mean() - 1 / 12) < 5 * sqrt(1 / 180 / 20_000)


def test_sum_is_the_same_in_any_order_and_any_shards() -> None:
    """Integers: a replay on another machine, or in other batches, gives the same bits."""
    rng = np.random.default_rng(1)
    whitened, rewards = rng.normal(size=(1000, 9)), rng.uniform(-2, 2, 1000)
    grid = vector_layout(
        value_bound=1.0, clip_norm=2.0, rank=9, length=1000, budget=Budget(epsilon=1.0, delta=1e-5)
    )

    def total(rows: np.ndarray) -> np.ndarray:
        return grid.total(whitened[rows], rewards[rows], clip_norm=2.0)

    everyone = np.arange(1000)
    reference = total(everyone)
    np.testing.assert_array_equal(total(rng.permutation(everyone)), reference)
    for size in (1, 7, 64, 333):
        shards = np.split(rng.permutation(everyone), range(size, 1000, size))
        np.testing.assert_array_equal(sum(total(shard) for shard in shards), reference)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("rank", [1, 30, 1000])
@pytest.mark.parametrize("bound", [1e-9, 0.37, 1e5])
def test_noise_is_never_below_what_the_budget_needs(
    budget: Budget, rank: int, bound: float
) -> None:
    """Even when the paper's formula, or anyone, asks for less."""
    for asked in (0.0, 1e-3 * bound, 1e3 * bound):
        grid = vector_layout(
            value_bound=bound, rank=rank, length=100, budget=budget, noise_scale=asked
        )
        multiplier = grid.noise_units / grid.diameter
        assert multiplier >= analytic_multiplier(budget)
        assert gaussian_delta(budget.epsilon, multiplier) <= budget.delta * (1 + 1e-9)
        # The sensitivity in units covers the bound in the rewards' own unit.
        assert grid.norm_limit * grid.step >= bound
        # Fine enough that the discrete Gaussian is as good as the continuous one.
        assert grid.noise_units >= NOISE_UNITS * (1 - 1e-9)
        if asked:
            assert grid.noise_units * grid.step >= asked * (1 - 1e-12)


def test_noise_is_not_wastefully_above_what_the_budget_needs() -> None:
    """The grid costs less than one part in ten thousand at a common setting."""
    budget = Budget(epsilon=1.0, delta=1e-5)
    grid = vector_layout(value_bound=1.0, rank=50, length=1000, budget=budget)
    needed = 2 * analytic_multiplier(budget)
    assert grid.noise_units * grid.step == pytest.approx(needed, rel=1e-4)


def test_asked_noise_above_the_need_is_given_exactly() -> None:
    grid = vector_layout(
        value_bound=1.0,
        rank=5,
        length=100,
        budget=Budget(epsilon=1.0, delta=1e-5),
        noise_scale=123.456,
    )
    assert grid.noise_units * grid.step == pytest.approx(123.456, rel=1e-12)


@pytest.mark.parametrize("length", [1, 1000, 1 << 31, 1 << 40])
def test_grid_without_privacy_has_no_noise_and_cannot_overflow(length: int) -> None:
    grid = vector_layout(value_bound=3.0, rank=100, length=length, budget=None)
    assert grid.noise_units == 0.0
    assert grid.norm_limit * grid.step >= 3.0
    assert length * grid.norm_limit < 1 << 63
    if length <= 1 << 31:  # and keeps nine digits of a reward
        assert grid.step <= 3.0 * 2.0**-30


def test_epoch_that_could_overflow_is_refused() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    vector_layout(value_bound=1.0, rank=5, length=1 << 36, budget=budget)
    with pytest.raises(ConfigurationError, match="overflow 64-bit integers: shorten the epoch"):
        vector_layout(value_bound=1.0, rank=5, length=1 << 50, budget=budget)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_bound_that_is_not_positive_is_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="positive bound"):
        vector_layout(value_bound=bound, rank=1, length=1, budget=None)


def test_infinite_bound_is_refused() -> None:
    for budget in (None, Budget(epsilon=1.0, delta=1e-5)):
        with pytest.raises(ConfigurationError):
            vector_layout(value_bound=float("inf"), rank=1, length=1, budget=budget)


def test_bound_too_small_for_a_grid_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        vector_layout(value_bound=1e-320, rank=1, length=1, budget=None)


def test_integer_check_shrinks_a_row_that_floats_let_through() -> None:
    """A grid whose limit is smaller than the float bounds promise: integers have the last word."""
    grid = VectorLayout(rank=2, step=1.0, norm_limit=100, value_bound=50.0)
    whitened = np.array([[3.0, 4.0], [0.0, 0.0], [0.6, 0.8]])
    units = grid.messages(whitened, np.full(3, 50.0), clip_norm=5.0)
    assert exact_square(units[0]) <= 100**2
    np.testing.assert_allclose(units[0] / 100, [0.6, 0.8], atol=0.02)
    assert units[1:].tolist() == [[0, 0], [30, 40]]


@pytest.mark.parametrize("reward", [4.0, 1024.0, 1e6])
def test_integer_check_survives_its_own_overflow(reward: float) -> None:
    """``units @ units`` wraps at 2^64: a row 4 times too large must not look like a zero row."""
    grid = vector_layout(value_bound=1.0, rank=2, length=100, budget=None)
    wrong = replace(grid, value_bound=reward)
    units = wrong.messages(np.array([[1.0, 0.0]]), np.array([reward]))
    assert exact_square(units[0]) <= grid.norm_limit**2


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_feature_that_is_not_a_number_cannot_pass_the_integer_check() -> None:
    grid = vector_layout(value_bound=1.0, rank=2, length=100, budget=None)
    try:
        units = grid.messages(np.array([[np.nan, 0.0]]), np.ones(1))
    except (ValueError, FloatingPointError):
        return
    assert exact_square(units[0]) <= grid.norm_limit**2
