"""The binary-tree mechanism: noisy prefix sums of a stream, one noise draw per node.

Dwork, Naor, Pitassi & Rothblum (2010); Chan, Shi & Song (2011, Algorithm 2). Node ``(level, i)``
holds the sum of ``2^level`` consecutive values plus noise of its own. The prefix after ``t`` steps
is the sum of the nodes that the binary digits of ``t`` name, so at most ``levels`` draws of noise
are in any prefix; a value is in at most one node per level, so the vector of all nodes has
``sqrt(levels)`` times the sensitivity of one node.

Shared by the rivals. They are simulations: noise comes from a seeded generator and protects nobody.
"""

from collections.abc import Callable
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError

# Gives one fresh draw of a node's noise.
NodeNoise = Callable[[], FloatArray]


def tree_levels(steps: int) -> int:
    """Levels of a tree that answers the prefixes ``1 ... steps``: the binary digits of ``steps``.

    >>> [tree_levels(steps) for steps in (1, 2, 3, 4, 1023, 1024)]
    [1, 2, 2, 3, 10, 11]
    """
    return int(steps).bit_length()


@final
class TreeSums:
    """Noisy prefix sums of at most ``steps`` arrays, in memory for ``levels`` of them.

    ``noise()`` draws the noise of one node; None adds none, and prefixes are then exact.

    >>> tree = TreeSums(4, shape=(), noise=None)
    >>> [float(tree.add(np.array(value))) for value in (1.0, 2.0, 3.0, 4.0)]
    [1.0, 3.0, 6.0, 10.0]
    >>> tree.nodes_in_prefix
    1
    """

    def __init__(self, steps: int, *, shape: tuple[int, ...], noise: NodeNoise | None) -> None:
        if steps < 1:
            raise ConfigurationError(f"a tree needs at least 1 step, got {steps}")
        self._steps = steps
        self._noise = noise
        self._shape = shape
        self.taken = 0  # values added so far
        # Per level: the exact sum of the open node, and the closed node's noise.
        self._sums: list[FloatArray | None] = [None] * tree_levels(steps)
        self._drawn: list[FloatArray | None] = [None] * tree_levels(steps)

    @property
    def nodes_in_prefix(self) -> int:
        """Draws of noise in the prefix that stands now: the ones among the binary digits."""
        return self.taken.bit_count()

    def add(self, value: FloatArray) -> FloatArray:
        """Add a value and return the noisy sum of all values so far (Chan et al., Algorithm 2).

        The step closes the node at the level of the lowest one of ``t``; it takes over the sums
        below it, whose nodes and noise are needed no more.
        """
        if self.taken == self._steps:
            raise ConfigurationError(f"the tree was built for {self._steps} steps: all are taken")
        if np.shape(value) != self._shape:
            raise ConfigurationError(
                f"a value of shape {self._shape} is needed, got {np.shape(value)}"
            )
        self.taken += 1
        level = (self.taken & -self.taken).bit_length() - 1
        total = np.array(value, dtype=np.float64)
        for below in range(level):
            closed = self._sums[below]
            total += 0.0 if closed is None else closed
            self._sums[below] = self._drawn[below] = None
        self._sums[level] = total
        self._drawn[level] = None if self._noise is None else self._noise()
        return self.prefix()

    def prefix(self) -> FloatArray:
        """The noisy sum of all values so far; asking again draws nothing anew."""
        total = np.zeros(self._shape)
        for level in reversed(range(len(self._sums))):
            closed, noise = self._sums[level], self._drawn[level]
            if closed is not None:
                total += closed
            if noise is not None:
                total += noise
        return total
