"""One connection to a Postgres server, on which every wait ends, and transactions on it.

A server that hangs keeps its connections, and so does a network that swallows everything. The
server itself ends the wait for a lock and for a statement; this process ends the wait for a word of
the server, and takes the connection for lost.

Transactions are READ COMMITTED: every statement sees what was committed before it began. So a
transaction first joins the epoch it writes to (a shared advisory lock) and then reads its state;
who closes the epoch holds it alone, hence after all who joined and before all who come later.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from math import inf
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from capri.store.tables import TABLES, Row
from capri.store.transaction import COUNTER, Transaction

Result = TypeVar("Result")

# How many times as long as for a lock a statement may take, and the server may say nothing.
STATEMENT, _SILENCE = 2, 3
# Seconds for a connection at most, and after which one without a word is tried out.
_CONNECT, _IDLE = 10, 30
# What a server says to a login that it will never take. Before a session there is no SQLSTATE to
# ask for; a server that speaks another language is taken to be away, and tried again.
_NEVER = {
    r'database ".*" does not exist': "has no database of this name: create it, or mend the address",
    r'role ".*" (does not exist|is not permitted to log in)|no pg_hba\.conf entry|'
    r"permission denied for database": "does not let the user log in: mend the address, or the "
    "rights of the user",
    r"authentication failed|no password supplied": "does not take the password of the user: mend "
    "the address",
}


class PostgresConnection(Connection[Row]):
    """A connection that is lost where the server has said nothing for ``silence`` seconds."""

    silence = inf
    fills = False  # whether the session has a function that fills slots

    def wait(self, gen: Any, *how: Any, **more: Any) -> Any:
        """As ever, and not for ever."""
        return super().wait(self._heard(gen), *how, **more)

    def _heard(self, gen: Any) -> Any:
        """The same conversation, looked at whenever the server speaks and ten times a second."""
        heard = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = monotonic()
                if ready:
                    heard = now
                elif now - heard > self.silence:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server says nothing")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    def can_fill(self) -> None:
        """Make the function that fills slots, where this user may."""
        with suppress(errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction):
            self.execute(_FILL)
            self.fills = True

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """For what may take an hour."""
        usual, self.silence = self.silence, inf
        self.execute("SET statement_timeout = 0")
        try:
            yield
        finally:
            self.silence = usual
            if not self.broken:
                self.execute(_limit(usual / _SILENCE))


def open_connection(url: str, name: str, patience: float) -> PostgresConnection:
    """A connection that waits for a lock so long, and for nothing for ever."""
    given = conninfo_to_dict(url)
    how: dict[str, Any] = {
        "connect_timeout": max(1, min(_CONNECT, int(patience))),
        "keepalives_idle": _IDLE,
        "keepalives_interval": _CONNECT,
        "keepalives_count": 3,
        "tcp_user_timeout": int(_SILENCE * patience * 1000),
    }
    how = {key: value for key, value in how.items() if key not in given}
    opened = PostgresConnection.connect(
        url, autocommit=True, prepare_threshold=2, application_name=name, **how
    )
    opened.silence = _SILENCE * patience
    # One width of integers: each other one would be another prepared statement.
    opened.adapters.register_dumper(int, Int8Dumper)
    opened.adapters.register_dumper(int, Int8BinaryDumper)
    opened.execute("SET synchronous_commit = on")
    opened.execute(f"SET lock_timeout = {int(patience * 1000)}")
    opened.execute(_limit(patience))
    opened.execute("SET idle_in_transaction_session_timeout = '10min'")
    return opened


def turned_away(problem: psycopg.Error) -> str:
    """Why a login will never be taken, in words without its user and password; else nothing."""
    if problem.sqlstate is not None:
        return ""
    said = str(problem)
    return next((why for words, why in _NEVER.items() if re.search(words, said)), "")


def _limit(patience: float) -> str:
    return f"SET statement_timeout = {int(STATEMENT * patience * 1000)}"


# The number of the next transaction, and the oldest that a vacuum must regard: one that runs in the
# database or keeps a snapshot, is prepared, or is held by a replica.
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
OLDEST = """
    SELECT least(
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        (WITH next AS (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number)
         SELECT min(next.number - age(held.number)) FROM next, (
            SELECT backend_xmin FROM pg_stat_activity
            WHERE pid <> pg_backend_pid() AND datname = current_database()
            UNION ALL SELECT transaction FROM pg_prepared_xacts
            UNION ALL SELECT xmin FROM pg_replication_slots
            UNION ALL SELECT backend_xmin FROM pg_stat_replication
         ) AS held (number) WHERE held.number IS NOT NULL))
"""
# Whether a statement that is logged is logged with its values (the default), and whether one of
# ours would be.
LOGGED = """
    SELECT current_setting('log_parameter_max_length') <> '0',
        current_setting('log_statement') IN ('mod', 'all')
        OR current_setting('log_min_duration_statement') <> '-1'
        OR (current_setting('log_min_duration_sample') <> '-1'
            AND current_setting('log_statement_sample_rate')::float > 0)
        OR current_setting('log_transaction_sample_rate')::float > 0
"""

# First number of our advisory locks: other programs in the same database take others.
LOCKS = 0x0CA9
_POLICY_LOCK, STEP_LOCK = 0, -1
# Whoever meets these tries again: the database has undone everything.
AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)


# Joins an epoch and fills slots of it, where the generation is as expected; and notes the turn.
# Every statement of such a function sees what was committed before the statement began. It belongs
# to the session.
_FILL = f"""
    CREATE FUNCTION pg_temp.capri_fill(
        _epoch integer, _generation bigint, _numbers bigint[], _size integer, _content bytea,
        _writer text, _turn bigint
    ) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared({LOCKS}, _epoch);
        IF (SELECT generation FROM counter WHERE id = 1) <> _generation THEN
            RETURN FALSE;
        END IF;
        INSERT INTO decisions (number, secret)
            SELECT given.number, substr(_content, ((given.place - 1) * _size + 1)::integer, _size)
            FROM unnest(_numbers) WITH ORDINALITY AS given (number, place);
        UPDATE writers SET turn = _turn WHERE name = _writer;
        RETURN TRUE;
    END $$
"""
_FILLED = "SELECT pg_temp.capri_fill(?::integer, ?, ?::bigint[], ?::integer, ?, ?, ?)"


@cache
def _marks(sql: str) -> str:
    """Values are sent in binary: bytes would double as text."""
    return sql.replace("?", "%b")


class PostgresTransaction(Transaction):
    """Statements on one connection, between BEGIN and COMMIT."""

    def __init__(
        self, connection: PostgresConnection, *, begun: bool = True, turn: tuple[str, int] = ("", 0)
    ) -> None:
        """Not ``begun``: BEGIN travels with the first statement, or just before it.

        ``turn``: whose row is to note which number where a statement is all of the transaction.
        """
        self._connection = connection
        self._cursor = connection.cursor(binary=True)
        self._plain = connection.cursor()
        self.begun, self._turn = begun, turn
        # Whether it may be committed by now, and whether it is known to be.
        self.asked = self.settled = False

    def _begin(self) -> None:
        if not self.begun:
            self._plain.execute("BEGIN")
            self.begun = True

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows that a statement gives."""
        self._begin()
        return self._cursor.execute(_marks(sql), values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""
        self._begin()
        return self._cursor.execute(_marks(sql), values or None).rowcount

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """New rows, sent as one array a column."""
        self._insert(table, rows, "")

    def insert_new(self, table: str, rows: Sequence[Row]) -> int:
        """New rows, except those that are there. Sort them, or two processes meet crosswise."""
        return self._insert(table, rows, TABLES[table].on_conflict())

    def _insert(self, table: str, rows: Sequence[Row], conflict: str) -> int:
        if not rows:
            return 0
        if len(rows) == 1:
            return self.run(TABLES[table].insert(table) + conflict, rows[0])
        columns = TABLES[table].columns
        arrays = ", ".join(f"?::{kind}[]" for kind in columns.values())
        return self.run(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays}){conflict}",
            [list(column) for column in zip(*rows, strict=True)],
        )

    def among(self, sql: str, values: Iterable[int] | Iterable[str]) -> list[Row]:
        """The values travel as one array."""
        listed = list(values)
        if not listed:
            return []
        kind = "bigint" if isinstance(listed[0], int) else "text"
        return self.rows(f"{sql} = ANY(?::{kind}[])", (listed,))

    def join_epochs(self, epochs: Sequence[int]) -> tuple[int, int]:
        """Shared, so that deciding never waits for deciding.

        One message with several statements: each sees what was committed before it began, so the
        counter is that of after the locks were taken.
        """
        joined = [f"SELECT pg_advisory_xact_lock_shared({LOCKS}, {int(epoch)})" for epoch in epochs]
        first = [] if self.begun else ["BEGIN"]
        self.begun = True
        cursor = self._plain.execute("; ".join([*first, *joined, COUNTER]))
        while cursor.nextset():
            pass
        issued, generation = cursor.fetchall()[0]
        return int(issued), int(generation)

    def fill(
        self, epoch: int, generation: int, numbers: Sequence[int], contents: Sequence[bytes]
    ) -> bool:
        """One statement, which is the whole transaction where no other job shares it."""
        if self.settled:
            return True
        size = len(contents[0])
        if self.begun or not self._connection.fills or any(len(each) != size for each in contents):
            return super().fill(epoch, generation, numbers, contents)
        # The numbers as one text, the contents as one: an array of either takes long to write.
        listed = f"{{{','.join(map(str, numbers))}}}"
        values = (epoch, generation, listed, size, b"".join(contents), *self._turn)
        self.asked = True
        found = self._connection.execute(_marks(_FILLED), values, binary=True).fetchone()
        return found is not None and bool(found[0])

    def hold_epoch(self, epoch: int) -> None:
        """Alone: waits for who joined, and nobody joins until the end."""
        self.rows(f"SELECT pg_advisory_xact_lock({LOCKS}, {int(epoch)})")

    def hold_policy(self) -> None:
        """Alone with counter and publications. Epochs are numbered from 1."""
        self.rows(f"SELECT pg_advisory_xact_lock({LOCKS}, {_POLICY_LOCK})")

    def scrub(self, table: str) -> None:
        """Dead rows are for the vacuum, see :meth:`PostgresDatabase.forget`."""

    def nested(self, function: Callable[[Transaction], Result]) -> Result:
        """A savepoint."""
        self.run("SAVEPOINT member")
        try:
            result = function(self)
        except BaseException as problem:
            if not (isinstance(problem, Exception) and self.lost(problem)):
                self.run("ROLLBACK TO SAVEPOINT member")
            raise
        self.run("RELEASE SAVEPOINT member")
        return result

    def lost(self, problem: Exception) -> bool:
        """A connection that is gone, or a failure after which all of it is tried again."""
        return self._cursor.connection.broken or isinstance(problem, AGAIN)
