"""An SQLite file that is looked at: not a byte of it changes, and no file comes to be beside it.

A file in use has a write-ahead log and is read as every reader does, by a connection that may not
write. Without a log nobody has it open. Then a reader would make one, and an index, and leave both
behind; so the file is read as one that does not change (``immutable``), and once more the usual way
if it did.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

from capri.errors import StorageError
from capri.store.sqlite import SqliteDatabase
from capri.store.transaction import Transaction, empty_store

Result = TypeVar("Result")
_Mark = tuple[int, int]
_LOGS = ("wal", "journal")


class SqliteLook(SqliteDatabase):
    """One file that is read and nothing else."""

    def __init__(self, path: Path) -> None:
        self._still: _Mark | None = None  # the file as it was when it began to be read as immutable
        self._looking = Lock()
        super().__init__(path, create=False)

    def _begin(self, *, create: bool) -> None:
        if not self.path.exists():
            raise empty_store(str(self.path))
        self._reader = self._connect()
        try:
            if self.read(self._version) == 0:
                raise empty_store(str(self.path))
        except BaseException:
            self.close()
            raise

    def _address(self) -> str:
        self._still = self._mark()
        wanted = "mode=ro" if self._still is None else "immutable=1"
        return f"{self.path.absolute().as_uri()}?{wanted}"

    def _mark(self) -> _Mark | None:
        """By which a file that nobody has open is known again; None while somebody has."""
        if any(self.path.with_name(f"{self.path.name}-{log}").exists() for log in _LOGS):
            return None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def read(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function on the file as it is now; once more if it began to change meanwhile."""
        with self._problems(), self._looking:
            while True:
                try:
                    result = super().read(function)
                except StorageError:
                    if not self._has_moved():
                        raise
                else:
                    if not self._has_moved():
                        return result
                self._reader.close()
                self._reader = self._connect()

    def _has_moved(self) -> bool:
        """Whether what was read as a file that does not change did so."""
        return self._still is not None and self._still != self._mark()

    def _connections(self) -> tuple[sqlite3.Connection, ...]:
        return (self._reader,)

    def write(self, function: Callable[[Transaction], Result]) -> Result:
        """Refused."""
        raise StorageError(f"{self.path} was opened to be looked at: nothing was changed")

    def forget(self) -> bool:
        """Refused, too."""
        return self.write(lambda _: False)
