"""Weights of candidates that the evidence does not rule out, as a sample of their posterior.

The weights of largest evidence are one answer among many where little was told: a part that is
likely noise is then believed as far as the noise goes. An average over all weights by their
posterior believes it as far as it is likely.

Elliptical slice sampling (Murray, Adams and MacKay 2010) with the Gaussian of Laplace as its law:
``x = log t`` moves on ellipses around the best weights, and nothing needs tuning. The randomness is
fixed: the same release gives the same sample.
"""

from math import log, pi

import numpy as np
from scipy.linalg import lapack, solve_triangular

from capri.arrays import FloatArray
from capri.family.evidence import Cap

# Steps between two draws that are kept, and narrowings of one step before it stays where it is.
_BETWEEN, _NARROWER = 4, 30
# The Gaussian is wider than Laplace's by this factor in variance: tails must be reached.
_WIDER = 2.0
# Log weights beyond these make no difference.
_LEAST, _MOST = -30.0, 10.0


def plausible_weights(
    b: FloatArray,
    grams: FloatArray,
    best: FloatArray,
    expected: FloatArray,
    doubt: FloatArray,
    count: int,
    cap: Cap | None = None,
) -> list[FloatArray]:
    """So many draws of log weights; ``doubt`` is their covariance before the release.

    ``b ~ N(0, I + sum_k t_k grams_k)`` as in :mod:`capri.family.evidence`.
    """
    target = _Posterior(b, grams, expected, np.asarray(np.linalg.inv(doubt), np.float64), cap)
    precision = (target.information(best) + target.precision) / _WIDER
    lower = np.linalg.cholesky(precision)
    generator = np.random.default_rng(0)
    place, found = np.zeros(len(best)), []

    def rest(away: FloatArray) -> float:
        """The posterior over the Gaussian that ellipses are drawn for."""
        return target(best + away) + 0.5 * float(np.sum((lower.T @ away) ** 2))

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


class _Posterior:
    """The logarithm of the posterior of log weights, up to a constant."""

    def __init__(
        self,
        b: FloatArray,
        grams: FloatArray,
        expected: FloatArray,
        precision: FloatArray,
        cap: Cap | None = None,
    ) -> None:
        self._cap = cap
        self._b, self._expected, self.precision = b, expected, precision
        self._flat = grams.reshape(len(expected), -1)

    def _root(self, x: FloatArray) -> FloatArray:
        size = len(self._b)
        total = (np.exp(np.clip(x, _LEAST, _MOST)) @ self._flat).reshape(size, size)
        total[np.diag_indices(size)] += 1.0
        return np.asarray(lapack.dpotrf(total, lower=1, clean=1)[0])

    def __call__(self, x: FloatArray) -> float:
        lower = self._root(x)
        white = solve_triangular(lower, self._b, lower=True, check_finite=False)
        away = x - self._expected
        value = float(white @ white) + float(away @ self.precision @ away)
        more = 0.0 if self._cap is None else self._cap(x)[0]
        return -0.5 * value - float(np.log(np.diag(lower)).sum()) - more

    def information(self, x: FloatArray) -> FloatArray:
        """Fisher's: ``t_i t_j tr(A^-1 G_i A^-1 G_j) / 2``."""
        lower, size = self._root(x), len(self._b)
        inverse = np.asarray(lapack.dtrtri(lower, lower=1)[0])
        turned = np.array([inverse @ each.reshape(size, size) @ inverse.T for each in self._flat])
        flat = turned.reshape(len(x), -1) * np.exp(np.clip(x, _LEAST, _MOST))[:, None]
        return np.asarray(flat @ flat.T / 2)
