"""A database of a server that is looked at: every transaction is read-only, and nobody signs in."""

from collections.abc import Callable
from typing import TypeVar

from capri.errors import StorageError
from capri.store.line import Line
from capri.store.postgres import PostgresDatabase
from capri.store.schema import check_version
from capri.store.transaction import Transaction

Result = TypeVar("Result")


class PostgresLook(PostgresDatabase):
    """A database that is read and nothing else."""

    def __init__(self, url: str) -> None:
        super().__init__(url, create=False)

    def _begin(self) -> None:
        check_version(self.read(self._version), self._shown)

    def _connect(self, name: str = "capri") -> Line:
        connection = super()._connect(name)
        connection.execute("SET default_transaction_read_only = on")
        connection.execute("SET statement_timeout = 0")  # a backup reads whole tables
        return connection

    def write(self, function: Callable[[Transaction], Result]) -> Result:
        """Refused."""
        raise StorageError(f"{self._shown} was opened to be looked at: nothing was changed")

    def forget(self) -> bool:
        """Refused, too."""
        return self.write(lambda _: False)
