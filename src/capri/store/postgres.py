"""A store in Postgres: any number of processes and machines, row locks instead of one writer.

A COMMIT whose answer was lost is in doubt. Every transaction therefore notes its turn in a row that
no other process writes. The row is read back until it is known whether the transaction happened;
only a function that has not happened is run again. (The server's own answer, ``pg_xact_status``, is
not enough: after a crash the number of a lost transaction is given to another one.)
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import errors

from capri.errors import AwayError, InDoubtError, StorageError
from capri.store.postgres_connection import (
    AGAIN,
    LOCKS,
    LOGGED,
    NEXT,
    OLDEST,
    STATEMENT,
    STEP_LOCK,
    PostgresConnection,
    PostgresTransaction,
    open_connection,
    turned_away,
)
from capri.store.tables import TABLES, VERSION_TABLE
from capri.store.transaction import (
    Database,
    Job,
    Transaction,
    check_version,
    empty_store,
    run_jobs,
)

Result = TypeVar("Result")

# Seconds to wait for a lock before a stranger is suspected, and for a server that restarts.
PATIENCE = 30.0
_NAP = 0.05
_ATTEMPTS = 8
_UNREACHED = "cannot be reached: nothing was changed. Check the address and the server"
# Tables that rows are deleted from.
_EMPTIED = ("decisions", "rewards", "draws", "keys", "policy")


# One trip. A transaction that has changed nothing has no number, and nothing to be in doubt about.
_COMMIT = (
    "UPDATE writers SET turn = {} WHERE name = '{}' "
    "AND pg_current_xact_id_if_assigned() IS NOT NULL; COMMIT"
)
_READ_TURN = "SELECT turn FROM writers WHERE name = %b FOR UPDATE"
_END_OLD_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = %b AND pid <> pg_backend_pid()"
)


class PostgresDatabase(Database):
    """One database on a server, with a connection to write and one to read."""

    kind, single_writer = "postgres", False

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        """``patience``: also seconds to wait for a server that restarts."""
        self._create, self._url = create and not read_only, url
        super().__init__(read_only=read_only, patience=patience)
        self._writer: PostgresConnection | None = None
        self._reader: PostgresConnection | None = None
        self._forgotten: int | None = None  # rows deleted before this transaction are to go
        self._signed, self._turn = f"capri-{secrets.token_hex(8)}", 0
        with self._problems():
            try:
                self._begin()
            except BaseException:
                self.close()
                raise

    @property
    def name(self) -> str:
        """The address without user and password: it may end in a log."""
        parts = urlsplit(self._url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    # -- opening ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the tables where there are none, and sign in; nobody does who only looks."""
        if self.read_only:
            check_version(self.read(self._version), self.name)
            return
        self._writer = self._connect(self._signed)
        self.write(self._create_schema)
        self.write(self._sign_in)

    def _connect(self, name: str = "capri") -> PostgresConnection:
        opened = open_connection(self._url, name, self._patience)
        if self.read_only:
            opened.execute("SET default_transaction_read_only = on")
            opened.execute("SET statement_timeout = 0")  # a backup reads whole tables
        self._keep_out_of_the_log(opened)
        if name == self._signed:
            opened.can_fill()
        return opened

    def _keep_out_of_the_log(self, opened: PostgresConnection) -> None:
        """Have statements logged without their parameters, which are all our values.

        Only who may set it may do that for a session; others can merely be told what is logged.
        """
        (logged, written) = opened.execute(LOGGED).fetchone() or (False, False)
        if not logged:
            return
        try:
            opened.execute("SET log_parameter_max_length = 0")
        except errors.InsufficientPrivilege:
            if written:
                self.exposure = (
                    f"{self.name} writes contexts and rewards to the server's log: have "
                    "log_parameter_max_length set to 0 for this role or database, or give a "
                    "store_key"
                )

    def _connected(
        self, connection: PostgresConnection | None, name: str = "capri"
    ) -> PostgresConnection:
        """The connection, or a new one after it was lost: a server may restart."""
        if connection is not None and not connection.broken and not connection.closed:
            return connection
        give_up = monotonic() + self._patience
        while True:
            try:
                return self._connect(name)
            except psycopg.OperationalError as problem:
                if self.closing or turned_away(problem) or monotonic() > give_up:
                    raise
                sleep(_NAP)

    def _version(self, transaction: Transaction) -> int:
        """Of the schema, 0 where there is none yet; tables of others are refused."""
        found = transaction.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        )
        tables = {name for (name,) in found}
        if VERSION_TABLE not in tables and tables & set(TABLES):
            raise StorageError(
                f"{self.name} holds tables of another program under the names of ours: "
                "give the policy a database or a schema of its own"
            )
        known = VERSION_TABLE in tables
        if not (known or self._create):
            raise empty_store(self.name)
        return self._known_version(transaction) if known else 0

    def _sign_in(self, transaction: Transaction) -> None:
        """The row in which this process notes its turns; gone again with :meth:`close`."""
        transaction.run(
            "INSERT INTO writers (name, turn) VALUES (?, 0) ON CONFLICT (name) DO NOTHING",
            (self._signed,),
        )

    # -- transactions -----------------------------------------------------------------------------

    def _commit(self, jobs: list[Job]) -> None:
        """Until it is known to have happened, or to be impossible."""
        for attempt in range(_ATTEMPTS):
            self._check_open()
            self._writer = self._connected(self._writer, self._signed)
            last = attempt == _ATTEMPTS - 1
            try:
                if self._attempt(self._writer, jobs):
                    return
            except AGAIN:
                if last:
                    raise
            except psycopg.OperationalError:
                if not self._writer.broken or last:
                    raise
        raise AwayError(f"{self.name} lost the connection {_ATTEMPTS} times in a row")

    def _attempt(self, writer: PostgresConnection, jobs: list[Job]) -> bool:
        """Whether the transaction was committed; False: it certainly was not."""
        self._turn += 1
        transaction = PostgresTransaction(writer, begun=False, turn=(self._signed, self._turn))
        try:
            run_jobs(jobs, transaction)
            transaction.asked = True
            if transaction.begun:
                writer.execute(_COMMIT.format(self._turn, self._signed))
        except psycopg.OperationalError:
            if not (transaction.asked and writer.broken):
                self._roll_back(writer)
                raise
            if not self._happened(self._turn):
                return False
            if not transaction.begun:  # what was lost is what the job's own statement said
                transaction.settled = True
                run_jobs(jobs, transaction)
        except BaseException:
            self._roll_back(writer)
            raise
        return True

    def _happened(self, turn: int) -> bool:
        """What became of a transaction whose COMMIT was not answered.

        Its session may still be at work, or wait for a COMMIT that was lost on the way. So it is
        ended first, and the row is read after the lock that it held on it.
        """
        while True:
            try:
                self._writer = writer = self._connected(self._writer, self._signed)
            except psycopg.Error:
                raise self._unknown() from None
            try:
                writer.execute(_END_OLD_SESSIONS, (self._signed,))
                found = writer.execute(_READ_TURN, (self._signed,)).fetchone()
            except psycopg.Error:
                if not writer.broken:
                    raise self._unknown() from None
            else:
                return found is not None and found[0] == turn

    def _unknown(self) -> InDoubtError:
        return InDoubtError(
            f"{self.name} was lost while it stored a transaction, and cannot be asked whether it "
            "did: make the call again, with the same key where it has one"
        )

    def _roll_back(self, connection: PostgresConnection) -> None:
        if not connection.broken and not connection.closed:
            with suppress(psycopg.Error):  # the first problem is the one to tell
                connection.execute("ROLLBACK")

    def read(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function on the database as it is now; a lost connection is opened again once."""
        with self._problems(), self._reading:
            for attempt in (0, 1):
                self._check_open()
                self._reader = self._connected(self._reader)
                try:
                    self._reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    return function(PostgresTransaction(self._reader))
                except psycopg.OperationalError:
                    if attempt or not self._reader.broken:
                        raise
                finally:
                    self._roll_back(self._reader)
        raise AssertionError("the second attempt returns or raises")

    def begin_step(self) -> bool:
        """A lock of the session that reads: gone with it, should this process die."""
        return self._stepping("pg_try_advisory_lock")

    def end_step(self) -> None:
        """Where the session was lost, so was the lock."""
        self._stepping("pg_advisory_unlock")

    def _stepping(self, function: str) -> bool:
        sql = f"SELECT {function}({LOCKS}, {STEP_LOCK})"
        found = self.read(lambda transaction: transaction.row(sql))
        return found is not None and bool(found[0])

    def forget(self) -> bool:
        """Have dead rows removed; False while they cannot be, since somebody may still see them.

        A row that was deleted is kept for every transaction that began before the deletion was
        committed. So the vacuum counts if all transactions that it regards are younger than the
        number that came next when we were first asked.
        """
        if self.read_only:
            return self.write(lambda _: False)  # refused
        with self._problems(), self._reading:
            self._check_open()
            self._reader = reader = self._connected(self._reader)
            if self._forgotten is None:
                self._forgotten = self._number(reader, NEXT)
            # Before the vacuum: its own horizon is at least as young.
            if self._number(reader, OLDEST) < self._forgotten:
                return False
            skipped: list[str | None] = []

            def note(notice: errors.Diagnostic) -> None:
                skipped.append(notice.sqlstate)

            reader.add_notice_handler(note)
            try:
                with reader.unhurried():
                    reader.execute(f"VACUUM (SKIP_LOCKED) {', '.join(_EMPTIED)}")
            finally:
                reader.remove_notice_handler(note)
            if errors.LockNotAvailable.sqlstate in skipped:
                return False  # another one is at the same table
            self._forgotten = None
        return True

    def _number(self, connection: PostgresConnection, sql: str) -> int:
        found = connection.execute(sql).fetchone()
        assert found is not None
        return int(found[0])

    def _release(self) -> None:
        with self._reading:
            self._closed = True
            if self._writer is not None and not self._writer.closed:
                with suppress(psycopg.Error):  # a row that is left does no harm
                    self._writer.execute("DELETE FROM writers WHERE name = %b", (self._signed,))
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()

    # -- problems ---------------------------------------------------------------------------------

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Say what is the matter, in words; neither statement, value nor password is quoted."""
        self.check_process()
        try:
            yield
        except psycopg.Error as problem:
            passes = isinstance(problem, psycopg.OperationalError) and not turned_away(problem)
            kind = AwayError if passes else StorageError
            raise kind(f"{self.name} {self._explained(problem)}") from None

    def _explained(self, problem: psycopg.Error) -> str:
        match problem:
            case errors.LockNotAvailable():
                return (
                    f"is held by another program for longer than {self._patience:g} seconds: "
                    "nothing was changed. End what holds it and try again"
                )
            case errors.QueryCanceled():
                return (
                    f"takes longer than {STATEMENT * self._patience:g} seconds for a statement: "
                    "nothing was changed. Look at what the server is busy with"
                )
            case errors.ReadOnlySqlTransaction() | errors.InsufficientPrivilege():
                return "may not be written by this user: nothing was changed"
            case errors.DiskFull():
                return "cannot grow, the disk is full: nothing was changed. Make room and try again"
            case errors.DataCorrupted() | errors.IndexCorrupted():
                return "is damaged: nothing was changed. Restore the newest copy"
            case psycopg.OperationalError():
                return turned_away(problem) or _UNREACHED
        return f"refused a transaction ({type(problem).__name__}): nothing was changed"
