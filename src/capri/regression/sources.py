"""Rows from anywhere: arrays, chunks, Parquet files, Dask collections.

A source hands blocks of rows to a job and adds up the integers that come back. Sums of integers do
not depend on how rows were cut or who added them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError, DataError
from capri.regression.tables import finite_rows, frame_of

Check = Callable[[Any, Any], "Block"]
Job = Callable[[FloatArray, FloatArray, int], IntArray]
Block = tuple[FloatArray, FloatArray]
Tables = Callable[[], Iterator[tuple[Any, Any]]]
Ranges = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
_PARQUET_ROWS = 1 << 16
_CHANGED = (
    "the rows changed between passes, so one row could be in two stages: give a list, an array, "
    "chunks or Dask partitions in a fixed order, or use partial_fit, which reads rows once"
)


class RowSource(ABC):
    """Rows that can be read several times; ``rows`` is their number."""

    def _measure(self, shapes: Sequence[tuple[int, int, int]], mixed: str) -> None:
        """Rows, columns and outputs of all blocks; ``mixed`` is said where they do not fit."""
        if len({shape[1:] for shape in shapes}) > 1:
            raise DataError(mixed)
        self.rows = sum(shape[0] for shape in shapes)
        self.columns, self.outputs = shapes[0][1:]

    @abstractmethod
    def total(self, job: Job) -> IntArray:
        """Sum of ``job(X, y, number of the first row)`` over all blocks."""

    @abstractmethod
    def ranges(self) -> Ranges:
        """Smallest and largest value of every column of X and of y: not private."""


class Chunks(RowSource):
    """Blocks of rows that a function gives anew whenever it is called.

    Stages take rows by their number. Rows that change places between passes could be in two
    stages and spend the budget twice, so every pass must read what the first one read.
    """

    def __init__(self, blocks: Callable[[], Iterator[Block]]) -> None:
        self._blocks = blocks
        self._digest: bytes | None = None
        sizes = [_shape(block) for block in self._read()]
        if not sizes:
            raise DataError("there are no rows: give at least one chunk (X, y)")
        self._measure(sizes, "all chunks must have the same number of columns in X and in y")

    def total(self, job: Job) -> IntArray:
        """One block after the other."""
        start, total = 0, np.zeros((), dtype=np.int64)
        for X, y in self._read():
            total = total + job(X, y, start)
            start += len(X)
        return total

    def ranges(self) -> Ranges:
        """Over all blocks."""
        return _joined(_ranges(block) for block in self._read() if len(block[0]))

    def _read(self) -> Iterator[Block]:
        """One pass; fails at its end when it was not the same as the first."""
        seen = blake2b(digest_size=32)
        for block in self._blocks():
            _feed(seen, block)
            yield block
        if self._digest is None:
            self._digest = seen.digest()
        elif self._digest != seen.digest():
            raise DataError(_CHANGED)


class DaskBlocks(RowSource):
    """Partitions of Dask collections: sums are made where the partitions are.

    Every pass computes the graph anew, so each partition is compared with its first reading, by a
    digest made in the task that adds up its rows.
    """

    def __init__(self, X: Any, y: Any, check: Check) -> None:
        dask: Any = import_module("dask")
        self._dask = dask
        for name, thing in (("X", X), ("y", y)):
            if any(count > 1 for count in getattr(thing, "numblocks", ())[1:]):
                raise DataError(
                    f"{name} is cut into several blocks of columns: keep the columns of a row in "
                    f"one block, with {name}.rechunk({{1: -1}})"
                )
        lefts = np.ravel(np.asarray(X.to_delayed(), dtype=object))
        rights = np.ravel(np.asarray(y.to_delayed(), dtype=object))
        if len(lefts) != len(rights):
            raise DataError(
                f"X has {len(lefts)} blocks of rows and y has {len(rights)}: chunk both alike"
            )
        checked = dask.delayed(check)
        self._blocks = [checked(left, right) for left, right in zip(lefts, rights, strict=True)]
        measure = dask.delayed(_measured)
        shapes, digests = zip(*dask.compute(*map(measure, self._blocks)), strict=True)
        self._measure(shapes, "all partitions must have the same columns")
        self._sizes = [int(shape[0]) for shape in shapes]
        self._digests: tuple[bytes, ...] = digests

    def total(self, job: Job) -> IntArray:
        """Workers encode and add; only sums travel."""
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        run = self._dask.delayed(_run)
        parts = [
            run(job, block, int(start)) for block, start in zip(self._blocks, starts, strict=True)
        ]
        while len(parts) > 1:  # a tree: no worker holds more than a few sums
            parts = [self._dask.delayed(_add)(parts[i : i + 8]) for i in range(0, len(parts), 8)]
        ((total, digests),) = self._dask.compute(parts[0])
        if digests != self._digests:
            raise DataError(_CHANGED)
        return np.asarray(total)

    def ranges(self) -> Ranges:
        """Of every partition, joined."""
        filled = [block for block, size in zip(self._blocks, self._sizes, strict=True) if size]
        ranges = self._dask.delayed(_ranges)
        return _joined(self._dask.compute(*[ranges(block) for block in filled]))


def one_block(X: FloatArray, y: FloatArray, *, weighted: bool = False) -> Chunks:
    """Rows in memory, as matrices; ``weighted``: the last column of y are weights."""
    source = Chunks(lambda: iter([(X, y)]))
    source.outputs -= weighted
    return source


def blocks_of(X: Any, y: Any, check: Check) -> tuple[RowSource, Any]:
    """Dask collections, a Parquet path or chunks as a source, and the names of their columns."""
    if is_dask(X):
        if not is_dask(y):
            raise ConfigurationError("y must be a Dask collection with the chunks of X")
        return DaskBlocks(X, y, check), getattr(X, "columns", None)
    if is_path(X) and not isinstance(y, str | list):
        raise ConfigurationError("with a Parquet path, y must name the target columns")
    blocks = same_columns(parquet_blocks(X, y) if is_path(X) else lambda: iter(X))
    source = Chunks(lambda: (check(*block) for block in blocks()))
    return source, getattr(next(blocks())[0], "columns", None)


def is_dask(thing: object) -> bool:
    """Whether this is a Dask collection; does not import Dask."""
    return hasattr(thing, "__dask_graph__") and hasattr(thing, "to_delayed")


def is_path(thing: object) -> bool:
    """Whether this names a Parquet file or directory."""
    return isinstance(thing, str | PathLike)


def is_chunks(X: object, y: object) -> bool:
    """Whether ``X`` is an iterable of ``(X, y)`` pairs rather than a table."""
    if y is not None or hasattr(X, "__array__") or hasattr(X, "shape") or is_path(X):
        return False
    if isinstance(X, list | tuple):
        return (
            bool(X)
            and all(isinstance(item, tuple) and len(item) == 2 for item in X)
            and all(hasattr(part, "shape") for part in X[0])
        )
    return isinstance(X, Iterable)


def same_columns(blocks: Tables) -> Tables:
    """The same blocks, with named columns in the order of the first block."""

    def aligned() -> Iterator[tuple[Any, Any]]:
        first: list[list[Any] | None] | None = None
        for block in blocks():
            names = [_names(table) for table in block]
            first = names if first is None else first
            X, y = (
                table if own == wanted else _reordered(table, own, wanted)
                for table, own, wanted in zip(block, names, first, strict=True)
            )
            yield X, y

    return aligned


def _names(table: Any) -> list[Any] | None:
    names = getattr(table, "column_names", getattr(table, "columns", None))  # Arrow, or pandas
    return None if names is None else list(names)


def _reordered(table: Any, own: list[Any] | None, wanted: list[Any] | None) -> Any:
    if own is None or wanted is None or len(own) != len(wanted) or set(own) != set(wanted):
        raise DataError(
            f"all chunks and files must have the same columns: the first has {wanted}, "
            f"a later one has {own}"
        )
    return table.select(wanted) if hasattr(table, "column_names") else table[wanted]


def parquet_blocks(path: str | PathLike[str], targets: str | list[str]) -> Tables:
    """Tables of a Parquet file, or of all files of a directory in the order of their names."""
    import pyarrow.parquet as parquet

    place = Path(fspath(path))
    files = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
    if not files:
        raise DataError("the folder holds no file that ends in .parquet")
    names = [targets] if isinstance(targets, str) else list(targets)

    def blocks() -> Iterator[tuple[Any, Any]]:
        for file in files:
            with parquet.ParquetFile(file) as table:
                missing = [name for name in names if name not in table.schema_arrow.names]
                if missing:
                    raise DataError(
                        f"the file has no column {', '.join(missing)}; y must name columns of it"
                    )
                for batch in table.iter_batches(batch_size=_PARQUET_ROWS):
                    frame = frame_of(batch)
                    yield frame.drop(columns=names), frame[names]

    return blocks


def _shape(block: Block) -> tuple[int, int, int]:
    return len(block[0]), block[0].shape[1], block[1].shape[1]


def _feed(digest: blake2b, block: Block) -> None:
    for table in block:
        digest.update(np.ascontiguousarray(table).reshape(-1).data)


def _digest(block: Block) -> bytes:
    digest = blake2b(digest_size=32)
    _feed(digest, block)
    return digest.digest()


def _measured(block: Block) -> tuple[tuple[int, int, int], bytes]:
    return _shape(block), _digest(block)


def _run(job: Job, block: Block, start: int) -> tuple[IntArray, tuple[bytes, ...]]:
    """The sum of a partition, and what it was read as."""
    return job(block[0], block[1], start), (_digest(block),)


def _add(
    parts: list[tuple[IntArray, tuple[bytes, ...]]],
) -> tuple[IntArray, tuple[bytes, ...]]:
    totals, digests = zip(*parts, strict=True)
    return np.sum(totals, axis=0), tuple(chain.from_iterable(digests))


def _ranges(block: Block) -> Ranges:
    """Of the rows that count; empty ranges where there are none."""
    X, y = (table[finite_rows(*block)] for table in block)
    low, high = partial(np.min, axis=0, initial=np.inf), partial(np.max, axis=0, initial=-np.inf)
    return low(X), high(X), low(y), high(y)


def _joined(ranges: Iterable[Ranges]) -> Ranges:
    low_x, high_x, low_y, high_y = map(np.stack, zip(*ranges, strict=True))
    joined = low_x.min(axis=0), high_x.max(axis=0), low_y.min(axis=0), high_y.max(axis=0)
    # Where no row counts there is no range, and any will do.
    low_x, high_x, low_y, high_y = (np.where(np.isfinite(each), each, 0.0) for each in joined)
    return low_x, high_x, low_y, high_y
