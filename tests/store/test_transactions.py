"""Transactions on both databases: durable, alone when they fail, shared by threads."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

import capri
from capri.errors import ConfigurationError, StorageError
from capri.store.sqlite import SqliteDatabase
from capri.store.tables import TABLES
from capri.store.transaction import Database, Transaction, open_database
from postgres_server import PostgresServer
from stores import in_a_process
from waiting import PATIENCE, eventually


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


def numbers(transaction: Transaction) -> list[int]:
    return [row[0] for row in transaction.rows("SELECT number FROM decisions ORDER BY number")]


def adding(number: int) -> Callable[[Transaction], None]:
    return lambda transaction: transaction.insert("decisions", [(number, b"secret")])


def test_what_is_written_is_there_for_another_process(url: str, database: Database) -> None:
    database.write(adding(7))
    other = open_database(url)
    assert other.read(numbers) == [7]
    other.close()


def test_a_failure_changes_nothing(database: Database) -> None:
    def failing(transaction: Transaction) -> None:
        adding(1)(transaction)
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        database.write(failing)
    assert database.read(numbers) == []
    database.write(adding(2))
    assert database.read(numbers) == [2]


def test_every_table_takes_rows_one_by_one_and_together(database: Database) -> None:
    samples = {"bigint": 1, "text": "open", "bytea": b"\0\xff'", "double precision": 0.5}

    def fill(transaction: Transaction) -> None:
        for name, table in TABLES.items():
            row = tuple(samples[kind] for kind in table.columns.values())
            transaction.insert(name, [row])
            assert transaction.insert_new(name, [row, row]) == 0
            # The statement names every column of the table, in the order of the table.
            assert transaction.row(f"SELECT * FROM {name}") == row

    database.write(fill)


def test_many_rows_at_once(database: Database) -> None:
    rows = [(number, os.urandom(number % 9)) for number in range(1000)]

    def store(transaction: Transaction) -> list[tuple[int, bytes]]:
        transaction.insert("decisions", rows[:500])
        assert transaction.insert_new("decisions", rows) == 500
        return transaction.among(
            "SELECT number, secret FROM decisions WHERE number", range(998, 2000)
        )

    assert sorted(database.write(store)) == rows[998:]
    texts = database.write(
        lambda transaction: (
            transaction.insert("users", [("ann", 1), ("bo'b", 2)]),
            transaction.among("SELECT total FROM users WHERE digest", ["bo'b", "nobody"]),
            transaction.among("SELECT total FROM users WHERE digest", ["ann"]),
            transaction.among("SELECT total FROM users WHERE digest", []),
        )
    )
    assert texts[1:] == ([(2,)], [(1,)], [])


def test_threads_share_commits_and_fail_alone(database: Database) -> None:
    """200 jobs of 8 threads, every fifth refused: the others are all there, once."""
    groups: list[object] = []

    def job(number: int) -> int:
        def function(transaction: Transaction) -> int:
            groups.append(transaction)
            adding(number)(transaction)
            if number % 5 == 0:
                raise KeyError(number)
            if number % 7 == 0:
                adding(number)(transaction)  # the database refuses: there is one already
            return number

        return database.write(function)

    def outcome(number: int) -> str:
        try:
            return "done" if job(number) == number else "another's"
        except KeyError as problem:
            return "refused" if problem.args == (number,) else "another's"
        except StorageError:
            return "broken"

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(outcome, range(200)))
    expected = ["refused" if n % 5 == 0 else "broken" if n % 7 == 0 else "done" for n in range(200)]
    assert outcomes == expected
    assert database.read(numbers) == [n for n in range(200) if expected[n] == "done"]


def test_a_reader_sees_one_point_in_time(database: Database) -> None:
    database.write(adding(1))

    def look(transaction: Transaction) -> tuple[list[int], list[int]]:
        before = numbers(transaction)
        database.write(adding(2))
        return before, numbers(transaction)

    assert database.read(look) == ([1], [1])
    assert database.read(numbers) == [1, 2]


def test_closing_an_epoch_waits_for_who_joined_it(postgres_url: str) -> None:
    """Whoever holds the epoch alone has seen all that was written by those who joined before."""
    first, second = open_database(postgres_url), open_database(postgres_url)
    first.write(lambda transaction: transaction.insert("counter", [(1, 8, 2)]))
    joined, go_on = Event(), Event()

    def join(transaction: Transaction) -> None:
        assert transaction.join_epochs([3]) == (8, 2)
        joined.set()
        assert go_on.wait(PATIENCE)
        adding(5)(transaction)

    def close(transaction: Transaction) -> list[int]:
        transaction.hold_epoch(3)
        return numbers(transaction)

    thread = Thread(target=first.write, args=[join])
    thread.start()
    assert joined.wait(PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(second.write, close)
        with pytest.raises(TimeoutError):
            closed.result(timeout=0.2)
        go_on.set()
        assert closed.result(PATIENCE) == [5]
    thread.join()
    first.close()
    second.close()


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    database = open_database(url)
    database.write(lambda transaction: transaction.run("UPDATE capri_schema SET version = 99"))
    database.close()
    with pytest.raises(StorageError, match="schema version 99, this release knows"):
        open_database(url)


def test_a_closed_database_refuses(database: Database) -> None:
    database.close()
    database.close()
    with pytest.raises(StorageError, match="was closed"):
        database.write(numbers)
    with pytest.raises(StorageError, match="was closed"):
        database.read(numbers)


def test_an_address_that_leads_nowhere(tmp_path: Path) -> None:
    for wrong in ("mysql://user:hunter2@host/x", "sqlite:///", 7, None):
        with pytest.raises(ConfigurationError, match="store must be 'sqlite:///file") as refused:
            open_database(wrong)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(StorageError, match="cannot be opened"):
        open_database(f"sqlite:///{tmp_path}/missing/store.db")
    with pytest.raises(StorageError, match="cannot be reached") as unreachable:
        open_database(f"postgresql://ann:hunter2@/x?host={tmp_path}&connect_timeout=2")
    assert "hunter2" not in str(unreachable.value)


# -- SQLite alone -----------------------------------------------------------------------------


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.db")
    database.write(adding(1))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)
    database.close()


def test_every_commit_reaches_the_disk(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.db")
    for connection in (database._writer, database._reader, database._cleaner):
        connection.execute("SELECT count(*) FROM counter").fetchone()  # so that it knows the file
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
        full = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}
        assert found == full
    database.close()


def test_a_stranger_who_keeps_the_lock_is_told_of(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.db", patience=0.2)
    stranger = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"held by another program for longer than 0\.2 seconds"):
        database.write(adding(1))
    stranger.execute("ROLLBACK")
    database.write(adding(2))
    assert database.read(numbers) == [2]
    stranger.close()
    database.close()


def test_a_full_disk_fails_who_met_it_and_nobody_else(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.db")
    database.write(adding(1))
    pages = database._writer.execute("PRAGMA page_count").fetchone()[0]
    database._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="the disk is full: nothing was changed"):
        database.write(lambda transaction: transaction.insert("decisions", [(2, bytes(100_000))]))
    database.write(adding(3))
    assert database.read(numbers) == [1, 3]
    database.close()


BROKEN = """
import resource, sys
from pathlib import Path
import capri
from capri.store.sqlite import SqliteDatabase

database = SqliteDatabase(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def filled(transaction):
    transaction.insert("decisions", [(1, bytes(1000))])
    # Only the COMMIT writes: from here on the log may not grow.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))

try:
    database.write(filled)
except capri.InDoubtError as problem:
    print(problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
database.write(lambda transaction: transaction.insert("decisions", [(2, b"")]))
"""


def test_a_commit_that_the_disk_fails_is_in_doubt(tmp_path: Path) -> None:
    """What came of it is in the log or not: the file cannot say before it is opened again."""
    said = in_a_process(BROKEN, str(tmp_path / "store.db"))
    assert "SQLITE_IOERR" in said
    assert "make the call again" in said
    assert "nothing was changed" not in said


def test_damage_and_other_programs_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.db").write_bytes(os.urandom(8192))
    with pytest.raises(StorageError, match="damaged or no SQLite database"):
        SqliteDatabase(tmp_path / "noise.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE recipes (id INTEGER)")
    other.close()
    with pytest.raises(StorageError, match="a database of another program"):
        SqliteDatabase(tmp_path / "other.db")


def test_what_was_deleted_is_gone_from_file_and_log(tmp_path: Path) -> None:
    secret = b"a very particular secret" * 40
    database = SqliteDatabase(tmp_path / "store.db")
    database.write(
        lambda transaction: transaction.insert("decisions", [(n, secret) for n in range(50)])
    )
    found = [path.name for path in tmp_path.iterdir() if secret in path.read_bytes()]
    assert found, "the search would find it"
    database.write(lambda transaction: transaction.run("DELETE FROM decisions"))
    assert database.forget()
    assert [path.name for path in tmp_path.iterdir() if secret[:24] in path.read_bytes()] == []
    database.close()


# -- Postgres alone ---------------------------------------------------------------------------


def test_a_login_that_the_server_refuses_is_named_at_once(postgres_server: PostgresServer) -> None:
    """Waiting does not help, and a service would wait for ever."""
    with PostgresServer() as server:
        with server.connection() as connection:
            connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
            connection.execute("CREATE ROLE group_of_guests NOLOGIN")
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"local all guest scram-sha-256\n{rules.read_text()}")
        with server.connection() as connection:
            connection.execute("SELECT pg_reload_conf()")

        def said(user: str, database: str = "postgres") -> str:
            with pytest.raises(StorageError) as caught:
                open_database(server.url(database).replace("postgres@", f"{user}@", 1))
            assert not isinstance(caught.value, capri.AwayError)
            return str(caught.value)

        eventually(lambda: "password" in _refused(server))
        assert "no database of this name" in said("postgres", "nowhere")
        assert "does not let the user log in" in said("nobody")
        assert "does not let the user log in" in said("group_of_guests")
        for user in ("guest:wrong", "guest"):
            assert "does not take the password" in said(user)
            assert "wrong" not in said(user)


def _refused(server: PostgresServer) -> str:
    """What the server says to a user without the password: its rules are read in its own time."""
    try:
        psycopg.connect(server.url().replace("postgres@", "guest@", 1)).close()
    except psycopg.OperationalError as problem:
        return str(problem)
    return ""


def test_a_deadlock_is_tried_again(postgres_url: str) -> None:
    """Two transactions that meet crosswise: Postgres ends one, and both happen."""
    databases = [open_database(postgres_url) for _ in range(2)]
    databases[0].write(lambda transaction: transaction.insert("users", [("a", 0), ("b", 0)]))
    halfway = [Event(), Event()]

    def crosswise(own: int, transaction: Transaction) -> None:
        for digest in "ab" if own == 0 else "ba":
            transaction.run("UPDATE users SET total = total + 1 WHERE digest = ?", (digest,))
            halfway[own].set()
            assert halfway[1 - own].wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(
                databases[own].write, lambda transaction, own=own: crosswise(own, transaction)
            )
            for own in range(2)
        ]
        for job in jobs:
            job.result(PATIENCE)
    assert databases[0].read(lambda t: t.rows("SELECT total FROM users")) == [(2,), (2,)]
    for database in databases:
        database.close()


def test_a_lost_connection_is_made_up_for(postgres_server, postgres_url: str) -> None:  # type: ignore[no-untyped-def]
    """Also in the middle of a transaction, which then has not happened and is run again."""
    database = open_database(postgres_url)
    runs = 0

    def function(transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        adding(1)(transaction)
        if runs == 1:
            with postgres_server.connection() as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE state = 'idle in transaction'"
                )

    database.write(function)
    assert runs == 2
    assert database.read(numbers) == [1]
    database.close()
