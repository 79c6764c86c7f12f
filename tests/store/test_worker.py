"""The thread beside requests: it tells of failures, outlives them, and lets go when asked."""

import logging
from pathlib import Path
from threading import Event, Thread

import pytest

from capri import StorageError
from capri.joint import pace
from capri.joint.pace import Worker
from capri.store.postgres import PostgresDatabase
from capri.store.sqlite import SqliteDatabase
from capri.store.transaction import Transaction
from postgres_server import NoServerError, PostgresServer, unavailable
from stored_policies import policy
from waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("unforced")


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_REST", 0.01)
    monkeypatch.setattr(pace, "_PERIOD", 0.01)


def until_refused(check: object) -> StorageError:
    problems: list[StorageError] = []

    def refused() -> bool:
        try:
            check()  # type: ignore[operator]
        except StorageError as problem:
            problems.append(problem)
        return bool(problems)

    eventually(refused)
    return problems[0]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("problem", [ValueError("0.123456789"), SystemExit(), KeyboardInterrupt()])
def test_failures_are_told_without_values_and_end(
    problem: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    mended = Event()

    def step() -> None:
        if not mended.is_set():
            raise problem

    planner = Worker(step)
    with caplog.at_level(logging.WARNING, "capri.store"):
        planner.start()
        said = until_refused(planner.check)
    assert type(problem).__name__ in str(said)
    assert "0.123456789" not in str(said) + caplog.text
    assert caplog.records[0].name == "capri.store"
    mended.set()
    eventually(lambda: not planner._failures)
    planner.check()
    planner.stop()


@pytest.mark.usefixtures("restless")
def test_a_policy_whose_planner_fails_says_so(tmp_path: Path) -> None:
    """A copy of the same generation that went another way: each step refuses it."""
    run = policy(f"sqlite:///{tmp_path}/store.db")
    decision = run.act([0.2])
    assert run._engine is not None

    def spoil(transaction: Transaction) -> None:
        transaction.run("UPDATE history SET digest = ?", ("0" * 64,))

    run._engine.repository.database.write(spoil)
    assert "went another way" in str(until_refused(lambda: run.act([0.2])))
    assert "went another way" in str(until_refused(lambda: run.update(decision, 0.5)))
    run.close()


def test_an_interrupt_is_for_the_thread_it_came_to(tmp_path: Path) -> None:
    """The leader of a group is interrupted; who waits in it is told to try again."""
    database = SqliteDatabase(tmp_path / "store.db")
    begun, queued = Event(), Event()
    caught: list[BaseException] = []

    def first(_: Transaction) -> None:
        begun.set()
        queued.wait(PATIENCE)

    def interrupted(_: Transaction) -> None:
        raise KeyboardInterrupt

    def attempt(job: object) -> None:
        try:
            database.write(job)  # type: ignore[arg-type]
        except BaseException as problem:
            caught.append(problem)

    leader = Thread(target=attempt, args=(first,))
    leader.start()
    begun.wait(PATIENCE)
    members = [Thread(target=attempt, args=(interrupted,)) for _ in range(2)]
    for member in members:
        member.start()
    eventually(lambda: len(database._group._waiting) == 2)
    queued.set()
    for thread in (leader, *members):
        thread.join()
    assert sorted(type(each).__name__ for each in caught) == ["InDoubtError", "KeyboardInterrupt"]
    assert database.write(lambda transaction: transaction.rows("SELECT 1")) == [(1,)]
    database.close()


def test_closing_does_not_wait_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step under way would try for an hour."""
    monkeypatch.setitem(PostgresDatabase.__init__.__kwdefaults__, "patience", 3600.0)
    try:
        server = PostgresServer().__enter__()
    except (NoServerError, OSError, ImportError) as missing:
        unavailable(str(missing))
    try:
        with server.database() as url:
            run = policy(url)
            run.act([0.2])
            assert run._engine is not None
            planner, begun = run._engine.pace.planner, Event()
            step = planner._step
            planner._step = lambda: (begun.set(), step())[1]  # type: ignore[func-returns-value]
            server.stop()
            begun.clear()
            assert begun.wait(PATIENCE)
            run.close()
            assert planner._thread is not None
            planner._thread.join(PATIENCE)
            assert not planner._thread.is_alive()
    finally:
        server.__exit__()
