"""The pairs that a segment may play, before anybody says how often each context comes.

Rows that stand for the pool, and rows beside it of weight 0 (:mod:`capri.learners.whereabouts`),
with the play at each and the coordinates of every pair. A law of contexts makes a support of them.
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.play import Conduct
from capri.features import Span
from capri.learners.law import ContextLaw
from capri.learners.support import SUPPORT_PAIRS, Stage, Support

# Coordinates of up to so many numbers are kept from planning to reading: 16 MB.
_KEPT = 1 << 21


@dataclass(frozen=True, eq=False)
class Gathered:
    """Pairs with the row of their context and the chance of their action there.

    The first rows are ``contexts`` with the pool's ``weights``, the others those elsewhere.
    ``kept``: the same pairs would be found again, and are worth keeping. ``sampled``: the contexts
    are a sample of those that may come.
    """

    contexts: FloatArray
    weights: FloatArray
    pairs: FloatArray
    features: FloatArray
    row: IntArray
    chance: FloatArray
    kept: bool
    sampled: bool

    @classmethod
    def of(
        cls,
        basis: Span,
        stage: Stage,
        conduct: Conduct,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> "Gathered":
        """Of the stage's contexts with positive weight; of too many pairs, those of some."""
        contexts, weights, law = stage.contexts, stage.weights, stage.law
        if law is None:
            law = conduct.expected(contexts)
        present = weights > 0
        if not present.all():
            contexts, weights, law = contexts[present], weights[present], law[present]
        used = np.count_nonzero(law)
        if drawn := used > SUPPORT_PAIRS:
            fewer = max(1, int(len(contexts) * SUPPORT_PAIRS / used))
            chosen = generator.choice(len(contexts), size=fewer, p=weights)
            contexts, law = contexts[chosen], law[chosen]
            weights = np.full(fewer, 1.0 / fewer)
        rows = contexts
        if len(elsewhere):
            rows = np.concatenate([contexts, elsewhere])
            law = np.concatenate([law, conduct.expected(elsewhere)])
        row, action = np.nonzero(law)
        pairs, features = basis.played(conduct.actions, rows, row, action)
        kept = not drawn and features.size <= _KEPT
        sampled = bool(drawn) or not stage.is_pool
        return cls(contexts, weights, pairs, features, row, law[row, action], kept, sampled)

    @property
    def rows(self) -> int:
        """Rows of the pool that stand here; those elsewhere have higher numbers."""
        return len(self.contexts)

    def support(self, law: ContextLaw) -> Support:
        """The pairs with their probabilities under a law of contexts."""
        weights = np.concatenate(law.weights(self.contexts, self.weights))
        chances = weights[self.row] * self.chance
        on = chances > 0
        if on.all():
            return Support(self.pairs, chances, self.features)
        return Support(self.pairs[on], chances[on], self.features[on])
