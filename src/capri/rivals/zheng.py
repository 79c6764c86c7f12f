"""LinUCB on locally private moments: Zheng et al. (2020)."""

from typing import final

from capri.arrays import FloatArray
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, whole
from capri.rivals.least_squares import feature_table
from capri.rivals.optimistic_linear import OptimisticLinear
from capri.rivals.shariff_sheffet import block_lengths
from capri.rivals.summed_belief import SummedBelief
from capri.rivals.tree_belief import Bonus
from capri.spaces import ContextPool


@final
class Zheng(OptimisticLinear):
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
        self._belief = SummedBelief(
            dimension=self._features.shape[2],
            horizon=self._horizon,
            budget=budget,
            generator=self._noise,
            plain_ridge=ridge,
            shift=shift,
            bonus=bonus,
            local=True,
        )
