"""Reports in files, parted by token and added up part by part: what a worker does.

A replay is a report whose token came before, in whichever file. Equal tokens have equal hashes, so
a worker that has all reports of one part of the hashes knows all of their replays:

    spill    a piece of the files: judge each report by itself, write those that count to one file,
             ordered by the part of their token
    add_up   one part: read it from all these files, keep one report of each token, add them up

Of reports with one token that differ the one with the smallest number is kept: which one comes
first depends on how files are named and split, the smallest does not. Sums are of integers, so the
outcome is the same to the bit however the work is divided.

Tokens may be chosen with malice, hence a salt that nobody knows beforehand parts them. All reports
may have one token: a part is read in blocks, and only one report of each token is carried along.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.errors import StorageError
from capri.local import wire
from capri.local.bundle import open_bundle
from capri.local.gathering import Gathering, to_bundle
from capri.privacy.directions import Words, hashed

# Reports of a part that are in memory at once, beside one of each token.
_BLOCK = 1 << 21
# What is kept of a report: both halves of its token, and its number.
_COLUMNS = ("<u8", "<u8", "<u2")
BYTES = sum(np.dtype(form).itemsize for form in _COLUMNS)


@dataclass(frozen=True)
class FileRange:
    """Some reports of a file: ``count`` of them, from number ``start`` on."""

    path: Path
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


@lru_cache(maxsize=2)
def gathering_of(bundle: bytes) -> Gathering:
    """What judges and adds up the reports to a bundle."""
    opened = open_bundle(bundle)
    return Gathering(opened.plan, opened.digest[:8])


def spill(
    bundle: bytes, piece: Sequence[FileRange], target: Path, parts: int, salt: tuple[int, int]
) -> Spilled:
    """Judge the reports of a piece and write those that may count, ordered by part.

    The file has the offsets of all parts, then both halves of the tokens, then the numbers.
    """
    gathering = gathering_of(bundle)
    rows = _read(piece)
    undamaged = wire.are_reports(rows)
    ours = undamaged & to_bundle(rows, gathering.digest)
    kept = np.flatnonzero(ours & gathering.sensible(rows))
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
    total = gathering_of(bundle).sum_of(np.stack([first, second], axis=1), numbers.astype(np.int64))
    return Added(total, len(first), replayed)


# -- the reports of a piece ------------------------------------------------------------------------


def _read(piece: Sequence[FileRange]) -> wire.Messages:
    rows = np.empty((sum(range_.count for range_ in piece), wire.SIZE), dtype=np.uint8)
    place = 0
    for range_ in piece:
        part = rows[place : place + range_.count]
        place += range_.count
        try:
            with range_.path.open("rb") as file:
                file.seek(range_.start * wire.SIZE)
                found = file.readinto(part.data.cast("B"))
        except OSError as problem:
            raise StorageError(f"{range_.path} cannot be read: {problem.strerror}") from None
        if found != part.nbytes:
            raise StorageError(f"{range_.path} has become shorter while it was read")
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
