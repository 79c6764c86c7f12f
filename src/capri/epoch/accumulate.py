"""An epoch with its data: the only place in memory that holds what users did."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import ACCEPTED, DUPLICATE, LATE, UNCOUNTED, reward_statuses
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import MOST_REWARDS, settled
from capri.epoch.shadow import ShadowRecord, ShadowSum
from capri.epoch.storage import Arrays, plan_state, segment_from_state, segment_state
from capri.privacy.gate import Gate
from capri.privacy.promise import PrivacyModel
from capri.spaces import Actions

# When an epoch began, was full, and is due: public numbers and times.
_TIMES = ("closes", "deadline", "began", "filled")


class OpenEpoch:
    """The secret state of an epoch: who was decided for, and the sum so far.

    It takes decisions, then waits for rewards, then passes the gate once. ``closes`` is the number
    of decisions of the policy at which it is due, ``deadline`` the time; None while it still takes
    decisions, or where the other one counts.

    In the joint model noise is added once, when the sum passes the gate. In the textbook local
    model every report gets noise before it is summed; a simulation draws the sum of all reports'
    noise at the close.
    """

    def __init__(self, plan: EpochPlan, first: int, problem: Problem, gate: Gate) -> None:
        """``first``: the number of its first decision."""
        gate.check(plan.layout, epoch=plan.epoch, participants=plan.length, model=problem.model)
        self.plan = plan
        self.first = first
        self.issued = 0
        self.closes: int | None = None
        self.deadline: float | None = None
        self.began: float | None = None
        self.filled: float | None = None
        self._noised = 0
        self._noised_alone = problem.model is PrivacyModel.LOCAL and gate.private
        self._gate = gate
        self._problem = problem
        self._terms = problem.rewards
        self._keyed = problem.rewards.rule.keyed
        columns = problem.actions.pair_dimension(problem.contexts.dimension)
        self._pairs = np.empty((plan.length, columns))
        self._pool_index = np.empty(plan.length, dtype=np.int64)
        self._action_index = np.empty(plan.length, dtype=np.int64)
        # What a reward for each decision would meet.
        self._status = np.full(plan.length, ACCEPTED, dtype=np.int8)
        # Where several rewards may come, they are combined here until the epoch closes.
        self._combined = np.full(plan.length if self._keyed else 0, np.nan)
        self._seen: dict[int, set[str]] = {}
        self._accumulator = np.zeros(plan.dimension, dtype=np.int64)
        self._encoder = Encoder(plan, problem)
        self.segments: list[Segment] = [plan.opening]
        self._starts = [0]
        self._forsaken = [0]  # decisions of each segment that teach nothing
        self._apart = 0  # decisions that the policy did not take
        # Of visits that another system decided for: their sum, and the weight of each.
        self._shadow: ShadowSum | None = None
        self._weights = np.empty(0)

    def __repr__(self) -> str:
        return f"OpenEpoch(epoch={self.plan.epoch}, length={self.plan.length})"

    @property
    def actions(self) -> Actions:
        """Those that its decisions chose among."""
        return self._problem.actions

    @property
    def remaining(self) -> int:
        """Decisions left."""
        return 0 if self.ended else self.plan.length - self.issued

    @property
    def ended(self) -> bool:
        """Whether it takes no more decisions."""
        return self.closes is not None or self.deadline is not None

    def turn(self, segment: Segment) -> None:
        """Go on with a new public segment from the next decision on."""
        self.segments.append(segment)
        self._starts.append(self.issued)
        self._forsaken.append(0)

    @property
    def counts(self) -> tuple[int, ...]:
        """Decisions of each segment that count."""
        ends = [*self._starts[1:], self.issued]
        made = zip(self._starts, ends, self._forsaken, strict=True)
        return tuple(end - start - lost for start, end, lost in made)

    @property
    def visited(self) -> bool:
        """Whether anybody came, in whatever mode, whose visit was not lost."""
        return self._apart > 0 or any(self.counts)

    def issue_apart(
        self,
        pairs: FloatArray,
        action_index: IntArray,
        visit: IntArray,
        weights: FloatArray | None,
    ) -> IntArray:
        """Note decisions that the policy did not take: they have slots, and teach nothing.

        ``weights``: of visits in shadow mode, NaN where one counts for nothing.
        """
        first, count = self.issued, len(action_index)
        numbers = self.issue(pairs, np.full(count, -1), action_index, visit)
        self._forsaken[-1] += count
        self._apart += count
        if weights is not None:
            self._await_shadows()
            assert self._shadow is not None
            self._shadow.visits += count
            place = slice(first, first + count)
            self._weights[place] = weights
            self._status[place] = np.where(np.isnan(weights), UNCOUNTED, ACCEPTED)
        return numbers

    def _await_shadows(self) -> None:
        """Make room for what another system decides."""
        if self._shadow is None:
            self._shadow = ShadowSum(self._problem, self.plan.epoch, self.plan.capacity)
            self._weights = np.full(self.plan.length, np.nan)

    def _without_shadows(self, place: IntArray, rewards: FloatArray) -> tuple[IntArray, FloatArray]:
        """Add rewards of shadow visits to their own sum; those that are left."""
        if self._shadow is None:
            return place, rewards
        own = ~np.isnan(self._weights[place])
        self._shadow.add(self._weights[place[own]], rewards[own])
        self._status[place[own]] = DUPLICATE
        return place[~own], rewards[~own]

    def release_shadow(self) -> ShadowRecord | None:
        """Pass the sum of the shadow visits through the gate, before :meth:`release`."""
        if self._shadow is None or not self._shadow.visits:
            return None
        self._without_shadows(*self._missing())
        record, _ = self._shadow.release(self._gate)
        self._shadow = None  # once
        return record

    def issue(
        self,
        pairs: FloatArray,
        pool_index: IntArray,
        action_index: IntArray,
        visit: IntArray,
    ) -> IntArray:
        """Note new decisions and number them; ``pool_index`` is -1 for contexts not in a pool.

        ``visit`` is a :class:`VisitStatus`: one that does not count takes a slot like any other and
        contributes the zero vector.
        """
        place = slice(self.issued, self.issued + len(action_index))
        self._pairs[place] = pairs
        self._pool_index[place] = pool_index
        self._action_index[place] = action_index
        self._status[place] = visit
        self._status[place][visit != 0] = UNCOUNTED
        self.issued += len(action_index)
        return np.arange(place.start, place.stop) + self.first

    def reward(
        self, numbers: IntArray, rewards: FloatArray, keys: Sequence[str] | None = None
    ) -> IntArray:
        """Add the rewards that are awaited; returns a :class:`RewardStatus` code for each."""
        if self._keyed:
            return self._combine(numbers, rewards, keys or [""] * len(numbers))
        statuses = reward_statuses(numbers, rewards, self._status[: self.issued], self.first)
        if statuses.any():
            accepted = statuses == ACCEPTED
            numbers, rewards = numbers[accepted], rewards[accepted]
        if self._shadow is not None:
            own, rewards = self._without_shadows(numbers - self.first, rewards)
            numbers = own + self.first
        if len(numbers):
            place: IntArray | slice = numbers - self.first
            if len(numbers) == 1:  # a slice is looked up several times faster than an index array
                start = int(numbers[0]) - self.first
                place = slice(start, start + 1)
            if len(self.segments) == 1:  # nearly always
                data = self._pairs[place], self._pool_index[place], self._action_index[place]
                total = self._encoder.total(self.segments[0], data[0], data[1], data[2], rewards)
            else:
                total = self._total(place, rewards)
            self._status[place] = DUPLICATE
            # What is encoded is needed no more: forget it now rather than when the epoch closes.
            self._pairs[place] = 0.0
            self._pool_index[place] = self._action_index[place] = 0
            if self._noised_alone:
                total = self._gate.add_noise(total, self.plan.layout, len(numbers))
                self._noised += len(numbers)
            self._accumulator += total  # Alg. 1, line 15
        return statuses

    def _combine(self, numbers: IntArray, rewards: FloatArray, keys: Sequence[str]) -> IntArray:
        """Several rewards for a decision: one with a key that was seen counts no more."""
        statuses = np.empty(len(numbers), dtype=np.int64)
        for row, (number, reward, key) in enumerate(zip(numbers, rewards, keys, strict=True)):
            alone = slice(row, row + 1)
            found = reward_statuses(
                numbers[alone], rewards[alone], self._status[: self.issued], self.first
            )
            statuses[row] = found[0]
            if found[0] != ACCEPTED:
                continue
            seen = self._seen.setdefault(int(number), set())
            if key in seen or len(seen) == MOST_REWARDS:
                statuses[row] = DUPLICATE if key in seen else UNCOUNTED
                continue
            seen.add(key)
            place = int(number) - self.first
            self._combined[place] = self._terms.rule.combined(
                float(self._combined[place]), float(reward)
            )
        return statuses

    def _total(self, place: IntArray | slice, rewards: FloatArray) -> IntArray:
        """The contributions of these decisions, each by the segment it was made in."""
        pairs, pool_index = self._pairs[place], self._pool_index[place]
        actions = self._action_index[place]
        offset = np.arange(place.start, place.stop) if isinstance(place, slice) else place
        which = np.searchsorted(self._starts, offset, side="right") - 1
        total = np.zeros(self.plan.dimension, dtype=np.int64)
        for number, segment in enumerate(self.segments):
            mine = which == number
            total += self._encoder.total(
                segment, pairs[mine], pool_index[mine], actions[mine], rewards[mine]
            )
        return total

    def release(self) -> Release:
        """Pass the sum through the gate; a missing reward counts as the terms say."""
        total = self._accumulator + self._total(*self._missing())
        plan, counts = self.plan, self.counts
        vector, event = self._gate.release(
            total,
            plan.layout,
            epoch=plan.epoch,
            participants=sum(counts),
            model=self._problem.model,
            noised_alone=self._noised,
        )
        return Release(
            plan=plan, vector=vector, event=event, segments=tuple(self.segments), counts=counts
        )

    def _missing(self) -> tuple[IntArray, FloatArray]:
        """Decisions whose message is still to be made, and what their rewards come to."""
        awaited = np.flatnonzero(self._status[: self.issued] == ACCEPTED)
        combined = self._combined[awaited] if self._keyed else np.full(len(awaited), np.nan)
        return awaited, settled(combined, self._terms)

    def forsake(self, issued: int) -> None:
        """Give up the first ``issued`` decisions: they are unknown here and count for nothing."""
        self.issued = issued
        self._status[:issued] = LATE
        self._shadow, self._apart = None, 0
        ends = [*self._starts[1:], issued]
        self._forsaken = [end - start for start, end in zip(self._starts, ends, strict=True)]
        self.began = self.filled = None  # its time begins with the first decision that counts

    # -- storage ----------------------------------------------------------------------------------

    def public_state(self) -> tuple[dict[str, Any], Arrays]:
        """Plan, segments and times, as JSON values and arrays."""
        plan, arrays = plan_state(self.plan)
        values: dict[str, Any] = {
            "plan": plan,
            "first_decision": self.first,
            "issued": self.issued,
        }
        if len(self.segments) > 1:
            values["segments"] = []
            for start, segment in zip(self._starts, self.segments, strict=True):
                segment_values, segment_arrays = segment_state(segment)
                values["segments"].append({"start": start, **segment_values})
                arrays |= segment_arrays
        if any(self._forsaken):
            values["untaught"] = list(self._forsaken)
        times = {name: getattr(self, name) for name in _TIMES}
        values |= {name: time for name, time in times.items() if time is not None}
        return values, arrays

    def restore_public(self, values: dict[str, Any], arrays: Arrays) -> None:
        """Go on from :meth:`public_state`; the plan was given already."""
        for name in _TIMES:
            setattr(self, name, values.get(name))
        if "segments" in values:
            kernel = self._problem.kernel
            self.segments = [
                segment_from_state(segment, arrays, kernel, self.plan)
                for segment in values["segments"]
            ]
            self._starts = [int(segment["start"]) for segment in values["segments"]]
            self._forsaken = [0] * len(self.segments)
        self._forsaken = list(values.get("untaught", self._forsaken))
        self._apart = sum(self._forsaken)

    def state(self) -> Arrays:
        """Secret arrays of an open epoch. Only a simulation may store them."""
        issued = self.issued
        arrays: Arrays = {
            "pairs": self._pairs[:issued],
            "pool_index": self._pool_index[:issued],
            "action_index": self._action_index[:issued],
            "status": self._status[:issued].astype(np.int64),
            "accumulator": self._accumulator,
        }
        if self._keyed:
            arrays["combined"] = self._combined[:issued]
            seen = sorted((number, key) for number, keys in self._seen.items() for key in keys)
            arrays["seen.number"] = np.array([number for number, _ in seen], dtype=np.int64)
            arrays["seen.key"] = np.array([key for _, key in seen], dtype=np.str_)
        if self._shadow is not None:
            arrays["shadow.weights"] = self._weights[:issued]
            arrays["shadow.sum"] = np.append(self._shadow.units, self._shadow.visits)
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Go on from :meth:`state`."""
        issued = len(arrays["action_index"])
        self.issued = issued
        self._pool_index[:issued] = arrays["pool_index"]
        self._action_index[:issued] = arrays["action_index"]
        self._pairs[:issued] = arrays["pairs"]
        self._status[:issued] = arrays["status"]
        self._accumulator = arrays["accumulator"].astype(np.int64)
        if self._keyed:
            self._combined[:issued] = arrays["combined"]
            numbers, keys = arrays["seen.number"].tolist(), arrays["seen.key"].tolist()
            for number, key in zip(numbers, keys, strict=True):
                self._seen.setdefault(number, set()).add(key)
        if "shadow.sum" in arrays:
            self._await_shadows()
            assert self._shadow is not None
            self._weights[:issued] = arrays["shadow.weights"]
            *units, visits = arrays["shadow.sum"].tolist()
            self._shadow.units, self._shadow.visits = np.array(units, dtype=np.int64), visits
