"""What every store must do for decisions and rewards: to add a store, add a line to ``stores``.

The model is the policy in memory: a simulation on a store, restarted as often as one likes, makes
the same decisions, gives the same answers and publishes the same releases.
"""

import warnings
from typing import Any

import numpy as np
import pytest

import capri
from builders import CONTEXTS, draw_contexts, records, small_policy
from capri import ConfigurationError, HorizonError, RewardIgnoredWarning, RewardStatus, VisitStatus
from capri.store.codec import Played
from stores import Place

RULES = ("first", "last", "sum", "max")
OVERLAP: dict[str, Any] = {
    "preset": "practical",
    "first_epoch": 10,
    "reward_wait": 7,
}
PRIVATE: dict[str, Any] = {"simulation_seed": None}


def shown(decision: capri.Decision) -> tuple[Any, ...]:
    """All that a caller learns from a decision."""
    return (
        decision.id,
        decision.epoch,
        decision.action_index,
        decision.propensity,
        decision.status,
        decision.action.tobytes(),
    )


def published(policy: capri.Capri) -> tuple[Any, ...]:
    """All that the world learns from a policy."""
    return (
        records(policy),
        policy.ledger.events,
        policy.estimate(CONTEXTS).tobytes(),
        policy.probabilities(CONTEXTS).tobytes(),
    )


def play_out(policy: capri.Capri, place: Place | None, **changes: Any) -> list[Any]:
    """A script of calls: keys, users, batches, repeats, late rewards; on a store with restarts."""
    script, chance = np.random.default_rng(1), np.random.default_rng(2)
    transcript: list[Any] = []
    made: list[str] = []
    for step in range(60):
        if place is not None and chance.random() < 0.2:
            policy = place.restarted(policy, **changes)
        count = int(script.integers(1, 6))
        if script.random() < 0.5 and policy.remaining:
            count = min(count, policy.remaining)
            keys = [f"key-{script.integers(90)}" for _ in range(count)]
            users = [int(script.integers(30)) for _ in range(count)]
            given = policy.act_many(draw_contexts(step, count), users=users, keys=keys)
            transcript.append([shown(each) for each in given])
            made += [each.id for each in given]
        elif made:
            chosen = [made[-1 - int(script.integers(min(len(made), 40)))] for _ in range(count)]
            values = script.uniform(-1.2, 1.2, count)
            values[script.random(count) < 0.1] = np.nan
            reward_keys = [f"reward-{script.integers(3)}" for _ in range(count)]
            transcript.append(policy.update_many(chosen, values, keys=reward_keys).tolist())
    transcript.append(published(policy))
    return transcript


@pytest.mark.parametrize(
    ("rule", "wait"),
    [
        ("first", "overlap"),
        pytest.param("last", "overlap", marks=pytest.mark.slow),
        ("sum", "no wait"),
        pytest.param("max", "no wait", marks=pytest.mark.slow),
    ],
)
def test_a_restarted_simulation_is_the_one_in_memory(store: Place, rule: str, wait: str) -> None:
    """Whatever is called in whatever order, and whenever the process is replaced."""
    changes: dict[str, Any] = {"reward_rule": rule, "contributions_per_user": 3}
    changes |= OVERLAP if wait == "overlap" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RewardIgnoredWarning)
        expected = play_out(small_policy(**changes), None)
        assert play_out(store.open(**changes), store, **changes) == expected
    assert len(expected[-1][1]) >= 2  # the script reaches releases
    answers = {answer for row in expected[:-1] if isinstance(row[0], int) for answer in row}
    assert answers >= {0, 1, 2, 4, 5}  # and meets every answer


# -- keys -----------------------------------------------------------------------------------------


def test_a_key_has_one_decision_and_its_second_context_is_not_learnt(place: Place) -> None:
    policy, twin = place.open(reward_wait=0), small_policy()
    policy.update(policy.act(CONTEXTS[0], key="order-1"), 0.5)
    twin.update(twin.act(CONTEXTS[0]), 0.5)
    first = policy.act(CONTEXTS[0], key="order-1")
    again = policy.act(CONTEXTS[3], key="order-1")
    assert shown(again) == shown(first)
    assert policy.remaining == twin.remaining
    left = policy.remaining
    batch = policy.act_many(
        draw_contexts(0, left), keys=[f"order-{2 + place}" for place in range(left)]
    )
    other = twin.act_many(draw_contexts(0, left))
    assert batch.action_index.tolist() == other.action_index.tolist()
    policy.update_many(batch, np.linspace(-1, 1, left))
    twin.update_many(other, np.linspace(-1, 1, left))
    policy.close_epoch()
    twin.close_epoch()
    assert published(policy) == published(twin)
    assert shown(policy.act(CONTEXTS[1], key="order-1")) == shown(first)  # after the release, too


def test_one_key_twice_in_a_batch_is_one_decision(place: Place) -> None:
    policy = place.open()
    before = policy.remaining
    batch = policy.act_many(CONTEXTS[[0, 1, 2]], keys=["same", "other", "same"])
    assert shown(batch[0]) == shown(batch[2])
    assert batch.id[1] != batch.id[0]
    assert policy.remaining == before - 2


def test_keys_are_texts_one_for_each_context(place: Place) -> None:
    policy = place.open()
    before = policy.remaining
    for keys in (["a"], ["a", "b", "c"], "ab", [1, 2]):
        with pytest.raises(capri.CapriError):
            policy.act_many(CONTEXTS[:2], keys=keys)
    with pytest.raises(ConfigurationError):
        policy.act(CONTEXTS[0], key=7)
    assert policy.remaining == before


# -- rewards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_several_rewards_count_once_each_by_the_rule(place: Place, rule: str) -> None:
    """As one reward of the combined value, to the last bit of the release."""
    policy, twin = place.open(reward_rule=rule), small_policy()
    count = policy.remaining
    values = np.random.default_rng(5).uniform(-0.9, 0.9, (3, count))
    decisions = policy.act_many(draw_contexts(0, count))
    accepted = [int(RewardStatus.ACCEPTED)] * count
    repeated = [int(RewardStatus.DUPLICATE)] * count
    for turn, given in enumerate(values):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RewardIgnoredWarning)
            fresh = policy.update_many(decisions, given, keys=[f"part-{turn}"] * count)
            again = policy.update_many(decisions, -given, keys=[f"part-{turn}"] * count)
        assert fresh.tolist() == (repeated if rule == "first" and turn else accepted)
        assert again.tolist() == repeated
        policy = place.restarted(policy, reward_rule=rule)
        decisions = [str(each) for each in decisions.id] if turn == 0 else decisions
    combined = {
        "first": values[0],
        "last": values[2],
        "sum": values[0] + values[1] + values[2],
        "max": values.max(axis=0),
    }[rule]
    twin.update_many(twin.act_many(draw_contexts(0, count)), combined)
    policy.close_epoch()
    twin.close_epoch()
    assert published(policy) == published(twin)


@pytest.mark.parametrize("rule", RULES[1:])
def test_a_rule_for_several_rewards_needs_their_keys(place: Place, rule: str) -> None:
    policy = place.open(reward_rule=rule)
    decision = policy.act(CONTEXTS[0])
    with pytest.raises(ConfigurationError, match="key"):
        policy.update(decision, 0.5)
    assert policy.update(decision, 0.5, key="a") is RewardStatus.ACCEPTED


def test_every_reward_is_answered_for_itself(place: Place) -> None:
    policy = place.open(**PRIVATE)
    stranger = small_policy(**PRIVATE).act(CONTEXTS[0])
    decisions = policy.act_many(draw_contexts(0, policy.remaining))
    ids = decisions.id.tolist()
    assert policy.update(decisions[0], 0.5) is RewardStatus.ACCEPTED
    assert policy.update(ids[0], 0.7) is RewardStatus.DUPLICATE
    assert policy.update(decisions[1], float("nan")) is RewardStatus.INVALID
    assert policy.update(decisions[1], 0.1) is RewardStatus.ACCEPTED
    for nobody in (stranger.id, "no such id", "", "A" * len(ids[0])):
        assert policy.update(nobody, 0.5) is RewardStatus.UNKNOWN
    policy = place.restarted(policy, **PRIVATE)
    statuses = policy.update_many([*ids[:3], stranger.id, ids[3]], [1, 1, None, 1, 0.2])
    assert statuses.tolist() == [2, 2, 4, 3, 0]
    policy.close_epoch()
    assert policy.update(ids[2], 0.5) is RewardStatus.LATE
    policy = place.restarted(policy, **PRIVATE)
    assert policy.update(ids[0], 0.5) is RewardStatus.LATE


def test_a_context_that_is_none_is_served_and_counts_for_nothing(place: Place) -> None:
    policy = place.open(**PRIVATE)
    decision = policy.act([np.nan], key="bad")
    assert decision.status is VisitStatus.INVALID
    policy = place.restarted(policy, **PRIVATE)
    assert policy.update(decision.id, 0.5) is RewardStatus.UNCOUNTED
    assert policy.act(CONTEXTS[0], key="bad").status is VisitStatus.INVALID


# -- users ----------------------------------------------------------------------------------------


def test_limits_are_reserved_at_the_decision(place: Place) -> None:
    """A user of an epoch that waits for its rewards does not enter the next one as well."""
    changes = OVERLAP | {"contributions_per_user": 1}
    policy = place.open(**changes)
    first = policy.act(CONTEXTS[0], user="ann")
    assert first.status is VisitStatus.SERVED
    assert policy.act(CONTEXTS[0], user="ann").status is VisitStatus.OVER_LIMIT
    number = 0
    while True:
        decision = policy.act(CONTEXTS[1], user=number)
        number += 1
        if decision.epoch > first.epoch:
            break
        assert number < 200
    assert len(policy.epochs) == 0  # the first epoch still waits
    policy = place.restarted(policy, **changes)
    assert policy.act(CONTEXTS[0], user="ann").status is VisitStatus.OVER_LIMIT
    assert policy.act(CONTEXTS[0], user="bob").status is VisitStatus.SERVED


def test_a_repeated_key_takes_no_second_share_of_its_user(place: Place) -> None:
    policy = place.open(contributions_per_user=2, contributions_per_epoch=2)
    first = policy.act(CONTEXTS[0], user="ann", key="order-1")
    for _ in range(3):
        assert shown(policy.act(CONTEXTS[0], user="ann", key="order-1")) == shown(first)
    assert policy.act(CONTEXTS[0], user="ann").status is VisitStatus.SERVED
    assert policy.act(CONTEXTS[0], user="ann").status is VisitStatus.OVER_LIMIT


# -- the account ----------------------------------------------------------------------------------


def test_ledger_and_releases_agree(place: Place) -> None:
    policy = place.open(**PRIVATE)
    played = []
    for turn in range(3):
        count = policy.remaining
        decisions = policy.act_many(draw_contexts(turn, count))
        policy.update_many(decisions, np.full(count, 0.5))
        policy.close_epoch()
        played.append(count)
        policy = place.restarted(policy, **PRIVATE)
    events = policy.ledger.events
    assert [event.epoch for event in events] == [1, 2, 3]
    assert [event.participants for event in events] == played
    assert [record.epoch for record in policy.epochs] == [1, 2, 3]
    assert [record.length for record in policy.epochs] == played
    assert policy.ledger.spent.epsilon <= 1.0 + 1e-9


def test_a_known_key_is_answered_at_the_horizon(place: Place) -> None:
    """Also after the last release, when no epoch takes a decision any more."""
    policy = place.open(simulation_seed=None, horizon=8)
    first = [policy.act(CONTEXTS[0], key=f"order-{turn}").id for turn in range(8)]
    for _ in range(2):
        again = policy.act_many(draw_contexts(1, 2), keys=["order-3", "order-5"])
        assert again.id.tolist() == [first[3], first[5]]
        with pytest.raises(HorizonError):
            policy.act(CONTEXTS[0], key="order-8")
        if policy.pending:
            policy.close_epoch(early=True)
    policy = place.restarted(policy, simulation_seed=None, horizon=8)
    assert policy.act(CONTEXTS[0], key="order-3").id == first[3]


def test_slots_are_filled_by_the_generation_they_were_taken_at_and_by_no_other(
    place: Place,
) -> None:
    policy = place.open(**PRIVATE)
    policy.act(CONTEXTS[0])
    engine = policy._engine
    assert engine is not None
    rows, generation = engine.repository.rows, engine.state.look().generation
    slot = np.array([engine.state.issued + 8])
    nobody, certain = np.full(1, -1), np.ones(1)
    played = Played(np.zeros(1, dtype=np.int64), nobody, slot, certain, np.zeros((1, 2)))
    prepared = rows.prepared(played, None)

    def filled(at: int) -> bool:
        return engine.repository.write(lambda unit: rows.fill(unit, 1, at, slot, prepared))

    assert not filled(generation + 1)
    assert not rows.any_from(int(slot[0]))
    assert filled(generation)
    assert rows.any_from(int(slot[0]))
