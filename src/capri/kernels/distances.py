"""Distances between rows, with SciPy where it pays and without it on a device."""

import sys

import numpy as np

from capri.arrays import FloatArray

# Larger matrices are worth loading SciPy for, which takes longer than all of NumPy.
_WORTH_LOADING = 1 << 18
# Numbers handled at once: stays within the processor's cache.
_BLOCK = 1 << 13


def distances(left: FloatArray, right: FloatArray, metric: str) -> FloatArray:
    """``|l - r|`` ("euclidean") or ``|l - r|^2`` ("sqeuclidean") for all pairs of rows.

    Both ways add the squares of the columns in order, so they agree to the last bit: whether SciPy
    is there changes nothing but the time.
    """
    if "scipy.spatial" in sys.modules or len(left) * len(right) > _WORTH_LOADING:
        try:
            from scipy.spatial.distance import cdist
        except ImportError:
            pass
        else:
            return np.asarray(cdist(left, right, metric))
    squares = squared_distances(left, right)
    return np.sqrt(squares, out=squares) if metric == "euclidean" else squares


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """``|l - r|^2`` by NumPy alone, a few rows at a time."""
    columns = np.ascontiguousarray(right.T)
    found = np.empty((len(left), len(right)))
    step = max(1, _BLOCK // max(1, len(right)))
    room = np.empty((step, len(right)))
    for start in range(0, len(left), step):
        block = found[start : start + step]
        rows, difference = left[start : start + step], room[: len(block)]
        np.subtract(rows[:, 0, None], columns[0], out=block)
        block *= block
        for column in range(1, left.shape[1]):
            np.subtract(rows[:, column, None], columns[column], out=difference)
            difference *= difference
            block += difference
    return found
