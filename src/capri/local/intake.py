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
from capri.privacy.promise import Randomizer

# Sizes that a report may have at all: head and checksum alone, and far more than any device sends.
_SMALLEST, _LARGEST = 30, 1 << 20


@dataclass(frozen=True)
class Verdict:
    """Statuses of some reports, and the place of the gathering each is for (-1: none)."""

    status: IntArray
    place: IntArray


def are_reports(rows: wire.Messages, randomizer: Randomizer) -> BoolArray:
    """Which rows are undamaged reports of this kind."""
    kind = wire.VERSION << 4 | wire.KINDS[randomizer]
    return np.asarray((rows[:, 0] == wire.MAGIC) & (rows[:, 1] == kind) & wire.sound(rows))


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
    """Judge reports of one size against the gatherings that are open.

    ``digests``: of all bundles that were ever given out. A report to one of them that is no longer
    open is stale, whatever its size; one to no bundle is unknown if it has the size of a report to
    an open one, else malformed.
    """
    status = np.full(len(rows), int(ReportStatus.MALFORMED), dtype=np.int64)
    place = np.full(len(rows), -1, dtype=np.int64)
    words = np.ascontiguousarray(rows[:, wire.DIGEST]).view("<u8")[:, 0]
    others, expected = undamaged.copy(), False
    for number, gathering in enumerate(gatherings):
        mine = np.flatnonzero(undamaged & (words == _words([gathering.digest])[0]))
        others[mine] = False
        if gathering.size == rows.shape[1]:
            expected = True
            if len(mine):
                status[mine], place[mine] = gathering.judge(rows[mine]), number
    if others.any():
        nobody = ReportStatus.UNKNOWN if expected else ReportStatus.MALFORMED
        known = np.isin(words[others], _words(digests))
        status[others] = np.where(known, int(ReportStatus.STALE), int(nobody))
    return Verdict(status, place)


def _words(digests: Iterable[bytes]) -> IntArray:
    return np.frombuffer(b"".join(digests), dtype="<u8")


def by_size(
    reports: Sequence[object] | wire.Messages, take: Callable[[wire.Messages], IntArray]
) -> IntArray:
    """Hand reports on as rows of one size, in their order; what cannot be a report is malformed.

    ``reports``: bytes of any size, anything else, or rows of bytes, ``(n, size)`` of ``uint8``.
    """
    if isinstance(reports, np.ndarray) and reports.ndim == 2:
        rows = np.ascontiguousarray(reports, dtype=np.uint8)
        if _SMALLEST <= rows.shape[1] <= _LARGEST:
            return take(rows)
        return np.full(len(rows), int(ReportStatus.MALFORMED), dtype=np.int64)
    plain = [bytes(each) if isinstance(each, bytearray | memoryview) else each for each in reports]
    sizes = [
        len(each) if isinstance(each, bytes) and _SMALLEST <= len(each) <= _LARGEST else 0
        for each in plain
    ]
    statuses = np.full(len(plain), int(ReportStatus.MALFORMED), dtype=np.int64)
    start = 0
    while start < len(plain):
        end = start + 1
        while end < len(plain) and sizes[end] == sizes[start]:
            end += 1
        if sizes[start]:
            joined = b"".join(each for each in plain[start:end] if isinstance(each, bytes))
            rows = np.frombuffer(joined, dtype=np.uint8).reshape(-1, sizes[start])
            statuses[start:end] = take(rows)
        start = end
    return statuses
