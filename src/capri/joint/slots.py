"""Numbers for decisions: which slots are free, and leases of some of them.

A slot belongs to one epoch and one segment, both committed before it is handed out. Where many
processes write at once, each leases some slots of one segment in a short transaction of its own; a
lease is worth nothing once its epoch is closed.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from capri.errors import HorizonError
from capri.joint.state import PublicState
from capri.store.repository import OvertakenError, OwnLock
from capri.store.tables import Unit
from capri.store.view import EpochRow, View
from capri.streams import Streams

# Slots are leased for about this many seconds of use, and never more than a share of the epoch.
_LEASE_SECONDS = 0.25
_LEASE_SHARE = 64


class FullError(Exception):
    """The epoch under way has no room, and the next one is not planned yet."""


@dataclass(eq=False, slots=True)
class Slots:
    """Numbers of one segment that are ours to fill."""

    epoch: EpochRow
    segment: int
    law: int
    numbers: list[int]


class _Room(NamedTuple):
    """Slots of one segment that follow each other, by one view."""

    view: View
    first: int
    end: int
    epoch: EpochRow
    segment: int
    law: int


class SlotBook:
    """Hands out the slots of one process."""

    def __init__(self, state: PublicState, streams: Streams) -> None:
        self._repository, self._state, self._streams = state.repository, state, streams
        self.leased = not (state.repository.single_writer or state.synchronous)
        self._lease: Slots | None = None  # numbers that nobody has filled yet
        self._room: _Room | None = None
        self._leasing = OwnLock()
        self._used, self._since = 0, time.monotonic()
        self._expected = 0  # the epoch of the last lease

    def at(self, view: View, issued: int, count: int) -> Slots:
        """The next free slots, all of one segment."""
        room, end = self._room, issued + count
        if room is None or room.view is not view or not room.first <= issued or end > room.end:
            room = self._room = self._found(view, issued, count)
            issued, end = room.first, room.first + count
        return Slots(room.epoch, room.segment, room.law, list(range(issued, end)))

    def _found(self, view: View, issued: int, count: int) -> _Room:
        """Where the next free slots are.

        A call that does not fit before a public boundary ahead takes its slots behind it.
        """
        first, horizon = issued, self._state.horizon
        for _ in range(2 + sum(len(epoch.segments) for epoch in view.epochs)):
            if horizon is not None and first + count > horizon:
                self.refuse(count, max(0, horizon - issued))
            epoch = view.of(first)
            if epoch is None or not epoch.accepts:
                raise FullError
            segment, until = epoch.segment(first), epoch.until(first)
            end = self._state.limit(epoch) if until is None else until
            if until is None and first + count > end:
                if issued >= epoch.first + epoch.length:
                    raise FullError
                self.refuse(count, end - issued)
            if first + count <= end:
                end = end if horizon is None else min(end, horizon)
                return _Room(view, first, end, epoch, segment.number, segment.law)
            if self._state.synchronous:
                self.refuse(count, end - issued)
            first = end
        raise FullError

    def refuse(self, count: int, left: int) -> None:
        """Say how many decisions are left."""
        if left <= 0:
            raise self._state.horizon_reached()
        raise HorizonError(
            f"{count} decisions were asked for, {left} are left in this epoch: "
            "ask for at most policy.remaining at once"
        )

    def count(self, unit: Unit, view: View, slots: Slots, count: int) -> None:
        """Move the counter behind slots that were filled or leased; let clocks run.

        An epoch whose wait ends with these slots is due now: all that becomes public of it counts
        from here.
        """
        if count == 0:
            return
        end = slots.numbers[0] + count
        unit.set_counter("issued", end)
        if self._streams.simulated:  # every decision passes here
            self._repository.write_streams(unit, self._streams)
        generation = view.generation
        if not self._state.synchronous:
            for epoch in view.waiting:
                if epoch.due is None and epoch.closes is not None and epoch.closes < end:
                    self._note(unit, epoch, generation, "due")
                    generation += 1
        if self._state.timed:
            if slots.epoch.began is None:
                self._begin_waits(unit, view)
                self._note(unit, slots.epoch, generation, "began")
                generation += 1
            if slots.numbers[0] < slots.epoch.first + slots.epoch.length <= end:
                self._note(unit, slots.epoch, generation, "filled")

    def _note(self, unit: Unit, epoch: EpochRow, generation: int, what: str) -> None:
        """The public time at which an epoch began, was full, or had waited long enough."""
        unit.update("epochs", {what: self._state.now()}, number=epoch.number)
        self._repository.publish(unit, generation, f"{what} {epoch.number}".encode())

    def _begin_waits(self, unit: Unit, view: View) -> None:
        """Waits by time that run from the first decision of the epoch that follows."""
        for waiting in view.waiting:
            wait = self._state.terms(view, waiting.number).wait
            if isinstance(wait, timedelta) and waiting.closes_at is None:
                closes_at = self._state.now() + wait.total_seconds()
                unit.update("epochs", {"closes_at": closes_at}, number=waiting.number)

    def take(self, view: View, count: int) -> Slots | None:
        """Slots of the lease, at most so many; None where there is none, or it holds no more."""
        with self._leasing:
            lease, self._used = self._lease, self._used + count
            if lease is not None and not self._still_holds(view, lease):
                self._lease = lease = None
            if lease is None or not lease.numbers:
                return None
            taken = lease.numbers[:count]
            del lease.numbers[:count]
            return Slots(lease.epoch, lease.segment, lease.law, taken)

    def expected(self, view: View, held: Slots | None) -> list[int]:
        """Epochs that the next slots are of, most likely: to be joined before they are known."""
        epochs = [epoch.number for epoch in view.epochs if epoch.accepts]
        likely = [self._expected] if self._expected in epochs else epochs[-1:]
        return likely if held is None else sorted({held.epoch.number, *likely})

    def _still_holds(self, view: View, lease: Slots) -> bool:
        epoch = next((each for each in view.epochs if each.number == lease.epoch.number), None)
        return epoch is not None and epoch.accepts

    def extend(self, unit: Unit, view: View, count: int, held: Slots | None) -> Slots:
        """So many slots, some of which are held: with the rest, those of the next moment.

        Leased in the transaction that fills the first of them, which waits for the disk anyway.
        What was held of another segment is not realised. An epoch is joined before the counter is
        locked, as who closes one does it, so no two of them wait for each other: where the slots
        turn out to be of another epoch, this is tried again with that one.
        """
        joined = self.expected(view, held)
        issued, generation = unit.lock()
        if generation != view.generation:
            raise OvertakenError
        numbers = [] if held is None else held.numbers
        least = self.at(view, issued, count - len(numbers))
        if held is not None and (least.epoch.number, least.segment) != (
            held.epoch.number,
            held.segment,
        ):
            least, numbers = self.at(view, issued, count), []
        self._expected = least.epoch.number
        if self._expected not in joined:
            raise OvertakenError
        first, ends = least.numbers[0], least.numbers[-1] + 1
        ends = max(ends, min(first + self._size(least), self._end(least)))
        fresh = Slots(least.epoch, least.segment, least.law, list(range(first, ends)))
        self.count(unit, view, fresh, len(fresh.numbers))
        fresh.numbers[:0] = numbers
        return fresh

    def _size(self, slots: Slots) -> int:
        """As many as are used up in a moment, and never more than a share of the epoch."""
        now = time.monotonic()
        rate = self._used / max(now - self._since, 1e-3)
        self._used, self._since = 0, now
        return min(int(rate * _LEASE_SECONDS), slots.epoch.length // _LEASE_SHARE)

    def _end(self, slots: Slots) -> int:
        until = slots.epoch.until(slots.numbers[0])
        return self._state.limit(slots.epoch) if until is None else until

    def give_back(self, slots: Slots) -> None:
        """Slots that were not filled serve the next visits; an older segment's serve nobody."""
        with self._leasing:
            lease = self._lease
            if lease is None or not lease.numbers:
                self._lease = slots
            elif (lease.epoch.number, lease.segment) == (slots.epoch.number, slots.segment):
                lease.numbers[:0] = slots.numbers
            elif slots.numbers and slots.numbers[0] > lease.numbers[0]:
                self._lease = slots
