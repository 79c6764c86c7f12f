"""Uniform play: the yardstick that every regret is divided by."""

from typing import ClassVar, final

from capri.arrays import IntArray
from capri.privacy.promise import PERFECT, Promise
from capri.rivals.blind import Blind


@final
class UniformPlay(Blind):
    """Plays every action with equal probability, whatever the context, and learns nothing.

    >>> policy = UniformPlay(actions=[[0.0], [1.0]], horizon=3, simulation_seed=0)
    >>> policy.act_many([[0.5], [0.7]]).propensity
    array([0.5, 0.5])
    >>> policy.remaining
    1
    """

    name = "uniform"
    promise: ClassVar[Promise] = PERFECT
    reference: ClassVar[str] = "the yardstick of every study"
    guarantee: ClassVar[str] = "perfect privacy: contexts and rewards are never used"

    def _draw(self, count: int) -> IntArray:
        return self._streams.actions.integers(self._actions.count, size=count)

    def _chance(self) -> float:
        return 1.0 / self._actions.count
