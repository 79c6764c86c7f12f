"""What every policy must do, whatever it learns: to add a policy, add a line to ``MAKERS``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import capri
from capri import (
    DataError,
    HorizonError,
    RewardIgnoredWarning,
    RewardStatus,
    ShapeError,
    VisitStatus,
)
from capri.environments import random_rkhs
from capri.simulation import ClosesEpochs, Policy, UniformPlay

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
ENVIRONMENT = random_rkhs(KERNEL, contexts=8, actions=6, seed=3)
HORIZON = 400


def capri_policy(**changes: Any) -> Callable[[int], capri.Capri]:
    """A maker: a seed in, a policy for the environment out."""

    def make(seed: int) -> capri.Capri:
        settings: dict[str, Any] = {
            "kernel": KERNEL,
            "actions": ENVIRONMENT.actions,
            "contexts": capri.ContextPool(ENVIRONMENT.contexts, weights=ENVIRONMENT.weights),
            "budget": capri.Budget(epsilon=2.0, delta=1e-5),
            "horizon": HORIZON,
            "simulation_seed": seed,
        }
        return capri.Capri(**(settings | changes))

    return make


PRACTICAL = {"first_epoch": 70}
SAMPLER = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
MAKERS: dict[str, Callable[[int], Any]] = {
    "practical-joint": capri_policy(**PRACTICAL),
    "practical-no-privacy": capri_policy(**PRACTICAL, budget=None),
    "practical-whole-rewards": capri_policy(**PRACTICAL, residual=False),
    "practical-sampler": capri_policy(**PRACTICAL, contexts=SAMPLER),
    "paper-joint": capri_policy(preset="paper"),
    "paper-local": capri_policy(preset="paper", model="local"),
    "paper-no-privacy": capri_policy(preset="paper", budget=None),
    "uniform": lambda seed: UniformPlay(
        actions=ENVIRONMENT.actions, horizon=HORIZON, simulation_seed=seed
    ),
}
LEARNERS = [name for name in MAKERS if name != "uniform"]
every_policy = pytest.mark.parametrize("name", MAKERS)
every_learner = pytest.mark.parametrize("name", LEARNERS)


def draw(seed: int, count: int) -> np.ndarray:
    return ENVIRONMENT.draw_contexts(np.random.default_rng([seed, 1]), count)


def close_full_epoch(policy: Policy) -> None:
    """As after the last decision of a run; a policy that learns nothing has nothing to close."""
    if isinstance(policy, ClosesEpochs):
        policy.close_full_epoch()


def play_epoch(policy: Policy, seed: int = 0) -> capri.Decisions:
    """All that may be asked for at once; then the epoch is closed."""
    context = draw(seed, policy.remaining)
    decisions = policy.act_many(ENVIRONMENT.contexts[context])
    rng = np.random.default_rng([seed, 2])
    policy.update_many(decisions, ENVIRONMENT.rewards(rng, context, decisions.action_index))
    close_full_epoch(policy)
    return decisions


def without_clock(policy: Policy) -> list[dict[str, Any]]:
    return [record.to_dict() | {"seconds": 0.0} for record in policy.epochs]


# -- deciding -------------------------------------------------------------------------------------


@every_policy
def test_remaining_counts_down_to_the_horizon(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    played = 0
    while policy.remaining:
        before = policy.remaining
        assert isinstance(before, int)
        assert 0 < before <= HORIZON - played
        decisions = policy.act_many(ENVIRONMENT.contexts[draw(played, 1)])
        assert len(decisions) == 1
        played += 1
        policy.update_many(decisions, [0.1])
        if before > 1:
            assert policy.remaining == before - 1
        played += len(play_epoch(policy, played)) if policy.remaining else 0
    assert played == HORIZON


@every_policy
def test_asking_beyond_what_remains_is_refused_and_changes_nothing(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    left = policy.remaining
    with pytest.raises(HorizonError, match=f"{left + 1} decisions were asked for, {left} "):
        policy.act_many(ENVIRONMENT.contexts[draw(0, left + 1)])
    assert policy.remaining == left
    while policy.remaining:
        play_epoch(policy)
    with pytest.raises(HorizonError):
        policy.act_many(ENVIRONMENT.contexts[:1])


@every_policy
def test_no_contexts_give_no_decisions(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    left = policy.remaining
    decisions = policy.act_many(np.empty((0, 1)))
    assert len(decisions) == 0
    assert decisions.action.shape == (0, 1)
    assert policy.remaining == left


@every_policy
def test_decisions_are_arrays_of_one_row_per_context(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    decisions = policy.act_many(ENVIRONMENT.contexts[draw(0, 20)])
    assert decisions.id.shape == decisions.action_index.shape == decisions.propensity.shape == (20,)
    assert decisions.action_index.dtype == np.int64
    assert ((decisions.action_index >= 0) & (decisions.action_index < 6)).all()
    np.testing.assert_array_equal(decisions.action, ENVIRONMENT.actions[decisions.action_index])
    single = decisions[7]
    assert (single.id, single.action_index) == (decisions.id[7], decisions.action_index[7])
    assert single.propensity == decisions.propensity[7]
    assert [each.id for each in decisions] == decisions.id.tolist()


@every_policy
def test_ids_are_unique_over_the_whole_run(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    ids = []
    while policy.remaining:
        ids.append(play_epoch(policy, seed=len(ids)).id)
    assert len(np.unique(np.concatenate(ids))) == HORIZON


def law_in_play(policy: Any, context: np.ndarray) -> np.ndarray:
    """The probabilities of the six actions in the open epoch."""
    if isinstance(policy, UniformPlay):
        return np.full(6, 1 / 6)
    law: np.ndarray = policy._learning.learner.probabilities(context[None])[0]
    return law


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "practical-sampler" else name
        for name in MAKERS
    ],
)
def test_propensities_are_positive_and_the_frequencies_of_the_actions(name: str) -> None:
    """Twelve policies in their third epoch (without privacy: first), one context: each propensity
    is the law's, and how often an action is played over all of them is the sum of its
    probabilities. The standardised squares of 6 actions are compared with chi-squared of 6 degrees
    at 1e-6, conservatively: one degree less would do, as the counts sum to the number of
    decisions."""
    counts, means, variances = np.zeros(6), np.zeros(6), np.zeros(6)
    before = 0 if name == "practical-no-privacy" else 2  # one epoch settles all without noise
    for seed in range(12):
        policy: Policy = MAKERS[name](seed)
        for epoch in range(before):
            if policy.remaining < HORIZON:
                play_epoch(policy, seed=epoch)
        count = min(150, policy.remaining)
        decisions = policy.act_many(np.repeat(ENVIRONMENT.contexts[:1], count, axis=0))
        law = law_in_play(policy, ENVIRONMENT.contexts[0])
        assert (decisions.propensity > 0).all()
        np.testing.assert_allclose(decisions.propensity, law[decisions.action_index], rtol=1e-12)
        counts += np.bincount(decisions.action_index, minlength=6)
        means += count * law
        variances += count * law * (1 - law)
    used = variances > 1e-9
    assert used.sum() > 1, "premise: there is something to draw"
    statistic = np.sum((counts - means)[used] ** 2 / variances[used])
    assert statistic < chi2(6).isf(1e-6)
    np.testing.assert_allclose(counts[~used], means[~used], atol=1e-6)


@every_learner
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, None, 1e101, 10**400], ids=str)
def test_context_that_is_no_number_is_served_and_moves_nobody(name: str, value: Any) -> None:
    """Its visit takes a slot, plays every action alike and counts as if it had contributed zero;
    everybody after it gets the number, the epoch and the action they would have had."""
    policy, twin = MAKERS[name](0), MAKERS[name](0)
    bad = policy.act_many([[value], ENVIRONMENT.contexts[1], [value]])
    good = twin.act_many([ENVIRONMENT.contexts[0], ENVIRONMENT.contexts[1], [0.5]])
    assert bad.status.tolist() == [VisitStatus.INVALID, VisitStatus.SERVED, VisitStatus.INVALID]
    assert bad.propensity[[0, 2]].tolist() == [1 / 6] * 2
    assert bad.number.tolist() == good.number.tolist()
    assert (bad.action_index[1], bad.propensity[1]) == (good.action_index[1], good.propensity[1])
    with pytest.warns(RewardIgnoredWarning, match="uncounted"):
        codes = policy.update_many(bad, np.ones(3))
    twin.update_many(good, np.ones(3))
    assert codes.tolist() == [RewardStatus.UNCOUNTED, RewardStatus.ACCEPTED, RewardStatus.UNCOUNTED]
    assert policy.remaining == twin.remaining
    rows = ENVIRONMENT.contexts[draw(1, policy.remaining)]
    later, same = policy.act_many(rows), twin.act_many(rows)
    assert later.id.tolist() == same.id.tolist()
    assert later.epoch == same.epoch
    np.testing.assert_array_equal(later.action_index, same.action_index)


@every_policy
def test_context_of_another_shape_is_refused_and_changes_nothing(name: str) -> None:
    """Shapes are public: a block of contexts is refused before anything happens."""
    policy, twin = MAKERS[name](0), MAKERS[name](0)
    with pytest.raises(DataError):
        policy.act_many(np.zeros((1, 1, 1)))
    assert policy.remaining == twin.remaining
    rows = ENVIRONMENT.contexts[draw(1, 20)]
    np.testing.assert_array_equal(
        policy.act_many(rows).action_index, twin.act_many(rows).action_index
    )


# -- rewards --------------------------------------------------------------------------------------


@every_learner
def test_rewards_are_accepted_once(name: str) -> None:
    policy = MAKERS[name](0)
    decisions = policy.act_many(ENVIRONMENT.contexts[draw(0, 10)])
    codes = policy.update_many(decisions, np.linspace(-1, 1, 10))
    assert codes.tolist() == [RewardStatus.ACCEPTED] * 10
    with pytest.warns(RewardIgnoredWarning, match="duplicate"):
        codes = policy.update_many(decisions, np.ones(10))
    assert codes.tolist() == [RewardStatus.DUPLICATE] * 10


@every_learner
def test_late_duplicate_and_unknown_rewards_are_named_and_change_nothing(name: str) -> None:
    policy, twin = MAKERS[name](0), MAKERS[name](0)
    for each in (policy, twin):
        late = play_epoch(each, seed=1)[0]
        current = each.act_many(ENVIRONMENT.contexts[draw(2, 5)])
        each.update_many([current[0]], [0.5])
    unknown = "AAAAAAAAAAAAAAAAAAAA"
    with pytest.warns(RewardIgnoredWarning, match="duplicate and late and unknown"):
        codes = policy.update_many([late, current[0], unknown], [1.0, -1.0, 1.0])
    assert codes.tolist() == [RewardStatus.LATE, RewardStatus.DUPLICATE, RewardStatus.UNKNOWN]
    for each in (policy, twin):
        each.update_many(list(current)[1:], [0.1, 0.2, 0.3, 0.4])
        while each.remaining:
            play_epoch(each, seed=each.remaining)
    np.testing.assert_array_equal(
        policy.estimate(ENVIRONMENT.contexts), twin.estimate(ENVIRONMENT.contexts)
    )
    assert without_clock(policy) == without_clock(twin)


@every_learner
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, None, 10**400], ids=str)
def test_reward_that_is_no_number_is_missing_and_may_be_given_again(name: str, reward: Any) -> None:
    """Row by row: the others of its batch count."""
    policy = MAKERS[name](0)
    decisions = policy.act_many(ENVIRONMENT.contexts[:3])
    with pytest.warns(RewardIgnoredWarning, match="invalid"):
        codes = policy.update_many(decisions, [0.5, reward, 0.5])
    assert codes.tolist() == [RewardStatus.ACCEPTED, RewardStatus.INVALID, RewardStatus.ACCEPTED]
    assert policy.update(decisions[1], 0.5) is RewardStatus.ACCEPTED


@every_learner
def test_reward_of_another_type_is_missing_and_may_be_given_again(name: str) -> None:
    """Types are private: a text is a reward that is missing."""
    policy = MAKERS[name](0)
    decision = policy.act(ENVIRONMENT.contexts[0])
    with pytest.warns(RewardIgnoredWarning, match="invalid"):
        assert policy.update(decision, "1") is RewardStatus.INVALID
    assert policy.update(decision, 0.5) is RewardStatus.ACCEPTED


@every_learner
def test_one_reward_per_decision_is_needed(name: str) -> None:
    policy = MAKERS[name](0)
    decisions = policy.act_many(ENVIRONMENT.contexts[:4])
    with pytest.raises(ShapeError, match="one reward per decision is needed: 4"):
        policy.update_many(decisions, np.zeros(3))


@every_learner
def test_missing_reward_counts_as_zero(name: str) -> None:
    """The run is the one in which they were 0, and no reward closes an epoch."""
    missing, zero = MAKERS[name](0), MAKERS[name](0)
    for policy in (missing, zero):
        decisions = policy.act_many(ENVIRONMENT.contexts[draw(1, policy.remaining)])
        rewards = np.full(len(decisions), 0.3)
        rewards[:5] = 0.0
        given = list(decisions)[5:] if policy is missing else list(decisions)
        policy.update_many(given, rewards[-len(given) :])
    assert len(missing.epochs) == len(zero.epochs) == 0
    for policy in (missing, zero):
        play_epoch(policy, seed=5)
    np.testing.assert_array_equal(
        missing.estimate(ENVIRONMENT.contexts), zero.estimate(ENVIRONMENT.contexts)
    )
    assert without_clock(missing) == without_clock(zero)


# -- epochs ---------------------------------------------------------------------------------------


@every_learner
def test_records_follow_the_epochs_played(name: str) -> None:
    policy: Policy = MAKERS[name](0)
    lengths = []
    while policy.remaining:
        lengths.append(policy.remaining)
        epoch = play_epoch(policy, seed=len(lengths)).epoch
        assert epoch == len(lengths) == len(policy.epochs)
    assert [record.length for record in policy.epochs] == lengths
    assert [record.epoch for record in policy.epochs] == list(range(1, len(lengths) + 1))
    assert sum(lengths) == HORIZON
    for record in policy.epochs:
        assert record.rank >= 1
        assert 0 < record.active_share <= 1
        assert np.isfinite([record.width, record.tau, record.sigma_max]).all()
        assert (record.noise_scale == 0) == ("no-privacy" in name)


@every_learner
def test_nothing_is_learnt_within_an_epoch(name: str) -> None:
    """Rewards change estimates and laws at a release only."""
    policy = MAKERS[name](0)
    play_epoch(policy)
    policy.act(ENVIRONMENT.contexts[0])
    estimate = policy.estimate(ENVIRONMENT.contexts)
    active = policy.active(ENVIRONMENT.contexts)
    decisions = policy.act_many(ENVIRONMENT.contexts[draw(3, policy.remaining - 1)])
    policy.update_many(decisions, np.ones(len(decisions)))
    np.testing.assert_array_equal(policy.estimate(ENVIRONMENT.contexts), estimate)
    np.testing.assert_array_equal(policy.active(ENVIRONMENT.contexts), active)
    assert len(policy.epochs) == 1


# -- simulation -----------------------------------------------------------------------------------


@every_policy
def test_seed_fixes_the_run(name: str) -> None:
    first, again, other = MAKERS[name](4), MAKERS[name](4), MAKERS[name](5)
    results = [capri.simulate(policy, ENVIRONMENT, HORIZON, seed=9) for policy in (first, again)]
    np.testing.assert_array_equal(results[0].regret, results[1].regret)
    assert without_clock(first) == without_clock(again)
    different = capri.simulate(other, ENVIRONMENT, HORIZON, seed=9)
    assert (different.regret != results[0].regret).any()


@every_policy
def test_simulation_plays_every_round_and_counts_the_regret(name: str) -> None:
    policy = MAKERS[name](2)
    result = capri.simulate(policy, ENVIRONMENT, HORIZON, seed=1)
    assert result.rounds == len(result.regret) == HORIZON
    assert (np.diff(result.regret) >= 0).all()
    assert result.regret[0] >= 0
    losses = ENVIRONMENT.best(np.arange(8))[:, None] - ENVIRONMENT.means
    assert 0 < result.regret_per_round <= losses.max()
    assert result.uniform_regret_per_round == pytest.approx(ENVIRONMENT.uniform_regret())
    assert result.epochs == policy.epochs
    assert policy.remaining == 0


@every_policy
def test_simulation_beyond_the_horizon_is_refused(name: str) -> None:
    with pytest.raises(capri.ConfigurationError, match="build it with a longer horizon"):
        capri.simulate(MAKERS[name](0), ENVIRONMENT, HORIZON + 1)


@every_policy
def test_policy_says_what_it_promises(name: str) -> None:
    guarantee = MAKERS[name](0).guarantee
    assert "privacy" in guarantee
    if "joint" in name or "local" in name:
        assert "no privacy claim" in guarantee, "a seeded run protects nobody"
