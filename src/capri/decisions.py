"""Decisions, and the open epoch: the only place that holds what users did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import overload

import numpy as np

from capri.encoder import Encoder
from capri.errors import ConfigurationError
from capri.gate import Gate
from capri.plan import EpochPlan, Release
from capri.problem import Problem
from capri.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Decision:
    """One decision. Only ``id`` and ``epoch`` are shown: the rest belongs to the user."""

    id: int
    epoch: int
    action_index: int = field(repr=False)
    action: FloatArray = field(repr=False, compare=False)
    propensity: float = field(repr=False)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of one epoch as arrays; ``decisions[i]`` and iteration give single ones."""

    id: IntArray
    epoch: int
    action_index: IntArray = field(repr=False)
    action: FloatArray = field(repr=False)
    propensity: FloatArray = field(repr=False)

    def __len__(self) -> int:
        return len(self.id)

    @overload
    def __getitem__(self, position: int) -> Decision: ...

    @overload
    def __getitem__(self, position: slice) -> "Decisions": ...

    def __getitem__(self, position: int | slice) -> "Decision | Decisions":
        if isinstance(position, slice):
            return Decisions(
                self.id[position],
                self.epoch,
                self.action_index[position],
                self.action[position],
                self.propensity[position],
            )
        return Decision(
            int(self.id[position]),
            self.epoch,
            int(self.action_index[position]),
            self.action[position],
            float(self.propensity[position]),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[position] for position in range(len(self)))


def decision_ids(decisions: Decisions | Sequence[Decision | int]) -> IntArray:
    """The numbers of some decisions, given as such or by number."""
    if isinstance(decisions, Decisions):
        return decisions.id
    if isinstance(decisions, Decision):
        raise ConfigurationError("update_many takes a sequence of decisions: use update for one")
    ids = [each.id if isinstance(each, Decision) else each for each in decisions]
    if not all(isinstance(each, int | np.integer) and abs(int(each)) < 2**63 for each in ids):
        raise ConfigurationError("a reward needs the decision that policy.act gave, or its id")
    return np.array(ids, dtype=np.int64)


class RewardStatus(IntEnum):
    """What became of a reward."""

    ACCEPTED = 0
    LATE = 1
    DUPLICATE = 2
    UNKNOWN = 3

    def __str__(self) -> str:
        return self.name.lower()


# Plain numbers: looking up a member of an enumeration costs as much as encoding a reward.
_ACCEPTED, _LATE, _DUPLICATE, _UNKNOWN = (int(status) for status in RewardStatus)


class OpenEpoch:
    """The secret state of the epoch under way: who was decided for, and the sum so far."""

    def __init__(
        self, plan: EpochPlan, first_id: int, problem: Problem, gate: Gate, origin: int = 0
    ) -> None:
        gate.check(plan)
        self.plan = plan
        self._origin = origin  # number of the policy's very first decision
        self.first_id = first_id
        self.issued = 0
        self._waiting = 0
        self._gate = gate
        self._contexts = np.empty((plan.length, problem.contexts.dimension))
        self._pool_index = np.empty(plan.length, dtype=np.int64)
        self._action_index = np.empty(plan.length, dtype=np.int64)
        # What a reward for each decision would meet: accepted, duplicate, or late.
        self._status = np.full(plan.length, _ACCEPTED, dtype=np.int8)
        self._accumulator = np.zeros(plan.dimension, dtype=np.int64)
        self._encoder = Encoder(plan, problem)

    def __repr__(self) -> str:
        return f"OpenEpoch(epoch={self.plan.epoch}, length={self.plan.length})"

    @property
    def remaining(self) -> int:
        """Decisions left."""
        return self.plan.length - self.issued

    @property
    def complete(self) -> bool:
        """All decisions are taken and all their rewards are in (Alg. 1, line 16)."""
        return self.remaining == 0 and self._waiting == 0

    def issue(self, contexts: FloatArray, pool_index: IntArray, action_index: IntArray) -> IntArray:
        """Note new decisions and number them; ``pool_index`` is -1 for contexts not in a pool."""
        place = slice(self.issued, self.issued + len(action_index))
        self._contexts[place] = contexts
        self._pool_index[place] = pool_index
        self._action_index[place] = action_index
        self.issued += len(action_index)
        self._waiting += len(action_index)
        return np.arange(place.start, place.stop) + self.first_id

    def reward(self, ids: IntArray, rewards: FloatArray) -> IntArray:
        """Add the rewards that are awaited; returns a :class:`RewardStatus` code for each."""
        statuses = self._statuses(ids)
        if statuses.any():
            accepted = statuses == _ACCEPTED
            ids, rewards = ids[accepted], rewards[accepted]
        if len(ids):
            place: IntArray | slice = ids - self.first_id
            if len(ids) == 1:  # a slice is looked up several times faster than an index array
                first = int(ids[0]) - self.first_id
                place = slice(first, first + 1)
            total = self._encoder.total(
                self._contexts[place], self._pool_index[place], self._action_index[place], rewards
            )
            self._status[place] = _DUPLICATE
            # What is encoded is needed no more: forget it now rather than when the epoch closes.
            self._contexts[place] = 0.0
            self._pool_index[place] = self._action_index[place] = 0
            self._waiting -= len(ids)
            # Alg. 1, lines 14-15.
            self._accumulator += self._gate.report(self.plan, total, reports=len(ids))
        return statuses

    def _statuses(self, ids: IntArray) -> IntArray:
        """What each reward meets; of several for one decision the first counts."""
        if len(ids) == 1 and 0 <= (first := int(ids[0]) - self.first_id) < self.issued:
            return self._status[first : first + 1].astype(np.int64)
        place = ids - self.first_id
        known = (place >= 0) & (place < self.issued)
        if known.all():
            result = self._status[place].astype(np.int64)
        else:
            result = np.where(known, self._status[np.where(known, place, 0)], _UNKNOWN)
            result[(ids >= self._origin) & (ids < self.first_id)] = _LATE
        if len(ids) > 1:
            _, earliest = np.unique(ids, return_index=True)
            repeated = np.ones(len(ids), dtype=np.bool_)
            repeated[earliest] = False
            result[repeated & (result == _ACCEPTED)] = _DUPLICATE
        return result

    def release(self) -> Release:
        """Pass the sum through the gate. A missing reward counts as a reward of 0."""
        missing = np.flatnonzero(self._status[: self.issued] == _ACCEPTED)
        total = self._accumulator + self._encoder.total(
            self._contexts[missing],
            self._pool_index[missing],
            self._action_index[missing],
            np.zeros(len(missing)),
        )
        return self._gate.release(self.plan, total, missing=len(missing))

    def forsake(self, issued: int) -> None:
        """Give up the first ``issued`` decisions: their rewards can no longer come."""
        self.issued, self._waiting = issued, 0
        self._status[:issued] = _LATE

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
        self._waiting = int((self._status[:issued] == _ACCEPTED).sum())
        self._accumulator = arrays["open.accumulator"].astype(np.int64)
