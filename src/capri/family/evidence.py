"""Weights of candidate priors by the evidence of releases: shared by policies and regression.

With ``theta ~ N(0, sum_k t_k S_k)``, ``E E^T`` the information of a release and ``E b`` its vector,
the weights maximise

    log N(b; 0, I + sum_k t_k E^T S_k E) - (x - x0)^T (s^2 I + s^2 1 1^T)^-1 (x - x0) / 2

with ``x = log t``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi

import numpy as np
from scipy.linalg import lapack, solve_triangular
from scipy.optimize import minimize

from capri.arrays import FloatArray

# Deviation of each log weight from its expectation, and of all of them together.
_SPREAD, _COMMON = 1.5, 1.5
_STEPS = 40
# Log weights beyond these make no difference.
_LEAST, _MOST = -30.0, 10.0
# Deviation, in logarithms, of weights above their cap.
_SOFT = 0.5
# Steps between two draws that are kept, and narrowings of one step before it stays where it is.
_BETWEEN, _NARROWER = 4, 30
# Draws come from a Gaussian wider than Laplace's by this factor in variance: tails must be reached.
_WIDER = 2.0


def best_weights(
    b: FloatArray,
    grams: FloatArray,
    start: FloatArray,
    expected: FloatArray,
    doubt: FloatArray | None = None,
    cap: "Cap | None" = None,
) -> tuple[FloatArray, float]:
    """Weights of largest evidence, and its logarithm up to a constant.

    ``grams`` are ``E^T S_k E``; ``doubt`` is the covariance of log weights before the release, and
    ``cap`` says how large some may be together.
    """
    doubt = doubt_of(len(expected)) if doubt is None else doubt
    return least(Evidence(b, grams, expected, doubt, cap).loss, start, expected, _STEPS)


def least(
    loss: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    expected: FloatArray,
    steps: int,
) -> tuple[FloatArray, float]:
    """Where a loss with its slope is least, after the better of two descents; minus the loss."""
    starts = [start] if np.array_equal(start, expected) else [start, expected]
    found = [
        minimize(loss, x, jac=True, method="L-BFGS-B", options={"maxiter": steps}) for x in starts
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
        t = self.sizes * np.exp(np.clip(x, _LEAST, _MOST))
        beyond = float(np.log(max(float(t.sum()), 1e-300) / self.most)) / _SOFT
        if beyond <= 0:
            return 0.0, np.zeros(len(x))
        return 0.5 * beyond**2, beyond / _SOFT * t / float(t.sum())


class Evidence:
    """Of log weights, with their law before the release."""

    def __init__(
        self,
        b: FloatArray,
        grams: FloatArray,
        expected: FloatArray,
        doubt: FloatArray,
        cap: Cap | None = None,
    ) -> None:
        self._b, self._expected, self._cap = b, expected, cap
        self.precision = np.asarray(np.linalg.inv(doubt))
        self._flat = grams.reshape(len(expected), -1)

    def _root(self, t: FloatArray) -> FloatArray:
        """Cholesky's, of ``I + sum_k t_k E^T S_k E``."""
        size = len(self._b)
        total = (t @ self._flat).reshape(size, size)
        total[np.diag_indices(size)] += 1.0
        return np.asarray(lapack.dpotrf(total, lower=1, clean=1)[0])

    def loss(self, x: FloatArray) -> tuple[float, FloatArray]:
        """What the weights minimise, and its slope."""
        b, t = self._b, np.exp(np.clip(x, _LEAST, _MOST))
        lower = self._root(t)
        inverse, _ = lapack.dpotri(lower, lower=1)
        inverse = inverse + np.tril(inverse, -1).T
        a = inverse @ b
        away = x - self._expected
        pull = self.precision @ away
        value = 0.5 * float(b @ a) + float(np.log(np.diag(lower)).sum()) + 0.5 * float(away @ pull)
        slope = self._flat @ (inverse - np.outer(a, a)).ravel()
        slope = 0.5 * t * slope + pull
        if self._cap is None:
            return value, slope
        more, steeper = self._cap(x)
        return value + more, slope + steeper

    def logarithm(self, x: FloatArray) -> float:
        """Of the posterior, up to a constant."""
        lower = self._root(np.exp(np.clip(x, _LEAST, _MOST)))
        white = solve_triangular(lower, self._b, lower=True, check_finite=False)
        away = x - self._expected
        value = float(white @ white) + float(away @ self.precision @ away)
        more = 0.0 if self._cap is None else self._cap(x)[0]
        return -0.5 * value - float(np.log(np.diag(lower)).sum()) - more

    def information(self, x: FloatArray) -> FloatArray:
        """Fisher's: ``t_i t_j tr(A^-1 G_i A^-1 G_j) / 2``."""
        size, t = len(self._b), np.exp(np.clip(x, _LEAST, _MOST))
        lower = self._root(t)
        inverse = np.asarray(lapack.dtrtri(lower, lower=1)[0])
        turned = np.array([inverse @ each.reshape(size, size) @ inverse.T for each in self._flat])
        flat = turned.reshape(len(x), -1) * t[:, None]
        return np.asarray(flat @ flat.T / 2)


def plausible_weights(
    b: FloatArray,
    grams: FloatArray,
    best: FloatArray,
    expected: FloatArray,
    doubt: FloatArray,
    count: int,
    cap: Cap | None = None,
) -> list[FloatArray]:
    """So many draws of log weights that the evidence does not rule out, by their posterior.

    The weights of largest evidence are one answer among many where little was told: a part that is
    likely noise is then believed as far as the noise goes. An average over all weights believes it
    as far as it is likely.

    Elliptical slice sampling (Murray, Adams and MacKay 2010) with the Gaussian of Laplace as its
    law: ``x`` moves on ellipses around the best weights, and nothing needs tuning. The randomness
    is fixed: the same release gives the same sample.
    """
    target = Evidence(b, grams, expected, doubt, cap)
    precision = (target.information(best) + target.precision) / _WIDER
    lower = np.linalg.cholesky(precision)
    generator = np.random.default_rng(0)
    place, found = np.zeros(len(best)), []

    def rest(away: FloatArray) -> float:
        """The posterior over the Gaussian that ellipses are drawn for."""
        return target.logarithm(best + away) + 0.5 * float(np.sum((lower.T @ away) ** 2))

    height = rest(place)
    for _ in range(count):
        for _ in range(_BETWEEN):
            other = solve_triangular(lower.T, generator.standard_normal(len(best)))
            floor = height + log(1 - generator.random())
            angle = generator.uniform(0, 2 * pi)
            low, high = angle - 2 * pi, angle
            for _ in range(_NARROWER):
                new = place * np.cos(angle) + other * np.sin(angle)
                reached = rest(new)
                if reached > floor:
                    place, height = new, reached
                    break
                low, high = (angle, high) if angle < 0 else (low, angle)
                angle = generator.uniform(low, high)
        found.append(best + place)
    return found
