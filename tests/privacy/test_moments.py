"""Second moments as integers: exact, bounded, and noised as the budget asks."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import dp_event
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS
from capri.privacy.gate import Gate, noised
from capri.privacy.ledger import Ledger
from capri.privacy.moments import MomentLayout, moment_layout
from capri.privacy.noise import SecureNoise, SimulatedNoise
from layouts import squared_distance

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def grid_of(features: int = 3, targets: int = 1, **changes: object) -> MomentLayout:
    settings = {"features": features, "targets": targets, "rows": 1000, "budget": BUDGET}
    return moment_layout(**(settings | changes))  # type: ignore[arg-type]


def distance(grid: MomentLayout, left: tuple, right: tuple) -> float:
    """Frobenius distance of two rows' messages, in exact integers."""
    messages = [grid.messages(np.array([f]), np.array([t]))[0] for f, t in (left, right)]
    return sqrt(squared_distance(grid, *messages))


numbers = st.floats(-1e9, 1e9, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(numbers, min_size=10, max_size=10), st.integers(1, 2))
def test_no_row_moves_the_sum_by_more_than_the_sensitivity(rows: list[float], targets: int) -> None:
    grid = grid_of(features=5 - targets, targets=targets)
    cut = 5 - targets
    left, right = (rows[:cut], rows[cut:5]), (rows[5 : 5 + cut], rows[5 + cut :])
    assert distance(grid, left, right) <= grid.diameter * (1 + 1e-12)


def test_sensitivity_is_attained_by_the_vector_alone() -> None:
    """The same features and opposite targets: covariance and squares agree, and ride for free."""
    grid = grid_of(features=1)
    assert distance(grid, ([1.0], [1.0]), ([1.0], [-1.0])) == pytest.approx(grid.diameter)


@pytest.mark.parametrize("targets", [1, 2, 3])
def test_random_rows_stay_within_and_come_close(targets: int) -> None:
    generator = np.random.default_rng(0)
    grid = grid_of(features=2, targets=targets)
    rows = generator.normal(size=(300, 2))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    ends = generator.choice([-1.0, 1.0], size=(300, targets))
    gaps = [
        distance(grid, (rows[i], ends[i]), (rows[j], ends[j]))
        for i in range(0, 300, 3)
        for j in (i + 1, i + 2)
    ]
    assert max(gaps) <= grid.diameter * (1 + 1e-9)
    assert max(gaps) > 0.95 * grid.diameter


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_sums_do_not_depend_on_how_rows_are_cut(budget: Budget | None) -> None:
    generator = np.random.default_rng(1)
    grid = grid_of(features=40, targets=2, budget=budget)
    features = generator.uniform(-0.15, 0.15, (999, 40))
    targets = generator.uniform(-1, 1, (999, 2))
    whole = grid.total(features, targets)
    order = generator.permutation(999)
    cut = [grid.total(features[part], targets[part]) for part in np.array_split(order, 7)]
    assert np.array_equal(whole, sum(cut))
    exact = grid.messages(features[:50], targets[:50]).astype(object).sum(axis=0)
    assert (exact == grid.total(features[:50], targets[:50])).all()


def test_without_privacy_the_moments_are_exact_to_the_grid() -> None:
    generator = np.random.default_rng(2)
    grid = grid_of(features=4, targets=1, budget=None)
    rows = generator.uniform(-0.4, 0.4, (100, 5))
    moments = grid.matrix(grid.numbers(grid.total(rows[:, :4], rows[:, 4:])))
    assert np.abs(moments - rows.T @ rows).max() < 100 * 2.0**-35


def test_noise_has_the_stated_deviations() -> None:
    """4,000 draws of each kind: five standard errors of a deviation are 5.6 %."""
    grid = grid_of(features=1)
    noise = SimulatedNoise(np.random.default_rng(3))
    sums = [noised(grid.empty(), grid, noise) for _ in range(4000)]
    draws = np.array([grid.matrix(grid.numbers(each)) for each in sums])
    unit = grid.noise_units / float(grid.level) ** 2
    assert draws[:, 0, 0].std() == pytest.approx(unit, rel=0.056)
    assert draws[:, 0, 1].std() == pytest.approx(unit / sqrt(2), rel=0.056)
    assert np.array_equal(draws[:, 0, 1], draws[:, 1, 0])
    assert abs(np.corrcoef(draws[:, 0, 0], draws[:, 1, 1])[0, 1]) < 5 / sqrt(4000)


def release(grid: MomentLayout, *, ledger: Ledger | None) -> None:
    gate = Gate(SecureNoise(), ledger)
    gate.release(grid.empty(), grid, epoch=1, participants=10)


def test_release_is_accounted_for_and_made_once() -> None:
    grid = grid_of(features=2)
    ledger = Ledger(BUDGET)
    release(grid, ledger=ledger)
    (event,) = ledger.events
    assert event.participants == 10
    assert event.rank == grid.coordinates == 6
    assert ledger.spent.epsilon == pytest.approx(1.0, rel=1e-6)
    assert ledger.spent.epsilon <= 1.0 * (1 + 1e-9)
    with pytest.raises(BudgetError, match="released before"):
        release(grid, ledger=ledger)
    assert len(ledger.events) == 1


def test_independent_account_agrees() -> None:
    """dp-accounting's PLD: within 1 % above the budget's epsilon, by its own discretisation."""
    from dp_accounting.pld import PLDAccountant

    grid = grid_of(features=2)
    ledger = Ledger(BUDGET)
    release(grid, ledger=ledger)
    accountant = PLDAccountant()
    accountant.compose(dp_event(ledger.events[0]))
    assert accountant.get_epsilon(1e-5) == pytest.approx(1.0, rel=0.01)


def test_weak_noise_is_refused_and_paper_noise_is_larger() -> None:
    from dataclasses import replace

    grid = grid_of()
    ledger = Ledger(BUDGET)
    for weak in (replace(grid, noise_units=grid.noise_units / 2), replace(grid, noise_units=1.0)):
        with pytest.raises(BudgetError):
            release(weak, ledger=ledger)
    assert not ledger.events
    with pytest.raises(BudgetError, match="through a ledger only"):
        release(grid, ledger=None)
    assert grid.noise_units / sqrt(2) >= NOISE_UNITS
    assert grid_of(calibration="paper").noise_units > 5 * grid.noise_units
