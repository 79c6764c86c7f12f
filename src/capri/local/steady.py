"""Arithmetic that takes the same time for every user: what a device computes with a bundle.

Processors take a hundred times longer for numbers below 1e-308 than for others, NaN ends a search
early, and a bundle comes from somebody who would like to know why a device took long. So numbers
keep a distance from both: with

    contexts, rewards, arrays of the bundle     0, or at least 1e-60 in size
    kernel values                               0, or at least 1e-100 and at most 1e60
    coordinates v(w), whitened features psi(w)  0, or at least 1e-60

and arrays of at most 1e15, products and sums of them are multiples of numbers above 1e-300 and stay
below 1e300, wherever a device forms them. Only what is far below any rounding error is changed.
"""

from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.features import Basis, LowRankFeatures
from capri.kernels.steady import without_tiny

LEAST = 1e-60


def settled(values: FloatArray) -> FloatArray:
    """The same numbers, in place, with 0 for those that are closer to it than ``LEAST``."""
    return without_tiny(values, LEAST)


class SteadyBasis(Basis):
    """A basis whose coordinates are settled: they are multiplied once more by tests."""

    def coordinates(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape."""
        return settled(super().coordinates(pairs))


class SteadyFeatures(LowRankFeatures):
    """Features whose squares and products with rewards are ordinary numbers."""

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``T A``: public, like both factors."""
        return settled(np.ascontiguousarray(self.basis.matrix @ self.whitening))

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)``, one row per pair."""
        return settled(super().whitened(pairs))
