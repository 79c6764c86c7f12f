"""UCB over actions: AdaP-UCB of Azize & Basu (2022), LDP-UCB of Ren et al. (2020)."""

from math import exp, inf, log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import one_of
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Rival, Width, chosen_width
from capri_lab.rivals.linear.least_squares import first_best

# The analysis wants alpha > 3; at a few thousand rounds much less explores enough.
_THEORY, _PRACTICAL = 3.1, 0.03


def unit_rewards(reward: FloatArray) -> FloatArray:
    """Rewards of [-1, 1] as numbers of [0, 1], which the arms' algorithms are published for."""
    return np.asarray((reward + 1) / 2)


def private_means(
    sums: FloatArray, pulls: int | IntArray, epsilon: float | None, generator: np.random.Generator
) -> FloatArray:
    """``sums / R + Laplace(1 / (eps R))``: replacing a reward of [0, 1] moves one sum by 1."""
    if epsilon is not None:
        sums = sums + generator.laplace(scale=1 / epsilon, size=sums.shape)
    return np.asarray(sums / pulls)


def adap_index(
    means: FloatArray, pulls: IntArray, rounds: int, epsilon: float | None, alpha: float
) -> FloatArray:
    """``mean + sqrt(alpha ln t / (2 n)) + alpha ln t / (eps n)``, ``n`` pulls last episode."""
    width = np.sqrt(alpha * log(rounds) / (2 * pulls))
    if epsilon is not None:
        width = width + alpha * log(rounds) / (epsilon * pulls)
    return np.asarray(means + width)


@final
class AdaPUCB(Rival):
    """UCB over actions whose means come from the last episode of each arm; contexts are ignored.

    Reference: A. Azize, D. Basu, "When Privacy Meets Partial Information: A Refined Analysis of
    Differentially Private Bandits", NeurIPS 2022, arXiv 2209.02570, the algorithm AdaP-UCB: each
    arm once; then the arm of largest index is played until its pulls have doubled, and its private
    mean is taken over that episode alone, with ``Laplace(1 / (eps n))``.

    The published noise is right for rewards in [0, 1] that are replaced, and pure: a user is in one
    episode. Limits: knows no contexts; the published ``alpha > 3`` (``bonus="theory"``) explores
    far too long, "practical" is 0.03, and a number is ``alpha`` itself.
    """

    name = "adap-ucb"
    promise = Promise(model="joint", kind="pure", protects="contexts (unused) and rewards")
    reference = "Azize & Basu 2022"
    needs = "arms"
    reach = 10_000_000

    bonus: Width = "practical"

    def _start(self) -> int:
        self._alpha = chosen_width(self.bonus, practical=_PRACTICAL, theory=_THEORY)
        count = self._actions.count
        self._means = np.zeros(count)
        self._last = np.zeros(count, dtype=np.int64)  # pulls in the last episode
        self._pulls = np.zeros(count, dtype=np.int64)
        self._turn = np.arange(count)  # what the open batch plays
        return count

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        place = self._batch.issued + np.arange(len(context))
        return self._turn[np.minimum(place, len(self._turn) - 1)], np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        arms, counts = np.unique(action, return_counts=True)
        sums: FloatArray = np.bincount(action, unit_rewards(reward)).astype(np.float64)[arms]
        self._means[arms] = private_means(sums, counts, self._epsilon, self._noise)
        self._last[arms] = counts
        self._pulls[arms] += counts
        rounds = max(2, int(self._pulls.sum()) + 1)
        index = np.full(len(self._means), inf)
        seen = self._last > 0
        index[seen] = adap_index(
            self._means[seen], self._last[seen], rounds, self._epsilon, self._alpha
        )
        best = int(index.argmax())
        self._turn = np.array([best])
        return max(1, int(self._pulls[best]))


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

    mechanism: str = "bernoulli"
    bonus: Width = "practical"

    def _start(self) -> int:
        one_of("mechanism", self.mechanism, ("bernoulli", "laplace"))
        scale = chosen_width(self.bonus, practical=0.1, theory=1.0)
        self._width = scale * self._spread()
        self._sums = np.zeros(self._actions.count)
        self._pulls = np.zeros(self._actions.count, dtype=np.int64)
        return 1

    def _spread(self) -> float:
        """The width at ``ln t / n = 1``."""
        if self._epsilon is None:
            return sqrt(2)
        if self.mechanism == "laplace":
            return sqrt(2) + sqrt(32) / self._epsilon
        small = exp(-self._epsilon)
        return sqrt(2) * (1 + small) / (1 - small)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        rounds = int(self._pulls.sum())
        if rounds < len(self._pulls):  # every arm once
            return np.full(len(context), rounds), np.ones(len(context))
        means = self._sums / self._pulls
        if self._epsilon is not None and self.mechanism == "bernoulli":
            means = from_bits(means, self._epsilon)
        index = means + self._width * np.sqrt(log(rounds + 1) / self._pulls)
        return np.repeat(first_best(index[None]), len(context)), np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._sums[action[0]] += self.report(unit_rewards(reward))[0]
        self._pulls[action[0]] += 1
        return 1

    def report(self, rewards: FloatArray) -> FloatArray:
        """What users send of their rewards in [0, 1]."""
        if self._epsilon is None:
            return rewards
        if self.mechanism == "laplace":
            return rewards + self._noise.laplace(scale=1 / self._epsilon, size=rewards.shape)
        return private_bits(rewards, self._epsilon, self._noise)
