"""Tests that rule actions out: is the best action surely better than this one?

Each test compares within a context, ``mu(c, best) - mu(c, x)`` against the width of that
difference, because errors that two actions share cancel. Widths change regret, never privacy.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from capri.features import Basis
from capri.predictor import Predictor
from capri.typing import BoolArray, FloatArray


class EliminationTest(ABC):
    """One public test. ``width`` is its typical width, for the record."""

    width: float

    @abstractmethod
    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For pairs ``(n, actions, d)``: how far each action's estimate trails the best, and the
        width of that difference."""

    def active(self, pairs: FloatArray) -> BoolArray:
        """Which actions of each context may still be the best."""
        gap, width = self.compare(pairs)
        return np.asarray(gap <= width)


@dataclass(frozen=True, eq=False)
class CommonWidth(EliminationTest):
    """The paper's rule: one width for all pairs, elimination at ``4 Delta``."""

    predictor: Predictor
    width: float

    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``mu(c, x) >= max mu(c, .) - 4 Delta`` keeps an action (Eqn prunning_sets)."""
        values = self.predictor(pairs)
        gap = values.max(axis=1, keepdims=True) - values
        return gap, np.full_like(gap, 4 * self.width)


@dataclass(frozen=True, eq=False)
class DifferenceTest(EliminationTest):
    """Widths of differences, as a sum of norms ``|difference^T M_i|``, plus terms per action.

    The estimate of a pair is ``v(w)^T coefficients``.
    """

    basis: Basis
    coefficients: FloatArray
    roots: tuple[FloatArray, ...]  # each already multiplied by its quantile or bound
    outside: float  # factor on the square root of what the basis leaves out of each pair
    width: float

    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``mu(c, best) - mu(c, x)`` and the width of that difference."""
        v = self.basis.coordinates(pairs)  # products below are one per context as well
        values = np.einsum("caj,j->ca", v, self.coefficients)
        rows, best = np.arange(len(pairs)), values.argmax(axis=1)
        width = np.zeros_like(values)
        for root in self.roots:
            image = v @ root
            width += np.linalg.norm(image - image[rows, best][:, None], axis=2)
        if self.outside:
            left_out = np.sqrt(self.basis.residual(pairs, v))
            width += self.outside * (left_out + left_out[rows, best][:, None])
        return values[rows, best][:, None] - values, width
