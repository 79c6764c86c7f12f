"""What may change while a policy runs: each change is one publication for the next epoch."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri import (
    Budget,
    Capri,
    ConfigurationError,
    ContextPool,
    HorizonError,
    Limits,
    RewardStatus,
    StorageError,
    VisitStatus,
)

pytestmark = pytest.mark.usefixtures("unforced")
POOL = np.linspace(0, 1, 4)[:, None]
SETTINGS: dict[str, Any] = {
    "actions": ["red", "green", "blue"],
    "contexts": ContextPool(POOL),
    "budget": Budget(epsilon=4.0, delta=1e-5),
    "first_epoch": 12,
    "growth": 1.1,
    "kernel": capri.kernels.ContextAction(
        capri.kernels.Matern(nu=2.5, lengthscale=0.4), capri.kernels.Categories(), 1
    ),
    "reward_wait": 5,
}
CHANGES: dict[int, dict[str, Any]] = {
    10: {"reward_wait": 12, "by": "anna", "why": "rewards come later"},
    25: {"limits": Limits(floor={"red": 0.2}), "growth": 1.3},
    40: {"reward_wait": 3, "actions": ["red", "green", "violet"]},
    55: {"missing_reward": 0.25, "first_epoch": None},
    60: {"limits": None, "horizon": 110},
    130: {"horizon": 300, "epoch_time": timedelta(days=9)},
}


def script(policy: Capri, restart: Callable[[Capri], Capri]) -> list[Any]:
    """Visits and rewards three decisions late, with changes of all that may change."""
    rng, made, said = np.random.default_rng(3004), list[capri.Decision](), list[Any]()
    for visit in range(150):
        policy = restart(policy)
        if visit in CHANGES:
            policy.change(**CHANGES[visit])
        if visit == 131:
            policy.set_mode("active")
        context = POOL[rng.integers(4)]
        try:
            made.append(policy.act(context, key=f"k{visit}"))
        except HorizonError:
            said.append(f"frozen at {visit}")
            policy.freeze(by="capri", why="the horizon is reached")
            made.append(policy.act(context, key=f"k{visit}"))
        last = made[-1]
        said.append((last.epoch, last.action_name, last.propensity, last.status))
        assert policy.act([0.0], key=f"k{max(0, visit - 9)}").id == made[max(0, visit - 9)].id
        if visit >= 3:
            said.append(policy.update(made[visit - 3].id, float(rng.uniform(-1, 1))))
    policy = restart(policy)
    policy.close_epoch(early=True)
    said += [record.to_dict() | {"seconds": 0} for record in policy.epochs]
    said += [*policy.ledger.events, policy.estimate(POOL).tobytes()]
    said += [(each.kind, each.record.get("by")) for each in policy.operations]
    said += [policy.problem.rewards, policy.horizon, policy.options, policy.mode]
    policy.close()
    return said


def played(said: list[Any]) -> list[tuple[Any, ...]]:
    return [each for each in said if isinstance(each, tuple) and len(each) == 4]


@pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning")
def test_a_store_changes_as_a_policy_in_memory_does(tmp_path: Path) -> None:
    seeded = SETTINGS | {"simulation_seed": 3001}
    url, turn = f"sqlite:///{tmp_path}/store.db", np.random.default_rng(0)
    file = tmp_path / "policy.capri"

    def reopened(policy: Capri) -> Capri:
        if turn.random() < 0.2:
            policy.close()
            return Capri.open(url)
        return policy

    def reloaded(policy: Capri) -> Capri:
        if turn.random() < 0.2:
            policy.save(file)
            before, policy = policy._engine.repository.rows, Capri.load(file)
            rows = policy._engine.repository.rows  # decisions by key live in their process
            rows._keys, rows.salt = before._keys, before.salt
        return policy

    expected = script(Capri(**seeded), lambda policy: policy)
    for restarted, store in ((reopened, {"store": url}), (reloaded, {})):
        told = script(Capri(**seeded, **store), restarted)
        assert len(told) == len(expected)
        for ours, theirs in zip(told, expected, strict=True):
            assert ours == theirs
    # Floors hold from an epoch on, the horizon is where it was asked for, and nothing is learnt
    # beyond it until it is raised.
    visits = played(expected)
    assert "frozen at 110" in expected
    assert {each[3] for each in visits[110:131]} == {VisitStatus.FROZEN}
    assert {each[3] for each in visits[:110] + visits[131:]} == {VisitStatus.SERVED}
    red = [each[2] for each in visits[45:60] if each[1] == "red"]
    assert min(red) >= 0.2 - 1e-9
    assert "violet" in {each[1] for each in visits[60:]}
    lengths = [each["length"] for each in expected if isinstance(each, dict)]
    assert sum(lengths) == 150 - 21
    assert expected[-4].wait == 3
    assert (expected[-4].missing, expected[-3]) == (0.25, 300)


def test_an_epoch_keeps_the_wait_it_was_planned_with(url: str) -> None:
    with Capri(**SETTINGS | {"reward_wait": 0}, store=url) as policy:
        made = [policy.act([0.0]) for _ in range(11)]
        policy.change(reward_wait=100)
        other = Capri.open(url)  # by what it is now, not as it was built
        made += [other.act([0.0]) for _ in range(30)]
        other.close()
        policy._engine.pace.step()
        old, new = made[0], made[-1]
        assert old.epoch == 1
        assert policy.update(new, 0.5) is RewardStatus.ACCEPTED
        policy.close_epoch(early=True)
        with pytest.raises(StorageError, match=r"problem\.rewards\.wait"):
            Capri(**SETTINGS | {"reward_wait": 0}, store=url)
        Capri(**SETTINGS | {"reward_wait": 100}, store=url).close()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"budget": Budget(epsilon=8.0, delta=1e-5)}, "what users were promised"),
        ({"contributions_per_user": 3}, "what users were promised"),
        ({"reward_range": (0, 2)}, "in these units"),
        ({"kernel": "auto"}, "prior of all that was learnt"),
        ({"missing_reward": "as-estimated"}, "messages under way"),
        ({"reward_wait": -1}, "reward_wait"),
        ({"limits": {"floor": {}}}, "capri.Limits"),
        ({"limits": Limits(floor={"pink": 0.1})}, "pink"),
        ({"growth": 0.5}, "growth"),
        ({"horizon": 3}, "planned up to there"),
        ({"draws": 3}, "cannot be changed"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(asked: dict[str, Any], says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = Capri(**SETTINGS, simulation_seed=1)
    policy.act([0.0])
    before = policy.operations
    with pytest.raises(ConfigurationError, match=says):
        policy.change(**asked)
    assert policy.operations == before
    assert policy.problem.rewards.wait == 5


def test_operations_say_by_whom_and_why() -> None:
    policy = Capri(**SETTINGS, simulation_seed=1)
    policy.change(reward_wait=7, by="anna", why="orders ship on Mondays")
    policy.set_mode("frozen", by="ben")
    policy.freeze(by="capri")  # it is already
    first, second = policy.operations
    assert (first.kind, second.kind) == ("settings", "mode")
    assert first.record["changed"] == {"reward_wait": 7}
    assert (first.record["by"], first.record["why"]) == ("anna", "orders ship on Mondays")
    assert second.record == {"mode": "frozen", "by": "ben"}
