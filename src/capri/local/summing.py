"""An epoch's reports from many files, added up on any number of workers to the same bits.

A report takes 18 bytes of scratch files on its way from the files to the sum, and workers hold a
piece or a part of about a million of them at a time: memory does not grow with the number of
reports, disk and time grow with it.

A replay is a report whose token came before, in whichever file. Equal tokens have equal hashes, so
a worker that has all reports of one part of the hashes knows all of their replays:

    spill    a piece of the files: judge each report by itself, write those that count to one file,
             ordered by the part of their token
    add_up   one part: read it from all these files, keep one report of each token, add them up

Of reports with one token that differ the one with the smallest number is kept: which one comes
first depends on how files are named and split, the smallest does not. Sums are of integers, so the
outcome is the same to the bit however the work is divided.

Files are on a disk, or in any object store that ``fsspec`` opens: a place with ``://`` in it.

Tokens may be chosen with malice, hence a salt that nobody knows beforehand parts them. All reports
may have one token: a part is read in blocks, and only one report of each token is carried along.
"""

import gzip
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.checks import need
from capri.errors import ConfigurationError, StorageError
from capri.local import wire
from capri.local.bundle import open_bundle
from capri.local.reports import EpochReports, EpochSum, to_bundle
from capri.privacy.sphere import Words, hashed, reported_sum

# Reports that a worker holds at a time, of files and of a part; fewer where there are few in all,
# so that there is work for several.
PIECE, _LEAST = 1 << 20, 1 << 16
_TASKS = 32
_MOST_PARTS = 1 << 10
# Reports that this process adds up before two others have begun.
_ALONE = 8_000_000
# Reports of a part that are in memory at once, beside one of each token.
_BLOCK = 1 << 21
# What is kept of a report: both halves of its token, and its number.
_COLUMNS = ("<u8", "<u8", "<u2")
BYTES = sum(np.dtype(form).itemsize for form in _COLUMNS)


# A file of this machine, or its address in an object store.
Place = Path | str


class TaskRunner(Protocol):
    """Calls a function with each of some tasks, anywhere and in any order."""

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """The outcomes, as they come."""
        ...


def here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    """One after the other, in this process."""
    return map(function, tasks)


@dataclass(frozen=True)
class FileRange:
    """Some reports of a file: ``count`` of them, from number ``start`` on."""

    path: Place
    start: int
    count: int


@dataclass(frozen=True)
class Spilled:
    """How many reports of a piece may count, answer another bundle, and are no reports."""

    kept: int
    unknown: int
    malformed: int


@dataclass(frozen=True)
class Added:
    """The sum of a part, how many reports are in it, and how many were replays."""

    total: IntArray
    accepted: int
    replayed: int


def report_files(places: Sequence[Place]) -> list[Place]:
    """Files, and those in folders and below; names that begin with a dot or ``_`` are left out."""
    found: list[Path] = []
    afar: list[str] = []
    for place in places:
        if isinstance(place, str) and "://" in place:
            afar += _stored(place)
            continue
        place = Path(place)
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
    files: list[Place] = [*{path.resolve(): path for path in found}.values(), *dict.fromkeys(afar)]
    if not files:
        named = ", ".join(map(str, places))
        raise ConfigurationError(f"there are no files of reports in {named or 'nothing'}")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _stored(place: str) -> list[str]:
    """The files at and below an address, as those of a folder."""
    need(place, "fsspec", extra="capri-bandits[aggregate]")
    import fsspec

    try:
        store, root = fsspec.url_to_fs(place)
        found = [each for each in store.find(root) if not _is_hidden(Path(each[len(root) :]))]
        return [store.unstrip_protocol(each) for each in found]
    except Exception as problem:  # each store has errors of its own
        raise StorageError(f"{place} cannot be listed ({type(problem).__name__})") from None


def _opened(path: Place) -> BinaryIO:
    """A file of reports, which may be compressed."""
    if isinstance(path, str):
        import fsspec

        try:
            return cast(BinaryIO, fsspec.open(path, "rb", compression="infer").open())
        except Exception as problem:
            raise OSError(None, type(problem).__name__) from None
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def reports_in(path: Place) -> int:
    """How many reports a file holds; none may be cut short, or of an older format."""
    try:
        with _opened(path) as file:
            head = np.frombuffer(file.read(2), dtype=np.uint8)[None]
            length = file.seek(0, os.SEEK_END)  # of a compressed file by reading all of it
    except (OSError, EOFError, zlib.error) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else None
        raise StorageError(f"{path} cannot be read: {reason or 'it is damaged'}") from None
    if head.size == 2 and head[0, 0] == wire.MAGIC and wire.written_by(head)[0] < wire.VERSION:
        raise StorageError(
            f"{path} begins with a report of format version {wire.written_by(head)[0]}: this "
            f"release reads version {wire.VERSION} alone"
        )
    count, left = divmod(length, wire.SIZE)
    if left:
        raise StorageError(
            f"{path} has {length} bytes, which is no whole number of reports of {wire.SIZE} bytes: "
            f"{left} are left over. It was cut short, or holds something else"
        )
    return count


def workers_for(files: Sequence[Place]) -> int:
    """Processes that make it fastest: none beside this one where starting them takes longest."""
    size = sum(path.stat().st_size for path in files if isinstance(path, Path))
    many = size > _ALONE * wire.SIZE or any(isinstance(path, str) for path in files)
    return os.cpu_count() or 1 if many else 0


def sorted_out(files: Sequence[Place]) -> tuple[dict[Place, int], tuple[str, ...]]:
    """How many reports each file has, and why others are set aside; refused where none is left."""
    counts: dict[Place, int] = {}
    aside: list[str] = []
    for path in files:
        try:
            counts[path] = reports_in(path)
        except StorageError as problem:
            aside.append(str(problem))
    if aside and not counts:
        raise StorageError(f"{'; '.join(aside)}. Nothing was added up")
    return counts, tuple(aside)


def pieces(counts: Mapping[Place, int], most: int = PIECE) -> list[list[FileRange]]:
    """All reports of all files in pieces of at most so many."""
    found: list[list[FileRange]] = []
    room = 0
    for path, count in counts.items():
        start = 0
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
    files: Sequence[Place],
    *,
    scratch: Path | None = None,
    run: TaskRunner = here,
    piece: int | None = None,
) -> EpochSum:
    """Add up the reports to a bundle in these files; those that are damaged are set aside.

    ``scratch``: a folder that all workers share, with room for 18 bytes a report; what is written
    there is deleted at the end.
    """
    opened = open_bundle(bundle)
    counts, aside = sorted_out(files)
    count = sum(counts.values())
    piece = piece or min(PIECE, max(_LEAST, -(-count // _TASKS)))
    work = pieces(counts, piece)
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
        judged = list(run(partial(spill, bundle, parts, salt), tasks))
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
        set_aside=aside,
    )


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder.parent} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} GB are needed "
            "for scratch files: give another --scratch"
        )


# -- what a worker does ----------------------------------------------------------------------------


@lru_cache(maxsize=2)
def epoch_of(bundle: bytes) -> EpochReports:
    """What judges and adds up the reports to a bundle."""
    opened = open_bundle(bundle)
    return EpochReports(opened.plan, opened.digest[:8])


def spill(
    bundle: bytes, parts: int, salt: tuple[int, int], task: tuple[Sequence[FileRange], Path]
) -> Spilled:
    """Judge the reports of a piece and write those that may count, ordered by part.

    ``task``: the piece, and the file to write.
    The file has the offsets of all parts, then both halves of the tokens, then the numbers.
    """
    piece, target = task
    epoch = epoch_of(bundle)
    rows = _read(piece)
    undamaged = wire.are_reports(rows)
    ours = undamaged & to_bundle(rows, epoch.digest)
    kept = np.flatnonzero(ours & epoch.sensible(rows))
    unknown = int(np.count_nonzero(undamaged) - np.count_nonzero(ours))
    outcome = Spilled(len(kept), unknown, len(rows) - len(kept) - unknown)
    rows = rows[kept]
    tokens = wire.tokens_of(rows)
    part = _part_of(tokens, parts, salt)
    order = np.argsort(part, kind="stable")  # of 16 bits: by counting
    offsets = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    rows, tokens = rows[order], tokens[order]
    columns = (tokens[:, 0], tokens[:, 1], wire.numbers_of(rows))
    # Whole or not at all, under a name of its own: Dask may run a task again elsewhere.
    unfinished = target.with_suffix(f".{secrets.token_hex(4)}")
    try:
        with unfinished.open("wb") as file:
            offsets.astype("<i8").tofile(file)
            for form, column in zip(_COLUMNS, columns, strict=True):
                column.astype(form).tofile(file)
        os.replace(unfinished, target)
    except OSError as problem:
        raise StorageError(f"{target.parent} cannot be written: {problem.strerror}") from None
    return outcome


def add_up(bundle: bytes, files: Sequence[Path], parts: int, number: int) -> Added:
    """The sum of one part over all files, each token once."""
    kept = _joined([])
    replayed = 0
    for block in _blocks(files, parts, number):
        kept = _joined([kept, block])
        once = _once(*kept)
        if not once.all():
            replayed += int(np.count_nonzero(~once))
            kept = [column[once] for column in kept]
    first, second, numbers = kept
    tokens, dimension = np.stack([first, second], axis=1), epoch_of(bundle).plan.dimension
    total = reported_sum(tokens, numbers.astype(np.int64), dimension)
    return Added(total, len(first), replayed)


# -- the reports of a piece ------------------------------------------------------------------------


def _read(piece: Sequence[FileRange]) -> wire.Messages:
    rows = np.empty((sum(range_.count for range_ in piece), wire.SIZE), dtype=np.uint8)
    place = 0
    for range_ in piece:
        part = rows[place : place + range_.count]
        place += range_.count
        try:
            with _opened(range_.path) as file:
                file.seek(range_.start * wire.SIZE)
                data = file.read(part.nbytes)
        except OSError as problem:
            raise StorageError(f"{range_.path} cannot be read: {problem.strerror}") from None
        if len(data) != part.nbytes:
            raise StorageError(f"{range_.path} has become shorter while it was read")
        part[:] = np.frombuffer(data, np.uint8).reshape(-1, wire.SIZE)
    return rows


def _part_of(tokens: Words, parts: int, salt: tuple[int, int]) -> IntArray:
    """The part of each token, 0 to ``parts - 1``, in 16 bits."""
    first, second = (tokens[:, half] ^ np.uint64(salt[half]) for half in (0, 1))
    mixed = hashed(first, second, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    share = ((mixed >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)
    return share.astype(np.uint16)


# -- the reports of a part -------------------------------------------------------------------------

_Columns = list[np.ndarray]


def _joined(several: Sequence[_Columns]) -> _Columns:
    """One after the other."""
    empty = [np.empty(0, dtype=form) for form in _COLUMNS]
    filled = [each for each in several if len(each[0])]
    if len(filled) < 2:
        return filled[0] if filled else empty
    return [np.concatenate(column) for column in zip(*filled, strict=True)]


def _blocks(files: Sequence[Path], parts: int, number: int) -> Iterator[_Columns]:
    """The reports of a part, a bounded number at a time."""
    gathered: list[_Columns] = []
    count = 0
    for path in files:
        gathered.append(_slice(path, parts, number))
        count += len(gathered[-1][0])
        if count >= _BLOCK:
            yield _joined(gathered)
            gathered, count = [], 0
    yield _joined(gathered)


def _slice(path: Path, parts: int, number: int) -> _Columns:
    """The reports of one part in one file."""
    try:
        with path.open("rb") as file:
            offsets = np.fromfile(file, dtype="<i8", count=parts + 1)
            start, end, total = (int(offsets[place]) for place in (number, number + 1, parts))
            found, at = [], offsets.nbytes
            for form in _COLUMNS:
                each = np.dtype(form).itemsize
                file.seek(at + start * each)
                found.append(np.fromfile(file, dtype=form, count=end - start))
                if len(found[-1]) != end - start:
                    raise ValueError("cut short")
                at += total * each
            return found
    except (OSError, IndexError, ValueError) as problem:
        raise StorageError(
            f"{path} cannot be read ({type(problem).__name__}): the folder for scratch files must "
            "be one that all workers share, with room for them"
        ) from None


def _once(first: Words, second: Words, numbers: IntArray) -> BoolArray:
    """One report of each token: of several, the one with the smallest number.

    Sorting one half tells whether two tokens could be equal at all, which honest ones are never;
    only those that share it are compared in full.
    """
    once = np.ones(len(first), dtype=np.bool_)
    ordered = np.sort(first)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(twice):
        return once
    nearest = twice[np.minimum(np.searchsorted(twice, first), len(twice) - 1)]
    places = np.flatnonzero(nearest == first)
    order = places[np.lexsort((numbers[places], second[places], first[places]))]
    again = (first[order[1:]] == first[order[:-1]]) & (second[order[1:]] == second[order[:-1]])
    once[order[1:][again]] = False
    return once
