"""What linear rivals with a private belief share: optimistic play, in batches of given lengths."""

from abc import ABC
from collections.abc import Iterator
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.rivals.base import Rival
from capri.rivals.least_squares import optimistic
from capri.rivals.summed_belief import SummedBelief
from capri.rivals.tree_belief import TreeBelief


class OptimisticLinear(Rival, ABC):
    """Plays the action of largest upper bound; a rival brings features, belief and lengths."""

    _features: FloatArray  # (contexts, actions, dimension)
    _belief: SummedBelief | TreeBelief
    _lengths: Iterator[int]  # of the batches after the first

    @final
    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        belief = self._belief
        action = optimistic(self._features, context, belief.solution, belief.bonus)
        return action, np.ones(len(context))

    @final
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._belief.learn(self._features[context, action], reward / self._bound)
        return int(next(self._lengths, 1))
