"""The pairs an epoch will play, with their probabilities: what the plan takes expectations over.

The pairs that a segment may play, before anybody says how often each context comes.

Rows that stand for the pool, and rows beside it of weight 0, with the play at each and the
coordinates of every pair. A law of contexts makes a support of them.
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.play import Conduct
from capri.epoch.problem import Problem
from capri.features import Function, Span
from capri.learners.context_law import ContextLaw
from capri.spaces import Actions, ContextPool, context_chunks

# Contexts that stand for a sampler's law, or for a pool too large to walk through.
_SAMPLE_CONTEXTS = 2048
# A pool of up to this many pairs is walked through whole.
_POOL_PAIRS = 1 << 20
# Pairs with positive probability whose features are held at once (150 coordinates: 80 MB).
# Over a pool of no more, expectations under any law are exact.
SUPPORT_PAIRS = 1 << 16


@dataclass(frozen=True, eq=False)
class Stage:
    """Public contexts with weights on which an epoch is planned, and the law at each.

    The whole pool where that is feasible (``is_pool``), else a fresh sample for every epoch.
    """

    contexts: FloatArray
    weights: FloatArray
    is_pool: bool
    law: FloatArray | None = None

    @classmethod
    def draw(cls, problem: Problem, generator: np.random.Generator) -> "Stage":
        """The stage of a coming epoch."""
        contexts = problem.contexts
        if isinstance(contexts, ContextPool):
            if contexts.size * problem.actions.count <= _POOL_PAIRS:
                return cls(contexts.rows, contexts.weights, True)
            rows = generator.choice(contexts.size, size=_SAMPLE_CONTEXTS, p=contexts.weights)
            sample = contexts.rows[rows]
        else:
            sample, _ = contexts.support(generator, _SAMPLE_CONTEXTS)
        return cls(sample, np.full(len(sample), 1.0 / len(sample)), False)


@dataclass(frozen=True, eq=False)
class Support:
    """Pairs ``(n, d)`` with probabilities that sum to 1, and their basis coordinates."""

    pairs: FloatArray
    weights: FloatArray
    features: FloatArray


def predicted(predictor: Function, actions: Actions, contexts: FloatArray) -> FloatArray:
    """Values of all pairs of each context: ``(n, n_actions)``, some contexts at a time."""
    values = np.empty((len(contexts), actions.count))
    for part in context_chunks(len(contexts), actions.count):
        values[part] = predictor(actions.pairs(contexts[part]))
    return values


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
