"""Private rivals of `PrivateKernelRidge` that fit curves: lines in features of an RBF kernel.

All take rows in [0, 1] and targets in [-1, 1], test rows, epsilon and a seed; delta is 1e-5. The
kernel is ``exp(-2 |x - z|^2 / d)`` for all. Features come beside a constant, which is what moves
the mean.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from common import DELTA
from ridge_linear import by_strength, mu_of
from sklearn.metrics.pairwise import rbf_kernel

from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier

CHUNK = 50_000
Features = Callable[[np.ndarray], np.ndarray]


def mapped(features: Features, X: np.ndarray) -> np.ndarray:
    """Features of all rows in single precision, a chunk at a time: a million rows fit memory."""
    parts = [features(X[i : i + CHUNK]).astype(np.float32) for i in range(0, len(X), CHUNK)]
    return np.concatenate(parts)


def waves(columns: int, count: int, generator: np.random.Generator) -> Features:
    """Random Fourier features in pairs, cosine and sine: every row has norm 1 exactly."""
    frequencies = np.sqrt(4 / columns) * generator.standard_normal((columns, count // 2))

    def features(X: np.ndarray) -> np.ndarray:
        angles = X @ frequencies
        return np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(count // 2)

    return features


def beside_constant(features: Features, share: float) -> Features:
    """``(sqrt(share), sqrt(1 - share) phi(x))``: norm at most 1 where that of ``phi`` is."""

    def both(X: np.ndarray) -> np.ndarray:
        constant = np.full((len(X), 1), np.sqrt(share))
        return np.hstack([constant, np.sqrt(1 - share) * features(X)])

    return both


# -- noisy gradients ------------------------------------------------------------------------------


def _clipped_sum(A: np.ndarray, y: np.ndarray, theta: np.ndarray, clip: float) -> np.ndarray:
    """Sum of the rows' gradients: residual times features of norm 1, so clipping is of residuals.

    Rows that fit a cache at a time, so that memory is read once.
    """
    total = np.zeros(A.shape[1])
    for start in range(0, len(A), 2_000):
        part = A[start : start + 2_000]
        total += np.clip(part @ theta - y[start : start + 2_000], -clip, clip) @ part
    return total


def noisy_gradients(
    X: Any, y: Any, test: Any, epsilon: float, seed: int, *, most: int = 200
) -> Any:
    """DP-SGD with full batches on random features, with momentum and the mean of the last half.

    Replace one: a sum of gradients of norm at most ``clip`` moves by twice that; ``steps`` Gaussian
    releases of ``mu / sqrt(steps)`` make one of ``mu``. Full batches have no sampling to account
    for, and less noise for the same promise than small ones. Noise grows with the length of the
    descent, ``steps rate / (1 - momentum)``, however it is cut into steps, so that length goes with
    what is public about the strength of the data, ``0.4 n mu / clip``.
    """
    generator, strength = np.random.default_rng(seed), len(X) * mu_of(epsilon)
    clip = by_strength(strength, (500, 0.1), (2_000, 0.2), (20_000, 0.5), (np.inf, 1.0))
    count = by_strength(strength, (2_000, 100), (np.inf, 200))
    length = max(5.0, 0.4 * strength / clip)
    steps = int(np.clip(length / 10, 5, most))
    momentum = float(np.clip(1 - steps / length, 0.0, 0.98))
    features = beside_constant(waves(X.shape[1], count, generator), 0.5)
    A, target = mapped(features, X), y.astype(np.float32)
    theta, speed, mean = np.zeros((3, A.shape[1]))
    noise = 2 * clip * np.sqrt(steps) / mu_of(epsilon)
    for step in range(steps):
        total = _clipped_sum(A, target, theta.astype(np.float32), clip)
        total += noise * generator.standard_normal(len(theta))
        speed = momentum * speed + total / len(A)
        theta = theta - speed
        if step >= steps // 2:
            mean += theta / (steps - steps // 2)
    return mapped(features, test) @ mean


# -- objective perturbation -----------------------------------------------------------------------


def perturbed(
    A: np.ndarray, y: np.ndarray, epsilon: float, radius: float, generator: np.random.Generator
) -> np.ndarray:
    """Objective perturbation for squared loss over ``|theta| <= R`` where ``|a| <= 1``.

    Kifer, Smith & Thakurta 2012: minimise ``sum (a.theta - y)^2 / 2 + lambda |theta|^2 / 2 +
    b.theta`` with Gaussian ``b``. The privacy loss of adding or removing a row is at most
    ``log(1 + 1 / lambda)`` of the Jacobian, a tenth of epsilon here, plus that of a shift by at
    most ``R + 1`` along ``a``, in either direction, so the noise is that of a Gaussian release with
    ``(0.9 epsilon, delta / 2)`` (after Redberg, Koskela & Wang 2023; less than half of what the
    first analysis asks for).
    """
    ridge = 1 / np.expm1(0.1 * epsilon)
    scale = (radius + 1) * analytic_multiplier(Budget(epsilon=0.9 * epsilon, delta=DELTA / 2))
    target = (A.T @ y).astype(float) - scale * generator.standard_normal(A.shape[1])
    values, vectors = np.linalg.eigh((A.T @ A).astype(float))
    values, rotated, extra = np.maximum(values, 0) + ridge, vectors.T @ target, 0.0
    if np.linalg.norm(rotated / values) > radius:  # the constraint is active: find its multiplier
        below, above = 0.0, np.linalg.norm(target) / radius
        for _ in range(100):
            extra = (below + above) / 2
            if np.linalg.norm(rotated / (values + extra)) > radius:
                below = extra
            else:
                above = extra
    return np.asarray(vectors @ (rotated / (values + extra)))


def objective(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Objective perturbation on random Fourier features and a constant."""
    generator = np.random.default_rng(seed)
    count, radius = by_strength(
        len(X) * mu_of(epsilon),
        (500, (10, 1.0)), (2_000, (100, 2.0)), (20_000, (100, 4.0)), (np.inf, (100, 8.0)),
    )  # fmt: skip
    features = beside_constant(waves(X.shape[1], count, generator), 0.2)
    theta = perturbed(mapped(features, X), y.astype(np.float32), epsilon, radius, generator)
    return mapped(features, test) @ theta


def projection(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """After Lee, Park & Ahn 2025: objective perturbation on projections by random functions.

    Features are paths of a Gaussian process with the kernel, ``h_1(x), ..., h_M(x)``, and a
    constant; rows of norm above 1 are scaled down to it. Each path is a sum of 500 random waves.
    """
    generator = np.random.default_rng(seed)
    count, radius = by_strength(
        len(X) * mu_of(epsilon),
        (500, (10, 1.0)), (2_000, (30, 2.0)), (20_000, (30, 4.0)), (np.inf, (100, 8.0)),
    )  # fmt: skip
    basis = waves(X.shape[1], 500, generator)
    mixing = generator.standard_normal((500, count)) / np.sqrt(count)

    def inside(X: np.ndarray) -> np.ndarray:
        found = basis(X) @ mixing
        return found / np.maximum(1, np.linalg.norm(found, axis=1))[:, None]

    features = beside_constant(inside, 0.2)
    theta = perturbed(mapped(features, X), y.astype(np.float32), epsilon, radius, generator)
    return mapped(features, test) @ theta


# -- cloaking -------------------------------------------------------------------------------------


def cloaking(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Smith, Alvarez, Zwiessele & Lawrence 2018: a Gaussian process whose targets are private.

    Rows are public, so any function of them is. Predictions are linear in the targets and get
    noise whose covariance is the smallest ellipsoid that holds what one target can move (a
    D-optimal design). With features ``A`` of all rows that ellipsoid is ``M``, the smallest with
    ``a_i^T M^-1 a_i <= 1``, whatever the test rows are; ``t = A^T y + noise`` is released and read
    by its posterior mean, ``G (G G + s G + tau^2 M)^-1 t`` with ``G = A^T A``, where coefficients
    have prior variance 1 and residuals ``s = 0.05``. Features are the leading eigenfunctions of the
    kernel on 500 of the rows (Smith, Alvarez & Lawrence 2021 use such landmarks for large n) beside
    a constant.
    """
    generator, strength = np.random.default_rng(seed), len(X) * mu_of(epsilon)
    rank = by_strength(
        strength, (50, 4), (500, 8), (2_000, 24), (20_000, 48), (100_000, 128), (np.inf, 256)
    )
    landmarks = X[generator.permutation(len(X))[:500]]
    gamma = 2 / X.shape[1]
    values, vectors = np.linalg.eigh(rbf_kernel(landmarks, landmarks, gamma=gamma))
    kept = np.argsort(values)[::-1][: min(rank, len(values))]
    kept = kept[values[kept] > 1e-8 * values.max()]
    roots = vectors[:, kept] / np.sqrt(values[kept])

    def features(X: np.ndarray) -> np.ndarray:
        own = rbf_kernel(X, landmarks, gamma=gamma) @ roots
        return np.hstack([np.ones((len(X), 1)), own])

    A = mapped(features, X).astype(float)
    points, size = A[:2000], A.shape[1]
    shares = np.full(len(points), 1 / len(points))
    for _ in range(60):
        design = (points * shares[:, None]).T @ points
        inverse = np.linalg.inv(design + 1e-6 * np.trace(design) / size * np.eye(size))
        shares = shares * np.einsum("ij,ij->i", points @ inverse, points) / size
        shares /= shares.sum()
    design = np.linalg.inv(inverse)
    most = max(
        float(np.einsum("ij,ij->i", part @ inverse, part).max())
        for part in np.array_split(A, len(A) // CHUNK + 1)
    )
    ellipsoid, tau = most * design, 2 / mu_of(epsilon)  # a target moves by 2
    noise = tau * np.linalg.cholesky(ellipsoid) @ generator.standard_normal(size)
    gram = A.T @ A
    covariance = gram @ gram + 0.05 * gram + tau**2 * ellipsoid
    return features(test) @ (gram @ np.linalg.solve(covariance, A.T @ y + noise))
