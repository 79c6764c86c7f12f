"""The ledger: what was spent, by whom; nothing is spent twice and nothing is forgotten."""

import copy
import os
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from math import sqrt
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import capri
from builders import BUDGET, dp_event, play_epoch, small_policy
from capri.epoch.storage import read_policy_file, write_policy_file
from capri.errors import BudgetError
from capri.privacy.budget import UserLimit
from capri.privacy.calibration import analytic_multiplier, continuous_budget
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.noise import SimulatedNoise
from epochs_inside import open_epoch

RANK = 12


def event(epoch: int = 1, *, budget: capri.Budget = BUDGET, **changes: Any) -> ReleaseEvent:
    """A release that spends the budget to the full."""
    multiplier = analytic_multiplier(continuous_budget(budget, RANK))
    settings: dict[str, Any] = {
        "epoch": epoch,
        "model": "joint",
        "calibration": "analytic",
        "participants": 100,
        "rank": RANK,
        "sensitivity": 0.8,
        "noise_scale": 0.8 * multiplier,
    }
    return ReleaseEvent(**(settings | changes))


def pld_epsilon(events: list[Any], delta: float) -> float:
    """dp-accounting's view of the events, composed; add-or-remove-one, pessimistic."""
    accountant = PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=1e-4,
    )
    for single in events:
        accountant.compose(single)
    return float(accountant.get_epsilon(delta))


def ledger(
    budget: capri.Budget = BUDGET,
    limit: UserLimit | None = None,
    seen: Mapping[str, Mapping[int, int]] | None = None,
) -> Ledger:
    """``seen``: contributions by epoch of each user, where users are known."""
    return Ledger(
        budget,
        composition=1.0 if limit is None else limit.composition(),
        epochs_of=None if limit is None else lambda user: (seen or {}).get(str(user), {}),
    )


# -- refusals -------------------------------------------------------------------------------------


def test_epoch_is_released_once() -> None:
    book = ledger()
    book.record(event(1))
    with pytest.raises(BudgetError, match="epoch 1 was released before"):
        book.record(event(1))
    book.record(event(2))
    with pytest.raises(BudgetError, match="epoch 1 was released before"):
        book.record(event(1, noise_scale=1e9))
    assert [past.epoch for past in book.events] == [1, 2]


def test_purposes_are_learning_and_shadow_and_no_other_word_buys_a_release() -> None:
    """Visits of these two are disjoint; what another purpose would be over is known to nobody."""
    book = ledger()
    book.record(event(1))
    for word in ("more", "Learning", "", "shadow "):
        with pytest.raises(BudgetError, match="purpose must be one of learning, shadow"):
            book.record(event(1, purpose=word))
    with pytest.raises(BudgetError, match=r"shadow .* joint model"):
        book.record(event(1, purpose="shadow", model="local"))
    book.record(event(1, purpose="shadow"))
    for purpose in ("learning", "shadow"):
        with pytest.raises(BudgetError, match="was released before"):
            book.record(event(1, purpose=purpose))
    assert len(book.events) == 2


def test_too_little_noise_is_refused_before_anything_is_released() -> None:
    """A part in a hundred thousand is seen; what the calibration gives is accepted."""
    book = ledger()
    with pytest.raises(BudgetError, match="nothing was released"):
        book.record(event(noise_scale=event().noise_scale * (1 - 1e-5)))
    with pytest.raises(BudgetError, match="nothing was released"):
        book.record(event(noise_scale=event().noise_scale / 2))
    with pytest.raises(BudgetError, match="finite sensitivity and noise"):
        event(noise_scale=float("nan"))
    assert book.events == ()
    assert book.spent.epsilon == 0.0
    book.record(event())


@pytest.mark.parametrize("noise_scale", [0.0, -1.0])
def test_noise_that_is_none_is_refused(noise_scale: float) -> None:
    with pytest.raises(BudgetError):
        ledger().record(event(noise_scale=noise_scale))


def test_users_who_come_back_need_more_noise() -> None:
    """The noise for one contribution is refused where three are allowed."""
    limit = UserLimit(total=3)
    book = ledger(limit=limit)
    with pytest.raises(BudgetError):
        book.record(event())
    with pytest.raises(BudgetError):
        book.record(event(noise_scale=event().noise_scale * sqrt(3) * (1 - 1e-5)))
    book.record(event(noise_scale=event().noise_scale * sqrt(3) * (1 + 1e-9)))


@pytest.mark.parametrize("model", ["joint", "local"])
def test_open_epoch_cannot_be_released_twice(model: str) -> None:
    policy = small_policy(simulation_seed=None, model=model)
    policy.act_many(np.zeros((policy.remaining, 1)))
    settled = open_epoch(policy).settled
    settled.release(policy._gate)
    with pytest.raises(BudgetError, match="released before"):
        settled.release(policy._gate)
    with pytest.raises(BudgetError, match="released before"):
        policy.close_epoch()


def test_failure_in_the_noise_publishes_and_spends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded when the noise is there: a crash before that can be made up for, once."""
    policy = small_policy()
    policy.act_many(np.zeros((policy.remaining, 1)))

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("out of entropy")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedNoise, "add", fail)
        with pytest.raises(OSError, match="out of entropy"):
            policy.close_epoch()
    assert policy.ledger.events == ()
    assert policy.epochs == ()
    policy.close_epoch()
    assert len(policy.ledger.events) == len(policy.epochs) == 1


def test_failure_in_learning_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is out and recorded; the policy learns from it with the next call."""
    policy, twin = small_policy(), small_policy()
    for each in (policy, twin):
        each.act_many(np.zeros((each.remaining, 1)))

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room to learn")

    with monkeypatch.context() as patch:
        patch.setattr(type(policy._learning.learner), "learn", fail)
        with pytest.raises(MemoryError, match="no room"):
            policy.close_epoch()
    assert len(policy.ledger.events) == 1
    twin.close_epoch()
    assert policy.remaining == twin.remaining
    assert policy.act([0.3]).action_index == twin.act([0.3]).action_index
    assert len(policy.epochs) == 1
    assert policy.estimate([[0.3]]).tolist() == twin.estimate([[0.3]]).tolist()


def test_copy_of_a_private_policy_cannot_release_the_same_data() -> None:
    """Two noisy versions of one sum cost epsilon twice, and each ledger counts one."""
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many(np.zeros((policy.remaining, 1)))
    policy.update(decisions[0], 1.0)
    try:
        again = copy.deepcopy(policy)
    except (BudgetError, TypeError):
        return  # refusing the copy will do
    policy.close_epoch()
    with pytest.raises(BudgetError):
        again.close_epoch()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_cannot_release_the_data_of_its_parent() -> None:
    """A pre-forking server: the ledger of each process counts one release of the same data."""
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many(np.zeros((policy.remaining, 1)))
    policy.update(decisions[0], 1.0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            policy.close_epoch()
            status = len(policy.epochs)
        except BudgetError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    policy.close_epoch()
    assert len(policy.epochs) == 1
    assert os.waitstatus_to_exitcode(status) == 0


# -- what was spent -------------------------------------------------------------------------------


def test_nothing_released_nothing_spent() -> None:
    book = ledger(limit=UserLimit(total=2))
    assert book.spent.epsilon == book.spent_in(1).epsilon == book.spent_by("ann").epsilon == 0.0
    assert book.spent.mu == 0.0


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
def test_parallel_composition_costs_the_dearest_epoch(epsilon: float) -> None:
    """Every user is in one epoch: five releases cost what the worst of them costs."""
    budget = capri.Budget(epsilon=epsilon, delta=1e-5)
    book = ledger(budget)
    full = event(budget=budget)
    for epoch, factor in enumerate((3.0, 1.0, 10.0, 1.5, 2.0), start=1):
        book.record(replace(full, epoch=epoch, noise_scale=factor * full.noise_scale))
    assert book.spent.epsilon == book.spent_in(2).epsilon
    assert book.spent.epsilon == pytest.approx(epsilon, abs=1e-6)
    assert book.spent.epsilon <= epsilon
    for past in book.events:
        reported = pld_epsilon([dp_event(past)], budget.delta)
        assert book.spent_in(past.epoch).epsilon == pytest.approx(reported, abs=1e-3)
    assert book.spent_in(6).epsilon == 0.0


@pytest.mark.parametrize("total", [2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
def test_composition_agrees_with_the_accountant(total: int, epsilon: float) -> None:
    """A user in ``total`` epochs: Gaussian composition, against numerical composition of PLDs.

    Looked at after one, two and all: the accountant takes seconds for many.
    """
    budget = capri.Budget(epsilon=epsilon, delta=1e-5)
    limit = UserLimit(total=total)
    seen: dict[str, dict[int, int]] = {"ann": {}}
    book = ledger(budget, limit, seen)
    scale = event(budget=budget).noise_scale * limit.composition() * (1 + 1e-9)
    for epoch in range(1, total + 1):
        seen["ann"][epoch] = 1
        book.record(event(epoch, noise_scale=scale))
        if epoch not in (1, 2, total):
            continue
        spent = book.spent_by("ann")
        reported = pld_epsilon([dp_event(past) for past in book.events], budget.delta)
        assert spent.epsilon == pytest.approx(reported, abs=1e-3)
    assert spent.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert spent.epsilon <= budget.epsilon
    assert book.spent.epsilon == pytest.approx(spent.epsilon, abs=1e-9)
    assert book.spent_by("bob").epsilon == 0.0


def test_same_epoch_is_group_privacy_in_the_joint_model() -> None:
    """Two contributions under one noise: sensitivity 2; under two noises: two releases."""
    for model, multiplier, times in (("joint", 0.5, 1), ("local", 1.0, 2)):
        book = ledger(
            capri.Budget(epsilon=8.0, delta=1e-5),
            UserLimit(total=2, per_epoch=2),
            {"ann": {1: 2}, "bob": {1: 1}},
        )
        single = event(noise_scale=2.0, model=model)
        book.record(single)
        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier=multiplier / single.mu)
        reported = pld_epsilon([gaussian] * times, 1e-5)
        assert book.spent_by("ann").epsilon == pytest.approx(reported, abs=1e-3)
        assert book.spent_by("bob").epsilon == pytest.approx(
            pld_epsilon([dp_event(single)], 1e-5), abs=1e-3
        )
        assert book.spent_by("ann").epsilon > 1.2 * book.spent_by("bob").epsilon


def test_user_cannot_be_accounted_for_without_ids() -> None:
    with pytest.raises(BudgetError, match="keeps no user ids"):
        ledger().spent_by("ann")


def test_policy_without_privacy_has_no_ledger() -> None:
    with pytest.raises(BudgetError, match="without privacy"):
        _ = small_policy(budget=None).ledger


# -- permanence -----------------------------------------------------------------------------------


def test_events_are_immutable() -> None:
    book = ledger()
    book.record(event())
    past = book.events[0]
    for name in ("epoch", "noise_scale", "sensitivity", "mu"):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(past, name, 2)
    with pytest.raises(AttributeError):
        book.events = ()
    with pytest.raises(TypeError):
        book.events[0] = event(2)
    with pytest.raises(FrozenInstanceError):
        book.spent.epsilon = 0.0


@pytest.mark.parametrize("seed", [None, 5], ids=["private", "simulation"])
@pytest.mark.parametrize("model", ["joint", "local"])
def test_ledger_survives_a_restart(tmp_path: Path, seed: int | None, model: str) -> None:
    policy = small_policy(
        simulation_seed=seed, model=model, contributions_per_user=2, calibration="analytic"
    )
    for epoch in (1, 2):
        users = [f"user {number}" for number in range(policy.remaining)]
        decisions = policy.act_many(np.zeros((len(users), 1)), users=users)
        policy.update_many(decisions, np.zeros(len(users)))
        policy.close_epoch()
        assert len(policy.ledger.events) == epoch
    policy.save(tmp_path / "policy")
    loaded = capri.Capri.load(tmp_path / "policy")
    assert loaded.ledger.events == policy.ledger.events
    assert loaded.ledger.spent == policy.ledger.spent
    assert loaded.ledger.spent_by("user 0") == policy.ledger.spent_by("user 0")
    assert loaded.ledger.spent_by("user 0").epsilon == pytest.approx(1.0, abs=1e-6)
    assert loaded.ledger.spent_by("user 15").epsilon < 0.9
    assert loaded.ledger.spent_by("nobody").epsilon == 0.0
    with pytest.raises(BudgetError, match="released before"):
        loaded.ledger.record(policy.ledger.events[0])


def test_file_with_too_little_noise_is_refused(tmp_path: Path) -> None:
    """A ledger that was tampered with cannot be loaded."""
    policy = small_policy(simulation_seed=None, calibration="analytic")
    play_epoch(policy)
    policy.save(tmp_path / "policy")
    values, arrays = read_policy_file(tmp_path / "policy")
    (epoch,) = values["repository"]["tables"]["epochs"]
    epoch["release"]["event"]["noise_scale"] /= 2
    for name in ("format", "version"):
        values.pop(name)
    write_policy_file(tmp_path / "policy", values, arrays)
    with pytest.raises(capri.CapriError):
        capri.Capri.load(tmp_path / "policy")


@pytest.mark.parametrize("model", ["joint", "local"])
@pytest.mark.parametrize("calibration", ["analytic", "paper"])
def test_events_are_those_of_the_plan(model: str, calibration: str) -> None:
    policy = small_policy(simulation_seed=None, model=model, calibration=calibration)
    while policy.remaining:
        play_epoch(policy)
    assert [past.epoch for past in policy.ledger.events] == [1, 2, 3, 4]
    for past, record in zip(policy.ledger.events, policy.epochs, strict=True):
        assert past.participants == record.length
        assert past.rank == record.rank
        assert past.noise_scale == record.noise_scale
        assert past.model == model
        assert past.calibration == calibration
        reported = pld_epsilon([dp_event(past)], 1e-5)
        assert reported <= 1.0 + 1e-6
        if calibration == "analytic":
            assert reported >= 1.0 - 1e-3
    assert policy.ledger.spent.epsilon <= 1.0


def test_two_noises_in_one_epoch_are_refused() -> None:
    """A user of the Gaussian release would be told a delta of 0."""
    book = Ledger(capri.Budget(1.0, 1e-5))
    laplace = event(
        mechanism="laplace", norm="l1", sensitivity=2.0, noise_scale=2.0, purpose="shadow"
    )
    book.record(laplace)
    assert book.spent_in(laplace.epoch).delta == 0
    with pytest.raises(BudgetError, match="gaussian and by laplace"):
        book.check(event(epoch=laplace.epoch, sensitivity=2.0, noise_scale=20.0))
    book.record(event(epoch=laplace.epoch + 1, sensitivity=2.0, noise_scale=20.0))
    assert book.spent_in(laplace.epoch + 1).delta > 0
