"""The linear kernel."""

from dataclasses import dataclass
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import not_negative, positive
from capri.kernels.algebra import Kernel
from capri.kernels.stationary import BLOCK


@final
@dataclass(frozen=True)
class Linear(Kernel):
    """``k = variance * <w, w'> + bias``.

    ``k(w, w)`` grows with ``w``: on the unit cube of ``d`` dimensions it stays within 1 when
    ``variance * d + bias <= 1``.

    >>> Linear(variance=0.5, bias=0.25)(np.array([[1.0, 1.0]]), np.array([[1.0, 0.5]]))
    array([[1.]])
    """

    variance: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", positive("variance", self.variance))
        object.__setattr__(self, "bias", not_negative("bias", self.bias))

    @property
    def constant_diagonal(self) -> float | None:
        """None: the diagonal grows with the rows."""
        return None

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        values = np.zeros((len(left), len(right)))
        columns = np.ascontiguousarray(right.T)
        step = max(1, BLOCK // max(1, len(right)))
        for start in range(0, len(left), step):
            block = values[start : start + step]
            product = np.empty_like(block)
            # One feature after the other, not BLAS: its rounding depends on the batch.
            for feature, column in zip(left[start : start + step].T, columns, strict=True):
                np.multiply(feature[:, None], column, out=product)
                block += product
            block *= self.variance
            block += self.bias
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        values = np.zeros(len(points))
        for feature in points.T:
            values += feature * feature
        values *= self.variance
        values += self.bias
        return values
