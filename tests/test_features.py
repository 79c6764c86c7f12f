"""Projected features: both forms against the paper's formulas, their invariances, and extremes."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paper_formulas
from capri.dense_features import DenseFeatures
from capri.features import LowRankFeatures, ProjectedFeatures
from capri.kernels import (
    RBF,
    ContextAction,
    Kernel,
    Linear,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
)

Array = np.ndarray
FORMS = ("dense", "low-rank")
every_form = pytest.mark.parametrize("form", FORMS)


def build(form: str, kernel: Kernel, S: Array, R: Array, tau: float) -> ProjectedFeatures:
    if form == "dense":
        return DenseFeatures(kernel, S, R, tau)
    return LowRankFeatures.from_copies(kernel, S, R, tau, tolerance=0.0, max_rank=10_000)


def decoded(features: ProjectedFeatures, kernel: Kernel, vector: Array, w: Array) -> Array:
    points, weights = features.decoder(vector)
    return kernel(w, points) @ weights


@dataclass(frozen=True)
class Case:
    """A small problem on which explicit inverses keep ten digits."""

    kernel: Kernel
    dimension: int
    basis_draws: int
    covariance_draws: int
    tau: float

    def draw(self, seed: int = 0) -> tuple[Array, Array, Array, Array, Array]:
        """S, R, W, y, and points to evaluate at: uniform in the unit cube."""
        rng = np.random.default_rng(seed)
        S = rng.random((self.basis_draws, self.dimension))
        R = rng.random((self.covariance_draws, self.dimension))
        W = rng.random((25, self.dimension))
        return S, R, W, rng.uniform(-1, 1, 25), rng.random((15, self.dimension))


CASES = [
    Case(RBF(lengthscale=0.3), 3, 12, 15, 1.0),
    Case(RBF(lengthscale=(0.2, 0.5, 0.3), variance=0.7), 3, 10, 5, 0.1),
    Case(Matern(nu=0.5, lengthscale=0.4), 2, 30, 30, 1.0),
    Case(Matern(nu=0.5, lengthscale=1.0), 1, 5, 30, 10.0),
    Case(Matern(nu=1.5, lengthscale=0.3), 3, 25, 20, 0.5),
    Case(Matern(nu=2.5, lengthscale=0.3), 3, 20, 30, 1.0),
    Case(Matern(nu=2.5, lengthscale=0.5), 5, 30, 12, 0.05),
    Case(Matern(nu=0.7, lengthscale=0.4), 2, 15, 15, 2.0),
    Case(RationalQuadratic(alpha=2.0, lengthscale=0.3), 4, 12, 16, 1.0),
    Case(Linear(variance=0.1), 8, 5, 20, 1.0),
    Case(Linear(variance=0.1, bias=0.2), 8, 6, 7, 0.3),
    Case(Sum(Matern(nu=1.5, lengthscale=0.3, variance=0.5), Linear(variance=0.1)), 4, 18, 20, 1.0),
    Case(Product(RBF(lengthscale=0.6), Matern(nu=0.5)), 3, 15, 18, 1.0),
    Case(ContextAction(Matern(nu=1.5, lengthscale=0.3), RBF(lengthscale=0.3), 2), 4, 16, 20, 0.2),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.kernel)[:60])


@every_case
def test_premise_explicit_inverses_are_accurate_on_these_problems(case: Case) -> None:
    """Otherwise a comparison at 1e-8 would test the transcription's rounding."""
    S, R, *_ = case.draw()
    assert np.linalg.cond(case.kernel(S, S)) < 1e6
    assert np.linalg.cond(paper_formulas.whitening_matrix(case.kernel, S, R, case.tau)) < 1e6


@every_form
@every_case
def test_estimate_is_appendix_b(case: Case, form: str) -> None:
    S, R, W, y, w = case.draw()
    features = build(form, case.kernel, S, R, case.tau)
    total = features.whitened(W).T @ y
    expected = paper_formulas.projected_estimator(case.kernel, S, R, W, y, case.tau, w)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        decoded(features, case.kernel, total, w), expected, rtol=1e-8, atol=1e-8 * scale
    )
    np.testing.assert_allclose(features.whitened(w) @ total, expected, rtol=1e-8, atol=1e-8 * scale)


@every_form
@every_case
def test_projected_deviation_is_the_papers(case: Case, form: str) -> None:
    S, R, W, _, w = case.draw()
    features = build(form, case.kernel, S, R, case.tau)
    for at in (w, W, S, R):
        expected = np.sqrt(paper_formulas.projected_variance(case.kernel, S, R, case.tau, at))
        np.testing.assert_allclose(np.sqrt(features.projected_variance(at)), expected, rtol=1e-8)


@every_case
def test_dense_form_is_eqn_private_estimator_with_noise(case: Case) -> None:
    """The textbook form carries the paper's own noise vector, of size |S|."""
    S, R, W, y, w = case.draw()
    noise = np.random.default_rng(5).normal(size=len(S))
    features = build("dense", case.kernel, S, R, case.tau)
    expected = paper_formulas.private_estimator(case.kernel, S, R, W, y, case.tau, noise, w)
    given = decoded(features, case.kernel, features.whitened(W).T @ y + noise, w)
    np.testing.assert_allclose(given, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@every_form
@every_case
def test_whitened_features_are_the_papers_up_to_rotation(case: Case, form: str) -> None:
    """Equal inner products: the law of a noisy estimate is the same in either coordinates."""
    S, R, W, _, w = case.draw()
    features = build(form, case.kernel, S, R, case.tau)
    left = paper_formulas.whitened(case.kernel, S, R, case.tau, w)
    right = paper_formulas.whitened(case.kernel, S, R, case.tau, W)
    expected = left @ right.T
    given = features.whitened(w) @ features.whitened(W).T
    np.testing.assert_allclose(given, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@every_case
def test_forms_agree_when_draws_repeat(case: Case) -> None:
    """``K_SS`` is singular here: the case the literal formula cannot do."""
    S, R, W, y, w = case.draw(seed=3)
    S, R = np.vstack([S, S[:3], S[:1]]), np.vstack([R, R[:4], S[:2]])
    dense, low_rank = (build(form, case.kernel, S, R, case.tau) for form in FORMS)
    np.testing.assert_allclose(
        low_rank.projected_variance(w), dense.projected_variance(w), rtol=1e-8
    )
    expected = decoded(dense, case.kernel, dense.whitened(W).T @ y, w)
    np.testing.assert_allclose(
        decoded(low_rank, case.kernel, low_rank.whitened(W).T @ y, w),
        expected,
        rtol=1e-8,
        atol=1e-8 * np.abs(expected).max(),
    )
    assert low_rank.rank == len(np.unique(S, axis=0))


@every_case
def test_low_rank_form_does_not_see_order_or_repeats(case: Case) -> None:
    """Permuting S or R, or repeating a draw of S, leaves every bit as it was."""
    S, R, _, _, w = case.draw()
    rng = np.random.default_rng(8)
    reference = build("low-rank", case.kernel, S, R, case.tau)
    variants = [
        (rng.permutation(S), R),
        (S, rng.permutation(R)),
        (np.vstack([S, S[2], S[2], S[0]]), R),
    ]
    for other_S, other_R in variants:
        other = build("low-rank", case.kernel, other_S, other_R, case.tau)
        np.testing.assert_array_equal(other.whitened(w), reference.whitened(w))
        np.testing.assert_array_equal(other.projected_variance(w), reference.projected_variance(w))


@every_case
def test_dense_form_does_not_see_order_or_repeats(case: Case) -> None:
    S, R, _, _, w = case.draw()
    rng = np.random.default_rng(8)
    expected = build("dense", case.kernel, S, R, case.tau).projected_variance(w)
    for other_S, other_R in (
        (rng.permutation(S), rng.permutation(R)),
        (np.vstack([S, S[2]]), R),
    ):
        other = build("dense", case.kernel, other_S, other_R, case.tau)
        np.testing.assert_allclose(other.projected_variance(w), expected, rtol=1e-9)


@every_form
@every_case
def test_repeated_draw_of_the_covariance_copy_counts_twice(case: Case, form: str) -> None:
    """A repeat in R is evidence: it must lower the variance there, as the formula says."""
    S, R, *_ = case.draw()
    R = np.vstack([R, S[0]])
    once = build(form, case.kernel, S, R, case.tau)
    twice = build(form, case.kernel, S, np.vstack([R, S[0]]), case.tau)
    before, after = (f.projected_variance(S[:1])[0] for f in (once, twice))
    # Sherman-Morrison with phi(s) inside the span of S: 1/after = 1/before + 1.
    assert 1 / after == pytest.approx(1 / before + 1, rel=1e-8)


@every_form
@every_case
def test_whitened_norm_never_exceeds_projected_deviation(case: Case, form: str) -> None:
    """Step 3 of the lemma: the sensitivity of a contribution is bounded by ``sigma~``."""
    S, R, W, _, w = case.draw()
    features = build(form, case.kernel, S, R, case.tau)
    for at in (w, W, S, R, 3 * w):
        norms = np.linalg.norm(features.whitened(at), axis=1)
        deviation = np.sqrt(features.projected_variance(at))
        assert (norms <= deviation * (1 + 1e-9)).all()
        if at is S:  # inside the span nothing is left over
            np.testing.assert_allclose(norms, deviation, rtol=1e-9)


@every_form
@every_case
def test_deviation_is_monotone_in_tau(case: Case, form: str) -> None:
    """``sigma~^2`` falls and ``tau sigma~^2`` (the posterior variance) grows with tau."""
    S, R, _, _, w = case.draw()
    taus = [case.tau * factor for factor in (0.5, 1.0, 2.0, 8.0)]
    values = np.array([build(form, case.kernel, S, R, tau).projected_variance(w) for tau in taus])
    assert (np.diff(values, axis=0) < 0).all()
    assert (np.diff(values * np.array(taus)[:, None], axis=0) > 0).all()
    assert (values * np.array(taus)[:, None] <= case.kernel.diagonal(w) * (1 + 1e-12)).all()


@every_case
def test_low_rank_rows_do_not_depend_on_their_batch(case: Case) -> None:
    """A user's contribution must not change, to the bit, with who else is in the batch."""
    S, R, W, _, w = case.draw()
    features = build("low-rank", case.kernel, S, R, case.tau)
    rows = np.vstack([w, W, S])
    together = features.whitened(rows)
    for size in (1, 2, 3, 5, 8, 17):
        apart = [features.whitened(rows[i : i + size]) for i in range(0, len(rows), size)]
        np.testing.assert_array_equal(np.vstack(apart), together)
    np.testing.assert_array_equal(features.whitened(rows[::-1])[::-1], together)


@every_form
@every_case
def test_block_of_features_is_the_same_up_to_rounding(case: Case, form: str) -> None:
    S, R, W, _, _ = case.draw()
    features = build(form, case.kernel, S, R, case.tau)
    rows = features.whitened(W)
    np.testing.assert_allclose(
        features.whitened_block(W), rows, rtol=1e-9, atol=1e-11 * np.abs(rows).max()
    )


def test_truncated_basis_keeps_the_identity_and_its_tolerance() -> None:
    """A basis cut at a tolerance leaves at most that much of every draw outside, and
    ``sigma~^2 = |psi|^2 + residual / tau`` still holds, so the noise bound stays valid."""
    kernel, tau, tolerance = Matern(nu=2.5, lengthscale=0.5), 0.5, 1e-3
    rng = np.random.default_rng(2)
    S, R = rng.random((200, 2)), rng.random((200, 2))
    full = build("low-rank", kernel, S, R, tau)
    cut = LowRankFeatures.from_copies(kernel, S, R, tau, tolerance=tolerance, max_rank=10_000)
    assert cut.rank < full.rank / 2
    residual = cut.basis.residual(S, cut.basis.coordinates(S))
    assert residual.max() <= tolerance * (1 + 1e-9)
    psi = cut.whitened(R)
    np.testing.assert_allclose(
        cut.projected_variance(R),
        np.einsum("ij,ij->i", psi, psi) + cut.basis.residual(R, cut.basis.coordinates(R)) / tau,
        rtol=1e-9,
    )
    # What the cut adds to the width stays below the 5 % that the specification allows.
    widest = np.sqrt(full.projected_variance(R).max())
    assert abs(np.sqrt(cut.projected_variance(R).max()) / widest - 1) < 0.05


def test_max_rank_is_kept() -> None:
    rng = np.random.default_rng(2)
    S = rng.random((50, 2))
    features = LowRankFeatures.from_copies(Matern(nu=0.5), S, S, 1.0, tolerance=0.0, max_rank=7)
    assert features.rank == 7
    assert features.whitened(S).shape == (50, 7)


@pytest.mark.parametrize("tau", [1e-17, 1e-300])
def test_tau_lost_in_rounding_still_gives_features(tau: float) -> None:
    """R misses most of S, so the covariance is singular but for tau."""
    S = np.random.default_rng(0).random((6, 2))
    features = build("low-rank", Matern(nu=0.5), S, S[:1].repeat(6, axis=0), tau)
    assert features.projected_variance(S[:1])[0] == pytest.approx(1 / 6, rel=1e-6)


# -- extremes -------------------------------------------------------------------------------------


def _kernel(name: str, lengthscale: float, dimension: int) -> Kernel:
    match name:
        case "rbf":
            return RBF(lengthscale=lengthscale)
        case "rbf per dimension":
            return RBF(lengthscale=tuple(lengthscale * (1 + j) for j in range(dimension)))
        case "rational quadratic":
            return RationalQuadratic(alpha=0.5, lengthscale=lengthscale)
        case "linear":
            return Linear(variance=1.0 / dimension)
        case "linear with bias":
            return Linear(variance=0.5 / dimension, bias=0.5)
        case "sum":
            return RBF(lengthscale=lengthscale, variance=0.5) + Linear(variance=0.5 / dimension)
        case "product":
            return Matern(nu=1.5, lengthscale=lengthscale) * Linear(variance=1.0 / dimension)
        case "context times action" if dimension > 1:
            return ContextAction(RBF(lengthscale=lengthscale), Matern(nu=0.5), 1)
        case "tiny variance":
            return RBF(lengthscale=lengthscale, variance=1e-14)
    nu = {"matern 1/2": 0.5, "matern 3/2": 1.5, "matern 0.7": 0.7}.get(name, 2.5)
    return Matern(nu=nu, lengthscale=lengthscale)


_NAMES = [
    "rbf",
    "rbf per dimension",
    "matern 1/2",
    "matern 3/2",
    "matern 5/2",
    "matern 0.7",
    "rational quadratic",
    "linear",
    "linear with bias",
    "sum",
    "product",
    "context times action",
    "tiny variance",
]


@dataclass(frozen=True)
class Extreme:
    """A problem as the algorithm meets it: i.i.d. draws from a finite product set."""

    kernel: Kernel
    S: Array
    R: Array
    pairs: Array
    outside: Array
    rewards: Array
    tau: float


@st.composite
def extremes(draw: st.DrawFn) -> Extreme:
    context_dimension = draw(st.integers(0, 10))
    action_dimension = draw(st.integers(1 if context_dimension == 0 else 0, 10))
    dimension = context_dimension + action_dimension
    name = draw(st.sampled_from(_NAMES))
    lengthscale = draw(st.sampled_from([1e-3, 0.05, 0.3, 1.0, 30.0, 1e3]))
    contexts, actions = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    draws = draw(st.integers(1, 60))
    tau = draw(st.sampled_from([1e-4, 0.05, 1.0, 50.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    context_rows = rng.random((contexts, context_dimension))
    action_rows = rng.random((actions, action_dimension))
    if draw(st.booleans()):  # a repeated action and a pair at the origin
        action_rows[-1] = action_rows[0] = 0.0
        context_rows[0] = 0.0
    pairs = np.array([[*c, *x] for c in context_rows for x in action_rows])
    S, R = (pairs[rng.integers(len(pairs), size=draws)] for _ in range(2))
    return Extreme(
        kernel=_kernel(name, lengthscale, dimension),
        S=S,
        R=R,
        pairs=pairs,
        outside=rng.random((5, dimension)) / np.sqrt(dimension),
        rewards=rng.uniform(-1, 1, len(pairs)),
        tau=tau,
    )


def _check_extreme(form: str, problem: Extreme, slack: float) -> None:
    features = build(form, problem.kernel, problem.S, problem.R, problem.tau)
    at = np.vstack([problem.pairs, problem.outside])
    psi = features.whitened(at)
    variance = features.projected_variance(at)
    total = features.whitened(problem.pairs).T @ problem.rewards
    estimate = decoded(features, problem.kernel, total, at)
    for values in (psi, variance, total, estimate):
        assert np.isfinite(values).all()
    # Both are squares of quantities of size sqrt(k / tau): the slack is relative to that.
    ceiling = max(float(problem.kernel.diagonal(at).max()), 1e-12) / problem.tau
    squared = np.einsum("ij,ij->i", psi, psi)
    assert (variance >= 0).all()
    assert (variance >= squared - slack * ceiling).all()
    assert (variance <= ceiling * (1 + slack)).all()
    if isinstance(features, LowRankFeatures):
        coordinates = features.basis.coordinates(at)
        assert (features.basis.residual(at, coordinates) >= 0).all()
        assert features.rank <= len(np.unique(problem.S, axis=0))


@settings(max_examples=600)
@given(extremes())
def test_low_rank_form_is_finite_and_bounded_at_extremes(problem: Extreme) -> None:
    """Repeats, lengthscales 1e-3 to 1e3, one action, one context, d = 1 to 20, every kernel."""
    _check_extreme("low-rank", problem, slack=1e-7)


@settings(max_examples=100)
@given(extremes())
def test_dense_form_is_finite_at_extremes(problem: Extreme) -> None:
    """The reference loses digits where ``K_SS`` is singular, but never returns garbage."""
    _check_extreme("dense", problem, slack=1e-3)
