"""Random functions of a kernel's space."""

from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.kernels.algebra import Kernel


def random_coefficients(
    kernel: Kernel, centres: FloatArray, norm: float, generator: np.random.Generator
) -> FloatArray:
    """Coefficients ``a`` of ``f = sum_j a_j k(., z_j)`` with ``|f| = sqrt(a^T K a) = norm``.

    A standard normal direction, scaled. A kernel that vanishes on the centres gives 0.

    >>> from capri.kernels import RBF
    >>> centres = np.array([[0.0], [1.0]])
    >>> a = random_coefficients(RBF(), centres, 2.0, np.random.default_rng(0))
    >>> round(float(a @ RBF()(centres, centres) @ a), 12)
    4.0
    """
    coefficients = generator.standard_normal(len(centres))
    squared = float(coefficients @ kernel(centres, centres) @ coefficients)
    return coefficients * (norm / sqrt(squared)) if squared > 0 else np.zeros(len(centres))
