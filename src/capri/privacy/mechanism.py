"""Which noise hides a message: the one table from a norm to its mechanism.

A mechanism knows the noise that a budget needs for messages a diameter apart, and what that noise
delivers. :mod:`capri.privacy.noise` draws it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from capri.privacy.budget import Budget
from capri.privacy.calibration import (
    NOISE_UNITS,
    delivered_by_integers,
    laplace_epsilon,
    laplace_scale,
    noise_multiplier,
)


class Norm(StrEnum):
    """In which the messages of a layout are compared."""

    L2 = "l2"
    L1 = "l1"


@dataclass(frozen=True)
class Mechanism:
    """Integer noise for one norm.

    ``scale``: of the noise that a budget needs, by the diameter, the number of coordinates and the
    factor by which a user's contributions compose. ``epsilon``: what a diameter, a scale and that
    factor deliver at the delta of a budget. ``spread``: standard deviation of the noise over its
    scale. ``narrowest``: the least scale at which the account holds.
    """

    name: str
    scale: Callable[[float, Budget, int, float], float]
    epsilon: Callable[[float, float, Budget, int, float], float]
    spread: float
    narrowest: float


def _gaussian_scale(diameter: float, budget: Budget, coordinates: int, composition: float) -> float:
    """The exact Gaussian mechanism, with the price of integers."""
    return noise_multiplier(budget, coordinates, composition) / 2 * diameter


def _gaussian_epsilon(
    diameter: float, scale: float, budget: Budget, coordinates: int, composition: float
) -> float:
    return delivered_by_integers(diameter / scale * composition, budget, coordinates)


def _laplace_scale(diameter: float, budget: Budget, coordinates: int, composition: float) -> float:
    """However many coordinates: only the L1 distance counts."""
    return laplace_scale(budget.epsilon, diameter, composition)


def _laplace_epsilon(
    diameter: float, scale: float, budget: Budget, coordinates: int, composition: float
) -> float:
    """Whatever the delta: it is 0."""
    return laplace_epsilon(diameter, scale, composition)


MECHANISMS = {
    Norm.L2: Mechanism("gaussian", _gaussian_scale, _gaussian_epsilon, 1.0, NOISE_UNITS),
    Norm.L1: Mechanism("laplace", _laplace_scale, _laplace_epsilon, sqrt(2), 0.0),
}
