"""The layout of a message: integers in blocks, each with its bound, and the noise that hides them.

A layout is a public map from what a user did to an integer vector. The vector has blocks of
neighbouring coordinates; every block has a bound that holds in exact integers for any input, and a
share. In the layout's norm, with every block multiplied by its share, any two messages are at most
the *diameter* apart. The gate adds noise ``sigma / share`` to each block, which in that norm is
noise ``sigma`` everywhere. docs/proofs/ has the theorem, and the proof for each map:

    :mod:`capri.privacy.vector`      one vector, multiplied first and rounded last
    :mod:`capri.privacy.products`    exact products of rounded numbers, for what costs nothing
    :mod:`capri.privacy.moments`     all second moments of a row; a cell of every column
    :mod:`capri.privacy.histogram`   a number in one cell of a public partition
    :mod:`capri.privacy.pairs`       a cell of every column, or products of scores

The norm says which mechanism hides a message. A mechanism knows the noise that a budget needs for
messages a diameter apart, and what that noise delivers. :mod:`capri.privacy.noise` draws it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from math import inf, nextafter, sqrt
from typing import Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
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


# The sum of an epoch stays below this, noise included; int64 overflows at 2^63.
LARGEST_SUM = 1 << 62


@dataclass(frozen=True)
class Block:
    """Neighbouring coordinates of a message that share one noise.

    The integer sums of a block carry noise of scale ``sigma / share``, which is the same as sending
    ``share`` times the block under noise ``sigma``. ``largest``: no entry of one message exceeds
    it. ``worth``: what the number 1 is in integers.
    """

    start: int
    size: int
    share_squared: Fraction
    largest: int
    worth: float

    @property
    def part(self) -> slice:
        """Where the block stands in a message."""
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """Blocks, a norm, a diameter and a noise: all that the gate has to know of a message.

    ``noise_units``: the scale ``sigma`` of the noise, in integers; 0 without privacy. The account
    knows the scale and the diameter. Readers know the standard deviation of what is released, which
    is the scale of a Gaussian and ``sqrt 2`` times that of Laplace noise (:meth:`deviation`).
    ``calibration``: how the scale was chosen. ``norm``: in which messages are compared, and which
    mechanism hides them.
    """

    noise_units: float = 0.0
    calibration: str = "analytic"
    norm: Norm = Norm.L2

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, Block]:
        """The blocks that are there, in their order."""

    @property
    @abstractmethod
    def diameter_squared(self) -> int:
        """The square of the largest distance of two messages, in integers, exactly."""

    @abstractmethod
    def messages(self, features: FloatArray, values: FloatArray, /) -> IntArray:
        """The message of each row, whatever it holds: the public map itself."""

    @property
    def unit(self) -> float:
        """What one of the integers is worth in the numbers that the ledger states."""
        return 1.0

    @property
    def diameter(self) -> float:
        """Replace-one sensitivity of the integer sum in the layout's norm, rounded up."""
        found = sqrt(self.diameter_squared)
        return found if Fraction(found) ** 2 >= self.diameter_squared else nextafter(found, inf)

    @cached_property
    def coordinates(self) -> int:
        """How many numbers a message has."""
        return sum(block.size for block in self.blocks.values())

    @cached_property
    def noise_scales(self) -> dict[str, float]:
        """Scale ``sigma / share`` of each block's noise, in integers and rounded up."""
        return {
            name: _quotient(self.noise_units, block.share_squared)
            for name, block in self.blocks.items()
        }

    @property
    def narrowest(self) -> float:
        """The noise of the loudest block."""
        return min(self.noise_scales.values())

    def deviation(self, name: str) -> float:
        """Standard deviation of the noise on a released number of this block."""
        return MECHANISMS[self.norm].spread * self.noise_scales[name] / self.blocks[name].worth

    @cached_property
    def deviations(self) -> FloatArray:
        """Standard deviation of the noise on each released number."""
        return np.repeat(
            [self.deviation(name) for name in self.blocks],
            [block.size for block in self.blocks.values()],
        )

    def numbers(self, units: IntArray) -> FloatArray:
        """Sums of messages, with noise or without, as numbers in the order of the blocks."""
        return np.asarray(units / self._worth)

    def part(self, numbers: FloatArray, name: str) -> FloatArray:
        """The released numbers of a block."""
        return numbers[self.blocks[name].part]

    @cached_property
    def _worth(self) -> FloatArray:
        blocks = self.blocks.values()
        return np.concatenate([np.full(block.size, block.worth) for block in blocks])

    def calibrated(
        self, budget: Budget, composition: float = 1.0, *, at_least: float = 0.0
    ) -> Self:
        """With the noise that a budget needs, for users whose contributions compose to a factor.

        ``at_least``: a scale that was asked for, such as the paper's. A scale below what the budget
        needs is raised to it: the classical formula under-delivers at large epsilon.
        """
        mechanism = MECHANISMS[self.norm]
        scale = mechanism.scale(self.diameter, budget, self.coordinates, composition)
        return replace(self, noise_units=max(scale, at_least))

    def told_in_stages(
        self, budget: Budget, share: float, coordinates: int, *, at_least: float = 0.0
    ) -> Self:
        """With the noise of one of several releases of the same people: a share of ``mu^2``.

        ``mu^2 = sum mu_i^2`` of shares that add up to 1 is that of the budget. ``coordinates``: of
        all of them, whose integers cost a little each. ``at_least``: as in :meth:`calibrated`.
        """
        whole = MECHANISMS[self.norm].scale(self.diameter, budget, coordinates, 1.0)
        return replace(self, noise_units=max(whole, at_least) / sqrt(share))

    def check_width(self, budget: Budget, advice: str = "lower epsilon") -> None:
        """Refuse noise that is too narrow for its account to hold, before the gate does."""
        if self.narrowest < MECHANISMS[self.norm].narrowest:
            raise ConfigurationError(
                f"{budget} is out of reach of the integer noise here: {advice}"
            )


def consecutive(sizes: Mapping[str, tuple[int, Fraction, int, float]]) -> dict[str, Block]:
    """Blocks one behind the other, from the size, squared share, bound and worth of each."""
    blocks, start = {}, 0
    for name, (size, share_squared, largest, worth) in sizes.items():
        blocks[name] = Block(start, size, share_squared, largest, worth)
        start += size
    return blocks


def _quotient(scale: float, share_squared: Fraction) -> float:
    """``scale / share``, rounded up: its square times ``share^2`` is at least ``scale^2``."""
    squared = Fraction(scale) ** 2
    quotient = scale / sqrt(share_squared)
    while Fraction(quotient) ** 2 * share_squared < squared:
        quotient = nextafter(quotient, inf)
    return quotient
