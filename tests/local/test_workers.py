"""Several processes are one aggregator: in one SQLite file, and in a Postgres database."""

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from devices import CONTEXTS, fill, honest_reports, open_epochs, small_aggregator

import capri
from capri.errors import DataError, HorizonError, StorageError
from capri.local.summing import aggregate
from capri.store.sql_rows import SqlRows

ACCEPTED, STALE, UNKNOWN, REPLAYED, MALFORMED = capri.ReportStatus


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of either kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/store.db"


def pair(url: str, **changes: Any) -> tuple[capri.LocalCapri, capri.LocalCapri]:
    one, two = (small_aggregator(store=url, **changes) for _ in range(2))
    return one, two


def test_two_are_one(url: str) -> None:
    """Duplicates to both count once, and a reading by one is a bundle of both, to the bit."""
    alone, (one, two) = small_aggregator(), pair(url)
    reports = honest_reports(alone, 65)
    alone.receive_many(reports)
    assert (one.receive_many(reports[:30]) == ACCEPTED).all()
    assert Counter(two.receive_many(reports[10:50]).tolist()) == {REPLAYED: 20, ACCEPTED: 20}
    assert (one.remaining, two.remaining, one.reports) == (10, 10, 50)
    assert (
        list(one.receive_many([reports[49], *reports[50:]]))
        == [REPLAYED] + [ACCEPTED] * 10 + [STALE] * 5
    )
    for each in (one, two):
        assert each.bundle() == alone.bundle()
        assert len(each.epochs) == 1
        assert each.estimate(CONTEXTS).tobytes() == alone.estimate(CONTEXTS).tobytes()
        assert each.receive(reports[3]) is STALE
        assert each.certificate().releases == alone.certificate().releases
    one.close()
    two.close()


def test_a_third_that_comes_later_knows_everything(url: str) -> None:
    one, two = pair(url, reward_wait=100, horizon=1000)
    reports = honest_reports(one, 90)
    one.receive_many(reports[:60])
    two.receive_many(reports[60:75])
    newer = honest_reports(two, 20, first=200)
    two.receive_many(newer[:10])
    one.close()
    two.close()
    third = capri.LocalCapri.open(url)
    assert [(each.plan.epoch, each.unread) for each in open_epochs(third)] == [(1, 15), (2, 10)]
    again = third.receive_many([*reports, *newer])
    assert Counter(again.tolist()) == {REPLAYED: 85, ACCEPTED: 25}
    alone = small_aggregator(reward_wait=100, horizon=1000)
    alone.receive_many([*reports[:75], *newer[:10], *reports[75:], *newer[10:]])
    for each in (third, alone):
        each.close_epoch(early=True)
    assert third.bundle() == alone.bundle()
    third.close()


def test_actions_sums_and_early_ends_are_seen_by_both(url: str, tmp_path: Path) -> None:
    settings = {"actions": ["poem", "novel", "essay"], "horizon": 1000, "kernel": "auto"}
    one, two = pair(url, **settings)
    two.replace_actions(["poem", "novel", "saga"])
    with pytest.raises(HorizonError, match="early=True"):
        one.close_epoch()
    one.receive_many(honest_reports(one, 20))
    one.close_epoch(early=True)
    for each in (one, two):
        assert list(each.actions.names or ()) == ["poem", "novel", "saga"]
        assert [record.length for record in each.epochs] == [20]
    path = tmp_path / "reports"
    path.write_bytes(b"".join(honest_reports(two, 50, first=100)))
    made = aggregate(two.bundle(), [path])
    two.receive_sum(made)
    assert [record.length for record in one.epochs] == [20, 50]
    with pytest.raises(DataError, match="taken up before"):
        one.receive_sum(made)
    later = capri.LocalCapri.open(url)
    assert later.bundle() == one.bundle()
    for each in (one, two, later):
        each.close()


def test_the_clock_of_either_ends_an_epoch(url: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    settings = {"epoch_time": timedelta(hours=1), "horizon": 1000, "clock": lambda: now}
    one, two = pair(url, **settings)
    reports, bundle = honest_reports(one, 8), one.bundle()
    one.receive_many(reports[:5])
    now += timedelta(minutes=59)
    two.receive_many(reports[5:])
    assert two.bundle() == bundle
    now += timedelta(minutes=1)
    assert two.bundle() != bundle
    assert [record.length for record in one.epochs] == [8]
    assert one.receive(reports[0]) is STALE
    one.close()
    two.close()


def test_hooks_are_told_of_what_others_read(url: str) -> None:
    one, two = pair(url)
    seen: list[int] = []
    two.on_release(lambda record: seen.append(record.length))
    fill(one)
    assert seen == []
    two.bundle()
    assert seen == [60]
    one.close()
    two.close()


def test_what_fails_counts_nowhere(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a unit of work dies of: the same bytes may be sent again, and count once."""
    one, alone = small_aggregator(store=url), small_aggregator()
    reports = honest_reports(one, 65)
    one.receive_many(reports[:10])
    full = StorageError("the disk is full")
    for method, batch in (("write_reports", reports[10:20]), ("drop_reports", reports)):
        with monkeypatch.context() as patch:
            patch.setattr(SqlRows, method, Mock(side_effect=full))
            with pytest.raises(StorageError, match="full"):
                one.receive_many(batch)
    # The end of the epoch is stored, its reading is not: whoever comes next makes it.
    again = capri.LocalCapri.open(url)
    assert (one.receive_many(reports[:60]) == STALE).all()
    alone.receive_many(reports)
    assert one.bundle() == again.bundle() == alone.bundle()
    one.close()
    again.close()


def test_other_policies_are_refused(url: str) -> None:
    small_aggregator(store=url).close()
    with pytest.raises(StorageError, match="another configuration: problem"):
        small_aggregator(store=url, reward_bound=2.0)
    with pytest.raises(StorageError, match=r"LocalCapri\.open"):
        capri.Capri.open(url)
    kept = capri.LocalCapri.open(url)
    with pytest.raises(StorageError, match="copy the database"):
        kept.save("nowhere")
    kept.close()
    with pytest.raises(StorageError, match="closed"):
        kept.bundle()


def test_killed_processes_leave_one_history(url: str) -> None:
    """8 kills at any moment; crashes.py says what is impossible. ``make faults`` has more."""
    here = Path(__file__).parent
    asked = [sys.executable, str(here / "crashes.py"), "--kills", "4", "--store", url]
    limits = {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(asked, env=os.environ | limits, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 processes killed" in done.stdout


def test_reports_that_no_unit_can_hold_are_split(url: str) -> None:
    """One call across two ends: every part is stored under its own numbers."""
    one = small_aggregator(store=url, reward_wait=30, horizon=1000)
    early = honest_reports(one, 80)
    found = one.receive_many(np.frombuffer(b"".join(early), np.uint8).reshape(80, -1))
    assert (found == ACCEPTED).all()
    assert one.under_way == (2, 20, 90)
    one.close()


def test_reports_between_judging_and_storing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other worker stores some of the same just before: they count once."""
    one, two = pair(url)
    reports = honest_reports(one, 20)
    write = one._state.repository.write

    def late(function: Any) -> Any:
        monkeypatch.undo()
        two.receive_many(reports[5:15])
        return write(function)

    monkeypatch.setattr(one._state.repository, "write", late)
    found = one.receive_many(reports)
    assert list(found) == [ACCEPTED] * 5 + [REPLAYED] * 10 + [ACCEPTED] * 5
    assert (one.reports, two.reports) == (20, 20)
    one.close()
    two.close()


def test_a_reading_between_looking_and_reading(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports to a bundle that a worker has not seen yet are known to it all the same."""
    one, two = pair(url)
    reports, newer = honest_reports(one, 60), list[bytes]()
    two.receive_many(reports[:30])
    read = one._state.repository.read

    def late(function: Any) -> Any:
        monkeypatch.undo()
        two.receive_many(reports[30:])
        newer.extend(honest_reports(two, 5, first=100))
        two.receive_many(newer)
        return read(function)

    monkeypatch.setattr(one._state.repository, "read", late)
    assert one.receive(reports[0]) is STALE
    assert (one.receive_many(newer) == REPLAYED).all()
    assert [epoch.unread for epoch in open_epochs(one)] == [5]
    one.close()
    two.close()
