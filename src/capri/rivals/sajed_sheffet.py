"""Successive elimination with Laplace noise: Sajed & Sheffet (2019)."""

from math import ceil, log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.privacy.budget import Budget
from capri.rivals.arms import Bonus, RoundRobin, as_actions, bonus_scale, unit_rewards
from capri.rivals.base import Promise, Rival, in_unit_interval, whole
from capri.spaces import ContextPool


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


def private_means(
    sums: FloatArray, pulls: int, epsilon: float | None, generator: np.random.Generator
) -> FloatArray:
    """``sums / R + Laplace(1 / (eps R))``: replacing a reward of [0, 1] moves one sum by 1."""
    if epsilon is not None:
        sums = sums + generator.laplace(scale=1 / epsilon, size=sums.shape)
    return np.asarray(sums / pulls)


@final
class SajedSheffet(Rival):
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
        failure: float = 0.05,
    ) -> None:
        chosen = as_actions(actions)
        # Anything but a budget is refused by the base class, which comes next.
        self._epsilon = budget.epsilon if isinstance(budget, Budget) else None
        self._scale = bonus_scale(bonus, practical=0.1)
        self._failure = in_unit_interval("failure", failure)
        self._phase = 0
        self._last_pulls = whole("horizon", horizon)
        super().__init__(
            actions=chosen,
            contexts=contexts,
            horizon=horizon,
            simulation_seed=simulation_seed,
            reward_bound=reward_bound,
            budget=budget,
            first_batch=self._next_phase(np.arange(chosen.count)),
        )

    def _next_phase(self, arms: IntArray) -> int:
        """The pulls of the next phase; the last arm left is played to the end."""
        self._phase += 1
        pulls = phase_pulls(self._phase, len(arms), self._epsilon, self._failure, self._scale)
        self._turn = RoundRobin(arms, self._last_pulls if len(arms) == 1 else pulls)
        return self._turn.length

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return self._turn.take(len(context)), np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        turn = self._turn
        if len(action) < turn.length:  # cut by the horizon: nothing follows
            return 1
        sums = turn.sums(action, unit_rewards(reward, self._bound))
        means = private_means(sums, turn.pulls, self._epsilon, self._noise)
        width = phase_width(
            turn.pulls, self._phase, len(turn.arms), self._epsilon, self._failure, self._scale
        )
        return self._next_phase(turn.arms[means >= means.max() - 2 * width])
