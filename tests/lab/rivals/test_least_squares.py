"""Private least squares: coordinates, sensitivities, noise, solution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from capri import Budget, ConfigurationError
from capri.privacy.calibration import analytic_multiplier
from capri_lab.rivals.linear.least_squares import (
    MATRIX_SENSITIVITY,
    MOMENTS_SENSITIVITY,
    VECTOR_SENSITIVITY,
    GaussianMoments,
    WishartMoments,
    moments,
    noise_for,
    pack,
    packed_size,
    solve,
    unpack,
    wishart_delta,
)

BUDGET = Budget(epsilon=1.0, delta=1e-5)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_packing_keeps_the_norm_and_is_undone(dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((3, dimension, dimension))
    matrix, vector = half + half.transpose(0, 2, 1), rng.standard_normal((3, dimension))
    packed = pack(matrix, vector)
    assert packed.shape == (3, packed_size(dimension))
    np.testing.assert_allclose(
        np.sum(packed**2, axis=1), np.sum(matrix**2, axis=(1, 2)) + np.sum(vector**2, axis=1)
    )
    again = unpack(packed, dimension)
    np.testing.assert_allclose(again[0], matrix, rtol=1e-14)
    np.testing.assert_array_equal(again[1], vector)


@settings(max_examples=300)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_no_neighbours_are_farther_apart_than_the_sensitivities(dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, dimension))
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), rng.choice([1e-9, 1.0]))
    y = rng.choice([-1.0, 1.0, 0.3], size=2)
    apart = [moments(x[[i]], y[[i]]) for i in range(2)]
    difference = apart[0] - apart[1]
    matrix, vector = unpack(difference, dimension)
    assert np.linalg.norm(difference) <= MOMENTS_SENSITIVITY + 1e-12
    assert np.linalg.norm(matrix) <= MATRIX_SENSITIVITY + 1e-12
    assert np.linalg.norm(vector) <= VECTOR_SENSITIVITY + 1e-12


def test_the_sensitivities_are_reached() -> None:
    x = np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)]])
    pair = [moments(x[[0]], np.array([1.0])), moments(x[[1]], np.array([-1.0]))]
    assert np.linalg.norm(pair[0] - pair[1]) == pytest.approx(MOMENTS_SENSITIVITY, abs=1e-12)
    matrix, _ = unpack(moments(np.eye(2)[:1], np.ones(1)) - moments(np.eye(2)[1:], np.ones(1)), 2)
    assert np.linalg.norm(matrix) == pytest.approx(MATRIX_SENSITIVITY)


def test_gaussian_noise_has_the_calibrated_scale_in_all_coordinates() -> None:
    """4,000 draws of 14 coordinates: chi-squared of 56,000 degrees, two-sided at 1e-6."""
    noise = GaussianMoments.calibrated(4, BUDGET, levels=6)
    assert noise.scale == pytest.approx(analytic_multiplier(BUDGET) * np.sqrt(4.5 * 6))
    rng = np.random.default_rng(5)
    draws = np.array([noise.draw(rng) for _ in range(4000)]) / noise.scale
    law = chi2(draws.size)
    assert law.ppf(1e-6) < np.sum(draws**2) < law.isf(1e-6)
    matrices, _ = unpack(draws, 4)
    assert np.var(matrices[:, 0, 1]) == pytest.approx(0.5, rel=0.12)  # 5 standard errors


def test_wishart_has_the_right_mean_and_variance() -> None:
    """20,000 draws; entries' means and variances within 5 standard errors (false alarm 1e-5)."""
    noise = WishartMoments(dimension=2, freedom=30)
    rng = np.random.default_rng(6)
    draws = np.array([noise.wishart(rng) for _ in range(20_000)])
    error = 5 / np.sqrt(len(draws))
    # W = 2 * Wishart(I, k): E = 2 k I, var of a diagonal entry 8 k, of another 4 k.
    np.testing.assert_allclose(draws.mean(axis=0), 60 * np.eye(3), atol=error * np.sqrt(240))
    np.testing.assert_allclose(draws[:, 0, 0].var(), 240, rtol=2 * error)
    np.testing.assert_allclose(draws[:, 0, 1].var(), 120, rtol=2 * error)
    assert noise.scale == pytest.approx(np.sqrt(2 * 120))


def test_wishart_delta_agrees_with_a_simulation_of_the_densities() -> None:
    """One level, a row replaced by an orthogonal one: delta from log-ratios of real matrices.

    4,000 matrices; the mean of a variable in [0, 1] plus 5 standard errors lies below the bound.
    """
    freedom, size, epsilon = 60, 3, 0.15
    noise = WishartMoments(dimension=size - 1, freedom=freedom)
    rng = np.random.default_rng(7)
    z, other = np.sqrt(2) * np.eye(size)[0], np.sqrt(2) * np.eye(size)[1]
    change = np.outer(z, z) - np.outer(other, other)
    half = (freedom - size - 1) / 2
    draws = np.array([noise.wishart(rng) for _ in range(4000)])
    # log f(W) - log f(W + change): the traces are equal.
    shifted = np.linalg.det(draws + change)
    ratio = np.full(len(draws), np.inf)
    inside = shifted > 0
    ratio[inside] = half * (np.log(np.linalg.det(draws[inside])) - np.log(shifted[inside]))
    gain = np.maximum(-np.expm1(epsilon - ratio), 0.0)
    simulated = gain.mean() + 5 * gain.std() / np.sqrt(len(gain))
    bound = wishart_delta(epsilon, freedom=freedom, size=size, levels=1)
    assert gain.mean() > 0
    assert simulated < bound
    assert bound < 1.0


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_shorter_rows_lose_no_more(epsilon: float) -> None:
    """Calibration is for rows of full length: delta grows with their length."""
    deltas = [
        wishart_delta(epsilon, freedom=40, size=4, levels=3, share=share)
        for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    ]
    assert (np.diff(deltas) >= -1e-12).all()
    assert deltas[-1] > 1e-9, "premise: there is something to compare"


def test_wishart_freedom_is_least_and_far_below_the_published_one() -> None:
    levels, size = 6, 5
    noise = noise_for("wishart", size - 1, BUDGET, levels)
    assert isinstance(noise, WishartMoments)
    kept = wishart_delta(1.0, freedom=noise.freedom, size=size, levels=levels)
    fewer = wishart_delta(1.0, freedom=int(0.99 * noise.freedom), size=size, levels=levels)
    assert kept <= BUDGET.delta < fewer
    published = size + 224 * levels * np.log(8 * levels / 1e-5) * np.log(2 / 1e-5)
    assert noise.freedom < published / 50
    # Close to Gaussian: removing costs mu = sqrt(levels / 2 freedom), and two of these are composed
    # as a group. No smaller than half of what the Gaussian limit of replacing needs.
    mu = np.sqrt(levels / noise.freedom)
    assert mu < 1 / analytic_multiplier(BUDGET)
    assert mu > 0.5 / analytic_multiplier(BUDGET)
    assert norm.cdf(mu) > 0.5


def test_more_epsilon_never_asks_for_more_wishart_noise() -> None:
    freedoms = [
        WishartMoments.calibrated(4, Budget(epsilon=epsilon, delta=1e-5), levels=3).freedom
        for epsilon in (0.3, 1.0, 3.0, 10.0, 30.0, 1000.0)
    ]
    assert (np.diff(freedoms) <= 0).all()


def test_without_noise_the_solution_is_ridge_regression() -> None:
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal((50, 4)), rng.standard_normal(50)
    solution = solve(moments(x, y), 4, ridge=0.7)
    matrix = x.T @ x + 0.7 * np.eye(4)
    np.testing.assert_allclose(solution.theta, np.linalg.solve(matrix, x.T @ y), rtol=1e-10)
    np.testing.assert_allclose(
        solution.width(x) ** 2, np.sum(x * np.linalg.solve(matrix, x.T).T, axis=1), rtol=1e-10
    )
    np.testing.assert_allclose(solution.mean(x), x @ solution.theta)


def test_indefinite_matrices_are_raised_to_the_floor() -> None:
    packed = pack(np.diag([-5.0, 3.0]), np.array([1.0, 1.0]))
    solution = solve(packed, 2, ridge=1.0, floor=0.5)
    np.testing.assert_allclose(solution.theta, [2.0, 0.25])


def test_noise_by_name() -> None:
    assert noise_for("gaussian", 3, None, 4) is None
    assert noise_for("wishart", 3, None, 4) is None
    with pytest.raises(ConfigurationError, match="'gaussian', 'wishart', got 'laplace'"):
        noise_for("laplace", 3, BUDGET, 4)
