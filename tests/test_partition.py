"""A public partition: every pair has one cell, whatever else is in its batch."""

import numpy as np
import pytest

import capri
from capri.features import spectral_basis
from capri.partition import CellFeatures, beginnings, centres_of, nearest, summed
from capri.privacy.histogram import CORNERS, HistogramLayout, corner_layout, histogram_layout

RNG = np.random.default_rng(4101)
PAIRS = RNG.random((400, 2))
KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)


@pytest.fixture(scope="module")
def features() -> CellFeatures:
    basis, _ = spectral_basis(KERNEL, PAIRS, tolerance=1e-2, max_rank=40)
    directions = np.random.default_rng(1).standard_normal((basis.rank, 5))
    points = basis.coordinates(PAIRS) @ directions
    weights = np.full(len(points), 1 / len(points))
    some, weights, first = beginnings(points, weights, 16, np.random.default_rng(2))
    return CellFeatures(basis, directions, centres_of(some, weights, some[first]), 0.1)


def test_a_pair_lies_in_the_cell_of_the_nearest_centre(features: CellFeatures) -> None:
    z = features.basis.coordinates(PAIRS) @ features.directions
    apart = ((z[:, None] - features.centres) ** 2).sum(axis=2)
    assert (features.sent(PAIRS) == apart.argmin(axis=1)).all()
    assert (features.sent_block(PAIRS) == features.sent(PAIRS)).all()
    assert (features.cells_of(features.basis.coordinates(PAIRS)) == features.sent(PAIRS)).all()
    assert (features.whitened(PAIRS).argmax(axis=1) == features.sent(PAIRS)).all()
    assert (features.whitened(PAIRS).sum(axis=1) == 1).all()


def test_a_cell_does_not_depend_on_the_rows_beside_it(features: CellFeatures) -> None:
    together = features.sent(PAIRS)
    for place in range(0, 400, 37):
        assert features.sent(PAIRS[place : place + 1])[0] == together[place]


def test_what_is_far_away_has_a_cell_and_what_overflows_none(features: CellFeatures) -> None:
    assert np.isfinite(features.sent(np.array([[1e6, -1e6], [1e150, 0.0]]))).all()
    basis, _ = spectral_basis(capri.kernels.Linear(variance=0.5), PAIRS, tolerance=1e-2, max_rank=4)
    linear = CellFeatures(basis, 10 * np.eye(basis.rank), np.eye(basis.rank), 0.1)
    odd = np.array([[0.2, 0.9], [1e308, 1e308], [-1e308, 1e308]])
    with np.errstate(all="ignore"):
        cells, rows = linear.sent(odd), linear.whitened(odd)
    assert np.isfinite(cells[0])
    assert np.isnan(cells[1])
    assert not rows[1].any()
    assert (rows.sum(axis=1) == np.isfinite(cells)).all()


def test_cells_and_rows_of_features_make_the_same_messages(features: CellFeatures) -> None:
    layout = histogram_layout(cells=features.rank, length=400, budget=None, missing=True)
    values = RNG.uniform(-2, 2, 400)
    values[::7] = np.nan
    cells = features.sent(PAIRS)
    cells[::11] = np.nan
    rows = features.whitened(PAIRS)
    rows[::11] = 0.0
    assert (layout.messages(cells, values) == layout.messages(rows, values)).all()
    assert (layout.total(cells, values) == layout.messages(rows, values).sum(axis=0)).all()
    for outside in (-1.0, float(features.rank), np.inf, -np.inf):
        assert not layout.messages(np.full(400, outside), values).any()


def test_fewer_centres_where_points_coincide() -> None:
    points = np.repeat(np.array([[0.0], [1.0], [5.0]]), 10, axis=0)
    some, weights, first = beginnings(points, np.full(30, 1 / 30), 8, np.random.default_rng(0))
    centres = centres_of(some, weights, some[first])
    assert np.sort(centres.ravel()) == pytest.approx([0.0, 1.0, 5.0])
    assert summed(points, nearest(points, centres), 3).sum() == pytest.approx(60.0)


def test_corners_are_read_without_bias_and_never_farther_apart_than_stated() -> None:
    layout = corner_layout(length=1000, budget=None)
    s, r = RNG.random(500), RNG.uniform(-1, 1, 500)
    sums, _ = layout.read(layout.numbers(layout.messages(s, r).sum(axis=0)))
    assert sums == pytest.approx([(s * r).sum(), s.sum(), r.sum()], abs=1e-4)
    odd = np.array([0.0, 0.3, 1.0, 7.0, -2.0, np.nan, np.inf, -np.inf])
    units = layout.messages(*(each.ravel() for each in np.meshgrid(odd, odd)))
    assert (units >= 0).all()
    assert set(units.sum(axis=1).tolist()) == {0, layout.level}
    assert np.abs(units[:, None] - units).sum(axis=2).max() == layout.diameter
    assert units.shape[1] == layout.coordinates == CORNERS


# -- epochs of cells ------------------------------------------------------------------------------

GRID = np.linspace(0, 1, 12)[:, None]


def played(budget: capri.Budget, rounds: int = 3000, **options: object) -> capri.Capri:
    world = capri.environments.random_rkhs(KERNEL, contexts=12, actions=12, seed=4102)
    policy = capri.Capri(
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=budget,
        simulation_seed=4103,
        **options,  # type: ignore[arg-type]
    )
    if rounds:
        capri.simulate(policy, world, rounds, seed=4104)
    return policy


def test_a_pure_budget_is_played_and_never_by_gaussian_noise() -> None:
    policy = played(capri.Budget(epsilon=1.0))
    events = policy.ledger.events
    assert len(events) > 5
    assert {event.mechanism for event in events} == {"laplace"}
    spent = policy.ledger.spent
    assert (spent.epsilon, spent.delta) == (pytest.approx(1.0), 0.0)
    assert spent.epsilon <= 1.0


def test_with_a_delta_both_kinds_of_noise_are_played_within_the_budget() -> None:
    """Cells while noise is what counts, dense messages once it is not."""
    policy = played(capri.Budget(epsilon=2.0, delta=1e-3), rounds=30_000)
    kinds = [event.mechanism for event in policy.ledger.events]
    assert kinds[0] == "laplace"
    assert "gaussian" in kinds
    spent = policy.ledger.spent
    assert spent.epsilon <= 2.0 * (1 + 1e-9)
    assert spent.delta == 1e-3


@pytest.mark.parametrize(("contributions", "kind"), [(2, "laplace"), (40, "gaussian")])
def test_noise_is_of_the_kind_that_costs_less_for_those_who_come_again(
    contributions: int, kind: str
) -> None:
    policy = played(
        capri.Budget(1.0, 1e-5), rounds=0, contributions_per_user=contributions, first_epoch=50
    )
    for user in range(60):
        policy.update(policy.act(GRID[user % 12], user=user), 0.5)
    policy.close_epoch(early=True)
    assert {event.mechanism for event in policy.ledger.events} == {kind}
    assert policy.ledger.spent.epsilon <= 1.0 + 1e-9


def test_a_plan_of_cells_has_the_noise_of_one_cell() -> None:
    """Noise as planned, and cells that are few enough for the pairs there are."""
    policy = played(capri.Budget(epsilon=1.0), rounds=0, first_epoch=200)
    plan = policy.plan()
    assert isinstance(plan.layout, HistogramLayout)
    assert isinstance(plan.features, CellFeatures)
    assert plan.noise_scale == pytest.approx(np.sqrt(8), rel=1e-6)
    assert 16 * plan.features.rank <= 144
