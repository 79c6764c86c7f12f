"""What an epoch tries: Thompson draws of what its release can resolve.

**What would stay noise is not explored.** Along a direction of variance ``l``, ``n`` plays whose
cells or norm are shared by ``m`` directions give the information ``i = l n^2 (1/m) / (sigma^2 + n
v/m)``. A draw has the variance ``l i / (1 + i)``: it is one of the coming posterior mean. Of the
numbers ``m`` the one is taken that resolves most. Early epochs tell which action is good for
everybody and little of contexts, so they try actions, not every contrast of contexts that the
prior allows.

**One block.** Directions are those of ``F^T E[d d^T] F = V diag(l) V^T``, with ``F F^T`` what is
unknown and ``d(c, x) = v(c, x) - E[v(c, .)]`` what tells the actions apart that draws of all that
is unknown would play: an action that one of them plays stays one that can be tried.

**Many unrelated arms: few draws at first.** The noise on an arm's sum is the same however often it
was played, so information grows with the square of its plays: a few arms at a time teach more than
all at once. The common part is drawn once for all arms: it decides between contexts, never between
arms.
"""

from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from capri.arrays import FloatArray, IntArray
from capri.epoch.problem import Problem
from capri.learners.belief import Belief
from capri.learners.messages import bound_of, coordinate_noise, remaining
from capri.learners.options import PracticalOptions
from capri.privacy.layout import Norm

if TYPE_CHECKING:
    from capri.learners.arm_prior import ArmPosterior

# A variance too small to matter, whose products with others do not underflow.
_NOTHING = 1e-100
# Draws of the first epoch, and their growth from epoch to epoch.
_FIRST, _GROWTH = 8, 1.25
# Factor on the spread of draws: at first, from epoch to epoch, and at last.
_FIRST_BOLDNESS, _CALM, _LAST_BOLDNESS = 1.8, 0.93, 0.85
# Coordinates that stand for all when the noise of a coming epoch is estimated.
TYPICAL_DIMENSION = 64
# Share of the draws in which an arm is tried that others are ahead of.
_TRIES = 0.25
# What a try is expected to gain is to be so many times what it costs.
_WORTH = 2.0
# An arm is new while so much is unknown of its level, as a share of what was at first.
_NEW = 0.5
# Without privacy noise a few plays tell an arm from others: so many a draw, and at most so many
# times as many draws.
_ENOUGH, _MORE = 50, 8


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The coming epoch: rounds, noise on a coordinate, and variance of a residual's noise."""

    length: float
    noise: float
    variance: float

    def plays_that_tell(self, unknown: FloatArray) -> FloatArray:
        """Plays ``n`` whose sum settles most of a variance ``l``: ``l n^2 = 4 (noise^2 + n v)``."""
        half = 2 * self.variance / unknown
        return np.asarray(half + np.sqrt(half**2 + 4 * self.noise**2 / unknown))


def coordinate_deviation(
    problem: Problem, value_bound: float, norm: Norm, length: int = 1
) -> float:
    """Standard deviation of the noise on a coordinate of an arm, for messages in this norm."""
    if norm is Norm.L2:
        return coordinate_noise(problem, TYPICAL_DIMENSION, value_bound, length)
    return value_bound * problem.noise_per_bound(1, norm=norm)


def outlook_of(
    problem: Problem, options: PracticalOptions, belief: Belief, spread: float, length: float
) -> Outlook:
    """Of an epoch of about this length, by what is believed now; ``spread``: what is unknown."""
    variance = belief.noise_variance(problem.reward_bound)
    bound = bound_of(problem, options, belief, spread + variance).bound
    noise = 0.0
    if problem.budget is not None:
        answers = max(1, int(length))
        noise = min(coordinate_deviation(problem, bound, norm, answers) for norm in problem.norms)
    return Outlook(length=length, noise=noise, variance=variance)


def number_of_draws(epochs: int, most: int, outlook: Outlook) -> int:
    """After so many epochs; half as many as for related actions at most.

    A draw that plays an arm must play it often enough to tell something of it.
    """
    draws = min(most / 2, _FIRST * _GROWTH ** min(epochs, 100))
    if outlook.noise == 0.0:
        draws = max(draws, min(_MORE * most, outlook.length / _ENOUGH))
    return max(1, int(draws))


def boldness(epochs: int) -> float:
    """Factor on the spread of draws: wide while most arms are new, narrow when the good are known.

    The best of hundreds of draws is far out even where each is of little hope.
    """
    return float(max(_LAST_BOLDNESS, _FIRST_BOLDNESS * _CALM ** min(epochs, 100)))


def resolved(values: FloatArray, plays: float, outlook: Outlook) -> FloatArray:
    """Variance of the coming posterior mean along every eigenvector, the largest first.

    Of ``m = 1, 2, 4, ...`` directions that share the norm, the number that resolves most.
    """
    best = np.zeros_like(values)
    count = 1
    while count <= values.shape[1]:
        share = plays / count
        information = values * plays * share / (outlook.noise**2 + share * outlook.variance)
        gain = values * information / (1 + information)
        gain[:, count:] = 0.0
        best = np.where((gain.sum(axis=1) > best.sum(axis=1))[:, None], gain, best)
        count *= 2
    return best


def resolvable(
    factor: FloatArray, image: FloatArray, weights: FloatArray, outlook: Outlook
) -> FloatArray:
    """A root of the part of ``F F^T`` that an epoch can resolve; ``image``: rows ``d^T F``."""
    values, vectors = np.linalg.eigh((image * weights[:, None]).T @ image)
    values = np.maximum(values[::-1], _NOTHING)
    gain = resolved(values[None], outlook.length, outlook)[0]
    return np.asarray((factor @ vectors[:, ::-1]) * np.sqrt(gain / values))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tries:
    """What there is to gain: ``u`` of public contexts, arms on offer, decisions made so far.

    ``level``: variance of an arm's own level, its first coefficient, before anything is known.
    """

    u: FloatArray
    offered: IntArray
    decisions: float
    level: float

    def tries(
        self,
        mean: FloatArray,
        covariance: FloatArray,
        levels: FloatArray,
        outlook: Outlook,
        plays: float,
    ) -> list[tuple[int, float]]:
        """Arms on offer that are worth a try, the best first, and the share of contexts for it.

        An arm behind by ``g(c)`` with deviation ``s(c)`` is expected to be better than the best of
        now by ``E[s phi(g/s) - g Phi(-g/s)]``. Over as many decisions as were made so far that has
        to pay for the plays that would tell, in the contexts where the arm is least behind: an arm
        is not given up for good on a belief that few plays made, and the longer a run is, the more
        of them are tried.

        How much arms differ is known late, and the best of a hundred may be one that no draw came
        upon: an arm that is new by what is unknown of the ``levels`` is tried once in any case,
        where the plays of one draw tell.
        """
        new = levels > _NEW * self.level
        estimate = self.u @ mean[self.offered].T
        variance = np.einsum(
            "ci,aij,cj->ca", self.u, covariance[self.offered], self.u, optimize=True
        )
        deviation = np.sqrt(np.maximum(variance, 1e-300))
        behind = estimate.max(axis=1)[:, None] - estimate
        ratio = behind / deviation
        density = np.exp(-0.5 * ratio**2) / sqrt(2 * pi)
        better = (deviation * (density - ratio * ndtr(-ratio))).mean(axis=0)
        needed = outlook.plays_that_tell(variance.mean(axis=0))
        share = np.minimum(needed / plays, 1.0)
        nearest = np.sort(behind, axis=0)
        found = []
        for place, arm in enumerate(self.offered):
            some = max(1, round(share[place] * len(nearest)))
            cost = share[place] * plays * float(nearest[:some, place].mean())
            worth, look = self.decisions * float(better[place]), new[arm] and share[place] < 1
            if cost > 0 and (look or worth > _WORTH * cost):
                found.append((worth / cost, int(arm), float(share[place])))
        return [(arm, part) for _, arm, part in sorted(found, reverse=True)]


def thompson_draws(
    state: "ArmPosterior",
    outlook: Outlook,
    count: int,
    scale: float,
    generator: np.random.Generator,
    awaited: FloatArray | None = None,
    prospect: Tries | None = None,
) -> FloatArray:
    """Coefficients of all arms, ``(arms * width, count)``.

    ``awaited``: information under way, which settles a part of what is unknown. ``prospect``: in
    some of the draws an arm that is worth a try is the best everywhere.

    Without privacy noise a try is cheap: an arm whose mean nothing is known of is drawn with its
    full spread.
    """
    unsettled = state.own
    if awaited is not None:
        least = 1e-12 * np.trace(unsettled, axis1=1, axis2=2)[:, None, None]
        root = np.linalg.cholesky(unsettled + least * np.eye(unsettled.shape[1]))
        root = remaining(root, awaited)
        unsettled = root @ root.transpose(0, 2, 1)
    values, vectors = np.linalg.eigh(unsettled)
    values, vectors = np.maximum(values[:, ::-1], 0.0), vectors[:, :, ::-1]
    deviation = np.sqrt(resolved(values, outlook.length / count, outlook))
    own = generator.standard_normal((*values.shape, count))
    common = generator.standard_normal((state.carried.shape[2], count))
    scales = np.full(len(values), scale)
    if outlook.noise == 0.0:
        unknown = unsettled[:, 0, 0]
        scales = np.maximum(scales, unknown / unknown.max())
    found = scales[:, None, None] * (vectors @ (deviation[:, :, None] * own))
    found = state.mean[:, :, None] + found + scale * (state.carried @ common)
    if prospect is not None and outlook.noise > 0:
        covariance = unsettled + state.carried @ state.carried.transpose(0, 2, 1)
        levels, plays = unsettled[:, 0, 0], outlook.length / count
        tried = prospect.tries(state.mean, covariance, levels, outlook, plays)
        for place, (arm, share) in enumerate(tried[: int(_TRIES * count)]):
            values = prospect.u @ found[prospect.offered, :, place].T
            short = values.max(axis=1) - prospect.u @ found[arm, :, place]
            # The constant is the first feature.
            found[arm, 0, place] += 1.01 * float(np.quantile(short, share))
    return np.asarray(found.reshape(-1, count))
