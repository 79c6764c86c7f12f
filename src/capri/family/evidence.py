"""Weights of candidate priors by the evidence of releases: shared by policies and regression.

With ``theta ~ N(0, sum_k t_k S_k)``, ``E E^T`` the information of a release and ``E b`` its vector,
the weights maximise

    log N(b; 0, I + sum_k t_k E^T S_k E) - (x - x0)^T (s^2 I + s^2 1 1^T)^-1 (x - x0) / 2

with ``x = log t``.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize

from capri.arrays import FloatArray

# Deviation of each log weight from its expectation, and of all of them together.
_SPREAD, _COMMON = 1.5, 1.5
_STEPS = 40
# Deviation, in logarithms, of weights above their cap.
_SOFT = 0.5


def best_weights(
    b: FloatArray,
    grams: FloatArray,
    start: FloatArray,
    expected: FloatArray,
    doubt: FloatArray | None = None,
    cap: "Cap | None" = None,
) -> tuple[FloatArray, float]:
    """Weights of largest evidence, and its logarithm up to a constant.

    The better end of two ascents, from ``start`` and from ``expected``.

    ``grams`` are ``E^T S_k E``; ``doubt`` is the covariance of log weights before the release, and
    ``cap`` says how large some may be together.
    """
    loss = _Loss(b, grams, expected, doubt_of(len(expected)) if doubt is None else doubt, cap)
    starts = [start] if np.array_equal(start, expected) else [start, expected]
    found = [
        minimize(loss, x, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}) for x in starts
    ]
    best = min(found, key=lambda each: float(each.fun))
    return np.asarray(best.x), -float(best.fun)


def doubt_of(count: int, spread: float = _SPREAD, common: float = _COMMON) -> FloatArray:
    """Covariance of log weights that deviate each by itself and all together."""
    return np.asarray(spread**2 * np.eye(count) + common**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cap:
    """How large some weights may be together: a function does not vary more than what it is of.

    ``max(0, log(sum of sizes t / most))^2 / (2 s^2)`` is added to the loss.
    """

    sizes: FloatArray  # mean squares of functions of weight 1; 0 where they do not count
    most: float

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        """What is added, and its slope."""
        t = self.sizes * np.exp(np.clip(x, -30, 10))
        beyond = float(np.log(max(float(t.sum()), 1e-300) / self.most)) / _SOFT
        if beyond <= 0:
            return 0.0, np.zeros(len(x))
        return 0.5 * beyond**2, beyond / _SOFT * t / float(t.sum())


class _Loss:
    """What the weights minimise, and its slope."""

    def __init__(
        self,
        b: FloatArray,
        grams: FloatArray,
        expected: FloatArray,
        doubt: FloatArray,
        cap: Cap | None = None,
    ) -> None:
        self._cap = cap
        self._b, self._expected, count = b, expected, len(expected)
        self._precision = np.linalg.inv(doubt)
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
        slope = 0.5 * t * slope + pull
        if self._cap is None:
            return value, slope
        more, steeper = self._cap(x)
        return value + more, slope + steeper
