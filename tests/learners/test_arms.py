"""Many unrelated arms by blocks: the same numbers as dense algebra, and a whole policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import BUDGET, records
from capri.arrays import FloatArray
from capri.epoch.plan import Release
from capri.epoch.storage import plan_from_state, plan_state
from capri.family import ArmFeatures, Candidates, arms_of
from capri.kernels import Auto
from capri.learners.arm_prior import ArmPosterior, ArmPrior, solve
from capri.learners.arms_model import ArmsModel
from capri.learners.belief import Observation
from capri.learners.dense_model import DenseModel
from capri.learners.draws import Outlook, number_of_draws, resolved, thompson_draws
from capri.learners.fit import Innovation
from capri.learners.messages import remaining
from capri.learners.overdispersion import Overdispersion
from capri.learners.reading import read_release
from capri.spaces import ContextPool, FixedActions

ARMS = 12
CONTEXTS = np.random.default_rng(5).random((30, 2))


every_reward = pytest.mark.parametrize(
    "terms",
    [
        {},
        {"reward_wait": 90},
        {"missing_reward": "as-estimated"},
        {"reward_wait": 90, "missing_reward": "as-estimated"},
    ],
    ids=["at once", "late", "as estimated", "late, as estimated"],
)


def policy(**changes: Any) -> capri.Capri:
    """Twelve unrelated arms, short epochs."""
    settings: dict[str, Any] = {
        "actions": ARMS,
        "contexts": ContextPool(CONTEXTS),
        "budget": BUDGET,
        "first_epoch": 40,
        "simulation_seed": 3,
    }
    return capri.Capri(**(settings | changes))


def play(one: capri.Capri, decisions: int, seed: int) -> None:
    """Rewards by arm and context, the same for the same seed."""
    generator = np.random.default_rng(seed)
    while decisions > 0:
        count = min(decisions, one.remaining)
        rows = CONTEXTS[generator.integers(len(CONTEXTS), size=count)]
        made = one.act_many(rows)
        numbers = np.array([int(number) for number in made.action_index])
        rewards = 0.6 * np.sin(numbers) + 0.3 * rows[:, 0] * np.cos(numbers)
        one.update_many(made, rewards + generator.uniform(-0.1, 0.1, count))
        if one.remaining == 0:
            one.close_epoch()
        decisions -= count


def blocks(seed: int, arms: int = 5, width: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Information and vector of every arm; the last was never played."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(arms, width, 3))
    root[-1] = 0.0
    information = root @ root.transpose(0, 2, 1)
    return information, np.einsum("aij,aj->ai", root, generator.normal(size=(arms, 3)) * 2)


def small_prior(width: int = 4) -> ArmPrior:
    """Two candidates on a constant and three features."""
    covariances = np.zeros((2, width, width))
    covariances[0, 1:, 1:] = np.diag([0.7, 0.2, 0.1])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    covariances[1, 1:, 1:] = turn @ np.diag([0.5, 0.3, 0.2]) @ turn.T
    return ArmPrior(Candidates(covariances, np.array([0.6, 0.4]), ("one", "two")), 1.0)


def test_blocks_are_the_dense_posterior() -> None:
    """Mean, covariance and evidence of all arms at once, with the prior written out."""
    information, vector = blocks(1)
    arms, width = vector.shape
    common, own = small_prior().covariances(np.random.default_rng(2).normal(size=6))
    found = solve(information, vector, common, own)
    state = ArmPosterior(mean=found.mean, own=found.own, carried=found.carried, weights=np.zeros(6))
    prior = np.kron(np.ones((arms, arms)), common) + np.kron(np.eye(arms), own)
    whole = np.zeros_like(prior)
    for arm in range(arms):
        part = slice(arm * width, (arm + 1) * width)
        whole[part, part] = information[arm]
    covariance = np.linalg.inv(np.linalg.inv(prior) + whole)
    mean = covariance @ vector.ravel()
    np.testing.assert_allclose(found.mean.ravel(), mean, rtol=1e-7, atol=1e-10)
    for arm in range(arms):
        part = slice(arm * width, (arm + 1) * width)
        np.testing.assert_allclose(
            state.covariance[arm], covariance[part, part], rtol=1e-6, atol=1e-10
        )
    sign, logarithm = np.linalg.slogdet(np.eye(len(prior)) + prior @ whole)
    assert sign == 1
    assert found.evidence == pytest.approx(0.5 * vector.ravel() @ mean - 0.5 * logarithm, rel=1e-8)


def test_gradient_of_the_evidence_is_that_of_differences() -> None:
    """Central differences in every weight."""
    prior, known = small_prior(), blocks(4)
    at = prior.expected + np.random.default_rng(3).normal(size=6)
    _, slope = prior.loss(at, *known)
    for place in range(len(at)):
        step = np.zeros_like(at)
        step[place] = 1e-5
        above, below = prior.loss(at + step, *known)[0], prior.loss(at - step, *known)[0]
        assert slope[place] == pytest.approx((above - below) / 2e-5, rel=1e-5, abs=1e-7)


def test_evidence_shrinks_interactions_that_are_not_there() -> None:
    """Arms that differ by their constant alone: context-free play is within the family."""
    generator = np.random.default_rng(6)
    truth = np.zeros((60, 4))
    truth[:, 0] = generator.normal(0, 0.5, 60)
    information = np.broadcast_to(400.0 * np.eye(4), (60, 4, 4)).copy()
    vector = 400.0 * truth + generator.normal(0, 20.0, truth.shape)
    prior = small_prior()
    belief = capri.learners.belief.Belief(information=information, vector=vector, epochs=1)
    _, own = prior.covariances(prior.infer(belief).weights)
    assert np.diag(own)[1:].max() < 0.05 * own[0, 0]


def features(seed: int = 0) -> ArmFeatures:
    """Shapes of different sizes, one arm without any."""
    generator = np.random.default_rng(seed)
    basis, _ = arms_of(
        ContextPool(CONTEXTS), FixedActions(np.eye(ARMS)), width=9, generator=generator
    )
    sizes = generator.integers(1, 5, size=ARMS)
    sizes[3] = 0
    shapes = generator.normal(size=(ARMS, basis.width, 4))
    shapes *= np.arange(4) < sizes[:, None, None]
    return ArmFeatures(basis, shapes, sizes.astype(np.int64), 0.5)


def test_features_are_products_with_one_sparse_matrix() -> None:
    """And a row does not depend on the rows beside it, to the bit."""
    made, actions = features(), FixedActions(np.eye(ARMS))
    pairs = actions.pairs(CONTEXTS).reshape(-1, 2 + ARMS)
    psi = made.whitened(pairs)
    np.testing.assert_allclose(psi, made.kernel_rows(pairs) @ made.to_whitened, atol=1e-12)
    assert not psi[3::ARMS].any()
    some = np.random.default_rng(1).permutation(len(pairs))[:37]
    assert np.array_equal(made.whitened(pairs[some]), psi[some])
    for row in some[:8]:
        assert np.array_equal(made.whitened(pairs[row : row + 1])[0], psi[row])
    draws = np.random.default_rng(2).normal(size=(made.basis.rank, 3))
    values = made.basis.values(actions.pairs(CONTEXTS), draws)
    np.testing.assert_allclose(
        values.reshape(-1, 3), made.basis.rows(pairs) @ draws, rtol=1e-9, atol=1e-10
    )
    assert np.array_equal(made.basis.values(actions.pairs(CONTEXTS[4:5]), draws)[0], values[4])


def test_draws_explore_what_an_epoch_can_resolve() -> None:
    """Variances lie below what is unknown, grow with plays, and vanish under noise."""
    values = np.array([[0.3, 0.1, 0.01], [0.02, 0.01, 0.0]])
    outlook = Outlook(length=1000.0, noise=5.0, variance=0.1)
    few, many = (resolved(values, plays, outlook) for plays in (5.0, 500.0))
    assert (many <= values).all()
    assert (few.sum(axis=1) < many.sum(axis=1)).all()
    assert resolved(values, 500.0, Outlook(length=1.0, noise=1e6, variance=0.1)).max() < 1e-6
    state = ArmPosterior(
        mean=np.zeros((2, 3)),
        own=np.array([np.diag(row) for row in values]),
        carried=np.ones((2, 3, 1)),
        weights=np.zeros(2),
    )
    draws = thompson_draws(state, outlook, 4000, 1.0, np.random.default_rng(0))
    difference = (draws[:3] - draws[3:]).var(axis=1)  # what is common cancels
    expected = resolved(values, 0.25, outlook).sum(axis=0)
    np.testing.assert_allclose(difference, expected, rtol=0.15, atol=1e-9)
    private = Outlook(length=20_000, noise=5.0, variance=0.01)
    first, third, last = (number_of_draws(epochs, 64, private) for epochs in (0, 3, 1000))
    assert first < third <= last == 32
    assert number_of_draws(1000, 1, private) == 1
    # Without noise a draw needs few plays: there are as many as the epoch has room for.
    assert number_of_draws(1000, 64, replace(private, noise=0.0)) == 400
    assert number_of_draws(0, 64, replace(private, noise=0.0, length=50)) == first


def test_blocks_are_chosen_for_many_unrelated_arms_alone() -> None:
    """And max_rank plays no role there."""
    chosen = policy()
    assert isinstance(chosen._learning.learner.known.model, ArmsModel)
    assert chosen._learning.learner.known.basis.rank > 150
    for changes in (
        {"actions": 8},
        {"actions": np.linspace(0, 1, ARMS)[:, None]},
        {"kernel": capri.kernels.RBF(lengthscale=0.5)},
        {"blocks": False},
    ):
        assert isinstance(policy(**changes)._learning.learner.known.model, DenseModel)
    with pytest.raises(capri.ConfigurationError, match="blocks=True needs"):
        policy(actions=8, blocks=True)
    one, other = policy(max_rank=5), policy()
    for each in (one, other):
        play(each, 150, seed=1)
    assert records(one) == records(other)


def test_it_learns_which_arm_is_good() -> None:
    """Without privacy a few thousand decisions tell the best arm of almost every context."""
    one = policy(budget=None)
    play(one, 4000, seed=2)
    numbers = np.arange(ARMS)
    truth = 0.6 * np.sin(numbers) + 0.3 * CONTEXTS[:, :1] * np.cos(numbers)
    best = one.estimate(CONTEXTS).argmax(axis=1)
    lost = truth.max(axis=1) - truth[np.arange(len(truth)), best]
    assert lost.mean() < 0.15 * (truth.max(axis=1) - truth.mean(axis=1)).mean()
    assert 0.005 < one._learning.learner.known.belief.noise_variance(1.0) ** 0.5 < 0.12


@every_reward
@pytest.mark.parametrize("decisions", [40, 115])
def test_saved_runs_go_on_bit_for_bit(
    decisions: int, terms: dict[str, Any], tmp_path: Path
) -> None:
    """Between epochs and within one, and with several of them under way."""
    one = policy(**terms)
    play(one, decisions, seed=4)
    one.act_many(CONTEXTS[:5])
    one.save(tmp_path / "arms.capri")
    other = capri.Capri.load(tmp_path / "arms.capri")
    assert isinstance(other._learning.learner.known.model, ArmsModel)
    for each in (one, other):
        play(each, 300, seed=5)
    assert records(one) == records(other)
    assert np.array_equal(one.estimate(CONTEXTS), other.estimate(CONTEXTS))


def test_late_rewards_are_learnt_from() -> None:
    """Rewards that come 150 decisions late, with several epochs under way at once."""
    one, generator = policy(budget=None, reward_wait=200), np.random.default_rng(2)
    numbers, late, most = np.arange(ARMS), [], 0
    truth = 0.6 * np.sin(numbers) + 0.3 * CONTEXTS[:, :1] * np.cos(numbers)
    for _ in range(160):
        rows = generator.integers(len(CONTEXTS), size=min(25, one.remaining))
        made = one.act_many(CONTEXTS[rows])
        chosen = np.asarray(made.action_index)
        late.append((made, truth[rows, chosen] + generator.uniform(-0.1, 0.1, len(rows))))
        if len(late) > 6:
            one.update_many(*late.pop(0))
        most = max(most, len(one._learning.learner.known.pending))
    assert isinstance(one._learning.learner.known.model, ArmsModel)
    assert most >= 3
    best = one.estimate(CONTEXTS).argmax(axis=1)
    lost = truth.max(axis=1) - truth[np.arange(len(truth)), best]
    assert lost.mean() < 0.15 * (truth.max(axis=1) - truth.mean(axis=1)).mean()


@pytest.mark.parametrize("budget", [None, capri.Budget(epsilon=2.0, delta=1e-5)])
def test_a_missing_reward_does_not_pass_for_a_reward_of_zero(budget: capri.Budget | None) -> None:
    """Every third arm answers three times as often as the others: they are not taken for bad."""
    numbers, generator = np.arange(ARMS), np.random.default_rng(2)
    truth = 0.3 + 0.5 * np.sin(numbers) + 0.3 * CONTEXTS[:, :1] * np.cos(numbers)
    rate = np.where(numbers % 3 == 0, 0.9, 0.3)
    lost = []
    for missing in (0.0, "as-estimated"):
        one = policy(budget=budget, first_epoch=200, missing_reward=missing)
        while len(one.epochs) < 14:
            rows = generator.integers(len(CONTEXTS), size=one.remaining)
            made = one.act_many(CONTEXTS[rows])
            chosen = np.asarray(made.action_index)
            answers = generator.random(len(rows)) < rate[chosen]
            came = [decision for decision, came in zip(made, answers, strict=True) if came]
            noise = generator.uniform(-0.1, 0.1, len(rows))
            one.update_many(came, (truth[rows, chosen] + noise)[answers])
            one.close_epoch()
        best = one.estimate(CONTEXTS).argmax(axis=1)
        away = truth.max(axis=1) - truth[np.arange(len(truth)), best]
        lost.append(away.mean() / (truth.max(axis=1) - truth.mean(axis=1)).mean())
    assert isinstance(one._learning.learner.known.model, ArmsModel)
    assert one.epochs[-1].response_rate is not None
    assert lost[1] < 0.15 < 0.4 < lost[0]


def test_epochs_under_way_try_other_arms() -> None:
    """Until a release comes, the next epoch has draws of its own, of what will still be unknown."""
    one = policy(reward_wait=500, actions=40)
    laws = []
    for _ in range(3):
        one.act_many(CONTEXTS[np.arange(one.remaining) % len(CONTEXTS)])
        one.act(CONTEXTS[0])
        laws.append(one.probabilities(CONTEXTS))
    assert not one.epochs
    for first, second in ((0, 1), (1, 2)):
        assert not np.array_equal(laws[first], laws[second])


def test_what_data_under_way_will_settle_is_left_out() -> None:
    """``F (I + F^T J F)^-1/2`` is a root of ``(P^-1 + J)^-1``, arm by arm."""
    information, _ = blocks(3)
    root = np.random.default_rng(4).normal(size=information.shape)
    found = remaining(root, information)
    for each, factor, told in zip(found, root, information, strict=True):
        expected = np.linalg.inv(np.linalg.inv(factor @ factor.T) + told)
        np.testing.assert_allclose(each @ each.T, expected, rtol=1e-6, atol=1e-9)
    assert remaining(root, None) is root


def test_a_model_that_does_not_fit_is_said() -> None:
    """Innovations of blocks add up; where they are far too large, a notice says so."""
    one = policy()
    play(one, 400, seed=4)
    learner = one._learning.learner
    assert learner.known.fit.releases > 0
    seen = Observation(design=np.eye(3), covariance=np.eye(3), baseline=np.zeros(3), participants=9)
    width = learner.known.posterior.mean.shape[1]
    seen = replace(seen, design=np.eye(3, width), baseline=np.zeros(width))
    far = [(arm, seen, np.full(3, 50.0)) for arm in range(2)]
    newest = Innovation.of(far, learner.known.posterior)
    alone = [Innovation.of([each], learner.known.posterior) for each in far]
    assert newest.chi_square == pytest.approx(sum(each.chi_square for each in alone))
    assert newest.degrees == 6
    _, notices = learner._watch.after(
        learner.known.fit,
        far,
        before=learner.known.belief,
        expected=learner.known.posterior,
        belief=learner.known.belief,
        state=learner.known.posterior,
        overdispersion=learner.known.overdispersion,
    )
    assert "misfit" in [notice.kind for notice in notices]


def test_an_epoch_that_ended_early_is_read_by_its_real_decisions() -> None:
    """Half the decisions: a release that is read as planned would halve every estimate."""
    one = policy(budget=None, first_epoch=4000)
    play(one, 2000, seed=9)
    one.close_epoch(early=True)
    assert one.epochs[0].length == 2000
    learner = one._learning.learner
    law = learner.known.belief.information[:, 0, 0] > 1.0  # arms that were played
    truth = 0.6 * np.sin(np.arange(ARMS)) + 0.15 * np.cos(np.arange(ARMS))
    mean = one.estimate(CONTEXTS).mean(axis=0)
    assert law.sum() >= 3
    slope = float(truth[law] @ mean[law] / (truth[law] @ truth[law]))
    assert 0.8 < slope < 1.2


def test_plans_survive_storage() -> None:
    """Shapes, sizes and the baseline, to the bit."""
    one = policy(budget=None)
    play(one, 600, seed=6)
    one.act_many(CONTEXTS[:1])
    plan = one.plan()
    again = plan_from_state(*plan_state(plan), Auto())
    pairs = FixedActions(np.eye(ARMS)).pairs(CONTEXTS).reshape(-1, 2 + ARMS)
    assert np.array_equal(again.features.whitened(pairs), plan.features.whitened(pairs))
    assert plan.baseline is not None
    assert again.baseline is not None
    assert np.array_equal(again.baseline(pairs), plan.baseline(pairs))


def test_replaced_arms_keep_what_was_learnt_by_their_names(tmp_path: Path) -> None:
    """An old arm keeps its block, a new one starts at what is common; features are refused."""
    names = [f"arm {number}" for number in range(ARMS)]
    one = policy(actions=names)
    play(one, 600, seed=7)
    one.close_epoch(early=True)
    before = one.estimate(CONTEXTS)
    one.replace_actions([*names[2:], "new", "newer"])
    one.act_many(CONTEXTS[:2])  # the next epoch is planned with them
    after = one.estimate(CONTEXTS)
    np.testing.assert_allclose(after[:, : ARMS - 2], before[:, 2:], atol=1e-9)
    np.testing.assert_allclose(after[:, -1], after[:, -2], atol=1e-9)
    play(one, 200, seed=8)
    one.save(tmp_path / "replaced.capri")
    other = capri.Capri.load(tmp_path / "replaced.capri")
    assert np.array_equal(one.estimate(CONTEXTS), other.estimate(CONTEXTS))
    with pytest.raises(capri.ConfigurationError, match="names or numbers"):
        one.replace_actions(np.random.default_rng(0).random((10, ARMS + 2)))


@every_reward
def test_on_a_store_it_plays_as_in_memory(terms: dict[str, Any], tmp_path: Path) -> None:
    """The same records for the same seed, also where another process goes on."""
    address = f"sqlite:///{tmp_path / 'arms.db'}"
    memory, stored = policy(**terms), policy(**terms, store=address)
    for each in (memory, stored):
        play(each, 150, seed=10)
    again = policy(**terms, store=address)
    for each in (memory, again):
        play(each, 100, seed=11)
    assert records(memory) == records(again)
    assert len(again.epochs) >= (2 if "reward_wait" in terms else 3)
    assert np.array_equal(memory.estimate(CONTEXTS), again.estimate(CONTEXTS))


def test_an_epoch_of_two_segments_is_read_by_both() -> None:
    """With laws, baselines and bounds of their own, against dense algebra over all decisions."""
    one = policy(budget=None)
    play(one, 600, seed=12)
    one.act_many(CONTEXTS[:1])
    learner, plan = one._learning.learner, one.plan()
    assert isinstance(learner.known.model, ArmsModel)
    segment = learner.turn(np.random.default_rng(0))
    assert segment is not None
    assert segment.number == 2
    first, second = (learner.known.pending[plan.epoch][place] for place in (0, 1))
    second = replace(second, value_bound=0.5 * first.value_bound)
    learner.known.pending[plan.epoch] = (first, second)
    counts = (30, 50)
    release = Release(
        plan=plan,
        vector=np.zeros(plan.dimension),
        event=None,
        segments=(plan.opening, segment),
        counts=counts,
    )
    design = read_release(learner.known, release, np.random.default_rng(0)).design
    pairs = FixedActions(np.eye(ARMS)).pairs(CONTEXTS).reshape(-1, 2 + ARMS)
    v, psi = learner.known.basis.rows(pairs), plan.features.whitened(pairs)
    psi /= np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None]
    law = first.behaviour.probabilities(CONTEXTS).ravel() / len(CONTEXTS)
    matrix = (psi * law[:, None]).T @ v * (counts[0] + 2 * counts[1])
    for arm, (start, size) in enumerate(
        zip(plan.features.starts, plan.features.sizes, strict=True)
    ):
        width = learner.known.basis.width
        expected = matrix[start : start + size, arm * width : (arm + 1) * width]
        np.testing.assert_allclose(design.observations[arm].design, expected, atol=1e-9)
    assert design.answers == pytest.approx(sum(counts))


def test_a_crowd_of_blocks_is_the_sum_of_its_blocks() -> None:
    rng = np.random.default_rng(3)
    told: list[tuple[int, Observation, FloatArray]] = []
    for arm in (0, 2):
        sampling = np.diag(rng.random(4))
        observation = Observation(
            design=rng.normal(size=(4, 3)),
            covariance=np.eye(4) + sampling,
            baseline=rng.normal(size=3),
            sampling=sampling,
            participants=100,
        )
        told.append((arm, observation, rng.normal(size=4)))
    found = Overdispersion.empty(3, 3).observe(told)
    alone = [Overdispersion.empty(3).observe([(..., each, vector)]) for _, each, vector in told]
    np.testing.assert_allclose(
        found.informations[:, [0, 2]].swapaxes(0, 1), [a.informations for a in alone]
    )
    np.testing.assert_allclose(found.vectors[:, [0, 2]].swapaxes(0, 1), [a.vectors for a in alone])
    np.testing.assert_allclose(found.constants, sum(a.constants for a in alone))
    assert not found.informations[:, 1].any()


@pytest.mark.slow
def test_a_pool_that_is_a_small_sample_is_noticed_and_does_no_harm() -> None:
    """40 public rows in eight columns stand for 600 users. Taken at its word such a pool makes the
    belief too sure: 0.097 of the regret of uniform play where 0.068 is possible. Users are like
    nobody in it, or few people seem to take turns; the last bit of a number decides how a single
    run goes, so regret is that of three."""
    rng = np.random.default_rng(5)
    users, public = rng.normal(size=(600, 8)), rng.normal(size=(40, 8))
    means = users @ rng.normal(size=(8, 10)) / 4
    world = capri.environments.TabularEnvironment(
        name="sample",
        contexts=users,
        weights=np.full(600, 1 / 600),
        actions=np.eye(10),
        means=np.clip(means, -0.9, 0.9),
        reward_bound=1.0,
        noise=0.1,
    )
    late, noticed = [], []
    for seed in (1, 2, 3):
        policy = capri.Capri(
            actions=10,
            contexts=capri.ContextPool(public),
            budget=None,
            reward_bound=1.0,
            simulation_seed=seed,
        )
        with pytest.warns(capri.KernelWarning):
            result = capri.simulate(policy, world, 6_000, seed=seed + 1)
        late.append((result.regret[-1] - result.regret[2_999]) / 3_000)
        kinds = {notice.kind for notice in policy.notices}
        noticed.append(bool(kinds & {"people", "pool"}))
    assert np.mean(late) < 0.085 * world.uniform_regret()
    assert all(noticed)
