"""Arm elimination: Sajed & Sheffet (2019) with Laplace noise, Tenenbaum et al. (2021) shuffled."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from functools import lru_cache
from math import ceil, exp, log, sqrt
from typing import final

import numpy as np
from scipy.special import gammaln

from capri.arrays import FloatArray, IntArray
from capri.checks import whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget, Promise
from capri_lab.rivals.arms.ucb import private_means, unit_rewards
from capri_lab.rivals.base import Chance, Rival, Width, chosen_width


@final
class RoundRobin:
    """Plays the arms left in turn, ``pulls`` times each.

    >>> turns = RoundRobin(np.array([2, 5]), pulls=2)
    >>> turns.length, turns.take(3).tolist(), turns.take(1).tolist()
    (4, [2, 5, 2], [5])
    """

    def __init__(self, arms: IntArray, pulls: int) -> None:
        self.arms, self.pulls = arms, pulls
        self._taken = 0

    @property
    def length(self) -> int:
        """Decisions in the whole turn."""
        return len(self.arms) * self.pulls

    def take(self, count: int) -> IntArray:
        """The next ``count`` actions."""
        place = (self._taken + np.arange(count)) % len(self.arms)
        self._taken += count
        return np.asarray(self.arms[place])

    def sums(self, action: IntArray, reward: FloatArray) -> FloatArray:
        """Sum of rewards of each arm left."""
        totals = np.bincount(action, weights=reward, minlength=int(self.arms.max()) + 1)
        return np.asarray(totals[self.arms])


class Elimination(Rival, ABC):
    """Plays the arms left in turn, as often each, and drops those surely worse than the best."""

    needs = "arms"
    reach = 10_000_000

    bonus: Width = "practical"
    failure: Chance = 0.05

    @abstractmethod
    def _first_pulls(self) -> int:
        """Pulls of each arm in the first turn."""

    @abstractmethod
    def _next_pulls(self, arms: int) -> int:
        """Pulls of each of the arms left in the next turn."""

    @abstractmethod
    def _means(self, action: IntArray, reward: FloatArray) -> FloatArray:
        """Private means of the arms of a turn; rewards are in [0, 1]."""

    @abstractmethod
    def _width(self) -> float:
        """How far a mean of the open turn may lie from the truth."""

    @final
    def _start(self) -> int:
        self._scale = chosen_width(self.bonus, practical=0.1, theory=1.0)
        self._turn = RoundRobin(np.arange(self._actions.count), self._first_pulls())
        return self._turn.length

    @final
    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return self._turn.take(len(context)), np.ones(len(context))

    @final
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        turn = self._turn
        if len(action) < turn.length:  # cut by the horizon: nothing follows
            return 1
        means = self._means(action, unit_rewards(reward))
        kept = turn.arms[means >= means.max() - 2 * self._width()]
        # The last arm left is played to the end.
        pulls = self.horizon if len(kept) == 1 else self._next_pulls(len(kept))
        self._turn = RoundRobin(kept, pulls)
        return self._turn.length


def phase_pulls(phase: int, arms: int, epsilon: float | None, failure: float, scale: float) -> int:
    """``R_e = max(32 s^2 ln(8 |S| e^2 / beta) / D^2, 8 s ln(4 |S| e^2 / beta) / (eps D)) + 1``.

    ``D = 2^-e``; ``s`` scales both widths, 1 as published.
    """
    gap = 2.0**-phase
    pulls = 32 * scale**2 * log(8 * arms * phase**2 / failure) / gap**2
    if epsilon is not None:
        pulls = max(pulls, 8 * scale * log(4 * arms * phase**2 / failure) / (epsilon * gap))
    return ceil(pulls) + 1


def phase_width(
    pulls: int, phase: int, arms: int, epsilon: float | None, failure: float, scale: float
) -> float:
    """``h_e + c_e = sqrt(ln(8 |S| e^2/beta) / (2 R)) + ln(4 |S| e^2/beta) / (eps R)``, scaled."""
    width = sqrt(log(8 * arms * phase**2 / failure) / (2 * pulls))
    if epsilon is not None:
        width += log(4 * arms * phase**2 / failure) / (epsilon * pulls)
    return scale * width


@final
class SajedSheffet(Elimination):
    """Private successive elimination over actions; contexts are ignored.

    Reference: T. Sajed, O. Sheffet, "An Optimal Private Stochastic-MAB Algorithm Based on an
    Optimal Private Stopping Rule", ICML 2019, arXiv 1905.09383, the algorithm DP Successive
    Elimination: phases with ``R_e`` pulls of each arm left, Laplace means of that phase alone, and
    elimination at ``2 h_e + 2 c_e`` below the best.

    The published noise ``Laplace(1 / (eps R_e))`` is right for rewards in [0, 1] that are replaced,
    and pure: a user is in one phase and one mean. Rewards are moved to [0, 1].

    Limits: knows no contexts; forgets all earlier phases. The published ``R_e`` makes the first
    phase longer than 1e4 rounds at 50 arms: ``bonus="practical"`` scales the widths by 0.1 and
    ``R_e`` with them.
    """

    name = "sajed-sheffet"
    promise = Promise(model="joint", kind="pure", protects="contexts (unused) and rewards")
    reference = "Sajed & Sheffet 2019"

    def _first_pulls(self) -> int:
        self._phase = 0
        pulls = self._next_pulls(self._actions.count)
        return self.horizon if self._actions.count == 1 else pulls

    def _next_pulls(self, arms: int) -> int:
        self._phase += 1
        return phase_pulls(self._phase, arms, self._epsilon, self.failure, self._scale)

    def _means(self, action: IntArray, reward: FloatArray) -> FloatArray:
        turn = self._turn
        return private_means(turn.sums(action, reward), turn.pulls, self._epsilon, self._noise)

    def _width(self) -> float:
        pulls, arms = self._turn.pulls, len(self._turn.arms)
        return phase_width(pulls, self._phase, arms, self._epsilon, self.failure, self._scale)


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

    def keeps(coins: int) -> bool:
        return coins_delta(coins, budget.epsilon) <= budget.delta

    enough = 1
    while not keeps(enough):
        enough *= 2
        if enough > 1 << 26:
            raise ConfigurationError(f"{budget} needs too many coins: raise epsilon or delta")
    return bisect_left(range(enough), True, lo=enough // 2 + 1, key=keeps)


def shuffled_sum(bits: FloatArray, coins: int, generator: np.random.Generator) -> FloatArray:
    """What the server learns of sums of bits: ones among bits and coins, less half the coins."""
    return np.asarray(bits + generator.binomial(coins, 0.5, size=np.shape(bits)) - coins / 2)


@final
class Tenenbaum(Elimination):
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

    first_pulls: int | None = None

    def _first_pulls(self) -> int:
        self._coins = 0 if self.budget is None else coins_needed(self.budget)
        if self.first_pulls is None:
            # So many that the coins do not drown the first mean: their deviation is about a fifth.
            return max(4, self._coins // 2)
        return whole("first_pulls", self.first_pulls)

    def _next_pulls(self, arms: int) -> int:
        return 2 * self._turn.pulls

    def _means(self, action: IntArray, reward: FloatArray) -> FloatArray:
        if self.budget is not None:
            reward = (self._noise.random(len(reward)) < reward).astype(np.float64)
        sums = self._turn.sums(action, reward)
        if self._coins:
            sums = shuffled_sum(sums, self._coins, self._noise)
        return sums / self._turn.pulls

    def _width(self) -> float:
        """``s sqrt(2 ln(2 K log2(T) / beta)) (sqrt(n) + sqrt(coins)) / (2 n)`` around a mean.

        A mean of ``n`` bits is ``1 / (2 sqrt(n))``-subgaussian, the coins add ``sqrt(coins)/(2n)``.
        """
        pulls = self._turn.pulls
        events = 2 * self._actions.count * log(max(self.horizon, 3), 2) / self.failure
        return self._scale * sqrt(2 * log(events)) * (sqrt(pulls) + sqrt(self._coins)) / (2 * pulls)
