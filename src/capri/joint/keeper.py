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
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

from capri.epoch.course import Course
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.joint.draft import Draft, Task
from capri.joint.draws import Draws
from capri.joint.moments import first_moment, moment_of
from capri.joint.record import OvertakenError, PublicRecord
from capri.joint.settle import SettledSum, settled_sum
from capri.joint.workshop import Workshop
from capri.privacy.gate import Departure, Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.randomness import Streams
from capri.store.repository import Repository
from capri.store.view import CLOSED, LEARNT, OPEN, RELEASED, WAITING, EpochRow, View

# Seconds after which others release what the process that closed an epoch has not.
_GRACE = 2.0
# No release is that far ahead: the clock was set back.
_LONGEST = 600.0


class Keeper(PublicRecord):
    """Advances the epochs of a stored policy, one step after the other."""

    def __init__(
        self,
        repository: Repository[Any],
        problem: Problem,
        course: Course,
        streams: Streams,
        gate: Gate,
        now: Callable[[], float],
        publish: Callable[[Course, list[ReleaseEvent]], None],
        ledger: Ledger | None,
        horizon: int | None,
    ) -> None:
        """``publish`` is told what this process has learnt or read, after it is committed."""
        super().__init__(repository, problem, course, streams, now, publish, horizon)
        self._ledger = ledger
        self._gate = gate
        self.workshop = Workshop(alone=self.synchronous)
        self.unclean = False
        # Epochs that this process has closed, and their sums, with the time each was ready.
        self._closed: set[int] = set()
        self._sums: dict[int, tuple[SettledSum, float]] = {}
        self._draws = Draws(repository, streams)
        # What this process has drawn and nobody has seen yet: shown when it is committed.
        self._departed: dict[int, tuple[bytes, list[Departure]]] = {}

    # -- steps ------------------------------------------------------------------------------------

    def end(self, epoch: EpochRow) -> None:
        """An epoch takes no more decisions; its rewards are awaited from here on."""

        def end(unit: Any) -> None:
            issued, generation = self.current(unit)
            self._set_end(unit, epoch, issued, at_once=True)
            what = b"end %d at %d" % (epoch.number, issued)
            self.repository.publish(unit, generation, what)

        self.write(end)

    def _set_end(self, unit: Any, epoch: EpochRow, last: int, *, at_once: bool) -> None:
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
        self._move(unit, epoch.number, OPEN, WAITING)
        times = {"last": last, "closes": closes, "closes_at": closes_at}
        self.repository.set_epoch(unit, epoch.number, **times)

    def _move(self, unit: Any, epoch: int, before: str, after: str) -> None:
        """From one state to the next, and from no other: each step is taken once."""
        if not self.repository.move(unit, epoch, before, after):
            raise OvertakenError

    def begin(self, unit: Any, view: View, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch had its first decision: clocks run from here."""
        now, wait = self._now(), self.problem.rewards.wait
        self.repository.set_epoch(unit, epoch.number, began=now)
        if isinstance(wait, timedelta):
            for waiting in view.waiting:
                if waiting.closes_at is None:
                    closes_at = now + wait.total_seconds()
                    self.repository.set_epoch(unit, waiting.number, closes_at=closes_at)
        self.repository.publish(unit, generation, b"begin %d" % epoch.number)

    def fill(self, unit: Any, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch was full."""
        self.repository.set_epoch(unit, epoch.number, filled=self._now())
        self.repository.publish(unit, generation, b"full %d" % epoch.number)

    def note_due(self, unit: Any, epoch: EpochRow, generation: int) -> None:
        """Note when an epoch has waited long enough, by the slots that were handed out."""
        self.repository.set_epoch(unit, epoch.number, due=self._now())
        self.repository.publish(unit, generation, b"due %d" % epoch.number)

    def close(self, epoch: EpochRow) -> None:
        """Nothing of an epoch counts from here on: after all who are at it.

        When it is due was noted with its slot, or is what the clock said; where nobody was there
        to close it then, or somebody asked for it before, it is due now.
        """
        due = epoch.closes_at if epoch.due is None else epoch.due
        if due is None or not 0 <= self._now() - due <= _GRACE:
            due = self._now()

        def close(unit: Any) -> None:
            self.repository.hold(unit, epoch.number)
            _, generation = self.current(unit)
            self._move(unit, epoch.number, WAITING, CLOSED)
            self.repository.set_epoch(unit, epoch.number, due=due)
            self.repository.publish(unit, generation, b"close %d" % epoch.number)

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
        parts = self.repository.rows.parts(epoch.first, epoch.last)
        total = settled_sum(plan, segments, starts, problem, parts, reported=self._gate.private)
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
        self.repository.note()  # an older copy, or an anchor that is away, ends it here
        self.settle(number)
        first, last = epoch.first, epoch.last
        _, missed = moment_of(self._first_moment(epoch), self._ready(number))
        kept = self._draws.of(number, lambda: self._drawn(number), self.current)
        mark = self._mark(kept)

        def release(unit: Any) -> None:
            self.repository.hold(unit, number)
            if self.repository.state_of(unit, number) != CLOSED:
                return  # by another process
            _, generation = self.repository.lock(unit)
            self._move(unit, number, CLOSED, RELEASED)
            values = {"released": generation + 1, "release": kept, "missed": missed}
            self.repository.set_epoch(unit, number, **values)
            self.repository.rows.forget(unit, number, first, last, self._now())
            self.repository.publish(unit, generation, b"release %d " % number + mark)

        self.write(release)
        self.drop_sums()
        self.unclean = True  # also if the anchor is away now
        self.repository.note()  # at once: from here on an older copy would release these data again
        drawn, departures = self._departed.pop(number, (b"", []))
        if drawn == mark:  # else another process has published its own
            self._gate.tell(departures)

    def _mark(self, kept: Any) -> bytes:
        return b"" if kept is None else self.repository.codec.mark(kept)

    def _drawn(self, number: int) -> Any:
        """The sum of an epoch with its noise, accounted for; not if another process was faster."""

        def account(unit: Any) -> Ledger | None:
            if self.repository.join(unit, ())[1] != self.ground.generation:
                raise OvertakenError
            return self._account(unit)

        ledger = self.repository.read(account)
        departures: list[Departure] = []
        published = self._sums[number][0].released(self._gate.afresh(ledger, departures))
        drawn = None if published is None else self.repository.codec.pack(*published)
        self._departed[number] = self._mark(drawn), departures
        return drawn

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

    def _account(self, unit: Any) -> Ledger | None:
        """The account as the repository has it, apart: what comes of it counts once published."""
        if self._ledger is None:
            return None
        ledger = copy(self._ledger)
        for event in self.events_of(self.repository.releases(unit))[len(ledger.events) :]:
            ledger.record(event)
        return ledger

    def learn(self, number: int) -> None:
        """Learn from a release, and publish what is known now."""
        epoch = next((each for each in self.ground.epochs if each.number == number), None)
        if epoch is None or epoch.state != RELEASED:
            return
        found, release = self.repository.release_of(number), None
        values, arrays = ({}, {}) if found is None else self.repository.codec.unpack(found)
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
        # Where all is done at once the turn comes after all releases that are due, as in memory.
        turn = newest is not None and not self.synchronous and release is not None

        def publish(unit: Any, draft: Draft, generation: int, issued: int) -> None:
            self._move(unit, number, RELEASED, LEARNT)
            if newest is not None:
                self._write_turn(unit, newest, draft, generation, issued)

        task = Task(learn=number, release=release, turn=turn, catalogue=self._catalogue)
        self._advance(task, publish)

    def turn(self) -> None:
        """A new segment for the newest epoch, from a public slot on that nobody holds."""
        newest = self.ground.newest
        assert newest is not None

        def publish(unit: Any, draft: Draft, generation: int, issued: int) -> None:
            self._write_turn(unit, newest, draft, generation, issued)

        self._advance(Task(turn=True, catalogue=self._catalogue), publish)

    def _write_turn(
        self, unit: Any, epoch: EpochRow, draft: Draft, generation: int, issued: int
    ) -> None:
        if draft.segment is not None:
            first = max(epoch.first, self.effect(epoch, issued))
            self._add_segment(unit, epoch.number, draft, first, generation + 1)

    def check_plan(self, plan: EpochPlan) -> None:
        """Refuse what the budget would not cover, before any data are in."""
        model, length = self.problem.model, plan.length
        self._gate.check(plan.layout, epoch=plan.epoch, participants=length, model=model)

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

        def publish(unit: Any, draft: Draft, generation: int, issued: int) -> None:
            start = first
            assert draft.plan is not None
            if newest is not None:
                # Ended by the clock: now. By its number, or because what it was planned by was
                # given up: at a public slot that is still to come.
                at_once = not given_up and first < newest.first + newest.length
                start = issued if at_once else max(first, self.effect(newest, issued))
                self._set_end(unit, newest, start, at_once=at_once)
            length, plan = draft.plan.length, draft.kept_plan
            self.repository.add_epoch(unit, number, start, length, plan)
            self._add_segment(unit, number, draft, start, generation + 1)
            if coming is not None:
                self.repository.begin_version(unit, coming, number)

        coming = self.ground.coming
        renewed = None if coming is None else self._versions[coming]
        version = self._catalogue if coming is None else coming
        self._advance(Task(plan=(number, first), renewed=renewed, catalogue=version), publish)
        return True

    def _add_segment(self, unit: Any, epoch: int, draft: Draft, first: int, law: int) -> None:
        assert draft.segment is not None
        number, kept = draft.segment.number, draft.kept_segment
        self.repository.add_segment(unit, epoch, number, first, law, kept)

    def _advance(self, task: Task, write: Callable[[Any, Draft, int, int], None]) -> None:
        """Compute on a branch of the course, and publish it if nobody was faster.

        The course must be that of the ground: a step may have looked at the store since, and found
        what another process has learnt.
        """
        if self._law != self.ground.law:
            raise OvertakenError
        with self.repository.drawing(self._streams):
            task = replace(task, codec=self.repository.codec)
            draft = self.workshop.make(self._course.branch(), task, self.played, self._streams)
            if draft.plan is not None:
                self.check_plan(draft.plan)

            def publish(unit: Any) -> int:
                issued, generation = self.current(unit)
                self.repository.add_law(unit, generation + 1, draft.law)
                write(unit, draft, generation, issued)
                self.repository.drop_laws(unit)
                self.repository.write_streams(unit, self._streams)
                self.repository.publish(unit, generation, draft.mark)
                return generation + 1

            law = self.write(publish, look=False)
        self._course, self._law, self.played = draft.course, law, draft.played
        self._catalogue = task.catalogue
        self._keep_draft(draft, law)
        self.refresh()

    def current(self, unit: Any) -> tuple[int, int]:
        """Slots handed out and generation, both locked; refused if the view is an older one."""
        issued, generation = self.repository.lock(unit)
        if generation != self.ground.generation:
            raise OvertakenError
        return issued, generation

    def write(self, function: Callable[[Any], Any], *, look: bool = True) -> Any:
        """Run a step as one unit of work, and look at what it has come to."""
        result = self.repository.write(function)
        if look:
            self.survey()
        return result
