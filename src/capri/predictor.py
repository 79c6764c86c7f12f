"""A public estimate of the reward function."""

from dataclasses import dataclass

import numpy as np

from capri.kernels import Kernel
from capri.typing import FloatArray


@dataclass(frozen=True, eq=False)
class Predictor:
    """``mu(w) = k_points(w)^T weights``."""

    kernel: Kernel
    points: FloatArray
    weights: FloatArray

    def __call__(self, pairs: FloatArray) -> FloatArray:
        """Evaluate on pairs of any leading shape; a value does not depend on its neighbours."""
        flat = pairs.reshape(-1, pairs.shape[-1])
        # einsum instead of BLAS, which rounds a row differently in batches of different sizes.
        values = np.einsum("ij,j->i", self.kernel(flat, self.points), self.weights)
        return np.asarray(values.reshape(pairs.shape[:-1]))
