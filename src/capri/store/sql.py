"""A policy's state in a database: opening it, looking at it, publishing.

Every function here that takes a unit does its part of one transaction; which parts make one is the
business of the engine.
"""

import secrets
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, TypeVar

from capri.codec import packed, unpacked
from capri.epoch.decisions import DecisionIds
from capri.errors import StorageError
from capri.store.codec import BytesCodec
from capri.store.maintenance import forget_user
from capri.store.repository import Forgotten, Repository
from capri.store.rollback import (
    Checkpoint,
    FileGuard,
    RollbackGuard,
    beside,
    check_newest,
    first_digest,
    next_digest,
    recalled,
    remember,
    unknown_store,
    warn_unguarded,
)
from capri.store.seal import SECRET_BYTES, Seal
from capri.store.sql_rows import SqlRows
from capri.store.sqlite import SqliteDatabase
from capri.store.transaction import Database, Transaction
from capri.store.view import View, read_digest, read_view
from capri.streams import Streams

Result = TypeVar("Result")
# The kind of operation by which a store knows that it has a rollback guard.
GUARDED = "rollback_guard"


class Drawing(AbstractContextManager[None]):
    """What a simulation draws: where that fails, its generators are as they were before."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._before = streams, list[dict[str, Any] | None]()

    def __enter__(self) -> None:
        self._before.append(self._streams.state())

    def __exit__(self, kind: object, *_: object) -> None:
        before = self._before.pop()
        if kind is not None and before is not None:
            self._streams.restore(before)


class SqlRepository(Repository):
    """One policy in one database."""

    rows: SqlRows
    synchronous, own_law = False, -1

    def __init__(
        self,
        database: Database,
        store_key: bytes | None,
        rollback_guard: RollbackGuard | None = None,
        *,
        new_rollback_guard: bool = False,
    ) -> None:
        """``new_rollback_guard``: it may know nothing of a store with a past, once."""
        self.database, self.rollback_guard = database, rollback_guard
        self.write, self.read = database.write, database.read
        self.begin_step, self.end_step = database.begin_step, database.end_step
        self.check_process = database.check_process
        self._new_rollback_guard = new_rollback_guard
        self._store_key = store_key
        self.store_id = ""
        self.codec = BytesCodec()
        self.rows = SqlRows(database, Seal(None, ""))
        self.ids = DecisionIds(b"")  # until the store is opened
        self.single_writer = database.single_writer
        self._secret = b""

    def __repr__(self) -> str:
        return f"SqlRepository({self.database!r})"

    # -- opening ----------------------------------------------------------------------------------

    def configuration(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What the stored policy was built from; None for an empty store."""
        found = self.value("policy", "configuration")
        return None if found is None else unpacked(found)

    def reconfigure(self, unit: Any, before: Any, configuration: Any) -> None:
        """Keep what the policy is built from now on; the version before it stays known."""
        if not unit.select("catalogues", ("version",), version=0):
            unit.insert("catalogues", [(0, 0, before)])
        unit.update("policy", {"configuration": configuration}, id=1)

    def create(
        self,
        configuration: tuple[dict[str, Any], dict[str, Any]],
        law: bytes,
        streams: bytes | None,
    ) -> bool:
        """Fill an empty store; False if another process was first."""
        store_id = secrets.token_hex(16)
        seal = Seal(self._store_key, store_id)
        secret = secrets.token_bytes(2 * SECRET_BYTES)
        described = packed(*configuration)

        def fill(transaction: Transaction) -> bool:
            transaction.hold_policy()
            if transaction.row("SELECT id FROM policy") is not None:
                return False
            sealed = seal.seal("policy", 1, "secret", secret)
            transaction.insert("policy", [(1, store_id, described, sealed)])
            transaction.insert("counter", [(1, 0, 0)])
            transaction.insert("history", [(0, first_digest(store_id))])
            transaction.insert("laws", [(0, law)])
            if streams is not None:
                transaction.insert("streams", [(1, streams)])
            return True

        return self.database.write(fill)

    def open(self, *seen: Checkpoint | None) -> None:
        """Read the secrets, and refuse a copy older than one that was seen."""
        self.read_secrets()
        allowed = self._new_rollback_guard
        file = self.beside
        self.note(*seen, None if file is None else file.read(self.store_id))
        begun = allowed and not self._new_rollback_guard  # what was allowed was needed
        if self.rollback_guard is not None and (begun or not self.has_guard()):
            self._write_guarded(self.rollback_guard.kind, again=begun)
            self.note()
        self._new_rollback_guard = False
        if self.rollback_guard is None and self.has_guard():
            warn_unguarded(repr(self.database))

    def read_secrets(self) -> None:
        """Open what guards users, and change nothing anywhere."""
        found = self.database.read(
            lambda transaction: transaction.row("SELECT store_id, secret FROM policy")
        )
        assert found is not None
        self.store_id = str(found[0])
        self.rows.seal = Seal(self._store_key, self.store_id)
        self.take_secrets(found[1])

    @property
    def beside(self) -> FileGuard | None:
        """The small file beside an SQLite file."""
        database = self.database
        return beside(database.path) if isinstance(database, SqliteDatabase) else None

    def has_guard(self) -> bool:
        """Whether a guard was ever begun for this store: then it is not to be gone without."""
        return any(each.kind == GUARDED for each in self.operations())

    def _write_guarded(self, kind: str, *, again: bool) -> None:
        """A line in the history of operations, after the rollback guard knows of the store."""

        def guarded(transaction: Transaction) -> None:
            transaction.hold_policy()
            generation = transaction.lock()[1]
            if again or not transaction.select("operations", ("kind",), kind=GUARDED):
                record = {"kind": kind}
                self.note_operation(transaction, generation, GUARDED, record, time.time())

        self.database.write(guarded)

    def take_secrets(self, stored: bytes) -> None:
        """Open what guards users, where it is another than before: keys may be rotated.

        A process whose store key was rotated out is refused here, before it writes anything that
        nobody could read.
        """
        if bytes(stored) == self._secret:
            return
        secret = self.rows.seal.open("policy", 1, "secret", stored)
        if len(secret) not in (2 * SECRET_BYTES, 3 * SECRET_BYTES):
            if self._store_key is None:
                raise StorageError(
                    f"{self.database!r} was made with a store_key: open it with the same one"
                )
            raise StorageError(f"{self.database!r} is damaged: restore the newest copy")
        key, self.rows.salt = secret[:SECRET_BYTES], secret[SECRET_BYTES : 2 * SECRET_BYTES]
        self.ids.change(key, secret[2 * SECRET_BYTES :] or None)
        self._secret = bytes(stored)

    def note(self, *seen: Checkpoint | None) -> Checkpoint:
        """Remember how far this store has come, after checking that it is the newest seen.

        A guard that knows nothing of a store with a past is refused, also by a process that has
        written it before: somebody has taken it away.
        """
        known = recalled(self.store_id)
        guarded = None if self.rollback_guard is None else self.rollback_guard.read(self.store_id)
        now, digests = self.database.read(self.checkpoint)
        check_newest(repr(self.database), now, digests.get, known, guarded, *seen)
        if self.rollback_guard is not None and guarded is None and now.generation > 0:
            if (
                self.rollback_guard.read(self.store_id) is not None
            ):  # another process has just begun it
                return self.note(*seen)
            if not self._new_rollback_guard:
                raise unknown_store(self.rollback_guard, repr(self.database))
            self._new_rollback_guard = False  # said once, for this one
        remember(now)
        if self.rollback_guard is not None and now != guarded:
            self.rollback_guard.write(now)
        if (file := self.beside) is not None:
            file.write(now)
        return now

    def check(self, seen: View, generation: int, digest: str | None) -> None:
        """Refuse a store that was replaced under this process by a copy, since a view was read.

        ``digest`` is what the store has now for the generation of that view.
        """
        if seen.generation >= 0 and digest != seen.digest:
            where, before = (
                repr(self.database),
                Checkpoint(self.store_id, seen.generation, seen.digest),
            )
            check_newest(where, Checkpoint(self.store_id, generation, ""), lambda _: digest, before)

    def checkpoint(self, transaction: Transaction) -> tuple[Checkpoint, dict[int, str]]:
        """How far the store has come, and its digest at every generation."""
        rows = transaction.select("history", ("generation", "digest"))
        generation = transaction.counter()[1]
        if not rows or rows[-1][0] != generation:
            raise StorageError(f"{self.database!r} is damaged: its history has gaps")
        return Checkpoint(self.store_id, generation, rows[-1][1]), dict(rows)

    # -- units of work ----------------------------------------------------------------------------

    def certified(self) -> dict[str, Any] | None:
        """Store, generation and digest, and whether a rollback guard notes them."""
        seen, guarded = self.note(), self.rollback_guard is not None
        return {**asdict(seen), "guarded": guarded}

    def snapshot(self, *, secret: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """A store is copied as a whole."""
        raise StorageError(
            f"this policy lives in {self.database!r}, and every answer is kept "
            "there: open it with Capri.open, and copy the database to back it up"
        )

    def forget_user(self, digest: str) -> Forgotten:
        """Delete what is kept of a user, as far as that can be."""
        return forget_user(self, [digest])

    def overwrite(self) -> bool:
        """Make deleted rows unreadable where one can; False if others stood in the way."""
        return self.database.forget()

    def leave(self) -> None:
        """Before closing: nobody waits any more for a server that is away."""
        self.database.closing = True

    def close(self) -> None:
        """Give the connections back."""
        self.database.close()

    # -- public rows ------------------------------------------------------------------------------

    def counter(self, seen: View) -> tuple[int, int]:
        """Slots handed out and generation; refuses a copy that is older than the view."""
        (issued, generation), digest = self.database.read(
            lambda unit: (unit.counter(), read_digest(unit, seen.generation))
        )
        self.check(seen, generation, digest)
        return issued, generation

    def look(self, seen: View, known: Collection[int]) -> tuple[int, View, dict[int, Any]]:
        """Slots handed out, the view of now, and versions of the actions that are not known.

        A store never goes back: one that is behind the view that was read before, or has another
        history there, is a copy that was put in its place, and refused.
        """
        found, digest, secret = self.database.read(
            lambda unit: (
                read_view(unit, self.codec, known),
                read_digest(unit, seen.generation),
                unit.row("SELECT secret FROM policy"),
            )
        )
        self.check(seen, found[1].generation, digest)
        if secret is not None:
            self.take_secrets(secret[0])
        return found

    def publish(self, unit: Transaction, generation: int, what: bytes) -> None:
        """Raise the generation from the one that is locked, and chain what is published."""
        before = read_digest(unit, generation)
        assert before is not None
        unit.insert("history", [(generation + 1, next_digest(before, what))])
        unit.set_counter("generation", generation + 1)

    def drop_learnt(self, unit: Transaction, epoch: int) -> None:
        """Plans stay, for who wants to check a release by other means."""

    # -- simulations ------------------------------------------------------------------------------

    def streams(self) -> dict[str, Any]:
        """Where a simulation's generators stand."""
        return unpacked(self.value("streams", "state"))[0]

    def drawing(self, streams: Streams) -> AbstractContextManager[object]:
        """A simulation goes on from where its generators are stored."""
        return Drawing(streams) if streams.simulated else nullcontext()

    def write_streams(self, unit: Transaction, streams: Streams) -> None:
        """Where a simulation's generators stand, with what they drew."""
        state = streams.state()
        if state is not None:
            unit.run("UPDATE streams SET state = ? WHERE id = 1", (packed(state),))
