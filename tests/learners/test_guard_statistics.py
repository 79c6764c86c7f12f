"""Statistics of the guard rails, each against a second computation."""

from dataclasses import replace

import numpy as np
import pytest

from capri.features import spectral_basis
from capri.kernels import (
    RBF,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Linear,
    Matern,
    sharing_one_scale,
    stretched,
)
from capri.learners import words
from capri.learners.belief import PRIOR_SCALES, Belief, Observation, posterior, prior_variance
from capri.learners.fit import FACTORS, FALSE_ALARMS, Fit, Innovation, candidates

MATERN = Matern(nu=2.5, lengthscale=0.3)


# -- innovations ----------------------------------------------------------------------------------


def some_release(seed: int = 0) -> tuple[Observation, np.ndarray, Belief, np.ndarray]:
    generator = np.random.default_rng(seed)
    rank, full = 4, 6
    spread = generator.standard_normal((rank, rank))
    observation = Observation(
        design=generator.standard_normal((rank, full)),
        covariance=spread @ spread.T + np.eye(rank),
        baseline=generator.standard_normal(full),
    )
    spectrum = 2.0 ** -np.arange(full)
    belief = Belief.empty(full).observe([(..., observation, generator.standard_normal(rank))])
    return replace(observation, design=observation.design[::-1]), spread[0], belief, spectrum


def test_innovation_is_the_dense_quadratic_form() -> None:
    """Against the covariance of the release written out, ``H P H^T + R``, and its inverse."""
    observation, released, belief, spectrum = some_release()
    state = posterior(belief, lambda scale: prior_variance(spectrum, scale, 0.5, 1.0))
    found = Innovation.of([(..., observation, released)], state)
    prior = np.diag(prior_variance(spectrum, state.scale, 0.5, 1.0))
    covariance = np.linalg.inv(np.linalg.inv(prior) + belief.information)
    design = observation.design
    error = released - design @ (covariance @ belief.vector - observation.baseline)
    whole = design @ covariance @ design.T + observation.covariance
    assert found.degrees == 4
    assert found.chi_square == pytest.approx(error @ np.linalg.inv(whole) @ error, rel=1e-9)


def test_right_models_seldom_raise_an_alarm() -> None:
    """Runs of 12 chi-square innovations; more than 20 alarms where 10 are allowed: 1e-3 seeds."""
    generator, runs, releases, alarms = np.random.default_rng(1), 2000, 12, 0
    for _ in range(runs):
        fit = Fit()
        for degrees in generator.integers(1, 20, size=releases):
            newest = Innovation(float(generator.chisquare(degrees)), int(degrees))
            fit = fit.after(newest)
            if fit.chance(newest) < FALSE_ALARMS:
                alarms += 1
                break
    expected = FALSE_ALARMS * runs
    assert 0 < alarms <= expected + 4 * np.sqrt(expected)


@pytest.mark.parametrize(("inflation", "releases"), [(30.0, 2), (2.5, 30)])
def test_a_jump_and_a_drift_are_both_heard(inflation: float, releases: int) -> None:
    """One release far off, or thirty that are each a little: neither is missed."""
    fit = Fit()
    for _ in range(releases):
        newest = Innovation(3 * inflation, 3)
        fit = fit.after(newest)
    alone = Fit(0.0, 0, releases - 1).after(newest).chance(newest)
    assert fit.chance(newest) < FALSE_ALARMS
    assert (alone < FALSE_ALARMS) == (inflation == 30.0)
    notice = words.misfit(fit, newest, told=True)
    assert notice is not None
    assert notice.numbers["ratio"] == pytest.approx(inflation)


# -- other kernels --------------------------------------------------------------------------------


def test_known_kernel_as_a_candidate_is_the_known_prior() -> None:
    pairs = np.random.default_rng(0).random((80, 2))
    basis, spectrum = spectral_basis(MATERN, pairs, tolerance=1e-9, max_rank=80)
    first = candidates(MATERN, basis, pairs, 0.5)[0]
    prior = np.diag(prior_variance(spectrum, 1.0, 0.5, 1.0)) / 0.1
    kept = spectrum > 1e-6 * spectrum[0]  # beyond, rounding errors are all there is
    assert (first.factor, first.constant) == (1.0, 0.0)
    covariance = first.root @ first.root.T
    np.testing.assert_allclose(covariance[np.ix_(kept, kept)], prior[np.ix_(kept, kept)], atol=2e-4)


def test_evidence_is_that_of_the_dense_formula() -> None:
    """``h^T (S^-1 + J)^-1 h / 2 - ln det(I + S J) / 2 - 4 ln^2 s``, largest over the scales."""
    _, _, belief, spectrum = some_release()
    pairs = np.random.default_rng(0).random((80, 2))
    basis, _ = spectral_basis(MATERN, pairs, tolerance=1e-9, max_rank=len(spectrum))
    for candidate in candidates(MATERN, basis, pairs, 0.5):
        found = []
        for scale in PRIOR_SCALES:
            prior = 0.1 * scale**2 * candidate.root @ candidate.root.T
            whole = np.eye(len(prior)) + prior @ belief.information
            fit = belief.vector @ np.linalg.solve(whole, prior @ belief.vector) / 2
            found.append(fit - np.linalg.slogdet(whole)[1] / 2 - 4 * np.log(scale) ** 2)
        assert candidate.log_evidence(belief, 1.0) == pytest.approx(max(found), rel=1e-8)


@pytest.mark.parametrize(("factor", "precision"), [(0.25, 1e4), (4.0, 1e7)])
def test_evidence_names_the_lengthscale_behind_exact_observations(
    factor: float, precision: float
) -> None:
    """Functions of the candidate's own law, observed on all coordinates with little noise."""
    pairs = np.random.default_rng(0).random((300, 2))
    basis, spectrum = spectral_basis(MATERN, pairs, tolerance=1e-3, max_rank=60)
    kernels = candidates(MATERN, basis, pairs, 0.5)
    own = next(each for each in kernels if each.factor == factor)
    theta = np.sqrt(0.1) * own.root @ np.random.default_rng(1).standard_normal(own.root.shape[1])
    information = precision * np.diag(spectrum)
    belief = Belief(information=information, vector=information @ theta)
    notice = words.another_kernel(belief, kernels, 1.0)
    assert notice is not None
    assert notice.numbers["factor"] == factor
    assert f"times {'1/4' if factor < 1 else '4'}" in notice.text


def test_a_level_is_not_taken_for_a_long_lengthscale() -> None:
    pairs = np.random.default_rng(0).random((300, 2))
    basis, spectrum = spectral_basis(MATERN, pairs, tolerance=1e-3, max_rank=60)
    kernels = candidates(MATERN, basis, pairs, 0.5)
    values = basis.coordinates(pairs)
    rough = 0.1 * kernels[0].root @ np.random.default_rng(2).standard_normal(60)
    theta = np.linalg.lstsq(values, np.full(300, 0.6) + values @ rough, rcond=None)[0]
    information = 1e5 * np.diag(spectrum)
    belief = Belief(information=information, vector=information @ theta)
    notice = words.another_kernel(belief, kernels, 1.0)
    assert notice is not None
    assert "constant" in notice.numbers


def test_kernels_without_a_lengthscale_have_no_rivals() -> None:
    pairs = np.random.default_rng(0).random((20, 2))
    kernel = Linear(variance=0.4)
    basis, _ = spectral_basis(kernel, pairs, tolerance=1e-3, max_rank=5)
    assert candidates(kernel, basis, pairs, 0.5) == ()
    assert words.another_kernel(Belief.empty(basis.rank), (), 1.0) is None
    assert len(candidates(MATERN, basis, pairs, 0.5)) == len(FACTORS) + 2


def test_every_lengthscale_of_an_expression_is_stretched() -> None:
    kernel = ContextAction(RBF(0.5) * Columns(Matern(1.5, (1.0, 2.0)), (0, 1)), Categories(), 2)
    other = stretched(kernel, 4.0)
    assert other == ContextAction(
        RBF(2.0) * Columns(Matern(1.5, (4.0, 8.0)), (0, 1)), Categories(), 2
    )
    assert stretched(Constant() + Linear(), 2.0) is None


def test_groups_of_columns_follow_the_expression() -> None:
    kernel = Columns(RBF(), (3, 1)) + ContextAction(RBF(), Linear() * RBF((1.0, 1.0)), 2)
    assert list(sharing_one_scale(kernel, range(4))) == [(3, 1), (0, 1), (2, 3)]
