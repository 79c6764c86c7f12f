"""From noisy counts and products to shares, correlations and values: a Gaussian copula.

All of it is arithmetic on releases. See :mod:`capri.learners.crowd` for the formulas.
"""

from math import inf, sqrt

import numpy as np
from scipy.special import ndtri

from capri.arrays import FloatArray, IntArray
from capri.crowd import POINTS

# How much shares may differ from even ones, in even shares: the likeliest size is taken.
_SIZES = (0.3, 1.0, 3.0)


def shares_of(seen: FloatArray, noise: float, count: int, ordered: int) -> tuple[FloatArray, float]:
    """Shares of cells from noisy ones of so many visits, and the error of one.

    ``ordered``: how many of the cells are neighbours of the next one; 0 for none.
    """
    cells = len(seen)
    even = np.full(cells, 1 / cells)
    steps = np.arange(cells)
    smooth = np.zeros((cells, cells))
    smooth[:ordered, :ordered] = np.exp(-np.abs(steps[:, None] - steps)[:ordered, :ordered] / 3)
    shape = smooth + np.eye(cells)
    error = noise**2 + 1 / (cells * count)
    best = (-inf, even, 0.0)
    for size in _SIZES:
        prior = (size / cells) ** 2 * shape
        total = prior + error * np.eye(cells)
        solved = np.linalg.solve(total, seen - even)
        likely = -0.5 * (seen - even) @ solved - 0.5 * np.linalg.slogdet(total)[1]
        left = prior - prior @ np.linalg.solve(total, prior)
        best = max(
            best,
            (float(likely), even + prior @ solved, sqrt(max(float(np.trace(left)) / cells, 0.0))),
            key=lambda each: each[0],
        )
    return on_simplex(best[1]), best[2]


def on_simplex(values: FloatArray) -> FloatArray:
    """The nearest shares: not negative, and 1 in all."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(values) + 1)
    used = int(np.flatnonzero(falling > excess)[-1])
    found = np.maximum(values - excess[used], 0.0)
    return np.asarray(found / found.sum())


def denoised(noisy: FloatArray, error: float) -> FloatArray:
    """Correlations without what noise of this size alone would show, with 1 on the diagonal."""
    size = len(noisy)
    values, vectors = np.linalg.eigh(noisy - np.eye(size))
    edge = 2 * error * sqrt(size)
    known = np.sqrt(np.maximum(values**2 - edge**2, 0.0))
    kept = np.where(np.abs(values) > edge, np.sign(values) * (np.abs(values) + known) / 2, 0.0)
    found = np.eye(size) + (vectors * kept) @ vectors.T
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
