"""Observers of the gate: shown what is public, once it is, and nothing else."""

import os
import pickle
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import play_epoch, small_policy
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.sphere import sphere
from capri.privacy.vector import VectorLayout, vector_layout
from waiting import eventually


def some_layout() -> VectorLayout:
    return vector_layout(value_bound=1.0, rank=3, length=10, budget=Budget(1.0, 1e-5))


def observed(gate: Gate) -> list[Any]:
    seen: list[Any] = []
    gate.observe(lambda public, _: seen.append(public))
    return seen


def test_observer_is_shown_the_noisy_vector_after_it_is_recorded() -> None:
    ledger = Ledger(Budget(1.0, 1e-5))
    gate = Gate(noise_source(None), ledger)
    seen = observed(gate)
    recorded: list[int] = []
    gate.observe(lambda *_: recorded.append(len(ledger.events)))
    public, _ = gate.release(np.array([1, 2, 3]), some_layout(), epoch=1, participants=4)
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], public)
    seen[0][:] = 0  # a copy: what was released stays as it is
    assert public.any()
    assert recorded == [1]
    # What the ledger refuses is shown to nobody.
    with pytest.raises(BudgetError, match="released before"):
        gate.release(np.array([1, 2, 3]), some_layout(), epoch=1, participants=4)
    assert len(seen) == 1


def test_what_leaves_by_another_account_is_shown_when_it_is_told() -> None:
    gate = Gate(noise_source(None), None)
    seen, layout = observed(gate), some_layout()
    noised = gate.add_noise(np.array([1, 2, 3]), layout, 1)
    np.testing.assert_array_equal(seen[0], layout.numbers(noised))
    held: list[Any] = []
    other = gate.afresh(Ledger(Budget(1.0, 1e-5)), held)
    other.release(np.array([1, 2, 3]), layout, epoch=1, participants=4)
    assert (len(seen), len(held)) == (1, 1)
    gate.tell(held)
    assert len(seen) == 2


def test_a_layout_of_reports_has_no_noise_for_a_sum() -> None:
    """Else an exact sum would leave, accounted for as a report."""
    budget = Budget(1.0)
    layout = vector_layout(value_bound=1.0, rank=3, length=10, budget=budget, sphere=sphere(1.0, 3))
    gate = Gate(noise_source(None), Ledger(budget))
    seen, total = observed(gate), np.ones(layout.coordinates, dtype=np.int64)
    with pytest.raises(BudgetError, match="device reports"):
        gate.release(total, layout, epoch=1, participants=9)
    with pytest.raises(BudgetError, match="device reports"):
        gate.add_noise(total, layout, 9)
    assert seen == []


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_one_sum_is_shown_once_whatever_observers_raise(stored: bool, tmp_path: Path) -> None:
    """A second draw of one sum would say more than one may."""
    where = {"store": f"sqlite:///{tmp_path}/policy.db"} if stored else {}
    with small_policy(simulation_seed=None, **where) as policy:
        seen: list[Any] = []

        def fails(public: Any, _: object) -> None:
            seen.append(public)
            raise RuntimeError("an observer's own")

        policy.observe(fails)
        for step in (lambda: play_epoch(policy), policy.close_epoch, policy.close_epoch):
            with suppress(RuntimeError):
                step()
        eventually(lambda: len(policy.epochs) == 1)
        assert len(seen) == len(policy.ledger.events) == 1


def test_a_forked_copy_closes_nothing() -> None:
    policy = small_policy(simulation_seed=None)
    play_epoch(policy)
    child = os.fork()
    if child == 0:
        try:
            policy.close_full_epoch()
        except BudgetError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    policy.close_full_epoch()
    assert len(policy.epochs) == 1


def test_copies_are_observed_by_nobody() -> None:
    gate = Gate(noise_source(np.random.default_rng(0)), Ledger(Budget(1.0, 1e-5)))
    seen = observed(gate)
    for copy in (deepcopy(gate), pickle.loads(pickle.dumps(gate))):
        copy.release(np.array([1, 2, 3]), some_layout(), epoch=1, participants=4)
    assert seen == []


def test_observer_changes_nothing_that_a_policy_does() -> None:
    """The same simulation with and without: decisions, estimates and account are the same."""
    policies = [small_policy() for _ in range(2)]
    seen: list[Any] = []
    policies[0].observe(lambda public, _: seen.append(public))
    for policy in policies:
        play_epoch(policy)
        policy.close_epoch()
    ours, theirs = (policy.estimate([[0.3]]) for policy in policies)
    np.testing.assert_array_equal(ours, theirs)
    assert policies[0].ledger.events == policies[1].ledger.events
    assert len(seen) == len(policies[0].epochs) == 1


def test_what_is_played_is_told_without_opening_an_epoch() -> None:
    policy = small_policy()
    assert policy.playing is None
    decision = policy.act([0.3])
    assert policy.playing is not None
    plan, segment = policy.playing
    assert (plan.epoch, plan is policy.plan()) == (decision.epoch, True)
    assert segment.number == plan.opening.number
