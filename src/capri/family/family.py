"""The candidates as priors on one set of coefficients."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.family.basis import ProductBasis
from capri.family.factor import Candidates

# Shares of E f^2 that are expected of the four kinds of effects.
CONSTANT, ACTION, CONTEXT, INTERACTION = 0.3, 0.25, 0.15, 0.6


@dataclass(frozen=True)
class Part:
    """One candidate: which kernel on contexts and on actions, -1 for the constant."""

    context: int
    action: int
    share: float
    name: str


@dataclass(frozen=True, eq=False)
class Family:
    """A basis of products, and candidates for both of its sides.

    ``theta ~ N(0, sum_k t_k C_k (x) A_k)``: the prior that the evidence weighs.
    """

    basis: ProductBasis
    contexts: Candidates
    actions: Candidates

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Constant, main effects of actions and of contexts, and every interaction."""
        contexts, actions = _numbered(self.contexts), _numbered(self.actions)
        found = [Part(-1, -1, CONSTANT, "constant")]
        found += [Part(-1, j, ACTION * s, f"action: {n}") for j, s, n in actions]
        found += [Part(i, -1, CONTEXT * s, f"context: {n}") for i, s, n in contexts]
        found += [
            Part(i, j, INTERACTION * s * t, f"interaction: {n}, {m}")
            for i, s, n in contexts
            for j, t, m in actions
        ]
        return tuple(found)

    def covariances(self) -> FloatArray:
        """``C_k (x) A_k`` on the chosen products, ``(parts, rank, rank)``."""
        contexts, actions = self.contexts.and_constant, self.actions.and_constant
        left, right = self.basis.left, self.basis.right
        return np.array(
            [
                contexts[part.context][np.ix_(left, left)]
                * actions[part.action][np.ix_(right, right)]
                for part in self.parts
            ]
        )


def _numbered(candidates: Candidates) -> list[tuple[int, float, str]]:
    pairs = zip(candidates.shares, candidates.names, strict=True)
    return [(number, float(share), name) for number, (share, name) in enumerate(pairs)]
