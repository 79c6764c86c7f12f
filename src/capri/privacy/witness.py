"""A second proof of privacy loss, by other means: a learnt witness and the hockey-stick divergence.

The first (:func:`capri.privacy.attack.proven_mu`) works out from the plan where to look. This one
knows nothing: half of the runs teach it how the two worlds differ, the other half are judged by
what it has learnt. It finds leaks that nobody thought of, and pays with half of the runs.
"""

from dataclasses import dataclass
from math import exp

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv

from capri.arrays import FloatArray, IntArray
from capri.privacy.calibration import gaussian_delta

_EPSILONS = (0.0, 0.5, 1.0, 2.0)
_THRESHOLDS = 64
_LARGEST_MU = 50.0


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """What was seen in many runs of one world: rows in units of the noise, each of a group.

    Groups are what the attacker knows beside the row, such as the action drawn: directions and
    midpoints are learnt for each of them.
    """

    rows: FloatArray
    group: IntArray

    def half(self, odd: int) -> "Sightings":
        """Every second run."""
        return Sightings(rows=self.rows[odd::2], group=self.group[odd::2])


def learnt_mu(low: Sightings, high: Sightings, error: float) -> float:
    """Lower bound on ``mu`` that holds but for probability ``error``; 0 where nothing is proved.

    For every set ``S`` and every ``e >= 0``, a mu-GDP mechanism has

        P_high(S) - e^e P_low(S) <= delta_mu(e)

    (Balle & Wang's curve). ``S`` is where the learnt score exceeds a learnt threshold; the left
    side is bounded from below by two Clopper-Pearson intervals on runs that taught nothing.
    """
    score = _Witness(low.half(0), high.half(0))
    low_scores, high_scores = np.sort(score(low.half(0))), np.sort(score(high.half(0)))
    both = np.concatenate([low_scores, high_scores])
    thresholds = np.quantile(both, np.linspace(0, 1, _THRESHOLDS), method="nearest")
    best, place = 0.0, (0.0, 0.0)
    for epsilon in _EPSILONS:
        bounds = _hockey_stick(low_scores, high_scores, thresholds, epsilon, error)
        mu = _mu_of(epsilon, float(bounds.max()))
        if mu > best:
            best, place = mu, (epsilon, float(thresholds[int(bounds.argmax())]))
    epsilon, threshold = place
    judged = np.sort(score(low.half(1))), np.sort(score(high.half(1)))
    bound = _hockey_stick(*judged, np.array([threshold]), epsilon, error)
    return _mu_of(epsilon, float(bound[0]))


class _Witness:
    """Scores rows by what the teaching half says: ``(x - midpoint) . (mean_high - mean_low)``.

    For noise that is alike in all directions no score is better. A group that one of the worlds
    does not have teaches nothing.
    """

    def __init__(self, low: Sightings, high: Sightings) -> None:
        self._known: dict[int, tuple[FloatArray, FloatArray]] = {}
        for group in np.intersect1d(low.group, high.group):
            below = low.rows[low.group == group].mean(axis=0)
            above = high.rows[high.group == group].mean(axis=0)
            self._known[int(group)] = (above - below, (above + below) / 2)

    def __call__(self, seen: Sightings) -> FloatArray:
        scores = np.zeros(len(seen.rows))
        for group, (direction, midpoint) in self._known.items():
            members = seen.group == group
            scores[members] = (seen.rows[members] - midpoint) @ direction
        return scores


def _hockey_stick(
    low: FloatArray, high: FloatArray, thresholds: FloatArray, epsilon: float, error: float
) -> FloatArray:
    """``P_high(score > t) - e^epsilon P_low(score > t)`` from below, each ``t`` by itself."""
    above_low = len(low) - np.searchsorted(low, thresholds, side="right")
    above_high = len(high) - np.searchsorted(high, thresholds, side="right")
    at_most = _upper(above_low, len(low), error / 2)
    at_least = 1 - _upper(len(high) - above_high, len(high), error / 2)
    return np.asarray(at_least - exp(epsilon) * at_most)


def _upper(hits: IntArray, trials: int, error: float) -> FloatArray:
    """Clopper-Pearson upper bounds."""
    inner = np.minimum(hits, trials - 1)
    return np.where(hits == trials, 1.0, betaincinv(inner + 1, trials - inner, 1 - error))


def _mu_of(epsilon: float, delta: float) -> float:
    """The smallest ``mu`` whose curve allows ``delta`` at ``epsilon``."""
    if delta <= 0:
        return 0.0
    if delta >= gaussian_delta(epsilon, _LARGEST_MU):
        return _LARGEST_MU
    return float(brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, 1e-9, _LARGEST_MU))
