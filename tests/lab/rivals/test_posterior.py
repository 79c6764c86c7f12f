"""The posteriors under the rivals, against scikit-learn and against each other."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels

from capri.features import greedy_basis
from capri.kernels import RBF, Linear, Matern
from capri_lab.rivals.kernel import posterior as module
from capri_lab.rivals.kernel.posterior import (
    GridPosterior,
    WeightPosterior,
    batch_posterior,
    kernel_posterior,
)

RIDGE = 0.04
CONTEXTS, ACTIONS = 6, 7
PAIRS = np.random.default_rng(0).random((CONTEXTS * ACTIONS, 2))


def history(rounds: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Pairs with many repeats, and rewards."""
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.full(len(PAIRS), 0.3))
    return rng.choice(len(PAIRS), size=rounds, p=law), rng.uniform(-1, 1, rounds)


def reference(
    kernel: object, pair: np.ndarray, reward: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    model = GaussianProcessRegressor(kernel, alpha=RIDGE, optimizer=None)
    mean, deviation = model.fit(PAIRS[pair], reward).predict(PAIRS, return_std=True)
    return mean, deviation**2


@pytest.mark.parametrize("rounds", [1, 5, 300])
def test_exact_posterior_equals_scikit_learn(rounds: int) -> None:
    kernel = Matern(nu=2.5, lengthscale=0.3)
    pair, reward = history(rounds)
    grid = GridPosterior(kernel(PAIRS, PAIRS), ACTIONS, RIDGE)
    for each, value in zip(pair.tolist(), reward.tolist(), strict=True):
        grid.observe(each // ACTIONS, each % ACTIONS, value)
    mean, variance = reference(sklearn_kernels.Matern(nu=2.5, length_scale=0.3), pair, reward)
    np.testing.assert_allclose(grid.mean, mean, atol=1e-9)
    np.testing.assert_allclose(grid.variance, variance, atol=1e-9)
    at = grid.at(2)
    np.testing.assert_array_equal(at[0], grid.mean[14:21])
    np.testing.assert_array_equal(at[1], grid.variance[14:21])


@pytest.mark.parametrize("block", [1, 3, 10])
def test_exact_posterior_survives_flushes_and_refreshes(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks and frequent refreshes walk through every branch."""
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_REFRESH", 7)
    kernel = RBF(lengthscale=0.3)
    pair, reward = history(200, seed=2)
    grid = GridPosterior(kernel(PAIRS, PAIRS), ACTIONS, RIDGE)
    for each, value in zip(pair.tolist(), reward.tolist(), strict=True):
        grid.observe(each // ACTIONS, each % ACTIONS, value)
    mean, variance = reference(sklearn_kernels.RBF(0.3), pair, reward)
    np.testing.assert_allclose(grid.mean, mean, atol=1e-9)
    np.testing.assert_allclose(grid.variance, variance, atol=1e-9)


def test_weight_posterior_with_spanning_features_is_exact() -> None:
    kernel = RBF(lengthscale=0.5)
    basis = greedy_basis(kernel, PAIRS, tolerance=0.0, max_rank=len(PAIRS))
    weight = WeightPosterior(basis.coordinates(PAIRS), ACTIONS, RIDGE)
    pair, reward = history(120)
    for each, value in zip(pair.tolist(), reward.tolist(), strict=True):
        weight.observe(each // ACTIONS, each % ACTIONS, value)
    mean, variance = weight.of(slice(None))
    expected = reference(sklearn_kernels.RBF(0.5), pair, reward)
    np.testing.assert_allclose(mean, expected[0], atol=1e-7)
    np.testing.assert_allclose(variance, expected[1], atol=1e-7)


def test_features_may_come_one_by_one() -> None:
    """Extending equals starting with all features, before and after observations."""
    kernel = Matern(nu=1.5, lengthscale=0.4)
    basis = greedy_basis(kernel, PAIRS[:5], tolerance=0.0, max_rank=5)
    rows = basis.coordinates(PAIRS)
    whole = WeightPosterior(rows, ACTIONS, RIDGE, basis.residual(PAIRS, rows))
    diagonal = kernel.diagonal(PAIRS)
    grown = WeightPosterior(rows[:, :2], ACTIONS, RIDGE, diagonal - (rows[:, :2] ** 2).sum(axis=1))
    counts, sums = np.zeros(len(PAIRS)), np.zeros(len(PAIRS))
    pair, reward = history(40)
    for step, (each, value) in enumerate(zip(pair.tolist(), reward.tolist(), strict=True)):
        for posterior in (whole, grown):
            posterior.observe(each // ACTIONS, each % ACTIONS, value)
        counts[each] += 1
        sums[each] += value
        if step in (3, 20, 30):
            grown.extend(rows[:, grown.rows.shape[1]], counts, sums)
    for mine, theirs in zip(grown.of(slice(None)), whole.of(slice(None)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-10)
    anew = WeightPosterior(rows, ACTIONS, RIDGE, basis.residual(PAIRS, rows))
    anew.set(counts, sums)
    np.testing.assert_allclose(anew.of(slice(None))[0], whole.of(slice(None))[0], atol=1e-10)


def test_batch_posterior_equals_scikit_learn() -> None:
    pair, reward = history(150)
    counts = np.bincount(pair, minlength=len(PAIRS)).astype(float)
    sums = np.bincount(pair, weights=reward, minlength=len(PAIRS))
    mean, variance = batch_posterior(Linear(variance=0.5, bias=0.5), PAIRS, counts, sums, RIDGE)
    expected = reference(
        sklearn_kernels.ConstantKernel(0.5) * sklearn_kernels.DotProduct(1.0), pair, reward
    )
    np.testing.assert_allclose(mean, expected[0], atol=1e-9)
    np.testing.assert_allclose(variance, expected[1], atol=1e-9)


def test_many_pairs_are_handled_by_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the largest matrix, the posterior is on features, to their tolerance."""
    kernel = RBF(lengthscale=0.5)
    monkeypatch.setattr(module, "GRID_PAIRS", 10)
    large = kernel_posterior(kernel, PAIRS, ACTIONS, RIDGE)
    assert isinstance(large, WeightPosterior)
    pair, reward = history(60)
    for each, value in zip(pair.tolist(), reward.tolist(), strict=True):
        large.observe(each // ACTIONS, each % ACTIONS, value)
    expected = reference(sklearn_kernels.RBF(0.5), pair, reward)
    np.testing.assert_allclose(large.of(slice(None))[0], expected[0], atol=1e-3)
    np.testing.assert_allclose(large.of(slice(None))[1], expected[1], atol=1e-5)
