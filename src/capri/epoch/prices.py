"""A limit on an action's share of all decisions: a public price on playing it.

The law looks at scores. With a price taken off the scores of an action it is played where it is
worth more than its price, so contexts in which it is worth most keep it. The price is the smallest
at which the expected share under the public law of contexts is at most the limit: the same law is
played, planned with and read with. Where users come from another law, their share differs by as
much as the laws do; a ceiling holds whoever comes.
"""

from dataclasses import replace

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.play import Conduct

_SWEEPS, _HALVINGS = 4, 24


def priced(conduct: Conduct, contexts: FloatArray, weights: FloatArray) -> Conduct:
    """The conduct with prices at which all shares are kept; with ceilings where none does."""
    bounds = conduct.bounds
    if bounds is None or bounds.shares is None:
        return conduct
    limits = bounds.shares

    def shares(prices: FloatArray) -> FloatArray:
        return np.asarray(weights @ replace(conduct, prices=prices).expected(contexts))

    prices = np.zeros(len(limits))
    dearest = _range(conduct, contexts)
    for _ in range(_SWEEPS):
        over = np.flatnonzero(shares(prices) > limits)
        if not len(over):
            return replace(conduct, prices=prices)
        for action in over:
            low, high = prices[action], dearest
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                prices[action] = middle
                if shares(prices)[action] > limits[action]:
                    low = middle
                else:
                    high = middle
            prices[action] = high
    if (shares(prices) <= limits).all():
        return replace(conduct, prices=prices)
    # A law without scores, or limits that push each other: every decision keeps to the share.
    return replace(conduct, bounds=replace(bounds, ceiling=bounds.strict), prices=None)


def _range(conduct: Conduct, contexts: FloatArray) -> float:
    """More than any difference of scores that the law may see."""
    scores = conduct.law.scores(conduct.actions.pairs(contexts[:256]))
    return 4 * float(np.abs(scores).max()) + 1e-9
