"""A policy's state in a database: opening it, looking at it, publishing.

Every function here that takes a unit does its part of one transaction; which parts make one is the
business of the engine.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from capri.epoch.ids import DecisionIds
from capri.epoch.modes import Operation
from capri.errors import StorageError
from capri.privacy.randomness import Streams
from capri.store.codec import BytesCodec, packed, unpacked
from capri.store.maintenance import forget_user
from capri.store.repository import Forgotten, Repository
from capri.store.rollback import (
    Anchor,
    Checkpoint,
    FileAnchor,
    beside,
    check_newest,
    first_digest,
    next_digest,
    recalled,
    remember,
    unknown_store,
)
from capri.store.seal import SECRET_BYTES, Seal
from capri.store.sql_rows import SqlRows
from capri.store.sqlite import SqliteDatabase
from capri.store.transaction import Database, Row, Transaction
from capri.store.view import OPEN, View, read_counter, read_digest, read_view

Result = TypeVar("Result")
# The kind of operation by which a store knows that it has an anchor.
ANCHORED = "anchor"
_ANCHORED = "SELECT generation FROM operations WHERE kind = ? LIMIT 1"


_NEW = "SELECT version, actions FROM catalogues WHERE version"
_RELEASES = "SELECT release FROM epochs WHERE release IS NOT NULL ORDER BY released"


class SqlRepository(Repository[Transaction]):
    """One policy in one database."""

    rows: SqlRows
    synchronous, own_law = False, -1

    def __init__(
        self,
        database: Database,
        store_key: bytes | None,
        anchor: Anchor | None = None,
        *,
        new_anchor: bool = False,
    ) -> None:
        """``new_anchor``: the anchor may know nothing of a store with a past, once."""
        self.database, self.anchor = database, anchor
        self._new_anchor = new_anchor
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
        found = self.database.read(
            lambda transaction: transaction.row("SELECT configuration FROM policy")
        )
        return None if found is None else unpacked(found[0])

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
        allowed = self._new_anchor
        file = self.beside
        self.note(*seen, None if file is None else file.read(self.store_id))
        begun = allowed and not self._new_anchor  # what was allowed was needed
        if self.anchor is not None and (begun or not self.has_anchor()):
            self._write_anchored(self.anchor.kind, again=begun)
            self.note()
        self._new_anchor = False

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
    def beside(self) -> FileAnchor | None:
        """The small file beside an SQLite file."""
        database = self.database
        return beside(database.path) if isinstance(database, SqliteDatabase) else None

    def has_anchor(self) -> bool:
        """Whether an anchor was ever begun for this store: then it is not to be gone without."""
        return any(each.kind == ANCHORED for each in self.operations())

    def _write_anchored(self, kind: str, *, again: bool) -> None:
        """A line in the history of operations, after the anchor knows of the store."""

        def anchored(transaction: Transaction) -> None:
            transaction.hold_policy()
            generation = self.lock(transaction)[1]
            if again or transaction.row(_ANCHORED, (ANCHORED,)) is None:
                record = {"kind": kind}
                self.note_operation(transaction, generation, ANCHORED, record, time.time())

        self.database.write(anchored)

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

        An anchor that knows nothing of a store with a past is refused, also by a process that has
        written it before: somebody has taken it away.
        """
        known = recalled(self.store_id)
        anchored = None if self.anchor is None else self.anchor.read(self.store_id)
        now, digests = self.database.read(self.checkpoint)
        check_newest(repr(self.database), now, digests.get, known, anchored, *seen)
        if self.anchor is not None and anchored is None and now.generation > 0:
            if self.anchor.read(self.store_id) is not None:  # another process has just begun it
                return self.note(*seen)
            if not self._new_anchor:
                raise unknown_store(self.anchor, repr(self.database))
            self._new_anchor = False  # said once, for this one
        remember(now)
        if self.anchor is not None and now != anchored:
            self.anchor.write(now)
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
        rows = transaction.rows("SELECT generation, digest FROM history ORDER BY generation")
        generation = read_counter(transaction)[1]
        if not rows or rows[-1][0] != generation:
            raise StorageError(f"{self.database!r} is damaged: its history has gaps")
        return Checkpoint(self.store_id, generation, rows[-1][1]), dict(rows)

    # -- units of work ----------------------------------------------------------------------------

    def write(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function in a transaction, durable on return."""
        return self.database.write(function)

    def read(self, function: Callable[[Transaction], Result]) -> Result:
        """Run a function that reads, all of it at one point in time."""
        return self.database.read(function)

    def check_process(self) -> None:
        """Refuse a forked child, before a lock is taken."""
        self.database.check_process()

    def join(self, unit: Transaction, epochs: Sequence[int]) -> tuple[int, int]:
        """Hold epochs as they are until the end of the transaction, together with others."""
        return unit.join_epochs(epochs)

    def hold(self, unit: Transaction, epoch: int) -> None:
        """Hold an epoch alone until the end of the transaction, after all who joined it."""
        unit.hold_epoch(epoch)

    def lock(self, unit: Transaction) -> tuple[int, int]:
        """Slots handed out and generation, which stay so until the end of the transaction."""
        unit.run("UPDATE counter SET issued = issued WHERE id = 1")
        return read_counter(unit)

    def certified(self) -> dict[str, Any] | None:
        """Store, generation and digest, and whether an anchor notes them."""
        seen, anchored = self.note(), self.anchor is not None
        standing = {"line": seen.store_id, "generation": seen.generation, "digest": seen.digest}
        return standing | {"anchored": anchored}

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

    # -- looking ----------------------------------------------------------------------------------

    def counter(self, seen: View) -> tuple[int, int]:
        """Slots handed out and generation; refuses a copy that is older than the view."""
        issued, generation, digest = self.database.read(
            lambda transaction: (
                *read_counter(transaction),
                read_digest(transaction, seen.generation),
            )
        )
        self.check(seen, generation, digest)
        return issued, generation

    def look(self, seen: View, known: Iterable[int]) -> tuple[int, View, dict[int, Any]]:
        """Slots handed out, the view of now, and versions of the actions that are not known.

        A store never goes back: one that is behind the view that was read before, or has another
        history there, is a copy that was put in its place, and refused.
        """
        versions = frozenset(known)

        def read(transaction: Transaction) -> tuple[int, View, str | None, list[Row], Row | None]:
            issued, view = read_counter(transaction)[0], read_view(transaction)
            secret = transaction.row("SELECT secret FROM policy")
            new = [version for version, _ in view.catalogues if version not in versions]
            rows = transaction.among(_NEW, new) if new else []
            return issued, view, read_digest(transaction, seen.generation), rows, secret

        issued, view, digest, actions, secret = self.database.read(read)
        self.check(seen, view.generation, digest)
        if secret is not None:
            self.take_secrets(secret[0])
        return issued, view, {int(version): blob for version, blob in actions}

    def _value(self, sql: str, *values: Any) -> Any:
        """The first column of the row that a statement finds; None where there is none."""
        found = self.database.read(lambda transaction: transaction.row(sql, values))
        return None if found is None else found[0]

    def _public(self, sql: str, *values: Any) -> Any:
        """The same of what must be there."""
        found = self._value(sql, *values)
        if found is None:
            raise StorageError(f"{self.database!r} is damaged: a public value is missing")
        return found

    def law(self, generation: int) -> Any:
        """A law, None if no epoch plays it any more."""
        return self._value("SELECT state FROM laws WHERE generation = ?", generation)

    def plan(self, epoch: int) -> Any:
        """The plan of an epoch."""
        return self._public("SELECT plan FROM epochs WHERE number = ?", epoch)

    def segment(self, epoch: int, number: int) -> Any:
        """A segment of an epoch."""
        sql = "SELECT segment FROM segments WHERE epoch = ? AND number = ?"
        return self._public(sql, epoch, number)

    def release_of(self, epoch: int) -> Any:
        """What an epoch has published; None where that is nothing."""
        return self._value("SELECT release FROM epochs WHERE number = ?", epoch)

    def releases(self, unit: Transaction) -> list[Any]:
        """What epochs have published, in the order of their releases."""
        return [row[0] for row in unit.rows(_RELEASES)]

    def last_epoch(self) -> int:
        """The number of the epoch that was planned last; 0 before the first."""
        return int(self._value("SELECT max(number) FROM epochs") or 0)

    def missed(self) -> int:
        """Releases that were not ready at the moment that was fixed for them."""
        return int(self._value("SELECT count(*) FROM epochs WHERE missed > 0"))

    def streams(self) -> dict[str, Any]:
        """Where a simulation's generators stand."""
        return unpacked(self._public("SELECT state FROM streams"))[0]

    def operations(self) -> tuple[Operation, ...]:
        """What operators did, in order."""
        rows = self.database.read(
            lambda transaction: transaction.rows(
                "SELECT kind, made, record FROM operations ORDER BY generation"
            )
        )
        return tuple(Operation(str(kind), float(at), unpacked(done)[0]) for kind, at, done in rows)

    # -- publishing -------------------------------------------------------------------------------

    def publish(self, unit: Transaction, generation: int, what: bytes) -> None:
        """Raise the generation from the one that is locked, and chain what is published."""
        found = unit.row("SELECT digest FROM history WHERE generation = ?", (generation,))
        assert found is not None
        unit.insert("history", [(generation + 1, next_digest(found[0], what))])
        unit.run("UPDATE counter SET generation = ? WHERE id = 1", (generation + 1,))

    def note_operation(
        self, unit: Transaction, generation: int, kind: str, record: dict[str, Any], made: float
    ) -> None:
        """One line in the history of operations, published with the generation that follows."""
        blob = packed(record)
        unit.insert("operations", [(generation + 1, made, kind, blob)])
        self.publish(unit, generation, kind.encode() + b" " + blob)

    def set_issued(self, unit: Transaction, issued: int) -> None:
        """So many slots are handed out."""
        unit.run("UPDATE counter SET issued = ? WHERE id = 1", (issued,))

    def state_of(self, unit: Transaction, epoch: int) -> str | None:
        """Where an epoch is in its life."""
        found = unit.row("SELECT state FROM epochs WHERE number = ?", (epoch,))
        return None if found is None else str(found[0])

    def move(self, unit: Transaction, epoch: int, before: str, after: str) -> bool:
        """From one state to the next, and from no other; False if it is in another."""
        sql = "UPDATE epochs SET state = ? WHERE number = ? AND state = ?"
        return unit.run(sql, (after, epoch, before)) == 1

    def set_epoch(self, unit: Transaction, epoch: int, **values: Any) -> None:
        """Give an epoch some values by the names of their columns."""
        columns = ", ".join(f"{name} = ?" for name in values)
        unit.run(f"UPDATE epochs SET {columns} WHERE number = ?", (*values.values(), epoch))

    def add_epoch(self, unit: Transaction, number: int, first: int, length: int, plan: Any) -> None:
        """A new epoch, open."""
        unit.insert("epochs", [(number, first, length, OPEN, *[None] * 6, plan, None, None, None)])

    def add_segment(
        self, unit: Transaction, epoch: int, number: int, first: int, law: int, segment: Any
    ) -> None:
        """From this slot on an epoch plays this law."""
        unit.insert("segments", [(epoch, number, first, law, segment)])

    def add_law(self, unit: Transaction, generation: int, law: Any) -> None:
        """What is known from a generation on."""
        unit.insert("laws", [(generation, law)])

    def drop_laws(self, unit: Transaction) -> None:
        """Laws that no epoch under way plays, the newest aside."""
        unit.drop_public(
            "DELETE FROM laws WHERE generation < (SELECT max(generation) FROM laws) "
            "AND generation NOT IN (SELECT law FROM segments JOIN epochs "
            "ON segments.epoch = epochs.number WHERE epochs.state IN ('open', 'waiting'))"
        )

    def offer(self, unit: Transaction, version: int, actions: Any) -> None:
        """A version of the actions for the next epoch, in place of one that was never played."""
        unit.run("DELETE FROM catalogues WHERE epoch IS NULL")
        unit.insert("catalogues", [(version, None, actions)])

    def begin_version(self, unit: Transaction, version: int, epoch: int) -> None:
        """The first epoch that plays a version of the actions."""
        unit.run("UPDATE catalogues SET epoch = ? WHERE version = ?", (epoch, version))

    @contextmanager
    def drawing(self, streams: Streams) -> Iterator[None]:
        """A simulation goes on from where its generators are stored."""
        before = streams.state()
        try:
            yield
        except BaseException:
            if before is not None:
                streams.restore(before)
            raise

    def write_streams(self, unit: Transaction, streams: Streams) -> None:
        """Where a simulation's generators stand, with what they drew."""
        state = streams.state()
        if state is not None:
            unit.run("UPDATE streams SET state = ? WHERE id = 1", (packed(state),))
