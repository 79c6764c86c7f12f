"""Which noise hides a message: the one table from a norm to its mechanism.

A mechanism knows the noise that a budget needs for messages a diameter apart, what that noise
delivers, and how to draw it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from capri.arrays import IntArray
from capri.privacy.budget import Budget
from capri.privacy.calibration import delivered_by_integers, noise_multiplier


class Norm(StrEnum):
    """In which the messages of a layout are compared."""

    L2 = "l2"


class Noise(Protocol):
    """Where noise comes from, as :mod:`capri.privacy.noise` has it. Only the gate holds one."""

    def add(self, values: IntArray, scale: float, reports: int = 1) -> IntArray:
        """Integers plus Gaussian noises of standard deviation ``scale``."""


@dataclass(frozen=True)
class Mechanism:
    """Integer noise for one norm.

    ``multiplier``: scale of the noise over the diameter that a budget needs, by the number of
    coordinates and the factor by which a user's contributions compose. ``epsilon``: what noise of
    ``mu = diameter / scale`` delivers at the delta of a budget. ``draw``: integers with so many
    noises of a scale.
    """

    name: str
    multiplier: Callable[[Budget, int, float], float]
    epsilon: Callable[[float, Budget, int], float]
    draw: Callable[[Noise, IntArray, float, int], IntArray]


def _gaussian_multiplier(budget: Budget, coordinates: int, composition: float) -> float:
    """The exact Gaussian mechanism, with the price of integers."""
    return noise_multiplier(budget, coordinates, composition) / 2


def _gaussian(source: Noise, units: IntArray, scale: float, noises: int) -> IntArray:
    return source.add(units, scale, reports=noises)


MECHANISMS = {
    Norm.L2: Mechanism("gaussian", _gaussian_multiplier, delivered_by_integers, _gaussian),
}
