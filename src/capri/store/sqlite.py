"""A store in one SQLite file: write-ahead log, full synchronisation, one writer at a time.

``BEGIN IMMEDIATE`` takes the only write lock of the file at the start, so that a transaction never
finds out half-way that it cannot write; who comes second waits. A stranger who holds the lock for
longer than :data:`PATIENCE` is told of in a :class:`StorageError`.

Deleted rows are overwritten by zeros (``secure_delete``); their old images in the log go when
:meth:`SqliteDatabase.forget` copies it into the file and cuts it to nothing.

Of a file that is read and nothing else not a byte changes, and no file comes to be beside it. One
in use has a write-ahead log and is read as every reader does, by a connection that may not write.
Without a log nobody has it open. Then a reader would make one, and an index, and leave both behind;
so the file is read as one that does not change (``immutable``), and once more the usual way if it
did.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from capri.errors import AwayError, InDoubtError, StorageError
from capri.store.tables import TABLES, VERSION_TABLE, Row
from capri.store.transaction import (
    Database,
    Job,
    Transaction,
    check_version,
    empty_store,
    run_jobs,
)

Result = TypeVar("Result")

# Seconds to wait for the write lock before a stranger is suspected.
PATIENCE = 30.0
_NAPS = 0.01
# Temporary tables stay in memory: a file would keep what they held.
_SETTINGS = ("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON", "temp_store = MEMORY")
# Rows of one statement: old versions of SQLite take 999 values in all.
_ROWS = 64
# What passes: a lock, a full disk, a disk that fails.
_AWAY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")
# Seconds to wait for readers before the log is left for the next time.
_CLEANING = 0.5
# Files beside one that somebody has open.
_LOGS = ("wal", "journal")


class SqliteTransaction(Transaction):
    """Statements on one connection, between BEGIN and COMMIT."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows that a statement gives."""
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement changed."""
        return self._connection.execute(sql, values).rowcount

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """New rows."""
        self._insert(rows, _INSERT[table], _INSERT_MANY[table])

    def insert_new(self, table: str, rows: Sequence[Row]) -> int:
        """New rows, except those that are there."""
        return self._insert(rows, _INSERT_NEW[table], _INSERT_MANY_NEW[table])

    def _insert(self, rows: Sequence[Row], one: str, many: str) -> int:
        """Of many rows a good number a statement: one by one they take half as long again."""
        whole, changed = len(rows) - len(rows) % _ROWS, 0
        for start in range(0, whole, _ROWS):
            cells = list(chain.from_iterable(rows[start : start + _ROWS]))
            changed += self._connection.execute(many, cells).rowcount
        if whole < len(rows):
            changed += self._connection.executemany(one, rows[whole:]).rowcount
        return changed

    def among(self, sql: str, values: Iterable[int] | Iterable[str]) -> list[Row]:
        """The values travel as one JSON text: SQLite has no arrays."""
        listed = list(values)
        if len(listed) == 1:
            return self.rows(f"{sql} = ?", listed)
        return self.rows(f"{sql} IN (SELECT value FROM json_each(?))", (json.dumps(listed),))

    def join_epochs(self, epochs: Sequence[int]) -> tuple[int, int]:
        """The write lock is held already."""
        return self.counter()

    def hold_epoch(self, epoch: int) -> None:
        """The write lock is held already."""

    def hold_policy(self) -> None:
        """The write lock is held already."""

    def delete(self, table: str, **where: Any) -> None:
        """Laws are megabytes, and overwriting them would hold up everybody."""
        self._connection.execute("PRAGMA secure_delete = OFF")
        try:
            super().delete(table, **where)
        finally:
            self._connection.execute("PRAGMA secure_delete = ON")

    def scrub(self, table: str) -> None:
        """Write what is left anew: pages that were split keep copies of rows that moved on.

        SQLite zeroes deleted cells and freed pages, and not what lies between the cells of a page
        after it was rebalanced. A table that was emptied has none of its pages left, and rows that
        come in order never split one.
        """
        kept, order = "temp.kept_for_scrub", ", ".join(TABLES[table].key)
        self._connection.execute(f"CREATE TEMP TABLE kept_for_scrub AS SELECT * FROM main.{table}")
        self._connection.execute(f"DELETE FROM main.{table}")
        self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM {kept} ORDER BY {order}")
        self._connection.execute(f"DROP TABLE {kept}")

    def nested(self, function: Callable[[Transaction], Result]) -> Result:
        """A savepoint."""
        self._connection.execute("SAVEPOINT member")
        try:
            result = function(self)
        except BaseException:
            if self._connection.in_transaction:  # a full disk ends the whole transaction
                self._connection.execute("ROLLBACK TO member")
                self._connection.execute("RELEASE member")
            raise
        self._connection.execute("RELEASE member")
        return result

    def lost(self, problem: Exception) -> bool:
        """SQLite rolls back by itself when the disk is full or fails."""
        return not self._connection.in_transaction


_INSERT = {name: table.insert(name) for name, table in TABLES.items()}
_INSERT_MANY = {name: table.insert(name, _ROWS) for name, table in TABLES.items()}
_INSERT_NEW, _INSERT_MANY_NEW = (
    {name: statement + TABLES[name].on_conflict() for name, statement in statements.items()}
    for statements in (_INSERT, _INSERT_MANY)
)


class SqliteDatabase(Database):
    """One file, opened by this process with a connection to write and one to read."""

    kind, single_writer = "sqlite", True

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.path = path
        # Of a file that is looked at and was not in use: what it was known by when it was opened.
        self._still: tuple[int, int] | None = None
        super().__init__(read_only=read_only, patience=patience)
        self._connections: list[sqlite3.Connection] = []
        with self._problems():
            self._begin(create=create and not read_only)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    # -- opening ----------------------------------------------------------------------------------

    def _begin(self, *, create: bool) -> None:
        """Open the file, and make the tables where there are none."""
        if create:
            _create_for_owner(self.path)
        elif not self.path.exists():
            raise empty_store(self.name)
        self._reader = self._connect()
        try:
            # Before anything is changed: reading leaves a stranger's file as it was.
            if self.read(self._version) == 0 and not create:
                raise empty_store(self.name)
            if not self.read_only:
                self._writer, self._cleaner = self._connect(), self._connect()
                self._write_ahead()
                self.write(self._create_schema)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # Statements begin and end transactions themselves; a lock of ours keeps threads apart.
        connection = sqlite3.connect(
            self._address(),
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        self._connections.append(connection)
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _address(self) -> str:
        address = self.path.absolute().as_uri()
        if not self.read_only:
            return address
        self._still = self._mark()
        return f"{address}?{'mode=ro' if self._still is None else 'immutable=1'}"

    def _mark(self) -> tuple[int, int] | None:
        """By which a file that nobody has open is known again; None while somebody has."""
        if any(self.path.with_name(f"{self.path.name}-{log}").exists() for log in _LOGS):
            return None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def _write_ahead(self) -> None:
        """Change to the write-ahead log. SQLite does not wait for others here, so we do."""
        give_up = monotonic() + self._patience
        while True:
            try:
                (mode,) = self._writer.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as problem:
                if not _is_busy(problem) or monotonic() > give_up:
                    raise
                sleep(_NAPS)
            else:
                if mode != "wal":
                    raise StorageError(
                        f"{self.path} cannot keep a write-ahead log where it is (it got {mode!r}): "
                        "put it on a local disk that can be written"
                    )
                return

    def _version(self, transaction: Transaction) -> int:
        """Of the schema, 0 for an empty file; other files are refused."""
        tables = {name for (name,) in transaction.rows("SELECT name FROM sqlite_master")}
        if tables and VERSION_TABLE not in tables:
            raise StorageError(
                f"{self.path} is a database of another program: give the policy a file of its own"
            )
        found = self._known_version(transaction) if tables else 0
        check_version(found, self.name)
        return found

    # -- transactions -----------------------------------------------------------------------------

    def _commit(self, jobs: list[Job]) -> None:
        self._check_open()
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        asked = False
        try:
            run_jobs(jobs, SqliteTransaction(writer))
            asked = True
            writer.execute("COMMIT")
        except BaseException as problem:
            if writer.in_transaction:
                with suppress(sqlite3.Error):  # the first problem is the one to tell
                    writer.execute("ROLLBACK")
            if asked and (name := _name_of(problem)).startswith("SQLITE_IOERR"):
                # Whoever opens the file after a crash may find the transaction in its log.
                raise InDoubtError(
                    f"{self.path} failed while it stored a transaction ({name}), which may be "
                    "there or not: check the disk, and make the call again, with the same key "
                    "where it has one"
                ) from problem
            raise

    def read(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function on the file as it is now; writers go on.

        A file that was not in use may have begun to change meanwhile: then it is read once more.
        """
        with self._problems(), self._reading:
            while True:
                self._check_open()
                try:
                    result = self._read(function)
                except (StorageError, sqlite3.Error):
                    if not self._has_moved():
                        raise
                else:
                    if not self._has_moved():
                        return result
                self._connections.remove(self._reader)
                self._reader.close()
                self._reader = self._connect()

    def _read(self, function: Callable[[Transaction], Result]) -> Result:
        self._reader.execute("BEGIN")
        try:
            return function(SqliteTransaction(self._reader))
        finally:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    def _has_moved(self) -> bool:
        """Whether what was read as a file that does not change did so."""
        return self._still is not None and self._still != self._mark()

    def forget(self) -> bool:
        """Copy the log into the file and cut it to nothing.

        A reader elsewhere may stand in the way. By a connection of its own, so that nobody waits
        here while it does.
        """
        if self.read_only:
            return self.write(lambda _: False)  # refused
        with self._problems(), self._reading:  # our own reader must not hold the log
            self._check_open()
            self._cleaner.execute(f"PRAGMA busy_timeout = {int(_CLEANING * 1000)}")
            # A connection that has not read the file yet does not know of its log.
            self._cleaner.execute("SELECT count(*) FROM sqlite_master").fetchone()
            busy, frames, _ = self._cleaner.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy and frames == 0

    def _release(self) -> None:
        with self._reading:
            self._closed = True
            for connection in reversed(self._connections):
                connection.close()

    # -- problems ---------------------------------------------------------------------------------

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Say what is the matter with the file, in words; no statement and no value is quoted."""
        self.check_process()
        try:
            yield
        except sqlite3.Error as problem:
            name = _name_of(problem)
            kind = AwayError if name.startswith(_AWAY) else StorageError
            raise kind(f"{self.path} {self._explained(name)}") from problem
        except OSError as problem:
            raise StorageError(f"{self.path} cannot be opened: {problem.strerror}") from problem

    def _explained(self, name: str) -> str:
        if name.startswith(_AWAY[:2]):
            return (
                f"is held by another program for longer than {self._patience:g} seconds: nothing "
                "was changed. End what holds it (a shell, a backup) and try again"
            )
        if name.startswith("SQLITE_READONLY"):
            return "is read-only: nothing was changed. Make the file and its folder writable"
        if name.startswith("SQLITE_FULL"):
            return "cannot grow, the disk is full: nothing was changed. Make room and try again"
        if name.startswith("SQLITE_CANTOPEN"):
            return "cannot be opened: check that its folder exists and may be written"
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return "is damaged or no SQLite database: nothing was changed. Restore the newest copy"
        if name.startswith("SQLITE_IOERR"):
            return f"cannot be read or written ({name}): nothing was changed. Check the disk"
        return f"refused a transaction ({name}): nothing was changed"


def _name_of(problem: BaseException) -> str:
    """SQLite's name of a problem, or that of its type."""
    return str(getattr(problem, "sqlite_errorname", "") or type(problem).__name__)


def _is_busy(problem: sqlite3.OperationalError) -> bool:
    return _name_of(problem).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _create_for_owner(path: Path) -> None:
    """An empty file that only its owner may read; SQLite gives its log the same rights."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
