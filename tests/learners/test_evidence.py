"""Weights of kernels, size of the crowd and noise of rewards, from releases alone."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

import capri
from capri.arrays import FloatArray
from capri.choices import as_actions
from capri.family import family_of
from capri.learners.belief import Belief, Expected, Observation, Posterior, Squares
from capri.learners.overdispersion import SIZES, Overdispersion
from capri.learners.priors import EvidencePrior, best_weights

CONTEXTS = np.linspace(0, 1, 12)[:, None]
FAMILY = family_of(
    capri.ContextPool(CONTEXTS),
    as_actions(np.linspace(0, 1, 6)[:, None]),
    max_rank=20,
    generator=np.random.default_rng(0),
)
PRIOR = EvidencePrior(FAMILY, 1.0)
RANK = FAMILY.basis.rank


def observed(
    seed: int, count: int, truth: FloatArray
) -> tuple[list[Observation], list[FloatArray]]:
    rng = np.random.default_rng(seed)
    observations, released = [], []
    for _ in range(count):
        design = 50 * rng.normal(size=(8, RANK))
        sampling = 20.0 * np.eye(8)
        covariance = 30.0 * np.eye(8) + sampling
        observations.append(
            Observation(
                design=design,
                covariance=covariance,
                baseline=0.1 * rng.normal(size=RANK),
                sampling=sampling,
                participants=2_000,
            )
        )
        error = rng.multivariate_normal(np.zeros(8), covariance)
        released.append(design @ (truth - observations[-1].baseline) + error)
    return observations, released


def believed(observations: list[Observation], released: list[FloatArray]) -> Belief:
    belief = Belief.empty(RANK)
    for observation, vector in zip(observations, released, strict=True):
        belief = belief.observe([(..., observation, vector)])
    return belief


def test_evidence_is_the_likelihood_of_all_releases() -> None:
    """Up to the constants that crowds add: against one big Gaussian of all releases."""
    rng = np.random.default_rng(1)
    truth = 0.1 * rng.normal(size=RANK)
    observations, released = observed(2, 2, truth)
    belief = believed(observations, released)
    crowds = Overdispersion.empty(RANK)
    for observation, vector in zip(observations, released, strict=True):
        crowds = crowds.observe([(..., observation, vector)])
    state = PRIOR.infer(belief)
    assert state.weights is not None
    design = np.concatenate([each.design for each in observations])
    covariance = np.kron(np.eye(2), observations[0].covariance)
    target = np.concatenate(
        [v + o.design @ o.baseline for o, v in zip(observations, released, strict=True)]
    )
    marginal = design @ PRIOR.covariance(state.weights) @ design.T + covariance
    direct = multivariate_normal(np.zeros(16), marginal).logpdf(target)
    away = state.weights - PRIOR.expected
    precision = np.linalg.inv(1.5**2 * np.eye(len(away)) + 1.5**2)
    penalty = 0.5 * away @ precision @ away
    found = crowds.constants[0] + state.evidence - 8 * np.log(2 * np.pi)
    assert found == pytest.approx(direct - penalty, abs=1e-3)


def test_gradient_of_the_evidence_is_right() -> None:
    """The ascent ends where the finite differences vanish."""
    observations, released = observed(3, 3, 0.3 * np.random.default_rng(4).normal(size=RANK))
    belief = believed(observations, released)
    values, vectors = np.linalg.eigh(belief.information)
    kept = values > 1e-6 * values[-1]
    root = np.sqrt(values[kept])
    e, b = vectors[:, kept] * root, vectors[:, kept].T @ belief.vector / root
    grams = np.array([e.T @ each @ e for each in PRIOR.covariances])
    best, value = best_weights(b, grams, PRIOR.expected, PRIOR.expected)

    def loss(x: FloatArray) -> float:
        total = np.eye(len(b)) + np.tensordot(np.exp(x), grams, 1)
        away = x - PRIOR.expected
        precision = np.linalg.inv(1.5**2 * np.eye(len(x)) + 1.5**2)
        quadratic = b @ np.linalg.solve(total, b) + away @ precision @ away
        return float(0.5 * quadratic + 0.5 * np.linalg.slogdet(total)[1])

    assert loss(best) == pytest.approx(-value, rel=1e-9)
    assert loss(best) < loss(PRIOR.expected)
    assert np.abs(approx_fprime(best, loss, 1e-5)).max() < 0.05


def test_posterior_is_the_dense_bayesian_regression() -> None:
    observations, released = observed(5, 3, 0.2 * np.random.default_rng(6).normal(size=RANK))
    belief = believed(observations, released)
    state = PRIOR.again(belief, PRIOR.expected)
    precision = np.linalg.inv(PRIOR.covariance(PRIOR.expected)) + belief.information
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(state.factor @ state.factor.T, covariance, atol=1e-8)
    np.testing.assert_allclose(state.mean, covariance @ belief.vector, atol=1e-6)


@pytest.mark.parametrize("people", [None, 100.0])
def test_the_evidence_tells_how_many_people_there_are(people: float | None) -> None:
    """Releases whose sampling errors are those of everybody, or of a hundred people: 60 releases of
    8 numbers each, whose deviation differs by a factor of three."""
    rng = np.random.default_rng(8)
    truth = 0.1 * rng.normal(size=RANK)
    observations, _ = observed(9, 60, truth)
    crowds, belief = Overdispersion.empty(RANK), Belief.empty(RANK)
    for observation in observations:
        assert observation.sampling is not None
        more = 0.0 if people is None else observation.participants / people
        covariance = observation.covariance + more * observation.sampling
        vector = observation.design @ (truth - observation.baseline)
        vector = vector + rng.multivariate_normal(np.zeros(8), covariance)
        crowds = crowds.observe([(..., observation, vector)])
        belief = belief.observe([(..., observation, vector)])
    crowds, belief, state = crowds.settle(belief, PRIOR.infer)
    size = SIZES[crowds.likeliest]
    assert size == np.inf if people is None else 50 <= size <= 200
    assert np.linalg.norm(state.mean - truth) < 0.5 * np.linalg.norm(truth)


def test_what_belief_explains_is_no_noise() -> None:
    """Squares of an early epoch are explained by what later ones taught: 0.5 of 0.54 is ``f``."""
    state = Posterior(mean=np.array([0.5, 0.5]), factor=1e-6 * np.eye(2), scale=1.0)
    nothing = Posterior(mean=np.zeros(2), factor=0.1 * np.eye(2), scale=1.0)
    squares = Squares.empty(2).measured(0.54, 1e-3, Expected.of(np.eye(2), np.zeros(2)))
    early, late = squares.noise(nothing), squares.noise(state)
    assert early is not None
    assert late is not None
    assert early[0] == pytest.approx(0.52)
    assert late[0] == pytest.approx(0.04, abs=1e-6)
    assert late[1] > early[1]


def test_baselines_are_taken_into_account() -> None:
    """``E[(v^T (theta - b))^2]`` in one sum, against every pair by itself."""
    rng = np.random.default_rng(11)
    rows, baseline = rng.normal(size=(200, 3)), rng.normal(size=3)
    mean, factor = rng.normal(size=3), 0.3 * rng.normal(size=(3, 3))
    spread = rows.T @ rows / 200
    direct = np.mean((rows @ (mean - baseline)) ** 2 + ((rows @ factor) ** 2).sum(axis=1))
    squares = Squares.empty(3).measured(direct + 0.2, 0.01, Expected.of(spread, baseline))
    found = squares.noise(Posterior(mean=mean, factor=factor, scale=1.0))
    assert found is not None
    assert found[0] == pytest.approx(0.2)
