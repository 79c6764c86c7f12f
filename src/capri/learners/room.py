"""How large ``f`` may still be: what its level, and squares of rewards, leave room for.

A bound on rewards says little of how much ``f`` varies. Two public facts say more, both read off
releases:

* Rewards at the ends of a range: with ``|y| <= B`` a function of mean ``m`` has
  ``E|f - m| <= 2 (B - |m|)``. Clicks at 2 % cannot vary by much more, whatever the range. (Other
  rewards may be flat but for a peak, and tell their size better by the evidence.)
* ``E f^2 <= E y^2``, whose size every epoch measures. Rewards far smaller than their bound leave a
  small ``f``.

``reach`` is the smaller of both as a share of the norm bound, at most 1. Prior variances are
multiplied by its square; without it Thompson draws of a weak signal are all prior for long.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import PRIOR_SECOND_MOMENT, Belief

# Deviation of the level before any release, as a share of B: that of a uniform law on the range.
LEVEL_DEVIATION = 0.6
# Squares say how large f is at most, roughly. Only bounds several times too large are corrected.
_FAR_TOO_LARGE = 0.25
_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Level:
    """The common level of rewards in a range, in the coordinates of a basis.

    ``one``: coefficients of the constant 1, as near as the basis can. ``average = E[v]`` under
    uniform play. ``bound``: ``B``.
    """

    one: FloatArray
    average: FloatArray
    bound: float

    @classmethod
    def of(cls, features: FloatArray, bound: float) -> "Level":
        """From coordinates of public pairs under uniform play, by a least-squares fit."""
        gram = features.T @ features / len(features)
        average = features.mean(axis=0)
        small = 1e-6 * float(np.trace(gram)) / len(gram)
        one = np.linalg.solve(gram + small * np.eye(len(gram)), average)
        return cls(one, average, bound)

    @property
    def covariance(self) -> FloatArray:
        """What a level that may be anything in the range adds to the prior."""
        return np.outer(self.one, self.one) * (LEVEL_DEVIATION * self.bound) ** 2

    def room(self, mean: FloatArray, factor: FloatArray) -> float:
        """``1 - |m|/B`` and a standard deviation of it: what is left to vary, as a share of B."""
        level = float(self.average @ mean)
        deviation = float(np.linalg.norm(self.average @ factor))
        return room_of(level, deviation, self.bound)


def room_of(level: float, deviation: float, bound: float) -> float:
    """``(B - |level| + deviation) / B``, within reason."""
    return min(1.0, max(_LEAST, deviation / bound, 1 - (abs(level) - deviation) / bound))


def size_reach(belief: Belief, norm_bound: float) -> float:
    """1, or what squares leave where the bound is several times too large."""
    if belief.size is None:
        return 1.0
    share = sqrt(belief.size / PRIOR_SECOND_MOMENT) / norm_bound
    return min(1.0, max(_LEAST, share / _FAR_TOO_LARGE))


def tells(size: float, bound: float) -> bool:
    """Whether squares of this size are far below what a bound lets expect."""
    return sqrt(size / PRIOR_SECOND_MOMENT) < _FAR_TOO_LARGE * bound
