"""Private least squares in growing batches: ours, in the spirit of He et al."""

from math import ceil
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, positive, whole
from capri.rivals.least_squares import feature_table
from capri.rivals.optimistic_linear import OptimisticLinear
from capri.rivals.summed_belief import SummedBelief
from capri.rivals.tree_belief import Bonus
from capri.spaces import ContextPool


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


@final
class BatchedLinear(OptimisticLinear):
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
        first_batch: int = 100,
        growth: float = 1.5,
        bonus: Bonus = "practical",
        ridge: float = 0.1,
        shift: float = 2.0,
    ) -> None:
        if positive("growth", growth) < 1:
            raise ConfigurationError(f"growth must be 1 or more, got {growth!r}")
        lengths = growing_lengths(
            whole("horizon", horizon), whole("first_batch", first_batch), growth
        )
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
        self._belief = SummedBelief(
            dimension=self._features.shape[2],
            horizon=self._horizon,
            budget=budget,
            generator=self._noise,
            plain_ridge=ridge,
            shift=shift,
            bonus=bonus,
            local=False,
        )
