"""The open batch of a rival: decisions that do not depend on one another's rewards."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import ACCEPTED, DUPLICATE, reward_statuses


@final
class Batch:
    """Decisions of one batch, as places in the pool and numbers of actions, and their rewards.

    >>> batch = Batch(number=1, first_id=10, length=2)
    >>> batch.issue(np.array([0, 3]), np.array([1, 1]))
    array([10, 11])
    >>> batch.take(np.array([11, 9]), np.array([0.5, 0.5]))
    array([0, 1])
    >>> batch.full, batch.complete, batch.reward
    (True, False, array([0. , 0.5]))
    """

    def __init__(self, *, number: int, first_id: int, length: int) -> None:
        self.number, self.first_id, self.length = number, first_id, length
        self.issued = self._waiting = 0
        self.context: IntArray = np.zeros(length, dtype=np.int64)
        self.action: IntArray = np.zeros(length, dtype=np.int64)
        # A missing reward is 0.
        self.reward: FloatArray = np.zeros(length)
        # What a reward for each decision would meet.
        self._status = np.full(length, ACCEPTED, dtype=np.int8)

    @property
    def full(self) -> bool:
        """All decisions are taken."""
        return self.issued == self.length

    @property
    def complete(self) -> bool:
        """All decisions are taken and all their rewards are in."""
        return self.full and self._waiting == 0

    def issue(self, context: IntArray, action: IntArray) -> IntArray:
        """Note decisions and number them."""
        place = slice(self.issued, self.issued + len(action))
        self.context[place] = context
        self.action[place] = action
        self.issued += len(action)
        self._waiting += len(action)
        return np.arange(place.start, place.stop) + self.first_id

    def take(self, ids: IntArray, rewards: FloatArray) -> IntArray:
        """Note the rewards that are awaited; returns a status for each."""
        statuses = reward_statuses(ids, rewards, self._status[: self.issued], self.first_id)
        accepted = statuses == ACCEPTED
        place = ids[accepted] - self.first_id
        self.reward[place] = rewards[accepted]
        self._status[place] = DUPLICATE
        self._waiting -= len(place)
        return statuses
