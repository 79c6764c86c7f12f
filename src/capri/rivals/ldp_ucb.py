"""UCB on rewards that are private before they leave the user: Ren et al. (2020)."""

from math import exp, log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.rivals.arms import Bonus, bonus_scale, unit_rewards
from capri.rivals.base import Promise, Rival
from capri.rivals.least_squares import first_best
from capri.spaces import ContextPool


def private_bits(rewards: FloatArray, epsilon: float, generator: np.random.Generator) -> FloatArray:
    """One bit per reward of [0, 1]: ``P(1) = (1 + (e^eps - 1) r) / (e^eps + 1)``, pure eps-LDP.

    Written in ``e^-eps`` so that a large epsilon does not overflow.
    """
    small = exp(-epsilon)
    chance = (small + (1 - small) * rewards) / (1 + small)
    return (generator.random(np.shape(rewards)) < chance).astype(np.float64)


def from_bits(mean: FloatArray, epsilon: float) -> FloatArray:
    """The unbiased estimate ``((e^eps + 1) mean - 1) / (e^eps - 1)``."""
    small = exp(-epsilon)
    return np.asarray(((1 + small) * mean - small) / (1 - small))


@final
class LDPUCB(Rival):
    """UCB over actions on locally private rewards; contexts are ignored.

    Reference: W. Ren, X. Zhou, J. Liu, N. Shroff, "Multi-Armed Bandits with Local Differential
    Privacy", arXiv 2007.03121: LDP-UCB-B (``mechanism="bernoulli"``: the reward becomes one
    randomised bit) and LDP-UCB-L (``mechanism="laplace"``: reward plus ``Laplace(1 / eps)``).

    Both are pure and right as published for rewards in [0, 1]; user and server know the action,
    and no context is sent. Widths, times ``bonus`` (1 is the theory, practical 0.1):

        bernoulli  sqrt(2 ln t / n) (e^eps + 1) / (e^eps - 1)
        laplace    sqrt(2 ln t / n) + sqrt(32 ln t / n) / eps

    the second as we remember it, without its case for few pulls. Without a budget rewards are
    used as they are. Limits: knows no contexts.
    """

    name = "ldp-ucb"
    promise = Promise(model="local", kind="pure", protects="contexts (unused) and rewards")
    reference = "Ren et al. 2020"
    needs = "arms"
    reach = 1_000_000

    def __init__(
        self,
        *,
        actions: object,
        contexts: ContextPool,
        horizon: int,
        simulation_seed: int,
        reward_bound: float = 1.0,
        budget: Budget | None = None,
        mechanism: str = "bernoulli",
        bonus: Bonus = "practical",
    ) -> None:
        super().__init__(
            actions=actions,
            contexts=contexts,
            horizon=horizon,
            simulation_seed=simulation_seed,
            reward_bound=reward_bound,
            budget=budget,
        )
        if mechanism not in ("bernoulli", "laplace"):
            raise ConfigurationError(
                f"mechanism must be 'bernoulli' or 'laplace', got {mechanism!r}"
            )
        self._mechanism = mechanism
        self._epsilon = None if budget is None else budget.epsilon
        scale = bonus_scale(bonus, practical=0.1)
        self._width = scale * self._spread()
        self._sums = np.zeros(self._actions.count)
        self._pulls = np.zeros(self._actions.count, dtype=np.int64)

    def _spread(self) -> float:
        """The width at ``ln t / n = 1``."""
        if self._epsilon is None:
            return sqrt(2)
        if self._mechanism == "laplace":
            return sqrt(2) + sqrt(32) / self._epsilon
        small = exp(-self._epsilon)
        return sqrt(2) * (1 + small) / (1 - small)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        rounds = int(self._pulls.sum())
        if rounds < len(self._pulls):  # every arm once
            return np.full(len(context), rounds), np.ones(len(context))
        means = self._sums / self._pulls
        if self._epsilon is not None and self._mechanism == "bernoulli":
            means = from_bits(means, self._epsilon)
        index = means + self._width * np.sqrt(log(rounds + 1) / self._pulls)
        return np.repeat(first_best(index[None]), len(context)), np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._sums[action[0]] += self.report(unit_rewards(reward, self._bound))[0]
        self._pulls[action[0]] += 1
        return 1

    def report(self, rewards: FloatArray) -> FloatArray:
        """What users send of their rewards in [0, 1]."""
        if self._epsilon is None:
            return rewards
        if self._mechanism == "laplace":
            return rewards + self._noise.laplace(scale=1 / self._epsilon, size=rewards.shape)
        return private_bits(rewards, self._epsilon, self._noise)
