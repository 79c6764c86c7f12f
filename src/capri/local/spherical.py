"""Vectors of norm at most 1 as sphere reports, and the sum that reports stand for."""

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.local.randomness import DeviceRandomness
from capri.privacy.directions import RESOLUTION, Words, direction_sum
from capri.privacy.sphere import Sphere


def randomized(
    vectors: FloatArray, sphere: Sphere, randomness: DeviceRandomness
) -> tuple[Words, IntArray]:
    """A seed and the number of a direction for each vector: all that may leave a device."""
    count = len(vectors)
    tokens = randomness.seeds(count)
    units = on_sphere(vectors, randomness.rounding(count))
    coin = randomness.coin(count, sphere.chance)
    pick = randomness.below(sphere.choices(coin))
    return tokens, sphere.choose(sphere.nearest(tokens, units), coin, pick)


def on_sphere(vectors: FloatArray, uniform: FloatArray) -> FloatArray:
    """Round ``z``, ``|z| <= 1``, to a unit vector with mean ``z``.

    ``z / |z|`` with probability ``(1 + |z|) / 2``, else its opposite; at 0 the first axis.
    """
    vectors = vectors.copy()
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    nothing = norms == 0
    vectors[nothing, 0] = 1.0
    sign = np.where(uniform < (1 + norms) / 2, 1.0, -1.0)
    return np.asarray(vectors * (sign / np.where(nothing, 1.0, norms))[:, None])


def unbiased_sum(tokens: Words, numbers: IntArray, sphere: Sphere) -> FloatArray:
    """Estimate of the sum of the vectors behind some reports: ``sum +-V / shrinkage``."""
    total = direction_sum(tokens, numbers // 2, 1 - 2 * (numbers % 2), sphere.dimension)
    return np.asarray(total / (RESOLUTION * sphere.shrinkage))
