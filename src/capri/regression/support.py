"""Where rows are, as far as releases tell, and what a function may do where they are not.

Near the rows the posterior says what is not known. Away from them it trusts the kernel that the
rows preferred, and rows cannot speak of where they are not. So a function is given back there the
freedom of the public prior: between a point and the nearest of the rows, at distance ``r`` beyond
the usual one, it changes with variance

    2 S (1 - exp(-(r / l)^2 / 2)),   l = sqrt(d) / 4 widths of the box,

``S`` the expected mean square of a function. The rows are those of the realised law: a public
sample, drawn as the released second moments say.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.spatial.distance import cdist

from capri.arrays import FloatArray

# Rows that stand for the law.
_ROWS = 2000
# The usual distance from a row to its nearest neighbour is exceeded by this share of them.
_UNUSUAL = 0.05
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Support:
    """Rows of the realised law in widths of the box, and the usual distance between neighbours."""

    rows: FloatArray
    width: FloatArray
    usual: float
    variance: float

    @classmethod
    def of(cls, rows: FloatArray, width: FloatArray, variance: float) -> "Support":
        """From a sample of the law; ``variance`` is that of a function of the public prior."""
        width = np.where(width > 0, width, 1.0)
        scaled = np.unique(rows[:_ROWS] / width, axis=0)
        if len(scaled) == 1:
            return cls(rows=scaled, width=width, usual=0.0, variance=variance)
        distances = np.empty(len(scaled))
        for start in range(0, len(scaled), _ROWS_AT_ONCE):
            block = cdist(scaled[start : start + _ROWS_AT_ONCE], scaled)
            block[np.arange(len(block)), start + np.arange(len(block))] = np.inf
            distances[start : start + len(block)] = block.min(axis=1)
        usual = float(np.quantile(distances, 1 - _UNUSUAL))
        return cls(rows=scaled, width=width, usual=usual, variance=variance)

    @property
    def points(self) -> FloatArray:
        """Rows of the law, as they are, in an order that has nothing to do with where they lie."""
        mixed = np.random.default_rng(0).permutation(self.rows)
        return np.asarray(mixed * self.width)

    def lack(self, rows: FloatArray) -> FloatArray:
        """Variance that is added for each row: 0 among the rows of the law."""
        found = np.empty(len(rows))
        scaled = rows / self.width
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            near = cdist(scaled[start : start + _ROWS_AT_ONCE], self.rows).min(axis=1)
            found[start : start + len(near)] = near
        beyond = np.maximum(found - self.usual, 0.0) / (sqrt(self.rows.shape[1]) / 4)
        return np.asarray(2 * self.variance * -np.expm1(-(beyond**2) / 2))
