"""What a collector keeps: one SQLite file with a saved aggregator, and the reports since.

A report that was answered is in the file. When a new bundle is made, the aggregator is saved anew
and takes the place of the reports that are in it, within one transaction. Nothing of a request is
kept but the bytes of its reports, which are private by themselves; and the time of their arrival
only where epochs end by the clock.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from capri.errors import ConfigurationError, StorageError

_TABLES = (
    "CREATE TABLE IF NOT EXISTS collected_state "
    "(id INTEGER PRIMARY KEY CHECK (id = 1), configuration TEXT NOT NULL, saved BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS collected_reports "
    "(number INTEGER PRIMARY KEY, at REAL, messages BLOB NOT NULL)",
)
# Rows of what was read are overwritten; the lock is kept: one process serves a file.
_SETTINGS = ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL")
_SECURE = "secure_delete = ON"
_PATIENCE = 5.0
_PREFIX = "sqlite:///"


class Kept(NamedTuple):
    """A saved aggregator, what it was built from, and the reports since, with their times."""

    configuration: str
    saved: bytes
    reports: list[tuple[float | None, bytes]]


def journal_path(store: str) -> Path:
    """The file at an address."""
    if not store.startswith(_PREFIX) or len(store) == len(_PREFIX):
        raise ConfigurationError(
            "a policy with model = 'local' is kept in one SQLite file: store must be "
            "'sqlite:///file.db'"
        )
    return Path(store.removeprefix(_PREFIX))


class Journal:
    """The file, held by this process alone. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _problems(path):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
        try:
            with _problems(path):
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        run = self._connection.execute
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "collected_state" not in tables:
            raise ConfigurationError(
                f"{self._path} holds a policy of another model: give another store, or the model "
                "that it was made with"
            )
        for setting in (*_SETTINGS, _SECURE):
            run(f"PRAGMA {setting}")
        with self._transaction():
            for table in _TABLES:
                run(table)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back already
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def read(self) -> Kept | None:
        """All of it; None where there is nothing."""
        with _problems(self._path):
            run = self._connection.execute
            found = run("SELECT configuration, saved FROM collected_state").fetchone()
            if found is None:
                return None
            rows = run("SELECT at, messages FROM collected_reports ORDER BY number").fetchall()
            return Kept(found[0], found[1], rows)

    def begin(self, configuration: str, saved: bytes) -> None:
        """The first state."""
        with _problems(self._path), self._transaction():
            self._connection.execute(
                "INSERT INTO collected_state VALUES (1, ?, ?)", (configuration, saved)
            )

    def append(self, messages: bytes, at: float | None) -> None:
        """Reports that were accepted: durable when this returns."""
        with _problems(self._path), self._transaction():
            self._connection.execute(
                "INSERT INTO collected_reports (at, messages) VALUES (?, ?)", (at, messages)
            )

    def replace(self, saved: bytes) -> None:
        """A newer state, which holds all reports."""
        with _problems(self._path), self._transaction():
            self._connection.execute("UPDATE collected_state SET saved = ?", (saved,))
            self._connection.execute("DELETE FROM collected_reports")

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):
            self._connection.close()


@contextmanager
def _problems(path: Path) -> Iterator[None]:
    """What SQLite raises, in our words: none of its own, which may quote values."""
    try:
        yield
    except (sqlite3.Error, OSError) as problem:
        held = "locked" in str(problem)
        why = "another process serves it" if held else type(problem).__name__
        raise StorageError(f"{path} cannot be used: {why}") from None
