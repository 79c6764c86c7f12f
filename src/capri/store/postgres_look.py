"""A database of a server that is looked at: every transaction is read-only, and nobody signs in."""

from collections.abc import Callable
from typing import TypeVar

from psycopg import Connection

from capri.errors import StorageError
from capri.store.migrations import check_version
from capri.store.postgres import PostgresDatabase
from capri.store.transaction import Row, Transaction

Result = TypeVar("Result")


class PostgresLook(PostgresDatabase):
    """A database of whatever schema up to this release's, that is read and nothing else."""

    def __init__(self, url: str) -> None:
        super().__init__(url, create=False)

    def _begin(self) -> None:
        check_version(self.read(self._version), "postgres", self._shown)

    def _connect(self, name: str = "capri") -> Connection[Row]:
        connection = super()._connect(name)
        connection.execute("SET default_transaction_read_only = on")
        return connection

    def write(self, function: Callable[[Transaction], Result]) -> Result:
        """Refused."""
        raise StorageError(f"{self._shown} was opened to be looked at: nothing was changed")

    def forget(self) -> bool:
        """Refused, too."""
        return self.write(lambda _: False)
