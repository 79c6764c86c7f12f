"""What a plan predicts of its release, against releases of the real policy under that very plan."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import capri
from capri.epoch.learner import Lesson
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.rewards import tail_bound
from capri.learners.belief import Belief
from capri.learners.boundary import Encoding
from capri.learners.learner import PracticalLearner
from capri.learners.residuals import measured_excess, measured_square
from capri.learners.segments import Design, Support
from capri.privacy.calibration import noise_multiplier
from capri.privacy.gate import Gate
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout
from capri.privacy.projection import half_vector
from capri.privacy.sphere import sphere
from capri.privacy.vector import VectorLayout
from epochs_inside import open_epoch

CONTEXTS = np.array([[0.0], [0.2], [0.45], [0.7], [1.0]])
WEIGHTS = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
ACTIONS = np.linspace(0.0, 1.0, 4)[:, None]
PAIRS = np.array([[*c, *x] for c in CONTEXTS for x in ACTIONS]).reshape(5, 4, 2)
HUGE = capri.Budget(epsilon=200.0, delta=1e-5)
ONE = capri.Budget(epsilon=1.0, delta=1e-5)


def make_policy(**changes: Any) -> capri.Capri:
    """Rewards far inside their bound of 10, so that nothing need be clipped."""
    options: dict[str, Any] = {
        "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.5),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS, weights=WEIGHTS),
        "budget": ONE,
        "reward_bound": 10.0,
        "norm_bound": 1.0,
        "first_epoch": 100,
        "growth": 1.0 + 1e-9,
        "simulation_seed": 3,
    }
    return capri.Capri(**(options | changes))


def learner_of(policy: capri.Capri) -> PracticalLearner:
    learner = policy._learning.learner
    assert isinstance(learner, PracticalLearner)
    return learner


def values_of(policy: capri.Capri, theta: np.ndarray) -> np.ndarray:
    """``f = v^T theta`` on the pool, a function inside the span of the basis."""
    flat = PAIRS.reshape(-1, 2)
    return (learner_of(policy).known.basis.coordinates(flat) @ theta).reshape(5, 4)


def play(
    policy: capri.Capri, values: np.ndarray, deviation: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One epoch with rewards ``f +- deviation``; returns contexts, actions and rewards."""
    count = policy.remaining
    context = rng.choice(5, size=count, p=WEIGHTS)
    decisions = policy.act_many(CONTEXTS[context])
    rewards = values[context, decisions.action_index]
    rewards = rewards + deviation * rng.choice([-1.0, 1.0], size=count)
    policy.update_many(decisions, rewards)
    policy.close_epoch()
    return context, decisions.action_index, rewards


@dataclass
class Rehearsed:
    """A policy frozen under one plan: every epoch repeats it, and releases are only collected."""

    policy: capri.Capri
    plan: EpochPlan
    design: Design
    releases: list[Release]

    @property
    def learner(self) -> PracticalLearner:
        return learner_of(self.policy)

    def posterior_draw(self, rng: np.random.Generator) -> np.ndarray:
        state = self.learner.known.posterior
        return state.mean + state.factor @ rng.standard_normal(state.factor.shape[1])

    def decoded(self, release: Release) -> np.ndarray:
        return self.plan.layout.main(release.vector, self.plan.value_bound)

    @property
    def noise_variance(self) -> float:
        return self.learner.known.belief.noise_variance(10.0)


def frozen(monkeypatch: pytest.MonkeyPatch, warm_up: int, **changes: Any) -> Rehearsed:
    """Play ``warm_up`` real epochs, then let the learner plan once more and repeat that plan."""
    policy = make_policy(**changes)
    learner = learner_of(policy)
    rng = np.random.default_rng(17)
    truth = np.sqrt(
        0.1 / len(learner.known.prior.spectrum) / learner.known.prior.spectrum
    ) * rng.standard_normal(len(learner.known.prior.spectrum))
    for _ in range(warm_up):
        play(policy, values_of(policy, truth), 0.2, rng)
    learner = learner_of(policy)  # what was learnt is another one each time
    plan = learner.plan(warm_up + 1, policy.remaining, np.random.default_rng(0))
    design = learner.known.design
    assert design is not None
    releases: list[Release] = []

    def collect(release: Release, generator: np.random.Generator) -> Lesson:
        releases.append(release)
        return Lesson(width=0.0, active_share=1.0)

    monkeypatch.setattr(
        learner, "plan", lambda epoch, length, generator: replace(plan, epoch=epoch)
    )
    monkeypatch.setattr(learner, "learn", collect)
    return Rehearsed(policy, plan, design, releases)


def sampling_correction(rehearsed: Rehearsed) -> np.ndarray:
    """The plan takes second moments where a covariance would subtract ``n E[z psi] E[z psi]^T``.

    Over truths from the posterior that is ``H (P + d d^T) H^T / n``, ``d`` the mean of ``theta -
    baseline``: the plan is on the safe side by just so much.
    """
    state, observation = rehearsed.learner.known.posterior, rehearsed.design.observation
    offset = state.mean - observation.baseline
    second = state.factor @ state.factor.T + np.outer(offset, offset)
    return observation.design @ second @ observation.design.T / rehearsed.plan.length


SLOW = pytest.mark.slow  # what the others check in another way
RESIDUALS: dict[str, Any] = {"budget": ONE, "clip_scale": 6.0, "first_epoch": 1500}
MONTE_CARLO: dict[str, tuple[dict[str, Any], int, bool]] = {
    "residuals, little noise": ({"budget": HUGE, "clip_scale": 9.0}, 1, True),
    "residuals, epsilon 1": (RESIDUALS, 3, True),
    "first epoch, little noise": ({"budget": HUGE}, 0, False),
    "rewards, epsilon 1": ({"budget": ONE, "residual": False}, 2, False),
}


@pytest.mark.parametrize(
    ("changes", "warm_up", "residual", "epochs"),
    [pytest.param(*each, 1200, id=name, marks=SLOW) for name, each in MONTE_CARLO.items()]
    + [pytest.param(RESIDUALS, 3, True, 150, id="briefly")],
)
def test_release_has_the_predicted_mean_and_covariance(
    changes: dict[str, Any],
    warm_up: int,
    residual: bool,
    epochs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``N`` epochs of 100 or 1500 real decisions, truths from the posterior, noise as believed.

    With ``u`` the whitened difference between release and prediction: ``N |mean u|^2`` is
    chi-squared (false alarm 1e-5); the mean of ``|u|^2`` has standard error about
    ``sqrt(2 rank / N)``, and 7 of them are allowed, as are 7 of ``1/sqrt(N)`` for each product of
    two coordinates, since truths are mixed. A covariance wrong by 20 % is 8 standard errors away
    after 1200 epochs; after 150 one that is wrong by 57 % is.
    """
    rehearsed = frozen(monkeypatch, warm_up, **changes)
    assert rehearsed.design.residual is residual
    assert (rehearsed.plan.baseline is not None) is residual
    rng = np.random.default_rng(5)
    deviation = sqrt(rehearsed.noise_variance)
    observation = rehearsed.design.observation
    largest, differences = 0.0, []
    for _ in range(epochs):
        theta = rehearsed.posterior_draw(rng)
        values = values_of(rehearsed.policy, theta)
        play(rehearsed.policy, values, deviation, rng)
        expected = observation.design @ (theta - observation.baseline)
        differences.append(rehearsed.decoded(rehearsed.releases[-1]) - expected)
        offset = values - values_of(rehearsed.policy, observation.baseline)
        largest = max(largest, float(np.abs(offset).max()) + deviation)
    assert len(rehearsed.releases) == epochs
    assert largest < rehearsed.plan.value_bound, "premise: nothing is clipped"
    covariance = observation.covariance - sampling_correction(rehearsed)
    white = np.linalg.solve(np.linalg.cholesky(covariance), np.array(differences).T)
    rank = len(covariance)
    assert epochs * float(np.sum(white.mean(axis=1) ** 2)) < chi2(rank).isf(1e-5)
    size = float(np.mean(np.sum(white**2, axis=0)))
    assert size == pytest.approx(rank, abs=7 * sqrt(2 * rank / epochs))
    products = white @ white.T / epochs
    off_diagonal = products[~np.eye(rank, dtype=bool)]
    assert np.abs(off_diagonal).max(initial=0.0) < 7 / sqrt(epochs)


@pytest.mark.parametrize("changes", [{}, {"budget": HUGE}], ids=str)
@pytest.mark.parametrize("warm_up", [0, 2])
def test_noise_the_learner_expects_is_what_the_gate_adds(
    changes: dict[str, Any], warm_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard deviation of the decoded vector."""
    rehearsed = frozen(monkeypatch, warm_up, **changes)
    plan, share = rehearsed.plan, rehearsed.design.main_share
    weighs = isinstance(plan.layout, VectorLayout)  # shares weigh the message, or the noise
    scale = plan.noise_scale * (1.0 if weighs else share)  # on whole messages
    assert rehearsed.design.noise == pytest.approx(scale / share, rel=1e-3)
    budget = changes.get("budget", ONE)
    multiplier = noise_multiplier(budget, plan.dimension, 1.0)
    if isinstance(plan.layout, HistogramLayout):  # 2 sqrt 2 / epsilon, and the price of the tail
        tail = plan.layout.tail_level / (2 * plan.layout.level)
        multiplier = sqrt(8) / budget.epsilon * (1 + tail)
    assert scale == pytest.approx(multiplier * plan.value_bound, rel=1e-3)


def test_expected_design_is_the_mean_over_the_law_worked_out_pair_by_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rehearsed = frozen(monkeypatch, 2, budget=HUGE, clip_scale=6.0)
    learner, length = rehearsed.learner, rehearsed.plan.length
    law = learner.probabilities(CONTEXTS)
    design = np.zeros_like(rehearsed.design.observation.design)
    covariance = rehearsed.design.noise**2 * np.eye(len(design))
    state = learner.known.posterior
    mean_square = 0.0
    for c in range(5):
        for x in range(4):
            probability = WEIGHTS[c] * law[c, x]
            v = learner.known.basis.coordinates(PAIRS[c, x][None])[0]
            psi = rehearsed.plan.features.whitened(PAIRS[c, x][None])[0]
            psi /= max(1.0, float(np.linalg.norm(psi)))
            design += length * probability * np.outer(psi, v)
            square = float(v @ state.factor @ state.factor.T @ v)
            mean_square += probability * square
            covariance += (
                length * probability * (square + rehearsed.noise_variance) * np.outer(psi, psi)
            )
    np.testing.assert_allclose(rehearsed.design.observation.design, design, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        rehearsed.design.observation.covariance, covariance, rtol=1e-8, atol=1e-8
    )
    total = mean_square + rehearsed.noise_variance
    assert rehearsed.design.residual_variance == pytest.approx(total, rel=1e-9)
    # B_r is clip_scale predicted standard deviations of a residual.
    expected = 6.0 * sqrt(total)
    assert rehearsed.plan.value_bound == pytest.approx(expected, rel=1e-9)


# -- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.3, 1.0])
@pytest.mark.parametrize("clip_scale", [0.5, 1.5, 40.0])
def test_value_bound_is_never_above_the_reward_bound(bound: float, clip_scale: float) -> None:
    policy = make_policy(
        reward_bound=bound,
        norm_bound=None,
        budget=HUGE,
        clip_scale=clip_scale,
        growth=1.5,
        horizon=2000,
    )
    plans = []
    rng = np.random.default_rng(0)
    values = np.sin(5 * PAIRS.sum(axis=2)) * 0.7 * bound
    while policy.remaining:
        policy.act_many(CONTEXTS[:1])
        plans.append(policy.plan())
        play(policy, values, 0.3 * bound, rng)
        if policy.pending:  # the first decision of the epoch has no reward
            policy.close_epoch()
    assert len(plans) == len(policy.epochs) > 3
    for plan in plans:
        assert 0 < plan.value_bound <= bound
        assert (plan.baseline is not None) == (plan.value_bound < bound)
    assert any(plan.value_bound < bound for plan in plans) == (clip_scale < 10)


@pytest.fixture(scope="module")
def open_residual_policy() -> capri.Capri:
    """In its third epoch, encoding residuals, with room for many decisions."""
    policy = make_policy(
        first_epoch=200,
        growth=60.0,
        budget=HUGE,
        reward_bound=1.0,
        norm_bound=None,
    )
    rng = np.random.default_rng(2)
    values = 0.5 * np.sin(5 * PAIRS.sum(axis=2))
    for _ in range(2):
        play(policy, values, 0.1, rng)
    policy.act(CONTEXTS[0])
    assert policy.plan().baseline is not None, "premise: residuals are encoded"
    return policy


numbers = st.floats(allow_nan=False, allow_infinity=False)
contexts = st.one_of(
    st.sampled_from([float(row[0]) for row in CONTEXTS]),
    st.floats(-2.0, 3.0),
    st.floats(-1e100, 1e100),
)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(context=contexts, reward=st.one_of(st.floats(-1.5, 1.5), numbers))
def test_message_is_within_its_bound_for_any_reward_and_any_context(
    open_residual_policy: capri.Capri, context: float, reward: float
) -> None:
    """In exact integers: what one user adds to the secret sum."""
    policy = open_residual_policy
    before = open_epoch(policy).total
    policy.update(policy.act([context]), reward)
    added = [int(unit) for unit in open_epoch(policy).total - before]
    blocks = policy.plan().layout.blocks
    squares = {
        name: sum(unit * unit for unit in added[block.part]) for name, block in blocks.items()
    }
    for name in ("main", "moment", "projected"):
        assert squares[name] <= blocks[name].largest ** 2


def test_loudest_message_nearly_reaches_the_bound(open_residual_policy: capri.Capri) -> None:
    """The bound is not slack: for some pool context and reward it is met to one part in 100."""
    policy = open_residual_policy
    law = learner_of(policy).probabilities(CONTEXTS)
    psi = policy.plan().features.whitened(PAIRS.reshape(-1, PAIRS.shape[-1]))
    loudness = (law > 0) * np.linalg.norm(psi, axis=1).reshape(law.shape)
    loudest = CONTEXTS[loudness.max(axis=1).argmax()]
    largest = 0
    for context in np.repeat(loudest[None], 300, axis=0):  # its action has 1/64 at least
        for reward in (-1e9, 1e9):
            before = open_epoch(policy).total
            policy.update(policy.act(context), reward)
            added = (open_epoch(policy).total - before)[: policy.plan().features.rank]
            largest = max(largest, sum(int(unit) ** 2 for unit in added))
    assert sqrt(largest) > 0.99 * policy.plan().layout.blocks["main"].largest


# -- what is encoded is read back -----------------------------------------------------------------


def test_residual_encoding_is_added_back_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release without any error moves the belief by exactly the information times the truth."""
    policy = make_policy(budget=HUGE, clip_scale=9.0)
    learner = learner_of(policy)
    rng = np.random.default_rng(4)
    truth = 0.3 * rng.standard_normal(learner.known.basis.rank)
    play(policy, values_of(policy, truth), 0.2, rng)
    learner = learner_of(policy)
    before = learner.known.belief
    plan = learner.plan(2, 100, rng)
    design = learner.known.design
    assert design is not None
    assert plan.baseline is not None
    assert np.abs(design.observation.baseline).max() > 0.01
    observation, blocks = design.observation, plan.layout.blocks
    expected = observation.design @ (truth - observation.baseline)
    # Who came is another question: moments say nothing here.
    monkeypatch.setattr("capri.learners.reading.moments_of", lambda *given: None)
    vector = np.zeros(plan.dimension)
    vector[blocks["main"].part] = expected / plan.value_bound
    vector[blocks["tail"].part] = -plan.length  # nothing cut off
    learner.learn(Release.as_planned(plan, vector), rng)
    gained = learner.known.belief.information - before.information
    assert np.abs(gained).max() > 0
    np.testing.assert_allclose(
        learner.known.belief.vector - before.vector, gained @ truth, rtol=1e-9, atol=1e-7
    )


def test_baseline_subtracted_from_rewards_is_the_one_added_back(
    open_residual_policy: capri.Capri,
) -> None:
    """``k(w)^T weights`` on the devices is ``v(w)^T baseline`` in the learner."""
    policy = open_residual_policy
    learner, plan = learner_of(policy), policy.plan()
    assert plan.baseline is not None
    assert learner.known.design is not None
    flat = PAIRS.reshape(-1, 2)
    expected = learner.known.basis.coordinates(flat) @ learner.known.design.observation.baseline
    np.testing.assert_allclose(plan.baseline(flat), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(policy.estimate(CONTEXTS).ravel(), expected, rtol=1e-9, atol=1e-11)


def _narrow(problem: Any, options: Any, belief: Belief, variance: float, **played: Any) -> Encoding:
    """Half a deviation, once there is something to subtract."""
    if not belief.epochs:
        return Encoding(problem.reward_bound, 0.0, clips=False)
    return Encoding(0.4 * variance**0.5, 1.0, clips=True)


@pytest.mark.parametrize("clips", [False, True])
def test_release_without_noise_is_the_sum_of_encoded_residuals(
    clips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every coordinate, worked out by hand from who came, what was played and what they said:
    ``t psi``, ``2 t^2 - 1`` for the size of residuals and ``2 e - 1`` for what clipping cut off."""
    if clips:  # which nobody does who adds no noise
        monkeypatch.setattr("capri.learners.messages.bound_of", _narrow)
    rehearsed = frozen(monkeypatch, 1, budget=None)
    plan, design = rehearsed.plan, rehearsed.design
    assert plan.baseline is not None
    rng = np.random.default_rng(8)
    context, action, rewards = play(rehearsed.policy, 0.5 * np.cos(4 * PAIRS.sum(axis=2)), 0.4, rng)
    pairs = PAIRS[context, action]
    residuals = rewards - plan.baseline(pairs)
    bound = plan.value_bound
    clipped = np.clip(residuals, -bound, bound)
    assert (clipped != residuals).any() == clips, "premise: clipping or none"
    excess = (np.abs(residuals) - np.abs(clipped)) / tail_bound(10.0, bound)
    psi = plan.features.whitened(pairs)
    psi /= np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None]
    release = rehearsed.releases[-1]
    layout = plan.layout
    assert isinstance(layout, ProductLayout)
    tolerance = 100 * len(context) / layout.level
    np.testing.assert_allclose(
        rehearsed.decoded(release), clipped @ psi, rtol=0, atol=tolerance * bound
    )
    moment, tail, projected = (
        layout.part(release.vector, name) for name in ("moment", "tail", "projected")
    )
    assert moment == pytest.approx(np.sum(2 * (clipped / bound) ** 2 - 1), abs=tolerance)
    assert tail == pytest.approx(np.sum(2 * excess - 1), abs=tolerance)
    assert layout.projection is not None
    np.testing.assert_allclose(
        projected,
        layout.projection.directions @ half_vector(psi.T @ psi),
        rtol=0,
        atol=tolerance * layout.projection.norm,
    )
    assert design.main_share**2 + layout.tail_share**2 == pytest.approx(1.0)
    # What the learner reads from the moment coordinate: the mean square less the signal's part.
    measured, deviation = measured_square(release, design, 10.0)
    excess, deviated = measured_excess(release, design, 10.0) or (0.0, 0.0)
    lost = tail_bound(10.0, bound) + design.value_bound
    lost *= max(excess - deviated, 0.0)
    assert measured == pytest.approx(np.mean(clipped**2) + lost, rel=1e-4)
    assert deviation > 0


def test_moment_coordinate_measures_the_noise_of_rewards() -> None:
    """Noise of standard deviation 0.2 has variance 0.04. After two long private epochs the belief
    says so: it is read plus one standard error, so it may be up to 0.02 above, and below only by
    privacy noise, which moves it by less than 0.002 (6 deviations)."""
    policy = make_policy(first_epoch=20_000, budget=ONE, reward_bound=1.0, norm_bound=None)
    rng = np.random.default_rng(9)
    values = 0.5 * np.sin(5 * PAIRS.sum(axis=2))
    for _ in range(2):
        play(policy, values, 0.2, rng)
    found = learner_of(policy).known.belief.noise_variance(1.0)
    assert 0.038 < found < 0.06


# -- a plan is public -----------------------------------------------------------------------------


def same(first: Any, second: Any) -> bool:
    """Equal to the last bit, arrays and nested parts included."""
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if hasattr(first, "__dataclass_fields__"):
        return all(
            same(getattr(first, name), getattr(second, name)) for name in first.__dataclass_fields__
        )
    return bool(first == second)


def test_plan_is_a_function_of_releases_and_public_randomness_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs with other users, other rewards and other noise, but given the same releases."""
    honest, released = Gate.release, []

    def kept(gate: Gate, *given: Any, **named: Any) -> Any:
        released.append(honest(gate, *given, **named))
        return released[-1]

    def thrown_away(gate: Gate, *given: Any, **named: Any) -> Any:
        _, event = honest(gate, *given, **named)
        return released.pop()[0], event

    first, second = make_policy(growth=1.5), make_policy(growth=1.5)
    rng = np.random.default_rng(1)
    values = 0.5 * np.sin(5 * PAIRS.sum(axis=2))
    for _ in range(4):
        for policy in (first, second):
            policy.act(CONTEXTS[rng.integers(5)])
        assert same(first.plan(), second.plan())
        np.testing.assert_array_equal(
            learner_of(first).probabilities(CONTEXTS), learner_of(second).probabilities(CONTEXTS)
        )
        # The second run's users differ in everything; its own release is thrown away.
        decisions = second.act_many(CONTEXTS[rng.integers(5, size=second.remaining)])
        second.update_many(decisions, rng.uniform(-9, 9, size=len(decisions)))
        decisions = first.act_many(CONTEXTS[rng.integers(5, size=first.remaining)])
        first.update_many(decisions, values[0, decisions.action_index])
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "release", kept)
            first.close_epoch()
            patch.setattr(Gate, "release", thrown_away)
            second.close_epoch()
    np.testing.assert_array_equal(first.estimate(CONTEXTS), second.estimate(CONTEXTS))
    assert np.abs(first.estimate(CONTEXTS)).max() > 0


def test_premise_other_releases_give_other_plans() -> None:
    plans = []
    for level in (-0.5, 0.5):
        policy = make_policy()
        play(policy, np.full((5, 4), level), 0.1, np.random.default_rng(0))
        policy.act(CONTEXTS[0])
        plans.append(policy.plan())
    assert not same(plans[0], plans[1])


def test_first_epoch_is_long_enough_for_the_noise() -> None:
    """40 deviations of a cell's noise in the joint model, 10 squared ones on devices, 50 at least.

    Of somebody who comes 20 times, 40 of the Gaussian noise: there is less of it.
    """
    for epsilon in (0.1, 1.0, 10.0):
        for delta in (1e-5, 0.0):
            budget = capri.Budget(epsilon=epsilon, delta=delta)
            joint = make_policy(budget=budget, first_epoch=None)
            assert joint.remaining == max(50, int(40 * sqrt(8) / epsilon))
        budget = capri.Budget(epsilon=epsilon, delta=1e-5)
        often = make_policy(budget=budget, first_epoch=None, contributions_per_user=20)
        multiplier = noise_multiplier(budget, 32, sqrt(20))
        assert often.remaining == pytest.approx(max(50, 40 * multiplier), rel=0.01)
        devices = capri.LocalCapri(
            kernel=capri.kernels.RBF(lengthscale=0.4),
            actions=ACTIONS,
            contexts=capri.ContextPool(CONTEXTS),
            budget=capri.Budget(epsilon=epsilon),
        )
        assert devices.remaining == max(50, int(10 * sphere(epsilon, 32).deviation ** 2))
    assert make_policy(budget=None, first_epoch=None).remaining == 50


def test_what_all_actions_of_a_context_share_is_not_asked_about() -> None:
    """A coordinate of contexts alone drops out; one of actions keeps its variance in a context."""
    row, weights = np.array([0, 0, 1, 1, 2]), np.array([0.1, 0.3, 0.2, 0.1, 0.3])
    features = np.column_stack([np.array([5.0, 5.0, -2.0, -2.0, 7.0]), [1.0, 0.0, 1.0, 0.0, 1.0]])
    found = Support(features, weights, features, row).differences
    # 0.4 and 0.3 of users meet two actions, with shares 1/4 and 2/3 of the first one.
    expected = 0.4 * (1 / 4) * (3 / 4) + 0.3 * (2 / 3) * (1 / 3)
    np.testing.assert_allclose(found, [[0.0, 0.0], [0.0, expected]], atol=1e-12)


def test_where_nothing_is_left_to_decide_everything_counts() -> None:
    """One action a context: messages are compared by the estimate itself."""
    features, weights = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([0.25, 0.75])
    found = Support(features, weights, features, np.arange(2)).differences
    np.testing.assert_allclose(found, features.T @ (weights[:, None] * features))
