"""What a row tells of its columns: a cell of each, or products of scores of two at a time.

A row has ``m`` scores ``z`` and sends ``x_i x_j`` for ``i < j``, with ``x`` the integers nearest to
``U z / max(|z|, r)``; their squares add up to at most ``L^2``, else the row is emptied. Then

    |m - m'|_2^2 <= (|x x^T|_F^2 + |x' x'^T|_F^2) / 2 <= L^4,
    |m - m'|_1   <= sqrt(m (m - 1) / 2) |m - m'|_2,

the first as ``(x . x')^2 >= 0``, the second by Cauchy and Schwarz (docs/proofs/crowd.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.layout import Block, Layout, Norm, consecutive

# A score of the largest size in integers: its square is wide a grid for the noise of any budget in
# use, and an epoch's sum of squares and its noise fit 64 bits.
_LEVEL = 1 << 16
# More columns have more pairs than are ever told apart.
MOST_SCORES = 256


@dataclass(frozen=True, kw_only=True)
class PairLayout(Layout):
    """Products of ``scores`` numbers of a row, each pair once."""

    scores: int

    def __post_init__(self) -> None:
        between("scores", whole("scores", self.scores), 2, MOST_SCORES)

    @property
    def _units(self) -> int:
        """``U``: what a row of norm ``r`` is worth, with room for its rounding."""
        return _LEVEL - ceil(sqrt(self.scores) / 2) - 1

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """One block: all products have the same noise."""
        size = self.scores * (self.scores - 1) // 2
        worth = float(self._units**2)
        return consecutive({"products": (size, Fraction(1), _LEVEL**2, worth)})

    @property
    def diameter_squared(self) -> int:
        """``L^4``, and in L1 so many times as there are products."""
        return _LEVEL**4 * (self.blocks["products"].size if self.norm is Norm.L1 else 1)

    def noise_scale(self, bound: float) -> float:
        """Deviation of the noise on a product, whatever values are bounded by."""
        return self.deviation("products")

    def rounded(self, scores: FloatArray, clip_norm: float) -> IntArray:
        """``x``: within ``|x|^2 <= L^2`` in exact integers, whatever the scores are.

        A row with a score that is not a number, or whose square overflows, is 0.
        """
        if scores.ndim != 2 or scores.shape[1] != self.scores:
            raise ConfigurationError(
                f"rows must have {self.scores} scores each, got shape {scores.shape}"
            )
        with np.errstate(all="ignore"):  # a warning would tell of a row
            # In one order of memory, or a norm alone and in a batch would differ in its last bit.
            scores = np.ascontiguousarray(scores)
            norms = np.sqrt(np.einsum("ij,ij->i", scores, scores))
            good = np.isfinite(norms)
            scaled = scores * (self._units / np.maximum(norms, clip_norm))[:, None]
            cut = np.fmax(np.fmin(np.rint(scaled), _LEVEL), -_LEVEL)
            found = np.where(good[:, None], cut, 0.0).astype(np.int64)
            within = np.einsum("ij,ij->i", found, found) <= _LEVEL**2
            return np.asarray(found * within[:, None])

    def messages(
        self, features: FloatArray, values: FloatArray, *, clip_norm: float = 1.0, **bounds: float
    ) -> IntArray:
        """The products of each row of scores; ``values`` are not told."""
        rows = self.rounded(features, clip_norm)
        one, other = np.triu_indices(self.scores, 1)
        return rows[:, one] * rows[:, other]

    def total(
        self, features: FloatArray, values: FloatArray, *, clip_norm: float = 1.0, **bounds: float
    ) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        rows = self.rounded(features, clip_norm)
        return np.asarray((rows.T @ rows)[np.triu_indices(self.scores, 1)])


# What a count of 1 is in integers: wide enough a grid for the noise of any budget in use.
_COUNTED = 1 << 26


@dataclass(frozen=True, kw_only=True)
class CountLayout(Layout):
    """How often each cell of each column occurs; ``cells`` says how many cells each column has.

    A row has one cell ``q_j`` of the ``Q_j`` of every column and sends ``L e_{q_1}, ...,
    L e_{q_d}``;
    a row that is not made of cells sends 0. Two rows that share no cell are the farthest apart,

        |m - m'|_2^2 <= 2 d L^2,    |m - m'|_1 <= 2 d L,

    however fine the cells are.
    """

    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.cells or min(self.cells) < 1:
            raise ConfigurationError("every column needs a cell, and there must be a column")

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """One block: all counts have the same noise."""
        return consecutive({"counts": (sum(self.cells), Fraction(1), _COUNTED, float(_COUNTED))})

    @property
    def diameter_squared(self) -> int:
        """``2 d L^2``, and in L1 ``(2 d L)^2``."""
        twice = 2 * len(self.cells)
        return (twice * _COUNTED) ** 2 if self.norm is Norm.L1 else twice * _COUNTED**2

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
        np.put_along_axis(units, self._places(features), _COUNTED, axis=1)
        return units[:, :-1]  # rows without cells wrote into the last

    def total(self, features: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        places = self._places(features)
        counted = np.bincount(places[places >= 0], minlength=self.coordinates)
        return counted.astype(np.int64) * _COUNTED
