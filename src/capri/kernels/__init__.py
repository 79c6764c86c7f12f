"""Kernels: frozen, composable, and the same for a row whatever batch it comes in.

Rows are points ``w``; a kernel called on ``n`` and ``k`` rows gives the ``(n, k)`` matrix of
``k(w, w')``. The algorithm needs ``k(w, w) <= 1``, which ``check_bounded`` verifies. A value
depends on its two rows only, never on their neighbours in the batch, so a decision made alone and
one made among thousands agree bit for bit; this is why no matrix product (BLAS) is used here.

>>> import numpy as np
>>> kernel = Matern(nu=2.5, lengthscale=0.3) * RBF(lengthscale=(1.0,))
>>> kernel(np.zeros((2, 1)), np.zeros((3, 1))).shape
(2, 3)
>>> from_dict(kernel.to_dict()) == kernel
True
"""

from capri.kernels.basic import (
    Auto,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Product,
    Sum,
    check_bounded,
    random_coefficients,
    scaled_coefficients,
)
from capri.kernels.catalogue import KERNEL_NAMES, from_dict, kernel_by_name, schema_kernel
from capri.kernels.stationary import RBF, Lengthscale, Matern, RationalQuadratic

__all__ = [
    "KERNEL_NAMES",
    "RBF",
    "Auto",
    "Categories",
    "Columns",
    "Constant",
    "ContextAction",
    "Kernel",
    "Lengthscale",
    "Linear",
    "Matern",
    "Product",
    "RationalQuadratic",
    "Sum",
    "check_bounded",
    "from_dict",
    "kernel_by_name",
    "random_coefficients",
    "scaled_coefficients",
    "schema_kernel",
]
