"""How rows and coordinates are allotted before rows are read: shape, leverage cap, stages, rank.

Only public numbers enter: the kernel, a public sample, the number of rows, the budget, and the
releases of earlier stages. In a function with coefficients ``theta ~ N(0, P)`` and a law of rows
with covariance ``S = E[v v^T]``, coordinates ``eta`` with ``P -> I`` and ``S -> diag(l)`` make the
predicted error a sum over coordinates.
"""

from dataclasses import dataclass
from math import erf, sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.regression.law import Law

# Mean square of f, in units of the half range of y, expected before anything is known.
SIGNAL = 0.1
# Residuals are encoded in full up to this many predicted deviations of what is not known of the
# function, and of noise in y: cutting that costs little and lowers the noise at the gate.
_REACH, _REACH_OF_NOISE = 2.0, 1.7
# The share of a small change of the function that cut residuals still tell, for Gaussian noise.
_SLOPE = erf(_REACH_OF_NOISE / sqrt(2))
# Noise levels (standard deviations, same units) for which stages are planned.
_NOISES = (0.05, 0.15, 0.45)
_SCHEDULES = ((1.0,), (0.3, 0.7), (0.04, 0.16, 0.8), (0.01, 0.03, 0.1, 0.86))
# A first stage needs this many rows for each unit of noise on the vector, and for each coordinate.
_ROWS_PER_NOISE, _ROWS_PER_COORDINATE = 30, 2
_RIDGES = 4.0 ** np.arange(-3, 9)
_CAPS = (0.5, 0.8, 0.95, 1.0)
_TRUNCATION = 0.005
# How much larger than expected, in variance, the function is for which the rank is chosen.
_ROUGH = 16.0
# Rows of the sample on which candidates are compared; expectations take all.
_COMPARED = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """How rows are whitened and capped: ``psi = A^T v``, ``|psi| <= clip_norm``.

    Predicted: the mean square ``error`` after the stage, and a ``root`` of the covariance of
    ``theta`` that it leaves.
    """

    whitening: FloatArray
    clip_norm: float
    error: float
    root: FloatArray


def shape_stage(
    law: Law, root: FloatArray, *, rows: int, noise_variance: float, noise: float
) -> Shape:
    """The whitening and the cap of smallest predicted error.

    ``root root^T = P`` is what is known of ``theta``; ``noise`` is the standard deviation of the
    privacy noise on the vector for features of norm 1. Tried are whitenings
    ``A = (n S / s^2 + rho P^-1)^-1/2`` (the paper's at ``P`` proportional to the identity) and caps
    at quantiles of the leverage. A coordinate with ``m = n E[w^2] l a^2`` then has information
    ``(m / a)^2 / (noise^2 C^2 + s^2 m)`` on ``eta``, and leaves ``l / (1 + information)``.
    """
    spread, vectors = np.linalg.eigh(root.T @ law.covariance @ root)
    spread, vectors = np.maximum(spread[::-1], 0.0), vectors[:, ::-1]  # largest first
    white = root @ vectors  # white^T S white = diag(spread), white^T P^-1 white = I
    gains = 1 / (rows * spread / noise_variance + _RIDGES[:, None])
    leverages = np.maximum((law.sample[:_COMPARED] @ white) ** 2 @ gains.T, 1e-300)
    best: tuple[float, float, FloatArray, FloatArray] | None = None
    for gain, leverage, caps in zip(
        gains, leverages.T, np.quantile(leverages, _CAPS, axis=0).T, strict=True
    ):
        for cap in caps:
            weight = float(np.minimum(1.0, cap / leverage).mean())
            moment = rows * weight * spread * gain
            information = moment**2 / gain / (noise**2 * cap + noise_variance * moment + 1e-300)
            error = float((spread / (1 + information)).sum())
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, float(cap), gain, information
    assert best is not None
    error, cap, gain, information = best
    left = white / np.sqrt(1 + information)
    return Shape(
        whitening=np.ascontiguousarray(white * np.sqrt(gain)),
        clip_norm=sqrt(cap),
        error=error,
        root=left,
    )


def expected_moments(law: Law, shape: Shape) -> tuple[FloatArray, float]:
    """``E[w^2 psi psi^T]`` and ``E[w^2]`` for one row of the law."""
    psi = law.sample @ shape.whitening
    leverage = np.maximum(np.einsum("ij,ij->i", psi, psi), 1e-300)
    weights = np.minimum(1.0, shape.clip_norm**2 / leverage)
    return law.mass * (psi * weights[:, None]).T @ psi / len(psi), law.mass * float(weights.mean())


def next_reach(error: float, noise_variance: float) -> tuple[float, float]:
    """``B_r``, and what it multiplies the noise by: ``B_r / slope``, for Gaussian noise.

    Both are 1, and targets are encoded as they are, where residuals would bring nothing.
    """
    reach = sqrt(_REACH**2 * error + _REACH_OF_NOISE**2 * noise_variance)
    return (1.0, 1.0) if reach >= _SLOPE else (reach, reach / _SLOPE)


def rehearse(
    law: Law, root: FloatArray, *, rows: int, shares: tuple[float, ...], spread: float, noise: float
) -> tuple[float, FloatArray]:
    """Predicted mean square error, and posterior variances, of stages with these shares of rows.

    ``spread`` is the standard deviation of the noise in y, ``noise`` that of the privacy noise on
    the vector at features and targets of size 1.
    """
    loudness, error = 1.0, 1.0
    for share in shares:
        stage_rows = max(1, int(share * rows))
        shape = shape_stage(
            law, root, rows=stage_rows, noise_variance=spread**2, noise=noise * loudness
        )
        error, root = shape.error, shape.root
        _, loudness = next_reach(error, spread**2)
    return error, np.einsum("ij,ij->i", root, root)


def choose_stages(
    law: Law, root: FloatArray, *, rows: int, noise: float
) -> tuple[tuple[float, ...], int]:
    """The shares of rows of each stage, and the rank worth keeping.

    ``root root^T`` is the expected prior covariance.
    The schedule of smallest predicted error, in the geometric mean over levels of noise in y.
    Coordinates are kept until those left out would lower the predicted mean square error, for a
    function larger than expected, by less than 0.5 %.
    """
    scores = []
    fewest = max(_ROWS_PER_NOISE * noise, _ROWS_PER_COORDINATE * law.sample.shape[1])
    schedules = [shares for shares in _SCHEDULES if len(shares) == 1 or shares[0] * rows >= fewest]
    for shares in schedules:
        found = [
            rehearse(law, root, rows=rows, shares=shares, spread=spread, noise=noise)
            for spread in _NOISES
        ]
        scores.append(float(np.log([error for error, _ in found]).sum()))
    best = schedules[int(np.argmin(scores))]
    rough = _ROUGH * np.einsum("ij,ij->i", root, root)
    error, posterior = rehearse(
        law, sqrt(_ROUGH) * root, rows=rows, shares=best, spread=_NOISES[0], noise=noise
    )
    learnt = np.diag(law.covariance) * np.maximum(rough - posterior, 0.0)
    left_out = np.concatenate([np.cumsum(learnt[::-1])[::-1], [0.0]])
    rank = int(np.argmax(left_out <= _TRUNCATION * error))
    return best, max(rank, 1)


def matrix_root(matrix: FloatArray) -> FloatArray:
    """A square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 1e-300)))
