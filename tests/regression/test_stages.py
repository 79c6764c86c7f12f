"""Every row is in every stage, and all of them together cost what was promised."""

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import capri
from builders import dp_event
from capri.privacy.calibration import analytic_multiplier
from capri.privacy.gate import Gate, noise_source
from capri.regression.engine import FitEngine
from capri.regression.pooling import _shares_of_rows
from capri.regression.stage import StagePlan


def test_every_stage_is_over_all_rows_and_all_of_them_cost_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counts and stages of a real fit: one epoch, shares fixed beforehand, and one total."""
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
    events, plans = ridge.ledger_.events, released
    assert len(plans) > 1
    assert {plan.rows for plan in plans} == {len(X)}
    assert [event.stage for event in events] == [0, *(plan.number for plan in plans)]
    assert {event.epoch for event in events} == {1}
    assert {event.participants for event in events} == {len(X)}
    assert 0.9 < sum(plan.share for plan in plans) < 1  # the rest went to counts
    mu = np.sqrt(sum(event.mu**2 for event in events))
    assert mu == pytest.approx(1 / analytic_multiplier(capri.Budget(1.0, 1e-5)), rel=1e-6)
    assert 1 - 1e-6 < ridge.ledger_.spent.epsilon <= 1.0
    # dp-accounting composes the same events by themselves.
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for event in events:
        accountant.compose(dp_event(event))
    assert accountant.get_epsilon(1e-5) == pytest.approx(1.0, abs=2e-3)


def test_stages_beyond_the_budget_are_refused() -> None:
    """A stage more, or one that is told twice, is not released."""
    generator = np.random.default_rng(0)
    X = generator.random((4_000, 2))
    ridge = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    engine, gate = ridge._engine, Gate(noise_source(None), ridge.ledger_)
    plan = engine.plan(len(X), share=0.01)
    before = ridge.ledger_.events
    for number in (plan.number, 1):
        again = replace(plan, number=number)
        with pytest.raises(capri.BudgetError):
            engine.release(again, again.total(X, X[:, :1]), gate)
    assert ridge.ledger_.events == before


def test_rows_that_come_later_are_a_table_of_their_own() -> None:
    """Of other people, at the full budget: parallel to the stages before, not added to them."""
    generator = np.random.default_rng(0)
    X = generator.random((4_000, 2))
    model = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1), stream_rows=4_000)
    model.fit(X, X[:, 0])
    with pytest.warns(capri.PrivacyLeakWarning, match="other people"):
        model.partial_fit(X, X[:, 0])
    model.release()
    assert [event.epoch for event in model.ledger_.events][-2:] == [1, 2]
    assert 1 - 1e-6 < model.ledger_.spent.epsilon <= 1.0
    shares = _shares_of_rows(model._engine.readings, 0)
    assert shares[:-1].sum() == pytest.approx(1.0)
    assert shares[-1] == 1.0


def test_stages_that_share_their_noise_in_y_are_averaged_as_if_each_had_its_share() -> None:
    """The lemma of pooling: variance of the best average, and of independent parts, are equal."""
    variances, common = np.array([4.0, 1.0, 0.25]), 0.7
    weights = 1 / variances
    shared = np.diag(variances) + common
    best = 1 / np.linalg.inv(shared).sum()
    parts = variances + common * weights.sum() / weights
    assert 1 / (1 / parts).sum() == pytest.approx(best)
    inverse = np.linalg.inv(shared).sum(axis=0)
    np.testing.assert_allclose((1 / parts) / (1 / parts).sum(), inverse / inverse.sum())


@pytest.fixture(scope="module")
def later_stage() -> tuple[np.ndarray, np.ndarray, StagePlan]:
    """Rows, and the plan of a stage after all of them were fitted."""
    generator = np.random.default_rng(0)
    X, y = generator.random((3_000, 2)), generator.uniform(0.3, 0.7, (3_000, 2))
    ridge = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=([0, 0], [1, 1])).fit(X, y)
    plan = ridge._engine.plan(len(X))
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
    assert np.array_equal(plan.total(*broken), plan.total(X[others], y[others]))


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
