"""Any number of processes and threads on one store are one policy."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import capri
from builders import CONTEXTS, draw_contexts, small_policy
from capri import RewardStatus, VisitStatus
from recount import Account
from stores import STORE_KEY, Place, in_a_process
from waiting import eventually

PRIVATE: dict[str, Any] = {"simulation_seed": None}
OPEN_ENDED: dict[str, Any] = {
    "simulation_seed": None,
    "preset": "practical",
    "first_epoch": 40,
    "growth": 1.2,
    "horizon": None,
}


def test_a_restart_in_the_middle_of_an_epoch_loses_nothing(store: Place) -> None:
    """A constant reward is estimated as what it is, wherever the process was replaced."""
    changes = PRIVATE | {"budget": None}
    policy = store.open(**changes)
    ids: list[str] = []
    while policy.remaining:
        ids += policy.act_many(draw_contexts(len(ids), min(3, policy.remaining))).id.tolist()
        policy = store.restarted(policy, **changes)
        if len(ids) >= 8:
            break
    assert set(policy.update_many(ids, [0.8] * len(ids)).tolist()) == {int(RewardStatus.ACCEPTED)}
    policy = store.restarted(policy, **changes)
    whole = small_policy(**changes)
    whole.update_many(whole.act_many(draw_contexts(0, whole.remaining)), [0.8] * 8)
    policy.close_epoch()
    whole.close_epoch()
    assert policy.epochs[0].length == whole.epochs[0].length == len(ids)


def test_a_restart_in_the_middle_of_a_wait_loses_nothing(store: Place) -> None:
    """Rewards of an epoch that took its last decision before the restart still count."""
    changes = OPEN_ENDED | {"reward_wait": 15, "budget": None}
    account = Account(store.open(**changes))
    policy = account.policy
    while account.act(policy, draw_contexts(account.made, 1)[0]).epoch == 1:
        assert account.made < 300
    account.policy = policy = store.restarted(policy, **changes)
    for place in range(10):  # of the first epoch, by their ids alone
        assert account.reward(policy, account.rows[place].id, 0.1 * place) is RewardStatus.ACCEPTED
    for _ in range(20):  # the wait is over; the release becomes public a little later
        account.act(policy, draw_contexts(account.made, 1)[0])
    eventually(lambda: bool(policy.epochs))
    assert account.check(str(store.url)) >= 1
    assert account.reward(policy, account.rows[20].id, 0.5) is RewardStatus.LATE


def test_two_policies_on_one_store_are_one(store: Place) -> None:
    one, two = store.open(**PRIVATE), store.open(**PRIVATE)
    decisions = [
        (one, two)[turn % 2].act(draw_contexts(turn, 1)[0], key=f"order-{turn}")
        for turn in range(8)
    ]
    assert len({decision.id for decision in decisions}) == 8
    assert {decision.epoch for decision in decisions} == {1}
    for turn, decision in enumerate(decisions):
        here, there = (one, two) if turn % 2 else (two, one)
        assert here.act(CONTEXTS[0], key=f"order-{turn}") == decision
        assert here.update(decision.id, 0.5) is RewardStatus.ACCEPTED
        assert there.update(decision.id, 0.5) is RewardStatus.DUPLICATE
    # The next epoch may be planned between the two questions.
    eventually(lambda: one.remaining in (0, two.remaining))
    one.close_epoch()
    two.close_epoch()  # there is nothing left to close, and nothing happens
    eventually(lambda: len(two.epochs) == len(one.epochs) == 1)
    assert one.ledger.events == two.ledger.events
    assert one.ledger.events[0].participants == 8
    assert two.update(decisions[0].id, 0.5) is RewardStatus.LATE
    for policy in (one, two):
        assert policy.act(CONTEXTS[0]).epoch == 2
    np.testing.assert_array_equal(one.estimate(CONTEXTS), two.estimate(CONTEXTS))
    np.testing.assert_array_equal(one.probabilities(CONTEXTS), two.probabilities(CONTEXTS))


def test_users_have_one_limit_in_all_policies(store: Place) -> None:
    changes = PRIVATE | {"contributions_per_user": 1}
    one, two = store.open(**changes), store.open(**changes)
    assert one.act(CONTEXTS[0], user="ann").status is VisitStatus.SERVED
    assert two.act(CONTEXTS[0], user="ann").status is VisitStatus.OVER_LIMIT
    assert two.act(CONTEXTS[0], user="bob").status is VisitStatus.SERVED
    assert one.act(CONTEXTS[0], user="bob").status is VisitStatus.OVER_LIMIT


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What jobs give that all start together."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [done.result() for done in [pool.submit(run, job) for job in jobs]]


def test_threads_that_ask_for_one_key_get_one_decision(place: Place) -> None:
    policy = place.open(**PRIVATE)
    policies = [policy, policy] if place.url is None else [policy, place.open(**PRIVATE)]

    def job(turn: int) -> Callable[[], capri.Decision]:
        return lambda: policies[turn % 2].act(CONTEXTS[turn % 4], key="the one")

    given = at_once([job(turn) for turn in range(8)])
    assert len({decision.id for decision in given}) == 1
    assert len({(decision.action_index, decision.propensity) for decision in given}) == 1


def test_threads_of_one_user_take_one_share(place: Place) -> None:
    policy = place.open(**(PRIVATE | {"contributions_per_user": 1}))
    given = at_once([lambda: policy.act(CONTEXTS[0], user="ann") for _ in range(8)])
    served = [decision for decision in given if decision.status is VisitStatus.SERVED]
    assert len(served) == 1
    assert len({decision.id for decision in given}) == 8


def test_threads_at_once_lose_nothing_and_count_nothing_twice(store: Place) -> None:
    """Two policies, six threads, every reward sent twice: each release is recounted."""
    changes = OPEN_ENDED | {"budget": None, "reward_wait": 20, "reward_rule": "sum"}
    policies = [store.open(**changes) for _ in range(2)]
    account = Account(policies[0])

    def worker(name: int) -> Callable[[], None]:
        def work() -> None:
            policy = policies[name % 2]
            rng = np.random.default_rng(name)
            for step in range(40):
                context = CONTEXTS[rng.integers(len(CONTEXTS))]
                decision = account.act(policy, context, key=f"{name}-{step}")
                for part in range(2):
                    value, key = float(rng.uniform(-1, 1)), f"part-{part}"
                    account.reward(policy, decision.id, value, key=key)
                    account.reward(policies[1 - name % 2], decision.id, value, key=key)

        return work

    at_once([worker(name) for name in range(6)])
    policies[0].close_epoch(early=True)
    assert account.check(str(store.url)) >= 2


CHILD = """
import sys
from builders import CONTEXTS, small_policy
key = {"store_key": bytes.fromhex(sys.argv[2])} if sys.argv[2] else {}
policy = small_policy(store=sys.argv[1], simulation_seed=None, **key)
print(policy.act(CONTEXTS[0], key="order-1").id, policy.act(CONTEXTS[0], key="order-2").id)
"""


def test_another_process_is_the_same_policy(store: Place) -> None:
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    key = STORE_KEY.hex() if store.sealed else ""

    same, theirs = in_a_process(CHILD, str(store.url), key).split()
    assert same == own.id
    assert theirs != own.id
    assert policy.update(theirs, 0.5) is RewardStatus.ACCEPTED
    assert policy.act(CONTEXTS[3], key="order-2").id == theirs


FORK = """
import os, signal, sys, threading
import capri
from builders import CONTEXTS, small_policy
key = {"store_key": bytes.fromhex(sys.argv[2])} if sys.argv[2] else {}
policy = small_policy(store=sys.argv[1], simulation_seed=None, **key)
decision = policy.act(CONTEXTS[0])
held, over = threading.Event(), threading.Event()
def hold():
    with policy._engine.state.lock:
        held.set()
        over.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()  # as if the planner were at a step: in the child nobody will end it
child = os.fork()
if not child:
    signal.alarm(300)
    repr(policy), repr(policy._engine)
    calls = (lambda: policy.act(CONTEXTS[0]), lambda: policy.update(decision, 0.5),
             lambda: policy.epochs, lambda: policy.remaining, lambda: policy.ledger,
             lambda: policy.pending, policy.certificate, policy.close_epoch)
    refused = 0
    for call in calls:
        try:
            call()
        except capri.BudgetError:
            refused += 1
    policy.close()
    os._exit(refused)
over.set()
holder.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(policy.act(CONTEXTS[0]).number)
"""


def test_a_forked_policy_does_not_go_on_with_its_parents_connections(store: Place) -> None:
    key = STORE_KEY.hex() if store.sealed else ""
    child, number = in_a_process(FORK, str(store.url), key).split()
    assert child == "8"
    assert int(number) >= 1  # the parent's is as before
