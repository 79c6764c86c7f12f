"""The messages of one cell and of four corners, for pure privacy.

Of one cell: a number at one place of a public partition.

With ``|t| <= 1`` in cell ``q`` of ``Q``, ``e`` in ``[0, 1]`` and integers ``L`` and ``K`` a user
sends one of three forms,

    answered   [T e_q,  0,      T^2 // (2 L),  E]      T = rint(L t),  E = rint(K e)
    missing    [0,      L e_q,  L^2 // (2 L),  0]
    bad        0

and any two of them are at most ``2 L + K`` apart in L1: ``u + v + (u^2 - v^2) / (2 L) <= 2 L`` for
``0 <= v <= u <= L``. So how large values are, and who did not answer and where, cost nothing beside
the value; the tail does. The noise is discrete Laplace. docs/proofs/cells.md has the proof.

Of two numbers and their product, split over four corners. With ``s`` in ``[0, 1]`` and ``r`` in
``[-1, 1]`` a visit sends

    L [ s (1+r)/2,  s (1-r)/2,  (1-s) (1+r)/2,  (1-s) (1-r)/2 ],

four shares of ``L`` in whole numbers, and a visit that is void sends 0. Shares are 0 or more and
add up to ``L``, so two messages are at most ``2 L`` apart in L1. The sums of ``s``, ``r`` and
``s r`` are linear in them:

    s = m_1 + m_2,    r = m_1 - m_2 + m_3 - m_4,    s r = m_1 - m_2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import sqrt

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.checks import between, truth, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.layout import LARGEST_SUM, MECHANISMS, Block, Layout, Norm, consecutive

# T^2 stays below 2^53, and one cell's rounding below the noise of any epsilon in use.
LARGEST_LEVEL = 1 << 24
_SMALLEST_LEVEL = 1 << 10
# Laplace noise exceeds so many scales with probability e^-700.
_SCALES = 700.0


@dataclass(frozen=True)
class RoundedCells:
    """Rows as integers within their bounds: all that a message is made of. A bad row is all 0."""

    cell: IntArray
    value: IntArray
    square: IntArray
    excess: IntArray
    missing: IntArray


@dataclass(frozen=True, kw_only=True)
class HistogramLayout(Layout):
    """A value in one of ``cells``, at most ``level`` ``L`` large. The noise is pure.

    ``missing``: those without a reward send ``L`` in a cell of their own. ``tail_level`` ``K``:
    what an excess of 1 counts; 0 leaves the tail out. Released numbers are sums of ``t`` by cell
    ("main"), of missing users by cell ("missing", and "count" in all), of ``t^2`` ("moment", where
    a missing user counts 1) and of ``e`` ("tail").
    """

    cells: int
    level: int = LARGEST_LEVEL
    tail_level: int = 0
    missing: bool = False
    norm: Norm = Norm.L1

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", whole("cells", self.cells))
        truth("missing", self.missing)
        object.__setattr__(self, "level", whole("level", self.level))
        object.__setattr__(self, "tail_level", whole("tail_level", self.tail_level, least=0))
        between("level", self.level, 2, LARGEST_LEVEL)
        between("tail_level", self.tail_level, 0, 2 * LARGEST_LEVEL)
        if self.norm is not Norm.L1:
            raise ConfigurationError("cells are compared in L1: their diameter is that of L1")

    @property
    def rank(self) -> int:
        """How many cells there are: the length of a row of features."""
        return self.cells

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """The cells, those of missing users, the moment and the tail. All shares are 1."""
        one, level, half = Fraction(1), self.level, self.level // 2
        sizes = {"main": (self.cells, one, level, float(level))}
        if self.missing:
            sizes["missing"] = (self.cells, one, level, float(level))
        sizes["moment"] = (1, one, half, level / 2)
        if self.tail_level:
            sizes["tail"] = (1, one, self.tail_level, float(self.tail_level))
        return consecutive(sizes)

    @property
    def diameter_squared(self) -> int:
        """``(2 L + K)^2``."""
        return (2 * self.level + self.tail_level) ** 2

    def rounded(
        self,
        whitened: FloatArray,
        values: FloatArray,
        *,
        clip_norm: float = 1.0,
        value_bound: float = 1.0,
        tail_bound: float = 1.0,
    ) -> RoundedCells:
        """Each row as integers within their bounds, whatever it holds.

        ``whitened``: the number of each row's cell; one outside of ``0 ... Q - 1`` makes a bad row.
        Or a row of features, which tells its cell by its largest entry: a 1 among zeros where a
        partition made it, so there is nothing to clip. Without an entry above 0, or with one that
        is not a number, the row is bad. A value that is not a number or infinite is missing.
        Nothing here raises or branches on what rows hold, and each row is rounded by itself.
        """
        for name, bound in (("value_bound", value_bound), ("tail_bound", tail_bound)):
            between(name, bound, 1e-150, 1e150)
        rows = len(values)
        if whitened.shape not in ((rows,), (rows, self.cells)) or values.ndim != 1:
            raise ConfigurationError(
                f"messages of {self.cells} cells need a cell a row or features of shape (rows, "
                f"{self.cells}), and one value a row, got {whitened.shape} and {values.shape}"
            )
        with np.errstate(all="ignore"):  # a warning would tell of a row
            cell, good = self._cells(whitened)
            given = np.isfinite(values)
            answered, missing = good & given, good & ~given & self.missing
            numbers = np.where(answered, values, 0.0)
            scaled = np.minimum(np.maximum(numbers / value_bound, -1.0), 1.0)
            excess = np.maximum(np.abs(numbers) - value_bound, 0.0) / tail_bound
            value = np.rint(scaled * self.level).astype(np.int64)
            return RoundedCells(
                cell=cell,
                value=value,
                # A missing user counts as if t were 1: with a moment of 0 it would be too far off.
                square=np.where(missing, self.level, value) ** 2 // (2 * self.level),
                excess=np.rint(np.minimum(excess, 1.0) * self.tail_level).astype(np.int64),
                missing=missing.astype(np.int64),
            )

    def _cells(self, whitened: FloatArray) -> tuple[IntArray, BoolArray]:
        """The cell of each row, and whether the row has one; 0 for a row without."""
        if whitened.ndim == 2:
            largest = whitened.max(axis=1)
            return whitened.argmax(axis=1), (largest > 0) & (largest < np.inf)
        good = (whitened >= 0) & (whitened < self.cells)
        return np.where(good, whitened, 0).astype(np.int64), good

    def messages(self, whitened: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """Every row's message; bounds as for :meth:`rounded`."""
        rows = self.rounded(whitened, values, **bounds)
        units = np.zeros((len(values), self.coordinates), dtype=np.int64)
        places, blocks = np.arange(len(values)), self.blocks
        units[places, rows.cell] = rows.value
        if self.missing:
            units[places, blocks["missing"].start + rows.cell] = self.level * rows.missing
        units[:, blocks["moment"].start] = rows.square
        if self.tail_level:
            units[:, -1] = rows.excess
        return units

    def total(self, whitened: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        rows = self.rounded(whitened, values, **bounds)
        units, blocks = np.zeros(self.coordinates, dtype=np.int64), self.blocks
        np.add.at(units, rows.cell, rows.value)
        if self.missing:
            np.add.at(units, blocks["missing"].start + rows.cell, self.level * rows.missing)
        units[blocks["moment"].start] = rows.square.sum()
        if self.tail_level:
            units[-1] = rows.excess.sum()
        return units

    def part(self, numbers: FloatArray, name: str) -> FloatArray:
        """The released numbers of a block, or the count of missing users: all of their cells."""
        if name == "count":
            return np.array([super().part(numbers, "missing").sum()])
        return super().part(numbers, name)

    def deviation(self, name: str) -> float:
        """Standard deviation of the noise on a released number of a block, or on the count."""
        if name == "count":
            return sqrt(self.cells) * super().deviation("missing")
        return super().deviation(name)

    def noise_scale(self, bound: float) -> float:
        """Deviation of the noise on ``V t`` in a cell, which is at most ``bound``."""
        return self.deviation("main") * bound

    def main(self, numbers: FloatArray, value_bound: float) -> FloatArray:
        """The sum of ``V t`` by cell in a released vector."""
        return np.asarray(value_bound * numbers[: self.cells])

    def mean_square(
        self, numbers: FloatArray, participants: int, answers: float
    ) -> tuple[float, float]:
        """``E[t^2]`` of those who answered, and the deviation of its noise."""
        total = float(self.part(numbers, "moment")[0]) - (participants - answers) * self.missing
        return total / answers, self.deviation("moment") / answers

    def mean_excess(self, numbers: FloatArray, answers: float) -> tuple[float, float]:
        """``E[e]`` of those who answered, and the deviation of its noise."""
        return float(self.part(numbers, "tail")[0]) / answers, self.deviation("tail") / answers


def histogram_layout(
    *,
    cells: int,
    length: int,
    budget: Budget | None,
    value_bound: float = 1.0,
    tail_share: float = 0.0,
    missing: bool = False,
    contributions: int = 1,
) -> HistogramLayout:
    """The finest grid whose sums fit 64 bits, and the noise that a budget needs on it.

    ``length``: the most messages in a sum. ``tail_share`` ``q``: ``K = 2 q L``, which costs the
    factor ``1 / (1 + q)``. ``contributions``: of one user at most; the noise grows with them.
    With noise of scale ``c L`` a sum fits if ``L (length + 700 c) < 2^62``.
    """
    between("value_bound", value_bound, 1e-150, 1e150)
    between("tail_share", tail_share, 0.0, 1.0)
    level = fitting_level(length, budget, 2 * (1 + tail_share), contributions)
    layout = HistogramLayout(
        cells=cells, level=level, tail_level=round(2 * tail_share * level), missing=missing
    )
    return layout if budget is None else layout.calibrated(budget, contributions)


def fitting_level(length: int, budget: Budget | None, diameter: float, contributions: int) -> int:
    """The finest level at which sums of ``length`` messages and their Laplace noise fit 64 bits.

    ``diameter``: of messages, in levels.
    """
    scale = 0.0
    if budget is not None:
        scale = MECHANISMS[Norm.L1].scale(diameter, budget, 1, contributions)
    level = min(LARGEST_LEVEL, int((LARGEST_SUM - 1) / (whole("length", length) + _SCALES * scale)))
    if level < _SMALLEST_LEVEL:
        promise = "no budget" if budget is None else str(budget)
        raise ConfigurationError(
            f"messages of an epoch of {length} rounds at {promise} do not fit 64-bit integers: "
            "shorten the epoch or raise epsilon"
        )
    return level


CORNERS = 4
# From corners to the sums of s r, s and r.
_READ = np.array([[1.0, -1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]])


@dataclass(frozen=True, kw_only=True)
class CornerLayout(Layout):
    """Four shares of ``level`` ``L``, compared in L1."""

    level: int = LARGEST_LEVEL
    norm: Norm = Norm.L1

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", whole("level", self.level))
        between("level", self.level, 2, LARGEST_LEVEL)
        if self.norm is not Norm.L1:
            raise ConfigurationError("corners are compared in L1: their diameter is that of L1")

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """The corners."""
        return consecutive({"main": (CORNERS, Fraction(1), self.level, float(self.level))})

    @property
    def diameter_squared(self) -> int:
        """``(2 L)^2``."""
        return 4 * self.level**2

    def messages(self, weights: FloatArray, values: FloatArray) -> IntArray:
        """Each row's message from ``s`` and ``r``, whatever they hold.

        Numbers outside of their ranges are clipped; a row with one that is not a number is void.
        """
        with np.errstate(all="ignore"):  # a warning would tell of a row
            good = ~(np.isnan(weights) | np.isnan(values))
            s = np.clip(np.where(good, weights, 0.0), 0.0, 1.0)
            up = (1 + np.clip(np.where(good, values, 0.0), -1.0, 1.0)) / 2
            inside = np.rint(self.level * s)
            first, third = np.rint(inside * up), np.rint((self.level - inside) * up)
            rest = self.level - inside - third
            found = np.stack([first, inside - first, third, rest], axis=1)
            return np.asarray((found * good[:, None]).astype(np.int64))

    def read(self, numbers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sums of ``s r``, ``s`` and ``r`` in released numbers, and their noise's deviations."""
        deviation = self.deviation("main") * np.sqrt((_READ**2).sum(axis=1))
        return _READ @ numbers, deviation


def corner_layout(*, length: int, budget: Budget | None, contributions: int = 1) -> CornerLayout:
    """The finest grid whose sums fit 64 bits, and the noise that a budget needs on it."""
    level = fitting_level(length, budget, 2.0, contributions)
    layout = CornerLayout(level=level)
    return layout if budget is None else layout.calibrated(budget, contributions)
