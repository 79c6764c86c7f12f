"""Widths and intervals: they hold where rows are, and are wide where rows are not."""

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capri import PrivateKernelRidge
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.moments import moment_layout
from capri.regression.decode import read_tail
from capri.regression.design import ReleasedCovariance, RowDistribution, RowSupport
from capri.regression.engine import Setting
from layouts import squared_distance


def wave(X: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(4 * X[:, 0]) * 0.6 + 0.3 * X[:, -1])


def fitted(X: np.ndarray, y: np.ndarray, **changes: Any) -> PrivateKernelRidge:
    given: dict[str, Any] = {"X_bounds": (0, 1), "y_bounds": (-2, 2), "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrivateKernelRidge(**(given | changes)).fit(X, y)


def in_a_corner(seed: int) -> PrivateKernelRidge:
    """Rows in a corner of the box, with noise of a long right tail."""
    generator = np.random.default_rng(seed)
    X = 0.3 * generator.random((8_000, 2))
    tails = 0.1 * (np.exp(generator.standard_normal(len(X))) - np.exp(0.5))
    return fitted(X, wave(X) + tails)


@pytest.fixture(scope="module")
def corner() -> PrivateKernelRidge:
    return in_a_corner(0)


def covered(ridge: PrivateKernelRidge, points: np.ndarray, level: float = 0.95) -> float:
    low, high = ridge.predict_interval(points, level)
    return float(np.mean((low <= wave(points)) & (wave(points) <= high)))


def test_intervals_hold_in_a_corner_and_are_wide_outside(corner: PrivateKernelRidge) -> None:
    """Three seeded fits (16 others covered 0.98 of the corner, the worst 0.85). Widths that leave
    out the tail cover less than a tenth, and those that trust the kernel outside some 0.4 of the
    rest."""
    generator = np.random.default_rng(1)
    inside, rest = 0.3 * generator.random((500, 2)), 0.5 + 0.5 * generator.random((500, 2))
    fits = corner, in_a_corner(1), in_a_corner(2)
    assert np.mean([covered(each, inside) for each in fits]) > 0.85
    assert np.mean([covered(each, rest) for each in fits]) > 0.85
    narrow, wide = (corner.predict(each, return_std=True)[1] for each in (inside, rest))
    assert np.median(wide) > 5 * np.median(narrow)
    parts = narrow.bias**2 + narrow.sampling**2 + narrow.privacy**2
    assert np.allclose(np.asarray(narrow) ** 2, parts, rtol=1e-9)


def test_intervals_are_nested_and_stay_in_the_bounds(corner: PrivateKernelRidge) -> None:
    points = np.random.default_rng(2).uniform(-0.3, 1.3, (100, 2))
    points[7, 0] = np.nan
    ends = [corner.predict_interval(points, level) for level in (0.0, 0.5, 0.95, 1.0)]
    known = np.arange(100) != 7
    for (low, high), (lower, higher) in pairwise(ends):
        assert (lower[known] <= low[known]).all()
        assert (high[known] <= higher[known]).all()
    assert np.isnan(ends[1][0][7])
    assert np.isnan(ends[1][1][7])
    assert np.array_equal(ends[-1][0][known], np.full(99, -2.0))
    assert np.array_equal(ends[-1][1][known], np.full(99, 2.0))
    low, high = corner.predict_interval(points, 0.95)
    all_low, all_high = corner.predict_interval(points, 0.95, simultaneous=True)
    assert (all_high - all_low)[known].sum() > 1.1 * (high - low)[known].sum()
    # A row's interval does not depend on the rows beside it.
    alone = corner.predict_interval(points[:1], 0.95, simultaneous=True)
    assert alone[0][0] == pytest.approx(all_low[0], rel=1e-9)
    with pytest.raises(ConfigurationError, match="level"):
        corner.predict_interval(points, 1.5)


def test_several_outputs_have_intervals_of_their_own() -> None:
    generator = np.random.default_rng(3)
    X = generator.random((600, 1))
    y = np.stack([wave(X), 100 * wave(X)], axis=1)
    low, high = fitted(X, y, y_bounds=([-2, -200], [2, 200])).predict_interval(X[:5])
    assert low.shape == high.shape == (5, 2)
    assert ((high - low)[:, 1] > 5 * (high - low)[:, 0]).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=12, max_size=12))
def test_tails_are_free(rows: list[float]) -> None:
    """No row moves the sum by more than without tails, in exact integers."""
    grid = moment_layout(
        features=2, targets=2, rows=100, budget=Budget(epsilon=1.0, delta=1e-5), tails=True
    )
    plain = moment_layout(features=2, targets=2, rows=100, budget=Budget(epsilon=1.0, delta=1e-5))
    assert grid.diameter_squared == plain.diameter_squared
    totals = [
        grid.total(np.array([part[:2]]), np.array([part[2:]])) for part in (rows[:6], rows[6:])
    ]
    assert squared_distance(grid, *totals) <= grid.diameter_squared


def test_target_and_tail_tell_the_whole_residual(corner: PrivateKernelRidge) -> None:
    plan = corner._engine.plan(1000)
    assert plan.layout.tails
    residual = np.linspace(-3, 3, 601)[:, None]
    pair = plan._with_tails(residual)
    told = plan.reach * pair[:, :1] + plan.tail * pair[:, 1:]
    assert np.allclose(told, np.clip(residual, -plan.farthest, plan.farthest), atol=1e-12)
    assert (np.linalg.norm(pair, axis=1) <= 1 + 1e-12).all()
    inside = np.abs(residual[:, 0]) <= plan.reach
    assert not pair[inside, 1].any()


def test_skewed_noise_does_not_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon 10, seeded: cut at two deviations, the mean of this noise is some 0.02 too low."""
    generator = np.random.default_rng(7)
    X = generator.random((5_000, 1))
    y = wave(X) + 0.2 * (np.exp(generator.standard_normal(len(X))) - np.exp(0.5))
    points = np.linspace(0, 1, 200)[:, None]

    def bias() -> float:
        model = fitted(X, y, epsilon=10.0, y_bounds=(-2, 4), kernel="rbf")
        return abs(float(np.mean(model.predict(points) - wave(points))))

    told = bias()
    layout = Setting.layout
    monkeypatch.setattr(
        Setting, "layout", lambda self, rows, tails=False, **given: layout(self, rows, **given)
    )
    assert told < 0.5 * bias()


def test_released_moments_say_where_rows_are() -> None:
    """Exact moments of rows in a corner, with a little noise: the tilted law lies there."""
    generator = np.random.default_rng(5)
    public, rows = generator.random((4000, 2)), 0.3 * generator.random((50_000, 2))

    def features(X: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(X)), X, X**2, X[:, 0] * X[:, 1]])

    v = features(rows)
    noise = generator.normal(0, 30, (6, 6))
    seen = ReleasedCovariance(
        covariance=v.T @ v + (noise + noise.T) / 2,
        rows=len(rows),
        deviation=30.0,
        whitening=np.eye(6),
        clip_norm=3.0,
    )
    law = RowDistribution.of(features(public), public).realised([seen])
    assert law.rows is not None
    assert np.abs(law.rows.mean(axis=0) - 0.15).max() < 0.03
    assert np.quantile(law.rows, 0.99) < 0.6
    assert RowDistribution.of(features(public)).realised([seen]).rows is None
    support = RowSupport.of(law.rows, np.ones(2), 0.1)
    assert support.lack(np.array([[0.15, 0.15]]))[0] == 0.0
    assert support.lack(np.array([[0.9, 0.9]]))[0] > 0.1


def test_bounds_beside_public_rows_do_not_hurt() -> None:
    """Bounds ten times as wide as the rows: public rows say where these are."""
    generator = np.random.default_rng(6)
    X, public = generator.random((6_000, 2)), generator.random((500, 2))
    y = wave(X) + 0.1 * generator.standard_normal(len(X))
    errors = [
        np.sqrt(np.mean((fitted(X, y, public_X=public, X_bounds=bounds).predict(X[:500])
                         - wave(X[:500])) ** 2))
        for bounds in (None, (-5.0, 5.0))
    ]  # fmt: skip
    assert errors[1] < 2 * errors[0]


def test_a_covariance_that_is_known_along_the_constant_stays_one() -> None:
    """Else a root of it fails, and a fit that fails tells of its rows. Without a projection the
    smallest eigenvalue of this seeded fit is -3e-4 of their sum."""
    generator = np.random.default_rng(1)
    X = 0.3 * generator.random((3_000, 2))
    ridge = fitted(X, np.sin(5 * X[:, 0]) + 0.1 * generator.standard_normal(len(X)))
    for reading in ridge._engine.readings:
        assert reading.level is not None
        values = np.linalg.eigvalsh(reading.covariance)
        assert values[0] > -1e-12 * values.sum()


def test_few_rows_after_a_release_change_little() -> None:
    """What they tell of squares is noise, which may be negative: noise in y stays within its range.
    Divided by a share of it, its variance was 29 and widths grew sevenfold."""
    generator = np.random.default_rng(0)
    X = generator.random((3_000, 1))
    y = 0.5 * np.sin(6 * X[:, 0]) + 0.1 * generator.standard_normal(len(X))
    ridge = fitted(X, y, y_bounds=(-1, 1))
    before, width = ridge.predict([[0.9]], return_std=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ridge.partial_fit([[0.3]], [0.5]).release()
    after, wider = ridge.predict([[0.9]], return_std=True)
    assert ridge.model_.estimates[0].noise_variance <= 1
    assert abs(after[0] - before[0]) < 3 * width[0]
    assert wider[0] < 4 * width[0]


def test_an_output_whose_targets_are_whole_has_no_tail() -> None:
    """Beside one whose residuals are small: the mean of the wide one is read with a slope of 1."""
    generator = np.random.default_rng(0)
    X = generator.random((6_000, 1))
    chances = 0.5 + 0.4 * np.sin(5 * X[:, 0])
    sign = np.where(generator.random(len(X)) < chances, 1.0, -1.0)
    small = 0.1 * np.cos(4 * X[:, 0]) + 0.02 * generator.standard_normal(len(X))
    ridge = fitted(X, np.stack([sign, small], axis=1), y_bounds=(-1, 1), epsilon=4.0)
    last = ridge._engine.readings[-1]
    assert last.result.tail_vector is not None
    assert last.result.plan.reach[0] == 1 > last.result.plan.reach[1]
    guess = ridge.model_.estimates[0].mean, ridge.model_.estimates[0].covariance
    prior = ridge.model_.prior
    start = prior.covariance(prior.expected)
    assert read_tail(last, 0, start, guess) is None
    assert read_tail(last, 1, start, guess) is not None


def test_what_is_outside_the_basis_is_at_most_what_residuals_are(
    corner: PrivateKernelRidge,
) -> None:
    """However large a function the evidence extrapolates to: the rest of it is in the residuals."""
    model, points = corner.model_, 0.3 * np.random.default_rng(8).random((50, 2))
    found = model.estimates[0]
    assert found.outside is not None
    wide, none = (
        replace(model, estimates=(replace(found, outside=found.outside + shift),)).width(points)
        for shift in (60.0, -60.0)
    )
    added = (wide.bias**2 - none.bias**2) / model.targets.half**2
    assert added == pytest.approx(found.noise_variance)
