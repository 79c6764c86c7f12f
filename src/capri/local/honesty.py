"""Reports that no honest crowd makes: an alarm for operators, which changes nothing that is learnt.

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
``s`` of made up reports adds about ``s z^2``. Data that were invented and sent by the protocol are
honest reports to everybody: no alarm can see them.
"""

from math import cbrt, sqrt

import numpy as np

from capri.arrays import IntArray
from capri.epoch.plan import Notice
from capri.privacy.sphere import DIRECTION_UNITS, Sphere, Words, directions

# Reports that are looked at, and numbers of their directions: fewer say little, more nothing new.
LEAST, MOST = 1000, 1 << 14
_NUMBERS = 1 << 22
_WIDTHS = 5.0


def largest_moment(tokens: Words, numbers: IntArray, dimension: int) -> float:
    """The largest eigenvalue of ``m/n sum V V^T``; a direction and its opposite are alike."""
    vectors = directions(tokens, numbers // 2, dimension) / DIRECTION_UNITS
    total = vectors.T @ vectors
    return float(np.linalg.eigvalsh(total)[-1] * dimension / len(tokens))


def honest_bound(sphere: Sphere, count: int) -> float:
    """What the largest moment of so many honest reports stays below, whatever their data."""
    one, two = sqrt(count - 1), sqrt(sphere.dimension)
    width: float = (one + two) * cbrt(1 / one + 1 / two) / count
    return sphere.inflation * ((one + two) ** 2 / count + _WIDTHS * width)


def forged_notices(sphere: Sphere, tokens: Words, numbers: IntArray) -> tuple[Notice, ...]:
    """That reports point where chance would not have them, if they do."""
    if len(tokens) < LEAST:
        return ()
    looked_at = slice(max(LEAST, _NUMBERS // sphere.dimension))
    tokens, numbers = tokens[looked_at], numbers[looked_at]
    found = largest_moment(tokens, numbers, sphere.dimension)
    bound = honest_bound(sphere, len(tokens))
    if found <= bound:
        return ()
    text = (
        f"reports of {len(tokens)} devices point in one direction {found:.2f} times as strongly as "
        f"chance has it, and honest ones at most {bound:.2f} times: some were made up, by trying "
        "many tokens. What is learnt from this epoch may be what their maker wants. Settle who may "
        "report, for instance by one-time credentials, and build the policy anew"
    )
    return (Notice(kind="forged reports", text=text, numbers={"found": found, "bound": bound}),)
