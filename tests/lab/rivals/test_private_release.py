"""Rivals that release one thing at the end, or hand over inputs: USCA, Kusner, Kharkovskii."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from capri import Budget, BudgetError, ConfigurationError
from capri.kernels import RBF, Linear
from capri_lab.rivals.kernel.kharkovskii import Kharkovskii, singular_floor, transformed
from capri_lab.rivals.kernel.optimism import GPUCB
from capri_lab.rivals.kernel.release import (
    USCA,
    Kusner,
    draw_rows,
    exponential_law,
    published_sensitivity,
)
from private_rivals import HORIZON, KERNEL, PAIRS, WORLD, build, history, played


def test_exponential_law_is_bounded_by_epsilon_and_tends_to_the_best() -> None:
    """Two score rows that differ by the sensitivity everywhere: no ratio beyond e^eps."""
    rng = np.random.default_rng(0)
    scores = rng.random(7)
    for _ in range(50):
        other = scores + rng.choice([-0.3, 0.3], size=7)
        one, two = (exponential_law(each, 0.3, 1.4) for each in (scores, other))
        assert np.abs(np.log(one / two)).max() <= 1.4 + 1e-12
    other = scores + np.where(np.arange(7) == 2, 0.3, -0.3)
    ratio = exponential_law(other, 0.3, 1.4)[2] / exponential_law(scores, 0.3, 1.4)[2]
    assert 0.5 < np.log(ratio) < 1.4, "premise: the bound is not idle"
    assert exponential_law(scores, 0.3, 1e6).argmax() == scores.argmax()
    np.testing.assert_allclose(
        exponential_law(scores, 0.3, 1e6), exponential_law(scores, 0.3, None), atol=1e-9
    )


def test_rows_are_drawn_by_their_law() -> None:
    """60,000 draws; counts within 5 standard errors."""
    law = np.tile([0.2, 0.0, 0.5, 0.3], (60_000, 1))
    counts = np.bincount(draw_rows(law, np.random.default_rng(1)), minlength=4)
    np.testing.assert_allclose(counts, 60_000 * law[0], atol=5 * np.sqrt(60_000 / 4))
    assert counts[1] == 0


def test_usca_estimate_is_the_weighted_sum_and_its_sensitivity_is_exact() -> None:
    policy = build(USCA, explore=200, ridge=0.5)
    rng = np.random.default_rng(2)
    context, action = rng.integers(8, size=200), rng.integers(6, size=200)
    targets = rng.uniform(-1, 1, 200)
    mean = policy.estimate(context, action, targets)
    # A second implementation, on the full-rank features of the kernel matrix.
    gram = KERNEL(PAIRS, PAIRS)
    values, vectors = np.linalg.eigh(gram)
    v = vectors * np.sqrt(np.maximum(values, 0))
    weights = np.repeat(WORLD.weights / 6, 6)
    matrix = 200 * (v * weights[:, None]).T @ v + 0.5 * np.eye(48)
    direct = v @ np.linalg.solve(matrix, targets @ v[context * 6 + action])
    np.testing.assert_allclose(mean, direct, atol=0.01 * np.abs(direct).max())
    # The worst replacement moves the worst estimate by the sensitivity, no other by more.
    products = policy._psi @ policy._psi.T
    worst = np.unravel_index(np.abs(products).argmax(), products.shape)[1]
    one = [
        policy.estimate(np.array([worst // 6]), np.array([worst % 6]), np.array([y]))
        for y in (1.0, -1.0)
    ]
    assert np.abs(one[0] - one[1]).max() == pytest.approx(policy.sensitivity)
    for _ in range(100):
        pair = [
            policy.estimate(
                rng.integers(8, size=1), rng.integers(6, size=1), rng.choice([-1.0, 1.0], 1)
            )
            for _ in range(2)
        ]
        assert np.abs(pair[0] - pair[1]).max() <= policy.sensitivity + 1e-12


def test_usca_plays_uniformly_then_its_picks() -> None:
    policy = build(USCA, explore=200)
    context, action, reward = history(policy)
    assert set(action[:200]) == set(range(6))
    scores = policy.estimate(context[:200], action[:200], reward[:200]).reshape(8, 6)
    np.testing.assert_array_equal(action[200:], scores.argmax(axis=1)[context[200:]])
    assert (policy.law().max(axis=1) == 1.0).all()
    private = build(USCA, 2.0, explore=200)
    played(private)
    scores = private._estimate.reshape(8, 6)
    np.testing.assert_array_equal(
        private.law(), exponential_law(scores, private.sensitivity, 2.0 / 8), "8 picks share"
    )
    assert [private.recommend(each) for each in range(8)] == private._table.tolist()


def test_usca_recommends_once_at_the_full_budget_if_all_rounds_learn() -> None:
    policy = build(USCA, 2.0, explore=HORIZON)
    with pytest.raises(ConfigurationError, match="play these rounds first"):
        policy.recommend(0)
    assert set(played(policy)) == set(range(6))
    scores = policy._estimate.reshape(8, 6)
    np.testing.assert_array_equal(policy.law(), exponential_law(scores, policy.sensitivity, 2.0))
    first = policy.recommend(3)
    assert policy.recommend(3) == first
    with pytest.raises(BudgetError, match="another context"):
        policy.recommend(4)


def test_kusner_without_noise_releases_the_best_mean_of_the_posterior() -> None:
    policy = build(Kusner, explore=40, noise=0.1)
    context, action, reward = history(policy)
    reference = GaussianProcessRegressor(kernels.RBF(0.4), alpha=0.01, optimizer=None)
    reference.fit(PAIRS[context[:40] * 6 + action[:40]], reward[:40])
    scores = WORLD.weights @ reference.predict(PAIRS).reshape(8, 6)
    np.testing.assert_allclose(policy.scores(), scores, atol=1e-6)
    assert (action[40:] == scores.argmax()).all()
    assert policy.recommend(0) == scores.argmax()
    np.testing.assert_array_equal(played(build(Kusner, 1e9, explore=40, noise=0.1)), action)


def test_published_sensitivity_of_kusner() -> None:
    beta = 2 * np.log(6 * 101**2 * np.pi**2 / (3 * 0.01))
    expected = 2 * np.sqrt(beta) + 2 * np.sqrt(0.1 * np.log(3 * 6 / 0.01))
    assert published_sensitivity(6, 100, 0.01, 0.9) == pytest.approx(expected)


def test_kharkovskii_without_projection_is_gp_ucb() -> None:
    plain = played(build(Kharkovskii, columns=None, beta=0.8, noise=0.1))
    settings = {"beta": 0.8, "noise": 0.1, "kernel": KERNEL}
    np.testing.assert_array_equal(plain, played(build(GPUCB, **settings)))


def test_many_columns_keep_distances() -> None:
    """Johnson and Lindenstrauss: at 20,000 columns squared distances are kept to 5 %."""
    rows = np.random.default_rng(3).random((12, 3))
    z = transformed(rows, 20_000, 0.0, np.random.default_rng(4))
    for i in range(12):
        for j in range(i):
            ratio = np.sum((z[i] - z[j]) ** 2) / np.sum((rows[i] - rows[j]) ** 2)
            assert ratio == pytest.approx(1.0, abs=0.05)


def test_singular_values_are_raised_below_the_floor_only() -> None:
    rows = np.random.default_rng(5).random((12, 3))
    values = np.linalg.svd(rows, compute_uv=False)
    low, high = values.min() / 2, values.max()
    same = transformed(rows, 4, low, np.random.default_rng(6))
    np.testing.assert_allclose(same, transformed(rows, 4, 0.0, np.random.default_rng(6)))
    projection = np.random.default_rng(6).standard_normal((3, 4))
    left, _, right = np.linalg.svd(rows, full_matrices=False)
    raised = (left * np.sqrt(values**2 + high**2)) @ right @ projection / 2
    np.testing.assert_allclose(transformed(rows, 4, high, np.random.default_rng(6)), raised)
    budget = Budget(epsilon=2.0, delta=1e-3)
    expected = 16 * np.sqrt(4 * np.log(2000)) / 2.0 * np.log(64 * 1000)
    assert singular_floor(budget, 4) == pytest.approx(expected)


def test_kharkovskii_refuses_what_it_cannot_project() -> None:
    with pytest.raises(ConfigurationError, match="one lengthscale"):
        build(Kharkovskii, kernel=Linear())
    with pytest.raises(ConfigurationError, match="one lengthscale"):
        build(Kharkovskii, kernel=RBF(lengthscale=(0.3, 0.4)))
    with pytest.raises(ConfigurationError, match="a budget needs a projection"):
        build(Kharkovskii, 1.0, columns=None)
    assert len(played(build(Kharkovskii, 1.0))) == HORIZON
