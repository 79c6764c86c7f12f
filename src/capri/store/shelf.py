"""The tables as a policy uses them: opening, publishing, keys, users, what users did.

Every function here that takes a transaction does its part of one; which parts make one transaction
is the business of the desk (:mod:`capri.joint.desk`).
"""

import secrets
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.epoch.ids import DecisionIds
from capri.errors import StorageError
from capri.privacy.users import UserLimit
from capri.store.anchor import Anchor, unknown_line
from capri.store.blobs import packed, unpacked
from capri.store.lineage import (
    Seen,
    check_newest,
    first_digest,
    next_digest,
    read_beside,
    recalled,
    remember,
    write_beside,
)
from capri.store.records import REWARD_DIGEST
from capri.store.seal import Seal
from capri.store.sqlite import SqliteDatabase
from capri.store.transaction import Database, Row, Transaction
from capri.store.view import View, read_counter

_KEYS = "SELECT digest, number, epoch, expires, secret FROM keys WHERE digest"
_EXPIRED = "SELECT digest FROM keys WHERE expires <= ? LIMIT ?"
# Keys that are deleted at once, and keys up to which a table is written anew: some milliseconds.
_SLICE, _REWRITTEN = 2_000, 10_000
_SECRET_BYTES = 32
# The kind of operation by which a store knows that it has an anchor.
ANCHORED = "anchor"
_ANCHORED = "SELECT generation FROM operations WHERE kind = ? LIMIT 1"


class Shelf:
    """One policy's rows in one database."""

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
        self.line = ""
        self.seal = Seal(None, "")
        self.ids = DecisionIds(b"")  # until the store is opened
        self.salt = b""
        self._secret = b""

    def __repr__(self) -> str:
        return f"Shelf({self.database!r})"

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
        line = secrets.token_hex(16)
        seal = Seal(self._store_key, line)
        secret = secrets.token_bytes(2 * _SECRET_BYTES)
        described = packed(*configuration)

        def fill(transaction: Transaction) -> bool:
            transaction.hold_policy()
            if transaction.row("SELECT id FROM policy") is not None:
                return False
            sealed = seal.seal("policy", 1, "secret", secret)
            transaction.insert("policy", [(1, line, described, sealed)])
            transaction.insert("counter", [(1, 0, 0)])
            transaction.insert("history", [(0, first_digest(line))])
            transaction.insert("laws", [(0, law)])
            if streams is not None:
                transaction.insert("streams", [(1, streams)])
            return True

        return self.database.write(fill)

    def open(self, *seen: Seen | None) -> None:
        """Read the secrets, and refuse a copy older than one that was seen."""
        self.look()
        allowed = self._new_anchor
        self.note(*seen, self.beside())
        begun = allowed and not self._new_anchor  # what was allowed was needed
        if self.anchor is not None and (begun or not self.has_anchor()):
            self._write_anchored(self.anchor.kind, again=begun)
            self.note()
        self._new_anchor = False

    def look(self) -> None:
        """Read the secrets, and change nothing anywhere."""
        found = self.database.read(
            lambda transaction: transaction.row("SELECT line, secret FROM policy")
        )
        assert found is not None
        self.line = str(found[0])
        self.seal = Seal(self._store_key, self.line)
        self.take_secrets(found[1])

    def beside(self) -> Seen | None:
        """What the small file beside the store has seen."""
        return None if self._path is None else read_beside(self._path, self.line)

    def has_anchor(self) -> bool:
        """Whether an anchor was ever begun for this store: then it is not to be gone without."""
        return any(kind == ANCHORED for kind, _, _ in self.operations())

    def _write_anchored(self, kind: str, *, again: bool) -> None:
        """A line in the history of operations, after the anchor knows of the store."""

        def anchored(transaction: Transaction) -> None:
            transaction.hold_policy()
            generation = self.lock_counter(transaction)[1]
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
        secret = self.seal.open("policy", 1, "secret", stored)
        if len(secret) not in (2 * _SECRET_BYTES, 3 * _SECRET_BYTES):
            if self._store_key is None:
                raise StorageError(
                    f"{self.database!r} was made with a store_key: open it with the same one"
                )
            raise StorageError(f"{self.database!r} is damaged: restore the newest copy")
        key, self.salt = secret[:_SECRET_BYTES], secret[_SECRET_BYTES : 2 * _SECRET_BYTES]
        self.ids.change(key, secret[2 * _SECRET_BYTES :] or None)
        self._secret = bytes(stored)

    @property
    def _path(self) -> Path | None:
        return self.database.path if isinstance(self.database, SqliteDatabase) else None

    def note(self, *seen: Seen | None) -> Seen:
        """Remember how far this store has come, after checking that it is the newest seen.

        An anchor that knows nothing of a store with a past is refused, also by a process that has
        written it before: somebody has taken it away.
        """
        known = recalled(self.line)
        anchored = None if self.anchor is None else self.anchor.read(self.line)
        now, digests = self.database.read(self.standing)
        check_newest(repr(self.database), now, digests.get, known, anchored, *seen)
        if self.anchor is not None and anchored is None and now.generation > 0:
            if self.anchor.read(self.line) is not None:  # another process has just begun it
                return self.note(*seen)
            if not self._new_anchor:
                raise unknown_line(self.anchor, repr(self.database))
            self._new_anchor = False  # said once, for this one
        remember(now)
        if self.anchor is not None and now != anchored:
            self.anchor.write(now)
        if self._path is not None:
            write_beside(self._path, now)
        return now

    def check(self, seen: View, generation: int, digest: str | None) -> None:
        """Refuse a store that was replaced under this process by a copy, since a view was read.

        ``digest`` is what the store has now for the generation of that view.
        """
        if seen.generation >= 0 and digest != seen.digest:
            where, before = repr(self.database), Seen(self.line, seen.generation, seen.digest)
            check_newest(where, Seen(self.line, generation, ""), lambda _: digest, before)

    def standing(self, transaction: Transaction) -> tuple[Seen, dict[int, str]]:
        """How far the store has come, and its digest at every generation."""
        rows = transaction.rows("SELECT generation, digest FROM history ORDER BY generation")
        generation = read_counter(transaction)[1]
        if not rows or rows[-1][0] != generation:
            raise StorageError(f"{self.database!r} is damaged: its history has gaps")
        return Seen(self.line, generation, rows[-1][1]), dict(rows)

    # -- publishing -------------------------------------------------------------------------------

    def lock_counter(self, transaction: Transaction) -> tuple[int, int]:
        """Slots handed out and generation, which stay so until the end of the transaction."""
        transaction.run("UPDATE counter SET issued = issued WHERE id = 1")
        return read_counter(transaction)

    def publish(self, transaction: Transaction, generation: int, what: bytes) -> None:
        """Raise the generation from the one that is locked, and chain what is published."""
        found = transaction.row("SELECT digest FROM history WHERE generation = ?", (generation,))
        assert found is not None
        transaction.insert("history", [(generation + 1, next_digest(found[0], what))])
        transaction.run("UPDATE counter SET generation = ? WHERE id = 1", (generation + 1,))

    def note_operation(
        self,
        transaction: Transaction,
        generation: int,
        kind: str,
        record: dict[str, Any],
        made: float,
    ) -> None:
        """One line in the history of operations, published with the generation that follows."""
        blob = packed(record)
        transaction.insert("operations", [(generation + 1, made, kind, blob)])
        self.publish(transaction, generation, kind.encode() + b" " + blob)

    def operations(self) -> list[Row]:
        """Kind, time and record of what operators did, in order."""
        return self.database.read(
            lambda transaction: transaction.rows(
                "SELECT kind, made, record FROM operations ORDER BY generation"
            )
        )

    def write_streams(self, transaction: Transaction, state: bytes) -> None:
        """Where a simulation's generators stand, with what they drew."""
        transaction.run("UPDATE streams SET state = ? WHERE id = 1", (state,))

    def blob(self, sql: str, values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A public value, by the statement that finds it."""
        found = self.database.read(lambda transaction: transaction.row(sql, values))
        if found is None or found[0] is None:
            raise StorageError(f"{self.database!r} is damaged: a public value is missing")
        return unpacked(found[0])

    # -- digests ----------------------------------------------------------------------------------

    def digest(self, kind: str, text: str) -> str:
        """What stands for a text of the caller: nobody can guess it without the store's salt."""
        data = f"{kind}:{text}".encode("utf-8", "surrogatepass")
        return blake2b(data, key=self.salt, digest_size=16).hexdigest()

    def reward_digests(self, keys: Sequence[str]) -> list[bytes]:
        """The same for the keys of rewards, which are told apart within one decision only."""
        texts = [f"reward:{key}".encode("utf-8", "surrogatepass") for key in keys]
        salt, size = self.salt, REWARD_DIGEST
        return [blake2b(text, key=salt, digest_size=size).digest() for text in texts]

    # -- keys -------------------------------------------------------------------------------------

    def known_keys(
        self, transaction: Transaction, digests: Sequence[str], now: float
    ) -> dict[str, tuple[int, int, bytes]]:
        """Number, epoch and opened secret of keys that are kept; expired ones are dropped."""
        rows = transaction.among(_KEYS, digests)
        expired = [row[0] for row in rows if row[3] <= now]
        for digest in expired:
            transaction.run("DELETE FROM keys WHERE digest = ?", (digest,))
        rows = [row for row in rows if row[3] > now]
        opened = self.seal.open_many(
            "keys", [row[0] for row in rows], "secret", [row[4] for row in rows]
        )
        return {row[0]: (row[1], row[2], secret) for row, secret in zip(rows, opened, strict=True)}

    # -- users ------------------------------------------------------------------------------------

    def reserve(
        self, transaction: Transaction, digests: Sequence[str], epoch: int, limit: UserLimit
    ) -> BoolArray:
        """Count a visit of each user in turn; which of them are within their limit.

        The rows of all users are locked in one order before they are read, so that a user who is at
        two processes at once is counted by one after the other.
        """
        unique = sorted(set(digests))
        transaction.insert_new("users", [(digest, 0) for digest in unique])
        if not self.database.single_writer:
            for digest in unique:
                transaction.run("UPDATE users SET total = total WHERE digest = ?", (digest,))
        rows = transaction.among("SELECT digest, total FROM users WHERE digest", unique)
        totals: dict[str, int] = {digest: int(total) for digest, total in rows}
        counts = {
            digest: visits
            for digest, number, visits in transaction.among(
                "SELECT digest, epoch, visits FROM visits WHERE digest", unique
            )
            if number == epoch
        }
        before = dict(totals)
        within = np.zeros(len(digests), dtype=np.bool_)
        for place, digest in enumerate(digests):
            here = counts.get(digest, 0)
            within[place] = totals[digest] < limit.total and here < limit.per_epoch
            if within[place]:
                totals[digest] += 1
                counts[digest] = here + 1
        for digest in unique:
            if totals[digest] > before[digest]:
                transaction.run(
                    "UPDATE users SET total = ? WHERE digest = ?", (totals[digest], digest)
                )
                transaction.run(
                    "INSERT INTO visits (digest, epoch, visits) VALUES (?, ?, ?) "
                    "ON CONFLICT (digest, epoch) DO UPDATE SET visits = excluded.visits",
                    (digest, epoch, counts[digest]),
                )
        return within

    def visits_of(self, digest: str) -> dict[int, int]:
        """Contributions of a user by epoch."""
        rows = self.database.read(
            lambda transaction: transaction.rows(
                "SELECT epoch, visits FROM visits WHERE digest = ?", (digest,)
            )
        )
        return dict(rows)

    # -- what users did ---------------------------------------------------------------------------

    def write_decisions(
        self, transaction: Transaction, numbers: IntArray, blobs: Sequence[bytes]
    ) -> None:
        """Rows of new decisions."""
        listed = numbers.tolist()
        sealed = self.seal.seal_many("decisions", listed, "secret", blobs)
        transaction.insert("decisions", list(zip(listed, sealed, strict=True)))

    def read_decisions(self, transaction: Transaction, numbers: IntArray) -> dict[int, bytes]:
        """Opened secrets of those of some decisions that are there."""
        rows = transaction.among(
            "SELECT number, secret FROM decisions WHERE number", sorted(set(numbers.tolist()))
        )
        found = [row[0] for row in rows]
        opened = self.seal.open_many("decisions", found, "secret", [row[1] for row in rows])
        return dict(zip(found, opened, strict=True))

    def read_rewards(
        self, transaction: Transaction, numbers: Sequence[int]
    ) -> dict[int, tuple[bytes, bytes]]:
        """What some decisions were rewarded with so far: as it is stored, and opened."""
        rows = transaction.among("SELECT number, secret FROM rewards WHERE number", numbers)
        found, stored = [row[0] for row in rows], [bytes(row[1]) for row in rows]
        opened = self.seal.open_many("rewards", found, "secret", stored)
        return dict(zip(found, zip(stored, opened, strict=True), strict=True))

    def write_rewards(
        self, transaction: Transaction, values: dict[int, bytes], before: dict[int, bytes]
    ) -> bool:
        """One value a decision, in place of what is stored; False if that is not there any more."""
        numbers = sorted(values)
        sealed = self.seal.seal_many(
            "rewards", numbers, "secret", [values[number] for number in numbers]
        )
        rows = list(zip(numbers, sealed, strict=True))
        new = [row for row in rows if row[0] not in before] if before else rows
        if transaction.insert_new("rewards", new) < len(new):
            return False
        return not before or all(
            transaction.run(
                "UPDATE rewards SET secret = ? WHERE number = ? AND secret = ?",
                (secret, number, before[number]),
            )
            for number, secret in rows
            if number in before
        )

    def epoch_data(
        self, transaction: Transaction, first: int, last: int
    ) -> tuple[IntArray, list[bytes], IntArray, list[bytes]]:
        """Decisions and rewards of the slots of an epoch: numbers and opened secrets of each."""
        limits = (first, last)
        decisions = transaction.rows(
            "SELECT number, secret FROM decisions WHERE number >= ? AND number < ? ORDER BY number",
            limits,
        )
        rewards = transaction.rows(
            "SELECT number, secret FROM rewards WHERE number >= ? AND number < ? ORDER BY number",
            limits,
        )
        made = [row[0] for row in decisions]
        rewarded = [row[0] for row in rewards]
        return (
            np.array(made, dtype=np.int64),
            self.seal.open_many("decisions", made, "secret", [row[1] for row in decisions]),
            np.array(rewarded, dtype=np.int64),
            self.seal.open_many("rewards", rewarded, "secret", [row[1] for row in rewards]),
        )

    def forget(
        self, transaction: Transaction, epoch: int, first: int, last: int, now: float
    ) -> None:
        """Delete what the users of an epoch did, and some keys that were kept long enough."""
        transaction.run("DELETE FROM draws WHERE number = ?", (epoch,))
        transaction.scrub("draws")
        for table in ("decisions", "rewards"):
            transaction.run(f"DELETE FROM {table} WHERE number >= ? AND number < ?", (first, last))
            transaction.scrub(table)
        self.drop_keys(transaction, now)

    def has_expired_keys(self, now: float) -> bool:
        """Whether there are keys that were kept long enough."""
        found = self.database.read(lambda transaction: transaction.row(_EXPIRED, (now, 1)))
        return found is not None

    def drop_keys(self, transaction: Transaction, now: float) -> None:
        """Delete keys that were kept long enough, no more than one transaction has time for.

        What is left of the table is written anew only while it is small: writers wait for that.
        """
        deleted = transaction.run(f"DELETE FROM keys WHERE digest IN ({_EXPIRED})", (now, _SLICE))
        if deleted:
            self.scrub_small(transaction, "keys")

    def scrub_small(self, transaction: Transaction, table: str) -> None:
        """Write a table anew where that takes some milliseconds."""
        left = f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?) AS counted"
        found = transaction.row(left, (_REWRITTEN + 1,))
        if found is not None and found[0] <= _REWRITTEN:
            transaction.scrub(table)
