"""LinUCB through a binary tree: Shariff & Sheffet (2018)."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, whole
from capri.rivals.least_squares import feature_table
from capri.rivals.optimistic_linear import OptimisticLinear
from capri.rivals.tree_belief import Bonus, TreeBelief
from capri.spaces import ContextPool


def block_lengths(horizon: int, blocks: int) -> IntArray:
    """Rounds in each of ``blocks`` nearly equal blocks.

    >>> block_lengths(10, 4)
    array([2, 3, 2, 3])
    """
    edges = np.linspace(0, horizon, min(blocks, horizon) + 1).astype(np.int64)
    return np.diff(edges)


@final
class ShariffSheffet(OptimisticLinear):
    """LinUCB on noisy sums ``(sum x x^T, sum x y)`` released by the tree mechanism.

    Reference: R. Shariff, O. Sheffet, "Differentially Private Contextual Linear Bandits", NeurIPS
    2018, arXiv 1810.00068: Algorithm 1 (linear UCB with changing perturbations: choose, update,
    perturb) fed by Algorithm 2 (the tree of noisy Gram matrices, Wishart or shifted Gaussian).

    What differs, and why. Rounds are cut into ``blocks`` equal ones, with one leaf each:
    ``blocks=horizon`` is the published per-round tree, fewer blocks have fewer levels and less
    noise. Gaussian noise is calibrated exactly, replace-one, on ``(x x^T, x y)`` jointly
    (sensitivity ``sqrt(4.5)``) and over all levels at once, instead of the classical formula level
    by level. Wishart noise has the least freedom that keeps the budget
    (:mod:`capri.rivals.least_squares`; the published 224 is three orders of magnitude larger). The
    published bonus is hopeless at these horizons and available as ``bonus="theory"``.

    Limits: pays for a private matrix of ``d^2 / 2`` numbers, so few features only; the function
    must be linear in them. ``budget=None`` is LinUCB with the same blocks.
    """

    name = "shariff-sheffet"
    promise = Promise(model="joint", kind="approximate")
    reference = "Shariff & Sheffet 2018"
    needs = "features"
    reach = 1_000_000

    def __init__(
        self,
        *,
        features: FloatArray,
        actions: object,
        contexts: ContextPool,
        horizon: int,
        simulation_seed: int,
        reward_bound: float = 1.0,
        budget: Budget | None = None,
        mechanism: str = "gaussian",
        blocks: int = 64,
        bonus: Bonus = "practical",
        ridge: float = 0.1,
        shift: float = 2.0,
    ) -> None:
        lengths = block_lengths(whole("horizon", horizon), whole("blocks", blocks))
        super().__init__(
            actions=actions,
            contexts=contexts,
            horizon=horizon,
            simulation_seed=simulation_seed,
            reward_bound=reward_bound,
            budget=budget,
            first_batch=int(lengths[0]),
        )
        self._features = feature_table(features, self._pool.size, self._actions.count)
        self._lengths = iter(lengths[1:])
        self._belief = TreeBelief(
            dimension=self._features.shape[2],
            blocks=len(lengths),
            horizon=self._horizon,
            budget=budget,
            mechanism=mechanism,
            generator=self._noise,
            plain_ridge=ridge,
            shift=shift,
            bonus=bonus,
        )
