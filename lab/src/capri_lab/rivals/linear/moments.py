"""LinUCB on private moments: Shariff & Sheffet, growing batches, Zheng et al.

Here is also what such rivals share: features, batches whose lengths are known in advance, and what
is known of the weights, from moments that a tree or every batch releases.
"""

from abc import ABC, abstractmethod
from math import ceil, log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Positive, Rival, Whole, Width, chosen_width
from capri_lab.rivals.linear.least_squares import (
    GaussianMoments,
    feature_table,
    moments,
    noise_for,
    optimistic,
    packed_size,
    solve,
)
from capri_lab.rivals.linear.tree import TreeSums, tree_levels

# Tuned on ten kernel features, Matern-5/2, T = 1e4 and epsilon 1; the theory's is hopeless there.
_PRACTICAL = 0.03
# Chance that the theory's confidence set fails.
_FAILURE = 0.05


def block_lengths(horizon: int, blocks: int) -> IntArray:
    """Rounds in each of ``blocks`` nearly equal blocks.

    >>> block_lengths(10, 4)
    array([2, 3, 2, 3])
    """
    edges = np.linspace(0, horizon, min(blocks, horizon) + 1).astype(np.int64)
    return np.diff(edges)


def growing_lengths(horizon: int, first: int, growth: float) -> IntArray:
    """Batch lengths that grow by a factor; the last takes what is left.

    >>> growing_lengths(1000, 100, 2.0)
    array([100, 200, 400, 300])
    """
    lengths: list[int] = []
    length = float(first)
    while sum(lengths) < horizon:
        lengths.append(min(ceil(length), horizon - sum(lengths)))
        length *= growth
    return np.array(lengths)


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
    if bonus == "theory":
        low, high = ridge / 2, 3 * ridge / 2
        spread = dimension * log(high / low + horizon / (dimension * low))
        return sqrt(2 * log(2 / _FAILURE) + spread) + sqrt(high) + vector_size / sqrt(low)
    scale = chosen_width(bonus, practical=_PRACTICAL, theory=1.0)
    return scale * (3 * sqrt(ridge) + 0.1 * sqrt(dimension * log(max(horizon, 2))))


class LinearRival(Rival, ABC):
    """Plays the action of largest upper bound, in batches of given lengths.

    ``self._solution`` is what is known of the weights, ``self._width`` the factor of
    ``|x|_{M^-1}`` in an upper bound.
    """

    @abstractmethod
    def _rows(self) -> object:
        """One row of features of norm at most 1 for every pair."""

    @abstractmethod
    def _lengths(self) -> IntArray:
        """Rounds in each batch."""

    @abstractmethod
    def _believe(self, batches: int) -> None:
        """Set solution and width before the first batch."""

    @abstractmethod
    def _revise(self, features: FloatArray, targets: FloatArray) -> None:
        """Set them after a batch: rows of norm at most 1, rewards within [-1, 1]."""

    @final
    def _start(self) -> int:
        lengths = self._lengths()
        self._features = feature_table(self._rows(), self.contexts.size, self._actions.count)
        self.dimension = self._features.shape[2]
        self._coming = iter(lengths[1:])
        self._believe(len(lengths))
        return int(lengths[0])

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        action = optimistic(self._features, context, self._solution, self._width)
        return action, np.ones(len(context))

    @final
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._revise(self._features[context, action], reward)
        return int(next(self._coming, 1))

    @final
    def _solve(
        self, packed: FloatArray, bonus: Width, ridge: float, vector_size: float, floor: float = 0.0
    ) -> None:
        """Solution and width that follow from moments with noise of this typical size."""
        self._solution = solve(packed, self.dimension, ridge=ridge, floor=floor)
        self._width = bonus_width(
            bonus,
            ridge=ridge,
            dimension=self.dimension,
            horizon=self.horizon,
            vector_size=vector_size,
        )


class FeatureBlocks(LinearRival, ABC):
    """On features that the user chose, in blocks of equal length."""

    needs = "features"
    reach = 1_000_000

    features: FloatArray
    blocks: Whole = 64

    @final
    def _rows(self) -> object:
        return self.features

    @final
    def _lengths(self) -> IntArray:
        return block_lengths(self.horizon, self.blocks)


class NoisyMoments(LinearRival, ABC):
    """With noise on both moments, for which ridge and width make up.

    ``M`` is the noisy matrix plus ``r`` times the identity, with ``r = ridge + shift * (typical
    spectral norm of the noise)``; eigenvalues are kept above a tenth of it.
    """

    ridge: Positive = 0.1
    shift: Positive = 2.0

    @final
    def _solve_noisy(self, packed: FloatArray, matrix_size: float, vector_size: float) -> None:
        ridge = self.ridge + self.shift * matrix_size
        # A greedy rival has no such setting, and never plays its width.
        bonus: Width = getattr(self, "bonus", 1.0)
        self._solve(packed, bonus, ridge, vector_size, floor=0.1 * ridge)


class TreeMoments(NoisyMoments, ABC):
    """Moments of blocks of rounds, released through a tree: a prefix is their sum plus noise."""

    def _mechanism(self) -> str:
        return "gaussian"

    @final
    def _believe(self, batches: int) -> None:
        # The sum after the last block is never used: it needs no node.
        self.steps = max(1, batches - 1)
        levels = tree_levels(self.steps)
        self.node_noise = drawn = noise_for(self._mechanism(), self.dimension, self.budget, levels)
        size = packed_size(self.dimension)
        self._tree = TreeSums(
            self.steps,
            shape=(size,),
            noise=None if drawn is None else lambda: drawn.draw(self._noise),
        )
        self._sizes = (0.0, 0.0)
        if drawn is not None:
            self._sizes = drawn.matrix_size(levels), drawn.vector_size(levels)
        self._solve_noisy(np.zeros(size), *self._sizes)

    @final
    def _revise(self, features: FloatArray, targets: FloatArray) -> None:
        if self._tree.taken < self.steps:
            self._solve_noisy(self._tree.add(moments(features, targets)), *self._sizes)


class SummedMoments(NoisyMoments, ABC):
    """Moments ``(x x^T, x y) + Gaussian noise``, summed.

    Local model: every user adds noise before sending. Joint model: the curator adds it once to the
    sum of a batch; a user is in one batch, so each has the full budget. The matrix has noise of
    spectral size ``s sqrt(2 d n)`` after ``n`` draws of scale ``s``: the ridge follows it,
    ``ridge_n = ridge + shift s sqrt(2 d n)``, as does the bonus.
    """

    def _believe(self, batches: int) -> None:
        self.node_noise = GaussianMoments.calibrated(self.dimension, self.budget, levels=1)
        self._sum = np.zeros(packed_size(self.dimension))
        self._draws_summed = 0
        self._solve_noisy(self._sum, 0.0, 0.0)

    def _draws_in(self, rounds: int) -> int:
        return rounds if type(self).promise.model == "local" else 1

    @final
    def release(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """Noisy moments of a batch; ``n`` reports are simulated by one draw of ``sqrt(n)``."""
        total = moments(features, targets)
        if self.node_noise.scale > 0:
            total = total + sqrt(self._draws_in(len(features))) * self.node_noise.draw(self._noise)
        return total

    @final
    def _revise(self, features: FloatArray, targets: FloatArray) -> None:
        self._sum += self.release(features, targets)
        self._draws_summed += self._draws_in(len(features))
        noise, draws = self.node_noise, self._draws_summed
        self._solve_noisy(self._sum, noise.matrix_size(draws), noise.vector_size(draws))


@final
class ShariffSheffet(FeatureBlocks, TreeMoments):
    """LinUCB on noisy sums ``(sum x x^T, sum x y)`` released by the tree mechanism.

    Reference: R. Shariff, O. Sheffet, "Differentially Private Contextual Linear Bandits", NeurIPS
    2018, arXiv 1810.00068: Algorithm 1 (linear UCB with changing perturbations: choose, update,
    perturb) fed by Algorithm 2 (the tree of noisy Gram matrices, Wishart or shifted Gaussian).

    What differs, and why. Rounds are cut into ``blocks`` equal ones, with one leaf each:
    ``blocks=horizon`` is the published per-round tree, fewer blocks have fewer levels and less
    noise. Gaussian noise is calibrated exactly, replace-one, on ``(x x^T, x y)`` jointly
    (sensitivity ``sqrt(4.5)``) and over all levels at once, instead of the classical formula level
    by level. Wishart noise has the least freedom that keeps the budget
    (:mod:`capri_lab.rivals.linear.least_squares`; the published 224 is three orders of magnitude
    larger). The published bonus is hopeless at these horizons and available as ``bonus="theory"``.

    Limits: pays for a private matrix of ``d^2 / 2`` numbers, so few features only; the function
    must be linear in them. ``budget=None`` is LinUCB with the same blocks.
    """

    name = "shariff-sheffet"
    promise = Promise(model="joint", kind="approximate")
    reference = "Shariff & Sheffet 2018"

    mechanism: str = "gaussian"
    bonus: Width = "practical"

    def _mechanism(self) -> str:
        return self.mechanism


@final
class BatchedLinear(SummedMoments):
    """LinUCB whose moments are released once per batch, with the full budget each.

    Ours, in the spirit of J. He, J. Zhang, R. Zhang, "A Reduction from Linear Contextual Bandit
    Lower Bounds to Estimation Lower Bounds" and the rate discussed there: they give no pseudo-code
    for a private algorithm, so neither steps nor constants are theirs. Batches grow
    geometrically; after each, ``(sum x x^T, sum x y)`` of that batch gets Gaussian noise, and the
    noisy moments of all batches are added up. A user is in one batch, later batches are
    post-processing of its release: every batch may spend the whole budget (replace-one sensitivity
    ``sqrt(4.5)``, exact calibration), and only ``log T`` draws of noise are ever summed.

    Limits: adapts ``log T`` times only; few features; the function must be linear in them.
    ``budget=None`` is LinUCB with the same batches.
    """

    name = "batched-linear"
    promise = Promise(model="joint", kind="approximate")
    reference = "ours, in the spirit of He et al. 2022"
    needs = "features"
    reach = 10_000_000

    features: FloatArray
    first_batch: Whole = 100
    growth: Positive = 1.5
    bonus: Width = "practical"

    def _rows(self) -> object:
        return self.features

    def _lengths(self) -> IntArray:
        if self.growth < 1:
            raise ConfigurationError(f"growth must be 1 or more, got {self.growth!r}")
        return growing_lengths(self.horizon, self.first_batch, self.growth)


@final
class Zheng(FeatureBlocks, SummedMoments):
    """LinUCB decided on the user's device; the server sums noisy ``(x x^T, x y)``.

    Reference: K. Zheng, T. Cai, W. Huang, Z. Li, L. Wang, "Locally Differentially Private
    (Contextual) Bandits Learning", NeurIPS 2020, arXiv 2006.00701, the algorithm for contextual
    linear bandits: the user downloads estimate and matrix, plays optimistically and sends both
    moments with Gaussian noise; the server adds a ridge that outgrows the noise.

    What differs. One Gaussian vector for both moments at replace-one sensitivity ``sqrt(4.5)``,
    calibrated exactly, instead of the classical formula. The server publishes in ``blocks``
    (``blocks=horizon`` is the published every round). The ridge is ``shift`` times the typical
    spectral norm of the noise so far, and the bonus is scaled ("theory" has the published shape).

    Limits: noise of ``d^2 / 2`` numbers grows as ``sqrt(T)``: few features only, and long horizons.
    """

    name = "zheng"
    promise = Promise(model="local", kind="approximate")
    reference = "Zheng et al. 2020"

    bonus: Width = "practical"
