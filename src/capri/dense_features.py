"""The features of the paper with dense matrices: what the low-rank form agrees with."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.features import ProjectedFeatures
from capri.kernels import Kernel


@dataclass(frozen=True, eq=False)
class DenseFeatures(ProjectedFeatures):
    """The textbook form with ``|S| x |S|`` matrices: reference and yardstick, not for use.

    ``M = K_SR K_RS + tau K_SS`` is singular as soon as a draw repeats, so its root and the inverse
    of ``K_SS`` are taken on the numerical range. Both give the paper's estimator exactly, because
    it depends on ``S`` only through its span.
    """

    kernel: Kernel
    basis_copy: FloatArray
    covariance_copy: FloatArray
    tau: float

    @property
    def points(self) -> FloatArray:
        """The draws of ``S``."""
        return self.basis_copy

    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """``k_S(w)``."""
        return self.kernel(pairs, self.basis_copy)

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``(K_SR K_RS + tau K_SS)^-1/2`` (Alg. 1, line 13)."""
        cross = self.kernel(self.basis_copy, self.covariance_copy)
        matrix = cross @ cross.T + self.tau * self.kernel(self.basis_copy, self.basis_copy)
        return _power_on_range(matrix, -0.5)

    @cached_property
    def _variance_matrix(self) -> FloatArray:
        """``V`` of Eqn projected_variance, by ``K_SS^-1`` on the numerical range."""
        inverse = _power_on_range(self.kernel(self.basis_copy, self.basis_copy), -1.0)
        cross = self.kernel(self.basis_copy, self.covariance_copy)
        inner = cross.T @ inverse @ cross
        inner[np.diag_indices_from(inner)] += self.tau
        left = inverse @ cross
        return np.asarray(left @ np.linalg.solve(inner, left.T))

    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """``tau sigma~^2(w) = k(w, w) - k_S(w)^T V k_S(w)``."""
        row = self.kernel(pairs, self.basis_copy)
        explained = np.einsum("ij,ij->i", row @ self._variance_matrix, row)
        return np.asarray(np.maximum(self.kernel.diagonal(pairs) - explained, 0.0) / self.tau)


def _power_on_range(matrix: FloatArray, exponent: float) -> FloatArray:
    """A power of a symmetric matrix with the numerically zero eigenvalues left at zero."""
    from scipy.linalg import eigh

    values, vectors = eigh(matrix)
    kept = values > values[-1] * len(values) * np.finfo(np.float64).eps
    return np.asarray((vectors[:, kept] * values[kept] ** exponent) @ vectors[:, kept].T)
