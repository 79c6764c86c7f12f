"""The public side of a stored policy: which epochs there are, what was released, what is played.

Every step is one transaction that publishes something and raises the store's generation:

    open       a planned epoch, from a slot that nobody holds yet
    end        the last slot of an epoch is known; it waits for rewards
    close      nothing of it counts any more; only now are its data read
    release    the noise is drawn, the result stored, and what users did is deleted: at a moment
               that was fixed before (:mod:`capri.joint.moments`)
    learn      what the learner knows now; with a new segment for the epoch under way

Who finds the store between two steps takes the next one: a crash loses no more than a computation.
Learning and planning look at public values alone and hold no lock. Their result is published only
if the generation is still the one they began with.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from capri.epoch.course import Course
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.joint.draft import Draft, Task
from capri.joint.draws import Draws
from capri.joint.moments import first_moment, moment_of
from capri.joint.record import OvertakenError, PublicRecord
from capri.joint.settle import SettledSum, epoch_parts, settled_sum
from capri.joint.workshop import Workshop
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.randomness import Streams
from capri.store.blobs import packed, unpacked
from capri.store.shelf import Shelf
from capri.store.transaction import Transaction
from capri.store.view import (
    CLOSED,
    LEARNT,
    OPEN,
    RELEASED,
    WAITING,
    EpochRow,
    read_counter,
)

# Seconds after which others release what the process that closed an epoch has not.
_GRACE = 2.0
# No release is that far ahead: the clock was set back.
_LONGEST = 600.0


class Keeper(PublicRecord):
    """Advances the epochs of a stored policy, one step after the other."""

    def __init__(
        self,
        shelf: Shelf,
        problem: Problem,
        course: Course,
        streams: Streams,
        gate: Gate,
        now: Callable[[], float],
        publish: Callable[[Course, list[ReleaseEvent]], None],
    ) -> None:
        """``publish`` is told what this process has learnt or read, after it is committed."""
        super().__init__(shelf, problem, course, streams, now, publish)
        self._gate = gate
        self.workshop = Workshop()
        self.unclean = False
        # Epochs that this process has closed, and their sums, with the time each was ready.
        self._closed: set[int] = set()
        self._sums: dict[int, tuple[SettledSum, float]] = {}
        self._draws = Draws(shelf, streams)

    # -- steps ------------------------------------------------------------------------------------

    def end(self, epoch: EpochRow) -> None:
        """An epoch takes no more decisions; its rewards are awaited from here on."""

        def end(transaction: Transaction) -> None:
            issued, generation = self.current(transaction)
            self._set_end(transaction, epoch, issued, at_once=True)
            self.shelf.publish(transaction, generation, b"end %d at %d" % (epoch.number, issued))

        self.write(end)

    def _set_end(
        self, transaction: Transaction, epoch: EpochRow, last: int, *, at_once: bool
    ) -> None:
        """The last slot of an epoch, and until when its rewards count.

        A wait by time begins when the epoch was full; where its last slots are still to come, with
        the first decision of the next one (:meth:`begin`).
        """
        terms, closes_at = self.problem.rewards, None
        closes = None if isinstance(terms.wait, timedelta) else last + terms.wait
        if isinstance(terms.wait, timedelta) and at_once:
            now = self._now()
            ended = epoch.filled
            if ended is None and epoch.began is not None and terms.epoch_time is not None:
                ended = min(now, epoch.began + terms.epoch_time.total_seconds())
            closes_at = (now if ended is None else ended) + terms.wait.total_seconds()
        self._move(transaction, epoch.number, OPEN, WAITING)
        transaction.run(
            "UPDATE epochs SET last = ?, closes = ?, closes_at = ? WHERE number = ?",
            (last, closes, closes_at, epoch.number),
        )

    def _move(self, transaction: Transaction, epoch: int, before: str, after: str) -> None:
        """From one state to the next, and from no other: each step is taken once."""
        moved = transaction.run(
            "UPDATE epochs SET state = ? WHERE number = ? AND state = ?", (after, epoch, before)
        )
        if moved != 1:
            raise OvertakenError

    def begin(self, transaction: Transaction, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch had its first decision: clocks run from here."""
        now, wait = self._now(), self.problem.rewards.wait
        transaction.run("UPDATE epochs SET began = ? WHERE number = ?", (now, epoch.number))
        if isinstance(wait, timedelta):
            transaction.run(
                "UPDATE epochs SET closes_at = ? WHERE state = ? AND closes_at IS NULL",
                (now + wait.total_seconds(), WAITING),
            )
        self.shelf.publish(transaction, generation, b"begin %d" % epoch.number)

    def fill(self, transaction: Transaction, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch was full."""
        transaction.run(
            "UPDATE epochs SET filled = ? WHERE number = ?", (self._now(), epoch.number)
        )
        self.shelf.publish(transaction, generation, b"full %d" % epoch.number)

    def note_due(self, transaction: Transaction, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch has waited long enough, by the slots that were handed out."""
        transaction.run("UPDATE epochs SET due = ? WHERE number = ?", (self._now(), epoch.number))
        self.shelf.publish(transaction, generation, b"due %d" % epoch.number)

    def close(self, epoch: EpochRow) -> None:
        """Nothing of an epoch counts from here on: after all who are at it.

        When it is due was noted with its slot, or is what the clock said; where nobody was there
        to close it then, or somebody asked for it before, it is due now.
        """
        due = epoch.closes_at if epoch.due is None else epoch.due
        if due is None or not 0 <= self._now() - due <= _GRACE:
            due = self._now()

        def close(transaction: Transaction) -> None:
            transaction.hold_epoch(epoch.number)
            _, generation = self.current(transaction)
            self._move(transaction, epoch.number, WAITING, CLOSED)
            transaction.run("UPDATE epochs SET due = ? WHERE number = ?", (due, epoch.number))
            self.shelf.publish(transaction, generation, b"close %d" % epoch.number)

        self.write(close)
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

    def _ready(self, number: int) -> float:
        """When a sum was ready to be published: one that is not may be soon."""
        return self._sums[number][1] if number in self._sums else self._now()

    def _first_moment(self, epoch: EpochRow) -> float:
        assert epoch.due is not None
        assert epoch.last is not None
        return first_moment(epoch.due, epoch.last - epoch.first)

    def settle_closed(self) -> None:
        """Add up what this process has closed, in a thread of its own: nothing waits for it."""
        with self.lock:
            numbers = sorted(self._closed - self._sums.keys())
        for number in numbers:
            self.settle(number)

    def settle(self, number: int) -> None:
        """Add up a closed epoch: from here on nothing but the gate is left.

        Whoever looks at the policy meanwhile is not held up: how long that takes is not to be seen.
        """
        with self.lock:
            epoch = self._closed_epoch(number)
            if epoch is None or number in self._sums:
                return
            plan, problem = self.plan(number), self.problem_of(self.ground, number)
            segments = tuple(self.segment(number, each.number) for each in epoch.stretches)
        assert epoch.last is not None
        starts = [each.first for each in epoch.stretches]
        parts = epoch_parts(self.shelf, epoch.first, epoch.last)
        total = settled_sum(plan, segments, starts, problem, parts)
        with self.lock:
            if self._closed_epoch(number) is not None:  # else it was released meanwhile
                self._sums[number] = total, self._now()

    def _closed_epoch(self, number: int) -> EpochRow | None:
        """An epoch that waits for its release; None where that is done, by whoever it was."""
        found = (each for each in self.ground.epochs if each.number == number)
        return next((each for each in found if each.state == CLOSED), None)

    def drop_sums(self) -> None:
        """Forget what belongs to epochs that were released, by whoever it was."""
        closed = {epoch.number for epoch in self.ground.epochs if epoch.state == CLOSED}
        self._closed &= closed
        self._sums = {number: kept for number, kept in self._sums.items() if number in closed}
        self._draws.forget_others(closed)

    def release(self, number: int) -> None:
        """Pass an epoch through the gate: release, ledger, forgetting, state in one transaction.

        The sum was made before, since nothing of a closed epoch changes any more, and its noise is
        drawn once (:mod:`capri.joint.draws`).
        """
        epoch = self._closed_epoch(number)
        if epoch is None:
            return
        assert epoch.last is not None
        self.shelf.note()  # an older copy, or an anchor that is away, ends it here
        self.settle(number)
        first, last = epoch.first, epoch.last
        _, missed = moment_of(self._first_moment(epoch), self._ready(number))
        blob = self._draws.of(number, lambda: self._drawn(number), self.current)

        def release(transaction: Transaction) -> None:
            transaction.hold_epoch(number)
            found = transaction.row("SELECT state FROM epochs WHERE number = ?", (number,))
            if found != (CLOSED,):
                return  # by another process
            _, generation = self.shelf.lock_counter(transaction)
            self._move(transaction, number, CLOSED, RELEASED)
            transaction.run(
                "UPDATE epochs SET released = ?, release = ?, missed = ? WHERE number = ?",
                (generation + 1, blob, missed, number),
            )
            self.shelf.forget(transaction, number, first, last, self._now())
            self.shelf.publish(transaction, generation, b"release %d " % number + (blob or b""))

        self.write(release)
        self.drop_sums()
        self.unclean = True  # also if the anchor is away now
        self.shelf.note()  # at once: from here on an older copy would release these data again

    def _drawn(self, number: int) -> bytes | None:
        """The sum of an epoch with its noise, accounted for; not if another process was faster."""

        def account(transaction: Transaction) -> Ledger | None:
            if read_counter(transaction)[1] != self.ground.generation:
                raise OvertakenError
            return self._ledger(transaction)

        ledger = self.shelf.database.read(account)
        return self._sums[number][0].released(self._gate.afresh(ledger))

    def clean_log(self) -> None:
        """On opening: a process that died after a release may have left its log as it was."""
        if self.shelf.database.single_writer:
            self.clean()

    def drop_keys(self) -> None:
        """Delete keys that were kept long enough, slice by slice: also where nothing is released.

        Deciding goes on between two slices.
        """
        while self.shelf.has_expired_keys(self._now()):
            self.shelf.database.write(
                lambda transaction: self.shelf.drop_keys(transaction, self._now())
            )
            self.unclean = True

    def clean(self) -> None:
        """Have deleted rows overwritten everywhere; tried again until nobody stands in the way."""
        self.unclean = True  # also where this fails
        self.unclean = not self.shelf.database.forget()

    def _ledger(self, transaction: Transaction) -> Ledger | None:
        """The account as the store has it, inside the transaction that adds to it."""
        budget = self.problem.budget
        if budget is None:
            return None
        ledger = Ledger(budget, composition=self.problem.composition)
        for event in self.read_events(transaction):
            ledger.record(event)
        return ledger

    def learn(self, number: int) -> None:
        """Learn from a release, and publish what is known now."""
        epoch = next((each for each in self.ground.epochs if each.number == number), None)
        if epoch is None or epoch.state != RELEASED:
            return
        found = self.shelf.database.read(
            lambda transaction: transaction.row(
                "SELECT release FROM epochs WHERE number = ?", (number,)
            )
        )
        assert found is not None

        release = None
        values, arrays = ({}, {}) if found[0] is None else unpacked(found[0])
        if "vector" in arrays:  # else none of its slots was used by who teaches
            event = values["event"]
            release = Release(
                plan=self.plan(number),
                vector=arrays["vector"],
                event=None if event is None else ReleaseEvent(**event),
                segments=tuple(self.segment(number, each.number) for each in epoch.stretches),
                counts=tuple(values["counts"]),
            )
        newest = self.ground.newest
        # In a simulation the turn comes after all releases that are due, as in memory.
        turn = newest is not None and not self._streams.simulated and release is not None

        def publish(transaction: Transaction, draft: Draft, generation: int, issued: int) -> None:
            self._move(transaction, number, RELEASED, LEARNT)
            if newest is not None:
                self._write_turn(transaction, newest, draft, generation, issued)

        task = Task(learn=number, release=release, turn=turn, catalogue=self._catalogue)
        self._advance(task, publish)

    def turn(self) -> None:
        """A new segment for the newest epoch, from a public slot on that nobody holds."""
        newest = self.ground.newest
        assert newest is not None

        def publish(transaction: Transaction, draft: Draft, generation: int, issued: int) -> None:
            self._write_turn(transaction, newest, draft, generation, issued)

        self._advance(Task(turn=True, catalogue=self._catalogue), publish)

    def _write_turn(
        self, transaction: Transaction, epoch: EpochRow, draft: Draft, generation: int, issued: int
    ) -> None:
        if draft.segment is not None:
            first = max(epoch.first, self.effect(epoch, issued))
            self._insert_segment(transaction, epoch.number, draft, first, generation + 1)

    def open_next(self, first: int, *, given_up: bool = False) -> bool:
        """Plan the next epoch, to begin at a slot; False at the horizon.

        ``given_up``: what the newest one was planned by is not believed any more.
        """
        newest = self.ground.newest
        number = self.following()
        if self._course.length(number, first) == 0:
            if newest is not None and self.issued >= newest.first + newest.length:
                self.end(newest)  # the last one: its wait begins
            return False

        def publish(transaction: Transaction, draft: Draft, generation: int, issued: int) -> None:
            start = first
            assert draft.plan is not None
            if newest is not None:
                # Ended by the clock: now. By its number, or because what it was planned by was
                # given up: at a public slot that is still to come.
                at_once = not given_up and first < newest.first + newest.length
                start = issued if at_once else max(first, self.effect(newest, issued))
                self._set_end(transaction, newest, start, at_once=at_once)
            row = (number, start, draft.plan.length, OPEN, *[None] * 6, draft.plan_blob)
            transaction.insert("epochs", [(*row, *[None] * 3)])
            self._insert_segment(transaction, number, draft, start, generation + 1)
            if coming is not None:
                transaction.run(
                    "UPDATE catalogues SET epoch = ? WHERE version = ?", (number, coming)
                )

        coming = self.ground.coming
        renewed = None if coming is None else self._versions[coming]
        version = self._catalogue if coming is None else coming
        self._advance(Task(plan=(number, first), renewed=renewed, catalogue=version), publish)
        return True

    def _insert_segment(
        self, transaction: Transaction, epoch: int, draft: Draft, first: int, law: int
    ) -> None:
        assert draft.segment is not None
        row = (epoch, draft.segment.number, first, law, draft.segment_blob)
        transaction.insert("segments", [row])

    def _advance(self, task: Task, write: Callable[[Transaction, Draft, int, int], None]) -> None:
        """Compute on a branch of the course, and publish it if nobody was faster.

        The course must be that of the ground: a step may have looked at the store since, and found
        what another process has learnt.
        """
        if self._law != self.ground.law:
            raise OvertakenError
        before = self._streams.state()
        try:
            draft = self.workshop.make(self.branch(), task, self.played, self._streams)

            def publish(transaction: Transaction) -> int:
                issued, generation = self.current(transaction)
                transaction.insert("laws", [(generation + 1, draft.law)])
                write(transaction, draft, generation, issued)
                self._forget_laws(transaction)
                self._write_streams(transaction)
                self.shelf.publish(transaction, generation, draft.mark)
                return generation + 1

            law = self.write(publish, look=False)
        except BaseException:
            if before is not None:
                self._streams.restore(before)
            raise
        self._course, self._law, self.played = draft.course, law, draft.played
        self._catalogue = task.catalogue
        if draft.chooser is not None:
            self.keep_chooser(law, draft.chooser)
        self.refresh()

    def _forget_laws(self, transaction: Transaction) -> None:
        """Laws that no epoch under way plays, the newest aside."""
        transaction.drop_public(
            "DELETE FROM laws WHERE generation < (SELECT max(generation) FROM laws) "
            "AND generation NOT IN (SELECT law FROM segments JOIN epochs "
            "ON segments.epoch = epochs.number WHERE epochs.state IN ('open', 'waiting'))"
        )

    def _write_streams(self, transaction: Transaction) -> None:
        state = self._streams.state()
        if state is not None:
            self.shelf.write_streams(transaction, packed(state))

    def current(self, transaction: Transaction) -> tuple[int, int]:
        """Slots handed out and generation, both locked; refused if the view is an older one."""
        issued, generation = self.shelf.lock_counter(transaction)
        if generation != self.ground.generation:
            raise OvertakenError
        return issued, generation

    def write(self, function: Callable[[Transaction], Any], *, look: bool = True) -> Any:
        """Run a step in a transaction, and look at what it has come to."""
        result = self.shelf.database.write(function)
        if look:
            self.survey()
        return result
