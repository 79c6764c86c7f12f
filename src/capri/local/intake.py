"""Which reports count, and for which bundle: the aggregator's front door.

Whatever arrives is judged by its bytes and by what is public; nothing that is not accepted changes
anything.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.local import wire
from capri.local.gathering import Gathering, ReportStatus


@dataclass(frozen=True)
class Verdict:
    """Statuses of some reports, and the place of the gathering each is for (-1: none)."""

    status: IntArray
    place: IntArray


def to_bundle(rows: wire.Messages, digest: bytes) -> BoolArray:
    """Which rows answer the bundle of this digest, of which reports carry 8 bytes."""
    words = np.ascontiguousarray(rows[:, wire.DIGEST]).view("<u8")[:, 0]
    return np.asarray(words == _words([digest[:8]])[0])


def judge(
    rows: wire.Messages,
    undamaged: BoolArray,
    gatherings: Sequence[Gathering],
    digests: Iterable[bytes],
) -> Verdict:
    """Judge reports against the gatherings that are open.

    ``digests``: of all bundles that were ever given out. A report to one of them that is no longer
    open is stale, one to no bundle is unknown.
    """
    status = np.full(len(rows), int(ReportStatus.MALFORMED), dtype=np.int64)
    place = np.full(len(rows), -1, dtype=np.int64)
    words = np.ascontiguousarray(rows[:, wire.DIGEST]).view("<u8")[:, 0]
    others = undamaged.copy()
    for number, gathering in enumerate(gatherings):
        mine = np.flatnonzero(undamaged & (words == _words([gathering.digest])[0]))
        others[mine] = False
        if len(mine):
            status[mine], place[mine] = gathering.judge(rows[mine]), number
    if others.any():
        known = np.isin(words[others], _words(digests))
        status[others] = np.where(known, int(ReportStatus.STALE), int(ReportStatus.UNKNOWN))
    return Verdict(status, place)


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
    statuses[places] = take(np.frombuffer(joined, dtype=np.uint8).reshape(-1, wire.SIZE))
    return statuses
