"""What linear rivals know: released moments, their solution and the width to play."""

from dataclasses import dataclass
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
    width: float

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


@dataclass(kw_only=True, eq=False)
class NoisyBelief:
    """Moments with noise, for which ridge and width make up (rewards already within [-1, 1]).

    ``M`` is the noisy matrix plus ``ridge`` times the identity, with ``ridge = plain + shift *
    (typical spectral norm of the noise)``; eigenvalues are kept above a tenth of it.
    """

    dimension: int
    horizon: int
    budget: Budget | None
    generator: np.random.Generator
    plain_ridge: float
    shift: float
    bonus: Width

    @final
    def _solve(self, packed: FloatArray, matrix_size: float, vector_size: float) -> None:
        """What follows from moments with noise of these typical sizes."""
        self.ridge = positive("ridge", self.plain_ridge)
        self.ridge += positive("shift", self.shift) * matrix_size
        self.width = bonus_width(
            self.bonus,
            ridge=self.ridge,
            dimension=self.dimension,
            horizon=self.horizon,
            vector_size=vector_size,
        )
        self.solution = solve(packed, self.dimension, ridge=self.ridge, floor=0.1 * self.ridge)


@final
@dataclass(kw_only=True, eq=False)
class TreeBelief(NoisyBelief):
    """Moments of blocks of rounds, released through a tree: a prefix is their sum plus noise."""

    blocks: int
    mechanism: str = "gaussian"

    def __post_init__(self) -> None:
        # The sum after the last block is never used: it needs no node.
        self.steps = max(1, self.blocks - 1)
        levels = tree_levels(self.steps)
        self.noise = drawn = noise_for(self.mechanism, self.dimension, self.budget, levels)
        size = packed_size(self.dimension)
        self._tree = TreeSums(
            self.steps,
            shape=(size,),
            noise=None if drawn is None else lambda: drawn.draw(self.generator),
        )
        self._sizes = (0.0, 0.0)
        if drawn is not None:
            self._sizes = drawn.matrix_size(levels), drawn.vector_size(levels)
        self._solve(np.zeros(size), *self._sizes)

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Release the moments of a block; those of the last block are not needed."""
        if self._tree.taken < self.steps:
            self._solve(self._tree.add(moments(features, targets)), *self._sizes)


@final
@dataclass(kw_only=True, eq=False)
class SummedBelief(NoisyBelief):
    """Moments ``(x x^T, x y) + Gaussian noise``, summed.

    Local model: every user adds noise before sending (``local=True``). Joint model: the curator
    adds it once to the sum of a batch; a user is in one batch, so each has the full budget. The
    matrix has noise of spectral size ``s sqrt(2 d n)`` after ``n`` draws of scale ``s``: the ridge
    follows it, ``ridge_n = plain + shift s sqrt(2 d n)``, as does the bonus.
    """

    local: bool

    def __post_init__(self) -> None:
        self.noise = GaussianMoments.calibrated(self.dimension, self.budget, levels=1)
        self._sum = np.zeros(packed_size(self.dimension))
        self._draws = 0
        self._solve(self._sum, 0.0, 0.0)

    def release(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """Noisy moments of a batch; ``n`` reports are simulated by one draw of ``sqrt(n)``."""
        total = moments(features, targets)
        if self.noise.scale > 0:
            draws = len(features) if self.local else 1
            total = total + sqrt(draws) * self.noise.draw(self.generator)
        return total

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Add the moments of a batch."""
        self._sum += self.release(features, targets)
        self._draws += len(features) if self.local else 1
        noise = self.noise
        self._solve(self._sum, noise.matrix_size(self._draws), noise.vector_size(self._draws))
