"""Public random directions: what a seed in a report stands for.

Everybody expands the same seed to the same direction, to the bit: on any processor, with any
instruction set and in any language, because nothing is used but integers, a table of integers and
IEEE 754 square root, division, product and rounding, which are exact to the last bit everywhere.

    word_j = hash(seed, row, j)                     64 bits
    v      = four entries of the table of each word, from its low to its high 16 bits
    V      = rint(v * (2^24 / sqrt(v . v)))         whole numbers, of length 2^24

Privacy does not rest on this generator, only the absence of bias does: it has to look uniform, not
to be unpredictable. docs/wire.md has the formulas for other languages, docs/local.md the bias.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from capri.arrays import FloatArray, IntArray
from capri.privacy.normal_table import positive_cells

Words = NDArray[np.uint64]

# Weyl increments (odd, near 2^64 / golden ratio and relatives) that keep counters apart.
_COUNTER, _ROW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
# Directions are summed as integers, so that a sum depends on neither order nor machine.
DIRECTION_UNITS = 1 << 24
# Numbers expanded at once: stays within the processor's cache.
_CHUNK = 1 << 17
# By the high 12 bits of 16: a sign and a cell. Symmetric and without 0, so no vector is 0 and a
# token chosen with malice still stands for a unit vector.
_CELLS: FloatArray = np.outer([1.0, -1.0], positive_cells()).ravel()


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


def raw_vectors(seeds: Words, rows: IntArray, dimension: int) -> FloatArray:
    """Vectors of table entries: ``(n, 2)`` seeds and ``(n, r)`` rows give ``(n, r, dimension)``.

    Whole numbers of at most 15 bits, nearly normal with deviation ``2^13``. The high 12 of every 16
    bits choose: ``cell + 2048 * negative``.
    """
    words = hashed(
        seeds[:, 0, None, None],
        seeds[:, 1, None, None],
        rows[:, :, None],
        np.arange((dimension + 3) // 4),
    )
    lanes = words.astype("<u8", copy=False).view("<u2")
    return _CELLS.take(lanes >> np.uint16(4), mode="wrap")[:, :, :dimension]


def projections(seeds: Words, count: int, vectors: IntArray) -> FloatArray:
    """``<v_i, q> / |v_i|`` of the first ``count`` rows of each seed with its vector ``q``.

    Up to 4,098 coordinates and ``|q| < 2^31`` all sums of products are whole numbers below
    ``|v| |q| < 2^53``, hence exact in any order: what is left are a square root and a division.
    """
    users, dimension = vectors.shape
    found = np.empty((users, count))
    rows = np.arange(count)[None]
    step = max(1, _CHUNK // (count * dimension))
    for start in range(0, users, step):
        part = slice(start, start + step)
        raw = raw_vectors(seeds[part], rows, dimension)
        norms = np.sqrt(np.einsum("nhm,nhm->nh", raw, raw))
        own = vectors[part].astype(np.float64)
        found[part] = np.einsum("nhm,nm->nh", raw, own) / norms
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
        total += (signs[part].astype(np.float64) @ scaled).astype(np.int64)
    return total


def _scaled(seeds: Words, rows: IntArray, dimension: int) -> Iterator[tuple[slice, FloatArray]]:
    """Chunks of unit vectors, multiplied by ``DIRECTION_UNITS`` and rounded, halves to even.

    The squared norm is a whole number below ``2^46``: exact in float64, in any order.
    """
    step = max(1, _CHUNK // dimension)
    for start in range(0, len(seeds), step):
        part = slice(start, start + step)
        vectors = raw_vectors(seeds[part], rows[part, None], dimension)[:, 0]
        squares = np.einsum("nm,nm->n", vectors, vectors)
        vectors *= (DIRECTION_UNITS / np.sqrt(squares))[:, None]
        yield part, np.rint(vectors, out=vectors)
