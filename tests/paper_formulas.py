"""The paper's formulas, transcribed one to one with explicit inverses.

Slow, fragile and literal on purpose: tests compare the package with this page. Nothing of the
package is used; a kernel is any function of two sets of rows. Valid only where ``K_SS`` is well
conditioned, so callers choose such problems.
"""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
from scipy.linalg import sqrtm

Array = np.ndarray
KernelFunction = Callable[[Array, Array], Array]


def whitening_matrix(kernel: KernelFunction, S: Array, R: Array, tau: float) -> Array:
    """``K_SR K_RS + tau K_SS`` (Alg. 1, line 13)."""
    return kernel(S, R) @ kernel(R, S) + tau * kernel(S, S)


def inverse_square_root(matrix: Array) -> Array:
    """``matrix^-1/2``: the matrix square root, then an explicit inverse."""
    return np.linalg.inv(np.real(sqrtm(matrix)))


def whitened(kernel: KernelFunction, S: Array, R: Array, tau: float, w: Array) -> Array:
    """``(K_SR K_RS + tau K_SS)^-1/2 k_S(w)``, one row per row of ``w``."""
    return (inverse_square_root(whitening_matrix(kernel, S, R, tau)) @ kernel(S, w)).T


def private_estimator(
    kernel: KernelFunction,
    S: Array,
    R: Array,
    W: Array,
    y: Array,
    tau: float,
    noise: Array,
    w: Array,
) -> Array:
    """Eqn private_estimator: ``k_S^T M^-1/2 (M^-1/2 K_SW y + Z_priv)``."""
    root = inverse_square_root(whitening_matrix(kernel, S, R, tau))
    return kernel(w, S) @ root @ (root @ kernel(S, W) @ y + noise)


def projected_estimator(
    kernel: KernelFunction, S: Array, R: Array, W: Array, y: Array, tau: float, w: Array
) -> Array:
    """Appendix B, first line: ``mu^_T(w) = k_S(w) (K_SR K_RS + tau K_SS)^-1 K_SW y``."""
    return kernel(w, S) @ np.linalg.inv(whitening_matrix(kernel, S, R, tau)) @ kernel(S, W) @ y


def projected_variance(kernel: KernelFunction, S: Array, R: Array, tau: float, w: Array) -> Array:
    """Eqn projected_variance over tau, and Appendix B, second line (its missing square restored).

    ``sigma~^2(w) = (k(w,w) - k_S(w)^T V k_S(w)) / tau`` with
    ``V = K_SS^-1 K_SR (tau I + K_RS K_SS^-1 K_SR)^-1 K_RS K_SS^-1``.
    """
    inverse = np.linalg.inv(kernel(S, S))
    middle = np.linalg.inv(tau * np.eye(len(R)) + kernel(R, S) @ inverse @ kernel(S, R))
    V = inverse @ kernel(S, R) @ middle @ kernel(R, S) @ inverse
    values = [
        kernel(row[None], row[None])[0, 0]
        - kernel(row[None], S)[0] @ V @ kernel(S, row[None])[:, 0]
        for row in w
    ]
    return np.array(values) / tau


def sigma_0(*, sigma_max: float, B: float, T: int, epsilon: float, delta: float) -> float:
    """``sigma~_max (4 B ln T / eps) sqrt(ln(1.25 ln T / delta))`` (Section 3, Appendix C)."""
    return sigma_max * (4 * B * log(T) / epsilon) * sqrt(log(1.25 * log(T) / delta))


def beta(*, B: float, T: int, tau: float, d: float) -> float:
    """``beta(d)`` of the lemma in Appendix A."""
    return (
        90 * B * sqrt(log(168 * T / d))
        + 52 * B * sqrt(log(168 * T / d) * log(12 / d)) / sqrt(tau)
        + 3 * B * sqrt(2 * log(6 / d))
        + sqrt(24 * tau)
    )


def beta_1(*, B: float, T: int, epsilon: float, delta: float, d: float) -> float:
    """``beta_1(eps, delta, d)`` of the lemma in Appendix A, joint model."""
    return 8 * B * log(T) / epsilon * log(3 / d) * sqrt(log(1.25 * log(T) / delta))


def beta_1_main_text(
    *, B: float, T: int, pairs: int, epsilon: float, delta: float, d: float
) -> float:
    """``beta_1`` as printed below Eqn prunning_sets: not the lemma's, and not used."""
    return log(T) * sqrt(8 * B * log(log(T) * pairs / d) * log(1.25 * log(T) / delta)) / epsilon


def delta_r(
    *,
    sigma_max: float,
    B: float,
    T: int,
    tau: float,
    pairs: int,
    failure: float,
    epsilon: float | None,
    delta: float | None,
    reports: int = 1,
) -> float:
    """``Delta_r`` of Eqn prunning_sets; ``epsilon=None`` leaves the privacy term out.

    ``reports`` is ``T_r`` in the local model, where ``beta_1`` grows by its root.
    """
    d = failure / (pairs * T * log(T))
    width = beta(B=B, T=T, tau=tau, d=d) * sigma_max
    if epsilon is not None and delta is not None:
        privacy = beta_1(B=B, T=T, epsilon=epsilon, delta=delta, d=d)
        width += sqrt(reports) * privacy * sigma_max**2
    return width


def active_sets(estimates: list[Array], widths: list[float]) -> list[set[int]]:
    """Eqn prunning_sets applied release after release; ``estimates[r][c, x]``."""
    contexts, actions = estimates[0].shape
    result = []
    for c in range(contexts):
        active = set(range(actions))
        for estimate, width in zip(estimates, widths, strict=True):
            best = max(estimate[c, x] for x in active)
            active = {x for x in active if estimate[c, x] >= best - 4 * width}
        result.append(active)
    return result
