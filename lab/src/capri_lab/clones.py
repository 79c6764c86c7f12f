"""What mixing hides of any pure randomizer, by clones (Feldman, McMillan & Talwar 2021).

Of ``n`` mixed reports: ``(A + D, C - A + 1 - D)`` against its mirror image, with
``C ~ Bin(n - 1, e^-epsilon_0)``, ``A ~ Bin(C, 1/2)`` and ``D`` of probability ``e^epsilon_0 /
(e^epsilon_0 + 1)``. The product has a bound of its own randomizer, which is closer.
"""

from math import exp, sqrt

import numpy as np

from capri.checks import between, whole

# Counts farther than this many deviations from their mean are bounded, not added up.
_DEVIATIONS = 9.0
# What binomial tails of SciPy are wrong by, and more.
_ROUNDING = 1e-6
# The bound does not grow with the reports, whose further counts do not depend on the datum.
_MOST_REPORTS = 10**8
# Counts that are added up at once.
_AT_ONCE = 1 << 16


def clones_epsilon(local: float, reports: int, delta: float) -> float:
    """The smallest epsilon of so many mixed reports at ``delta``; at most the local one.

    >>> round(clones_epsilon(4.0, 100_000, 1e-6), 3)
    0.17
    """
    reports = whole("reports", reports)
    delta = between("delta", delta, 0.0, 1.0, open_ends=True)
    low, high = 0.0, between("a local epsilon", local, 0.0, 64.0, open_ends=True)
    while high - low > 1e-4 * high and high > 1e-9:
        middle = (low + high) / 2
        if clones_delta(local, reports, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def clones_delta(local: float, reports: int, epsilon: float) -> float:
    """The divergence of clones at ``epsilon``, rounded up.

    Given ``C`` the ratio of both probabilities grows with ``A + D``: the positive part is a tail.
    """
    from scipy.stats import binom

    if epsilon >= local:
        return 0.0
    grown, heads, share = exp(epsilon), 1 / (1 + exp(-local)), exp(-local)
    # heads x + tails (C - x + 1) > grown (tails x + heads (C - x + 1)), x = A + D.
    gain, loss = heads - grown * (1 - heads), grown * heads - (1 - heads)
    others = min(reports, _MOST_REPORTS) - 1
    width = _DEVIATIONS * (sqrt(others * share * (1 - share)) + _DEVIATIONS)
    first, last = max(0, int(others * share - width)), min(others, int(others * share + width) + 1)
    total, outside = 0.0, 1.0
    for start in range(first, last + 1, _AT_ONCE):
        count = np.arange(start, min(start + _AT_ONCE, last + 1))
        chance = binom.pmf(count, others, share)
        least = np.floor(loss * (count + 1) / (gain + loss)) + 1
        parts = gain * binom.sf(least - 2, count, 0.5) - loss * binom.sf(least - 1, count, 0.5)
        total += float(np.sum(chance * np.maximum(parts, 0.0)))
        outside -= float(chance.sum())
    return (total + max(outside, 0.0)) * (1 + _ROUNDING)
