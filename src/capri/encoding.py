"""From a reward to integers and back: pure functions between the plan and the gate.

Contributions live on an integer grid, so sums are exact, independent of order and machine, and the
noise at the gate is integer too. A floating-point sum with floating-point noise is not private.
"""

from math import isfinite, isqrt, sqrt

import numpy as np

from capri.grid import Grid
from capri.typing import FloatArray, IntArray


def encode(
    whitened: FloatArray,
    values: FloatArray,
    *,
    value_bound: float,
    clip_norm: float,
    grid: Grid,
    moment_share: float = 0.0,
    tail_share: float = 0.0,
    tail_bound: float = 1.0,
) -> IntArray:
    """Contributions ``q = rint(y psi / step)``, ``|y| <= B``, ``|psi| <= C`` (Alg. 1, line 13).

    Both bounds are enforced by clipping and the result is checked in integers, so the sensitivity
    holds for any input: a context outside the pool, a reward beyond its bound.

    With ``t = clip(y / B, -1, 1)``, ``e`` the excess ``|y| - B|t|`` clipped to and divided by its
    bound, and shares ``s`` (moment) and ``q`` (tail), the contribution is

        B C [ sqrt(1 - s^2 - q^2) t psi / C,  s (2 t^2 - 1),  q (2 e - 1) ]

    of norm at most ``B C``: ``(1 - s^2 - q^2) t^2 + s^2 (2 t^2 - 1)^2 + q^2 (2 e - 1)^2`` is convex
    in ``t^2`` and in ``e``, hence largest at the ends of ``[0, 1]``, where it is at most 1. A share
    of 0 leaves its coordinate out.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
    if not isfinite(norms.sum()):  # a feature that overflowed tells nothing: leave it out
        whitened = np.where(np.isfinite(norms)[:, None], whitened, 0.0)
        norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
    clipped = np.minimum(np.maximum(values, -value_bound), value_bound)
    main_share = sqrt(1 - moment_share**2 - tail_share**2)
    # y psi / step with psi shrunk to the clip norm where it is longer.
    factor = clipped * (main_share * clip_norm / grid.step) / np.maximum(norms, clip_norm)
    rank = whitened.shape[1]
    scaled = np.empty((len(values), rank + (moment_share > 0) + (tail_share > 0)))
    np.multiply(whitened, factor[:, None], out=scaled[:, :rank])
    unit = value_bound * clip_norm / grid.step
    if moment_share:
        scaled[:, rank] = moment_share * unit * (2 * (clipped / value_bound) ** 2 - 1)
    if tail_share:
        excess = np.minimum(np.abs(values) - np.abs(clipped), tail_bound) / tail_bound
        scaled[:, -1] = tail_share * unit * (2 * excess - 1)
    return within_norm(np.rint(scaled, out=scaled), grid.norm_limit)


def within_norm(rounded: FloatArray, norm_limit: int) -> IntArray:
    """Whole numbers as integers, with every row's norm at most the limit.

    The sum of squares is right to ``(m + 1) 2^-53`` in floating point; rows that this cannot settle
    are settled in exact integers, and shrunk if they must be.
    """
    limit = norm_limit * norm_limit
    certain = limit * (1 - (rounded.shape[1] + 4) * 2.0**-52)
    settled = np.einsum("ij,ij->i", rounded, rounded) <= certain
    if not settled.all():
        for row in np.flatnonzero(~settled):
            if np.isfinite(rounded[row]).all():
                rounded[row] = _shrunk([int(number) for number in rounded[row]], norm_limit)
            else:  # not a number at all: it contributes nothing
                rounded[row] = 0.0
    return rounded.astype(np.int64)


def _shrunk(units: list[int], norm_limit: int) -> list[int]:
    """The same direction, towards zero, until the norm is within the limit in exact integers."""
    while (squared := sum(unit * unit for unit in units)) > norm_limit * norm_limit:
        # isqrt rounds down, so the quotient is on the safe side by at least one unit.
        root = isqrt(squared) + 1
        units = [abs(unit) * norm_limit // root * (1 if unit > 0 else -1) for unit in units]
    return units
