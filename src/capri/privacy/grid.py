"""The integer grid that contributions live on: sums are exact and the noise is integer too."""

from dataclasses import dataclass
from math import ceil, isqrt, sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, noise_multiplier

# The sum of an epoch stays below this, noise included; int64 overflows at 2^63.
LARGEST_SUM = 1 << 62
# Squared norms of single contributions stay below 2^62 as well.
_LARGEST_NORM = 1 << 31
# Rows up to this squared norm are shrunk in 64 bits. An encoder's are: half a unit a coordinate
# beyond a limit below 2^31.
_LARGEST_SQUARE = 1.5 * 2.0**62


@dataclass(frozen=True)
class Grid:
    """An integer grid with its bounds.

    ``step``: what one unit is worth. ``norm_limit``: every contribution ``q`` has
    ``|q| <= norm_limit`` in exact integer arithmetic, so replacing one user changes the sum by at
    most ``2 norm_limit``. ``noise_units``: standard deviation of the noise in units, 0 without
    privacy.
    """

    step: float
    norm_limit: int
    noise_units: float

    @property
    def sensitivity(self) -> int:
        """Replace-one sensitivity of the integer sum: ``2 norm_limit``."""
        return 2 * self.norm_limit


def make_grid(
    *,
    bound: float,
    rank: int,
    length: int,
    budget: Budget | None,
    noise_scale: float | None = None,
    composition: float = 1.0,
) -> Grid:
    """Choose the grid for contributions of norm at most ``bound`` and the noise on it.

    ``noise_scale`` asks for a given standard deviation (the paper's); by default the exact Gaussian
    mechanism at sensitivity ``2 norm_limit`` decides. A given scale below what the budget needs is
    raised to it: the classical formula under-delivers at large epsilon.

    Rounding moves a contribution by at most ``sqrt(rank)/2`` units, which ``norm_limit`` includes.
    """
    if not 1e-200 < bound < 1e200:
        raise ConfigurationError(
            f"contributions need a positive bound within 1e-200 and 1e200, got {bound}"
        )
    if budget is None:
        units = min(1 << 30, LARGEST_SUM // (2 * length))
        return Grid(bound / units, ceil(units + sqrt(rank) / 2), 0.0)
    multiplier = noise_multiplier(budget, rank, composition)
    needed = bound * multiplier
    step = max(needed, noise_scale or 0.0) / NOISE_UNITS
    norm_limit = ceil(bound / step + sqrt(rank) / 2)
    noise_units = max(norm_limit * multiplier, (noise_scale or 0.0) / step)
    # |sum| <= length * norm_limit. The noise adds at most 64 standard deviations of up to `length`
    # reports, except with probability below e^-2000.
    largest = norm_limit * length + 64 * noise_units * sqrt(length)
    if largest >= LARGEST_SUM or norm_limit >= _LARGEST_NORM:
        raise ConfigurationError(
            f"an epoch of {length} rounds at {budget} would overflow 64-bit integers: "
            "shorten the epoch or lower epsilon"
        )
    return Grid(step, norm_limit, noise_units)


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
