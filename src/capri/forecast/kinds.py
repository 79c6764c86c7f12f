"""Kinds of functions that a forecast plays: nobody knows which of them the truth is.

All are made of the public contexts and actions by the family of kernel "auto"
(:mod:`capri.family`): features ``u(c)`` and ``z(x)``, each with mean 0 and mean square 1, and

    f(c, x) = t_0 g + t_1 z^T a + t_2 u^T b + t_3 u^T M z

with Gaussian coefficients that have the covariance of one candidate kernel on each side.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.family import Candidates, Factor, family_of
from capri.learners.belief import PRIOR_SECOND_MOMENT
from capri.spaces import Actions, ContextPool, context_chunks

TOLD = "told"

# Functions reach at most this share of the reward bound: beyond it rewards would be clipped.
_LARGEST = 0.9


@dataclass(frozen=True)
class Kind:
    """Shares of the four effects, and which candidate gives their shape.

    ``context`` and ``action`` are places among the candidates, from 0 for the first to 1 for the
    last: contexts are linear at 0, then from rough to smooth; actions from rough to smooth.
    """

    name: str
    constant: float
    action_share: float
    context_share: float
    interaction: float
    context: float
    action: float


_KINDS = (
    Kind("rough", 0.2, 0.2, 0.1, 0.5, context=0.34, action=0.0),
    Kind("mostly actions", 0.2, 0.5, 0.1, 0.2, context=0.67, action=0.0),
    Kind("linear", 0.2, 0.2, 0.1, 0.5, context=0.0, action=0.5),
    Kind("smooth", 0.2, 0.2, 0.1, 0.5, context=1.0, action=1.0),
    Kind("context-free", 0.3, 0.7, 0.0, 0.0, context=0.0, action=0.5),
)
FAMILY = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, eq=False)
class FamilyFunctions:
    """The family of a pool and its actions, to draw functions from."""

    pool: ContextPool
    actions: Actions
    context: tuple[Factor, Candidates]
    action: tuple[Factor, Candidates]

    @classmethod
    def of(
        cls, pool: ContextPool, actions: Actions, generator: np.random.Generator
    ) -> "FamilyFunctions":
        """From public rows; the generator chooses among them where they are many."""
        family = family_of(pool, actions, max_rank=1, generator=generator)
        basis = family.basis
        return cls(pool, actions, (basis.context, family.contexts), (basis.action, family.actions))

    def draw(
        self, kind: Kind, scale: float, bound: float, generator: np.random.Generator
    ) -> FloatArray:
        """``f`` for every context of the pool and every action.

        ``E f^2 = 0.1 scale^2`` under uniform play, as far as ``|f|`` stays below the bound.
        """
        context, of_context = self.context
        action, of_action = self.action
        left = _root(of_context, kind.context, context.width)
        right = _root(of_action, kind.action, action.width)
        coefficients = sqrt(kind.interaction) * (
            left @ generator.standard_normal((context.width, action.width)) @ right.T
        )
        coefficients[0] += sqrt(kind.action_share) * right @ generator.standard_normal(action.width)
        coefficients[:, 0] += (
            sqrt(kind.context_share) * left @ generator.standard_normal(context.width)
        )
        coefficients[0, 0] += sqrt(kind.constant) * generator.standard_normal()
        means = np.empty((self.pool.size, self.actions.count))
        for part in context_chunks(self.pool.size, self.actions.count):
            own, brought = self.actions.parts(self.pool.rows[part])
            weights = context(own) @ coefficients
            z = action(brought.reshape(-1, brought.shape[-1])).reshape(*brought.shape[:2], -1)
            means[part] = np.einsum("cj,caj->ca", weights, z)
        size = sqrt(float(self.pool.weights @ (means**2).mean(axis=1)))
        largest = float(np.abs(means).max())
        if largest == 0:
            return means
        return means * min(sqrt(PRIOR_SECOND_MOMENT) * scale / size, _LARGEST * bound / largest)


def _root(candidates: Candidates, place: float, width: int) -> FloatArray:
    """A root of the covariance at a place among the candidates; 0 where there are none."""
    count = len(candidates.names)
    if count == 0:
        return np.zeros((width, width))
    values, vectors = np.linalg.eigh(candidates.covariances[round(place * (count - 1))])
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
