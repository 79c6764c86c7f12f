"""The message of two numbers and their product, split over four corners, for pure privacy.

With ``s`` in ``[0, 1]`` and ``r`` in ``[-1, 1]`` a visit sends

    L [ s (1+r)/2,  s (1-r)/2,  (1-s) (1+r)/2,  (1-s) (1-r)/2 ],

four shares of ``L`` in whole numbers, and a visit that is void sends 0. Shares are 0 or more and
add up to ``L``, so two messages are at most ``2 L`` apart in L1. The sums of ``s``, ``r`` and
``s r`` are linear in them:

    s = m_1 + m_2,    r = m_1 - m_2 + m_3 - m_4,    s r = m_1 - m_2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.histogram import LARGEST_LEVEL, fitting_level
from capri.privacy.layout import Block, Layout, consecutive
from capri.privacy.mechanism import Norm

CORNERS = 4
# From corners to the sums of s r, s and r.
_READ = np.array([[1.0, -1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]])


@dataclass(frozen=True, kw_only=True)
class CornerLayout(Layout):
    """Four shares of ``level`` ``L``, compared in L1."""

    level: int = LARGEST_LEVEL
    norm: Norm = Norm.L1

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", whole("level", self.level))
        between("level", self.level, 2, LARGEST_LEVEL)
        if self.norm is not Norm.L1:
            raise ConfigurationError("corners are compared in L1: their diameter is that of L1")

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """The corners."""
        return consecutive({"main": (CORNERS, Fraction(1), self.level, float(self.level))})

    @property
    def diameter_squared(self) -> int:
        """``(2 L)^2``."""
        return 4 * self.level**2

    def messages(self, weights: FloatArray, values: FloatArray) -> IntArray:
        """Each row's message from ``s`` and ``r``, whatever they hold.

        Numbers outside of their ranges are clipped; a row with one that is not a number is void.
        """
        with np.errstate(all="ignore"):  # a warning would tell of a row
            good = ~(np.isnan(weights) | np.isnan(values))
            s = np.clip(np.where(good, weights, 0.0), 0.0, 1.0)
            up = (1 + np.clip(np.where(good, values, 0.0), -1.0, 1.0)) / 2
            inside = np.rint(self.level * s)
            first, third = np.rint(inside * up), np.rint((self.level - inside) * up)
            rest = self.level - inside - third
            found = np.stack([first, inside - first, third, rest], axis=1)
            return np.asarray((found * good[:, None]).astype(np.int64))

    def read(self, numbers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sums of ``s r``, ``s`` and ``r`` in released numbers, and their noise's deviations."""
        deviation = self.deviation("main") * np.sqrt((_READ**2).sum(axis=1))
        return _READ @ numbers, deviation


def corner_layout(*, length: int, budget: Budget | None, contributions: int = 1) -> CornerLayout:
    """The finest grid whose sums fit 64 bits, and the noise that a budget needs on it."""
    level = fitting_level(length, budget, 2.0, contributions)
    layout = CornerLayout(level=level)
    return layout if budget is None else layout.calibrated(budget, contributions)
