"""From noisy counts and products to shares, correlations and values: a Gaussian copula.

All of it is arithmetic on releases. See :mod:`capri.learners.crowd` for the formulas.
"""

from math import sqrt

import numpy as np
from scipy.special import ndtri

from capri.arrays import FloatArray, IntArray
from capri.crowd import POINTS


def on_simplex(values: FloatArray) -> FloatArray:
    """The nearest shares: not negative, and 1 in all."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(values) + 1)
    used = int(np.flatnonzero(falling > excess)[-1])
    found = np.maximum(values - excess[used], 0.0)
    return np.asarray(found / found.sum())


def denoised(noisy: FloatArray, error: float) -> FloatArray:
    """Correlations without what noise of this size alone would show, with 1 on the diagonal.

    The diagonal is no observation: what large eigenvalues put there is left out again.
    """
    size = len(noisy)
    values, vectors = np.linalg.eigh(noisy - np.eye(size))
    edge = 2 * error * sqrt(size)
    known = np.sqrt(np.maximum(values**2 - edge**2, 0.0))
    kept = np.where(np.abs(values) > edge, np.sign(values) * (np.abs(values) + known) / 2, 0.0)
    found = (vectors * kept) @ vectors.T
    np.fill_diagonal(found, 1.0)
    values, vectors = np.linalg.eigh((found + found.T) / 2)
    found = (vectors * np.maximum(values, 0.02)) @ vectors.T
    scale = np.sqrt(np.diag(found))
    return np.asarray(found / np.outer(scale, scale))


def cut_share(correlations: FloatArray, radius: float) -> float:
    """How much of products is left where normal rows beyond a squared norm are cut to it."""
    values = np.maximum(np.linalg.eigvalsh(correlations), 0.0)
    normal = np.random.default_rng(0).standard_normal((400, len(values)))
    squares = normal**2 @ values
    return float((np.minimum(squares, radius)).mean() / squares.mean())


def quantiles(shares: FloatArray, window: FloatArray, levels: FloatArray) -> FloatArray:
    """Values at these levels: spread over the cell of a point, or at it where it stands alone."""
    own = shares / max(float(shares.sum()), 1e-12)
    ends = np.cumsum(own)
    cell = np.minimum(np.searchsorted(ends, levels * ends[-1]), POINTS - 1)
    padded = np.concatenate([[0.0], own, [0.0]])
    alone = own > 6 * np.maximum(padded[:-2], padded[2:])
    within = (levels * ends[-1] - (ends - own)[cell]) / np.maximum(own[cell], 1e-12)
    place = cell + np.where(alone[cell], 0.0, np.clip(within, 0.0, 1.0) - 0.5)
    share = np.clip(place / (POINTS - 1), 0.0, 1.0)
    return np.asarray(window[0] + (window[1] - window[0]) * share)


def levels_of(shares: FloatArray, heights: FloatArray) -> IntArray:
    """A level for each row: the one whose normal variable is highest above what it needs.

    Offsets are such that levels are as frequent as their shares say.
    """
    share = shares / max(float(shares.sum()), 1e-12)
    wanted = ndtri(np.clip(share, 1e-4, 1 - 1e-4))
    offsets = wanted.copy()
    for _ in range(40):
        taken = np.bincount((heights + offsets).argmax(axis=1), minlength=len(share))
        now = (taken + 0.1) / (len(heights) + 0.1 * len(share))
        offsets += 0.5 * (wanted - ndtri(now))
    chosen: IntArray = (heights + offsets).argmax(axis=1)
    return chosen
