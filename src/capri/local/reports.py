"""One bundle and the reports that answer it: a sum of private reports, and how many they are.

A report is private by itself, so adding it up with others is post-processing, in whatever order and
however often. An epoch of devices therefore needs no single release: what has come in is *read*
whenever a reading is due, and the sum begins anew at zero. Every report is in exactly one reading
of the epoch whose bundle it answers, and that bundle says how it was made. Whatever arrives is
judged by its bytes and by what is public; nothing that is not accepted changes anything.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from math import ceil, isqrt, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.checks import is_whole
from capri.epoch.plan import EpochPlan, Notice, Release
from capri.epoch.rewards import RewardScale, RewardTerms, checked_terms
from capri.errors import ConfigurationError, DataError, HorizonError, StorageError
from capri.files import write_atomically
from capri.local import wire
from capri.local.honesty import robust_sum
from capri.privacy.shuffle import Shuffle
from capri.privacy.sphere import DIRECTION_UNITS, reported_sum


class ReportStatus(IntEnum):
    """What became of a report."""

    ACCEPTED = 0
    STALE = 1  # answers the bundle of an epoch that is closed
    UNKNOWN = 2  # answers a bundle that this aggregator never gave out
    REPLAYED = 3  # carries a token that was seen before
    MALFORMED = 4  # is not a report of this version and size, or was damaged

    def __str__(self) -> str:
        return self.name.lower()


# Plain numbers: looking up a member of an enumeration takes long.
_ACCEPTED, _MALFORMED = int(ReportStatus.ACCEPTED), int(ReportStatus.MALFORMED)


class EpochReports:
    """The reports to one bundle, as one process knows them. All of it may be published.

    ``unread`` reports are in ``total`` and in no reading yet; ``rows``: those of them that came one
    by one.
    """

    def __init__(self, plan: EpochPlan, digest: bytes) -> None:
        """``digest``: the bundle's, or its first 8 bytes, as reports carry them."""
        assert plan.sphere is not None  # how every device makes its report
        self.plan = plan
        self.digest = digest
        self.sphere = plan.sphere
        self.tokens: set[bytes] = set()
        self.start_anew()

    def __repr__(self) -> str:
        return f"EpochReports(epoch={self.plan.epoch}, unread={self.unread})"

    # -- reports ----------------------------------------------------------------------------------

    def judge(self, rows: wire.Messages) -> IntArray:
        """The status of reports to this bundle, in their order."""
        sensible, tokens = self.sensible(rows), token_bytes(rows)
        statuses = np.where(sensible, _ACCEPTED, _MALFORMED)
        distinct = set(tokens)
        if len(distinct) == len(tokens) and distinct.isdisjoint(self.tokens):  # nearly always
            return statuses
        fresh: set[bytes] = set()
        for place in np.flatnonzero(sensible).tolist():
            token = tokens[place]
            if token in self.tokens or token in fresh:
                statuses[place] = ReportStatus.REPLAYED
            fresh.add(token)
        return statuses

    def sensible(self, rows: wire.Messages) -> BoolArray:
        """Whether the number is that of a direction.

        Then a report moves the sum by one unit vector of the known length and no more.
        """
        return np.asarray(wire.numbers_of(rows) < self.sphere.candidates)

    @property
    def reach(self) -> float:
        """How long a report can be in units of the sum, whatever a device sends.

        A direction of ``U`` units, each coordinate rounded.
        """
        return DIRECTION_UNITS + sqrt(self.plan.dimension) / 2

    def add(self, rows: wire.Messages) -> None:
        """Alg. 1, line 15, in exact integers; for reports that were judged to be acceptable."""
        tokens, numbers = wire.tokens_of(rows), wire.numbers_of(rows)
        self.rows.append(rows.copy())
        self.add_sum(reported_sum(tokens, numbers, self.plan.dimension), len(rows))

    def add_sum(self, total: IntArray, count: int) -> None:
        """What some reports come to."""
        self.total += total
        self.unread += count

    # -- readings ---------------------------------------------------------------------------------

    @property
    def unit(self) -> float:
        """What one unit of the sum is worth. One number: a bundle has one plan, hence one grid.

        A contribution ``x`` is rounded to ``q = x / step``, ``|q| <= L``; ``z = q / L`` is rounded
        to a unit vector of mean ``z``, and a reported direction has mean ``c z``, in integers
        ``U c q / L``: the unit is ``L step / (c U)``. Reports to different bundles have different
        units and are never added to each other.
        """
        layout = self.plan.vector
        return layout.norm_limit * layout.step / (self.sphere.shrinkage * DIRECTION_UNITS)

    def read(self, *, last: bool) -> tuple[Release, tuple[Notice, ...]]:
        """What has come in since the last reading, with its real count.

        Without reports that no honest crowd makes, where there are some; sums of others' making are
        taken as they are.
        """
        total, count = self.total, self.unread
        notices: tuple[Notice, ...] = ()
        rows = np.concatenate([np.empty((0, wire.SIZE), dtype=np.uint8), *self.rows])
        if len(rows) == self.unread:
            found = robust_sum(self.sphere, wire.tokens_of(rows), wire.numbers_of(rows))
            total, count, notices = (total, count, notices) if found is None else found
        release = Release(
            plan=self.plan,
            vector=np.asarray(total * self.unit),
            event=None,
            segments=(self.plan.opening,),
            counts=(count,),
            last=last,
        )
        return release, notices

    def start_anew(self) -> None:
        """After a reading: what was read is in no later one."""
        self.rows: list[wire.Messages] = []
        self.total, self.unread = np.zeros(self.plan.dimension, dtype=np.int64), 0


# Reports that may be on their way at once: people between a decision and its reward.
_UNDER_WAY = 10_000
# A share of stale reports that an operator should know of, and from how many on it is told.
_STALE, _FEW = 0.05, 500


def device_terms(
    reward_wait: int | timedelta | None,
    missing_reward: float | str,
    epoch_time: timedelta | None,
    scale: RewardScale,
    shuffle: Shuffle | None,
) -> RewardTerms:
    """The rules for reports; a wait that is right where none is given. A mixed batch is whole."""
    mixed = shuffle is not None
    if mixed and (reward_wait or epoch_time is not None):
        raise ConfigurationError(
            "shuffle takes neither reward_wait nor epoch_time: late reports, and those of an epoch "
            "that is cut short, are batches too small to hide in. Devices report at a fixed time, "
            "and an epoch waits for all of its reports"
        )
    return checked_terms(
        reward_wait=reward_wait if reward_wait is not None else 0 if mixed else _UNDER_WAY,
        missing_reward=missing_reward,
        reward_rule="first",
        epoch_time=epoch_time,
        scale=scale,
    )


def stale_notices(judged: Mapping[int, int]) -> tuple[Notice, ...]:
    """That too many reports come too late, if they do: four deviations above a share of 5 %.

    Of reports by status. Statuses are public: they depend on bundles and on times alone.
    """
    stale = judged.get(ReportStatus.STALE, 0)
    count = stale + judged.get(ReportStatus.ACCEPTED, 0)
    if count < _FEW or stale <= _STALE * count + 4 * sqrt(_STALE * (1 - _STALE) * count):
        return ()
    text = (
        f"{stale} of {count} reports came after the bundle that they answer was closed: nothing is "
        "learnt from them. Devices hold bundles for longer than reward_wait. Wait for as many "
        "reports as are under way at once, or for the time from a decision to its report"
    )
    numbers = {"stale": float(stale), "reports": float(count)}
    return (Notice(kind="stale reports", text=text, numbers=numbers),)


def token_bytes(rows: wire.Messages) -> list[bytes]:
    """The one-time tokens as bytes."""
    data = np.ascontiguousarray(rows[:, wire.TOKEN]).tobytes()
    return [data[start : start + 16] for start in range(0, len(data), 16)]


@dataclass(frozen=True)
class Verdict:
    """Statuses of some reports, and the place of the epoch each is for (-1: none)."""

    status: IntArray
    place: IntArray


def to_bundle(rows: wire.Messages, digest: bytes) -> BoolArray:
    """Which rows answer the bundle of this digest, of which reports carry 8 bytes."""
    return np.asarray(_digests_of(rows) == _words([digest[:8]])[0])


def judge(
    rows: wire.Messages,
    undamaged: BoolArray,
    epochs: Sequence[EpochReports],
    digests: Iterable[bytes],
) -> Verdict:
    """Judge reports against the epochs that take some.

    ``digests``: of all bundles that were ever given out. A report to one of them that is no longer
    open is stale, one to no bundle is unknown.
    """
    status = np.full(len(rows), int(ReportStatus.MALFORMED), dtype=np.int64)
    place = np.full(len(rows), -1, dtype=np.int64)
    others = undamaged.copy()
    for number, epoch in enumerate(epochs):
        mine = np.flatnonzero(undamaged & to_bundle(rows, epoch.digest))
        others[mine] = False
        if len(mine):
            status[mine], place[mine] = epoch.judge(rows[mine]), number
    if others.any():
        known = np.isin(_digests_of(rows[others]), _words(digests))
        status[others] = np.where(known, int(ReportStatus.STALE), int(ReportStatus.UNKNOWN))
    return Verdict(status, place)


def _digests_of(rows: wire.Messages) -> IntArray:
    return np.ascontiguousarray(rows[:, wire.DIGEST]).view("<u8")[:, 0]


def _words(digests: Iterable[bytes]) -> IntArray:
    return np.frombuffer(b"".join(digests), dtype="<u8")


def as_rows(
    reports: Sequence[object] | wire.Messages, take: Callable[[wire.Messages], IntArray]
) -> IntArray:
    """Hand reports on as rows of bytes, in their order; what cannot be a report is malformed.

    ``reports``: bytes of any size, anything else, or rows of bytes, ``(n, size)`` of ``uint8``.
    """
    statuses = np.full(len(reports), int(ReportStatus.MALFORMED), dtype=np.int64)
    if isinstance(reports, np.ndarray) and reports.ndim == 2:
        rows = np.ascontiguousarray(reports, dtype=np.uint8)
        return take(rows) if rows.shape[1] == wire.SIZE else statuses
    sized = [
        bytes(each) if isinstance(each, bytes | bytearray | memoryview) else b"" for each in reports
    ]
    places = [place for place, each in enumerate(sized) if len(each) == wire.SIZE]
    joined = b"".join(sized[place] for place in places)
    statuses[places] = take(wire.as_messages(joined))
    return statuses


# -- reports that were added up elsewhere ----------------------------------------------------------

_FORMAT, _VERSION = "capri-sum", 1
_COUNTS = ("accepted", "replayed", "unknown", "malformed")


@dataclass(frozen=True, eq=False)
class EpochSum:
    """What the reports to one bundle add up to, and what became of all that were found.

    ``total`` is in the units of the bundle's reports. ``set_aside`` says which files were left out,
    and why. All of it may be published: reports are private by themselves.
    """

    digest: bytes
    epoch: int
    total: IntArray
    accepted: int
    replayed: int
    unknown: int
    malformed: int
    set_aside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in (*_COUNTS, "epoch")}
        wrong = [name for name, value in counts.items() if not is_whole(value) or value < 0]
        if wrong:
            raise DataError(f"{', '.join(wrong)} of a sum must be whole numbers from 0")
        if not (isinstance(self.digest, bytes) and len(self.digest) == 32):
            raise DataError("the digest of a sum must be 32 bytes, those of its bundle")
        total = self.total
        if not isinstance(total, np.ndarray) or total.dtype != np.int64 or total.ndim != 1:
            raise DataError("the total of a sum must be one row of 64-bit integers")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; whole numbers beyond ``2^53`` are texts."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "digest": self.digest.hex(),
            "epoch": self.epoch,
            **{name: getattr(self, name) for name in _COUNTS},
            "set_aside": list(self.set_aside),
            "sum": [str(each) for each in self.total.tolist()],
        }

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`save` wrote."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is no sum of reports"
            raise StorageError(f"{path} cannot be read: {reason}") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` made."""
        try:
            listed = values["sum"]
            if (values["format"], values["version"]) != (_FORMAT, _VERSION):
                raise ValueError
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                raise ValueError
            return cls(
                digest=bytes.fromhex(values["digest"]),
                epoch=values["epoch"],
                total=np.array([int(each) for each in listed], dtype=np.int64),
                **{name: values[name] for name in _COUNTS},
                set_aside=tuple(map(str, values["set_aside"])),
            )
        except (ValueError, TypeError, LookupError, OverflowError):
            raise DataError("this is no sum of reports as capri aggregate writes it") from None


def check_sum(added: EpochSum, epoch: EpochReports, *, mixed: bool) -> None:
    """Refuse what no reports to the bundle of an epoch add up to, or what cannot be mixed with it.

    ``mixed``: reports hide among each other, so all that were planned for must be there.
    """
    plan = epoch.plan
    if epoch.tokens or epoch.unread:
        raise DataError(
            "reports to this bundle were received one by one: put all of an epoch into files, or "
            "none"
        )
    if (added.epoch, len(added.total)) != (plan.epoch, plan.dimension):
        raise DataError(
            f"a sum of {len(added.total)} coordinates of epoch {added.epoch}: reports to this "
            f"bundle have {plan.dimension}, and its epoch is {plan.epoch}. Add up its reports again"
        )
    # |sum| <= accepted * reach, exactly.
    squared = sum(each * each for each in added.total.tolist())
    if squared > (added.accepted * ceil(epoch.reach)) ** 2:
        raise DataError(
            f"{added.accepted} reports cannot add up to this: the sum is {isqrt(squared)} units "
            f"long, and a report at most {ceil(epoch.reach)}. The file was changed or damaged: "
            "add up the reports again"
        )
    if mixed and added.accepted < plan.length:
        raise HorizonError(
            f"{added.accepted} of {plan.length} reports of this batch are in the sum: a "
            "smaller one would hide its users less than was promised. Wait, and add all of them up"
        )
