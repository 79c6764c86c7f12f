"""Reports that no honest crowd makes: seen, named, and left out of what is learnt.

Whoever makes up a report may try many tokens until one names a direction that points where it is
wanted. ``K`` tries reach ``<V, w>^2 = z^2 / m`` with ``z^2`` about ``2 ln K``, where an honest
report has about ``1 / m`` in any direction. Such reports show in the second moments of directions.
For honest people of data ``u``,

    m E V V^T = I + (q - 1) (E u u^T - rest),    eigenvalues at most q,

with ``q = m E <V, u>^2`` of the randomizer (:attr:`Sphere.inflation`), reached where everybody has
the same datum. Of ``n`` reports the largest eigenvalue of ``m/n sum V V^T`` lies below

    q (mu + 5 sigma),   mu = (sqrt(n - 1) + sqrt(m))^2 / n,
    sigma = (sqrt(n - 1) + sqrt(m)) (1 / sqrt(n - 1) + 1 / sqrt(m))^(1/3) / n,

the edge and the width of Johnstone (2001); five widths are passed once in about 10^5 times. A share
``s`` of made up reports adds about ``s z^2``.

**Robust sums.** Where the bound is passed, reports with ``|z| > 2`` along that eigenvector are left
out of the sum, and the rest is looked at again (the filter of Diakonikolas et al. 2016, with the
honest law known). Whoever knows this makes up reports with ``|z|`` of 2 at most, or fewer than the
bound shows. Of honest ones 4.6 % go, evenly on both sides, and what the others tell along this one
direction is shrunk by ``1 - 4 phi(2) / (2 Phi(2) - 1) = .77``: less is learnt there, nothing else.
Reports are private before they arrive, so choosing among them is post-processing.

Data that were invented and sent by the protocol are honest reports to everybody: nobody sees them.
"""

from math import cbrt, sqrt

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.plan import Notice
from capri.privacy.sphere import DIRECTION_UNITS, Sphere, Words, directions, reported_sum

# Reports that are looked at, and numbers of their directions: fewer say little, more nothing new.
LEAST, MOST = 1000, 1 << 14
_NUMBERS = 1 << 22
_WIDTHS = 5.0
# Where an eigenvalue is too large, reports so many deviations along its vector are left out.
_FARTHEST = 2.0


def honest_bound(sphere: Sphere, count: int) -> float:
    """What the largest moment of so many honest reports stays below, whatever their data."""
    one, two = sqrt(count - 1), sqrt(sphere.dimension)
    width: float = (one + two) * cbrt(1 / one + 1 / two) / count
    return sphere.inflation * ((one + two) ** 2 / count + _WIDTHS * width)


def suspects(sphere: Sphere, tokens: Words, numbers: IntArray) -> tuple[FloatArray, float]:
    """Directions along which reports point as no honest crowd's do, ``(m, found)``.

    And the largest moment. Of the first reports; each direction after the reports that stand out in
    the ones before were left out.
    """
    looked_at = slice(max(LEAST, min(MOST, _NUMBERS // sphere.dimension)))
    rows = numbers[looked_at] // 2
    vectors = directions(tokens[looked_at], rows, sphere.dimension) / DIRECTION_UNITS
    found, largest = np.empty((sphere.dimension, 0)), 0.0
    while len(vectors) >= LEAST and found.shape[1] < sphere.dimension:
        values, axes = np.linalg.eigh(vectors.T @ vectors)
        moment = float(values[-1] * sphere.dimension / len(vectors))
        largest = max(largest, moment)
        if moment <= honest_bound(sphere, len(vectors)):
            break
        found = np.column_stack([found, axes[:, -1]])
        vectors = vectors[ordinary(vectors, axes[:, -1:])]
    return found, largest


def ordinary(vectors: FloatArray, axes: FloatArray) -> BoolArray:
    """Which unit vectors have ``|z| <= 2`` along all axes."""
    return np.asarray(((vectors @ axes) ** 2 * vectors.shape[1] <= _FARTHEST**2).all(axis=1))


def forged_notices(sphere: Sphere, count: int, largest: float, left_out: int) -> tuple[Notice, ...]:
    """That some reports point where chance would not have them."""
    bound = honest_bound(sphere, min(count, MOST))
    text = (
        f"reports of {count} devices point in one direction {largest:.2f} times as strongly as "
        f"chance has it, and honest ones at most {bound:.2f} times: some were made up, by trying "
        f"many tokens. The {left_out} that stand out are left out of what is learnt if they are "
        "the smaller part. Settle who may report, for instance by tickets"
    )
    numbers = {"found": largest, "bound": bound, "left_out": float(left_out)}
    return (Notice(kind="forged reports", text=text, numbers=numbers),)


def robust_sum(
    sphere: Sphere, tokens: Words, numbers: IntArray
) -> tuple[IntArray, int, tuple[Notice, ...]] | None:
    """What reports add up to without those that stand out, and how many were left in.

    None where an honest crowd could have made them, nearly always.
    """
    if len(tokens) < LEAST:
        return None
    axes, largest = suspects(sphere, tokens, numbers)
    if not axes.shape[1]:
        return None
    kept = np.empty(len(tokens), dtype=np.bool_)
    for start in range(0, len(tokens), MOST):
        part = slice(start, start + MOST)
        vectors = directions(tokens[part], numbers[part] // 2, sphere.dimension)
        kept[part] = ordinary(vectors / DIRECTION_UNITS, axes)
    notices = forged_notices(sphere, len(tokens), largest, int(np.count_nonzero(~kept)))
    if np.count_nonzero(kept) < len(kept) / 2:  # no honest crowd to go by
        kept[:] = True
    total = reported_sum(tokens[kept], numbers[kept], sphere.dimension)
    return total, int(np.count_nonzero(kept)), notices
