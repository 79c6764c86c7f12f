"""What multi-armed rivals share: rewards in [0, 1] and round-robin play."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.rivals.base import positive
from capri.spaces import Actions, FixedActions

Bonus = str | float


def bonus_scale(bonus: Bonus, *, practical: float) -> float:
    """The factor on the published confidence width: 1 for "theory", or a number."""
    if bonus == "theory":
        return 1.0
    if bonus == "practical":
        return practical
    if isinstance(bonus, str):
        raise ConfigurationError(f"bonus must be 'practical', 'theory' or a number, got {bonus!r}")
    return positive("bonus", bonus)


def as_actions(actions: object) -> Actions:
    """Rows of actions as an action set."""
    return actions if isinstance(actions, Actions) else FixedActions(actions)  # type: ignore[arg-type]


def unit_rewards(reward: FloatArray, bound: float) -> FloatArray:
    """Rewards of ``[-bound, bound]`` as numbers of [0, 1]."""
    return np.asarray((reward / bound + 1) / 2)


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
