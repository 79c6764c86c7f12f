"""UCB in doubling episodes with forgetting: AdaP-UCB, Azize & Basu (2022)."""

from math import inf, log
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.rivals.arms import as_actions, unit_rewards
from capri.rivals.base import Promise, Rival, positive
from capri.rivals.sajed_sheffet import private_means
from capri.spaces import ContextPool

# The analysis wants alpha > 3; at a few thousand rounds much less explores enough.
_THEORY, _PRACTICAL = 3.1, 0.03


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

    def __init__(
        self,
        *,
        actions: object,
        contexts: ContextPool,
        horizon: int,
        simulation_seed: int,
        reward_bound: float = 1.0,
        budget: Budget | None = None,
        bonus: str | float = "practical",
    ) -> None:
        chosen = as_actions(actions)
        super().__init__(
            actions=chosen,
            contexts=contexts,
            horizon=horizon,
            simulation_seed=simulation_seed,
            reward_bound=reward_bound,
            budget=budget,
            first_batch=chosen.count,
        )
        if isinstance(bonus, str) and bonus not in ("practical", "theory"):
            raise ConfigurationError(
                f"bonus must be 'practical', 'theory' or a number, got {bonus!r}"
            )
        named = {"practical": _PRACTICAL, "theory": _THEORY}
        self._alpha = named[bonus] if isinstance(bonus, str) else positive("bonus", bonus)
        self._epsilon = None if budget is None else budget.epsilon
        count = self._actions.count
        self._means = np.zeros(count)
        self._last = np.zeros(count, dtype=np.int64)  # pulls in the last episode
        self._pulls = np.zeros(count, dtype=np.int64)
        self._turn = np.arange(count)  # what the open batch plays

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        place = self._issued + np.arange(len(context))
        return self._turn[np.minimum(place, len(self._turn) - 1)], np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        arms, counts = np.unique(action, return_counts=True)
        sums = np.bincount(action, weights=unit_rewards(reward, self._bound))[arms]
        for arm, count, total in zip(arms, counts, sums, strict=True):
            self._means[arm] = private_means(
                np.array([total]), int(count), self._epsilon, self._noise
            )[0]
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
