"""Public random directions: what a seed in a report stands for.

Everybody expands the same seed to the same direction. Privacy does not rest on this generator, only
the absence of bias does: it has to look uniform, not to be unpredictable.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from capri.arrays import FloatArray, IntArray

Words = NDArray[np.uint64]
Singles = NDArray[np.float32]

# Weyl increments (odd, near 2^64 / golden ratio and relatives) that keep counters apart.
_COUNTER, _ROW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
# Directions are summed as integers, so that a sum depends on neither order nor machine.
DIRECTION_UNITS = 1 << 24
# Numbers expanded at once: stays within the processor's cache.
_CHUNK = 1 << 18


def mix(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that mixes all bits."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def hashed(first: Words, second: Words, row: Words | IntArray, counter: IntArray) -> Words:
    """64 bits for a 128-bit key ``(first, second)``, a row and a counter; arguments broadcast."""
    inner = mix(first + counter.astype(np.uint64) * _COUNTER)
    return mix(inner ^ (second + (np.asarray(row).astype(np.uint64) + np.uint64(1)) * _ROW))


def gaussians(seeds: Words, rows: IntArray, dimension: int) -> Singles:
    """Standard Gaussian vectors: ``(n, 2)`` seeds and ``(n, r)`` rows give ``(n, r, dimension)``.

    Box and Muller 1958: ``sqrt(-2 ln a) (cos 2 pi b, sin 2 pi b)`` of two halves of a word.
    """
    pairs = (dimension + 1) // 2
    words = hashed(
        seeds[:, 0, None, None], seeds[:, 1, None, None], rows[:, :, None], np.arange(pairs)
    )
    # 23 bits and a half are exact in float32 and never 1, so no radius is 0: a token chosen with
    # malice still stands for a unit vector.
    first = ((words >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    second = (words & np.uint64(0xFFFFFFFF)).astype(np.float32) * np.float32(2 * np.pi * 2.0**-32)
    radius = np.sqrt(np.float32(-2) * np.log(first))
    values = np.empty((*words.shape[:2], 2 * pairs), dtype=np.float32)
    np.multiply(radius, np.cos(second), out=values[:, :, :pairs])
    np.multiply(radius, np.sin(second), out=values[:, :, pairs:])
    return values[:, :, :dimension]


def projections(seeds: Words, count: int, units: FloatArray) -> Singles:
    """``<V_i, u>`` of the first ``count`` directions of each seed with its unit vector ``u``."""
    users, dimension = units.shape
    found = np.empty((users, count), dtype=np.float32)
    rows = np.arange(count)[None]
    single = units.astype(np.float32)
    step = max(1, _CHUNK // (count * dimension))
    for start in range(0, users, step):
        part = slice(start, start + step)
        vectors = gaussians(seeds[part], rows, dimension)
        norms = np.sqrt(np.einsum("nhm,nhm->nh", vectors, vectors))
        found[part] = np.einsum("nhm,nm->nh", vectors, single[part]) / norms
    return found


def directions(seeds: Words, rows: IntArray, dimension: int) -> IntArray:
    """The unit vectors that reports name, in units of ``1 / DIRECTION_UNITS``, one per report."""
    found = np.empty((len(seeds), dimension), dtype=np.int64)
    for part, scaled in _scaled(seeds, rows, dimension):
        found[part] = scaled
    return found


def direction_sum(seeds: Words, rows: IntArray, signs: IntArray, dimension: int) -> IntArray:
    """``sum_i sign_i V_i`` in units of ``1 / DIRECTION_UNITS``, exact and in any order the same."""
    total = np.zeros(dimension, dtype=np.int64)
    for part, scaled in _scaled(seeds, rows, dimension):
        # Whole numbers below 2^53 add up in float64 without rounding.
        total += (signs[part].astype(np.float64) @ scaled.astype(np.float64)).astype(np.int64)
    return total


def _scaled(seeds: Words, rows: IntArray, dimension: int) -> Iterator[tuple[slice, Singles]]:
    """Chunks of unit vectors, multiplied by ``DIRECTION_UNITS`` and rounded."""
    step = max(1, _CHUNK // dimension)
    for start in range(0, len(seeds), step):
        part = slice(start, start + step)
        vectors = gaussians(seeds[part], rows[part, None], dimension)[:, 0]
        norms = np.sqrt(np.einsum("nm,nm->n", vectors, vectors))
        yield part, np.rint(vectors * (np.float32(DIRECTION_UNITS) / norms)[:, None])
