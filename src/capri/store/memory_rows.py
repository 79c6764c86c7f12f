"""What users did as arrays in the memory of one process, a slot a row."""

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.decisions import SHADOW
from capri.epoch.rewards import ACCEPTED, UNCOUNTED, UNKNOWN
from capri.privacy.budget import UserLimit
from capri.store.codec import REWARD_DIGEST, Played
from capri.store.repository import (
    Combined,
    EpochPart,
    Remembered,
    ReportRow,
    Rows,
)

if TYPE_CHECKING:
    from capri.store.memory import MemoryUnit

# The status of a slot that nobody has filled.
_EMPTY = 255
# Slots whose data are encoded at once: bounds the memory.
_CHUNK = 1 << 15
# Bytes of a report of the local model.
_REPORT = 32
# Columns of a slot beside the numbers of its visit, with their kinds.
_COLUMNS = {
    "status": np.uint8,
    "rewarded": np.uint8,  # as files keep it
    "place": np.int32,
    "action": np.int32,
    "propensity": np.float64,
    "reward": np.float64,
}
Key = tuple[float, Remembered]


class MemoryRows(Rows["MemoryUnit"]):
    """What users did, a slot a row, from the oldest epoch under way on."""

    def __init__(self, columns: int) -> None:
        """``columns``: numbers that are kept of a visit."""
        self.salt, self.columns = secrets.token_bytes(16), columns
        self._first = 0  # the slot of the first row
        self._table = _table(0, columns)
        self._seen: dict[int, tuple[bytes, ...]] = {}  # digests of the keys of rewards
        self._draws: dict[int, Any] = {}
        self._reports: list[ReportRow] = []
        self._keys: dict[str, Key] = {}  # in the order of their time
        self._counts: dict[str, Counter[int]] = {}

    def __repr__(self) -> str:
        return "MemoryRows()"

    # -- decisions and rewards --------------------------------------------------------------------

    def prepared(self, played: Played, owners: Sequence[str] | None) -> Any:
        """Decisions as they are: nobody could ask for those of one user."""
        return played

    def write_decisions(self, unit: "MemoryUnit", numbers: IntArray, prepared: Any) -> None:
        """New decisions, of slots one after the other."""
        if len(numbers) == 0:
            return
        start = int(numbers[0]) - self._first
        stop = start + len(numbers)
        if stop > len(self._table["status"]):
            self._grow(stop)
        table, own = self._table, slice(start, stop)
        table["status"][own] = prepared.status
        table["rewarded"][own] = False
        table["place"][own] = prepared.place
        table["action"][own] = prepared.action
        table["propensity"][own] = prepared.propensity
        if prepared.numbers.shape[1]:
            table["numbers"][own] = prepared.numbers[:, : self.columns]

    def fill(
        self, unit: "MemoryUnit", epoch: int, generation: int, numbers: IntArray, prepared: Any
    ) -> bool:
        """New decisions of an epoch, which is joined; False if the generation is another now."""
        same = unit.join_epochs([epoch])[1] == generation
        if same:
            self.write_decisions(unit, numbers, prepared)
        return same

    def _grow(self, rows: int) -> None:
        """Room for so many rows; what is not written to takes no memory."""
        status = self._table["status"]
        if rows > len(status):
            table = _table(max(1024, 2 * rows), self.columns)
            for name, column in self._table.items():
                table[name][: len(column)] = column
            self._table = table

    def first_statuses(self, unit: "MemoryUnit", numbers: IntArray) -> IntArray:
        """What a first reward for each decision meets: accepted, uncounted, or unknown."""
        status = self._table["status"][numbers - self._first]
        found = np.where((status == 0) | (status == SHADOW), ACCEPTED, UNCOUNTED)
        found[status == _EMPTY] = UNKNOWN
        return found

    def rewarded(self, unit: "MemoryUnit", numbers: IntArray) -> BoolArray:
        """Which decisions have a reward."""
        return self._table["rewarded"][numbers - self._first] != 0  # type: ignore[no-any-return]

    def write_first(self, unit: "MemoryUnit", numbers: IntArray, rewards: FloatArray) -> bool:
        """Rewards of decisions that have none."""
        places = numbers - self._first
        self._table["reward"][places] = rewards
        self._table["rewarded"][places] = True
        return True

    def combined(self, unit: "MemoryUnit", numbers: IntArray) -> dict[int, Combined]:
        """What came for some decisions so far."""
        reward = self._table["reward"]
        return {
            number: Combined(float(reward[number - self._first]), self._seen[number])
            for number in set(numbers.tolist()) & self._seen.keys()
        }

    def write_combined(
        self, unit: "MemoryUnit", totals: dict[int, Combined], before: dict[int, Combined]
    ) -> bool:
        """One value a decision, in place of the one before."""
        for number, (total, digests, _) in totals.items():
            self._table["reward"][number - self._first] = total
            self._table["rewarded"][number - self._first] = True
            self._seen[number] = digests
        return True

    def parts(self, first: int, last: int) -> Iterator[EpochPart]:
        """The data of an epoch's slots, part by part."""
        for start in range(first, last, _CHUNK):
            yield self._part(start, min(start + _CHUNK, last))

    def _part(self, first: int, last: int) -> EpochPart:
        own = slice(first - self._first, last - self._first)
        table = {name: column[own] for name, column in self._table.items()}
        filled = table["status"] != _EMPTY
        numbers = np.arange(first, first + len(filled))[filled]
        rewarded = (table["rewarded"] != 0) & filled
        played = Played(
            table["status"][filled].astype(np.int64),
            table["place"][filled].astype(np.int64),
            table["action"][filled].astype(np.int64),
            table["propensity"][filled],
            table["numbers"][filled],
        )
        return EpochPart(numbers, played, numbers[rewarded[filled]], table["reward"][rewarded])

    def any_from(self, first: int) -> bool:
        """Whether there is a decision from this slot on."""
        return bool((self._table["status"][max(0, first - self._first) :] != _EMPTY).any())

    def forget(self, unit: "MemoryUnit", epoch: int, first: int, last: int, now: float) -> None:
        """Forget what the users of an epoch did, and keys that were kept long enough."""
        self._draws.pop(epoch, None)
        own = slice(max(0, first - self._first), last - self._first)
        for name, column in self._table.items():
            column[own] = _EMPTY if name == "status" else 0
        self._seen = {number: each for number, each in self._seen.items() if number >= last}
        if first <= self._first < last:  # epochs are released in their order
            self._table = {name: each[own.stop :].copy() for name, each in self._table.items()}
            self._first = last
        self._drop_keys(now)

    def draw_of(self, unit: "MemoryUnit", epoch: int) -> Any:
        """What a closed epoch will publish, None while nothing was drawn."""
        return self._draws.get(epoch)

    def write_draw(self, unit: "MemoryUnit", epoch: int, kept: Any) -> None:
        """Keep what was drawn."""
        self._draws[epoch] = kept

    # -- reports ----------------------------------------------------------------------------------

    def reports(self, unit: "MemoryUnit", first: int) -> list[ReportRow]:
        """Reports from a number on; nearly always there are none."""
        rows, start = self._reports, len(self._reports)
        while start and rows[start - 1].first >= first:
            start -= 1
        return rows[start:]

    def write_reports(self, unit: "MemoryUnit", rows: Sequence[ReportRow]) -> None:
        """Reports that count from here on."""
        unit.undoing.append(partial(self._cut_reports, len(self._reports)))
        self._reports.extend(rows)

    def _cut_reports(self, count: int) -> None:
        del self._reports[count:]

    def drop_reports(self, unit: "MemoryUnit", epoch: int) -> None:
        """Another list, so that the unit can be undone."""
        unit.undoing.append(partial(setattr, self, "_reports", self._reports))
        self._reports = [each for each in self._reports if each.epoch != epoch]

    # -- keys -------------------------------------------------------------------------------------

    def count_known(self, digests: Sequence[str], now: float) -> int:
        """How many of some different keys have a decision."""
        self._drop_keys(now)
        return sum(digest in self._keys for digest in digests)

    def known_keys(
        self, unit: "MemoryUnit", digests: Sequence[str], now: float
    ) -> dict[str, Remembered]:
        """Decisions of keys that are kept; expired ones are dropped."""
        self._drop_keys(now)
        return {digest: self._keys[digest][1] for digest in digests if digest in self._keys}

    def write_keys(
        self,
        unit: "MemoryUnit",
        digests: Sequence[str],
        numbers: IntArray,
        epoch: int,
        kept: Sequence[bytes],
        expires: float,
    ) -> bool:
        """Decisions under new keys."""
        for digest, number, each in zip(digests, numbers.tolist(), kept, strict=True):
            unit.changes(self._keys, digest)
            self._keys[digest] = (expires, Remembered(number, epoch, each))
        return True

    def has_expired_keys(self, now: float) -> bool:
        """Whether there are keys that were kept long enough."""
        return bool(self._keys) and next(iter(self._keys.values()))[0] <= now

    def drop_keys(self, unit: "MemoryUnit", now: float) -> None:
        """Forget keys that were kept long enough."""
        self._drop_keys(now)

    def _drop_keys(self, now: float) -> None:
        while self.has_expired_keys(now):
            del self._keys[next(iter(self._keys))]

    # -- users ------------------------------------------------------------------------------------

    def reserve(
        self, unit: "MemoryUnit", digests: Sequence[str], epoch: int, limit: UserLimit
    ) -> BoolArray:
        """Count a visit of each user in turn; which of them are within their limit."""
        for digest in set(digests):
            unit.changes(self._counts, digest)
            self._counts.setdefault(digest, Counter())
        within = np.zeros(len(digests), dtype=np.bool_)
        for place, digest in enumerate(digests):
            past = self._counts[digest]
            within[place] = past.total() < limit.total and past[epoch] < limit.per_epoch
            if within[place]:
                past[epoch] += 1
        return within

    def visits_of(self, digest: str) -> dict[int, int]:
        """Contributions of a user by epoch."""
        return dict(self._counts.get(digest, {}))

    # -- units and files --------------------------------------------------------------------------

    @property
    def counted(self) -> bool:
        """Whether anybody was counted."""
        return bool(self._counts)

    def users(self) -> dict[str, Any]:
        """Digests and counts: enough to keep the limit after a restart, no plain ids."""
        counts = {digest: dict(count) for digest, count in self._counts.items()}
        return {"salt": self.salt.hex(), "counts": counts}

    def restore_users(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`users`."""
        self.salt = bytes.fromhex(state["salt"])
        self._counts = {
            digest: Counter({int(epoch): int(n) for epoch, n in count.items()})
            for digest, count in state["counts"].items()
        }

    def arrays(self, issued: int) -> dict[str, Any]:
        """What users did, for the file of a simulation."""
        rows = max(0, issued - self._first)
        seen = [(number, key) for number, keys in sorted(self._seen.items()) for key in keys]
        return {
            **{f"rows.{name}": column[:rows].copy() for name, column in self._table.items()},
            "rows.first": np.array(self._first),
            **(self._report_arrays() if self._reports else {}),
            "rows.seen": np.array([number for number, _ in seen], dtype=np.int64),
            "rows.keys": np.frombuffer(b"".join(key for _, key in seen), dtype=np.uint8),
        }

    def _report_arrays(self) -> dict[str, Any]:
        places = [(each.first, each.epoch, each.size) for each in self._reports]
        found = {f"reports.total.{each.first}": each.total for each in self._reports if each.total}
        return {
            "reports.rows": np.array(places, dtype=np.int64).reshape(-1, 3),
            "reports.messages": _bytes(b"".join(each.messages for each in self._reports)),
            **{name: _bytes(total) for name, total in found.items()},
        }

    def _restore_reports(self, arrays: dict[str, Any]) -> None:
        """The inverse of :meth:`_report_arrays`."""
        messages, at = arrays["reports.messages"].tobytes(), 0
        for first, epoch, size in arrays["reports.rows"].tolist():
            total = arrays.get(f"reports.total.{first}")
            end = at + (size * _REPORT if total is None else 0)
            summed = None if total is None else total.tobytes()
            self._reports.append(ReportRow(first, epoch, size, messages[at:end], summed))
            at = end

    def restore(self, first: int, issued: int, arrays: dict[str, Any] | None) -> None:
        """Go on from :meth:`arrays`; without them nothing is known of the slots so far."""
        self._first = first
        if arrays is None:
            self._grow(issued - first)
            return
        self._first = int(arrays["rows.first"])
        self._table = {name: arrays[f"rows.{name}"].copy() for name in self._table}
        if "reports.rows" in arrays:
            self._restore_reports(arrays)
        keys = arrays["rows.keys"].tobytes()
        for place, number in enumerate(arrays["rows.seen"].tolist()):
            key = keys[place * REWARD_DIGEST : (place + 1) * REWARD_DIGEST]
            self._seen[number] = (*self._seen.get(number, ()), key)


def _bytes(content: bytes) -> Any:
    return np.frombuffer(content, dtype=np.uint8)


def _table(rows: int, columns: int) -> dict[str, Any]:
    table: dict[str, Any] = {name: np.zeros(rows, dtype=kind) for name, kind in _COLUMNS.items()}
    table["status"][:] = _EMPTY
    return table | {"numbers": np.zeros((rows, columns))}
