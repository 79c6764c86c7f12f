"""From a closed epoch to its release: the sum of its rows, the moment, the noise, the gate.

**The sum.** Decisions and rewards are encoded by segment and added up. Sums are integers, so
neither the order of the rows nor who wrote them changes the result.

**The moment** at which a release becomes public is fixed before any of its data are read.
How long it takes to add up an epoch may depend on what its users did. So nobody is to see when that
was done. An epoch is due at a public time: a slot is handed out, or a clock runs out. Its release,
and all that follows from it, becomes public at

    m_0 = the first multiple of the grid at or after  due + margin,
    margin = 1/4 second + 1/10 millisecond for each of its slots,

several times as long as adding up takes. A sum that is not ready then has missed ``m_0`` and waits
for the next of ``m_1, m_2, ...``, each twice as far from the one before as that was, and at most
16 seconds. A miss can be seen, so each one is counted; a sum that is late by seconds tells no more
than a few bits.

**The noise** is drawn once, and kept until it is published. A transaction that fails leaves its
values in the server's log. So noise is not drawn inside the one that publishes: two draws for one
sum would lie there, and together they say more than one may. What was drawn is stored first, sealed
where there is a store key, and whatever fails from there on publishes the same values again, in
this process or in another one.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decisions import DEFAULT, FROZEN, SHADOW
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import settled
from capri.epoch.shadow import ShadowSum
from capri.joint.state import PublicState
from capri.privacy.budget import PrivacyModel
from capri.privacy.gate import Departure, Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.spaces import FixedActions
from capri.store.codec import VOID
from capri.store.repository import EpochPart, OvertakenError
from capri.store.tables import Unit
from capri.store.view import CLOSED, RELEASED, WAITING, EpochRow
from capri.streams import Streams

# All in seconds. The last two: after which others release what the process that closed an epoch
# has not; and no release is that far ahead, unless the clock was set back.
GRID = 0.25
_WIDEST = 16.0
_LEAST, _EACH = 0.25, 100e-6
_GRACE, _LONGEST = 2.0, 600.0


def first_moment(due: float, slots: int) -> float:
    """When an epoch becomes public if its sum is ready by then.

    >>> first_moment(10.0, 2_500), first_moment(10.1, 100)
    (10.5, 10.5)
    """
    return ceil((due + _LEAST + _EACH * slots) / GRID) * GRID


def moment_of(first: float, ready: float) -> tuple[float, int]:
    """When a sum that was ready at some time becomes public, and how many moments it has missed.

    >>> moment_of(10.0, 9.8), moment_of(10.0, 10.1), moment_of(10.0, 10.6)
    ((10.0, 0), (10.25, 1), (10.75, 2))
    """
    moment, missed, step = first, 0, GRID
    while moment < ready and step < _WIDEST:
        moment, missed, step = moment + step, missed + 1, 2 * step
    further = max(0, ceil((ready - moment) / _WIDEST))
    return moment + further * _WIDEST, missed + further


@dataclass(frozen=True, eq=False)
class SettledSum:
    """A secret sum on its way to the gate, and how many decisions each segment really had."""

    plan: EpochPlan
    model: PrivacyModel
    total: IntArray
    counts: tuple[int, ...]
    shadow: ShadowSum | None
    # In the textbook local model: one report a visit, each to get noise of its own.
    reports: tuple[IntArray, ...] | None = None

    def released(self, gate: Gate) -> tuple[dict[str, Any], dict[str, FloatArray]] | None:
        """What the epoch publishes; None where nobody came who is in a release."""
        values: dict[str, Any] = {"counts": list(self.counts), "event": None}
        arrays: dict[str, FloatArray] = {}
        if self.shadow is not None:
            record, event = self.shadow.release(gate)
            values["shadow"] = record.to_dict()
            values["shadow_event"] = None if event is None else event.to_dict()
        if sum(self.counts):
            arrays["vector"], event = self.release(gate)
            values["event"] = None if event is None else event.to_dict()
        return (values, arrays) if sum(self.counts) or self.shadow is not None else None

    def release(self, gate: Gate) -> tuple[FloatArray, ReleaseEvent | None]:
        """Pass the gate."""
        plan, participants = self.plan, sum(self.counts)
        total, alone = self.total, 0
        if self.reports is not None:  # Alg. 1, lines 14 and 15
            noisy = [gate.add_noise(units, plan.layout, 1) for units in self.reports]
            total, alone = np.sum([np.zeros_like(total), *noisy], axis=0), len(noisy)
        return gate.release(
            total,
            plan.layout,
            epoch=plan.epoch,
            participants=participants,
            model=self.model,
            noised_alone=alone,
        )


def settled_sum(
    plan: EpochPlan,
    segments: Sequence[Segment],
    starts: Sequence[int],
    problem: Problem,
    parts: Iterable[EpochPart],
    *,
    reported: bool = False,
) -> SettledSum:
    """Add up an epoch whose segments begin at these slots, part by part.

    ``reported``: in the local model, keep the report of each visit, to get noise of its own.
    A visit that does not count contributes the zero vector and is a decision like any other.
    """
    total = np.zeros(plan.dimension, dtype=np.int64)
    counts = np.zeros(len(segments), dtype=np.int64)
    encoder = Encoder(plan, problem)
    shadow: ShadowSum | None = None
    reported = reported and problem.model is PrivacyModel.LOCAL
    reports: list[IntArray] = []
    for numbers, played, rewarded, rewards in parts:
        if len(numbers) == 0:
            continue
        # Of segments that begin at the same slot only the last one has decisions.
        which = np.searchsorted(np.asarray(starts), numbers, side="right") - 1
        # By the mode, which is public. A visit that is void for another reason is counted.
        apart = (played.status == SHADOW) | (played.status >= VOID)
        teaching = ~apart & ~np.isin(played.status, (DEFAULT, FROZEN))
        counts += np.bincount(which[teaching], minlength=len(segments))
        combined = np.full(len(numbers), np.nan)
        combined[np.searchsorted(numbers, rewarded)] = rewards
        values = settled(combined, problem.rewards)
        if apart.any():
            if shadow is None:
                shadow = ShadowSum(problem, plan.layout.norm, plan.epoch, plan.capacity)
            # A void visit is one of weight 0 without a reward.
            good = played.status[apart] == SHADOW
            weights, told = played.propensity[apart], values[apart]
            shadow.add(np.where(good, weights, 0.0), np.where(good, told, np.nan))
        for place, segment in enumerate(segments):
            mine = np.flatnonzero((which == place) & (played.status == 0))
            pairs = _pairs(problem, played.numbers[mine], played.action[mine])
            places, actions, rewards_of = played.place[mine], played.action[mine], values[mine]
            total += encoder.total(segment, pairs, places, actions, rewards_of)
            for row in range(len(mine) if reported else 0):
                one = slice(row, row + 1)
                visit = pairs[one], places[one], actions[one], rewards_of[one]
                reports.append(encoder.total(segment, *visit))
    alone = tuple(reports) if reported else None
    return SettledSum(plan, problem.model, total, tuple(counts.tolist()), shadow, alone)


def stored_columns(problem: Problem) -> int:
    """Numbers that are stored of a visit: its context, or its pair where contexts bring actions.

    The number of the action tells the rest. Names as indicators make a row of every action as long
    as there are actions: megabytes that are written with every list.
    """
    dimension = problem.contexts.dimension
    fixed = isinstance(problem.actions, FixedActions)
    return dimension if fixed else problem.actions.pair_dimension(dimension)


def _pairs(problem: Problem, numbers: FloatArray, action: IntArray) -> FloatArray:
    """The pairs of some decisions."""
    if not isinstance(problem.actions, FixedActions) or len(action) == 0:
        return numbers
    return problem.actions.chosen(numbers, action)


def _is_closed(unit: Unit, epoch: int) -> bool:
    """Whether an epoch waits for its release."""
    return bool(unit.select("epochs", ("number",), number=epoch, state=CLOSED))


class Releases:
    """Closes epochs, adds them up, and lets each out of the gate once."""

    def __init__(
        self, state: PublicState, streams: Streams, gate: Gate, ledger: Ledger | None
    ) -> None:
        self._state, self.repository, self._streams = state, state.repository, streams
        self._gate, self._ledger, self._now = gate, ledger, state.now
        self.unclean = False  # whether deleted rows may still be read somewhere
        # Epochs that this process has closed, and their sums, with the time each was ready.
        self._closed: set[int] = set()
        self._sums: dict[int, tuple[SettledSum, float]] = {}
        # What was drawn for them, and what of it nobody has seen yet: shown when it is committed.
        self._drawn: dict[int, Any] = {}
        self._departed: dict[int, tuple[bytes, list[Departure]]] = {}

    def close(self, epoch: EpochRow) -> None:
        """Nothing of an epoch counts from here on: after all who are at it.

        When it is due was noted with its slot, or is what the clock said; where nobody was there
        to close it then, or somebody asked for it before, it is due now.
        """
        due = epoch.closes_at if epoch.due is None else epoch.due
        if due is None or not 0 <= self._now() - due <= _GRACE:
            due = self._now()

        def close(unit: Unit) -> None:
            unit.hold_epoch(epoch.number)
            _, generation = self._state.current(unit)
            self._state.move(unit, epoch.number, WAITING, CLOSED)
            unit.update("epochs", {"due": due}, number=epoch.number)
            self.repository.publish(unit, generation, b"close %d" % epoch.number)

        self._state.write(close)
        self._closed.add(epoch.number)

    def moment(self, epoch: EpochRow) -> float:
        """When the release of a closed epoch becomes public, as far as that is known now.

        Its sum is made by the process that has closed it. The others wait a little longer, in case
        that one has died, and then make it themselves.
        """
        first, now = self._first_moment(epoch), self._now()
        if now > first + _GRACE:
            self._closed.add(epoch.number)
        if epoch.number not in self._closed:
            return first + _GRACE
        moment, _ = moment_of(first, self._ready(epoch.number))
        return now if moment > now + _LONGEST else moment  # the clock was set back

    def is_ready(self, number: int) -> bool:
        """Whether nothing but the gate is left to be done for an epoch."""
        return number in self._sums

    def _ready(self, number: int) -> float:
        """When a sum was ready to be published: one that is not may be soon."""
        return self._sums[number][1] if number in self._sums else self._now()

    def _first_moment(self, epoch: EpochRow) -> float:
        assert epoch.due is not None
        assert epoch.last is not None
        return first_moment(epoch.due, epoch.last - epoch.first)

    def settle_closed(self) -> None:
        """Add up what this process has closed, in a thread of its own: nothing waits for it."""
        with self._state.lock:
            numbers = sorted(self._closed - self._sums.keys())
        for number in numbers:
            self.settle(number)

    def settle(self, number: int) -> None:
        """Add up a closed epoch: from here on nothing but the gate is left.

        Whoever looks at the policy meanwhile is not held up: how long that takes is not to be seen.
        """
        with self._state.lock:
            epoch = self._closed_epoch(number)
            if epoch is None or number in self._sums:
                return
            plan, problem = (
                self._state.plan(number),
                self._state.problem_of(self._state.ground, number),
            )
            segments = tuple(self._state.segment(number, each.number) for each in epoch.segments)
        assert epoch.last is not None
        starts = [each.first for each in epoch.segments]
        parts = self.repository.rows.parts(epoch.first, epoch.last)
        total = settled_sum(plan, segments, starts, problem, parts, reported=self._gate.private)
        with self._state.lock:
            if self._closed_epoch(number) is not None:  # else it was released meanwhile
                self._sums[number] = total, self._now()

    def _closed_epoch(self, number: int) -> EpochRow | None:
        """An epoch that waits for its release; None where that is done, by whoever it was."""
        found = (each for each in self._state.ground.epochs if each.number == number)
        return next((each for each in found if each.state == CLOSED), None)

    def drop_sums(self) -> None:
        """Forget what belongs to epochs that were released, by whoever it was."""
        closed = {epoch.number for epoch in self._state.ground.epochs if epoch.state == CLOSED}
        self._closed &= closed
        self._sums = {number: kept for number, kept in self._sums.items() if number in closed}
        self._drawn = {number: kept for number, kept in self._drawn.items() if number in closed}

    def release(self, number: int) -> None:
        """Pass an epoch through the gate: release, ledger, forgetting, state in one transaction.

        The sum was made before, since nothing of a closed epoch changes any more, and its noise is
        drawn once (see above).
        """
        epoch = self._closed_epoch(number)
        if epoch is None:
            return
        assert epoch.last is not None
        self.repository.note()  # an older copy, or a rollback guard that is away, ends it here
        self.settle(number)
        first, last = epoch.first, epoch.last
        _, missed = moment_of(self._first_moment(epoch), self._ready(number))
        kept = self._noisy(number)
        mark = self._mark(kept)

        def release(unit: Unit) -> None:
            unit.hold_epoch(number)
            if not _is_closed(unit, number):
                return  # by another process
            _, generation = unit.lock()
            self._state.move(unit, number, CLOSED, RELEASED)
            values = {"released": generation + 1, "release": kept, "missed": missed}
            unit.update("epochs", values, number=number)
            self.repository.rows.forget(unit, number, first, last, self._now())
            self.repository.publish(unit, generation, b"release %d " % number + mark)

        self._state.write(release)
        self.drop_sums()
        self.unclean = True  # also if the rollback guard is away now
        self.repository.note()  # at once: from here on an older copy would release these data again
        drawn, departures = self._departed.pop(number, (b"", []))
        if drawn == mark:  # else another process has published its own
            self._gate.tell(departures)

    def _noisy(self, epoch: int) -> Any:
        """What an epoch publishes, drawn once; None where nobody came who is in a release."""
        rows = self.repository.rows
        found = self.repository.read(lambda unit: rows.draw_of(unit, epoch))
        if found is not None:
            return found
        try:
            with self._state.drawing:
                if epoch not in self._drawn:
                    self._drawn[epoch] = self._draw(epoch)
                return self._keep(epoch, self._drawn[epoch])
        except BaseException:
            if self._streams.simulated:  # it goes on from where its generators are stored
                self._drawn.pop(epoch, None)
            raise

    def _keep(self, epoch: int, drawn: Any) -> Any:
        """Store what was drawn, unless another process was first: then that counts.

        Nothing is stored by a view that is over: the store key may be another.
        """
        repository = self.repository

        def keep(unit: Unit) -> Any:
            unit.hold_epoch(epoch)
            self._state.current(unit)
            kept = repository.rows.draw_of(unit, epoch)
            if kept is not None or not _is_closed(unit, epoch) or drawn is None:
                return kept
            repository.rows.write_draw(unit, epoch, drawn)
            repository.write_streams(unit, self._streams)
            return drawn

        return repository.write(keep)

    def _mark(self, kept: Any) -> bytes:
        return b"" if kept is None else self.repository.codec.mark(kept)

    def _draw(self, number: int) -> Any:
        """The sum of an epoch with its noise, accounted for; not if another process was faster."""

        def account(unit: Unit) -> Ledger | None:
            if unit.join_epochs(())[1] != self._state.ground.generation:
                raise OvertakenError
            return self._account(unit)

        ledger = self.repository.read(account)
        departures: list[Departure] = []
        published = self._sums[number][0].released(self._gate.afresh(ledger, departures))
        drawn = None if published is None else self.repository.codec.pack(*published)
        self._departed[number] = self._mark(drawn), departures
        return drawn

    def _account(self, unit: Unit) -> Ledger | None:
        """The account as the repository has it, apart: what comes of it counts once published."""
        if self._ledger is None:
            return None
        ledger = copy(self._ledger)
        for event in self._state.events_of(self.repository.releases(unit))[len(ledger.events) :]:
            ledger.record(event)
        return ledger

    def clean_log(self) -> None:
        """On opening: a process that died after a release may have left its log as it was."""
        if self.repository.single_writer:
            self.clean()

    def drop_keys(self) -> None:
        """Delete keys that were kept long enough, slice by slice: also where nothing is released.

        Deciding goes on between two slices.
        """
        rows = self.repository.rows
        while rows.has_expired_keys(self._now()):
            self.repository.write(lambda unit: rows.drop_keys(unit, self._now()))
            self.unclean = True

    def clean(self) -> None:
        """Have deleted rows overwritten everywhere; tried again until nobody stands in the way."""
        self.unclean = True  # also where this fails
        self.unclean = not self.repository.overwrite()
