"""What operators change while a store serves: versions of the catalogue, and modes.

A simulation on a store, restarted again and again, must do what one in memory does, to the bit.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri import Budget, Capri, ConfigurationError, ContextPool, RewardStatus, VisitStatus
from stored_policies import building

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


@pytest.fixture
def build(url: str) -> Iterator[Callable[..., Capri]]:
    yield from building(SETTINGS | {"store": url})


def step(policy: Capri) -> None:
    """What the planner would do, now."""
    assert policy._engine is not None
    policy._engine.pace.step()


def script(policy: Capri, restart: Callable[[Capri], Capri]) -> list[Any]:
    """Visits, late rewards and keys, with two changes of the catalogue and of the mode."""
    rng = np.random.default_rng(3004)
    said: list[Any] = []
    made: list[capri.Decision] = []
    for visit in range(90):
        policy = restart(policy)
        if visit == 15:
            policy.replace_actions(["green", "violet", "never"])
        if visit == 17:
            policy.replace_actions(["green", "blue", "violet"])
        if visit == 40:
            policy.set_mode("default", action="green")
        if visit == 46:
            policy.set_mode("shadow")
        if visit == 58:
            policy.set_mode("active")
        if visit == 60:
            policy.replace_actions(["blue", "white"])
        chosen = str(rng.choice(["red", "green", "blue", "violet"]))
        chance = [0.5, 0.05, 1.0, float("nan")][int(rng.integers(4))]
        decision = policy.act(
            POOL[rng.integers(4)], key=f"k{visit}", chosen=chosen, chosen_propensity=chance
        )
        made.append(decision)
        shown = (decision.epoch, decision.action_name, decision.propensity, decision.status)
        said.append((*shown, decision.action.tolist()))
        again = policy.act([0.0], key=f"k{max(0, visit - 9)}")
        assert (again.id, again.action_name) == (
            made[max(0, visit - 9)].id,
            made[max(0, visit - 9)].action_name,
        )
        if visit >= 4 and visit % 3:
            said.append(policy.update(made[visit - 4].id, float(rng.uniform(-1, 1))))
    policy = restart(policy)
    policy.close_epoch(early=True)
    said += [record.to_dict() | {"seconds": 0} for record in policy.epochs]
    said += [*policy.ledger.events, *policy.shadow, policy.estimate(POOL).tobytes()]
    said += [(each.kind, each.record.get("mode")) for each in policy.operations]
    said += [policy.actions.names, policy.mode]
    policy.close()
    return said


def test_a_store_changes_as_a_policy_in_memory_does(tmp_path: Path) -> None:
    seeded = SETTINGS | {"simulation_seed": 3001}
    url, turn = f"sqlite:///{tmp_path}/store.db", np.random.default_rng(0)

    def restarted(policy: Capri) -> Capri:
        if turn.random() < 0.15:
            policy.close()
            return Capri.open(url)
        return policy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
        in_memory = script(Capri(**seeded), lambda policy: policy)
        on_a_store = script(Capri(**seeded, store=url), restarted)
    assert len(on_a_store) == len(in_memory)
    for ours, theirs in zip(on_a_store, in_memory, strict=True):
        assert ours == theirs
    played = {each[1] for each in in_memory if isinstance(each, tuple) and len(each) == 5}
    assert {"red", "green", "blue", "violet", "white"} <= played
    assert "never" not in played


def test_a_saved_simulation_keeps_mode_and_shadows(tmp_path: Path) -> None:
    seeded = SETTINGS | {"simulation_seed": 3001}
    file, turn = tmp_path / "policy.capri", np.random.default_rng(1)

    def restarted(policy: Capri) -> Capri:
        if turn.random() < 0.15:
            policy.save(file)
            before, policy = policy._engine.repository.rows, Capri.load(file)
            rows = policy._engine.repository.rows  # decisions by key live in their process
            rows._keys, rows.salt = before._keys, before.salt
        return policy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
        expected = script(Capri(**seeded), lambda policy: policy)
        assert script(Capri(**seeded), restarted) == expected


def test_every_process_sees_a_new_version_and_keeps_old_ones_apart(
    build: Callable[..., Capri],
) -> None:
    one, two = build(), build()
    early = [one.act([0.0], key=f"early {place}") for place in range(8)]
    two.replace_actions(["violet", "red"])
    assert one.actions.names == ("red", "green", "blue")  # until the next epoch
    late = []
    for place in range(40):
        late.append((one, two)[place % 2].act([1.0], key=f"late {place}"))
        step(one)
    assert {each.action_name for each in late if each.epoch > 1} <= {"violet", "red"}
    assert one.actions.names == ("violet", "red")
    reopened = build()
    for place, decision in enumerate(early):
        again = reopened.act([0.5], key=f"early {place}")
        assert (again.id, again.action_name) == (decision.id, decision.action_name)
    mixed = two.act_many([[0.0], [0.0]], keys=["early 0", f"late {len(late) - 1}"])
    assert mixed.action_name is not None
    assert mixed.action_name.tolist() == [early[0].action_name, late[-1].action_name]
    assert mixed[1].action_name == late[-1].action_name
    assert [each.kind for each in reopened.operations] == ["catalogue"]


def test_late_rewards_of_an_older_version_are_read_by_their_own(
    build: Callable[..., Capri], url: str
) -> None:
    """Without a budget the release is exact: it is counted again with the epoch's own actions."""
    from recount import Recount, Row, released_in

    policy = build(budget=None)
    rows = []

    def visit() -> None:
        decision = policy.act([0.5], key=f"{len(rows)}")
        row = Row(decision.id, decision.number, decision.epoch, decision.action_index,
                  np.array([0.5]), True)  # fmt: skip
        rows.append(row)

    for _ in range(11):
        visit()
    policy.replace_actions(["blue", "violet", "black", "red"])
    while not any(row.epoch > 1 for row in rows):
        visit()
        step(policy)
    for row in rows:  # late: the next epoch is under way, with other actions
        value = 0.25 * (1 + row.number % 3)
        if policy.update(row.id, value) is RewardStatus.ACCEPTED:
            row.rewards.append(value)
    policy.close_epoch(early=True)
    assert policy._engine is not None
    state = policy._engine.state
    found = released_in(url, policy.problem.kernel)
    assert len(found) >= 2
    for released in found:
        problem = state.problem_of(state.look(), released.epoch)
        Recount(problem, released).check([row for row in rows if row.epoch == released.epoch])


def test_a_default_serves_everybody_and_teaches_nothing(build: Callable[..., Capri]) -> None:
    one, two = build(), build(budget=SETTINGS["budget"])
    one.set_mode("default", action="blue")
    first = two.act([0.25])
    assert (first.action_name, first.propensity, first.status) == (
        "blue", 1.0, VisitStatus.DEFAULT,
    )  # fmt: skip
    assert two.update(first, 0.5) is RewardStatus.UNCOUNTED
    served = [two.act([0.25]) for _ in range(30)]
    assert {each.action_name for each in served} == {"blue"}
    two.close_epoch(early=True)
    assert not two.ledger.events
    assert not two.epochs
    two.set_mode("active")
    assert one.act([0.0]).status is VisitStatus.SERVED
    assert [str(each).split(" ", 2)[2] for each in one.operations] == [
        "mode action='blue', mode='default'",
        "mode mode='active'",
    ]


def test_a_default_must_be_among_the_actions_of_now_and_of_the_next_epoch(
    build: Callable[..., Capri],
) -> None:
    policy = build()
    with pytest.raises(ConfigurationError, match="'pink' is none of the actions"):
        policy.set_mode("default", action="pink")
    policy.replace_actions(["blue", "violet"])
    with pytest.raises(ConfigurationError, match="'red' is none"):
        policy.set_mode("default", action="red")
    policy.set_mode("default", action="blue")
    with pytest.raises(ConfigurationError, match="'blue' is none"):
        policy.replace_actions(["violet", "black"])
    for wrong in ({"mode": "off"}, {"mode": "default"}, {"mode": "active", "action": "blue"}):
        with pytest.raises(ConfigurationError):
            policy.set_mode(**wrong)
