"""Weights of candidate priors by the evidence of releases: shared by policies and regression.

With ``theta ~ N(0, sum_k t_k S_k)``, ``E E^T`` the information of a release and ``E b`` its vector,
the weights maximise

    log N(b; 0, I + sum_k t_k E^T S_k E) - (x - x0)^T (s^2 I + s^2 1 1^T)^-1 (x - x0) / 2

with ``x = log t``.
"""

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize

from capri.arrays import FloatArray

# Deviation of each log weight from its expectation, and of all of them together.
_SPREAD, _COMMON = 1.5, 1.5
_STEPS = 40


def best_weights(
    b: FloatArray,
    grams: FloatArray,
    start: FloatArray,
    expected: FloatArray,
    spread: float = _SPREAD,
) -> tuple[FloatArray, float]:
    """Weights of largest evidence, and its logarithm up to a constant.

    The better end of two ascents, from ``start`` and from ``expected``.

    ``grams`` are ``E^T S_k E``; ``spread`` is the deviation of a log weight from its expectation.
    """
    loss = _Loss(b, grams, expected, spread)
    starts = [start] if np.array_equal(start, expected) else [start, expected]
    found = [
        minimize(loss, x, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}) for x in starts
    ]
    best = min(found, key=lambda each: float(each.fun))
    return np.asarray(best.x), -float(best.fun)


def log_evidence(
    b: FloatArray,
    grams: FloatArray,
    weights: FloatArray,
    expected: FloatArray,
    spread: float = _SPREAD,
) -> float:
    """The logarithm of the evidence of these log weights, up to the constant of the best ones."""
    return -_Loss(b, grams, expected, spread)(weights)[0]


class _Loss:
    """What the weights minimise, and its slope."""

    def __init__(
        self, b: FloatArray, grams: FloatArray, expected: FloatArray, spread: float
    ) -> None:
        self._b, self._expected, count = b, expected, len(expected)
        self._precision = np.linalg.inv(spread**2 * np.eye(count) + _COMMON**2)
        self._flat = grams.reshape(count, -1)

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        b, size = self._b, len(self._b)
        t = np.exp(np.clip(x, -30, 10))
        total = (t @ self._flat).reshape(size, size)
        total[np.diag_indices(size)] += 1.0
        lower, _ = lapack.dpotrf(total, lower=1, clean=1)
        inverse, _ = lapack.dpotri(lower, lower=1)
        inverse = inverse + np.tril(inverse, -1).T
        a = inverse @ b
        away = x - self._expected
        pull = self._precision @ away
        value = 0.5 * float(b @ a) + float(np.log(np.diag(lower)).sum()) + 0.5 * float(away @ pull)
        slope = self._flat @ (inverse - np.outer(a, a)).ravel()
        return value, 0.5 * t * slope + pull
