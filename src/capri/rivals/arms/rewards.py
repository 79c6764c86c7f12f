"""Rewards as multi-armed rivals see them: in [0, 1], and their private means."""

import numpy as np

from capri.arrays import FloatArray


def unit_rewards(reward: FloatArray, bound: float) -> FloatArray:
    """Rewards of ``[-bound, bound]`` as numbers of [0, 1]."""
    return np.asarray((reward / bound + 1) / 2)


def private_means(
    sums: FloatArray, pulls: int, epsilon: float | None, generator: np.random.Generator
) -> FloatArray:
    """``sums / R + Laplace(1 / (eps R))``: replacing a reward of [0, 1] moves one sum by 1."""
    if epsilon is not None:
        sums = sums + generator.laplace(scale=1 / epsilon, size=sums.shape)
    return np.asarray(sums / pulls)
