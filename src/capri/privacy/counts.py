"""How often each cell of each column occurs: one 1 a column, all columns in one message.

A row has one cell ``q_j`` of the ``Q_j`` of every column and sends ``L e_{q_1}, ..., L e_{q_d}``; a
row that is not made of cells sends 0. Two rows that share no cell are the farthest apart,

    |m - m'|_2^2 <= 2 d L^2,    |m - m'|_1 <= 2 d L,

however fine the cells are. docs/privacy.md has the proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.layout import Block, Layout, Norm, consecutive

# What a count of 1 is in integers: wide enough a grid for the noise of any budget in use.
_LEVEL = 1 << 26


@dataclass(frozen=True, kw_only=True)
class CountLayout(Layout):
    """Counts of the cells of several columns; ``cells`` says how many each column has."""

    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.cells or min(self.cells) < 1:
            raise ConfigurationError("every column needs a cell, and there must be a column")

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """One block: all counts have the same noise."""
        return consecutive({"counts": (sum(self.cells), Fraction(1), _LEVEL, float(_LEVEL))})

    @property
    def diameter_squared(self) -> int:
        """``2 d L^2``, and in L1 ``(2 d L)^2``."""
        columns = len(self.cells)
        return (2 * columns * _LEVEL) ** 2 if self.norm is Norm.L1 else 2 * columns * _LEVEL**2

    def noise_scale(self, bound: float) -> float:
        """Deviation of the noise on a count, whatever values are bounded by."""
        return self.deviation("counts")

    def _places(self, cells: FloatArray) -> IntArray:
        """The place of every cell in a message; -1 for all of a row that has one elsewhere."""
        good = ((cells >= 0) & (cells < np.array(self.cells))).all(axis=1, keepdims=True)
        starts = np.concatenate([[0], np.cumsum(self.cells)[:-1]])
        return np.where(good, np.where(good, cells, 0).astype(np.int64) + starts, -1)

    def messages(self, features: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The message of each row of cells; ``values`` are not told."""
        units = np.zeros((len(features), self.coordinates + 1), dtype=np.int64)
        np.put_along_axis(units, self._places(features), _LEVEL, axis=1)
        return units[:, :-1]  # rows without cells wrote into the last

    def total(self, features: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        places = self._places(features)
        counted = np.bincount(places[places >= 0], minlength=self.coordinates)
        return counted.astype(np.int64) * _LEVEL
