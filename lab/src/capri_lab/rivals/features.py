"""Features for linear rivals: rows of norm at most 1 for all pairs, from what the user chooses.

All are public: they depend on the pool, the actions, the kernel and a seed, never on users. A
constant scale brings the longest row to norm 1, as every linear rival's noise and theory assume
``|x| <= 1``; scaling rows one by one would change the function class.
"""

from itertools import combinations_with_replacement
from math import prod, sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.checks import whole
from capri.errors import ConfigurationError
from capri.features import spectral_basis
from capri.kernels import RBF, Kernel, Matern

FEATURE_NAMES = ("raw", "polynomial", "fourier", "kernel")

# Pairs that principal kernel features are computed from: enough for any useful number of them.
_SAMPLE = 3000


def feature_rows(
    name: str,
    pairs: FloatArray,
    *,
    kernel: Kernel | None = None,
    count: int = 10,
    degree: int = 3,
    generator: np.random.Generator | None = None,
) -> FloatArray:
    """One row of norm at most 1 per pair.

    - "raw": ``(1, w)``;
    - "polynomial": all monomials of ``w`` up to ``degree``;
    - "fourier": ``count`` random Fourier features of an RBF or Matern ``kernel``;
    - "kernel": the ``count`` principal features of ``kernel`` over the pairs.

    >>> feature_rows("raw", np.array([[1.0], [3.0]])).round(3)
    array([[0.316, 0.316],
           [0.316, 0.949]])
    """
    match name:
        case "raw":
            return bounded(np.hstack([np.ones((len(pairs), 1)), pairs]))
        case "polynomial":
            return bounded(polynomial(pairs, degree))
        case "fourier" | "kernel":
            if kernel is None:
                raise ConfigurationError(f"{name} features need a kernel, got none")
            whole("count", count)
            generator = np.random.default_rng(0) if generator is None else generator
            if name == "fourier":
                return bounded(random_fourier(kernel, pairs, count, generator))
            return bounded(principal(kernel, pairs, count, generator))
    raise ConfigurationError(f"features must be one of {', '.join(FEATURE_NAMES)}, got {name!r}")


def bounded(rows: FloatArray) -> FloatArray:
    """All rows times one constant, so that the longest has norm 1."""
    longest = float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))
    return rows / longest if longest > 0 else rows


def polynomial(pairs: FloatArray, degree: int) -> FloatArray:
    """All monomials ``w_1^a_1 ... w_d^a_d`` with ``a_1 + ... + a_d <= degree``.

    >>> polynomial(np.array([[2.0, 3.0]]), 2)
    array([[1., 2., 3., 4., 6., 9.]])
    """
    whole("degree", degree)
    columns = [np.ones(len(pairs))]
    for total in range(1, degree + 1):
        for chosen in combinations_with_replacement(range(pairs.shape[1]), total):
            columns.append(prod((pairs[:, j] for j in chosen), start=np.ones(len(pairs))))
    return np.column_stack(columns)


def random_fourier(
    kernel: Kernel, pairs: FloatArray, count: int, generator: np.random.Generator
) -> FloatArray:
    """``sqrt(2 / count) cos(omega_j^T w + b_j)`` (Rahimi & Recht 2007, Algorithm 1).

    ``omega`` follows the spectral law of the kernel: Gaussian for RBF, multivariate Student with
    ``2 nu`` degrees of freedom for Matern; both divided by the lengthscale.
    """
    if not isinstance(kernel, RBF | Matern):
        raise ConfigurationError(
            f"random Fourier features need an RBF or Matern kernel, got {type(kernel).__name__}: "
            "use 'kernel' features for others"
        )
    omega = generator.standard_normal((count, pairs.shape[1]))
    if isinstance(kernel, Matern) and np.isfinite(kernel.nu):
        omega /= np.sqrt(generator.chisquare(2 * kernel.nu, size=(count, 1)) / (2 * kernel.nu))
    phase = generator.uniform(0.0, 2 * np.pi, count)
    projected = (pairs / np.asarray(kernel.lengthscale)) @ omega.T + phase
    return np.asarray(sqrt(2.0 * kernel.variance / count) * np.cos(projected))


def principal(
    kernel: Kernel, pairs: FloatArray, count: int, generator: np.random.Generator
) -> FloatArray:
    """The first principal features of the kernel over the pairs: the best ``count`` of all."""
    sample = pairs
    if len(pairs) > _SAMPLE:
        sample = generator.choice(pairs, _SAMPLE, replace=False)
    basis, _ = spectral_basis(kernel, sample, tolerance=1e-6, max_rank=max(150, 2 * count))
    return np.ascontiguousarray(basis.coordinates(pairs)[:, :count])
