"""Widths: do they hold as often as they say, and are their parts what the proofs need?"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm

import capri
from capri.environments import TabularEnvironment, random_rkhs
from capri.epoch.play import CommonWidth, DifferenceTest, EliminationTest
from capri.features import Basis, Predictor, greedy_basis
from capri.learners.belief import prior_variance
from capri.learners.practical import PracticalLearner
from capri.learners.widths import Rehearsal, epoch_failure, rigorous_test

BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)
KERNELS = {
    "rbf": capri.kernels.RBF(lengthscale=0.3),
    "matern-3/2": capri.kernels.Matern(nu=1.5, lengthscale=0.3),
    "matern-5/2": capri.kernels.Matern(nu=2.5, lengthscale=0.3),
}


def learner_of(policy: capri.Capri) -> PracticalLearner:
    learner = policy._course.learner
    assert isinstance(learner, PracticalLearner)
    return learner


def make_policy(
    environment: TabularEnvironment, kernel: capri.kernels.Kernel, **changes: Any
) -> capri.Capri:
    options: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": capri.ContextPool(environment.contexts, weights=environment.weights),
        "budget": BUDGET,
        "simulation_seed": 0,
    }
    return capri.Capri(**(options | changes))


# -- coverage -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """How a run's widths did: the largest |error| / width, and whether a best action was lost."""

    worst: float
    lost_the_best: bool


def run(
    kernel: str,
    seed: int,
    widths: str,
    *,
    sizes: tuple[int, int] = (12, 20),
    horizons: tuple[int, int] = (3000, 5000),
    **changes: Any,
) -> Run:
    """Every epoch, every context, every action against the truth; sizes and laws vary by seed."""
    rng = np.random.default_rng([seed, 0xC0])
    contexts, actions = rng.integers(*sizes, size=2, endpoint=True)
    environment = random_rkhs(
        KERNELS[kernel], contexts=int(contexts), actions=int(actions), seed=seed
    )
    settings = {
        "horizon": int(rng.integers(*horizons, endpoint=True)),
        "exploration": ("thompson", "uniform")[seed % 2],
        "widths": widths,
        "simulation_seed": seed,
    }
    policy = make_policy(environment, KERNELS[kernel], **(settings | changes))
    learner = learner_of(policy)
    pairs = learner._problem.actions.pairs(environment.contexts)
    rows, truly_best = np.arange(contexts), environment.means.argmax(axis=1)
    worst, lost = 0.0, False
    while policy.remaining:
        context = environment.draw_contexts(rng, policy.remaining)
        decisions = policy.act_many(environment.contexts[context])
        policy.update_many(decisions, environment.rewards(rng, context, decisions.action_index))
        policy.close_epoch()
        gap, width = learner.conduct().tests[-1].compare(pairs)
        best = gap.argmin(axis=1)
        error = np.abs(gap - (environment.means[rows, best][:, None] - environment.means))
        assert (gap[rows, best] == 0).all()
        assert (error[rows, best] == 0).all()
        other = np.arange(actions) != best[:, None]
        worst = max(worst, float((error[other] / width[other]).max()))
        lost |= not policy.active(environment.contexts)[rows, truly_best].all()
    return Run(worst, lost)


FUNCTIONS = 80  # per kernel


@pytest.mark.slow
@pytest.mark.parametrize("widths", ["calibrated", "rigorous"])
def test_widths_hold_simultaneously_as_often_as_promised(widths: str) -> None:
    """240 fresh functions, 80 of each kernel, both ways of playing; failure probability 0.05.

    Exact binomial test at level 1e-4: widths that hold with probability 0.95 fail it with
    probability below 1e-4, widths that hold with 0.85 are found with power above 0.9. In a run
    whose widths hold the truly best action is never ruled out: that is no statistic but a must.
    Problems are small and runs short, which costs no power: a run is one trial whatever its size.
    """
    small: dict[str, Any] = {"sizes": (8, 14), "horizons": (2000, 3500)}
    runs = [run(kernel, seed, widths, **small) for kernel in KERNELS for seed in range(FUNCTIONS)]
    held = sum(each.worst <= 1 for each in runs)
    assert len(runs) == 3 * FUNCTIONS == 240
    assert binomtest(held, len(runs), 0.95, alternative="less").pvalue > 1e-4
    for each in runs:
        assert not (each.worst <= 1 and each.lost_the_best)


def test_power_of_the_coverage_test_is_as_stated() -> None:
    rejected = [
        held for held in range(241) if binomtest(held, 240, 0.95, alternative="less").pvalue <= 1e-4
    ]
    assert binom(240, 0.95).cdf(max(rejected)) <= 1e-4
    assert binom(240, 0.85).cdf(max(rejected)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "changes",
    [
        {"budget": capri.Budget(epsilon=0.1, delta=1e-5)},
        {"budget": capri.Budget(epsilon=10.0, delta=1e-5)},
        {"budget": None},
        {"exploration": "inverse-gap"},
        {"horizon": 30_000},
    ],
    ids=["strong privacy", "weak privacy", "no privacy", "inverse-gap", "long run"],
)
def test_calibrated_widths_hold_elsewhere(kernel: str, changes: dict[str, Any]) -> None:
    """The same promise away from where the margin was measured: 80 functions, level 1e-4."""
    runs = [run(kernel, 500 + seed, "calibrated", **changes) for seed in range(80)]
    held = sum(each.worst <= 1 for each in runs)
    assert binomtest(held, 80, 0.95, alternative="less").pvalue > 1e-4
    assert not any(each.worst <= 1 and each.lost_the_best for each in runs)


@pytest.mark.parametrize("failure", [0.05, 0.5])
def test_shares_of_the_epochs_sum_to_the_failure_probability(failure: float) -> None:
    shares = [epoch_failure(failure, epoch) for epoch in range(1, 20_001)]
    assert sum(shares) < failure
    assert sum(shares) == pytest.approx(failure, rel=1e-4)
    assert shares[0] == pytest.approx(failure * 6 / pi**2)
    assert (np.diff(shares) < 0).all()


# -- the tests themselves -------------------------------------------------------------------------


def small_basis(tolerance: float = 1e-3) -> Basis:
    points = np.random.default_rng(1).random((60, 2))
    return greedy_basis(KERNELS["matern-5/2"], points, tolerance=tolerance, max_rank=40)


def some_pairs(contexts: int = 7, actions: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    context, action = rng.random((contexts, 1)), rng.random((actions, 1))
    pairs = np.empty((contexts, actions, 2))
    pairs[:, :, 0], pairs[:, :, 1] = context, action.T
    return pairs


def difference_test(seed: int = 0, sign: float = 1.0, outside: float = 0.3) -> DifferenceTest:
    rng = np.random.default_rng(seed)
    basis = small_basis(tolerance=0.05)
    roots = tuple(0.2 * rng.normal(size=(basis.rank, columns)) for columns in (basis.rank, 3))
    return DifferenceTest(basis, sign * rng.normal(size=basis.rank), roots, outside, 1.0)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), outside=st.floats(0.0, 1.0))
def test_width_of_a_difference_is_worked_out_pair_by_pair(seed: int, outside: float) -> None:
    test, pairs = difference_test(seed, outside=outside), some_pairs(seed=seed)
    gap, width = test.compare(pairs)
    kernel = test.basis.kernel
    for c in range(7):
        v = [test.basis.coordinates(pairs[c, x][None])[0] for x in range(5)]
        left_out = [
            max(0.0, float(kernel.diagonal(pairs[c, x][None])[0]) - float(v[x] @ v[x]))
            for x in range(5)
        ]
        values = [float(row @ test.coefficients) for row in v]
        best = int(np.argmax(values))
        for x in range(5):
            expected = sum(float(np.linalg.norm((v[x] - v[best]) @ root)) for root in test.roots)
            expected += outside * (sqrt(left_out[x]) + sqrt(left_out[best])) * (x != best)
            assert gap[c, x] == pytest.approx(values[best] - values[x], abs=1e-10)
            if x != best:
                assert width[c, x] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("outside", [0.0, 0.3])
def test_width_of_a_difference_is_symmetric(outside: float) -> None:
    """With two actions, turning the estimate round makes the other the best: the same width."""
    pairs = some_pairs(actions=2)
    gap, width = difference_test(3, outside=outside).compare(pairs)
    turned_gap, turned_width = difference_test(3, sign=-1.0, outside=outside).compare(pairs)
    best, turned = gap.argmin(axis=1), turned_gap.argmin(axis=1)
    assert (best != turned).all()
    rows = np.arange(len(pairs))
    np.testing.assert_allclose(width[rows, turned], turned_width[rows, best], rtol=1e-9)
    np.testing.assert_allclose(gap[rows, turned], turned_gap[rows, best], rtol=1e-9)


def test_best_itself_has_no_gap_and_no_width() -> None:
    """What the basis leaves out of the best cancels too, but a bound may keep it: none or more."""
    pairs = some_pairs()
    gap, width = difference_test(2, outside=0.0).compare(pairs)
    rows, best = np.arange(len(pairs)), gap.argmin(axis=1)
    assert (gap[rows, best] == 0.0).all()
    assert (width[rows, best] == 0.0).all()
    assert (width >= 0).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 1e-9, 0.1, 100.0]))
def test_estimated_best_is_never_ruled_out(seed: int, scale: float) -> None:
    basis = small_basis()
    rng = np.random.default_rng(seed)
    coefficients = rng.normal(size=basis.rank)
    tests: list[EliminationTest] = [
        DifferenceTest(basis, coefficients, (scale * np.eye(basis.rank),), 0.0, 1.0),
        CommonWidth(Predictor(basis.kernel, basis.pivots, basis.transform @ coefficients), scale),
    ]
    pairs = some_pairs(seed=seed)
    values = (basis.coordinates(pairs.reshape(-1, 2)) @ coefficients).reshape(7, 5)
    for test in tests:
        active = test.active(pairs)
        assert active[np.arange(7), values.argmax(axis=1)].all()
        if scale == 0.0:
            assert (active.sum(axis=1) == 1).all()
        if scale == 100.0:
            assert active.all()


def test_common_width_is_four_times_the_papers() -> None:
    basis = small_basis()
    weights = basis.transform @ np.random.default_rng(0).normal(size=basis.rank)
    test = CommonWidth(Predictor(basis.kernel, basis.pivots, weights), 0.2)
    pairs = some_pairs()
    gap, width = test.compare(pairs)
    values = Predictor(basis.kernel, basis.pivots, weights)(pairs)
    np.testing.assert_allclose(gap, values.max(axis=1, keepdims=True) - values)
    np.testing.assert_allclose(width, 0.8)
    np.testing.assert_array_equal(
        test.active(pairs), values >= values.max(axis=1, keepdims=True) - 0.8
    )


def test_common_error_of_a_context_cancels() -> None:
    """An error along a direction in which all actions of a context agree needs no width."""
    basis = small_basis()
    pairs = some_pairs(contexts=1)
    v = basis.coordinates(pairs[0])
    differences = v - v[0]
    _, _, right = np.linalg.svd(differences)
    shared = right[-1]
    assert np.abs(differences @ shared).max() < 1e-10
    assert np.abs(v @ shared).max() > 1e-6
    test = DifferenceTest(basis, np.ones(basis.rank), (1e3 * shared[:, None],), 0.0, 1.0)
    assert test.compare(pairs)[1].max() < 1e-6


# -- the rehearsal --------------------------------------------------------------------------------


def test_rehearsed_functions_have_the_norm_and_their_coordinates() -> None:
    """Inside the span ``f = v^T coefficients``; a rich basis leaves next to nothing outside."""
    basis = greedy_basis(
        KERNELS["rbf"], some_pairs(20, 20).reshape(-1, 2), tolerance=1e-11, max_rank=400
    )
    pairs = some_pairs(20, 20)
    rehearsal = Rehearsal.draw(basis, pairs, 0.7, np.random.default_rng(0))
    inside = np.einsum("cxr,rf->cxf", rehearsal.features, rehearsal.coefficients)
    np.testing.assert_allclose(inside, rehearsal.functions, atol=1e-4)
    squared = np.sum(rehearsal.coefficients**2, axis=0)
    np.testing.assert_allclose(np.sqrt(squared), 0.7, rtol=1e-3)
    assert len(squared) >= 50


def test_quantile_grows_as_the_failure_probability_falls() -> None:
    policy = make_policy(random_rkhs(KERNELS["rbf"], 12, 12, seed=3), KERNELS["rbf"])
    environment = random_rkhs(KERNELS["rbf"], 12, 12, seed=3)
    capri.simulate(policy, environment, policy.remaining, seed=1)
    learner = learner_of(policy)
    quantiles = [
        learner._rehearsal.quantile(
            learner._belief, learner._posterior, failure, np.random.default_rng(0)
        )
        for failure in (0.5, 0.1, 0.01, 1e-4)
    ]
    assert (np.diff(quantiles) > 0).all()
    assert 1.0 < quantiles[0] < 4.0


# -- the terms of the rigorous width --------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A planned epoch and the estimator it will be read with, worked out independently."""

    policy: capri.Capri
    learner: PracticalLearner
    differences: np.ndarray  # (n, rank): v(w) - v(w') within a context
    decoder: np.ndarray
    messages: np.ndarray  # psi of each pair, rows
    weights: np.ndarray  # their probabilities

    @property
    def length(self) -> int:
        return self.policy.remaining

    def test(self, failure: float = 0.01, **changes: Any) -> DifferenceTest:
        learner = self.learner
        design = learner._design
        assert design is not None
        settings: dict[str, Any] = {
            "basis": learner._basis,
            "design": design,
            "released": np.zeros(len(design.observation.design)),
            "prior": learner._prior.of_scale,
            "norm_bound": learner._norm_bound,
            "problem": learner._problem,
            "length": self.length,
            "differences": 1,
            "failure": failure,
            "width_scale": 1.0,
        }
        return rigorous_test(**(settings | changes))


@pytest.fixture(scope="module", params=["joint", "no privacy"])
def planned(request: pytest.FixtureRequest) -> Iterator[Planned]:
    kernel = KERNELS["matern-5/2"]
    environment = random_rkhs(kernel, 6, 5, seed=2)
    policy = make_policy(
        environment,
        kernel,
        widths="rigorous",
        reward_bound=1.5,
        first_epoch=400,
        budget=None if request.param == "no privacy" else BUDGET,
    )
    learner = learner_of(policy)
    plan = learner.plan(1, 400, np.random.default_rng(0))
    design = learner._design
    assert design is not None
    pairs = learner._problem.actions.pairs(environment.contexts)
    v = learner._basis.coordinates(pairs.reshape(-1, 2)).reshape(6, 5, -1)
    differences = np.array(
        [v[c, x] - v[c, y] for c in range(6) for x in range(5) for y in range(x)]
    )
    # M = P H^T R^-1 with P = (D^-1 + H^T R^-1 H)^-1: plain inverses, prior of scale 1.
    observation = design.observation
    precision = np.linalg.inv(observation.covariance)
    prior = np.diag(1 / prior_variance(learner._prior.spectrum, 1.0, 0.5, 1.5))
    posterior = np.linalg.inv(prior + observation.design.T @ precision @ observation.design)
    decoder = posterior @ observation.design.T @ precision
    messages = plan.features.whitened(pairs.reshape(-1, 2))
    messages /= np.maximum(1.0, np.linalg.norm(messages, axis=1))[
        :, None
    ]  # louder ones are clipped
    return Planned(policy, learner, differences, decoder, messages, np.full(30, 1 / 30))


def image(planned: Planned, root: np.ndarray) -> np.ndarray:
    return np.linalg.norm(planned.differences @ root, axis=1)


def test_rigorous_roots_are_bias_sampling_and_range_with_noise(planned: Planned) -> None:
    """All three against the formulas of the proof, for every difference."""
    failure = 0.01
    test = planned.test(failure, differences=7)
    share = failure / 14
    design = planned.learner._design
    assert design is not None
    matrix = design.observation.design
    bias = np.linalg.norm(
        planned.differences @ (np.eye(len(planned.decoder)) - planned.decoder @ matrix), axis=1
    )
    np.testing.assert_allclose(image(planned, test.roots[0]), 1.5 * bias, rtol=1e-5, atol=1e-9)
    h = planned.differences @ planned.decoder @ planned.messages.T  # h of each pair
    nu = np.sqrt(planned.length * (h**2 @ planned.weights))
    expected = (1.5 * sqrt(2 * log(2 / share)) + 1.5 * sqrt(planned.length * design.left_out)) * nu
    np.testing.assert_allclose(image(planned, test.roots[1]), expected, rtol=1e-5, atol=1e-9)
    private = planned.learner._problem.budget is not None
    noise = design.noise * norm.isf(share / 2) if private else 0.0
    expected = (2 * 1.5 * log(2 / share) / 3 + noise) * image(planned, planned.decoder)
    np.testing.assert_allclose(image(planned, test.roots[2]), expected, rtol=1e-5, atol=1e-9)
    assert test.outside == 1.5


def test_range_of_a_single_contribution_is_bounded(planned: Planned) -> None:
    """``|h_i| <= |M^T v|`` because no message is longer than 1: the range Bernstein is given."""
    h = planned.differences @ planned.decoder @ planned.messages.T
    assert (np.abs(h).max(axis=1) <= image(planned, planned.decoder) * (1 + 1e-9)).all()


def test_bernstein_holds_in_simulated_epochs(planned: Planned) -> None:
    """4000 epochs of coin-flip rewards ``+-B``, which have the largest variance there is.

    The variance of every difference is ``B^2 nu^2`` (5 standard errors of a variance, each
    ``sqrt(2/4000)``), and the bound at level 0.05 is exceeded in at most 5 % of the epochs, as it
    must: beyond 250 of 4000 has probability 2e-4 per difference if it were tight, and far less as
    it is not.
    """
    rng = np.random.default_rng(6)
    level = log(2 / 0.05)
    bound, length, epochs = 1.5, planned.length, 4000
    h = planned.differences @ planned.decoder @ planned.messages.T
    # Sum over an epoch: pairs are multinomial, and of each pair's rewards some are +B.
    counts = rng.multinomial(length, planned.weights, size=epochs)
    sums = (2.0 * rng.binomial(counts, 0.5) - counts) * bound
    errors = sums @ h.T  # (epochs, differences), mean 0
    nu = np.sqrt(length * (h**2 @ planned.weights))
    ratio = errors.var(axis=0) / (bound * nu) ** 2
    np.testing.assert_allclose(ratio, 1.0, atol=5 * sqrt(2 / epochs))
    width = bound * nu * sqrt(2 * level)
    width += 2 * bound * level / 3 * image(planned, planned.decoder)
    assert ((np.abs(errors) > width).sum(axis=0) <= 250).all()


def test_gaussian_quantile_is_exact_in_simulated_releases(planned: Planned) -> None:
    """The policy's own releases, decoded: noise beyond its 10 % quantile in 10 % of 2000 epochs.

    Standard error 0.0067, 5 of them allowed, for each of ten differences: false alarm 1e-5.
    """
    problem = planned.learner._problem
    if problem.budget is None:
        assert planned.learner._design is not None
        assert planned.test().roots[2].max() <= np.abs(planned.decoder).max() * 2 * log(400) * 1.5
        return
    plan = planned.learner.plan(1, 400, np.random.default_rng(0))
    design = planned.learner._design
    assert design is not None
    source = planned.policy._gate._source
    reports = 400 if planned.policy.model is capri.privacy.promise.PrivacyModel.LOCAL else 1
    nothing = np.zeros(plan.features.rank, dtype=np.int64)
    units = plan.noise_scale / plan.grid.step  # of the main block
    noise = np.array([source.add(nothing, units, reports=reports) for _ in range(2000)])
    share = 1.0 if plan.message is not None else design.main_share
    decoded = noise * plan.grid.step / share
    differences = planned.differences[::6]
    errors = decoded @ planned.decoder.T @ differences.T
    width = design.noise * norm.isf(0.05) * np.linalg.norm(differences @ planned.decoder, axis=1)
    share = np.mean(np.abs(errors) > width, axis=0)
    np.testing.assert_allclose(share, 0.1, atol=5 * 0.0067)


def test_bias_bound_holds_for_the_worst_function_of_the_ball(planned: Planned) -> None:
    """Functions ``B k_w / |k_w|``-like in the basis and the very worst, ``theta`` along the bias:
    the expected error is the bound itself for the latter and below it for random ones."""
    test = planned.test()
    design = planned.learner._design
    assert design is not None
    operator = np.eye(len(planned.decoder)) - planned.decoder @ design.observation.design
    rng = np.random.default_rng(0)
    for row in planned.differences:
        direction = operator.T @ row
        allowed = float(np.linalg.norm(row @ test.roots[0]))
        worst = 1.5 * direction / np.linalg.norm(direction)
        assert row @ (operator @ worst) == pytest.approx(allowed, rel=1e-5)
        for _ in range(20):
            theta = rng.normal(size=len(direction))
            theta *= 1.5 / np.linalg.norm(theta)
            assert abs(row @ (operator @ theta)) <= allowed * (1 + 1e-9)


def test_width_scale_multiplies_every_width() -> None:
    """The plain factor, for both kinds of width, on the same release."""
    kernel = KERNELS["matern-5/2"]
    environment = random_rkhs(kernel, 6, 5, seed=2)
    for widths in ("calibrated", "rigorous", "paper"):
        found = []
        for scale in (1.0, 0.25):
            policy = make_policy(environment, kernel, widths=widths, width_scale=scale)
            capri.simulate(policy, environment, policy.remaining, seed=0)
            pairs = learner_of(policy)._problem.actions.pairs(environment.contexts)
            found.append(learner_of(policy).conduct().tests[-1].compare(pairs))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_allclose(found[1][1], 0.25 * found[0][1], rtol=1e-9)


def test_smaller_failure_probability_means_wider_widths() -> None:
    kernel = KERNELS["matern-5/2"]
    environment = random_rkhs(kernel, 6, 5, seed=2)
    for widths in ("calibrated", "rigorous", "paper"):
        means = []
        for failure in (0.2, 0.05, 0.001):
            policy = make_policy(environment, kernel, widths=widths, failure_probability=failure)
            capri.simulate(policy, environment, policy.remaining, seed=0)
            pairs = learner_of(policy)._problem.actions.pairs(environment.contexts)
            means.append(float(learner_of(policy).conduct().tests[-1].compare(pairs)[1].mean()))
        assert (np.diff(means) > 0).all()
