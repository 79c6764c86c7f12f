"""What may be read of a policy, what may not be written, and who is told of a release."""

import copy
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

import capri
from builders import BUDGET, CONTEXTS, draw_contexts, play_epoch, records, small_policy
from capri.errors import ConfigurationError


def test_every_release_is_told_once_in_order() -> None:
    policy = small_policy(preset="practical", horizon=None)
    told: list[capri.EpochRecord] = []
    assert policy.on_release(told.append) == told.append
    for seed in range(3):
        play_epoch(policy, seed)
    assert tuple(told) == policy.epochs
    assert [record.epoch for record in told] == [1, 2, 3]


def test_a_decorated_function_may_read_the_policy() -> None:
    policy = small_policy()
    seen: list[tuple[int, int, float]] = []

    @policy.on_release
    def watch(record: capri.EpochRecord) -> None:
        seen.append((record.epoch, len(policy.epochs), policy.ledger.spent.epsilon))

    play_epoch(policy)
    assert seen == [(1, 1, policy.ledger.spent.epsilon)]
    assert seen[0][2] > 0


def test_a_function_that_fails_costs_neither_release_nor_decision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy, quiet = small_policy(), small_policy()
    told: list[int] = []

    def fail(record: capri.EpochRecord) -> None:
        raise ZeroDivisionError("a mistake of the user's own")

    policy.on_release(fail)
    policy.on_release(lambda record: told.append(record.epoch))
    with caplog.at_level(logging.ERROR, logger="capri.hooks"):
        for seed in range(2):
            play_epoch(policy, seed)
            play_epoch(quiet, seed)
        decision = policy.act(CONTEXTS[0])
    assert told == [1, 2]
    assert [entry.name for entry in caplog.records] == ["capri.hooks"] * 2
    assert "epoch 1; the release itself is complete" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert records(policy) == records(quiet)
    assert policy.ledger.spent == quiet.ledger.spent
    assert decision.action_index == quiet.act(CONTEXTS[0]).action_index


def test_a_release_in_the_midst_of_a_decision_is_told_before_it() -> None:
    """An epoch that is closed by the next visit: the visit is served even if the function fails."""
    policy = small_policy(simulation_seed=None)
    told: list[int] = []

    def fail(record: capri.EpochRecord) -> None:
        told.append(record.epoch)
        raise RuntimeError

    policy.on_release(fail)
    decisions = policy.act_many(draw_contexts(0, policy.remaining))
    policy.update_many(decisions, np.zeros(len(decisions)))
    assert told == []
    logging.getLogger("capri.hooks").disabled = True
    try:
        assert policy.act(CONTEXTS[0]).epoch == 2
    finally:
        logging.getLogger("capri.hooks").disabled = False
    assert told == [1]


def test_a_function_that_decides_finds_the_policy_in_order() -> None:
    policy = small_policy()
    epochs: list[int] = []
    policy.on_release(lambda record: epochs.append(policy.act(CONTEXTS[0]).epoch))
    play_epoch(policy)
    assert epochs == [2]
    assert policy.act(CONTEXTS[1]).epoch == 2
    assert policy.remaining == policy.plan().length - 2


def test_functions_are_of_this_process_and_policy(tmp_path: Path) -> None:
    policy = small_policy()
    play_epoch(policy)
    told: list[capri.EpochRecord] = []
    policy.on_release(told.append)
    policy.on_release(lambda record: None)  # which no pickle could hold
    policy.save(tmp_path / "policy.capri")
    others = [
        capri.Capri.load(tmp_path / "policy.capri"),
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
        policy.go_live(),
    ]
    for other in others:
        own: list[capri.EpochRecord] = []
        other.on_release(own.append)
        play_epoch(other, 1)
        assert [record.epoch for record in own] == [2]  # of what is new, and nothing else
    assert told == []
    play_epoch(policy, 1)
    assert len(told) == 1


def test_the_aggregator_tells_too() -> None:
    aggregator = capri.LocalCapri(
        kernel=capri.kernels.Matern(lengthscale=0.4),
        actions=3,
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(4.0, 0.0),
        horizon=40,
        first_epoch=8,
    )
    told: list[int] = []
    aggregator.on_release(lambda record: told.append(record.epoch))
    while aggregator.remaining:
        client = capri.LocalClient(aggregator.bundle(), capri.Budget(4.0, 0.0))
        client.act(CONTEXTS[0])
        aggregator.receive(client.report(0.5))
    assert told == [record.epoch for record in aggregator.epochs] != []


def test_only_functions_are_taken() -> None:
    with pytest.raises(ConfigurationError, match="a function of one epoch record, got int"):
        small_policy().on_release(3)  # type: ignore[arg-type]


def test_settings_can_be_read_and_after_a_load_too(tmp_path: Path) -> None:
    policy = small_policy()
    policy.save(tmp_path / "policy.capri")
    for each in (policy, capri.Capri.load(tmp_path / "policy.capri")):
        assert each.kernel == capri.kernels.Matern(nu=2.5, lengthscale=0.4)
        assert each.budget == BUDGET
        assert each.actions.count == 3
        assert isinstance(each.contexts, capri.ContextPool)
        np.testing.assert_array_equal(each.contexts.rows, CONTEXTS)


@pytest.mark.parametrize("name", ["epsilon", "budget", "actions", "kernel", "pi", "act"])
def test_no_setting_can_be_assigned(name: str) -> None:
    policy = small_policy()
    before = getattr(policy, name, None)
    with pytest.raises(AttributeError, match=rf"'{name}'.*can be read for actions, budget"):
        setattr(policy, name, 3)
    assert getattr(policy, name, None) == before


def test_nor_of_an_aggregator() -> None:
    aggregator = capri.LocalCapri(
        kernel=capri.kernels.Matern(lengthscale=0.4),
        actions=3,
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(4.0, 0.0),
    )
    with pytest.raises(AttributeError, match="'randomiser' does not exist: a LocalCapri is fixed"):
        aggregator.randomiser = "none"  # type: ignore[attr-defined]
