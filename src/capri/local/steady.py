"""Arithmetic that takes the same time for every user: what a device computes with a bundle.

Processors take a hundred times longer for numbers below 1e-308 than for others, NaN ends a search
early, and a bundle comes from somebody who would like to know why a device took long. So numbers
keep a distance from both: with

    contexts, rewards, arrays of the bundle     0, or at least 1e-60 in size
    kernel values                               0, or at least 1e-100 and at most 1e60
    coordinates v(w), whitened features psi(w)  0, or at least 1e-60
    scores, features u(c) and z(x) of a product 0, or at least 1e-60; features at most 1e35

and arrays of at most 1e15, products and sums of them are multiples of numbers above 1e-300 and stay
below 1e300, wherever a device forms them. Only what is far below any rounding error is changed.
"""

from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.family.basis import ProductBasis
from capri.family.factor import FARTHEST_SCORE, Factor, Scores
from capri.features import Basis, LowRankFeatures, row_by_row
from capri.kernels.steady import without_tiny

LEAST = 1e-60
# Products of two features stay below those of a kernel and an array.
_MOST_FEATURE = 1e35


def settled(values: FloatArray) -> FloatArray:
    """The same numbers, in place, with 0 for those that are closer to it than ``LEAST``."""
    return without_tiny(values, LEAST)


class SteadyBasis(Basis):
    """A basis whose coordinates are settled: they are multiplied once more by tests."""

    def coordinates(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape."""
        return settled(super().coordinates(pairs))


class SteadyScores(Scores):
    """Scores on a common scale that are settled before and after they are turned."""

    def __call__(self, rows: FloatArray) -> FloatArray:
        """The scores of each row, by itself."""
        scores = (rows - self.centre) * self.rate
        np.maximum(scores, -FARTHEST_SCORE, out=scores)
        np.minimum(scores, FARTHEST_SCORE, out=scores)
        settled(scores)
        return scores if self.axes is None else settled(row_by_row(scores, self.axes))


class SteadyFactor(Factor):
    """Features of one side that are settled, and limited: they are multiplied by the other's."""

    def __call__(self, rows: FloatArray) -> FloatArray:
        """``u`` of each row."""
        found = super().__call__(rows)
        np.maximum(found, -_MOST_FEATURE, out=found)
        np.minimum(found, _MOST_FEATURE, out=found)
        return settled(found)


class SteadyProductBasis(ProductBasis):
    """Products that are settled; both factors are steady."""

    def _products(self, u: FloatArray, z: FloatArray) -> FloatArray:
        return settled(super()._products(u, z))

    def _added_up(self, weights: FloatArray) -> FloatArray:
        return settled(super()._added_up(weights))


class SteadyFeatures(LowRankFeatures):
    """Features whose squares and products with rewards are ordinary numbers."""

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``T A``: public, like both factors. Products are coordinates already: ``T = I``."""
        if isinstance(self.basis, ProductBasis):
            return self.whitening
        return settled(np.ascontiguousarray(self.basis.matrix @ self.whitening))

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)``, one row per pair."""
        return settled(super().whitened(pairs))
