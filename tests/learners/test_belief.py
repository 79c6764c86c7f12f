"""The pooled belief against a dense Bayesian linear regression written out by hand.

``theta ~ N(0, diag(D))`` and each release ``g_r = H_r (theta - b_r) + e_r``, ``e_r ~ N(0, R_r)``.
The reference stacks all releases into one tall regression and conditions the joint Gaussian, in
covariance form: nothing in it resembles the information form under test.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from capri.arrays import FloatArray
from capri.learners.belief import (
    PRIOR_SCALES,
    Belief,
    Observation,
    Posterior,
    posterior,
    prior_variance,
)

RANK = 5
SPECTRUM = np.array([0.5, 0.2, 0.1, 0.04, 0.01])


@dataclass(frozen=True)
class Problem:
    """Releases of one truth under different designs, noises and baselines."""

    theta: np.ndarray
    observations: list[Observation]
    released: list[np.ndarray]


def make_problem(
    seed: int, sizes: tuple[int, ...] = (3, 5, 2), baselines: bool = True, signal: float = 0.5
) -> Problem:
    """Messages of 3, 5 and 2 coordinates: fewer than the basis, as many, fewer again."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(scale=signal, size=RANK)
    observations, released = [], []
    for size in sizes:
        root = rng.normal(size=(size, size))
        observation = Observation(
            design=rng.normal(scale=3.0, size=(size, RANK)),
            covariance=root @ root.T + 0.5 * np.eye(size),
            baseline=rng.normal(size=RANK) if baselines else np.zeros(RANK),
        )
        noise = rng.multivariate_normal(np.zeros(size), observation.covariance)
        observations.append(observation)
        released.append(observation.design @ (theta - observation.baseline) + noise)
    return Problem(theta, observations, released)


def pooled(problem: Problem, order: list[int] | None = None) -> Belief:
    belief = Belief.empty(RANK)
    for number in order or range(len(problem.released)):
        belief = belief.observe([(..., problem.observations[number], problem.released[number])])
    return belief


def infer(belief: Belief, **changes: float | None) -> Posterior:
    settings: dict[str, Any] = {"smoothness": 0.5, "norm_bound": 1.0, "scale": 1.0} | changes
    scale = settings.pop("scale")

    def variance(candidate: float) -> FloatArray:
        return prior_variance(SPECTRUM, candidate, **settings)

    return posterior(belief, variance, scale=scale)


def dense_regression(problem: Problem, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log marginal likelihood by conditioning the joint Gaussian."""
    design = np.vstack([observation.design for observation in problem.observations])
    target = np.concatenate(
        [
            released + observation.design @ observation.baseline
            for observation, released in zip(problem.observations, problem.released, strict=True)
        ]
    )
    noise = block_diag(*[observation.covariance for observation in problem.observations])
    marginal = design @ np.diag(prior) @ design.T + noise
    gain = np.diag(prior) @ design.T @ np.linalg.inv(marginal)
    mean = gain @ target
    covariance = np.diag(prior) - gain @ design @ np.diag(prior)
    evidence = multivariate_normal(np.zeros(len(target)), marginal).logpdf(target)
    return mean, covariance, float(evidence)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from(PRIOR_SCALES),
    smoothness=st.floats(0.0, 1.0),
)
def test_posterior_is_the_dense_bayesian_regression(
    seed: int, scale: float, smoothness: float
) -> None:
    problem = make_problem(seed)
    found = infer(pooled(problem), scale=scale, smoothness=smoothness)
    prior = prior_variance(SPECTRUM, scale, smoothness, 1.0)
    mean, covariance, _ = dense_regression(problem, prior)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.factor @ found.factor.T, covariance, rtol=1e-8, atol=1e-10)
    assert found.scale == scale


def test_posterior_before_any_release_is_the_prior_at_scale_one() -> None:
    found = infer(Belief.empty(RANK), scale=None)
    np.testing.assert_array_equal(found.mean, 0.0)
    np.testing.assert_allclose(
        found.factor @ found.factor.T, np.diag(prior_variance(SPECTRUM, 1.0, 0.5, 1.0)), atol=1e-15
    )
    assert found.scale == 1.0


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), signal=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_scale_maximises_the_marginal_likelihood_with_its_hyper_prior(
    seed: int, signal: float
) -> None:
    """The hyper-prior is ``exp(-4 log(scale)^2)``. Truths from nil to thrice the prior's size make
    each scale win somewhere, see the premise below."""
    problem = make_problem(seed, signal=signal)
    penalised = {}
    for scale in PRIOR_SCALES:
        _, _, evidence = dense_regression(problem, prior_variance(SPECTRUM, scale, 0.5, 1.0))
        penalised[scale] = evidence - 4.0 * np.log(scale) ** 2
    ranked = sorted(penalised.values())
    assume(ranked[-1] - ranked[-2] > 1e-6)  # the winner is clear
    expected = max(penalised, key=penalised.__getitem__)
    assert infer(pooled(problem), scale=None).scale == expected


def test_premise_each_scale_wins_for_some_truth() -> None:
    chosen = {
        infer(pooled(make_problem(seed, signal=[0.0, 0.1, 0.5, 2.0][seed % 4])), scale=None).scale
        for seed in range(20)
    }
    assert len(chosen) >= 3
    assert {min(PRIOR_SCALES), max(PRIOR_SCALES)} & chosen


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_evidence_formula_is_the_log_marginal_likelihood_up_to_a_constant(seed: int) -> None:
    """``|L^-1 D^1/2 vector|^2 / 2 - log det L``, as the docstring of ``posterior`` states it, is
    the log density of the data under the prior minus that under ``theta = 0``."""
    problem = make_problem(seed)
    belief = pooled(problem)
    differences = []
    for scale in (0.25, 0.5, 1.0, 2.0, 7.0):
        prior = prior_variance(SPECTRUM, scale, 0.5, 1.0)
        root = np.diag(np.sqrt(prior))
        lower = np.linalg.cholesky(np.eye(RANK) + root @ belief.information @ root)
        whitened = np.linalg.solve(lower, root @ belief.vector)
        formula = 0.5 * whitened @ whitened - np.log(np.diag(lower)).sum()
        differences.append(formula - dense_regression(problem, prior)[2])
    constant = dense_regression(problem, np.zeros(RANK))[2]
    np.testing.assert_allclose(differences, -constant, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("order", [[0, 2, 1], [1, 0, 2], [2, 1, 0]])
def test_order_of_releases_does_not_matter(order: list[int]) -> None:
    problem = make_problem(3)
    first, other = infer(pooled(problem)), infer(pooled(problem, order))
    np.testing.assert_allclose(other.mean, first.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(other.factor, first.factor, rtol=1e-12, atol=1e-14)


def test_many_releases_under_one_law_equal_one_big_release() -> None:
    """k epochs of length n under one law: their sum has design ``k H`` and covariance ``k R``, and
    is a sufficient statistic."""
    one = make_problem(8, sizes=(4,), baselines=False)
    observation = one.observations[0]
    rng = np.random.default_rng(0)
    parts = [one.released[0] + rng.normal(size=4) for _ in range(7)]
    many = Belief.empty(RANK)
    for part in parts:
        many = many.observe([(..., observation, part)])
    whole = Observation(
        design=7 * observation.design,
        covariance=7 * observation.covariance,
        baseline=observation.baseline,
    )
    big = Belief.empty(RANK).observe([(..., whole, np.sum(parts, axis=0))])
    np.testing.assert_allclose(many.information, big.information, rtol=1e-12)
    np.testing.assert_allclose(many.vector, big.vector, rtol=1e-12)
    assert (many.epochs, big.epochs) == (7, 1)
    np.testing.assert_allclose(infer(many).mean, infer(big).mean, rtol=1e-10)


def test_baseline_changes_nothing_but_what_was_subtracted() -> None:
    """Subtracting a baseline before the release and adding it back gives the same belief."""
    problem = make_problem(4, sizes=(5,), baselines=False)
    plain, released = problem.observations[0], problem.released[0]
    baseline = np.random.default_rng(1).normal(size=RANK)
    encoded = Observation(design=plain.design, covariance=plain.covariance, baseline=baseline)
    direct = Belief.empty(RANK).observe([(..., plain, released)])
    residual = Belief.empty(RANK).observe([(..., encoded, released - plain.design @ baseline)])
    np.testing.assert_allclose(residual.vector, direct.vector, rtol=1e-10)
    np.testing.assert_array_equal(residual.information, direct.information)


def test_errors_of_the_posterior_have_the_posterior_covariance() -> None:
    """Truths drawn from the prior: ``e^T C^-1 e`` averages to the rank. 4000 draws of a chi-squared
    law of 5 degrees: mean 5, standard error 0.05; the band of 0.25 is 5 of them, false alarm
    6e-7, and a covariance wrong by 10 % is found with power above 0.99."""
    rng = np.random.default_rng(12)
    prior = prior_variance(SPECTRUM, 1.0, 0.5, 1.0)
    observations = make_problem(2).observations
    total = 0.0
    for _ in range(4000):
        theta = np.sqrt(prior) * rng.standard_normal(RANK)
        belief = Belief.empty(RANK)
        for observation in observations:
            noise = np.linalg.cholesky(observation.covariance) @ rng.standard_normal(
                len(observation.covariance)
            )
            mean = observation.design @ (theta - observation.baseline)
            belief = belief.observe([(..., observation, mean + noise)])
        found = infer(belief)
        white = np.linalg.solve(found.factor, found.mean - theta)
        total += float(white @ white)
    assert abs(total / 4000 - RANK) < 0.25


@pytest.mark.parametrize("smoothness", [0.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(("scale", "norm_bound"), [(1.0, 1.0), (0.5, 3.0)])
def test_prior_expects_a_tenth_of_the_squared_bound(
    smoothness: float, scale: float, norm_bound: float
) -> None:
    """``E f^2 = sum_j lambda_j D_j = 0.1 (scale B)^2``, and ``D_j / D_k = (l_j / l_k)^s``."""
    prior = prior_variance(SPECTRUM, scale, smoothness, norm_bound)
    assert SPECTRUM @ prior == pytest.approx(0.1 * (scale * norm_bound) ** 2, rel=1e-12)
    np.testing.assert_allclose(prior / prior[0], (SPECTRUM / SPECTRUM[0]) ** smoothness, rtol=1e-12)


# -- the variance of the reward noise -------------------------------------------------------------


def with_noise(measured: tuple[float, float] | None) -> Belief:
    problem = make_problem(0, sizes=(2,))
    belief = Belief.empty(RANK).observe([(..., problem.observations[0], problem.released[0])])
    return belief.with_noise(measured)


@pytest.mark.parametrize("bound", [1.0, 0.25, 40.0])
def test_noise_variance_is_a_quarter_of_the_squared_bound_before_any_measure(bound: float) -> None:
    assert Belief.empty(RANK).noise_variance(bound) == 0.25 * bound**2
    assert with_noise(None).noise_variance(bound) == 0.25 * bound**2


def test_noise_variance_is_what_was_measured_plus_a_standard_error() -> None:
    assert with_noise((0.02, 1e4)).noise_variance(1.0) == pytest.approx(0.02 + 0.01, rel=1e-12)


def test_noise_variance_is_never_negative_and_never_above_the_squared_bound() -> None:
    assert with_noise((-3.0, 1e4)).noise_variance(1.0) == pytest.approx(0.01)
    assert with_noise((7.0, 1e4)).noise_variance(0.5) == 0.25
    assert with_noise((0.1, 1e-6)).noise_variance(2.0) == 4.0


def test_measures_of_the_noise_do_not_touch_the_coefficients() -> None:
    plain, measured = with_noise(None), with_noise((0.3, 20.0))
    np.testing.assert_array_equal(measured.information, plain.information)
    np.testing.assert_array_equal(measured.vector, plain.vector)
