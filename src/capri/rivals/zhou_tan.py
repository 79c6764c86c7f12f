"""UCB on truncated, locally private rewards: Zhou & Tan (2021)."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, Rival, positive, whole
from capri.rivals.least_squares import (
    Solution,
    feature_table,
    moments,
    optimistic,
    packed_size,
    solve,
)
from capri.rivals.shariff_sheffet import block_lengths
from capri.rivals.tree_belief import Bonus, bonus_width
from capri.spaces import ContextPool

# Only rewards are noisy: more exploration pays than where the matrix is noisy too.
_PRACTICAL = 0.1


def private_rewards(
    rewards: FloatArray, epsilon: float | None, generator: np.random.Generator
) -> FloatArray:
    """``y + Laplace(2 / eps)`` for rewards in [-1, 1]: replacing one moves it by 2."""
    if epsilon is None:
        return rewards
    return np.asarray(rewards + generator.laplace(scale=2 / epsilon, size=rewards.shape))


def truncated(rewards: FloatArray, rounds: IntArray, moment: float) -> FloatArray:
    """``y`` where ``|y| <= sqrt(v) t^(1/4)``, else 0, with ``v`` a bound on ``E y^2``."""
    return np.asarray(np.where(np.abs(rewards) <= np.sqrt(moment) * rounds**0.25, rewards, 0.0))


@final
class ZhouTan(Rival):
    """GP-UCB in feature space on Laplace rewards, truncated at a growing level.

    Reference: X. Zhou, J. Tan, "Local Differential Privacy for Bayesian Optimization", AAAI 2021,
    arXiv 2010.06709, the truncated variant of their GP-UCB with Laplace rewards: noise makes
    rewards heavy-tailed, and truncation at ``b_t`` tames them. With second moments,
    ``b_t = sqrt(v) t^(1/4)`` and ``v = 1 + 2 (2 / eps)^2`` for rewards in [-1, 1].

    Only the reward is protected: the server sees context and action. The Laplace scale is that of
    rewards in [-bound, bound] that are replaced, pure eps.

    What differs. The posterior is that of ridge regression on the features chosen; updates come in
    ``blocks``. Their third variant, median of means, plays a point several times in a row, which
    users with contexts of their own do not allow.

    Limits: contexts are public. ``budget=None`` is LinUCB with the same blocks (nothing is
    truncated, as ``b_t >= 1``).
    """

    name = "zhou-tan"
    promise = Promise(model="local", kind="pure", protects="rewards only")
    reference = "Zhou & Tan 2021"
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
        blocks: int = 256,
        bonus: Bonus = "practical",
        ridge: float = 0.1,
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
        self._epsilon = None if budget is None else budget.epsilon
        self._moment = 1.0 if self._epsilon is None else 1.0 + 8.0 / self._epsilon**2
        # Rewards this much noisier ask for as much more ridge and exploration.
        self._ridge = positive("ridge", ridge) * self._moment
        dimension = self._features.shape[2]
        width = bonus_width(
            _PRACTICAL if bonus == "practical" else bonus,
            ridge=self._ridge,
            dimension=dimension,
            horizon=self._horizon,
            vector_size=0.0,
        )
        self._bonus = width * (float(np.sqrt(self._moment)) if bonus == "theory" else 1.0)
        self._sum = np.zeros(packed_size(dimension))
        self._seen = 0
        self._solution = self._solved()

    def _solved(self) -> Solution:
        return solve(self._sum, self._features.shape[2], ridge=self._ridge)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        action = optimistic(self._features, context, self._solution, self._bonus)
        return action, np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        rounds = self._seen + 1 + np.arange(len(reward))
        sent = private_rewards(reward / self._bound, self._epsilon, self._noise)
        self._sum += moments(self._features[context, action], truncated(sent, rounds, self._moment))
        self._seen += len(reward)
        self._solution = self._solved()
        return int(next(self._lengths, 1))
