"""A COMMIT whose answer is lost: what happened is not done again, what was lost is.

The server is a real one and really crashes between two words of the conversation.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import capri
from builders import CONTEXTS, small_policy
from capri.store.postgres import PostgresDatabase
from capri.store.transaction import Transaction, open_database
from postgres_server import PostgresServer


class Interrupted:
    """The writing connection, with something happening before or after one COMMIT."""

    def __init__(
        self,
        connection: Any,
        before: Callable[[], None],
        after: Callable[[], None],
        skip: int = 0,
    ) -> None:
        self._connection = connection
        self._before, self._after = before, after
        self._left = skip + 1  # COMMITs up to the one that is interrupted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any, **how: Any) -> Any:
        commits = sql.endswith("COMMIT") or "capri_fill" in sql
        self._left -= commits
        if not commits or self._left:
            return self._connection.execute(sql, *values, **how)
        self._before()
        result = self._connection.execute(sql, *values, **how)
        self._after()
        return self._connection.execute("SELECT 1") if self._after is not _nothing else result


def _nothing() -> None:
    """Nothing happens."""


def visit(number: int) -> Callable[[Transaction], int]:
    """A function that adds a row and says how often it was run."""
    runs = 0

    def function(transaction: Transaction) -> int:
        nonlocal runs
        runs += 1
        transaction.insert("decisions", [(number, b"secret")])
        return runs

    return function


def interrupted(
    url: str, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing
) -> PostgresDatabase:
    database = open_database(url)
    assert isinstance(database, PostgresDatabase)
    database._writer = Interrupted(database._writer, before, after)  # type: ignore[assignment]
    return database


def numbers(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT number FROM decisions ORDER BY number").fetchall()
    return [number for (number,) in found]


@pytest.fixture(scope="module")
def fragile(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own, where there is one at all: that of others must not be crashed."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def crashing(fragile: PostgresServer) -> Iterator[tuple[PostgresServer, str]]:
    with fragile.database() as url:
        yield fragile, url


def crash(server: PostgresServer) -> None:
    server.crash()
    server.start()


def test_a_commit_that_was_lost_in_a_crash_is_made_again(
    crashing: tuple[PostgresServer, str],
) -> None:
    """Another process gets the lost transaction's number, commits, and is not mistaken for it."""
    server, url = crashing
    seen: list[str] = []

    def lose() -> None:
        crash(server)
        with psycopg.connect(url) as other:
            found = other.execute(
                "INSERT INTO users (digest, total) VALUES ('other', 0) "
                "RETURNING pg_current_xact_id()::text"
            ).fetchone()
            seen.append(str(found))

    database = interrupted(url, before=lose)
    assert database.write(visit(7)) == 2
    assert numbers(url) == [7]
    assert len(seen) == 1
    database.close()


def test_a_commit_that_happened_before_the_crash_is_not_made_again(
    crashing: tuple[PostgresServer, str],
) -> None:
    server, url = crashing
    database = interrupted(url, after=lambda: crash(server))
    assert database.write(visit(7)) == 1
    assert numbers(url) == [7]
    assert database.write(visit(8)) == 1
    assert numbers(url) == [7, 8]
    database.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_slots_that_were_filled_by_one_statement_are_filled_once(
    crashing: tuple[PostgresServer, str], when: str
) -> None:
    """Its answer says what was found, and is known again from the turn alone."""
    server, url = crashing
    runs = []

    def fill(transaction: Transaction) -> bool:
        runs.append(transaction)
        return transaction.fill(1, generation, [7, 9], [b"secret", b"sealed"])

    with small_policy(store=url, simulation_seed=None) as policy:
        policy.act(CONTEXTS[0])
        assert policy._engine is not None
        database, generation = (
            policy._engine.repository.database,
            policy._engine.state.view.generation,
        )
        assert isinstance(database, PostgresDatabase)
        assert not database.write(lambda unit: unit.fill(1, generation + 1, [5], [b"secret"]))
        crashes = {when: lambda: crash(server)}
        database._writer = Interrupted(  # type: ignore[assignment]
            database._writer, crashes.get("before", _nothing), crashes.get("after", _nothing)
        )
        assert database.write(fill)
        assert len(runs) == 2
    found = numbers(url)
    assert {7, 9} < set(found)
    assert 5 not in found


def test_a_session_that_never_got_its_commit_is_ended(postgres_url: str) -> None:
    """The network went, the server does not know: its session still holds the row."""
    database = open_database(postgres_url)
    assert isinstance(database, PostgresDatabase)
    real = database._writer
    assert real is not None

    class Cut(Interrupted):
        broken = False

        def execute(self, sql: str, *values: Any) -> Any:
            if sql.endswith("COMMIT"):
                self.broken = True
                raise psycopg.OperationalError("the answer was lost")
            return real.execute(sql, *values)

    database._writer = Cut(real, _nothing, _nothing)  # type: ignore[assignment]
    assert database.write(visit(7)) == 2
    assert numbers(postgres_url) == [7]
    database.close()
    real.close()


def test_a_function_that_only_reads_leaves_no_turn(postgres_url: str) -> None:
    database = open_database(postgres_url)
    assert isinstance(database, PostgresDatabase)

    def turn() -> int:
        with psycopg.connect(postgres_url) as connection:
            found = connection.execute("SELECT turn FROM writers").fetchone()
        assert found is not None
        return int(found[0])

    before = turn()
    database.write(lambda transaction: transaction.rows("SELECT 1"))
    assert turn() == before
    database.write(visit(7))
    assert turn() > before
    database.close()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM writers").fetchone() == (0,)


def test_a_server_that_stays_away_leaves_a_policy_that_goes_on(
    crashing: tuple[PostgresServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision was made, nobody could say so, and its slot is not used again."""
    server, url = crashing
    monkeypatch.setitem(PostgresDatabase.__init__.__kwdefaults__, "patience", 0.5)
    with small_policy(store=url, simulation_seed=None) as policy:
        policy.act(CONTEXTS[0], key="order-0")
        assert policy._engine is not None
        database = policy._engine.repository.database
        assert isinstance(database, PostgresDatabase)

        decided = []
        for turn in range(1, 5):
            database._writer = Interrupted(  # type: ignore[assignment]
                database._writer, _nothing, server.crash
            )
            with pytest.raises(capri.StorageError, match="make the call again"):
                policy.act(CONTEXTS[0], key=f"order-{turn}")
            server.start()
            decided.append(policy.act(CONTEXTS[1], key=f"order-{turn}"))
        again = [policy.act(CONTEXTS[2], key=f"order-{turn}") for turn in range(1, 5)]
        assert again == decided
        assert len({decision.id for decision in decided}) == 4
    with psycopg.connect(url) as connection:
        made = connection.execute("SELECT count(*) FROM decisions").fetchone()
        kept = connection.execute("SELECT count(*) FROM keys").fetchone()
    assert made == kept == (5,)
