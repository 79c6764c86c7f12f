"""The open epoch: the only place that holds what users did."""

from dataclasses import replace

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import ACCEPTED, DUPLICATE, LATE, UNCOUNTED, reward_statuses
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.privacy.gate import Gate, SumMechanism
from capri.privacy.promise import PrivacyModel


class OpenEpoch:
    """The secret state of the epoch under way: who was decided for, and the sum so far.

    In the joint model noise is added once, when the sum passes the gate. In the textbook local
    model every report gets noise before it is summed; a simulation draws the sum of all reports'
    noise at the close.
    """

    def __init__(self, plan: EpochPlan, first: int, problem: Problem, gate: Gate) -> None:
        """``first``: the number of its first decision."""
        self._mechanism = SumMechanism(
            grid=plan.grid,
            rank=plan.dimension,
            model=problem.model,
            calibration=plan.calibration,
        )
        gate.check(self._mechanism, plan.epoch, plan.length)
        self.plan = plan
        self.first = first
        self.issued = 0
        self._noised = 0
        self._gate = gate
        self._local = problem.model is PrivacyModel.LOCAL
        self._noised_alone = self._local and gate.private
        self._contexts = np.empty((plan.length, problem.contexts.dimension))
        self._pool_index = np.empty(plan.length, dtype=np.int64)
        self._action_index = np.empty(plan.length, dtype=np.int64)
        # What a reward for each decision would meet.
        self._status = np.full(plan.length, ACCEPTED, dtype=np.int8)
        self._accumulator = np.zeros(plan.dimension, dtype=np.int64)
        self._encoder = Encoder(plan, problem)

    def __repr__(self) -> str:
        return f"OpenEpoch(epoch={self.plan.epoch}, length={self.plan.length})"

    @property
    def remaining(self) -> int:
        """Decisions left."""
        return self.plan.length - self.issued

    def issue(
        self,
        contexts: FloatArray,
        pool_index: IntArray,
        action_index: IntArray,
        visit: IntArray,
    ) -> IntArray:
        """Note new decisions and number them; ``pool_index`` is -1 for contexts not in a pool.

        ``visit`` is a :class:`VisitStatus`: one that does not count takes a slot like any other and
        contributes the zero vector.
        """
        place = slice(self.issued, self.issued + len(action_index))
        self._contexts[place] = contexts
        self._pool_index[place] = pool_index
        self._action_index[place] = action_index
        self._status[place] = visit
        self._status[place][visit != 0] = UNCOUNTED
        self.issued += len(action_index)
        return np.arange(place.start, place.stop) + self.first

    def reward(self, numbers: IntArray, rewards: FloatArray) -> IntArray:
        """Add the rewards that are awaited; returns a :class:`RewardStatus` code for each."""
        statuses = reward_statuses(numbers, rewards, self._status[: self.issued], self.first)
        if statuses.any():
            accepted = statuses == ACCEPTED
            numbers, rewards = numbers[accepted], rewards[accepted]
        if len(numbers):
            place: IntArray | slice = numbers - self.first
            if len(numbers) == 1:  # a slice is looked up several times faster than an index array
                start = int(numbers[0]) - self.first
                place = slice(start, start + 1)
            total = self._encoder.total(
                self._contexts[place], self._pool_index[place], self._action_index[place], rewards
            )
            self._status[place] = DUPLICATE
            # What is encoded is needed no more: forget it now rather than when the epoch closes.
            self._contexts[place] = 0.0
            self._pool_index[place] = self._action_index[place] = 0
            if self._noised_alone:  # Alg. 1, line 14
                total = self._gate.report(replace(self._mechanism, noises=len(numbers)), total)
                self._noised += len(numbers)
            self._accumulator += total  # Alg. 1, line 15
        return statuses

    def release(self) -> Release:
        """Pass the sum through the gate. A missing reward counts as a reward of 0."""
        missing = np.flatnonzero(self._status[: self.issued] == ACCEPTED)
        total = self._accumulator + self._encoder.total(
            self._contexts[missing],
            self._pool_index[missing],
            self._action_index[missing],
            np.zeros(len(missing)),
        )
        plan = self.plan
        # Joint: once (Alg. 1, line 17). Local: for every visit, whether or not it counts.
        noises = plan.length - self._noised if self._local else 1
        vector, event = self._gate.release(
            replace(self._mechanism, noises=noises),
            total,
            epoch=plan.epoch,
            participants=plan.length,
        )
        return Release(plan=plan, vector=vector, event=event)

    def forsake(self, issued: int) -> None:
        """Give up the first ``issued`` decisions: their rewards can no longer come."""
        self.issued = issued
        self._status[:issued] = LATE

    def state(self) -> dict[str, FloatArray | IntArray]:
        """Secret arrays of an open epoch. Only a simulation may store them."""
        return {
            "open.contexts": self._contexts[: self.issued],
            "open.pool_index": self._pool_index[: self.issued],
            "open.action_index": self._action_index[: self.issued],
            "open.status": self._status[: self.issued].astype(np.int64),
            "open.accumulator": self._accumulator,
        }

    def restore(self, arrays: dict[str, FloatArray | IntArray]) -> None:
        """Go on from :meth:`state`."""
        issued = len(arrays["open.action_index"])
        self.issued = issued
        self._contexts[:issued] = arrays["open.contexts"]
        self._pool_index[:issued] = arrays["open.pool_index"]
        self._action_index[:issued] = arrays["open.action_index"]
        self._status[:issued] = arrays["open.status"]
        self._accumulator = arrays["open.accumulator"].astype(np.int64)
