"""The shape of a message: which directions of ``theta`` an epoch should ask about, and how loudly.

A message ``t psi(w)`` has norm at most 1 whatever its shape, so loudness in one direction is paid
for in all others.
"""

import numpy as np

from capri.learners.belief import Posterior
from capri.typing import FloatArray

# Overall loudness tried, relative to the most informative direction; the best prediction wins.
_LOUDNESS = 2.0 ** np.arange(0.5, 24.0, 1.5)
# Directions with less than this share of the largest spread under the law are left out.
_NEGLIGIBLE = 1e-6


def water_filling(
    features: FloatArray,
    weights: FloatArray,
    posterior: Posterior,
    *,
    length: int,
    noise: float,
    residual_variance: float,
) -> FloatArray:
    """The matrix ``A`` of ``psi(w) = A^T v(w)``, with ``max |psi| = 1`` over the support.

    In coordinates where the posterior is white and the law's covariance diagonal, ``l_j``, a
    message ``sqrt(a_j) u_j`` leaves a variance ``l_j / (1 + b_j a_j)``, ``b_j = (n l_j/noise)^2``.
    Minimising the sum under ``sum a_j l_j = const`` gives ``a_j = (sqrt(b_j g) - 1)_+ / b_j``:
    directions not worth their noise are dropped. The multiplier ``g`` is the one with the smallest
    predicted error, sampling noise and the true maximal norm included.
    """
    whitened = features @ posterior.factor
    spread, vectors = np.linalg.eigh((whitened * weights[:, None]).T @ whitened)
    kept = spread > _NEGLIGIBLE * spread[-1]
    spread, vectors = spread[kept], vectors[:, kept]
    squares = (whitened @ vectors) ** 2
    value = (length * spread / noise) ** 2
    loudness = _LOUDNESS[:, None] / value.max()
    shares = np.maximum(np.sqrt(value * loudness) - 1, 0) / value
    shares /= (squares @ shares.T).max(axis=0)[:, None]
    information = (length * spread) ** 2 * shares
    information /= noise**2 + length * residual_variance * spread * shares
    best = shares[(spread / (1 + information)).sum(axis=1).argmin()]
    used = best > 0
    return np.asarray((posterior.factor @ vectors[:, used]) * np.sqrt(best[used]))


def whitening(features: FloatArray, weights: FloatArray, *, length: int, tau: float) -> FloatArray:
    """The paper's shape ``A = (n E[v v^T] + tau I)^-1/2``, scaled to ``max |psi| = 1``."""
    gram = length * (features * weights[:, None]).T @ features + tau * np.eye(features.shape[1])
    values, vectors = np.linalg.eigh(gram)
    root = vectors / np.sqrt(values)
    norms = np.einsum("ij,ij->i", features @ root, features @ root)
    return np.asarray(root / np.sqrt(norms.max()))


def predicted_variance(
    features: FloatArray,
    weights: FloatArray,
    posterior: Posterior,
    shape: FloatArray,
    *,
    length: int,
    noise: float,
    residual_variance: float,
) -> float:
    """Mean posterior variance over the law after an epoch with messages of this shape.

    ``tr(F^T S F (I + F^T H^T R^-1 H F)^-1)`` with ``S = E[v v^T]``, design ``H`` and covariance
    ``R`` of the epoch.
    """
    psi = features @ shape
    weighted = psi * weights[:, None]
    image = length * weighted.T @ features @ posterior.factor
    covariance = noise**2 * np.eye(psi.shape[1]) + length * residual_variance * weighted.T @ psi
    information = image.T @ np.linalg.solve(covariance, image)
    whitened = features @ posterior.factor
    inner = (whitened * weights[:, None]).T @ whitened
    return float(np.trace(np.linalg.solve(np.eye(len(inner)) + information, inner)))
