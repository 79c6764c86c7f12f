"""What a visit tells of its context alone: a cell of every column, or a score of each.

Columns are those of public ranges, or of a schema. A column of numbers has ``K`` points, evenly
spaced in a public window, and a cell around each; what lies beyond is at an end. A column of levels
has a cell for each, as the row of numbers has it, and a missing cell is one more.

A score is a public function of one number of a row: linear between the ``K`` points.
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.features import ProjectedFeatures
from capri.schema import Boolean, Categorical, Schema
from capri.schema.columns import OWN, Numeric
from capri.spaces import ContextPool

# Points of a column of numbers: an odd number, so that the middle is one of them.
POINTS = 17


@dataclass(frozen=True)
class CrowdColumn:
    """A column of contexts: where its numbers stand in a row.

    ``levels``: how many indicators there are from ``start`` on, 0 for a number. ``missing``: the
    place of the indicator of missing cells, -1 for none. ``low`` and ``high``: the public range.
    """

    name: str
    start: int
    levels: int
    missing: int
    low: float
    high: float
    labels: tuple[str, ...] = ()
    unit: tuple[float, float] = (0.0, 1.0)  # what 0 and 1 of its number stand for

    @property
    def cells(self) -> int:
        """How many cells it has."""
        return (self.levels or POINTS) + (self.missing >= 0)


def crowd_columns(pool: ContextPool) -> tuple[CrowdColumn, ...]:
    """The columns of a pool that was made up from public ranges."""
    assert pool.ranges is not None
    if pool.schema is not None:
        return _named(pool.schema)
    return tuple(
        CrowdColumn(f"column {place}", place, 0, -1, float(low), float(high))
        for place, (low, high) in enumerate(pool.ranges)
    )


def _named(schema: Schema) -> tuple[CrowdColumn, ...]:
    found: list[CrowdColumn] = []
    start = 0
    for column in schema.columns:
        assert isinstance(column, Numeric | Boolean | Categorical)
        own = column.missing == OWN
        missing = start + column.width - 1 if own else -1
        levels, labels, unit = 0, tuple[str, ...](), (0.0, 1.0)
        if isinstance(column, Categorical):
            levels, labels = column.width - own, (*map(str, column.levels), "unknown")
        if isinstance(column, Numeric):
            unit = column.low, column.high
        found.append(CrowdColumn(column.name, start, levels, missing, 0.0, 1.0, labels, unit))
        start += column.width
    return tuple(found)


class _ContextFeatures(ProjectedFeatures):
    """A map of contexts alone, which knows no kernel."""

    tau: float = 1.0

    @property
    def points(self) -> FloatArray:
        """There are none."""
        raise ConfigurationError("what is told of contexts alone is not made of a kernel")

    @property
    def to_whitened(self) -> FloatArray:
        """There is none."""
        return self.points

    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """The rows themselves."""
        return pairs

    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """1 for each pair."""
        return np.ones(len(pairs))

    def whitened_block(self, pairs: FloatArray) -> FloatArray:
        """As of each pair by itself."""
        return self.whitened(pairs)


@dataclass(frozen=True, eq=False)
class ColumnCells(_ContextFeatures):
    """The number of the cell of every column.

    ``places``: start, levels and missing of each column; ``windows``: low and high of each.
    """

    places: IntArray
    windows: FloatArray

    @property
    def rank(self) -> int:
        """How many columns are told of."""
        return len(self.places)

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """The cells of each pair; NaN where a number is none."""
        found = np.empty((len(pairs), self.rank))
        with np.errstate(all="ignore"):  # a warning would tell of a row
            for place, (start, levels, missing) in enumerate(self.places):
                low, high = self.windows[place]
                if levels:
                    block = pairs[:, start : start + levels]
                    cell = np.where(block.max(axis=1) > 0.5, block.argmax(axis=1), np.nan)
                else:
                    share = (pairs[:, start] - low) / (high - low)
                    cell = np.rint(np.clip(share, 0.0, 1.0) * (POINTS - 1))
                if missing >= 0:
                    gone: BoolArray = pairs[:, missing] > 0.5
                    cell = np.where(gone, levels or POINTS, cell)
                found[:, place] = cell
        return found


@dataclass(frozen=True, eq=False)
class ColumnScores(_ContextFeatures):
    """A score of some numbers of a row.

    ``numbers``: which ones. ``windows``: between which each is told apart; ``tables``: the score
    at each of its points, linear in between.
    """

    numbers: IntArray
    windows: FloatArray
    tables: FloatArray

    @property
    def rank(self) -> int:
        """How many scores there are."""
        return len(self.numbers)

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """The scores of each pair: the same steps for every pair by itself."""
        low, high = self.windows.T
        with np.errstate(all="ignore"):
            share = np.clip((pairs[:, self.numbers] - low) / (high - low), 0.0, 1.0)
            place = share * (POINTS - 1)
            left = np.nan_to_num(np.minimum(np.floor(place), POINTS - 2)).astype(np.int64)
            own = np.arange(self.rank)
            rise = self.tables[own, left + 1] - self.tables[own, left]
            return np.asarray(self.tables[own, left] + (place - left) * rise)
