"""Nobody is in two stages: what parallel composition rests on."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capri
from capri.regression.engine import FitEngine
from capri.regression.stage import EVERYONE, Lot, StagePlan


@given(
    salt=st.integers(0, 2**63),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    start=st.integers(0, 2**40),
    count=st.integers(0, 500),
)
def test_lots_that_share_their_ends_partition_the_rows(
    salt: int, cuts: list[float], start: int, count: int
) -> None:
    edges = [0.0, *sorted(cuts), 1.0]
    taken = [
        Lot(salt=salt, low=low, high=high).takes(start, count) for low, high in pairwise(edges)
    ]
    assert (np.sum(taken, axis=0) == 1).all()


def test_a_lot_takes_its_share() -> None:
    """Binomial: farther than five standard deviations with probability below 1e-6."""
    share = Lot(salt=7, low=0.2, high=0.5).takes(0, 100_000).mean()
    assert abs(share - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 100_000)


def test_a_fit_reads_every_row_in_exactly_one_released_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the real stages of a real fit, and each is released once, at the full budget."""
    released: list[StagePlan] = []
    honest = FitEngine.learn

    def watched(self: FitEngine, plan: StagePlan, *arguments: object) -> object:
        released.append(plan)
        return honest(self, plan, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FitEngine, "learn", watched)
    generator = np.random.default_rng(0)
    X = generator.random((6_000, 2))
    y = np.sin(5 * X[:, 0]) * X[:, 1]
    ridge = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, y)
    assert len(released) > 1
    times = np.sum([plan.lot.takes(0, len(X)) for plan in released], axis=0)
    assert (times == 1).all()
    assert [plan.rows for plan in released] == [plan.lot.rows(len(X)) for plan in released]
    assert len(ridge.ledger_.events) == len(released)
    assert {event.epoch for event in ridge.ledger_.events} == {1 + n for n in range(len(released))}
    for event in ridge.ledger_.events:
        assert ridge.ledger_.spent_in(event.epoch).epsilon <= 1.0


@pytest.fixture(scope="module")
def later_stage() -> tuple[np.ndarray, np.ndarray, StagePlan]:
    """Rows, and the plan of a stage after all of them were fitted."""
    generator = np.random.default_rng(0)
    X, y = generator.random((3_000, 2)), generator.uniform(0.3, 0.7, (3_000, 2))
    ridge = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=([0, 0], [1, 1])).fit(X, y)
    plan = ridge._engine.plan(EVERYONE, len(X))
    assert plan.baseline.any()
    return X, y, plan


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_row_adds_nothing_and_moves_nobody(
    bad: float, later_stage: tuple[np.ndarray, np.ndarray, StagePlan]
) -> None:
    """In a later stage too, where a baseline is subtracted: all other rows as they were."""
    X, y, plan = later_stage
    broken = X.copy(), y.copy()
    broken[0][5, 1] = broken[1][11, 0] = bad
    features, targets = plan.contributions(X, y)
    found = plan.contributions(*broken)
    others = np.setdiff1d(np.arange(len(X)), (5, 11))
    assert not found[0][[5, 11]].any()
    assert not found[1][[5, 11]].any()
    assert np.array_equal(found[0][others], features[others])
    assert np.array_equal(found[1][others], targets[others])
    assert np.array_equal(plan.total(*broken, 0), plan.total(X[others], y[others], 0))
    half = Lot(salt=1, low=0.0, high=0.5)
    some = np.setdiff1d(np.flatnonzero(half.takes(0, len(X))), (5, 11))
    expected = plan.layout.total(features[some], targets[some])
    assert np.array_equal(replace(plan, lot=half).total(*broken, 0), expected)


@pytest.mark.parametrize(
    "estimator",
    [capri.PrivateKernelRidge, capri.PrivateKernelQuantiles, capri.PrivateKernelClassifier],
)
def test_pure_fit_is_refused_before_any_row_is_read(estimator: type) -> None:
    """A fit has no pure form: the refusal names a delta, whatever the rows are."""
    labels = estimator is capri.PrivateKernelClassifier
    bounds = {"classes": [0, 1]} if labels else {"y_bounds": (-1, 1)}
    model = estimator(X_bounds=(0, 1), delta=0.0, **bounds)
    for rows in ([[0.5]] * 8, [[0.1], [0.9]] * 4):
        with pytest.raises(capri.ConfigurationError, match=r"needs delta above 0.*delta=1e-5"):
            model.fit(rows, [0, 1] * 4)
