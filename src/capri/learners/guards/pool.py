"""Whether those who did not answer can have come from the public pool.

Where missing rewards are measured, a release holds the sum of ``psi(w)`` over users without a
reward, and their number: the one thing said of pairs that no reward is mixed with. If contexts come
from the pool, silence at the rates ``r(w)`` in [0, 1] makes it

    g = sum_w n_w r(w) psi(w) + error,     sum_w n_w r(w) = m,     C = sigma^2 I + sum n_w psi psi^T

with ``m`` known from the noisy count and ``C`` no smaller than the covariance of the error. Who is
silent is nobody's to assume, so the distance from ``g`` to *all* such sums counts: at most
chi2(rank) if the pool is right, whatever ``r`` is. A message without such a block tells of contexts
only multiplied by rewards; there the misfit of innovations is all there is.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from capri.arrays import FloatArray
from capri.learners.reading import Expectations

# Steps towards the nearest sum; the bound that is returned holds after any number of them.
_STEPS = 40
# Of the variance of all directions together, what one of them has at least.
_SMALLEST_VARIANCE = 1e-9
# Deviations that the count is given: it is wrong by more in fewer than 1e-5 of releases.
_COUNT_DEVIATIONS = 4.5


@dataclass(frozen=True, eq=False)
class _Sums:
    """Every sum that silence could make, in coordinates where the error is white."""

    psi: FloatArray
    decisions: FloatArray
    fewest: float
    most: float

    def support(self, direction: FloatArray) -> FloatArray:
        """The sum that lies farthest in a direction: silence takes the pairs of largest value.

        All with a positive value, if the count allows so many and asks for no more.
        """
        values = self.psi @ direction
        order = np.argsort(-values)
        counts = self.decisions[order]
        wanted = np.clip(counts[values[order] > 0].sum(), self.fewest, self.most)
        taken = np.clip(wanted - (np.cumsum(counts) - counts), 0.0, counts)
        return np.asarray(taken @ self.psi[order])


def silence_chi_square(expected: Expectations, vector: FloatArray) -> float:
    """A lower bound on the squared distance above; 0 where silence explains the release.

    Frank and Wolfe's steps: from a possible sum ``x`` towards the one farthest in the direction
    ``u = g - x``. For any ``u`` no possible sum is nearer than ``(u^T g - max_x u^T x) / |u|``, so
    the largest of these is a bound however far the steps have come.
    """
    message = expected.plan.message
    assert message is not None
    sums = message.sums(vector)
    assert sums.missing is not None
    assert sums.count is not None
    psi = np.concatenate([part.psi for part in expected.parts])
    decisions = np.concatenate([part.decisions for part in expected.parts])
    covariance = (psi * decisions[:, None]).T @ psi
    # Without privacy there is no noise, and directions that nobody plays have no variance at all.
    least = _SMALLEST_VARIANCE * float(np.trace(covariance)) + np.finfo(np.float64).tiny
    covariance += max(message.deviation("missing") ** 2, least) * np.eye(len(covariance))
    lower = np.linalg.cholesky(covariance)
    white = np.ascontiguousarray(solve_triangular(lower, psi.T, lower=True).T)
    target = solve_triangular(lower, sums.missing, lower=True)
    total = float(decisions.sum())
    doubt = _COUNT_DEVIATIONS * np.sqrt(message.deviation("count") ** 2 + total / 4)
    fewest, most = np.clip([sums.count - doubt, sums.count + doubt], 0.0, total)
    possible = _Sums(white, decisions, float(fewest), float(most))
    # First: silence that has nothing to do with the pair.
    share = float(np.clip(sums.count, fewest, most)) / max(total, 1.0)
    nearest, bound = share * (decisions @ white), 0.0
    for _ in range(_STEPS):
        away = target - nearest
        length = float(np.linalg.norm(away))
        if length**2 <= len(away) or length <= bound:
            break  # near enough for any noise, or as near as can be
        farthest = possible.support(away)
        bound = max(bound, float(away @ (target - farthest)) / length)
        step = farthest - nearest
        size = float(step @ step)
        if size == 0:
            break
        nearest = nearest + float(np.clip(away @ step / size, 0.0, 1.0)) * step
    return bound**2
