"""Arm elimination over shuffled bits: Tenenbaum, Kaplan, Mansour & Stemmer (2021)."""

from functools import lru_cache
from math import exp, log, sqrt
from typing import final

import numpy as np
from scipy.special import gammaln

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.rivals.arms import Bonus, RoundRobin, as_actions, bonus_scale, unit_rewards
from capri.rivals.base import Promise, Rival, in_unit_interval, whole
from capri.spaces import ContextPool


def coins_delta(coins: int, epsilon: float) -> float:
    """Exact delta at epsilon of a sum of bits hidden among ``coins`` fair coins.

    What is seen after shuffling is the number of ones, ``S + Binomial(coins, 1/2)``; a user moves
    ``S`` by at most 1: ``delta = sum_k (P(B = k) - e^eps P(B = k - 1))_+``, the same both ways.
    """
    ones = np.arange(coins + 1)
    logs = gammaln(coins + 1) - gammaln(ones + 1) - gammaln(coins - ones + 1)
    law = np.append(np.exp(logs - coins * log(2)), 0.0)
    shifted = np.concatenate([[0.0], law[:-1]])
    # Rounding errors of the logarithms, on the private side.
    return float(np.maximum(law - exp(min(epsilon, 700.0)) * shifted, 0.0).sum()) * (1 + 1e-9)


@lru_cache(maxsize=64)
def coins_needed(budget: Budget) -> int:
    """The least number of fair coins that keeps the budget (delta falls with the coins)."""
    enough = 1
    while coins_delta(enough, budget.epsilon) > budget.delta:
        enough *= 2
        if enough > 1 << 26:
            raise ConfigurationError(f"{budget} needs too many coins: raise epsilon or delta")
    few = enough // 2
    while enough - few > 1:
        middle = (few + enough) // 2
        if coins_delta(middle, budget.epsilon) <= budget.delta:
            enough = middle
        else:
            few = middle
    return enough


def shuffled_sum(bits: FloatArray, coins: int, generator: np.random.Generator) -> FloatArray:
    """What the server learns of sums of bits: ones among bits and coins, less half the coins."""
    return np.asarray(bits + generator.binomial(coins, 0.5, size=np.shape(bits)) - coins / 2)


@final
class Tenenbaum(Rival):
    """Arm elimination in growing batches; a trusted shuffler hides who sent which bit.

    Reference: J. Tenenbaum, H. Kaplan, Y. Mansour, U. Stemmer, "Differentially Private Multi-Armed
    Bandits in the Shuffle Model", NeurIPS 2021, arXiv 2106.02900, the algorithm with variable
    batches (VB-SDP-AE): each batch pulls every arm left as often, twice as often as the last, sums
    the rewards by a private binary sum in the shuffle model and eliminates.

    What differs. The private sum is that of Cheu et al. (2019) in its simplest form: a user sends
    the reward rounded at random to a bit, and the first users of an arm's batch send fair coins as
    well; the shuffler delivers the number of ones. How many coins are needed is computed exactly
    (binomial, replace-one) instead of the published constants. With fewer users than coins a user
    sends several, so batches may be short. Widths are those of Hoeffding for the rewards and the
    coins, times ``bonus`` (1 is the theory, practical 0.1). Without a budget there are neither
    coins nor rounding.

    Limits: knows no contexts; the shuffler is trusted, all users are honest.
    """

    name = "tenenbaum"
    promise = Promise(model="shuffle", kind="approximate", protects="contexts (unused) and rewards")
    reference = "Tenenbaum et al. 2021"
    needs = "arms"
    reach = 10_000_000

    def __init__(
        self,
        *,
        actions: object,
        contexts: ContextPool,
        horizon: int,
        simulation_seed: int,
        reward_bound: float = 1.0,
        budget: Budget | None = None,
        bonus: Bonus = "practical",
        first_pulls: int | None = None,
        failure: float = 0.05,
    ) -> None:
        chosen = as_actions(actions)
        self._coins = coins_needed(budget) if isinstance(budget, Budget) else 0
        if first_pulls is None:
            # So many that the coins do not drown the first mean: their deviation is about a fifth.
            first_pulls = max(4, self._coins // 2)
        self._turn = RoundRobin(np.arange(chosen.count), whole("first_pulls", first_pulls))
        super().__init__(
            actions=chosen,
            contexts=contexts,
            horizon=horizon,
            simulation_seed=simulation_seed,
            reward_bound=reward_bound,
            budget=budget,
            first_batch=self._turn.length,
        )
        self._scale = bonus_scale(bonus, practical=0.1)
        self._failure = in_unit_interval("failure", failure)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return self._turn.take(len(context)), np.ones(len(context))

    def _width(self, pulls: int) -> float:
        """``s sqrt(2 ln(2 K log2(T) / beta)) (sqrt(n) + sqrt(coins)) / (2 n)`` around a mean.

        A mean of ``n`` bits is ``1 / (2 sqrt(n))``-subgaussian, the coins add ``sqrt(coins)/(2n)``.
        """
        events = 2 * self._actions.count * log(max(self._horizon, 3), 2) / self._failure
        return self._scale * sqrt(2 * log(events)) * (sqrt(pulls) + sqrt(self._coins)) / (2 * pulls)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        turn = self._turn
        if len(action) < turn.length:  # cut by the horizon: nothing follows
            return 1
        values = unit_rewards(reward, self._bound)
        if self._budget is not None:
            values = (self._noise.random(len(values)) < values).astype(np.float64)
        sums = turn.sums(action, values)
        if self._coins:
            sums = shuffled_sum(sums, self._coins, self._noise)
        means = sums / turn.pulls
        kept = turn.arms[means >= means.max() - 2 * self._width(turn.pulls)]
        self._turn = RoundRobin(kept, self._horizon if len(kept) == 1 else 2 * turn.pulls)
        return self._turn.length
