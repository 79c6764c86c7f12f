"""An epoch's reports from many files, added up on any number of workers to the same bits.

A report takes 18 bytes of scratch files on its way from the files to the sum, and workers hold a
piece or a part of about a million of them at a time: memory does not grow with the number of
reports, disk and time grow with it. See :mod:`capri.local.parts` for what workers do.
"""

import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, isqrt
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from capri.arrays import IntArray
from capri.checks import is_whole
from capri.errors import ConfigurationError, DataError, HorizonError, StorageError
from capri.files import write_atomically
from capri.local import wire
from capri.local.bundle import open_bundle
from capri.local.gathering import Gathering
from capri.local.parts import BYTES, FileRange, Spilled, add_up, spill

_FORMAT, _VERSION = "capri-sum", 1
_COUNTS = ("accepted", "replayed", "unknown", "malformed")
# Reports that a worker holds at a time, of files and of a part; fewer where there are few in all,
# so that there is work for several.
PIECE, _LEAST = 1 << 20, 1 << 16
_TASKS = 32
_MOST_PARTS = 1 << 10


class Run(Protocol):
    """Calls a function with each of some tasks, anywhere and in any order."""

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """The outcomes, as they come."""
        ...


def here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    """One after the other, in this process."""
    return map(function, tasks)


@dataclass(frozen=True, eq=False)
class EpochSum:
    """What the reports to one bundle add up to, and what became of all that were found.

    ``total`` is in the units of the bundle's reports. All of it may be published: reports are
    private by themselves.
    """

    digest: bytes
    epoch: int
    total: IntArray
    accepted: int
    replayed: int
    unknown: int
    malformed: int

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
            "sum": [str(each) for each in self.total.tolist()],
        }

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
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
            )
        except (OSError, ValueError, TypeError, LookupError, OverflowError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is no sum of reports"
            raise StorageError(f"{path} cannot be read: {reason}") from None


def open_for(told: EpochSum, gatherings: Sequence[Gathering], *, mixed: bool) -> Gathering:
    """The gathering that a sum is for, of those that take reports now.

    ``mixed``: reports hide among each other, so all that were planned for must be there.
    """
    found = [each for each in gatherings if each.digest == told.digest[:8]]
    if not found:
        raise DataError(
            f"a sum of epoch {told.epoch}, and no bundle of its digest takes reports now: it was "
            "taken up before, its epoch is closed, or it is another aggregator's"
        )
    (gathering,) = found
    if gathering.tokens or gathering.unread:
        raise DataError(
            "reports to this bundle were received one by one: put all of an epoch into files, or "
            "none"
        )
    _check_possible(told, gathering)
    if mixed and told.accepted < gathering.plan.length:
        raise HorizonError(
            f"{told.accepted} of {gathering.plan.length} reports of this batch are in the sum: a "
            "smaller one would hide its users less than was promised. Wait, and add all of them up"
        )
    return gathering


def _check_possible(told: EpochSum, gathering: Gathering) -> None:
    """Refuse what no reports to this bundle add up to: ``|sum| <= accepted * reach``, exactly."""
    plan = gathering.plan
    if (told.epoch, len(told.total)) != (plan.epoch, plan.dimension):
        raise DataError(
            f"a sum of {len(told.total)} coordinates of epoch {told.epoch}: reports to this bundle "
            f"have {plan.dimension}, and its epoch is {plan.epoch}. Add up its reports again"
        )
    squared = sum(each * each for each in told.total.tolist())
    if squared > (told.accepted * ceil(gathering.reach)) ** 2:
        raise DataError(
            f"{told.accepted} reports cannot add up to this: the sum is {isqrt(squared)} units "
            f"long, and a report at most {ceil(gathering.reach)}. The file was changed or damaged: "
            "add up the reports again"
        )


def report_files(places: Sequence[Path]) -> list[Path]:
    """Files, and those in folders and below; names that begin with a dot or ``_`` are left out."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += (
                path
                for path in sorted(place.rglob("*"))
                if path.is_file() and not _is_hidden(path.relative_to(place))
            )
        elif place.is_file():
            found.append(place)
        else:
            raise ConfigurationError(f"{place} is neither a file nor a folder")
    # The same file by two ways would look like replays of itself.
    files = list({path.resolve(): path for path in found}.values())
    if not files:
        named = ", ".join(map(str, places))
        raise ConfigurationError(f"there are no files of reports in {named or 'nothing'}")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def reports_in(path: Path) -> int:
    """How many reports a file holds; none may be cut short, or of an older format."""
    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            head = np.frombuffer(file.read(2), dtype=np.uint8)[None]
    except OSError as problem:
        raise StorageError(f"{path} cannot be read: {problem.strerror}") from None
    if head.size == 2 and head[0, 0] == wire.MAGIC and wire.written_by(head)[0] < wire.VERSION:
        raise StorageError(
            f"{path} begins with a report of format version {wire.written_by(head)[0]}: this "
            f"release reads version {wire.VERSION} alone. Nothing was added up"
        )
    count, left = divmod(length, wire.SIZE)
    if left:
        raise StorageError(
            f"{path} has {length} bytes, which is no whole number of reports of {wire.SIZE} bytes: "
            f"{left} are left over. It was cut short, or holds something else. Nothing was added up"
        )
    return count


def pieces(files: Sequence[Path], most: int = PIECE) -> list[list[FileRange]]:
    """All reports of all files in pieces of at most so many."""
    found: list[list[FileRange]] = []
    room = 0
    for path in files:
        start, count = 0, reports_in(path)
        while start < count:
            if not room:
                found.append([])
                room = most
            taken = min(room, count - start)
            found[-1].append(FileRange(path, start, taken))
            start, room = start + taken, room - taken
    return found


def aggregate(
    bundle: bytes,
    files: Sequence[Path],
    *,
    scratch: Path | None = None,
    run: Run = here,
    piece: int | None = None,
) -> EpochSum:
    """Add up the reports to a bundle in these files.

    ``scratch``: a folder that all workers share, with room for 18 bytes a report; what is written
    there is deleted at the end.
    """
    opened = open_bundle(bundle)
    count = sum(map(reports_in, files))
    piece = piece or min(PIECE, max(_LEAST, -(-count // _TASKS)))
    work = pieces(files, piece)
    parts = min(_MOST_PARTS, max(1, -(-count // piece)))
    salt = (secrets.randbits(64), secrets.randbits(64))
    try:
        folder = Path(tempfile.mkdtemp(prefix="capri-aggregate-", dir=scratch))
    except OSError as problem:
        raise StorageError(f"{scratch} cannot be written: {problem.strerror}") from None
    try:
        _check_room(folder, count * BYTES)
        targets = [folder / f"{number}.spill" for number in range(len(work))]
        tasks = list(zip(work, targets, strict=True))
        judged = list(run(partial(_spill, bundle, parts, salt), tasks))
        added = list(run(partial(add_up, bundle, targets, parts), range(parts)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = np.zeros(opened.dimension, dtype=np.int64)
    for part in added:
        total += part.total
    return EpochSum(
        digest=opened.digest,
        epoch=opened.plan.epoch,
        total=total,
        accepted=sum(part.accepted for part in added),
        replayed=sum(part.replayed for part in added),
        unknown=sum(each.unknown for each in judged),
        malformed=sum(each.malformed for each in judged),
    )


def _spill(
    bundle: bytes, parts: int, salt: tuple[int, int], task: tuple[list[FileRange], Path]
) -> Spilled:
    piece, target = task
    return spill(bundle, piece, target, parts, salt)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder.parent} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} GB are needed "
            "for scratch files: give another --scratch"
        )
