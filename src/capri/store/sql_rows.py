"""What users did as rows of a database, sealed where there is a store key."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.rewards import ACCEPTED, UNCOUNTED, UNKNOWN
from capri.privacy.budget import UserLimit
from capri.store.codec import (
    Played,
    is_counted,
    owned,
    read_reward,
    reward_blob,
    reward_values,
)
from capri.store.repository import Combined, EpochPart, Remembered, ReportRow, Rows
from capri.store.seal import Seal
from capri.store.transaction import Database, Transaction

_KEYS = "SELECT digest, number, epoch, expires, secret FROM keys WHERE digest"
_EXPIRED = "SELECT digest FROM keys WHERE expires <= ? LIMIT ?"
_REPORTS = "SELECT first, epoch, size, messages, total FROM reports WHERE first >= ? ORDER BY first"
# Keys that are deleted at once, and keys up to which a table is written anew: some milliseconds.
_SLICE, _REWRITTEN = 2_000, 10_000
# Slots whose data are read at once: bounds the memory.
_CHUNK = 1 << 15


class SqlRows(Rows[Transaction]):
    """The secret tables of one database."""

    def __init__(self, database: Database, seal: Seal) -> None:
        self.database, self.seal = database, seal
        self.salt, self.columns = b"", 0

    def __repr__(self) -> str:
        return f"SqlRows({self.database!r})"

    # -- reports ----------------------------------------------------------------------------------

    def reports(self, unit: Transaction, first: int) -> list[ReportRow]:
        """Reports from a number on."""
        return [ReportRow(*row) for row in unit.rows(_REPORTS, (first,))]

    def write_reports(self, unit: Transaction, rows: Sequence[ReportRow]) -> None:
        """Reports that count from here on."""
        unit.insert("reports", rows)

    def drop_reports(self, unit: Transaction, epoch: int) -> None:
        """They are private by themselves: there is nothing to overwrite."""
        unit.delete("reports", epoch=epoch)

    # -- keys -------------------------------------------------------------------------------------

    def count_known(self, digests: Sequence[str], now: float) -> int:
        """How many of some different keys have a decision."""
        sql = "SELECT digest, expires FROM keys WHERE digest"
        known = self.database.read(lambda transaction: transaction.among(sql, digests))
        return len([expires for _, expires in known if expires > now])

    def known_keys(
        self, unit: Transaction, digests: Sequence[str], now: float
    ) -> dict[str, Remembered]:
        """Decisions of keys that are kept; expired ones are dropped."""
        rows = unit.among(_KEYS, digests)
        for digest in [row[0] for row in rows if row[3] <= now]:
            unit.run("DELETE FROM keys WHERE digest = ?", (digest,))
        rows = [row for row in rows if row[3] > now]
        opened = self.seal.open_many(
            "keys", [row[0] for row in rows], "secret", [row[4] for row in rows]
        )
        return {
            row[0]: Remembered(row[1], row[2], secret)
            for row, secret in zip(rows, opened, strict=True)
        }

    def write_keys(
        self,
        unit: Transaction,
        digests: Sequence[str],
        numbers: IntArray,
        epoch: int,
        kept: Sequence[bytes],
        expires: float,
    ) -> bool:
        """Decisions under new keys; False if another process was faster with one of them."""
        sealed = self.seal.seal_many("keys", digests, "secret", kept)
        rows = [
            (digest, number, epoch, expires, secret)
            for digest, number, secret in zip(digests, numbers.tolist(), sealed, strict=True)
        ]
        return unit.insert_new("keys", sorted(rows)) == len(rows)

    # -- users ------------------------------------------------------------------------------------

    def reserve(
        self, unit: Transaction, digests: Sequence[str], epoch: int, limit: UserLimit
    ) -> BoolArray:
        """Count a visit of each user in turn; which of them are within their limit.

        The rows of all users are locked in one order before they are read, so that a user who is at
        two processes at once is counted by one after the other.
        """
        unique = sorted(set(digests))
        unit.insert_new("users", [(digest, 0) for digest in unique])
        if not self.database.single_writer:
            for digest in unique:
                unit.run("UPDATE users SET total = total WHERE digest = ?", (digest,))
        rows = unit.among("SELECT digest, total FROM users WHERE digest", unique)
        totals: dict[str, int] = {digest: int(total) for digest, total in rows}
        counts = {
            digest: visits
            for digest, number, visits in unit.among(
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
                unit.run("UPDATE users SET total = ? WHERE digest = ?", (totals[digest], digest))
                unit.run(
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

    def prepared(self, played: Played, owners: Sequence[str] | None) -> Any:
        """Decisions as bytes, with their users' digests behind them."""
        blobs = played.blobs(self.columns)
        return blobs if owners is None else owned(blobs, owners)

    def write_decisions(self, unit: Transaction, numbers: IntArray, prepared: Any) -> None:
        """Rows of new decisions."""
        listed = numbers.tolist()
        sealed = self.seal.seal_many("decisions", listed, "secret", prepared)
        unit.insert("decisions", list(zip(listed, sealed, strict=True)))

    def fill(
        self, unit: Transaction, epoch: int, generation: int, numbers: IntArray, prepared: Any
    ) -> bool:
        """New decisions of an epoch, which is joined; False if the generation is another now."""
        listed = numbers.tolist()
        sealed = self.seal.seal_many("decisions", listed, "secret", prepared)
        return unit.fill(epoch, generation, listed, sealed)

    def first_statuses(self, unit: Transaction, numbers: IntArray) -> IntArray:
        """What a first reward for each decision meets: accepted, uncounted, or unknown."""
        rows = unit.among(
            "SELECT number, secret FROM decisions WHERE number", sorted(set(numbers.tolist()))
        )
        found = [row[0] for row in rows]
        opened = self.seal.open_many("decisions", found, "secret", [row[1] for row in rows])
        statuses = {
            number: ACCEPTED if is_counted(blob) else UNCOUNTED
            for number, blob in zip(found, opened, strict=True)
        }
        return np.array([statuses.get(number, UNKNOWN) for number in numbers.tolist()])

    def rewarded(self, unit: Transaction, numbers: IntArray) -> BoolArray:
        """Which decisions have a reward."""
        rows = unit.among("SELECT number FROM rewards WHERE number", sorted(set(numbers.tolist())))
        return np.isin(numbers, [row[0] for row in rows])

    def write_first(self, unit: Transaction, numbers: IntArray, rewards: FloatArray) -> bool:
        """Rewards of decisions that have none; False if another process was faster."""
        order, content = np.argsort(numbers), rewards.astype("<f8").tobytes()
        listed = numbers[order].tolist()
        blobs = [content[8 * place : 8 * place + 8] for place in order.tolist()]
        sealed = self.seal.seal_many("rewards", listed, "secret", blobs)
        return unit.insert_new("rewards", list(zip(listed, sealed, strict=True))) == len(listed)

    def combined(self, unit: Transaction, numbers: IntArray) -> dict[int, Combined]:
        """What came for some decisions so far."""
        rows = unit.among(
            "SELECT number, secret FROM rewards WHERE number", sorted(set(numbers.tolist()))
        )
        found, stored = [row[0] for row in rows], [bytes(row[1]) for row in rows]
        opened = self.seal.open_many("rewards", found, "secret", stored)
        return {
            number: Combined(*read_reward(blob), lying)
            for number, blob, lying in zip(found, opened, stored, strict=True)
        }

    def write_combined(
        self, unit: Transaction, totals: dict[int, Combined], before: dict[int, Combined]
    ) -> bool:
        """One value a decision, in place of the one before; False if that is not there any more."""
        numbers = sorted(totals)
        blobs = [reward_blob(totals[number].total, totals[number].digests) for number in numbers]
        sealed = self.seal.seal_many("rewards", numbers, "secret", blobs)
        rows = list(zip(numbers, sealed, strict=True))
        new = [row for row in rows if row[0] not in before]
        if unit.insert_new("rewards", new) < len(new):
            return False
        return all(
            unit.run(
                "UPDATE rewards SET secret = ? WHERE number = ? AND secret = ?",
                (secret, number, before[number].stored),
            )
            for number, secret in rows
            if number in before
        )

    def parts(self, first: int, last: int) -> Iterator[EpochPart]:
        """The data of an epoch's slots, part by part."""
        for start in range(first, last, _CHUNK):
            end = min(start + _CHUNK, last)
            yield self.database.read(
                lambda transaction, start=start, end=end: self._part(  # type: ignore[misc]
                    transaction, start, end
                )
            )

    def _part(self, unit: Transaction, first: int, last: int) -> EpochPart:
        numbers, decisions = self._opened(unit, "decisions", first, last)
        rewarded, rewards = self._opened(unit, "rewards", first, last)
        return EpochPart(numbers, Played.read(decisions), rewarded, reward_values(rewards))

    def _opened(
        self, unit: Transaction, table: str, first: int, last: int
    ) -> tuple[IntArray, list[bytes]]:
        rows = unit.rows(
            f"SELECT number, secret FROM {table} WHERE number >= ? AND number < ? ORDER BY number",
            (first, last),
        )
        numbers = [row[0] for row in rows]
        opened = self.seal.open_many(table, numbers, "secret", [row[1] for row in rows])
        return np.array(numbers, dtype=np.int64), opened

    def any_from(self, first: int) -> bool:
        """Whether there is a decision from this slot on."""
        sql = "SELECT number FROM decisions WHERE number >= ? LIMIT 1"
        return self.database.read(lambda transaction: transaction.row(sql, (first,))) is not None

    def draw_of(self, unit: Transaction, epoch: int) -> Any:
        """What a closed epoch will publish, None while nothing was drawn."""
        found = unit.row("SELECT secret FROM draws WHERE number = ?", (epoch,))
        return None if found is None else self.seal.open("draws", epoch, "secret", found[0])

    def write_draw(self, unit: Transaction, epoch: int, kept: Any) -> None:
        """Keep what was drawn."""
        unit.insert("draws", [(epoch, self.seal.seal("draws", epoch, "secret", kept))])

    def forget(self, unit: Transaction, epoch: int, first: int, last: int, now: float) -> None:
        """Delete what the users of an epoch did, and some keys that were kept long enough."""
        unit.run("DELETE FROM draws WHERE number = ?", (epoch,))
        unit.scrub("draws")
        for table in ("decisions", "rewards"):
            unit.run(f"DELETE FROM {table} WHERE number >= ? AND number < ?", (first, last))
            unit.scrub(table)
        self.drop_keys(unit, now)

    def has_expired_keys(self, now: float) -> bool:
        """Whether there are keys that were kept long enough."""
        found = self.database.read(lambda transaction: transaction.row(_EXPIRED, (now, 1)))
        return found is not None

    def drop_keys(self, unit: Transaction, now: float) -> None:
        """Delete keys that were kept long enough, no more than one transaction has time for.

        What is left of the table is written anew only while it is small: writers wait for that.
        """
        deleted = unit.run(f"DELETE FROM keys WHERE digest IN ({_EXPIRED})", (now, _SLICE))
        if deleted:
            self.scrub_small(unit, "keys")

    def scrub_small(self, unit: Transaction, table: str) -> None:
        """Write a table anew where that takes some milliseconds."""
        left = f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?) AS counted"
        found = unit.row(left, (_REWRITTEN + 1,))
        if found is not None and found[0] <= _REWRITTEN:
            unit.scrub(table)
