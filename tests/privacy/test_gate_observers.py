"""Observers of the gate: shown what is public, once it is, and nothing else."""

import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from builders import play_epoch, small_policy
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.vector import VectorLayout, vector_layout


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
    assert seen[0] is public
    assert recorded == [1]
    # What the ledger refuses is shown to nobody.
    with pytest.raises(BudgetError, match="released before"):
        gate.release(np.array([1, 2, 3]), some_layout(), epoch=1, participants=4)
    assert len(seen) == 1


def test_reports_and_gates_with_another_account_are_observed_too() -> None:
    gate = Gate(noise_source(None), None)
    seen, layout = observed(gate), some_layout()
    noised = gate.add_noise(np.array([1, 2, 3]), layout, 1)
    np.testing.assert_array_equal(seen[0], layout.numbers(noised))
    other = gate.afresh(Ledger(Budget(1.0, 1e-5)))
    other.release(np.array([1, 2, 3]), layout, epoch=1, participants=4)
    assert len(seen) == 2


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
