"""The exponential mechanism over a row of scores (McSherry & Talwar 2007)."""

import numpy as np

from capri.arrays import FloatArray, IntArray


def exponential_law(scores: FloatArray, sensitivity: float, epsilon: float | None) -> FloatArray:
    """``P(x) ~ exp(eps score(x) / (2 sensitivity))`` along the last axis, pure eps.

    Without an epsilon all mass is on the first best.

    >>> exponential_law(np.array([0.0, 1.0]), 1.0, 2 * np.log(3)).round(3)
    array([0.25, 0.75])
    """
    best = scores.max(axis=-1, keepdims=True)
    if epsilon is None:
        weights = np.zeros_like(scores)
        first = scores.argmax(axis=-1)[..., None]
        np.put_along_axis(weights, first, 1.0, axis=-1)
        return weights
    weights = np.exp(epsilon * (scores - best) / (2 * sensitivity))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def draw_rows(law: FloatArray, generator: np.random.Generator) -> IntArray:
    """One position per row of probabilities."""
    uniform = generator.random((*law.shape[:-1], 1))
    place = (np.cumsum(law, axis=-1) < uniform * law.sum(axis=-1, keepdims=True)).sum(axis=-1)
    return np.asarray(np.minimum(place, law.shape[-1] - 1))
