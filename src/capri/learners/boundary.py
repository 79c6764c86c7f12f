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

Rewards at the ends of their range: coins, clicks, purchases.

Where ``y`` is ``-B`` or ``B``, ``E y^2 = B^2`` at every rate; the first release measures it. Then

* the noise follows the mean: ``var(y | w) = B^2 - f(w)^2``;
* no residual is small, so clipping at a few deviations would cut off all that clicks have to say.

What is left to choose is how much of the estimate ``b`` is subtracted: with a share ``a`` of it,
``|y - a b| <= B + a M``, ``M = max |b|``, and nothing is ever cut off. Subtracting nothing has the
smallest privacy noise, subtracting all of it the smallest sampling noise, and

    (c (B + a M))^2 + n E[var + (1 - a)^2 b^2] / r

is smallest at the best share, with ``c`` the noise multiplier and ``1/r`` the mean square of a
coordinate of ``psi``.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from capri.arrays import FloatArray
from capri.features import Span
from capri.learners.belief import PRIOR_SECOND_MOMENT, Belief, Squares

if TYPE_CHECKING:
    from capri.epoch.problem import Problem
    from capri.spaces import Actions, Contexts

# Deviation of the intercept before any release, as a share of B: that of a uniform law.
INTERCEPT_DEVIATION = 0.6
# Public pairs on which kernels are compared: matrices of so many rows squared.
_PAIRS = 600
# Squares say how large f is at most, roughly. Only bounds several times too large are corrected.
_FAR_TOO_LARGE = 0.25
_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Intercept:
    """The intercept of rewards in a range, in the coordinates of a basis.

    ``one``: coefficients of the constant 1, as near as the basis can. ``average = E[v]`` under
    uniform play. ``bound``: ``B``.
    """

    one: FloatArray
    average: FloatArray
    bound: float

    @classmethod
    def of(cls, features: FloatArray, bound: float) -> "Intercept":
        """From coordinates of public pairs under uniform play, by a least-squares fit."""
        gram = features.T @ features / len(features)
        average = features.mean(axis=0)
        small = 1e-6 * float(np.trace(gram)) / len(gram)
        one = np.linalg.solve(gram + small * np.eye(len(gram)), average)
        return cls(one, average, bound)

    @property
    def covariance(self) -> FloatArray:
        """What an intercept that may be anything in the range adds to the prior."""
        return np.outer(self.one, self.one) * (INTERCEPT_DEVIATION * self.bound) ** 2

    def room(self, mean: FloatArray, factor: FloatArray) -> float:
        """``1 - |m|/B`` and a standard deviation of it: what is left to vary, as a share of B."""
        level = float(self.average @ mean)
        deviation = float(np.linalg.norm(self.average @ factor))
        return room_of(level, deviation, self.bound)


def intercept_of(problem: "Problem", basis: Span) -> Intercept | None:
    """The common level of rewards that have a range; None where they may have either sign."""
    if problem.scale.symmetric:
        return None
    return Intercept.of(basis.coordinates(public_pairs(problem)), problem.reward_bound)


def public_pairs(problem: "Problem") -> FloatArray:
    """Public pairs under uniform play, the same whenever they are asked for.

    From draws of their own, so that guard rails move no other draw, and a policy that was loaded
    sees the pairs that it saw before.
    """
    return uniform_pairs(problem.contexts, problem.actions, _PAIRS, np.random.default_rng(0))


def uniform_pairs(
    contexts: "Contexts", actions: "Actions", count: int, generator: np.random.Generator
) -> FloatArray:
    """Public pairs under uniform play: all of them, or so many that are drawn."""
    known, weights = contexts.support(generator, count)
    if len(known) * actions.count <= count:
        pairs = actions.pairs(known)
        return np.asarray(pairs.reshape(-1, pairs.shape[-1]))
    rows = generator.choice(len(known), size=count, p=weights)
    return actions.chosen(known[rows], generator.integers(actions.count, size=count))


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


# Rewards are at their ends where E y^2 is beyond doubt above this share of B^2.
_AT_THE_ENDS = 0.7
_SHARES = np.linspace(0.0, 1.0, 9)
# Cells or coordinates that share a message in the epochs that matter.
_TYPICAL_RANK = 32.0
# Of a noise that follows the mean at least this share of its measured average is left.
_LEAST_NOISE = 0.25


@dataclass(frozen=True)
class Encoding:
    """How rewards are encoded: the bound, the share of the estimate that is subtracted.

    ``clips``: whether the bound cuts off residuals, so that tails have to be measured.
    """

    bound: float
    share: float
    clips: bool

    def subtracted(self, mean: FloatArray) -> FloatArray:
        """The baseline of an estimate, or of its coefficients."""
        return self.share * mean if self.share else np.zeros_like(mean)


def sized(belief: Belief, squares: Squares, mean: FloatArray, reward_bound: float) -> Belief:
    """With what squares say of rewards: whether they are at their ends, and how large at most.

    They are where ``E y^2`` of all epochs, less a standard deviation, is near ``B^2``.
    """
    measured = squares.second_moment(mean)
    if measured is None:
        return belief
    value, deviation = measured
    ends = value - deviation > _AT_THE_ENDS * reward_bound**2
    size = max(value, 0.0) + deviation
    return replace(belief, ends=ends, size=size if tells(size, reward_bound) else None)


def shared_baseline(
    problem: "Problem", multiplier: float, estimate: FloatArray, weights: FloatArray, length: int
) -> Encoding:
    """The share of the estimate to subtract from rewards at the ends of their range.

    ``estimate``: the public estimate at all pairs that are played, with their ``weights``.
    """
    bound, largest = problem.reward_bound, float(np.abs(estimate).max())
    square = float(weights @ estimate**2)
    privacy = (multiplier * (bound + _SHARES * largest)) ** 2 * problem.reports(length)
    sampling = length * (1 - _SHARES) ** 2 * square / _TYPICAL_RANK
    share = float(_SHARES[(privacy + sampling).argmin()])
    return Encoding(bound + share * largest, share, clips=False)


def mean_of(noise: FloatArray | float, weights: FloatArray) -> float:
    """The average of a noise that may be one number."""
    return noise if isinstance(noise, float) else float(weights @ noise)


def noise_at(belief: Belief, estimate: FloatArray, reward_bound: float) -> FloatArray | float:
    """Variance of the reward noise at pairs of these estimates; one number unless at the ends."""
    average = belief.noise_variance(reward_bound)
    if not belief.ends:
        return average
    variance = reward_bound**2 - np.minimum(np.abs(estimate), reward_bound) ** 2
    return np.asarray(np.maximum(variance, _LEAST_NOISE * average))
