"""The message of one vector: multiplied first, rounded last, its norm bounded in exact integers.

The map of the paper (Alg. 1, line 13), of unrelated arms and of reports that are private by
themselves. A report pays for every coordinate, so what else it tells shares the norm of the vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, isfinite, isqrt, sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, noise_multiplier
from capri.privacy.layout import LARGEST_SUM, Block, Layout, consecutive
from capri.privacy.sphere import Sphere

# Squared norms of single contributions stay below 2^62 as well.
_LARGEST_NORM = 1 << 31
# Rows up to this squared norm are shrunk in 64 bits. An encoder's are: half a unit a coordinate
# beyond a limit below 2^31.
_LARGEST_SQUARE = 1.5 * 2.0**62


@dataclass(frozen=True, kw_only=True)
class VectorLayout(Layout):
    """Integer vectors ``q`` with ``|q| <= norm_limit``: any two are at most ``2 norm_limit`` apart.

    ``rank``: length of ``psi``. ``step``: what one unit is worth, for values of at most
    ``value_bound``. ``moment_share`` ``s`` and ``tail_share`` ``q``: parts of the norm that tell
    how large values are and what clipping them cuts off; a share of 0 leaves its coordinate out.
    ``sphere``: the randomizer of reports that are private by themselves, instead of noise.
    """

    rank: int
    step: float
    norm_limit: int
    value_bound: float = 1.0
    moment_share: float = 0.0
    tail_share: float = 0.0
    sphere: Sphere | None = None

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """The vector, and the coordinates that have a share. The noise is the same on all."""
        one = (Fraction(1), self.norm_limit, 1 / self.step)
        sizes = {"main": (self.rank, *one)}
        sizes |= {"moment": (1, *one)} if self.moment_share else {}
        sizes |= {"tail": (1, *one)} if self.tail_share else {}
        return consecutive(sizes)

    @property
    def diameter_squared(self) -> int:
        """``(2 norm_limit)^2``."""
        return 4 * self.norm_limit**2

    @property
    def unit(self) -> float:
        """The step."""
        return self.step

    @cached_property
    def main_share(self) -> float:
        """What is left for ``t psi``: ``sqrt(1 - s^2 - q^2)``."""
        return sqrt(1 - self.moment_share**2 - self.tail_share**2)

    def numbers(self, units: IntArray) -> FloatArray:
        """``units step``."""
        return np.asarray(units * self.step)

    def deviation(self, name: str) -> float:
        """The same for all blocks."""
        return self.noise_units * self.step

    def bounded(self, message: FloatArray) -> IntArray:
        """Rows of numbers as integers of norm at most ``norm_limit``, whatever they hold."""
        return within_norm(np.rint(message / self.step), self.norm_limit)

    def messages(
        self,
        whitened: FloatArray,
        values: FloatArray,
        *,
        clip_norm: float = 1.0,
        value_bound: float | None = None,
        tail_bound: float = 1.0,
    ) -> IntArray:
        """Each row's message ``q = rint(y psi / step)``, ``|y| <= B``, ``|psi| <= C``.

        Both bounds are enforced by clipping and the result is checked in integers, so the diameter
        holds for any input: a context outside the pool, a reward beyond its bound.

        With ``t = clip(y / B, -1, 1)``, ``e`` the excess ``|y| - B|t|`` clipped to and divided by
        its bound, and shares ``s`` (moment) and ``q`` (tail), the message is

            B C [ sqrt(1 - s^2 - q^2) t psi / C,  s (2 t^2 - 1),  q (2 e - 1) ]

        of norm at most ``B C``. A bound ``B`` other than the layout's own ``V`` measures by itself:
        ``V t`` is what is summed, by a step of ``B / V`` times that of the layout.
        """
        value_bound = self.value_bound if value_bound is None else value_bound
        step = self.step * (value_bound / self.value_bound)
        norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
        if not isfinite(norms.sum()):  # a feature that overflowed tells nothing: leave it out
            whitened = np.where(np.isfinite(norms)[:, None], whitened, 0.0)
            norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
        clipped = np.minimum(np.maximum(values, -value_bound), value_bound)
        # y psi / step with psi shrunk to the clip norm where it is longer.
        factor = clipped * (self.main_share * clip_norm / step) / np.maximum(norms, clip_norm)
        rank = self.rank
        scaled = np.empty((len(values), self.coordinates))
        np.multiply(whitened, factor[:, None], out=scaled[:, :rank])
        unit = value_bound * clip_norm / step
        if self.moment_share:
            scaled[:, rank] = self.moment_share * unit * (2 * (clipped / value_bound) ** 2 - 1)
        if self.tail_share:
            excess = np.minimum(np.abs(values) - np.abs(clipped), tail_bound) / tail_bound
            scaled[:, -1] = self.tail_share * unit * (2 * excess - 1)
        return within_norm(np.rint(scaled, out=scaled), self.norm_limit)

    def total(self, whitened: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The sum of :meth:`messages`."""
        units = self.messages(whitened, values, **bounds)
        return units[0] if len(units) == 1 else np.asarray(units.sum(axis=0))

    def noise_scale(self, bound: float) -> float:
        """Deviation of the noise on ``V t psi`` times its share, or of a report's, at most
        ``bound`` long."""
        return self.deviation("main") if self.sphere is None else self.sphere.deviation * bound

    def scale(self, name: str) -> float:
        """What a released 1 of a block stands for: ``V`` times its share."""
        return self.value_bound * {"moment": self.moment_share, "tail": self.tail_share}[name]

    def main(self, numbers: FloatArray, value_bound: float) -> FloatArray:
        """The sum of ``V t psi`` in a released vector; ``V`` is the layout's own bound."""
        return np.asarray(numbers[: self.rank] / self.main_share)


def vector_layout(
    *,
    rank: int,
    length: int,
    budget: Budget | None,
    value_bound: float,
    clip_norm: float = 1.0,
    moment_share: float = 0.0,
    tail_share: float = 0.0,
    noise_scale: float = 0.0,
    composition: float = 1.0,
    calibration: str = "analytic",
    sphere: Sphere | None = None,
) -> VectorLayout:
    """The grid for messages of norm at most ``value_bound clip_norm``, and the noise on it.

    ``noise_scale`` asks for at least a given standard deviation (the paper's); by default the exact
    Gaussian mechanism decides. With a ``sphere`` there is no noise.

    Rounding moves a message by at most half the root of its coordinates, which ``norm_limit``
    includes.
    """
    bound = value_bound * clip_norm
    if not 1e-200 < bound < 1e200:
        raise ConfigurationError(
            f"contributions need a positive bound within 1e-200 and 1e200, got {bound}"
        )
    coordinates = rank + (moment_share > 0) + (tail_share > 0)

    def layout(step: float, norm_limit: int) -> VectorLayout:
        return VectorLayout(
            rank=rank,
            step=step,
            norm_limit=norm_limit,
            value_bound=value_bound,
            moment_share=moment_share,
            tail_share=tail_share,
            calibration=calibration,
            sphere=sphere,
        )

    if budget is None or sphere is not None:
        units = min(1 << 30, LARGEST_SUM // (2 * length))
        return layout(bound / units, ceil(units + sqrt(coordinates) / 2))
    needed = bound * noise_multiplier(budget, coordinates, composition)
    step = max(needed, noise_scale) / NOISE_UNITS
    found = layout(step, ceil(bound / step + sqrt(coordinates) / 2))
    found = found.calibrated(budget, composition, at_least=noise_scale / step)
    # |sum| <= length * norm_limit. The noise adds at most 64 standard deviations of up to `length`
    # reports, except with probability below e^-2000.
    largest = found.norm_limit * length + 64 * found.noise_units * sqrt(length)
    if largest >= LARGEST_SUM or found.norm_limit >= _LARGEST_NORM:
        raise ConfigurationError(
            f"an epoch of {length} rounds at {budget} would overflow 64-bit integers: "
            "shorten the epoch or lower epsilon"
        )
    return found


def within_norm(rounded: FloatArray, norm_limit: int) -> IntArray:
    """Whole numbers as integers, with every row's norm at most the limit.

    The sum of squares is right to ``(m + 1) 2^-53`` in floating point; rows that this cannot settle
    are settled in exact integers, and shrunk if they must be, all of them at once. A row that comes
    alone, as on a device, is always settled so: whether it is near the limit is secret, and a
    bundle may choose the limit. Only what no encoder makes takes longer.
    """
    limit = norm_limit * norm_limit
    squared = np.einsum("ij,ij->i", rounded, rounded)
    exact = squared <= (_LARGEST_SQUARE if norm_limit < _LARGEST_NORM else 0.0)
    if len(rounded) == 1 and exact[0]:
        units = rounded.astype(np.int64)
        size = int(np.einsum("ij,ij->", units, units))
        divisor = (norm_limit, isqrt(size) + 1)[size > limit]  # q L / L is q
        return np.asarray(np.sign(units) * (np.abs(units) * norm_limit // divisor))
    unsure = ~(squared <= limit * (1 - (rounded.shape[1] + 4) * 2.0**-52))
    if unsure.any():
        near = unsure & exact
        rounded[near] = _shrunk_rows(rounded[near].astype(np.int64), norm_limit)
        for row in np.flatnonzero(unsure & ~near):
            if np.isfinite(rounded[row]).all():
                rounded[row] = _shrunk([int(number) for number in rounded[row]], norm_limit)
            else:  # not a number at all: it contributes nothing
                rounded[row] = 0.0
    return rounded.astype(np.int64)


def _shrunk_rows(units: IntArray, norm_limit: int) -> IntArray:
    """:func:`_shrunk` for rows with ``|q|^2 <= 1.5 2^62``: products with the limit stay in 64 bits.

    Once is enough: ``q L / (isqrt(|q|^2) + 1)`` is shorter than ``L``.
    """
    squared = np.einsum("ij,ij->i", units, units)
    root = np.sqrt(squared.astype(np.float64)).astype(np.int64)
    root -= root * root > squared  # the square root of a rounded number may be one off
    root += (root + 1) * (root + 1) <= squared
    smaller = np.sign(units) * (np.abs(units) * norm_limit // (root + 1)[:, None])
    return np.where((squared > norm_limit * norm_limit)[:, None], smaller, units)


def _shrunk(units: list[int], norm_limit: int) -> list[int]:
    """The same direction, towards zero, until the norm is within the limit in exact integers."""
    while (squared := sum(unit * unit for unit in units)) > norm_limit * norm_limit:
        # isqrt rounds down, so the quotient is on the safe side by at least one unit.
        root = isqrt(squared) + 1
        units = [abs(unit) * norm_limit // root * (1 if unit > 0 else -1) for unit in units]
    return units
