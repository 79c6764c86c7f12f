"""A public partition of pairs into cells: what a message of one cell speaks of.

A pair ``w`` lies in the cell whose centre is nearest to ``z(w) = P^T v(w)``,

    q(w) = argmax_q  z^T c_q - |c_q|^2 / 2,

with directions ``P`` and centres ``c_q`` that are fixed before the first decision of an epoch.
Every pair has a cell, however far away it is; a pair whose ``z`` is not a number has none.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.features import ProjectedFeatures, Span, row_by_row

# Draws from many points that a partition is fitted to, and steps of the fit.
_POINTS, _STEPS = 1500, 6
# Scores of pairs and centres that are held at once.
_SCORES = 1 << 20


@dataclass(frozen=True, eq=False)
class CellFeatures(ProjectedFeatures):
    """``psi(w) = e_q(w)``, a 1 among zeros: the row of zeros where there is no cell.

    ``directions`` ``P`` are ``(rank of the basis, d)``, ``centres`` ``(cells, d)``.
    """

    basis: Span
    directions: FloatArray
    centres: FloatArray
    tau: float

    @property
    def rank(self) -> int:
        """The number of cells."""
        return len(self.centres)

    @property
    def points(self) -> FloatArray:
        """There are none."""
        raise ConfigurationError("cells are not made of one kernel")

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``T P``: from the rows of the basis to ``z``."""
        return self.basis.on_rows(self.directions)

    @cached_property
    def _halves(self) -> FloatArray:
        """``|c_q|^2 / 2``."""
        return np.asarray(0.5 * np.einsum("ij,ij->i", self.centres, self.centres))

    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """The rows that the coordinates ``v(w)`` are made of."""
        return self.basis.rows(pairs)

    def sent(self, pairs: FloatArray) -> FloatArray:
        """The number of each pair's cell, NaN for none: the same steps for every pair by itself."""
        z = row_by_row(self.kernel_rows(pairs), self.to_whitened)
        inside: BoolArray = np.asarray(np.isfinite(z).all(axis=1))
        z = np.where(inside[:, None], z, 0.0)
        scores = row_by_row(z, np.ascontiguousarray(self.centres.T)) - self._halves
        return np.where(inside, scores.argmax(axis=1), np.nan)

    def sent_block(self, pairs: FloatArray) -> FloatArray:
        """The same of many public pairs at once: faster, rounded differently in each batch."""
        z = self.kernel_rows(pairs) @ self.to_whitened
        inside: BoolArray = np.asarray(np.isfinite(z).all(axis=1))
        return np.where(inside, nearest(np.where(inside[:, None], z, 0.0), self.centres), np.nan)

    def cells_of(self, coordinates: FloatArray) -> IntArray:
        """The cells of public pairs with these coordinates ``v(w)``."""
        return nearest(coordinates @ self.directions, self.centres)

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``e_q(w)`` for each pair."""
        return self._one_hot(self.sent(pairs))

    def whitened_block(self, pairs: FloatArray) -> FloatArray:
        """The same of many public pairs at once."""
        return self._one_hot(self.sent_block(pairs))

    def _one_hot(self, cells: FloatArray) -> FloatArray:
        found, inside = np.zeros((len(cells), self.rank)), np.flatnonzero(np.isfinite(cells))
        found[inside, cells[inside].astype(np.int64)] = 1.0
        return found

    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """``|psi(w)|^2``."""
        return np.isfinite(self.sent_block(pairs)).astype(np.float64)


def nearest(points: FloatArray, centres: FloatArray) -> IntArray:
    """The number of the centre nearest to each point, some points at a time."""
    halves = 0.5 * np.einsum("ij,ij->i", centres, centres)
    found = np.empty(len(points), dtype=np.int64)
    step = max(1, _SCORES // len(centres))
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        found[part] = (points[part] @ centres.T - halves).argmax(axis=1)
    return found


def summed(rows: FloatArray, cells: IntArray, count: int) -> FloatArray:
    """The sum of the rows of each cell."""
    from scipy.sparse import csr_array

    places = np.arange(len(rows))
    chooses = csr_array((np.ones(len(rows)), (cells, places)), shape=(count, len(rows)))
    return np.asarray(chooses @ rows)


def beginnings(
    points: FloatArray, weights: FloatArray, count: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Some weighted points that stand for all, and far-apart ones of them in an order (k-means++).

    Each is drawn by weight and squared distance from those before it, so the first of them are
    beginnings of a coarser partition. Fewer than ``count`` where points coincide.
    """
    if len(points) > _POINTS:
        chosen = generator.choice(len(points), size=_POINTS, p=weights / weights.sum())
        points, weights = points[chosen], np.full(_POINTS, 1 / _POINTS)
    first = [int(generator.choice(len(points), p=weights / weights.sum()))]
    away = np.full(len(points), np.inf)
    while len(first) < count:
        difference = points - points[first[-1]]
        away = np.minimum(away, np.einsum("ij,ij->i", difference, difference))
        reach = np.cumsum(away * weights)
        if not reach[-1] > 0:
            break
        first.append(int(np.searchsorted(reach, generator.random() * reach[-1], side="right")))
    return points, weights, np.asarray(first[:count], dtype=np.int64)


def centres_of(points: FloatArray, weights: FloatArray, centres: FloatArray) -> FloatArray:
    """Centres of weighted public points from these beginnings: k-means. Empty cells are dropped."""
    for _ in range(_STEPS):
        cells = nearest(points, centres)
        mass = np.bincount(cells, weights, minlength=len(centres))
        kept: BoolArray = mass > 0
        sums = summed(points * weights[:, None], cells, len(centres))
        centres = sums[kept] / mass[kept, None]
    return np.ascontiguousarray(centres)
