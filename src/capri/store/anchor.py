"""An anchor outside of the store: how far its line has come, for processes and machines to come.

A store that is put back from a copy brings its own past with it, and so does the small file beside
it. Only what is kept elsewhere can tell. An anchor is a file, or a table ``capri_anchor`` in some
other database. It holds no more than line, generation and digest, all of which are public, and one
anchor serves any number of stores. It is read before a store is, and written after every
publication: a process that dies in between leaves it one publication behind, which the next one
makes up for.

An anchor that knows nothing of a store that has published something is the wrong one, an empty
folder in the place of a share, or a lost one. It is refused, and never begun anew in silence
(:meth:`capri.store.sql.SqlRepository.note`). Reading makes neither file nor table.
"""

import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from capri.errors import AwayError, ConfigurationError, StorageError
from capri.files import write_atomically
from capri.store.lineage import Seen

_CREATE = (
    "CREATE TABLE IF NOT EXISTS capri_anchor "
    "(line TEXT PRIMARY KEY, generation BIGINT NOT NULL, digest TEXT NOT NULL)"
)
_READ = "SELECT generation, digest FROM capri_anchor WHERE line = ?"
# Never back: processes write in any order.
_WRITE = (
    "INSERT INTO capri_anchor (line, generation, digest) VALUES (?, ?, ?) "
    "ON CONFLICT (line) DO UPDATE SET generation = excluded.generation, digest = excluded.digest "
    "WHERE capri_anchor.generation < excluded.generation"
)
SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")
_PATIENCE = 10.0


class Anchor(ABC):
    """Remembers how far lines of history have come."""

    kind: str

    @abstractmethod
    def read(self, line: str) -> Seen | None:
        """What was seen of a line; None where nothing was. Makes nothing."""

    @abstractmethod
    def write(self, now: Seen) -> None:
        """Note how far a line has come, unless more is known."""


def unknown_line(anchor: Anchor, where: str) -> StorageError:
    """For a store that has a past of which its anchor has seen nothing."""
    return StorageError(
        f"the anchor {anchor!r} knows nothing of {where}, which has a past: nothing was changed. "
        "Look whether its share is mounted and its address is right. Only if you know that the "
        "store is the newest copy, begin a new anchor: --new-anchor, or new_anchor=True, once"
    )


def open_anchor(where: object, store: str) -> Anchor | None:
    """The anchor at an address; None for none. It must not be the store itself."""
    if where is None:
        return None
    if not isinstance(where, str | Path) or not str(where):
        raise ConfigurationError(
            "anchor must be a file, 'sqlite:///other.db', 'postgresql://...' or None, got "
            f"{type(where).__name__}"
        )
    if str(where) == store:
        raise ConfigurationError("the anchor must be outside of the store: give another place")
    text = str(where)
    if text.startswith(SQLITE):
        return SqliteAnchor(Path(text.removeprefix(SQLITE)))
    if text.startswith(POSTGRES):
        return PostgresAnchor(text)
    return FileAnchor(Path(text))


class FileAnchor(Anchor):
    """A small JSON file, written as a whole."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"FileAnchor({str(self._path)!r})"

    def read(self, line: str) -> Seen | None:
        """A file that is there and cannot be read says nothing true: it is refused."""
        found = self._notes().get(line)
        return None if found is None else Seen(line, int(found["generation"]), found["digest"])

    def write(self, now: Seen) -> None:
        """Under a lock of the folder, since other processes write the same file."""
        with _alone_in(self._path.parent):
            notes = self._notes()
            known = notes.get(now.line)
            if known is None or known["generation"] < now.generation:
                notes[now.line] = {"generation": now.generation, "digest": now.digest}
                write_atomically(self._path, json.dumps(notes).encode(), confidential=True)

    def _notes(self) -> dict[str, Any]:
        try:
            notes = json.loads(self._path.read_text())
            if all(isinstance(each["generation"], int) for each in notes.values()):
                return dict(notes)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise StorageError(
            f"the anchor {self._path} cannot be read or is damaged: nothing was changed. Mend it; "
            "removing it means trusting that the store is the newest copy"
        )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes, where the system can."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: the last one to write wins, and the next makes up for it
        yield
        return
    try:
        place = os.open(folder, os.O_RDONLY)
    except OSError as problem:
        raise StorageError(f"the anchor's folder {folder}: {problem.strerror}") from None
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


class SqliteAnchor(Anchor):
    """A table in another SQLite file."""

    kind = "sqlite table"

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"SqliteAnchor({str(self._path)!r})"

    def read(self, line: str) -> Seen | None:
        """One row of a file that is there."""
        if not self._path.exists():
            return None
        found = self._run(
            "rw", lambda file: _there(file) and file.execute(_READ, (line,)).fetchone()
        )
        return Seen(line, int(found[0]), str(found[1])) if found else None

    def write(self, now: Seen) -> None:
        """One row, never back."""

        def write(file: sqlite3.Connection) -> None:
            file.execute(_CREATE)
            file.execute(_WRITE, (now.line, now.generation, now.digest))

        self._run("rwc", write)

    def _run(self, mode: str, function: Callable[[sqlite3.Connection], Any]) -> Any:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as file, file:
                return function(file)
        except sqlite3.Error:
            raise _away(repr(self)) from None


def _there(file: sqlite3.Connection) -> bool:
    """Whether there is a table of ours."""
    sql = "SELECT 1 FROM sqlite_master WHERE name = 'capri_anchor'"
    return file.execute(sql).fetchone() is not None


class PostgresAnchor(Anchor):
    """A table in a database of a server."""

    kind = "postgres table"

    def __init__(self, url: str) -> None:
        self._url = url

    def __repr__(self) -> str:
        return f"PostgresAnchor({self._url.rpartition('@')[2]!r})"

    def read(self, line: str) -> Seen | None:
        """One row of a table that is there."""

        def read(server: Any) -> Any:
            if _missing(server):
                return None
            return server.execute(_marks(_READ), (line,)).fetchone()

        found = self._run(read)
        return None if found is None else Seen(line, int(found[0]), str(found[1]))

    def write(self, now: Seen) -> None:
        """One row, never back."""

        def write(server: Any) -> None:
            if _missing(server):
                server.execute(_CREATE)
            server.execute(_marks(_WRITE), (now.line, now.generation, now.digest))

        self._run(write)

    def _run(self, function: Callable[[Any], Any]) -> Any:
        import psycopg

        try:
            with psycopg.connect(self._url, connect_timeout=int(_PATIENCE)) as server:
                return function(server)
        except psycopg.Error:
            raise _away(repr(self)) from None


def _missing(server: Any) -> bool:
    """Whether there is no table of ours yet."""
    found = server.execute("SELECT to_regclass('capri_anchor') IS NULL").fetchone()
    return bool(found[0])


def _marks(sql: str) -> str:
    return sql.replace("?", "%s")


def _away(name: str) -> AwayError:
    return AwayError(
        f"the anchor {name} cannot be reached: nothing was changed. Without it nobody knows "
        "whether the store is the newest copy"
    )
