"""After a release nothing of its users is left: not in rows, freed pages or the log.

Contexts, rewards, ids and keys are planted that occur nowhere else, and every byte that is kept is
searched for them. The same search finds them before the release, where it should.
"""

import os
import sqlite3
import stat
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri.store import sql_rows as shelves
from stores import Place, found_in, in_a_process
from waiting import eventually

PRIVATE: dict[str, Any] = {
    "simulation_seed": None,
    "contributions_per_user": 2,
    "reward_rule": "sum",
}


class Planted:
    """Values of one epoch's users that a search can find."""

    def __init__(self, seed: int, count: int) -> None:
        rng = np.random.default_rng([seed, 77])
        self.contexts = rng.random((count, 1))
        self.rewards = rng.uniform(-1, 1, (2, count))
        self.users = [f"user-{name:016x}" for name in rng.integers(1 << 60, size=count)]
        self.keys = [f"order-{name:016x}" for name in rng.integers(1 << 60, size=count)]
        self.reward_keys = [f"click-{name:016x}" for name in rng.integers(1 << 60, size=count)]

    @property
    def numbers(self) -> list[Any]:
        """What is needed until the release: rewards of a decision are combined on arrival."""
        return [*self.contexts[:, 0].tolist(), *(self.rewards[0] + self.rewards[1]).tolist()]

    @property
    def arrived(self) -> list[Any]:
        """Every number that was sent."""
        return [*self.numbers, *self.rewards.ravel().tolist()]

    @property
    def names(self) -> list[Any]:
        """What is needed as digests only."""
        return [*self.users, *self.keys, *self.reward_keys]

    def play(self, policy: capri.Capri) -> None:
        """Decide for all, and reward each twice."""
        decisions = policy.act_many(self.contexts, users=self.users, keys=self.keys)
        policy.update_many(decisions, self.rewards[0], keys=self.reward_keys)
        policy.update_many(decisions, self.rewards[1], keys=[key + "'" for key in self.reward_keys])


def test_after_a_release_no_value_of_its_users_is_left(store: Place) -> None:
    policy = store.open(**PRIVATE)
    planted = Planted(1, policy.remaining)
    planted.play(policy)
    before = store.raw()
    seen = found_in(before, planted.numbers)
    if store.sealed:
        assert seen == []
    else:
        assert len(seen) == len(planted.numbers)  # the search does find what is there
    assert found_in(before, planted.names) == []
    policy.close_epoch()
    assert found_in(store.raw(), planted.arrived + planted.names) == []
    policy.close()
    assert found_in(store.raw(), planted.arrived + planted.names) == []


def test_an_epoch_under_way_is_kept_while_another_is_forgotten(store: Place) -> None:
    """Overlapping epochs: the first goes with its release, the second stays."""
    changes = PRIVATE | {
        "preset": "practical", "first_epoch": 20, "growth": 1.1, "horizon": None,
        "reward_wait": 10,
    }  # fmt: skip
    policy = store.open(**changes)
    batches: list[tuple[int, Planted]] = []

    def visit() -> bool:
        """One more user; an epoch ends between two visits, once the next one is planned."""
        planted = Planted(len(batches) + 10, 1)
        decision = policy.act(planted.contexts[0], user=planted.users[0], key=planted.keys[0])
        policy.update(decision, planted.rewards[0, 0], key="one")
        batches.append((decision.epoch, planted))
        return bool(policy.epochs)

    eventually(visit)
    gone = [each for epoch, each in batches if epoch == 1]
    kept = [each for epoch, each in batches if epoch > len(policy.epochs)]
    raw = store.raw()
    assert gone
    assert kept
    for planted in gone:
        assert found_in(raw, planted.arrived + planted.names) == []
    if not store.sealed:
        for planted in kept:
            assert found_in(raw, [planted.contexts[0, 0], planted.rewards[0, 0]])


def test_a_release_by_another_process_forgets_as_well(store: Place) -> None:
    """A second policy that only looks on holds no old page of the log."""
    one, two = store.open(**PRIVATE), store.open(**PRIVATE)
    planted = Planted(2, one.remaining)
    planted.play(one)
    two.update("nobody", 0.5, key="a")  # it has read what is there
    two.close_epoch()
    eventually(lambda: found_in(store.raw(), planted.arrived + planted.names) == [])
    one.close()
    two.close()
    assert found_in(store.raw(), planted.arrived + planted.names) == []


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_stranger_who_reads_delays_forgetting_and_does_not_prevent_it(store: Place) -> None:
    """A reader pins pages of the log; they go when the next chance comes."""
    policy = store.open(**PRIVATE)
    planted = Planted(3, policy.remaining)
    planted.play(policy)
    stranger = sqlite3.connect(store.file, isolation_level=None)
    stranger.execute("BEGIN")
    stranger.execute("SELECT count(*) FROM decisions").fetchone()
    policy.close_epoch()
    assert policy.epochs[0].epoch == 1
    stranger.execute("ROLLBACK")
    stranger.close()
    policy.act([0.5], user="somebody")
    policy.close()
    assert found_in(store.raw(), planted.arrived + planted.names) == []


DIE_BEFORE_FORGETTING = """
import os, sys
from capri.store.sqlite import SqliteDatabase
from builders import small_policy
from test_store_forgetting import PRIVATE, Planted
policy = small_policy(store=sys.argv[1], **PRIVATE)
Planted(6, policy.remaining).play(policy)
SqliteDatabase.forget = lambda self: os._exit(0)
policy.close_epoch()
"""


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_who_comes_after_a_crash_forgets_what_it_left_in_the_log(store: Place) -> None:
    """The release was committed, and the process died before it could empty the log."""
    in_a_process(DIE_BEFORE_FORGETTING, str(store.url))
    planted = Planted(6, 8)
    assert found_in(store.raw(), planted.numbers)  # it did leave something
    policy = store.open(**PRIVATE)
    assert [event.epoch for event in policy.ledger.events] == [1]
    eventually(lambda: found_in(store.raw(), planted.arrived + planted.names) == [])


def test_keys_are_kept_for_their_retention_and_then_go(store: Place) -> None:
    """A keyed decision is found after the release, by a digest of its key alone."""
    policy = store.open(**PRIVATE)
    planted = Planted(4, policy.remaining)
    planted.play(policy)
    policy.close_epoch()
    policy = store.restarted(policy, **PRIVATE)
    again = policy.act([0.5], user="else", key=planted.keys[0])
    assert again.epoch == 1


@pytest.mark.parametrize("store", ["sqlite", "sqlite-sealed"], indirect=True)
def test_files_are_for_their_owner_alone(store: Place) -> None:
    """Whatever the process's mask says."""
    mask = os.umask(0)
    try:
        policy = store.open(**PRIVATE)
        Planted(5, policy.remaining).play(policy)
        policy.close_epoch()
        policy.act([0.5], user="somebody")
    finally:
        os.umask(mask)
    assert store.file is not None
    files = sorted(Path(store.file).parent.iterdir())
    assert store.file in files
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_dead_rows_go_once_no_older_transaction_runs(store: Place, level: str) -> None:
    """While one does, the rows stay in the table's file, and forgetting is still to be done."""
    assert store.server is not None
    policy = store.open(**PRIVATE)
    planted = Planted(5, policy.remaining)
    planted.play(policy)
    assert policy._engine is not None
    releases = policy._engine.loop.releases

    def size() -> int:
        assert store.server is not None
        with store.server.connection(store.database) as connection:
            found = connection.execute("SELECT pg_relation_size('rewards')").fetchone()
            return int(found[0])

    with store.server.connection(store.database) as older:
        older.execute(f"BEGIN ISOLATION LEVEL {level}")
        # The first holds a number of its own, the second a snapshot and no number.
        held = "pg_current_xact_id()" if level == "READ COMMITTED" else "1"
        older.execute(f"SELECT {held}")
        policy.close_epoch()
        assert releases.unclean
        assert not store_forgets(policy)
        assert size() > 0
        older.execute("COMMIT")
    eventually(lambda: not releases.unclean)
    assert size() == 0


def store_forgets(policy: capri.Capri) -> bool:
    """Whether nothing is left that was deleted."""
    assert policy._engine is not None
    return policy._engine.repository.database.forget()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_forgetting_waits_for_who_holds_a_table(store: Place) -> None:
    assert store.server is not None
    policy = store.open(**PRIVATE)
    assert store_forgets(policy)
    with store.server.connection(store.database) as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE keys IN SHARE UPDATE EXCLUSIVE MODE")
        assert not store_forgets(policy)
        other.execute("ROLLBACK")
    assert store_forgets(policy)


def test_expired_keys_go_where_nothing_is_released(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the planner, in slices, while nobody calls."""
    monkeypatch.setattr(shelves, "_SLICE", 3)
    monkeypatch.setattr(shelves, "_REWRITTEN", 2)
    now = [datetime(2030, 1, 1)]
    policy = store.open(**PRIVATE, key_retention=timedelta(days=1), clock=lambda: now[0])
    for turn in range(7):
        policy.act([0.0], user=f"user-{turn}", key=f"order-{turn}")
    assert policy._engine is not None
    shelf = policy._engine.repository

    def kept() -> int:
        (found,) = shelf.database.read(lambda each: each.rows("SELECT count(*) FROM keys"))
        return int(found[0])

    now[0] += timedelta(hours=23)
    policy._engine.pace.step()
    assert kept() == 7
    now[0] += timedelta(hours=2)
    eventually(lambda: kept() == 0)
    assert len(policy.epochs) == 0
