"""How to play between releases: sampling laws that are functions of what is public.

Any such law keeps the guarantee, as long as the plan's covariance is taken under the same law. A
law maps the pairs of some contexts, ``(n, actions, d)``, and the actions still active in each to
probabilities ``(n, actions)``. The law of one context does not depend on the others, to the last
bit: they are other people's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from capri.features import Basis
from capri.predictor import Predictor
from capri.typing import BoolArray, FloatArray, IntArray


class Law(ABC):
    """A public sampling law."""

    @abstractmethod
    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Probability of each action, 0 where it is not active."""


@dataclass(frozen=True)
class UniformLaw(Law):
    """Uniform on the active set, as in the paper (Alg. 1, line 12)."""

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """``1 / |X_r(c)|`` on the active set."""
        return np.asarray(active / active.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class ThompsonLaw(Law):
    """The law of the best action under the public belief, as frequencies over ``J`` draws.

    ``draws`` holds ``J`` functions as columns of basis coefficients. An action in the support has
    probability at least ``1/J``, which bounds its leverage, and the support shrinks by itself.
    """

    basis: Basis
    draws: FloatArray

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Share of the draws under which each active action is the best."""
        contexts, actions, _ = pairs.shape
        weights = self.basis.transform @ self.draws
        # One product per context: what one gets must not depend on those beside it, to the bit.
        values = self.basis.kernel_rows(pairs) @ weights
        values[~active] = -np.inf
        best = values.argmax(axis=1)
        count = self.draws.shape[1]
        rows = np.repeat(np.arange(contexts), count) * actions + best.ravel()
        frequency = np.bincount(rows, minlength=contexts * actions) / count
        return np.asarray(frequency.reshape(contexts, actions))


@dataclass(frozen=True, eq=False)
class InverseGapLaw(Law):
    """``p(x|c) = 1 / (K + gamma (mu(c,best) - mu(c,x)))``, the rest on the best (SquareCB).

    ``K`` counts the active actions of the context.
    """

    predictor: Predictor
    gamma: float

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Inverse-gap weights on the active set."""
        values = np.where(active, self.predictor(pairs), -np.inf)
        best = values.argmax(axis=1)
        rows = np.arange(len(values))
        count = active.sum(axis=1, keepdims=True)
        gap = values[rows, best][:, None] - np.where(active, values, 0.0)
        law = np.where(active, 1.0 / (count + self.gamma * gap), 0.0)
        law[rows, best] = 0.0
        law[rows, best] = 1.0 - law.sum(axis=1)
        return law


class LawTable:
    """Draws actions for contexts by number, from a table of their probabilities.

    >>> table = LawTable(np.array([[0.25, 0.75], [1.0, 0.0]]))
    >>> table.draw(np.array([0, 0, 1]), np.array([0.2, 0.3, 0.99]))
    (array([0, 1, 0]), array([0.25, 0.75, 1.  ]))
    """

    def __init__(self, law: FloatArray) -> None:
        self._law = law
        cumulative = np.cumsum(law, axis=1)
        cumulative /= cumulative[:, -1:]
        self._cumulative = cumulative

    def draw(self, rows: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """The first action with cumulative probability above the number, and its probability.

        Such an action never has probability 0.
        """
        if len(rows) < 64:
            chosen = (self._cumulative[rows] <= uniform[:, None]).sum(axis=1)
            return chosen, self._law[rows, chosen]
        low = np.zeros(len(rows), dtype=np.int64)
        high = np.full(len(rows), self._law.shape[1] - 1)
        # Bisection of all rows at once, without a (rows x actions) matrix.
        while (low < high).any():
            middle = (low + high) // 2
            above = self._cumulative[rows, middle] > uniform
            high = np.where(above, middle, high)
            low = np.where(above, low, middle + 1)
        return low, self._law[rows, low]
