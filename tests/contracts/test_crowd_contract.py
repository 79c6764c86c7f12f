"""Where nothing is public but ranges: the steps that learn who comes, on every store.

The model is the policy in memory. A store is restarted in the middle of every step and at its end,
and meets users who come too often, late rewards, limits, and other actions all the same.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import records, small_policy
from stores import Place, make_place

SETTINGS: dict[str, Any] = {
    "preset": "practical",
    "contexts": capri.ContextPool.from_ranges([(-3, 3), (-3, 3)], size=16),
    "actions": ["red", "green", "blue"],
    "kernel": "auto",
    "first_epoch": 21,
    "growth": 1.2,
    "horizon": None,
    "reward_wait": 6,
    "contributions_per_user": 3,
    "limits": capri.Limits(floor={0: 0.2}),
    "budget": capri.Budget(epsilon=8.0, delta=1e-5),
}
PURE = {"budget": capri.Budget(epsilon=8.0)}
Restart = Callable[[capri.Capri], capri.Capri]
ROWS = np.array([[-1.0, 1.0], [0.5, 0.5], [2.0, -2.0]])


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield from make_place(request.param, request)


def come(generator: np.random.Generator, count: int) -> np.ndarray:
    """Two columns that go together; some cells are no numbers, or outside."""
    one = generator.normal(size=count)
    rows = np.stack([one, 0.9 * one + 0.4 * generator.normal(size=count)], axis=1)
    rows[generator.random(count) < 0.05] = [np.nan, 1e9]
    return rows


def script(policy: capri.Capri, restarted: Restart) -> list[Any]:
    """Visits until the third epoch that learns of rewards; what is public after each batch."""
    generator, said, made = np.random.default_rng(4), [], list[str]()
    for batch in range(26):
        policy = restarted(policy)
        if batch == 4:  # while it learns who comes
            policy.replace_actions(["green", "violet", "blue"])
        users = generator.integers(40, size=5).tolist()
        keys = [f"{batch} {place}" for place in range(4)] + [f"{max(0, batch - 2)} 0"]
        rows = come(generator, 5)
        given, left = [], 5
        while left:  # an epoch may end within a batch
            part = slice(5 - left, 5 - left + min(left, policy.remaining))
            given += list(policy.act_many(rows[part], users=users[part], keys=keys[part]))
            left = 5 - part.stop
        said += [(each.id, each.epoch, each.action_name, each.propensity) for each in given]
        made += [each.id for each in given]
        values = generator.uniform(-1, 1, 5)
        values[0] = np.nan
        late = [made[max(0, len(made) - int(back))] for back in generator.integers(1, 14, size=5)]
        said.append(policy.update_many(late, values).tolist())
        said.append((policy.crowd(), policy.probabilities(ROWS).tobytes()))
    policy.close_epoch(early=True)
    policy.plan()
    said += [policy.crowd(), records(policy), policy.ledger.events]
    said.append([policy.probabilities(ROWS).tobytes(), policy.estimate(ROWS).tobytes()])
    return said


def in_memory(**changes: Any) -> list[Any]:
    """The script of a policy that is not restarted."""
    return script(small_policy(**SETTINGS | changes), lambda policy: policy)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
        yield


@pytest.mark.parametrize("changes", [{}, PURE], ids=["gaussian", "pure"])
def test_a_store_learns_who_comes_as_memory_does(store: Place, changes: dict[str, Any]) -> None:
    """Restarted after every batch: in the middle of each step, at its end and at its beginning."""
    settings = SETTINGS | changes
    expected = in_memory(**changes)
    assert expected[-4].step == "over", "the pool was made up"
    assert expected[-4].correlation_error > 0, "dependence was asked for"
    policy = store.open(**settings)
    assert script(policy, lambda each: store.restarted(each, **settings)) == expected


def test_a_file_learns_who_comes_as_memory_does(tmp_path: Path) -> None:
    """Saved and loaded after every batch; decisions by key live in their process."""

    def restarted(policy: capri.Capri) -> capri.Capri:
        policy.save(tmp_path / "policy.capri")
        before = policy._engine.repository.rows
        policy = capri.Capri.load(tmp_path / "policy.capri", take_over=True)
        rows = policy._engine.repository.rows
        rows._keys, rows.salt = before._keys, before.salt  # type: ignore[attr-defined]
        return policy

    assert script(small_policy(**SETTINGS), restarted) == in_memory()


def test_workers_learn_of_one_crowd(store: Place) -> None:
    """Each sees what visits told the other; a third one that comes later finds the same."""
    settings = SETTINGS | {"simulation_seed": None, "reward_wait": 0}
    one, two = store.open(**settings), store.open(**settings)
    generator = np.random.default_rng(5)
    steps = set()
    while one.crowd().step != "over":
        for worker in (one, two):
            rows = come(generator, 3)[: worker.remaining]
            worker.act_many(
                rows, users=[f"{n}" for n in generator.integers(1 << 40, size=len(rows))]
            )
            worker.close_full_epoch()
        assert one.plan().epoch == two.plan().epoch
        steps.add(one.crowd().step)
        assert one.crowd() == two.crowd()
    assert steps >= {"marginals", "dependence", "over"}
    third = store.open(**settings)
    laws = {each.probabilities(ROWS).tobytes() for each in (one, two, third)}
    assert len(laws) == 1
    assert third.crowd() == one.crowd()
    events = one.ledger.events
    assert [each.participants for each in events] == [each.length for each in one.epochs]
