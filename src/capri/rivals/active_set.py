"""The actions that are still in play in each context."""

from typing import final

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray


@final
class ActiveSet:
    """A table ``(contexts, actions)`` of what no test has ruled out; never empty in any context.

    >>> active = ActiveSet(1, 3)
    >>> active.eliminate(np.array([0.0, 0.9, 1.0]), np.full(3, 0.1))
    >>> active.table
    array([[False,  True,  True]])
    """

    def __init__(self, contexts: int, actions: int) -> None:
        self.table: BoolArray = np.ones((contexts, actions), dtype=np.bool_)

    def eliminate(self, mean: FloatArray, width: FloatArray) -> None:
        """Drop what lies surely below the largest ``mean - width`` of its context."""
        shape = self.table.shape
        mean, width = mean.reshape(shape), width.reshape(shape)
        lower = np.where(self.table, mean - width, -np.inf).max(axis=1, keepdims=True)
        self.table &= mean + width >= lower

    def draw(self, context: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """One active action per context, each equally likely, and that probability."""
        order = np.argsort(~self.table, axis=1, kind="stable")
        count = self.table.sum(axis=1)[context]
        place = np.minimum((uniform * count).astype(np.int64), count - 1)
        return order[context, place], 1.0 / count
