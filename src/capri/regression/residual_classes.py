"""Residuals in classes: how they are told to a release, and the distribution that comes back.

Residuals are cut into ``K`` classes at fixed edges. A class is told by its row of a Hadamard
matrix without the first column, ``k = K - 1`` targets that are 1 or -1. Their means give

    P(class c) = (1 + sum_j H_cj E[t_j]) / K,

and sums of these the distribution function ``F`` at the edges. A target of size 1 is the most that
the gate takes, and costs no more than a smaller one. With noise ``sigma sqrt(k)`` on each, ``F`` at
edge ``i`` has the noise

    sigma sqrt(k i (K - i)) / K:

in the middle that of cumulative indicators, ``sigma sqrt(k) / 2`` at every edge, and less at the
ends. Indicators of the classes themselves have ``sqrt(K^2 / 4 k)`` times as much everywhere.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtr, ndtri

from capri.arrays import FloatArray

# Probabilities closer to 0 or 1 than this are not told apart from it.
_LEAST = 0.002
# Added to the change of normal scores between two edges: a distribution has a density.
_STEEPER = 1e-3
# The normal score that stands for certainty.
_FAR = 8.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualClasses:
    """Classes between increasing edges; with those below and above them a power of 2."""

    edges: FloatArray

    @property
    def _signs(self) -> FloatArray:
        return np.asarray(hadamard(len(self.edges) + 1, dtype=np.float64)[:, 1:])

    def codes(self, residuals: FloatArray) -> FloatArray:
        """The targets that tell the class of each; NaN for what is not a finite number."""
        codes = self._signs[np.searchsorted(self.edges, residuals)]
        return np.where(np.isfinite(residuals)[:, None], codes, np.nan)

    def below(self, means: FloatArray) -> FloatArray:
        """``F`` at the edges, from means of the targets, one row for each distribution.

        Sorted: of noisy values of an increasing function that is never farther from it.
        """
        chances = (1 + means @ self._signs.T) / (len(self.edges) + 1)
        return np.sort(np.cumsum(chances, axis=1)[:, :-1], axis=1)

    def distributions(self, means: FloatArray) -> "Distributions":
        """Normal scores ``z = ndtri(F)``, linear between edges: exact where targets are Gaussian.

        Beyond the last edge they go on as from the middle to it.
        """
        edges, middle = self.edges, len(self.edges) // 2
        scores = ndtri(np.clip(self.below(means), _LEAST, 1 - _LEAST))
        scores += _STEEPER * (np.arange(len(edges)) - middle)
        ends, last, far = edges[[0, -1]], scores[:, [0, -1]], np.array([-_FAR, _FAR])
        beyond = ends + (ends - edges[middle]) / (last - scores[:, [middle]]) * (far - last)
        inner, outer = np.tile(edges, (len(means), 1)), np.tile(far, (len(means), 1))
        return Distributions(
            scores=np.column_stack([outer[:, 0], scores, outer[:, 1]]),
            values=np.column_stack([beyond[:, 0], inner, beyond[:, 1]]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Distributions:
    """One in each row: the values at which ``ndtri(F)`` has these scores, both increasing."""

    scores: FloatArray
    values: FloatArray

    def quantiles(self, chances: FloatArray) -> FloatArray:
        """The same quantiles of all: one column each."""
        at = np.broadcast_to(ndtri(chances), (len(self.scores), len(chances)))
        return _between(at, self.scores, self.values)

    def chances(self, values: FloatArray) -> FloatArray:
        """``F`` at values of each row."""
        return np.asarray(ndtr(_between(values, self.values, self.scores)))


def _between(at: FloatArray, knots: FloatArray, heights: FloatArray) -> FloatArray:
    """Linear interpolation; each row has knots of its own."""
    right = (knots[:, :, None] <= at[:, None, :]).sum(axis=1).clip(1, knots.shape[1] - 1)
    (low, start), (high, end) = (
        [np.take_along_axis(each, place, axis=1) for each in (knots, heights)]
        for place in (right - 1, right)
    )
    return np.asarray(start + np.clip((at - low) / (high - low), 0, 1) * (end - start))
