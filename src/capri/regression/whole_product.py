"""One product for many rows whose bits do not depend on who else is in the batch.

BLAS adds up in an order that depends on the size of a batch, so that a row would be rounded
differently beside others. Whole numbers are not rounded: with kernel values ``|k| <= 2^a`` and a
matrix ``W`` of whole numbers with

    2^a sum_i |W_ij| <= 2^53    for every column j,

every partial sum of a product is a whole number below 2^53, exact in any order. That costs a
rounding of the features by about ``(|W_j| 2^-a + sqrt(points) 2^-b) / sqrt(12)``, ``2^-b`` the unit
of the matrix: the same whenever a row comes. Where it is not small beside the grid that features
are rounded to anyway, rows are multiplied one by one. Which of both is decided by public numbers.
"""

from dataclasses import dataclass
from math import floor, log2, sqrt
from typing import Self

import numpy as np

from capri.arrays import FloatArray

_EXACT = 53
# Bits of a kernel value that are tried.
_BITS = range(16, 30)


@dataclass(frozen=True, eq=False)
class WholeProduct:
    """``rows -> rows @ matrix`` for kernel values near a centre, in whole numbers."""

    numbers: FloatArray  # the matrix in units, whole
    units: FloatArray  # what a unit of the product is, column by column
    fine: float  # units of one kernel value: a power of two
    centre: float
    of_centre: FloatArray  # what the centre adds to the product

    @classmethod
    def of(
        cls, matrix: FloatArray, bound: float, *, centre: float = 0.0, tolerance: float
    ) -> Self | None:
        """None where the features would be off by more than the tolerance, in any column."""
        heights = np.abs(matrix).sum(axis=0) + 1e-300
        best: tuple[float, float, FloatArray] | None = None
        for bits in _BITS:
            # Powers of two: scaling rounds nothing. Half a unit for each rounded number.
            fine = 2.0 ** floor(bits - log2(bound))
            room = 2.0 ** (_EXACT - bits) - len(matrix)
            scale = 2.0 ** np.floor(np.log2(room / heights))
            lost = np.sqrt(np.square(matrix).sum(axis=0) / 12) / fine
            found = float((lost + sqrt(len(matrix) / 12) * bound / scale).max())
            if best is None or found < best[0]:
                best = found, fine, scale
        assert best is not None
        lost_most, fine, scale = best
        if not (np.isfinite(scale).all() and lost_most <= tolerance):
            return None
        of_centre = centre * matrix.sum(axis=0)
        return cls(np.rint(matrix * scale), 1 / (fine * scale), fine, centre, of_centre)

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Rows of kernel values times the matrix."""
        units = rows - self.centre
        units *= self.fine
        found = np.rint(units, out=units) @ self.numbers
        found *= self.units
        found += self.of_centre
        return np.asarray(found)
