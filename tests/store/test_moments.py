"""What becomes public of a release, and when, does not follow how long its data took to add up."""

import os
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from capri import Capri, RewardStatus, StorageError
from capri.epoch.rewards import MOST_REWARDS
from capri.joint.pace import Worker
from capri.joint.release import SettledSum
from capri.store.maintenance import rotate_store_key
from capri.store.sql import SqlRepository
from capri.store.sql_rows import SqlRows
from capri.store.transaction import open_database
from stored_policies import policy

pytestmark = pytest.mark.usefixtures("unforced")


def rows(url: str, sql: str) -> list[Any]:
    database = open_database(url, create=False)
    try:
        return database.read(lambda transaction: transaction.rows(sql))
    finally:
        database.close()


# -- rewards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_rewards_of_a_decision_take_one_row_of_one_size(url: str, sealed: bool) -> None:
    """However often they come, one by one or in a list; the same in memory."""
    terms: dict[str, Any] = {"reward_rule": "sum", "first_epoch": 8, "budget": None}
    key = os.urandom(32) if sealed else None
    with policy(url, **terms, store_key=key) as run:
        alone = policy(None, **terms)
        pairs = [(run.act([0.2]), alone.act([0.2])) for _ in range(3)]
        for often, decisions in zip((1, 7, 20 * MOST_REWARDS), pairs, strict=True):
            for one, decision in zip((run, alone), decisions, strict=True):
                keys, values = [f"k{place}" for place in range(often)], np.full(often, 1 / 64)
                found = one.update_many([decision.id] * often, values, keys=keys)
                assert found.tolist() == [
                    RewardStatus.ACCEPTED if place < MOST_REWARDS else RewardStatus.UNCOUNTED
                    for place in range(often)
                ]
                assert one.update(decision, 0.5, key="k0") is RewardStatus.DUPLICATE
        assert run.update(pairs[2][0], 0.5, key="new") is RewardStatus.UNCOUNTED
        stored = rows(url, "SELECT number, secret FROM rewards")
        assert sorted(number for number, _ in stored) == [0, 1, 2]
        assert len({len(secret) for _, secret in stored}) == 1
        for each in (run, alone):
            each.close_epoch(early=True)


def test_of_rewards_that_meet_none_is_lost(url: str) -> None:
    """Two objects of one store reward the same decision in turns: each sees what the other did."""
    terms: dict[str, Any] = {"reward_rule": "max", "first_epoch": 8, "budget": None}
    with policy(url, **terms) as one, policy(url, **terms) as two:
        decision = one.act([0.2])
        for place, run in enumerate([one, two] * 4):
            assert run.update(decision.id, place / 8, key=f"k{place}") is RewardStatus.ACCEPTED
            assert run.update(decision.id, 1.0, key=f"k{place}") is RewardStatus.DUPLICATE
        ((secret,),) = rows(url, "SELECT secret FROM rewards")
        assert np.frombuffer(secret[:8])[0] == 7 / 8


# -- moments --------------------------------------------------------------------------------------


class Watched:
    """A policy whose clock moves at public times, and what anybody sees of it then."""

    def __init__(
        self, url: str, monkeypatch: pytest.MonkeyPatch, reading: float, **terms: Any
    ) -> None:
        """``reading``: seconds that pass while the data of an epoch are read."""
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        monkeypatch.setattr(Worker, "start", lambda planner: None)  # steps are taken here
        read = SqlRows._part

        def slowly(rows: SqlRows, *arguments: Any) -> Any:
            self.now += timedelta(seconds=reading)
            return read(rows, *arguments)

        monkeypatch.setattr(SqlRows, "_part", slowly)
        self.run = policy(url, clock=lambda: self.now, **terms)
        self.url = url

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()

    def seen_at(self, moment: datetime) -> tuple[Any, ...]:
        """A step at a public moment, and all that is public then."""
        self.now = max(self.now, moment)
        assert self.run._engine is not None
        self.run._engine.pace.step()
        return (
            rows(self.url, "SELECT issued, generation FROM counter"),
            rows(self.url, "SELECT number, state, due, released, missed FROM epochs"),
            rows(self.url, "SELECT epoch, number, first FROM segments ORDER BY epoch, number"),
            [event.epoch for event in self.run.ledger.events],
            len(self.run.epochs),
        )

    def close_first(self) -> datetime:
        """Play until the first epoch has waited long enough; when that was."""
        while True:
            due = self.now
            self.run.act([0.2])
            if self.seen_at(due)[1][0][1] == "closed":
                return due

    def day(self) -> list[tuple[Any, ...]]:
        """Two epochs and their waits, one decision every 20 milliseconds."""
        start, told = self.now, []
        for place in range(130):
            moment = start + timedelta(milliseconds=20 * place)
            self.now = max(self.now, moment)
            self.run.act([0.2])
            told.append(self.seen_at(moment))
        return told


def test_nothing_public_follows_how_long_adding_up_took(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for reading in (0.0, 0.19):
        with (
            monkeypatch.context() as patch,
            Watched(
                f"sqlite:///{tmp_path}/{reading}.db", patch, reading, first_epoch=32, reward_wait=8
            ) as run,
        ):
            told.append(run.day())
            assert run.run.progress.missed == 0
    assert told[0] == told[1]
    assert told[0][-1][4] >= 2  # releases


def test_a_moment_that_is_missed_is_counted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        monkeypatch.context() as patch,
        Watched(f"sqlite:///{tmp_path}/slow.db", patch, 0.9, first_epoch=32, reward_wait=8) as slow,
    ):
        start = slow.close_first()
        assert slow.now >= start + timedelta(seconds=0.9)  # its data were read
        at = [start + timedelta(seconds=each) for each in (1.0, 1.2, 1.26)]
        assert [slow.seen_at(moment)[4] for moment in at] == [0, 0, 1]
        assert slow.run.progress.missed == 1
        ((missed,),) = rows(slow.url, "SELECT missed FROM epochs WHERE number = 1")
        assert missed == 2  # half a second, three quarters, then five quarters


def test_a_law_takes_effect_at_a_slot_of_the_grid(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        monkeypatch.context() as patch,
        Watched(f"sqlite:///{tmp_path}/grid.db", patch, 0.0, first_epoch=256, reward_wait=8) as run,
    ):
        for place in range(700):
            run.run.act([0.2])
            if place % 7 == 0:
                run.seen_at(run.now + timedelta(milliseconds=70))
        segments = rows(
            run.url,
            "SELECT segments.first - epochs.first, epochs.length FROM segments "
            "JOIN epochs ON epochs.number = segments.epoch WHERE segments.number > 1",
        )
        assert segments
        assert all(after % max(1, length // 64) == 0 for after, length in segments)
        assert any(length >= 256 for _, length in segments)


def test_an_older_sum_is_taken_over_from_a_process_that_died(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has closed an epoch adds it up; another one waits a little, and then does so itself."""
    with (
        monkeypatch.context() as patch,
        Watched(f"sqlite:///{tmp_path}/one.db", patch, 0.0, first_epoch=32, reward_wait=8) as dead,
    ):
        dead.close_first()
        with Watched(dead.url, patch, 0.0, first_epoch=32, reward_wait=8) as heir:
            start = heir.now
            assert heir.seen_at(start + timedelta(seconds=1))[4] == 0
            heir.seen_at(start + timedelta(seconds=4))
            assert heir.seen_at(start + timedelta(seconds=8))[4] == 1
            assert len(heir.run.ledger.events) == 1
        assert dead.seen_at(dead.now + timedelta(seconds=9))[4] == 1


# -- noise ----------------------------------------------------------------------------------------


def refusing(url: str) -> Callable[[], None]:
    """Have the store fail every transaction that publishes a release, at its very end.

    Returns what ends that.
    """
    if url.startswith("sqlite"):
        file = url.removeprefix("sqlite:///")
        with sqlite3.connect(file) as connection:
            connection.execute(
                "CREATE TRIGGER refuse AFTER UPDATE OF generation ON counter WHEN EXISTS "
                "(SELECT 1 FROM epochs WHERE state = 'released') "
                "BEGIN SELECT RAISE(ABORT, 'planted'); END"
            )
        connection.close()

        def mend() -> None:
            with sqlite3.connect(file) as connection:
                connection.execute("DROP TRIGGER refuse")
            connection.close()

        return mend
    import psycopg

    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN "
            "IF NEW.state = 'released' THEN RAISE EXCEPTION 'planted'; END IF; RETURN NULL; END "
            "$$ LANGUAGE plpgsql"
        )
        server.execute(
            "CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON epochs DEFERRABLE INITIALLY "
            "DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
        )

    def mend() -> None:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("DROP TRIGGER refuse ON epochs")

    return mend


def test_a_key_that_is_rotated_while_noise_is_drawn_blocks_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was drawn is not stored under a key that nobody has any more."""
    monkeypatch.setattr(Worker, "start", lambda planner: None)
    url, old, new = f"sqlite:///{tmp_path}/store.db", os.urandom(32), os.urandom(32)
    run = policy(url, first_epoch=8, store_key=old)
    run.update_many(run.act_many(np.full((8, 1), 0.2)), np.linspace(-1, 1, 8))
    honest = SettledSum.released

    def rotating(settled: SettledSum, gate: Any) -> Any:
        shelf = SqlRepository(open_database(url, create=False), old)
        shelf.read_secrets()
        rotate_store_key(shelf, new)
        shelf.database.close()
        return honest(settled, gate)

    with monkeypatch.context() as patch:
        patch.setattr(SettledSum, "released", rotating)
        with pytest.raises(StorageError):  # its key was rotated out
            run.close_epoch()
    run.close()
    assert rows(url, "SELECT * FROM draws") == []
    with Capri.open(url, store_key=new) as heir:
        heir.close_epoch()
        assert len(heir.ledger.events) == 1


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_a_release_that_failed_is_published_with_the_noise_it_had(
    url: str, sealed: bool, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second noisy copy of one sum is ever made, so none lies in a log of the database."""
    monkeypatch.setattr(Worker, "start", lambda planner: None)
    key = os.urandom(32) if sealed else None
    run = policy(url, first_epoch=8, store_key=key)
    run.update_many(run.act_many(np.full((8, 1), 0.2)), np.linspace(-1, 1, 8))
    mend = refusing(url)
    for _ in range(2):
        with pytest.raises(StorageError):
            run.close_epoch()
        assert rows(url, "SELECT release FROM epochs WHERE release IS NOT NULL") == []
    ((kept,),) = rows(url, "SELECT secret FROM draws")
    mend()
    if dies:
        run.close()
        run = Capri.open(url, store_key=key)
    run.close_epoch()
    ((release,),) = rows(url, "SELECT release FROM epochs WHERE release IS NOT NULL")
    if sealed:
        assert bytes(release)[40:104] not in bytes(kept)
        shelf = SqlRepository(open_database(url, create=False), key)
        shelf.read_secrets()
        kept = shelf.rows.seal.open("draws", 1, "secret", kept)
        shelf.database.close()
    assert bytes(kept) == bytes(release)
    assert rows(url, "SELECT * FROM draws") == []
    assert len(run.ledger.events) == 1
    run.close()
