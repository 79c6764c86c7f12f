"""What a store's databases have in common: transactions of plain SQL, and how they are run.

SQL is written once, with ``?`` for values. A function that is run in a transaction touches nothing
but the transaction, since it may be run again: after a deadlock, or a connection that was lost
before the commit.

**Group commit**: threads that write at the same time share one transaction. The first thread
becomes the leader of all jobs that wait, and commits them together; the others find their job done.
A commit waits for the disk, so under load the number of jobs per commit grows by itself, and alone
a thread waits for nobody. A job waits while the database is held or hangs, and whoever asked for it
may have gone by then. So a caller may say what is asked when the transaction has begun:
:func:`beginning`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from capri.errors import (
    BudgetError,
    ConfigurationError,
    InDoubtError,
    MissingExtraError,
    StorageError,
)
from capri.store.tables import TABLES, VERSION, VERSION_TABLE, Row, statements

Result = TypeVar("Result")


_begin: ContextVar[Callable[[], bool] | None] = ContextVar("_begin", default=None)


class GivenUpError(Exception):
    """Nobody waits for a job any more: it was not begun."""


@contextmanager
def beginning(begin: Callable[[], bool]) -> Iterator[None]:
    """Have ``begin`` asked in every transaction of this thread before anything is done in it.

    Where it says False nothing is done, and :class:`GivenUpError` is raised.
    """
    before = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(before)


class Job:
    """One function to be run in a transaction, and what came of it."""

    def __init__(self, function: Callable[["Transaction"], Any]) -> None:
        self.function, self._begin = function, _begin.get()
        self.result: Any = None
        self.problem: BaseException | None = None
        self.done = False

    def run(self, transaction: "Transaction") -> None:
        """Note the result; a failure is noted and raised."""
        self.problem = None
        try:
            if self._begin is not None and not self._begin():
                raise GivenUpError
            self.result = self.function(transaction)
        except BaseException as problem:
            self.problem = problem
            raise


class GroupCommit:
    """Collects jobs of many threads for ``commit``, which runs some of them in one transaction.

    ``commit`` raises if none of them has happened; a job with a problem of its own has not.
    """

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._waiting: list[Job] = []
        self._queue, self._leading = Lock(), Lock()

    def run(self, function: Callable[["Transaction"], Result]) -> Result:
        """Have a function committed, by this thread or by another."""
        job = Job(function)
        with self._queue:
            self._waiting.append(job)
        with self._leading:
            if not job.done:
                self._lead(job)
        if job.problem is not None:
            raise job.problem
        result: Result = job.result
        return result

    def alone(self, function: Callable[[], Result]) -> Result:
        """Run a function while no transaction is under way."""
        with self._leading:
            return function()

    def _lead(self, own: Job) -> None:
        """Commit all jobs that wait. What interrupts this thread is not for the others."""
        jobs: list[Job] = []
        try:
            with self._queue:
                jobs, self._waiting = self._waiting, []
            self._commit(jobs)
        except BaseException as problem:
            for job in jobs:
                job.problem = job.problem or problem
                if job is not own and not isinstance(job.problem, Exception):
                    job.problem = InDoubtError(
                        "the thread that stored this together with its own was interrupted: make "
                        "the call again, with the same key where it has one"
                    )
            if own not in jobs:
                raise
        finally:
            for job in jobs:
                job.done = True


def run_jobs(jobs: list[Job], transaction: "Transaction") -> None:
    """All jobs in one transaction: one that fails undoes itself alone.

    A failure between the jobs is one of the database, and fails them all.
    """
    if len(jobs) == 1:
        jobs[0].run(transaction)
        return
    for job in jobs:
        try:
            transaction.nested(job.run)
        except Exception as problem:
            if job.problem is not problem or transaction.lost(problem):
                raise


_NAP = 0.1
COUNTER = "SELECT issued, generation FROM counter WHERE id = 1"
_LOCK = "UPDATE counter SET issued = issued WHERE id = 1 RETURNING issued, generation"


def empty_store(where: str) -> StorageError:
    """For who wants to open what is still to be filled."""
    return StorageError(
        f"there is no policy at {where}, this store is empty: build the policy with "
        "Capri(..., store=...) to fill it, or a ledger with OrganisationLedger(..., "
        "organisation=...). Nothing was changed"
    )


def check_version(version: int, name: str) -> None:
    """Refuse a database of another release; 0 is an empty one."""
    if version not in (0, VERSION):
        raise StorageError(
            f"{name} has schema version {version}, this release knows version {VERSION}: open it "
            "with the release that wrote it, or build the policy in a new store. Nothing was "
            "changed"
        )


def _where(columns: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """A condition on some columns, and its values."""
    parts, values = [], list[Any]()
    for name, value in columns.items():
        if value is None:
            parts.append(f"{name} IS NULL")
        elif isinstance(value, tuple):
            parts.append(f"{name} IN ({', '.join('?' * len(value))})" if value else "1 = 0")
            values += value
        else:
            parts.append(f"{name} = ?")
            values.append(value)
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), values


class Transaction(ABC):
    """One transaction that is under way: a :class:`~capri.store.tables.Unit`, and plain SQL."""

    # -- public rows ------------------------------------------------------------------------------

    def select(self, table: str, columns: Sequence[str], **where: Any) -> list[Row]:
        """These columns of some rows, in the order of their keys."""
        condition, values = _where(where)
        order = ", ".join(TABLES[table].key)
        return self.rows(
            f"SELECT {', '.join(columns)} FROM {table}{condition} ORDER BY {order}", values
        )

    def update(self, table: str, values: Mapping[str, Any], **where: Any) -> int:
        """Give some rows these values; how many there were."""
        condition, found = _where(where)
        columns = ", ".join(f"{name} = ?" for name in values)
        return self.run(f"UPDATE {table} SET {columns}{condition}", [*values.values(), *found])

    def delete(self, table: str, **where: Any) -> None:
        """Delete rows that anybody may read: there is nothing to overwrite."""
        condition, values = _where(where)
        self.run(f"DELETE FROM {table}{condition}", values)

    def counter(self) -> tuple[int, int]:
        """Slots handed out, and the generation."""
        issued, generation = self.rows(COUNTER)[0]
        return int(issued), int(generation)

    def set_counter(self, name: str, value: int) -> None:
        """So many are ``issued``, or this is the ``generation``."""
        self.run(f"UPDATE counter SET {name} = ? WHERE id = 1", (value,))

    def lock(self) -> tuple[int, int]:
        """The counter, which stays so until the end of the transaction."""
        issued, generation = self.rows(_LOCK)[0]
        return int(issued), int(generation)

    # -- statements -------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows that a statement gives."""

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row, None where there is none."""
        found = self.rows(sql, values)
        return found[0] if found else None

    @abstractmethod
    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """New rows, with a value for every column in the order of the table."""

    @abstractmethod
    def insert_new(self, table: str, rows: Sequence[Row]) -> int:
        """The same, but rows whose primary key is there already are left out; how many went in."""

    @abstractmethod
    def among(self, sql: str, values: Iterable[int] | Iterable[str]) -> list[Row]:
        """Rows of ``... WHERE column`` that is one of some numbers, or of some texts.

        The statement is followed by ``IN`` or what the database has for it.
        """

    @abstractmethod
    def join_epochs(self, epochs: Sequence[int]) -> tuple[int, int]:
        """Hold epochs as they are until the end of the transaction, together with others.

        Returns slots handed out and generation, as they are once that is so. Give epochs in order.
        """

    def fill(
        self, epoch: int, generation: int, numbers: Sequence[int], contents: Sequence[bytes]
    ) -> bool:
        """Join an epoch, and insert decisions if the generation is this; whether it was.

        Nothing else is done in this transaction.
        """
        if self.join_epochs([epoch])[1] != generation:
            return False
        self.insert("decisions", list(zip(numbers, contents, strict=True)))
        return True

    @abstractmethod
    def hold_epoch(self, epoch: int) -> None:
        """Hold the epoch alone until the end of the transaction, after all who joined it."""

    @abstractmethod
    def hold_policy(self) -> None:
        """Hold counter and publications alone until the end of the transaction."""

    @abstractmethod
    def scrub(self, table: str) -> None:
        """After rows were deleted: leave no copy of them in the pages of a table."""

    @abstractmethod
    def nested(self, function: Callable[["Transaction"], Result]) -> Result:
        """Run a function so that its failure undoes its own changes and no others."""

    @abstractmethod
    def lost(self, problem: Exception) -> bool:
        """Whether this failure of one function has ended the transaction for all."""


class Database(ABC):
    """Where the tables are: one database, opened by one process."""

    kind: str  # of its schema
    # Where writers never overlap, slots are exact and need no lease.
    single_writer: bool
    # What of the values that are written others than the curator may read, in words for a warning.
    exposure: str | None = None
    # Set before closing: nobody waits any more for a server that is away.
    closing = False

    def __init__(self, *, read_only: bool, patience: float) -> None:
        """``read_only``: to be looked at; nothing is made, migrated or changed.

        ``patience``: seconds to wait for a lock before a stranger is suspected.
        """
        self.read_only, self._patience = read_only, patience
        self._process, self._closed = os.getpid(), False
        self._reading = Lock()
        self._group = GroupCommit(self._commit)

    @property
    @abstractmethod
    def name(self) -> str:
        """Where it is, without a password."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def check_process(self) -> None:
        """Refuse a forked child: two processes on one connection would garble what both send.

        To be asked before a lock is taken, since a fork may have left it locked for ever.
        """
        if os.getpid() != self._process:
            raise BudgetError(
                f"{self!r} was opened by the process that this one was forked from, and its "
                "connections belong to that one: open the policy in the child with Capri.open"
            )

    def write(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function in a transaction, durable on return; threads share one commit."""
        if self.read_only:
            raise StorageError(f"{self.name} was opened to be looked at: nothing was changed")
        with self._problems():
            return self._group.run(function)

    def _create_schema(self, transaction: Transaction) -> None:
        """Make the tables where there are none yet: of several who find none, one makes them."""
        transaction.hold_policy()
        version = self._version(transaction)
        check_version(version, self.name)
        if version == 0:
            transaction.run(f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)")
            transaction.run(f"INSERT INTO {VERSION_TABLE} (version) VALUES ({VERSION})")
            for statement in statements(self.kind):
                transaction.run(statement)

    @abstractmethod
    def _version(self, transaction: Transaction) -> int:
        """Of the schema, 0 where there is none yet; tables of others are refused."""

    def _known_version(self, transaction: Transaction) -> int:
        """The version that a database of ours says."""
        found = transaction.row(f"SELECT version FROM {VERSION_TABLE}")
        if found is None:
            raise StorageError(f"{self.name} is damaged: it has no schema version")
        return int(found[0])

    @abstractmethod
    def _problems(self) -> AbstractContextManager[None]:
        """Say what is the matter, in words; neither statement, value nor password is quoted."""

    @abstractmethod
    def _commit(self, jobs: list[Job]) -> None:
        """All jobs in one transaction; raises if none of them has happened."""

    @abstractmethod
    def read(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function that reads, all of it at one point in time, and holds up no writer."""

    def begin_step(self) -> bool:
        """Whether no other process computes what is published next."""
        return True

    def end_step(self) -> None:
        """Others may."""
        return

    @abstractmethod
    def forget(self) -> bool:
        """Make deleted rows unreadable where one can; False if others stood in the way.

        False means that they can still be read: whoever asks tries again, or says so.
        """

    def forget_soon(self, patience: float) -> bool:
        """The same, tried again for some seconds."""
        give_up = monotonic() + patience
        while not self.forget():
            if monotonic() > give_up:
                return False
            sleep(_NAP)
        return True

    def close(self) -> None:
        """Give the connections back, after who is at it; a closed database refuses everything."""
        self._group.alone(self._release)

    @abstractmethod
    def _release(self) -> None:
        """Close the connections."""

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.name} was closed by this policy: open it again to go on")


SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")


def open_database(url: object, *, create: bool = True, read_only: bool = False) -> Database:
    """Open the database at an address, filling it with tables where there are none.

    Without ``create`` a database that has none is refused, and nothing is changed. One that is
    ``read_only`` is looked at: nothing is made or changed, and writing is refused.
    """
    if isinstance(url, str) and url.startswith(SQLITE) and len(url) > len(SQLITE):
        from capri.store.sqlite import SqliteDatabase

        return SqliteDatabase(Path(url.removeprefix(SQLITE)), create=create, read_only=read_only)
    if isinstance(url, str) and url.startswith(POSTGRES):
        try:
            from capri.store.postgres import PostgresDatabase
        except ModuleNotFoundError:
            raise MissingExtraError(
                "a store in Postgres needs psycopg: pip install 'capri-bandits[store]'"
            ) from None
        return PostgresDatabase(url, create=create, read_only=read_only)
    # What was given, without what may be a password.
    given = type(url).__name__
    if isinstance(url, str):
        given = f"an address that begins with {url.partition(':')[0][:20]!r}"
    raise ConfigurationError(
        "store must be 'sqlite:///file.db', 'sqlite:////folder/file.db', 'postgresql://...' or "
        f"None for memory, got {given}"
    )
