"""Linear rivals without a tree: their non-private forms, their reports."""

import numpy as np
import pytest
from scipy.special import gamma

from capri import Budget, ConfigurationError
from capri_lab.rivals.base import Rival
from capri_lab.rivals.linear.han import HanOLS, HanSGD, sphere_report, sphere_scale
from capri_lab.rivals.linear.least_squares import GaussianMoments
from capri_lab.rivals.linear.moments import (
    BatchedLinear,
    Zheng,
    block_lengths,
    bonus_width,
    growing_lengths,
)
from capri_lab.rivals.linear.zhou_tan import ZhouTan, private_rewards, truncated
from private_rivals import FEATURES, HORIZON, build, history, linucb, played, replay

KINDS = [Zheng, BatchedLinear, HanOLS, HanSGD, ZhouTan]


@pytest.mark.parametrize("kind", KINDS)
def test_seed_fixes_the_run_and_noise_changes_it(kind: type[Rival]) -> None:
    plain, noisy = played(build(kind)), played(build(kind, 0.2))
    assert (noisy != plain).any()
    np.testing.assert_array_equal(noisy, played(build(kind, 0.2)))


@pytest.mark.parametrize("kind", [Zheng, BatchedLinear, HanOLS])
def test_tiny_noise_changes_nothing(kind: type[Rival]) -> None:
    np.testing.assert_array_equal(played(build(kind, 1e10)), played(build(kind)))


@pytest.mark.parametrize("bonus", ["theory", 0.2])
@pytest.mark.parametrize("kind", [Zheng, BatchedLinear, ZhouTan])
def test_without_noise_it_is_linucb(kind: type[Rival], bonus: str | float) -> None:
    changes = {"bonus": bonus, "ridge": 0.3}
    lengths = growing_lengths(HORIZON, 100, 1.5)
    if kind is not BatchedLinear:
        changes["blocks"] = 60
        lengths = block_lengths(HORIZON, 60)
    else:
        changes["first_batch"] = 10
        lengths = growing_lengths(HORIZON, 10, 1.5)
    width = bonus_width(bonus, ridge=0.3, dimension=5, horizon=HORIZON, vector_size=0.0)
    run = history(build(kind, **changes))
    replay(lengths, *run, linucb(FEATURES, 0.3, width))
    assert len(np.unique(run[1])) > 2, "premise: it explores"


def test_han_ols_without_noise_is_greedy_ridge_after_the_warm_up() -> None:
    context, action, reward = history(build(HanOLS, warm_up=60, blocks=60, ridge=0.3))
    assert len(np.unique(action[:60])) == 6
    greedy = linucb(FEATURES, 0.3, 0.0)
    for start in range(60, HORIZON, 5):
        values = greedy(int(context[start]), context[:start], action[:start], reward[:start])
        assert values[action[start]] == pytest.approx(values.max(), abs=1e-9)


def test_han_sgd_without_noise_is_averaged_gradient_descent() -> None:
    context, action, reward = history(build(HanSGD, warm_up=60, step=0.7, radius=0.5))
    table = FEATURES.reshape(8, 6, -1)
    theta, total = np.zeros(5), np.zeros(5)
    for t in range(HORIZON):
        if t >= 60:
            values = table[context[t]] @ total / t
            assert values[action[t]] == pytest.approx(values.max(), abs=1e-8)
        x = table[context[t], action[t]]
        theta = (
            theta - 0.7 * 0.5 / (2 * np.sqrt(t + 1)) * (np.clip(x @ theta, -1, 1) - reward[t]) * x
        )
        if np.linalg.norm(theta) > 0.5:
            theta *= 0.5 / np.linalg.norm(theta)
        total += theta


def test_sphere_reports_are_unbiased_of_fixed_length() -> None:
    """20,000 reports of a vector of half the radius; each coordinate within 5 standard errors."""
    rng = np.random.default_rng(4)
    vector = np.array([0.6, 0.0, -0.8])
    reports = np.array([sphere_report(vector, 2.0, 1.0, rng) for _ in range(20_000)])
    length = 2 * sphere_scale(3, 1.0)
    np.testing.assert_allclose(np.linalg.norm(reports, axis=1), length)
    np.testing.assert_allclose(reports.mean(axis=0), vector, atol=5 * length / np.sqrt(3 * 20_000))
    mean = gamma(1.5) / (np.sqrt(np.pi) * gamma(2.0))
    assert sphere_scale(3, 1.0) == pytest.approx((np.e + 1) / (np.e - 1) / mean)


@pytest.mark.parametrize(("kind", "draws"), [(Zheng, 40), (BatchedLinear, 1)])
def test_noise_is_drawn_per_user_or_per_batch(kind: type[Rival], draws: int) -> None:
    """3,000 releases of 40 rows: variance within 5 standard errors of 40 or 1 draws."""
    policy = build(kind, 1.0)
    rows, targets = np.zeros((40, 5)), np.zeros(40)
    releases = np.array([policy.release(rows, targets) for _ in range(3000)])
    scale = GaussianMoments.calibrated(5, Budget(epsilon=1.0, delta=1e-5), levels=1).scale
    expected = scale**2 * draws
    assert releases.var() == pytest.approx(expected, rel=5 * np.sqrt(2 / releases.size))


def test_truncation_grows_with_the_rounds() -> None:
    rewards = np.array([1.0, -5.0, 5.0])
    np.testing.assert_array_equal(truncated(rewards, np.array([1, 16, 81]), 4.0), [1.0, 0.0, 5.0])
    np.testing.assert_array_equal(private_rewards(rewards, None, np.random.default_rng(0)), rewards)


def test_growth_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"growth must be 1 or more, got 0\.5"):
        build(BatchedLinear, growth=0.5)
