"""Where a policy takes rewards: on a store each is durable before it is answered.

How often rewards come for a decision is private. So they are combined when they arrive: a decision
has at most one row of rewards, of one size. Adding an epoch up is then the same work however often
a user was rewarded.
"""

from collections.abc import Sequence
from datetime import timedelta
from math import isfinite

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.rewards import (
    ACCEPTED,
    DUPLICATE,
    INVALID,
    LATE,
    MOST_REWARDS,
    UNCOUNTED,
    UNKNOWN,
    first_valid,
)
from capri.joint.state import PublicState
from capri.store.repository import TURNS, Combined, OvertakenError, never_current
from capri.store.tables import Unit
from capri.store.view import OPEN, EpochRow, View

_NOTHING = Combined(float("nan"), ())
# The last slot of an epoch whose end is open.
_ENDLESS = 1 << 62


class Rewards:
    """Takes the rewards of one process."""

    def __init__(self, state: PublicState) -> None:
        self._repository, self._state, self._now = state.repository, state, state.now
        self._rows, self._rule = state.repository.rows, state.problem.rewards.rule
        self._keyed = self._rule.keyed

    def reward(self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None) -> IntArray:
        """Keep the rewards that are awaited; a status for each."""
        names = [] if keys is None else self._rows.reward_digests(keys)
        for _ in range(TURNS):
            view = self._state.view
            try:
                return self._repository.write(
                    lambda unit, view=view: self._reward(  # type: ignore[misc]
                        unit, view, numbers, values, names
                    )
                )
            except OvertakenError:
                self._state.look()
        raise never_current(self._state.repository)

    def _reward(
        self, unit: Unit, view: View, numbers: IntArray, values: FloatArray, names: list[bytes]
    ) -> IntArray:
        open_for = [
            (epoch, (numbers >= epoch.first) & (numbers < (epoch.last or _ENDLESS)))
            for epoch in view.epochs
            if epoch.accepts
        ]
        joined = [epoch.number for epoch, own in open_for if own.any()]
        issued, generation = unit.join_epochs(joined)
        if generation != view.generation:
            raise OvertakenError
        known = (numbers >= 0) & (numbers < issued)
        now, awaited = self._now(), np.zeros(len(numbers), dtype=np.bool_)
        for epoch, own in open_for:
            if not epoch.is_past(issued, now) and not self._is_late(view, epoch, now):
                awaited |= own & known
        statuses = np.where(known, LATE, UNKNOWN)
        places = np.flatnonzero(awaited)
        if len(places):
            own_names = [names[place] for place in places.tolist()] if names else []
            statuses[places] = self._accept(unit, numbers[places], values[places], own_names)
        return statuses

    def _is_late(self, view: View, epoch: EpochRow, now: float) -> bool:
        """Whether an epoch that nobody has ended yet is past its time, by the clock alone."""
        if epoch.state != OPEN or not self._state.timed:
            return False
        terms, ended = self._state.terms(view, epoch.number), epoch.filled
        wait = terms.wait
        if not isinstance(wait, timedelta):
            return False
        if ended is None and epoch.began is not None and terms.epoch_time is not None:
            ended = epoch.began + terms.epoch_time.total_seconds()
        return ended is not None and now >= ended + wait.total_seconds()

    def _accept(
        self, unit: Unit, numbers: IntArray, values: FloatArray, names: list[bytes]
    ) -> IntArray:
        """Keep rewards whose epochs take them; a status for each.

        A slot that nobody filled is unknown; of the others some count for nothing.
        """
        first = self._rows.first_statuses(unit, numbers)
        if self._keyed:
            return self._combine(unit, first, numbers, values, names)
        first[(first == ACCEPTED) & self._rows.rewarded(unit, numbers)] = DUPLICATE
        statuses = first_valid(first, numbers, values)
        taken = statuses == ACCEPTED
        if taken.any() and not self._rows.write_first(unit, numbers[taken], values[taken]):
            raise OvertakenError  # another process was faster with a reward for the same decision
        return statuses

    def _combine(
        self,
        unit: Unit,
        first: IntArray,
        numbers: IntArray,
        values: FloatArray,
        names: list[bytes],
    ) -> IntArray:
        """Each reward with what came before for its decision."""
        before = self._rows.combined(unit, numbers)
        totals = dict(before)
        statuses, changed = first.copy(), set[int]()
        rows = zip(numbers.tolist(), values.tolist(), names, strict=True)
        for place, (number, value, name) in enumerate(rows):
            if statuses[place] != ACCEPTED:
                continue
            found = totals.get(number, _NOTHING)
            total, digests = found.total, found.digests
            if not isfinite(value):
                statuses[place] = INVALID
            elif name in digests:
                statuses[place] = DUPLICATE
            elif len(digests) == MOST_REWARDS:
                statuses[place] = UNCOUNTED
            else:
                totals[number] = Combined(self._rule.combined(total, value), (*digests, name))
                changed.add(number)
        new = {number: totals[number] for number in changed}
        if new and not self._rows.write_combined(unit, new, before):
            raise OvertakenError  # another process was faster with a reward for the same decision
        return statuses
