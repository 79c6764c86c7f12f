"""Quadrature Fourier features of the RBF kernel (Mutny & Krause 2018).

``k(x, y) = E cos(omega^T (x - y))`` with ``omega ~ N(0, diag(1 / lengthscale^2))``. Instead of
drawing frequencies, Gauss-Hermite quadrature with ``n`` nodes per dimension is used, which is exact
for polynomials of degree ``2 n - 1``: the error falls faster than exponentially in ``n``, where
random features need ``1 / error^2`` frequencies. The price is ``n^d`` features.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import RBF

# Features beyond this are too many for the linear algebra that follows.
_LARGEST = 4096


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class QuadratureFeatures:
    """``phi(x)^T phi(y) = sum_j w_j cos(omega_j^T (x - y))``, ``|phi(x)|^2 = variance``.

    ``nodes`` per dimension give ``nodes^dimension`` features: frequencies come in pairs of opposite
    sign, which share a cosine and a sine.

    >>> features = QuadratureFeatures(kernel=RBF(lengthscale=1.0), dimension=2, nodes=4)
    >>> features.rank
    16
    >>> round(float(np.sum(features(np.array([[0.3, 0.4]])) ** 2)), 12)
    1.0
    """

    kernel: RBF
    dimension: int
    nodes: int

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, RBF):
            raise ConfigurationError(
                "quadrature features are those of the RBF kernel, "
                f"got {type(self.kernel).__name__}: use kernel or random Fourier features"
            )
        if self.nodes < 1 or self.nodes**self.dimension > _LARGEST:
            raise ConfigurationError(
                f"nodes must be at least 1 with nodes^{self.dimension} at most {_LARGEST}, "
                f"got {self.nodes}"
            )

    @property
    def rank(self) -> int:
        """Number of features."""
        return int(self.nodes**self.dimension)

    @cached_property
    def _law(self) -> tuple[FloatArray, FloatArray]:
        """Half of the frequencies, and the root weight of each.

        Node ``z`` with weight ``w`` of ``int exp(-z^2) f(z) dz`` is frequency
        ``sqrt(2) z / lengthscale`` with probability ``w / sqrt(pi)``. Of a frequency and its
        opposite one stays, with both weights.
        """
        nodes, weights = np.polynomial.hermite.hermgauss(self.nodes)
        grid = np.indices((self.nodes,) * self.dimension).reshape(self.dimension, -1).T
        # Nodes are symmetric and the grid is in lexicographic order: the opposite of a row stands
        # in the mirrored position.
        position = np.arange(len(grid))
        kept = position <= position[::-1]
        share = np.where(position == position[::-1], 1.0, 2.0)
        frequencies = sqrt(2) * nodes[grid] / np.asarray(self.kernel.lengthscale)
        masses = share * np.prod(weights[grid] / sqrt(np.pi), axis=1) * self.kernel.variance
        return frequencies[kept], np.sqrt(masses[kept])

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Features of rows of any leading shape: ``(..., dimension) -> (..., rank)``."""
        if rows.shape[-1] != self.dimension:
            raise ShapeError(f"rows must have {self.dimension} columns, got {rows.shape[-1]}")
        frequencies, roots = self._law
        phase = rows @ frequencies.T
        both = np.concatenate([roots * np.cos(phase), roots * np.sin(phase)], axis=-1)
        # The zero frequency (odd numbers of nodes) has no sine.
        return np.asarray(both[..., : self.rank])
