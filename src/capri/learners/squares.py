"""How noisy rewards are: measured squares of residuals, less what is believed of ``f``.

Every epoch measures ``E[z^2]`` of its residuals ``z = y - v^T b`` in private. With ``S = E[v v^T]``
under its law,

    noise variance = E[z^2] - E[(v^T (theta - b))^2],
    E[(v^T (theta - b))^2] = tr(S P) + m^T S m - 2 b^T S m + b^T S b

under the belief ``N(m, P)``. The sums over epochs of both sides are kept, not their difference:
what is believed of early epochs improves with every release. A belief that took most of ``E[z^2]``
for noise when it knew nothing must not go on doing so.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Posterior

# What is unknown of f is expected to within so many times itself.
TRUSTED = 1.5


class Believed(Protocol):
    """A posterior, whole or in blocks."""

    def squares(  # noqa: D102 - as in Posterior
        self, spread: FloatArray, image: FloatArray, constant: float
    ) -> tuple[float, float]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What it takes to predict a measured square: ``S``, ``S b`` and ``b^T S b``."""

    spread: FloatArray
    image: FloatArray
    constant: float

    @classmethod
    def of(cls, spread: FloatArray, baseline: FloatArray) -> "Expected":
        """For one law and one baseline."""
        image = spread @ baseline
        return cls(spread=spread, image=image, constant=float(baseline @ image))


@dataclass(frozen=True, kw_only=True, eq=False)
class Squares:
    """Sums over epochs, weighted by the precision of each measure."""

    spread: FloatArray
    image: FloatArray
    constant: float = 0.0
    total: float = 0.0
    weight: float = 0.0
    # What clipping cuts off, in units of its bound, where releases are pooled (learners/tails.py).
    cut: float = 0.0
    cut_weight: float = 0.0

    @classmethod
    def empty(cls, *shape: int) -> "Squares":
        """Before any release; ``shape``: that of the coefficients, blocks first."""
        return cls(spread=np.zeros((*shape, shape[-1])), image=np.zeros(shape))

    @classmethod
    def of(cls, belief: Belief, state: Posterior) -> "Squares":
        """As if the noise variance had been measured with nothing left to believe of ``f``."""
        precision = belief.moment_precision
        return replace(cls.empty(len(state.mean)), total=belief.moment, weight=precision)

    def measured(self, square: float, deviation: float, expected: Expected) -> "Squares":
        """Add the measured ``E[z^2]`` of an epoch."""
        weight = deviation**-2
        return replace(
            self,
            spread=self.spread + weight * expected.spread,
            image=self.image + weight * expected.image,
            constant=self.constant + weight * expected.constant,
            total=self.total + weight * square,
            weight=self.weight + weight,
        )

    def second_moment(self, mean: FloatArray) -> tuple[float, float] | None:
        """``E y^2`` of rewards, and the standard deviation of its measure.

        ``z = y - v^T b``, so ``E y^2 = E z^2 + 2 E[v^T b y] - E[(v^T b)^2]``, with what is believed
        of ``f`` in the place of ``y`` in the middle.
        """
        if self.weight == 0:
            return None
        cross = 2 * float((self.image * mean).sum()) - self.constant
        return (self.total + cross) / self.weight, self.weight**-0.5

    def noise(self, state: Believed) -> tuple[float, float] | None:
        """The noise variance under a belief, and the precision of it."""
        if self.weight == 0:
            return None
        unknown, known = state.squares(self.spread, self.image, self.constant)
        variance = 1 / self.weight + (TRUSTED * unknown / self.weight) ** 2
        return (self.total - unknown - known) / self.weight, 1 / variance
