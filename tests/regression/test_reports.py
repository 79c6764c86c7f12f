"""The local form: messages, their sum, and what can be learnt from it."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from capri import ConfigurationError, DataError, PrivateKernelRidge
from capri.kernels import Matern
from capri.local.device import SimulatedRandomness
from capri.regression.engine import ReportPlan


def wave(X: np.ndarray) -> np.ndarray:
    return np.asarray(0.7 * np.sin(5 * X[:, 0]))


def ridge_and_plan(reports: int = 50_000, outputs: int = 1):
    bounds = (-1, 1) if outputs == 1 else ([-1] * outputs, [1] * outputs)
    ridge = PrivateKernelRidge(epsilon=4.0, X_bounds=(0, 1), y_bounds=bounds)
    return ridge, ridge.report_plan(1, reports=reports)


@pytest.mark.parametrize("outputs", [1, 3])
def test_messages_have_norm_at_most_one(outputs: int) -> None:
    generator = np.random.default_rng(0)
    _, plan = ridge_and_plan(outputs=outputs)
    X = generator.normal(size=(500, 1)) * 10.0 ** generator.integers(-2, 200, (500, 1))
    messages = plan.messages(X, generator.normal(size=(500, outputs)) * 1e9)
    norms = np.linalg.norm(messages, axis=1)
    assert messages.shape == (500, plan.dimension)
    assert norms.max() <= 1 + 1e-12
    assert np.isfinite(messages).all()
    inside = plan.messages(generator.random((500, 1)), np.ones((500, outputs)))
    assert np.linalg.norm(inside, axis=1).max() > 0.9


def test_fits_the_sum_of_gaussian_reports() -> None:
    """A simulated randomizer of deviation 2.16 (epsilon 4), seeded; the basis is drawn anew.

    Over 155 draws of it the error is 0.16 of the spread with a deviation of 0.044: a half is 7.8
    deviations away. Twenty other seeds gave errors of 0.22 at most.
    """
    generator = np.random.default_rng(1)
    ridge, plan = ridge_and_plan()
    X = generator.random((50_000, 1))
    y = wave(X) + 0.1 * generator.standard_normal(len(X))
    noise = 2.16 * np.sqrt(len(X))
    total = plan.messages(X, y).sum(axis=0) + generator.normal(0, noise, plan.dimension)
    ridge.fit_sum(plan, total, count=len(X), noise_scale=noise)
    test = np.linspace(0, 1, 100)[:, None]
    mean, width = ridge.predict(test, return_std=True)
    error = np.sqrt(np.mean((mean - wave(test)) ** 2))
    assert error < 0.5 * wave(test).std()
    assert (width.privacy > width.sampling).all()
    with pytest.raises(ConfigurationError, match="certified where they are made"):
        ridge.certificate()


def test_bad_reports_change_nothing() -> None:
    ridge, plan = ridge_and_plan(1000)
    good = np.zeros(plan.dimension)
    for total, count, noise in (
        (np.zeros(plan.dimension + 1), 10, 1.0),
        (np.full(plan.dimension, np.nan), 10, 1.0),
        (good, 0, 1.0),
        (good, 10, -1.0),
    ):
        with pytest.raises(DataError):
            ridge.fit_sum(plan, total, count=count, noise_scale=noise)
    assert not hasattr(ridge, "model_")
    with pytest.raises(DataError, match="1 columns of features and 1 of targets, got 2 and 1"):
        plan.messages([[0.0, 0.0]], [0.0])
    with pytest.raises(ConfigurationError, match="report_plan first"):
        PrivateKernelRidge().fit_sum(plan, good, count=1, noise_scale=1.0)
    with pytest.raises(ConfigurationError, match="reports need"):
        PrivateKernelRidge().report_plan(1, reports=10)


def test_fits_sphere_reports_of_devices() -> None:
    """Real reports of 32 bytes, seeded; damaged, foreign and repeated ones are left out.

    Over 58 draws of the basis the error is 0.16 of the spread with a deviation of 0.026: 0.4 is 9
    deviations away.
    """
    generator = np.random.default_rng(2)
    ridge, plan = ridge_and_plan(20_000)
    X = generator.random((20_000, 1))
    y = wave(X) + 0.1 * generator.standard_normal(len(X))
    users = SimulatedRandomness(5, np.arange(len(X)))
    reports = plan.reports(X, y, epsilon=4.0, randomness=users)
    assert {len(report) for report in reports} == {32}
    total, count, noise = plan.total(reports, epsilon=4.0)
    assert count == len(X)
    error = (total - plan.messages(X, y).sum(axis=0)) / noise
    # Standard normal coordinates: the sum of squares exceeds this with probability below 1e-6.
    assert error @ error < chi2.isf(1e-6, plan.dimension)
    bad = [
        reports[0],
        reports[1][:-1],
        bytes(32),
        b"",
        None,
        bytes([reports[2][0] ^ 1]) + reports[2][1:],
    ]
    again = plan.total([*reports, *bad], epsilon=4.0)  # type: ignore[list-item]
    assert again[1] == count
    np.testing.assert_array_equal(again[0], total)
    ridge.fit_reports(plan, [*reports, *bad])  # type: ignore[list-item]
    test = np.linspace(0, 1, 100)[:, None]
    assert np.sqrt(np.mean((ridge.predict(test) - wave(test)) ** 2)) < 0.4 * wave(test).std()
    _, other = ridge_and_plan(500)
    with pytest.raises(ConfigurationError, match="report_plan first"):
        ridge_and_plan(700)[0].fit_reports(other, other.reports(X[:5], y[:5], epsilon=4.0))
    with pytest.raises(DataError, match="no report of this plan"):
        other.total(reports, epsilon=4.0)


def test_digest_tells_apart_all_that_a_message_is_made_with() -> None:
    _, plan = ridge_and_plan()
    stage = plan.stage
    features, basis, targets = stage.features, stage.features.basis, stage.targets
    others = {
        "kernel": replace(features, basis=replace(basis, kernel=Matern(nu=1.5))),
        "pivots": replace(features, basis=replace(basis, pivots=basis.pivots + 1e-9)),
        "transform": replace(features, basis=replace(basis, transform=basis.transform * 1.01)),
        "whitening": replace(features, whitening=features.whitening * 1.01),
    }
    changes = [{"features": changed} for changed in others.values()]
    changes += [
        {"clip_norm": stage.clip_norm * 1.01},
        {"box": (stage.box[0] - 1, stage.box[1])},
        {"box": (stage.box[0], stage.box[1] + 1)},
        {"targets": replace(targets, low=targets.low - 1)},
        {"targets": replace(targets, high=targets.high + 1)},
        {"baseline": stage.baseline + 0.01},
        {"reach": stage.reach * 0.9},
    ]
    plans = [ReportPlan(stage=replace(stage, **change)) for change in changes]
    assert len({each.digest for each in (plan, *plans)}) == 1 + len(changes)
    assert ReportPlan(stage=replace(stage, rows=stage.rows + 1)).digest == plan.digest
    with pytest.raises(DataError, match="no report of this plan"):
        plan.total(plans[-1].reports([[0.5]], [0.5], epsilon=4.0), epsilon=4.0)


def test_row_that_is_not_a_number_reports_like_any_other() -> None:
    """A message of zeros: the report is sound, and on average it adds nothing."""
    _, plan = ridge_and_plan(outputs=2)
    X, y = [[0.5], [np.nan], [0.5], [None]], [[0.1, 0.2], [0.0, 0.0], [np.inf, 0.0], [0.0, 0.0]]
    messages = plan.messages(X, y)
    assert messages[0].any()
    assert not messages[1:].any()
    reports = plan.reports(X, y, epsilon=4.0)
    assert {len(each) for each in reports} == {32}
    assert plan.total(reports, epsilon=4.0)[1] == 4


def test_a_plan_promises_no_form_on_the_wire() -> None:
    """A pickle would have devices run what a server sends."""
    _, plan = ridge_and_plan()
    for form in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="no form on the wire"):
            form(plan)
