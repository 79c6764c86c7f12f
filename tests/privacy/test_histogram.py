"""The message of one cell: its diameter in exact integers, its pure noise, and what it tells."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import log, sqrt

import numpy as np
import pytest

from builders import dp_event
from capri.arrays import IntArray
from capri.epoch.storage import layout_from_state, layout_state
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import laplace_epsilon, laplace_scale
from capri.privacy.gate import Gate
from capri.privacy.histogram import HistogramLayout, histogram_layout
from capri.privacy.layout import Norm
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.noise import SecureNoise, SimulatedNoise
from capri.privacy.vector import vector_layout

PURE, APPROXIMATE = Budget(epsilon=1.0), Budget(epsilon=1.0, delta=1e-5)

# --- all messages of a small grid, in exact integers ---------------------------------------------


def every_message(layout: HistogramLayout) -> IntArray:
    """Through the real code: each value and excess in each of the cells, missing, bad."""
    level, tail = layout.level, max(layout.tail_level, 1)
    values = [t / level for t in range(-level, level + 1)]
    values += [sign * (1 + e / tail) for e in range(tail + 1) for sign in (1, -1)] + [np.nan]
    rows = [*np.eye(layout.cells), np.zeros(layout.cells)]
    pairs = list(product(rows, values))
    features, numbers = np.array([row for row, _ in pairs]), np.array([t for _, t in pairs])
    return np.unique(layout.messages(features, numbers), axis=0)


def widest(units: IntArray) -> int:
    """The largest L1 distance of two messages."""
    return max(int(np.abs(units - row).sum(axis=1).max()) for row in units)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("tail_level", [0, 1, 4])
@pytest.mark.parametrize("level", [2, 3, 4, 7, 8, 15, 32, 101])
def test_every_pair_of_integer_messages_is_within_the_diameter(
    level: int, tail_level: int, missing: bool
) -> None:
    """At most ``2 L + K``, exactly; and attained: one cell, opposite values, tail 0 and 1."""
    layout = HistogramLayout(cells=2, level=level, tail_level=tail_level, missing=missing)
    units = every_message(layout)
    assert not units.all(axis=1).any()
    assert (units == 0).all(axis=1).any(), "the zero message is among them"
    assert widest(units) == 2 * level + tail_level == layout.diameter


def forms(level: int, moment: Callable[[int], int], missing_moment: int) -> IntArray:
    """The printed forms in two cells with the constants open, so that each can be got wrong."""
    rows = [(0, 0, 0, 0, 0)]
    for t in range(-level, level + 1):
        rows += [(t, 0, 0, 0, moment(t)), (0, t, 0, 0, moment(t))]
    rows += [(0, 0, level, 0, missing_moment), (0, 0, 0, level, missing_moment)]
    return np.array(rows)


def test_printed_forms_are_those_of_the_layout() -> None:
    layout = HistogramLayout(cells=2, level=9, missing=True)
    printed = forms(9, lambda t: t * t // 18, 4)
    assert np.unique(printed, axis=0).tolist() == every_message(layout).tolist()


def test_moment_above_a_quarter_is_caught() -> None:
    """``s = .26`` instead of 1/4, and the share of two: in cells of their own beyond ``2 L``."""
    level = 1000
    assert widest(forms(level, lambda t: t * t // (2 * level), level // 2)) == 2 * level
    louder = forms(level, lambda t: 52 * t * t // (100 * level), 52 * level // 100)
    assert widest(louder) > 2 * level
    twice = forms(level, lambda t: t * t // level, level)
    assert widest(twice) == 2 * level + level // 4


def test_missing_without_its_moment_is_caught() -> None:
    """A missing user whose moment is 0 is ``2 L + L / 2`` from one with the largest value."""
    assert widest(forms(100, lambda t: t * t // 200, 0)) == 250


def test_diameter_of_one_cell_alone_is_caught() -> None:
    """Two users in two cells are as far apart as opposite values in one: ``L`` would not do."""
    layout = HistogramLayout(cells=2, level=50)
    units = layout.messages(np.eye(2), np.ones(2))
    assert int(np.abs(units[0] - units[1]).sum()) == 100 > layout.level
    assert layout.diameter == 100


def test_moment_beside_split_cells_is_caught() -> None:
    """``(1 + t)/2`` and ``(1 - t)/2`` in two cells count answers, and leave the moment no room."""
    level = 20
    rows = [
        [(level + t) // 2 if place == 2 * cell else 0 for place in range(4)]
        + [t * t // (2 * level)]
        for cell in range(2)
        for t in range(-level, level + 1, 2)
    ]
    split = np.array(rows)
    split[: level + 1, 1] = level - split[: level + 1, 0]
    split[level + 1 :, 3] = level - split[level + 1 :, 2]
    assert widest(split[:, :4]) == 2 * level
    assert widest(split) == 2 * level + level // 2


# --- any input ------------------------------------------------------------------------------------


def test_message_has_one_cell_whatever_a_feature_map_returns() -> None:
    layout = HistogramLayout(cells=3, level=10, missing=True, tail_level=5)
    rows = np.array(
        [
            [1, 0, 0],
            [2, 3, 3],
            [0, 0, 0],
            [-1, -2, -3],
            [np.nan, 1, 0],
            [np.inf, 0, 0],
            [1e-300, 0, 0],
        ]
    )
    units = layout.messages(rows, np.full(7, 0.5))
    assert units[:, :3].tolist() == [[5, 0, 0], [0, 5, 0], *[[0, 0, 0]] * 4, [5, 0, 0]]
    assert not units[2:6].any(), "no cell, or none that is a number: the zero message"


def test_missing_and_odd_values() -> None:
    rows, values = np.eye(2)[[0, 1, 0, 1]], np.array([np.nan, np.inf, 1e300, -3.0])
    layout = HistogramLayout(cells=2, level=10, missing=True, tail_level=4)
    assert layout.messages(rows, values, tail_bound=4.0).tolist() == [
        [0, 0, 10, 0, 5, 0],
        [0, 0, 0, 10, 5, 0],
        [10, 0, 0, 0, 5, 4],
        [0, -10, 0, 0, 5, 2],
    ]
    silent = HistogramLayout(cells=2, level=10)
    assert not silent.messages(rows[:2], values[:2]).any()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = np.random.default_rng(0)
    layout = histogram_layout(cells=5, length=100, budget=PURE, tail_share=0.1, missing=True)
    rows, values = np.eye(5)[generator.integers(5, size=50)], generator.normal(size=50)
    alone = [layout.messages(rows[[i]], values[[i]])[0] for i in range(50)]
    assert layout.messages(rows, values).tolist() == np.array(alone).tolist()
    assert layout.total(rows, values).tolist() == np.sum(alone, axis=0).tolist()


# --- the noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.3, 1 / 3, 1.0, 7.7, 1e4])
@pytest.mark.parametrize("contributions", [1, 2, 3, 7])
def test_scale_is_on_the_private_side_in_exact_fractions(
    epsilon: float, contributions: int
) -> None:
    layout = histogram_layout(
        cells=3,
        length=10_000,
        budget=Budget(epsilon),
        tail_share=0.07,
        contributions=contributions,
    )
    scale, diameter = Fraction(layout.noise_units), 2 * layout.level + layout.tail_level
    assert layout.diameter == diameter
    assert contributions * diameter / scale <= Fraction(epsilon)
    smaller = Fraction(np.nextafter(layout.noise_units, 0))
    assert contributions * diameter / smaller > Fraction(epsilon)
    assert laplace_epsilon(diameter, layout.noise_units, contributions) <= epsilon
    assert set(layout.noise_scales.values()) == {layout.noise_units}


def test_library_agrees_on_the_cost() -> None:
    """OpenDP's own map of the measurement that draws, rounded up by it: one step more at most."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    measurement = dp.m.make_laplace(*space, scale=laplace_scale(1.0, 2.0**25 + 3))
    assert measurement.map((1 << 25) + 3) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("source", ["secure", "simulated"])
@pytest.mark.parametrize(("scale", "reports"), [(1.0, 1), (1000.0, 1), (2.0**25, 1), (50.0, 4)])
def test_noise_is_discrete_laplace(source: str, scale: float, reports: int) -> None:
    """Mean, absolute moment and variance of 20,000 draws, five standard errors each.

    ``P(k) = tanh(1 / 2 b) e^{-|k| / b}`` has variance ``2 p / (1 - p)^2`` with ``p = e^{-1/b}``.
    The variance has a relative error of ``sqrt(5 / n)`` at most, so 8 %: a false alarm in 1e6, and
    a scale that is off by a tenth is seen.
    """
    noise = SecureNoise() if source == "secure" else SimulatedNoise(np.random.default_rng(4))
    count, p = 20_000, np.exp(-1 / scale)
    draws = noise.add(np.full(count, 7), scale, reports, Norm.L1) - 7
    assert draws.dtype == np.int64
    variance = reports * 2 * p / np.expm1(-1 / scale) ** 2
    unit = draws / sqrt(variance)
    assert abs(unit.mean()) < 5 / sqrt(count)
    assert abs((unit**2).mean() - 1) < 5 * sqrt(5.5 / count)
    if reports == 1 and scale > 10:
        assert abs(np.abs(draws / scale).mean() - 1) < 5 / sqrt(count)
        # The median of |k| / b is log 2: a Gaussian of the same variance has .954.
        assert abs((np.abs(draws) < scale * log(2)).mean() - 0.5) < 5 * 0.5 / sqrt(count)


def test_small_probabilities_are_those_of_discrete_laplace() -> None:
    """Scale 1: P(0) = tanh(1/2) = .4621, P(+-1) = .1700. Rounded Laplace noise has P(0) = .3935."""
    count = 20_000
    for source in (SecureNoise(), SimulatedNoise(np.random.default_rng(5))):
        draws = source.add(np.zeros(count, dtype=np.int64), 1.0, 1, Norm.L1)
        for k in (-2, -1, 0, 1, 2):
            expected = np.tanh(0.5) * np.exp(-abs(k))
            error = sqrt(expected * (1 - expected) / count)
            assert abs((draws == k).mean() - expected) < 5 * error


# --- what it tells --------------------------------------------------------------------------------


def test_released_numbers_are_those_of_the_users() -> None:
    """Without noise: sums of ``t`` by cell, the count, the mean square and the mean excess."""
    generator = np.random.default_rng(1)
    layout = histogram_layout(cells=4, length=500, budget=None, missing=True, tail_share=0.05)
    cell, values = generator.integers(4, size=500), 2 * generator.normal(size=500)
    silent = generator.random(500) < 0.2
    sent = np.where(silent, np.nan, values)
    bounds = {"value_bound": 2.5, "tail_bound": 5.0}
    numbers = layout.numbers(layout.total(np.eye(4)[cell], sent, **bounds))
    t, answers = np.clip(values / 2.5, -1, 1) * ~silent, int((~silent).sum())
    np.testing.assert_allclose(layout.main(numbers, 2.5), 2.5 * np.bincount(cell, t), atol=1e-4)
    np.testing.assert_allclose(
        layout.part(numbers, "missing"), np.bincount(cell, silent), atol=1e-9
    )
    assert layout.part(numbers, "count") == pytest.approx([silent.sum()])
    square, _ = layout.mean_square(numbers, 500, answers)
    assert square == pytest.approx((t**2).sum() / answers, abs=1e-5)
    excess = np.clip((np.abs(values) - 2.5) / 5, 0, 1)[~silent].mean()
    assert layout.mean_excess(numbers, answers)[0] == pytest.approx(excess, abs=1e-5)


def test_deviation_is_that_of_released_numbers_and_the_account_knows_the_scale() -> None:
    """``sqrt 2 x 2 / epsilon`` on a sum of ``t``; the tail costs its share, the moment is half."""
    layout = histogram_layout(cells=6, length=1000, budget=PURE, missing=True)
    assert layout.deviation("main") == pytest.approx(sqrt(8))
    assert layout.deviation("missing") == pytest.approx(sqrt(8))
    assert layout.deviation("count") == pytest.approx(sqrt(6 * 8))
    assert layout.deviation("moment") == pytest.approx(2 * sqrt(8))
    assert layout.noise_scale(3.0) == pytest.approx(3 * sqrt(8))
    tail = histogram_layout(cells=6, length=1000, budget=PURE, tail_share=0.05)
    assert tail.deviation("main") == pytest.approx(1.05 * sqrt(8))
    assert tail.deviation("tail") == pytest.approx(1.05 * sqrt(8) / 0.1, rel=1e-5)
    event = Gate(SecureNoise(), Ledger(PURE)).check(layout, epoch=1, participants=9)
    assert event is not None
    assert (event.mechanism, event.norm, event.epsilon) == ("laplace", Norm.L1, None)
    assert event.mu == event.pure(1) == 1.0


def test_layout_survives_a_file() -> None:
    layout = histogram_layout(cells=6, length=1000, budget=PURE, missing=True, tail_share=0.1)
    assert layout_from_state(layout_state(layout)) == layout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cells": 0}, "cells must be a whole number of 1 or more"),
        ({"tail_share": 1.5}, "tail_share must lie between"),
        ({"budget": Budget(1e-14)}, "do not fit 64-bit integers"),
        ({"length": 1 << 60}, "do not fit 64-bit integers"),
        ({"value_bound": 0.0}, "value_bound must lie between"),
    ],
)
def test_impossible_layouts_say_why(settings: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        histogram_layout(**({"cells": 2, "length": 100, "budget": PURE} | settings))


def test_largest_sums_fit() -> None:
    """Every user at the bound, and 700 scales of noise."""
    for epsilon, length in ((1.0, 1 << 45), (1e-6, 1000), (1e-3, 1 << 40)):
        layout = histogram_layout(cells=2, length=length, budget=Budget(epsilon))
        assert length * layout.level + 700 * layout.noise_units < 1 << 62


def test_cells_are_never_compared_in_another_norm() -> None:
    with pytest.raises(ConfigurationError, match="compared in L1"):
        HistogramLayout(cells=2, norm=Norm.L2)


# --- the ledger -----------------------------------------------------------------------------------


def events(budget: Budget, contributions: int = 1) -> tuple[ReleaseEvent, ReleaseEvent]:
    """A Laplace and a Gaussian release, each with the noise that so many contributions need."""
    gate = Gate(SecureNoise(), Ledger(APPROXIMATE))
    cells = histogram_layout(cells=3, length=10, budget=budget, contributions=contributions)
    dense = vector_layout(
        rank=3, length=10, budget=APPROXIMATE, value_bound=1.0, composition=sqrt(contributions)
    )
    found = [
        gate.check(layout, epoch=number, participants=5)
        for number, layout in ((1, cells), (2, dense))
    ]
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


def test_pure_budget_is_spent_exactly_and_takes_no_gaussian() -> None:
    laplace, gaussian = events(PURE)
    ledger = Ledger(PURE)
    ledger.record(laplace)
    assert (ledger.spent.epsilon, ledger.spent.delta, ledger.spent.mu) == (1.0, 0.0, None)
    with pytest.raises(BudgetError, match="costs epsilon inf"):
        ledger.record(gaussian)


def test_kinds_mix_where_a_user_contributes_once_and_not_else() -> None:
    laplace, gaussian = events(APPROXIMATE)
    ledger = Ledger(APPROXIMATE)
    ledger.record(laplace)
    assert ledger.spent.delta == 0.0
    ledger.record(gaussian)
    assert ledger.spent.epsilon == pytest.approx(1.0)
    assert ledger.spent.delta == 1e-5
    assert (ledger.spent_in(1).delta, ledger.spent_in(2).delta) == (0.0, 1e-5)
    thrice = events(APPROXIMATE, 3)
    several = Ledger(APPROXIMATE, composition=sqrt(3), contributions=3)
    several.record(thrice[0])
    assert several.spent.epsilon == 1.0
    with pytest.raises(BudgetError, match="by gaussian and by laplace need accounts"):
        several.record(thrice[1])


def test_both_noises_in_one_epoch_are_refused() -> None:
    """Either alone keeps the budget; of two releases of the same users the second is not made."""
    for first, second in (pair := events(APPROXIMATE), pair[::-1]):
        ledger = Ledger(APPROXIMATE)
        ledger.record(replace(first, epoch=1))
        with pytest.raises(BudgetError, match="gaussian and by laplace"):
            ledger.record(replace(second, epoch=1))


def test_contributions_of_a_user_add_up() -> None:
    """A scale for one contribution is refused where a user makes two."""
    laplace, _ = events(PURE)
    with pytest.raises(BudgetError, match="costs epsilon 2"):
        Ledger(PURE, composition=sqrt(2), contributions=2).record(laplace)


def test_accountant_agrees_on_a_pure_event() -> None:
    """dp-accounting, which knows Laplace noise: the same epsilon.

    Its masses are floating-point numbers, so 1e-15 stands for a delta of 0.
    """
    from dp_accounting.pld import pld_privacy_accountant

    laplace, _ = events(Budget(0.7))
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_event(laplace))
    assert accountant.get_epsilon(1e-15) == pytest.approx(0.7, abs=2e-4)
