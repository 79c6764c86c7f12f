"""How to play between releases: sampling laws that are functions of what is public.

Any such law keeps the guarantee, as long as the plan's covariance is taken under the same law. A
law maps the pairs of some contexts, ``(n, actions, d)``, and the actions still active in each to
probabilities ``(n, actions)``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from capri.features import Basis
from capri.predictor import Predictor
from capri.typing import BoolArray, FloatArray


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
        contexts, actions, dimension = pairs.shape
        weights = self.basis.transform @ self.draws
        kernel = self.basis.kernel(pairs.reshape(-1, dimension), self.basis.pivots)
        values = (kernel @ weights).reshape(contexts, actions, -1)
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
