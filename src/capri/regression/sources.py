"""Rows from anywhere: arrays, chunks, Parquet files, Dask collections.

A source hands blocks of rows to a job and adds up the integers that come back. Sums of integers do
not depend on how rows were cut or who added them.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError, DataError
from capri.regression.tables import columns_of, finite_rows, names_in, selected

Check = Callable[[Any, Any], "Block"]
Job = Callable[[FloatArray, FloatArray], IntArray]
Block = tuple[FloatArray, FloatArray]
Tables = Callable[[], Iterator[tuple[Any, Any]]]
Ranges = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
# A pass over all blocks: what a step makes of each block, joined several at a time.
Fold = Callable[[Callable[[Block], Any], Callable[[list[Any]], Any]], Any]
_PARQUET_ROWS = 1 << 16
# Sums joined at once: no worker holds more.
_JOINED = 8
_CHANGED = (
    "there were other rows in a further pass, and their number is public: give a list, an array, "
    "chunks or Dask partitions that stay, or use partial_fit, which reads rows once"
)


class RowSource:
    """Rows that can be read several times; ``rows`` is their number."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        shapes = fold(_shape, _in_order)
        if shapes is None:
            raise DataError("there are no rows: give at least one chunk (X, y)")
        if len({shape[1:] for shape in shapes}) > 1:
            raise DataError(
                "all chunks and partitions must have the same number of columns in X and in y"
            )
        self.rows = sum(shape[0] for shape in shapes)
        self._shapes = shapes
        self.columns, self.outputs = shapes[0][1:]

    def total(self, job: Job) -> IntArray:
        """Sum of ``job(X, y)`` over all blocks."""
        return np.asarray(self._again(partial(_run, job), partial(np.sum, axis=0)))

    def ranges(self) -> Ranges:
        """Smallest and largest value of every column of X and of y: not private."""
        low_x, high_x, low_y, high_y = self._again(_ranges, _widest)
        # Where no row counts there is no range, and any will do.
        found = (np.where(np.isfinite(end), end, 0.0) for end in (low_x, high_x, low_y, high_y))
        low_x, high_x, low_y, high_y = found
        return low_x, high_x, low_y, high_y

    def _again(self, step: Callable[[Block], Any], join: Callable[[list[Any]], Any]) -> Any:
        """One more pass; fails at its end when blocks had other shapes than in the first."""
        found = self._fold(partial(_read, step), partial(_joined, join))
        if found is None or found[1] != self._shapes:
            raise DataError(_CHANGED)
        return found[0]


def _in_turn(blocks: Callable[[], Iterator[Block]]) -> Fold:
    """One block after the other, of a function that gives them anew whenever it is called."""

    def fold(step: Callable[[Block], Any], join: Callable[[list[Any]], Any]) -> Any:
        found = None
        for block in blocks():
            part = step(block)
            found = part if found is None else join([found, part])
        return found

    return fold


def _where_they_are(X: Any, y: Any, check: Check) -> Fold:
    """Partitions of Dask collections: workers encode and add, and only sums travel."""
    dask: Any = import_module("dask")
    for name, thing in (("X", X), ("y", y)):
        if any(count > 1 for count in getattr(thing, "numblocks", ())[1:]):
            raise DataError(
                f"{name} is cut into several blocks of columns: keep the columns of a row in "
                f"one block, with {name}.rechunk({{1: -1}})"
            )
    lefts, rights = (np.ravel(np.asarray(each.to_delayed(), dtype=object)) for each in (X, y))
    if len(lefts) != len(rights):
        raise DataError(
            f"X has {len(lefts)} blocks of rows and y has {len(rights)}: chunk both alike"
        )
    blocks = [dask.delayed(check)(*pair) for pair in zip(lefts, rights, strict=True)]

    def fold(step: Callable[[Block], Any], join: Callable[[list[Any]], Any]) -> Any:
        parts = [dask.delayed(step)(block) for block in blocks]
        while len(parts) > 1:
            groups = range(0, len(parts), _JOINED)
            parts = [dask.delayed(join)(parts[start : start + _JOINED]) for start in groups]
        return dask.compute(parts[0])[0]

    return fold


def one_block(X: FloatArray, y: FloatArray, *, weighted: bool = False) -> RowSource:
    """Rows in memory, as matrices; ``weighted``: the last column of y are weights."""
    source = RowSource(_in_turn(lambda: iter([(X, y)])))
    source.outputs -= weighted
    return source


def blocks_of(X: Any, y: Any, check: Check) -> tuple[RowSource, Any]:
    """Dask collections, a Parquet path or chunks as a source, and the names of their columns."""
    if is_dask(X):
        if not is_dask(y):
            raise ConfigurationError("y must be a Dask collection with the chunks of X")
        return RowSource(_where_they_are(X, y, check)), getattr(X, "columns", None)
    if is_path(X) and not isinstance(y, str | list):
        raise ConfigurationError("with a Parquet path, y must name the target columns")
    blocks = same_columns(parquet_blocks(X, y) if is_path(X) else lambda: iter(X))
    source = RowSource(_in_turn(lambda: (check(*block) for block in blocks())))
    return source, names_in(next(blocks())[0])


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
            names = [names_in(table) for table in block]
            first = names if first is None else first
            X, y = (
                table if own == wanted else _reordered(table, own, wanted)
                for table, own, wanted in zip(block, names, first, strict=True)
            )
            yield X, y

    return aligned


def _reordered(table: Any, own: list[Any] | None, wanted: list[Any] | None) -> Any:
    if own is None or wanted is None or len(own) != len(wanted) or set(own) != set(wanted):
        raise DataError(
            f"all chunks and files must have the same columns: the first has {wanted}, "
            f"a later one has {own}"
        )
    return selected(table, wanted)


def parquet_blocks(path: str | PathLike[str], targets: str | list[str]) -> Tables:
    """Tables of a Parquet file, or of all files of a directory in the order of their names."""
    from pyarrow import Table, parquet

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
                    cells = columns_of(Table.from_batches([batch]))
                    yield (
                        selected(cells, [n for n in cells if n not in names]),
                        selected(cells, names),
                    )

    return blocks


# -- steps of a pass, and how their results are joined ---------------------------------------------


def _read(step: Callable[[Block], Any], block: Block) -> tuple[Any, list[tuple[int, int, int]]]:
    """What a step makes of a block, and of which shape the block was."""
    return step(block), _shape(block)


def _joined(join: Callable[[list[Any]], Any], parts: list[Any]) -> tuple[Any, list[Any]]:
    found, shapes = zip(*parts, strict=True)
    return join([*found]), _in_order([*shapes])


def _in_order(parts: list[list[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


def _shape(block: Block) -> list[tuple[int, int, int]]:
    return [(len(block[0]), block[0].shape[1], block[1].shape[1])]


def _run(job: Job, block: Block) -> IntArray:
    return job(*block)


def _ranges(block: Block) -> Ranges:
    """Of the rows that count; empty ranges where there are none."""
    X, y = (table[finite_rows(*block)] for table in block)
    low, high = partial(np.min, axis=0, initial=np.inf), partial(np.max, axis=0, initial=-np.inf)
    return low(X), high(X), low(y), high(y)


def _widest(ranges: list[Ranges]) -> Ranges:
    low_x, high_x, low_y, high_y = map(np.stack, zip(*ranges, strict=True))
    return low_x.min(axis=0), high_x.max(axis=0), low_y.min(axis=0), high_y.max(axis=0)
