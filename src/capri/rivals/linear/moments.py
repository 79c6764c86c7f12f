"""LinUCB on private moments: Shariff & Sheffet, growing batches, Zheng et al.

Here is also what such rivals share: features, batches whose lengths are known in advance, a belief.
"""

from abc import ABC, abstractmethod
from math import ceil
from typing import Any, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import positive, whole
from capri.errors import ConfigurationError
from capri.privacy.promise import Promise
from capri.rivals.base import Rival, Width
from capri.rivals.linear.belief import Belief, SummedBelief, TreeBelief
from capri.rivals.linear.least_squares import feature_table, optimistic


def block_lengths(horizon: int, blocks: int) -> IntArray:
    """Rounds in each of ``blocks`` nearly equal blocks.

    >>> block_lengths(10, 4)
    array([2, 3, 2, 3])
    """
    edges = np.linspace(0, horizon, min(whole("blocks", blocks), horizon) + 1).astype(np.int64)
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


class LinearRival(Rival, ABC):
    """Plays the action of largest upper bound, in batches of given lengths."""

    @abstractmethod
    def _rows(self) -> object:
        """One row of features of norm at most 1 for every pair."""

    @abstractmethod
    def _lengths(self) -> IntArray:
        """Rounds in each batch."""

    @abstractmethod
    def _believe(self, dimension: int, batches: int) -> Belief:
        """What is known before the first batch."""

    @final
    def _start(self) -> int:
        lengths = self._lengths()
        self._features = feature_table(self._rows(), self.contexts.size, self._actions.count)
        self._coming = iter(lengths[1:])
        self._belief = self._believe(self._features.shape[2], len(lengths))
        return int(lengths[0])

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        belief = self._belief
        action = optimistic(self._features, context, belief.solution, belief.width)
        return action, np.ones(len(context))

    @final
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._belief.learn(self._features[context, action], reward / self.reward_bound)
        return int(next(self._coming, 1))


class FeatureBlocks(LinearRival, ABC):
    """On features that the user chose, in blocks of equal length."""

    needs = "features"
    reach = 1_000_000

    features: FloatArray
    blocks: int = 64

    @final
    def _rows(self) -> object:
        return self.features

    @final
    def _lengths(self) -> IntArray:
        return block_lengths(self.horizon, self.blocks)


class NoisyMoments(LinearRival, ABC):
    """With noise on both moments, which ridge and width follow."""

    ridge: float = 0.1
    shift: float = 2.0

    @final
    def _noisy(self, dimension: int, bonus: Width) -> dict[str, Any]:
        """What every :class:`~capri.rivals.linear.belief.NoisyBelief` is built from."""
        return {
            "dimension": dimension,
            "horizon": self.horizon,
            "budget": self.budget,
            "generator": self._noise,
            "plain_ridge": self.ridge,
            "shift": self.shift,
            "bonus": bonus,
        }


@final
class ShariffSheffet(FeatureBlocks, NoisyMoments):
    """LinUCB on noisy sums ``(sum x x^T, sum x y)`` released by the tree mechanism.

    Reference: R. Shariff, O. Sheffet, "Differentially Private Contextual Linear Bandits", NeurIPS
    2018, arXiv 1810.00068: Algorithm 1 (linear UCB with changing perturbations: choose, update,
    perturb) fed by Algorithm 2 (the tree of noisy Gram matrices, Wishart or shifted Gaussian).

    What differs, and why. Rounds are cut into ``blocks`` equal ones, with one leaf each:
    ``blocks=horizon`` is the published per-round tree, fewer blocks have fewer levels and less
    noise. Gaussian noise is calibrated exactly, replace-one, on ``(x x^T, x y)`` jointly
    (sensitivity ``sqrt(4.5)``) and over all levels at once, instead of the classical formula level
    by level. Wishart noise has the least freedom that keeps the budget
    (:mod:`capri.rivals.linear.least_squares`; the published 224 is three orders of magnitude
    larger). The published bonus is hopeless at these horizons and available as ``bonus="theory"``.

    Limits: pays for a private matrix of ``d^2 / 2`` numbers, so few features only; the function
    must be linear in them. ``budget=None`` is LinUCB with the same blocks.
    """

    name = "shariff-sheffet"
    promise = Promise(model="joint", kind="approximate")
    reference = "Shariff & Sheffet 2018"

    mechanism: str = "gaussian"
    bonus: Width = "practical"

    def _believe(self, dimension: int, batches: int) -> Belief:
        noisy = self._noisy(dimension, self.bonus)
        return TreeBelief(blocks=batches, mechanism=self.mechanism, **noisy)


@final
class BatchedLinear(NoisyMoments):
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
    first_batch: int = 100
    growth: float = 1.5
    bonus: Width = "practical"

    def _rows(self) -> object:
        return self.features

    def _lengths(self) -> IntArray:
        if positive("growth", self.growth) < 1:
            raise ConfigurationError(f"growth must be 1 or more, got {self.growth!r}")
        return growing_lengths(self.horizon, whole("first_batch", self.first_batch), self.growth)

    def _believe(self, dimension: int, batches: int) -> Belief:
        return SummedBelief(local=False, **self._noisy(dimension, self.bonus))


@final
class Zheng(FeatureBlocks, NoisyMoments):
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

    def _believe(self, dimension: int, batches: int) -> Belief:
        return SummedBelief(local=True, **self._noisy(dimension, self.bonus))
