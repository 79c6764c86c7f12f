"""What linear rivals know: released moments, their solution and the width to play."""

from math import log, sqrt
from typing import Protocol, final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import positive
from capri.privacy.budget import Budget
from capri.rivals.base import Width, checked_width
from capri.rivals.linear.least_squares import (
    GaussianMoments,
    Solution,
    moments,
    noise_for,
    packed_size,
    solve,
)
from capri.rivals.linear.tree import TreeSums, tree_levels

# Tuned on ten kernel features, Matern-5/2, T = 1e4 and epsilon 1; the theory's is hopeless there.
_PRACTICAL = 0.03
# Chance that the theory's confidence set fails.
_FAILURE = 0.05


class Belief(Protocol):
    """What is known of the weights, and the factor of ``|x|_{M^-1}`` in an upper bound."""

    solution: Solution
    bonus: float

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Take in a batch: rows of norm at most 1, rewards within [-1, 1]."""
        ...


def bonus_width(
    bonus: Width, *, ridge: float, dimension: int, horizon: int, vector_size: float
) -> float:
    """The factor of ``|x|_{M^-1}``, for rewards in [-1, 1] and ``|theta| <= 1``.

    - "theory": ``sqrt(2 ln(2/a) + d ln(r + T / (d rho_min))) + sqrt(rho_max) + gamma`` (Shariff &
      Sheffet 2018, their proposition on ``beta_t``), with ``a = 0.05``, eigenvalues of the noisy
      regulariser in ``[rho_min, rho_max] = [ridge / 2, 3 ridge / 2]``, ``r`` their ratio, and
      ``gamma`` the noise of the vector over ``sqrt(rho_min)``;
    - a number ``b``: ``b (3 sqrt(ridge) + 0.1 sqrt(d ln T))``; "practical" is 0.03.
    """
    bonus = checked_width("bonus", bonus)
    if bonus == "theory":
        low, high = ridge / 2, 3 * ridge / 2
        spread = dimension * log(high / low + horizon / (dimension * low))
        return sqrt(2 * log(2 / _FAILURE) + spread) + sqrt(high) + vector_size / sqrt(low)
    scale = _PRACTICAL if bonus == "practical" else float(bonus)
    return scale * (3 * sqrt(ridge) + 0.1 * sqrt(dimension * log(max(horizon, 2))))


@final
class TreeBelief:
    """Moments of blocks of rounds, released through a tree (rewards already within [-1, 1]).

    A prefix of the tree is ``sum (x x^T, x y)`` plus noise; ``M`` is its matrix plus ``ridge``
    times the identity, with ``ridge = plain + shift * (typical spectral norm of the noise)``, and
    eigenvalues are kept above a tenth of it.
    """

    def __init__(
        self,
        *,
        dimension: int,
        blocks: int,
        horizon: int,
        budget: Budget | None,
        mechanism: str,
        generator: np.random.Generator,
        plain_ridge: float,
        shift: float,
        bonus: Width,
    ) -> None:
        # The sum after the last block is never used: it needs no node.
        steps = max(1, blocks - 1)
        levels = tree_levels(steps)
        self.noise = noise_for(mechanism, dimension, budget, levels)
        drawn = self.noise
        self._tree = TreeSums(
            steps,
            shape=(packed_size(dimension),),
            noise=None if drawn is None else lambda: drawn.draw(generator),
        )
        self._dimension = dimension
        size = 0.0 if drawn is None else drawn.matrix_size(levels)
        self.ridge = positive("ridge", plain_ridge) + positive("shift", shift) * size
        self.bonus = bonus_width(
            bonus,
            ridge=self.ridge,
            dimension=dimension,
            horizon=horizon,
            vector_size=0.0 if drawn is None else drawn.vector_size(levels),
        )
        self._steps = steps
        self.solution = self._solved(np.zeros(packed_size(dimension)))

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Release the moments of a block; those of the last block are not needed."""
        if self._tree.taken < self._steps:
            self.solution = self._solved(self._tree.add(moments(features, targets)))

    def _solved(self, packed: FloatArray) -> Solution:
        return solve(packed, self._dimension, ridge=self.ridge, floor=0.1 * self.ridge)


@final
class SummedBelief:
    """Moments ``(x x^T, x y) + Gaussian noise``, summed (rewards already within [-1, 1]).

    Local model: every user adds noise before sending (``local=True``). Joint model: the curator
    adds it once to the sum of a batch; a user is in one batch, so each has the full budget. The
    matrix has noise of spectral size ``s sqrt(2 d n)`` after ``n`` draws of scale ``s``: the ridge
    follows it, ``ridge_n = plain + shift s sqrt(2 d n)``, as does the bonus.
    """

    def __init__(
        self,
        *,
        dimension: int,
        horizon: int,
        budget: Budget | None,
        generator: np.random.Generator,
        plain_ridge: float,
        shift: float,
        bonus: Width,
        local: bool,
    ) -> None:
        self.noise = GaussianMoments.calibrated(dimension, budget, levels=1)
        self._dimension, self._horizon = dimension, horizon
        self._generator = generator
        self._plain, self._shift = positive("ridge", plain_ridge), positive("shift", shift)
        self._choice = bonus
        self._local = local
        self._sum = np.zeros(packed_size(dimension))
        self._draws = 0
        self._solve()

    def release(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """Noisy moments of a batch; ``n`` reports are simulated by one draw of ``sqrt(n)``."""
        total = moments(features, targets)
        if self.noise.scale > 0:
            draws = len(features) if self._local else 1
            total = total + sqrt(draws) * self.noise.draw(self._generator)
        return total

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Add the moments of a batch."""
        self._sum += self.release(features, targets)
        self._draws += len(features) if self._local else 1
        self._solve()

    def _solve(self) -> None:
        self.ridge = self._plain + self._shift * self.noise.matrix_size(self._draws)
        self.bonus = bonus_width(
            self._choice,
            ridge=self.ridge,
            dimension=self._dimension,
            horizon=self._horizon,
            vector_size=self.noise.vector_size(self._draws),
        )
        self.solution: Solution = solve(
            self._sum, self._dimension, ridge=self.ridge, floor=0.1 * self.ridge
        )
