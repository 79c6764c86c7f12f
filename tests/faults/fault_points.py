"""Named points at which a process dies, put around the store from outside: the package has none.

A point is a transaction and a place in it: before it begins, inside (after one of its statements),
at its end (all done, not committed) and after (committed, and nobody was told). Transactions are
known by the function that does them. One that is a single statement of Postgres is committed at its
end.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from capri.store import postgres, sqlite
from capri.store.transaction import Database, Transaction
from fault_control import Control

TRANSACTIONS = {
    "Decider.decide": "decide",
    "Rewards.reward": "reward",
    "EpochLoop.end": "end",
    "Releases.close": "close",
    "Releases._keep": "draw",
    "Releases.release": "release",
    "EpochLoop._advance": "publish",
    "EpochLoop._close_before": "skip",
    "Engine.set_mode": "mode",
    "Engine.probe": "probe",
    "Engine.change": "settings",
    "Releases.drop_keys": "expire",
    "forget_user": "forget",
    "rotate_store_key": "store-key",
    "rotate_id_key": "id-key",
    "SqlRepository.create": "create",
    "SqlRepository._write_guarded": "rollback_guard",
    "Database._create_schema": "schema",
    "PostgresDatabase._sign_in": "sign-in",
}
PLACES = ("before", "inside", "end", "after")
STATEMENTS = ("rows", "run", "insert", "insert_new", "among", "join_epochs", "fill")


def name_of(function: Callable[..., Any]) -> str:
    """The transaction that a function does; one that has no name here is to get one."""
    return TRANSACTIONS[function.__qualname__.partition(".<locals>")[0]]


class Points:
    """Dies at the point that a control names."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._inside = threading.local()

    def reach(self, point: str) -> None:
        """Die here if it is the one."""
        if point == self._control.armed and self._control.met():
            self._control.note_death(point)
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Put the points around every store of this process."""
        for kind in (sqlite.SqliteDatabase, postgres.PostgresDatabase):
            kind.write = self._writing(kind.write)  # type: ignore[method-assign]
        for kind in (sqlite.SqliteTransaction, postgres.PostgresTransaction):
            for name in STATEMENTS:
                setattr(kind, name, self._stating(getattr(kind, name)))

    def _writing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(database: Database, function: Callable[[Transaction], Any]) -> Any:
            name = name_of(function)

            def watched(transaction: Transaction) -> Any:
                self._inside.name, self._inside.left = name, self._control.statement
                try:
                    return function(transaction)
                finally:
                    self._inside.name = ""

            def ended(transaction: Transaction) -> Any:
                result = watched(transaction)
                self.reach(f"{name}.end")
                return result

            self.reach(f"{name}.before")
            result = write(database, ended)
            self.reach(f"{name}.after")
            return result

        return written

    def _stating(self, state: Callable[..., Any]) -> Callable[..., Any]:
        def stated(*arguments: Any) -> Any:
            result = state(*arguments)
            name = getattr(self._inside, "name", "")
            if name:
                self._inside.left -= 1
                if self._inside.left == 0:
                    self.reach(f"{name}.inside")
            return result

        return stated
