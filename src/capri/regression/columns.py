"""Columns as people have them: where their values are, and pieces as fine as that allows.

A column is counted in cells: equal parts of its range, or its levels. Counts that left the gate say
how often each occurs, and a number becomes its rank ``z``, the share of rows below it: equal steps
of ``z`` hold equal numbers of rows. A cell that holds many rows by itself has one rank for all of
them, as the values of a count or an indicator do. On ranks stand knots, and functions of a column
are linear between them (hats); functions of a category have a value for every level.

Without counts every cell is as likely, and ranks are shares of the range. Post-processing of
counts, all of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.kernels import Matern
from capri.learners.copula import on_simplex

# Cells of the range of a number, and knots that its functions bend at.
CELLS, _PIECES = 128, 24
# Levels of a category that have a value of their own.
_LEVELS = 64
# Ranks are those of counts, and to this share those of a column that is spread evenly.
_EVENLY = 0.05
# Deviations of its noise by which a cell stands out of a column, and by which all cells together
# must differ from even ones to be believed.
_STANDS_OUT, _CLEARLY = 4.0, 4.0
# Deviations by which rows must be missing to be missing.
_MISSING = 3.0
# Share of the rows of a law with numbers at the ends of their range, as indicators have them, where
# no cell is known to hold more than so many.
_SNAPPED, _KNOWN = 0.2, 0.2
# Smooth functions of a rank bend over half of it, rough ones anywhere.
_SMOOTH, _ROUGH = Matern(nu=2.5, lengthscale=0.5), Matern(nu=0.5, lengthscale=0.2)


@dataclass(frozen=True, eq=False)
class Column(ABC):
    """A number, or the indicators of a category, among the numbers of a row.

    ``places``: its own among them. ``mass``: the share of the rows in each of its cells.
    """

    places: tuple[int, ...]
    mass: FloatArray

    @abstractmethod
    def cells(self, rows: FloatArray) -> FloatArray:
        """The cell of each row."""

    @abstractmethod
    def scores(self, rows: FloatArray) -> FloatArray:
        """What kernels of all columns see of it, in its places."""

    @abstractmethod
    def pieces(self, rows: FloatArray) -> FloatArray:
        """What functions of it are made of: entries in [0, 1], with a norm of at most 1."""

    @abstractmethod
    def shapes(self) -> tuple[tuple[str, float, FloatArray], ...]:
        """Kinds of functions: name, expected share, and covariance of values at the pieces."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, count: int) -> FloatArray:
        """Values as frequent as cells are."""


@dataclass(frozen=True, eq=False)
class Numbers(Column):
    """A number between ``low`` and ``high``; beyond them functions of it stay as they are."""

    low: float
    high: float

    def _shares(self, rows: FloatArray) -> FloatArray:
        """Where in its range each value is."""
        width = self.high - self.low if self.high > self.low else 1.0
        return np.clip((rows[:, self.places[0]] - self.low) / width, 0.0, 1.0)

    def cells(self, rows: FloatArray) -> FloatArray:
        """Equal parts of the range."""
        return np.minimum(np.floor(self._shares(rows) * len(self.mass)), len(self.mass) - 1)

    @cached_property
    def _ranks(self) -> FloatArray:
        """At the edges of the cells."""
        mass = (1 - _EVENLY) * self.mass + _EVENLY / len(self.mass)
        return np.concatenate([[0.0], np.cumsum(mass / mass.sum())])

    @cached_property
    def _alone(self) -> BoolArray:
        """Cells that are worth a knot of their own."""
        return np.diff(self._ranks) >= 1 / _PIECES

    @cached_property
    def knots(self) -> FloatArray:
        """Ranks: one for each cell that holds many rows, and between them evenly."""
        ranks, alone = self._ranks, self._alone
        found: list[float] = []
        start = 0
        for end in [*np.flatnonzero(alone).tolist(), len(alone)]:
            width = float(ranks[end] - ranks[start])
            if end > start:
                count = max(1, round(width * _PIECES))
                found += (ranks[start] + (np.arange(count) + 0.5) / count * width).tolist()
            if end < len(alone):
                found.append(float(ranks[end] + ranks[end + 1]) / 2)
            start = end + 1
        return np.array(found if len(found) > 1 else [0.0, 1.0])

    def scores(self, rows: FloatArray) -> FloatArray:
        """Ranks."""
        ranks, cells = self._ranks, self.cells(rows).astype(np.int64)
        between = np.interp(self._shares(rows), np.linspace(0.0, 1.0, len(ranks)), ranks)
        middle = (ranks[cells] + ranks[cells + 1]) / 2
        return np.where(self._alone[cells], middle, between)[:, None]

    def pieces(self, rows: FloatArray) -> FloatArray:
        """Hats: how near each rank is to the two knots around it."""
        knots, places = self.knots, np.arange(len(rows))
        ranks = np.clip(self.scores(rows)[:, 0], knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, ranks) - 1, 0, len(knots) - 2)
        share = (ranks - knots[left]) / (knots[left + 1] - knots[left])
        found = np.zeros((len(rows), len(knots)))
        found[places, left], found[places, left + 1] = 1 - share, share
        return found

    def shapes(self) -> tuple[tuple[str, float, FloatArray], ...]:
        """Smooth and rough functions of the rank."""
        knots = self.knots[:, None]
        return ("column", 0.2, _SMOOTH(knots, knots)), ("rough column", 0.15, _ROUGH(knots, knots))

    def draw(self, generator: np.random.Generator, count: int) -> FloatArray:
        """Anywhere in a cell."""
        cells = generator.choice(len(self.mass), size=count, p=self.mass)
        shares = (cells + generator.random(count)) / len(self.mass)
        return (self.low + shares * (self.high - self.low))[:, None]


@dataclass(frozen=True, eq=False)
class Levels(Column):
    """A category as indicators; its last cell is that of rows without any.

    Rare levels of very many share a piece.
    """

    @cached_property
    def _piece(self) -> IntArray:
        """The piece of each level: the most frequent ones have their own."""
        order = np.argsort(-self.mass[:-1], kind="stable")
        found = np.empty(len(order), dtype=np.int64)
        found[order] = np.minimum(np.arange(len(order)), _LEVELS - 1)
        return found

    def cells(self, rows: FloatArray) -> FloatArray:
        """The largest indicator."""
        own = rows[:, list(self.places)]
        return np.where(own.max(axis=1) > 0, own.argmax(axis=1), len(self.places)).astype(float)

    def scores(self, rows: FloatArray) -> FloatArray:
        """Indicators as they are."""
        return rows[:, list(self.places)]

    def pieces(self, rows: FloatArray) -> FloatArray:
        """1 at the level of the row."""
        count = int(self._piece.max()) + 1
        pieces = np.append(self._piece, count)
        return np.eye(count + 1)[pieces[self.cells(rows).astype(np.int64)], :-1]

    def shapes(self) -> tuple[tuple[str, float, FloatArray], ...]:
        """A value for each level, all unrelated."""
        return (("category", 0.35, np.eye(int(self._piece.max()) + 1)),)

    def draw(self, generator: np.random.Generator, count: int) -> FloatArray:
        """Indicators of levels."""
        cells = generator.choice(len(self.mass), size=count, p=self.mass)
        return np.eye(len(self.mass))[cells, :-1]


@dataclass(frozen=True, eq=False)
class TableColumns:
    """All columns of a table."""

    columns: tuple[Column, ...]
    width: int  # numbers of a row

    @classmethod
    def even(
        cls, low: FloatArray, high: FloatArray, categories: Sequence[tuple[int, ...]] = ()
    ) -> "TableColumns":
        """Of columns that nothing is known of: every cell is as likely."""
        several = [each for each in categories if len(each) > 1]
        taken = {place for each in several for place in each}
        numbers = (
            Numbers((place,), np.full(CELLS, 1 / CELLS), float(low[place]), float(high[place]))
            for place in range(len(low))
            if place not in taken
        )
        levels = (
            Levels(each, np.append(np.full(len(each), 1 / len(each)), 0.0)) for each in several
        )
        return cls((*numbers, *levels), len(low))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cells each column has."""
        return tuple(len(column.mass) for column in self.columns)

    def cells(self, rows: FloatArray) -> FloatArray:
        """The cells of each row, one a column; -1 for a row that is not made of numbers."""
        sound = np.isfinite(rows).all(axis=1, keepdims=True)
        rows = np.where(sound, rows, 0.0)
        with np.errstate(all="ignore"):  # a warning would tell of a row
            found = np.stack([column.cells(rows) for column in self.columns], axis=1)
        return np.where(sound, found, -1.0)

    def counted(self, counts: FloatArray, deviation: float, rows: int) -> "TableColumns":
        """The same columns, their cells as frequent as noisy counts of so many rows say."""
        parts = np.split(counts, np.cumsum(self.sizes)[:-1])
        total, noise = counts.sum() / len(parts), deviation * sqrt(len(counts)) / len(parts)
        missing = total < rows - _MISSING * noise
        total = max(float(total), 1.0) if missing else float(max(rows, 1))
        return self._with([_frequencies(part, deviation, total) for part in parts])

    def seen(self, rows: FloatArray) -> "TableColumns":
        """The same columns, their cells as frequent as in public rows."""
        counts = [
            np.bincount(own.astype(np.int64), minlength=size)
            for own, size in zip(self.cells(rows).T, self.sizes, strict=True)
        ]
        return self._with([each / each.sum() for each in counts])

    def _with(self, masses: Sequence[FloatArray]) -> "TableColumns":
        pairs = zip(self.columns, masses, strict=True)
        return replace(self, columns=tuple(replace(column, mass=mass) for column, mass in pairs))

    def scores(self, rows: FloatArray) -> FloatArray:
        """Rows as kernels of all columns see them: ranks and indicators, in their places."""
        found = np.empty((len(rows), self.width))
        for column in self.columns:
            found[:, list(column.places)] = column.scores(rows)
        return found

    def pieces(self, rows: FloatArray) -> FloatArray:
        """The pieces of all columns, one column after the other."""
        return np.concatenate([column.pieces(rows) for column in self.columns], axis=1)

    def draw(self, generator: np.random.Generator, count: int) -> FloatArray:
        """Rows whose columns are drawn each by itself; some have numbers at the ends."""
        found = np.empty((count, self.width))
        for column in self.columns:
            found[:, list(column.places)] = column.draw(generator, count)
        snapped = generator.random(found.shape) < generator.random((count, 1))
        snapped &= generator.random((count, 1)) < _SNAPPED
        upper = generator.random(found.shape) < 0.5
        for column in self.columns:
            if isinstance(column, Numbers) and float(column.mass.max()) < _KNOWN:
                place = column.places[0]
                ends = np.where(upper[:, place], column.high, column.low)
                found[:, place] = np.where(snapped[:, place], ends, found[:, place])
        return found


def _frequencies(counts: FloatArray, deviation: float, total: float) -> FloatArray:
    """Shares of cells from noisy counts that should add up to a total.

    Cells that stand out of the noise keep their counts. The others share the rest: evenly, and as
    they were counted as far as all of them together differ from that by more than noise (James and
    Stein).
    """
    out = counts > _STANDS_OUT * deviation + total / len(counts)
    rest = max(0.0, total - float(counts[out].sum())) / max(1, int((~out).sum()))
    energy = float(((counts[~out] - rest) ** 2).sum())
    noise = (~out).sum() * deviation**2 * (1 + _CLEARLY * sqrt(2 / len(counts)))
    kept = max(0.0, 1 - noise / max(energy, 1e-300))
    found = np.where(out, counts, rest + kept * (counts - rest))
    return on_simplex(found / total)
