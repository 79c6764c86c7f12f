"""Which arms an epoch tries: few Thompson draws at first, of what the epoch can resolve.

The noise on an arm's sum is the same however often it was played, so information grows with the
square of its plays: a few arms at a time teach more than all at once.

Along an eigenvector of ``P_a`` with variance ``l``, ``n`` plays whose norm is shared by ``m``
directions give the information ``i = l n^2 (1/m) / (sigma^2 + n v/m)``. A draw has the variance
``l i / (1 + i)``: it is one of the coming posterior mean. What would stay noise is not explored.
The common part is drawn once for all arms: it decides between contexts, never between arms.
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.learners.arms.prior import ArmPosterior, remaining
from capri.learners.belief import Belief
from capri.learners.messages import bound_of, coordinate_noise
from capri.learners.options import PracticalOptions

# Draws of the first epoch, and their growth from epoch to epoch.
_FIRST, _GROWTH = 8, 1.25
# Factor on the spread of draws: at first, from epoch to epoch, and at last.
_FIRST_BOLDNESS, _CALM, _LAST_BOLDNESS = 1.8, 0.93, 0.85
# Coordinates that stand for all when the noise of a coming epoch is estimated.
TYPICAL_DIMENSION = 64
# Without privacy noise a few plays tell an arm from others: so many a draw, and at most so many
# times as many draws.
_ENOUGH, _MORE = 50, 8


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The coming epoch: rounds, noise on a coordinate, and variance of a residual's noise."""

    length: float
    noise: float
    variance: float


def outlook_of(
    problem: Problem,
    options: PracticalOptions,
    belief: Belief,
    state: ArmPosterior,
    length: float,
) -> Outlook:
    """Of an epoch of about this length, by what is believed now."""
    variance = belief.noise_variance(problem.reward_bound)
    spread = float(np.trace(state.covariance.mean(axis=0)))
    bound = bound_of(problem, options, belief, spread + variance).bound
    noise = 0.0
    if problem.budget is not None:
        noise = coordinate_noise(problem, TYPICAL_DIMENSION, bound, max(1, int(length)))
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


def thompson_draws(
    state: ArmPosterior,
    outlook: Outlook,
    count: int,
    scale: float,
    generator: np.random.Generator,
    awaited: FloatArray | None = None,
) -> FloatArray:
    """Coefficients of all arms, ``(arms * width, count)``.

    ``awaited``: information under way, which settles a part of what is unknown.

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
    return np.asarray(found.reshape(-1, count))
