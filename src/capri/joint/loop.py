"""The epoch loop: the steps of an engine, and when each of them is due.

Every step is one transaction that publishes something and raises the store's generation:

    open       a planned epoch, from a slot that nobody holds yet
    end        the last slot of an epoch is known; it waits for rewards
    close      nothing of it counts any more; only now are its data read
    release    the noise is drawn, the result stored, and what users did is deleted: at a moment
               that was fixed before (:mod:`capri.joint.release`)
    learn      what the learner knows now; with a new segment for the epoch under way

Who finds the store between two steps takes the next one: a crash loses no more than a computation.
Learning and planning look at public values alone and hold no lock. Their result is published only
if the generation is still the one they began with.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep

from capri.epoch.plan import EpochPlan, Release
from capri.errors import HorizonError
from capri.joint.planner import PlannerProcess, PlanRequest, PlanResult
from capri.joint.release import Releases
from capri.joint.state import PublicState
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.store.repository import OvertakenError, drop_laws
from capri.store.tables import Unit
from capri.store.view import CLOSED, LEARNT, OPEN, RELEASED, WAITING, EpochRow
from capri.streams import Streams

# The next epoch is planned when this share of the one under way is still to come.
AHEAD = 8
# Seconds to wait at most for the result of another process, and between two looks.
_OTHERS, _NAP = 5.0, 0.02


class EpochLoop:
    """Takes the steps that are due, in their order: before a decision, beside them, on demand."""

    def __init__(
        self, state: PublicState, streams: Streams, gate: Gate, ledger: Ledger | None
    ) -> None:
        self.state, self.repository, self._streams = state, state.repository, streams
        self._gate, self._ledger = gate, ledger
        self.releases = Releases(state, streams, gate, ledger)
        self.planner = PlannerProcess(alone=state.synchronous)

    # -- what is due ------------------------------------------------------------------------------

    def ready(self) -> None:
        """All that is due before the next decision, in the order of a policy in memory.

        For simulations: one process, no rounding, nothing in the background.
        """
        with self.state.lock:
            self.state.refresh()
            self._finish()
            self._end_full()
            while (waiting := self.state.ground.waiting) and self._is_due(waiting[0], before=True):
                self.take_in(waiting[0].number)
            self._end_full()  # a release may have told of a change
            if self.state.ground.newest is None:
                self.open_next(self.state.issued)
            elif self.state.played != len(self.state.learning.records):
                self.turn()

    def _end_full(self) -> None:
        newest = self.state.ground.newest
        if newest is not None and self.state.is_over(newest, self.state.issued):
            self.end(newest)

    def step(self) -> float | None:
        """All that is due now, for a run whose planning is off the path of requests.

        All of it is public; what looks at users' data is done elsewhere (``settle_closed``).
        Returns the seconds until more is due by the clock, None where nothing is.
        """
        with self.state.lock:
            self.state.refresh()
            self.releases.drop_sums()
            self.releases.drop_keys()
            if self.releases.unclean:
                self.releases.clean()
            for waiting in self.state.ground.waiting:
                if not self._is_due(waiting, before=False):
                    break
                self.releases.close(waiting)
            self._release_due()
            self._plan_due(ahead=True)
            return min((each - self.state.now() for each in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[float]:
        """Public times at which something is due: none follows from how long a step took."""
        for epoch in self.state.ground.epochs:
            lasts = self.state.terms(self.state.ground, epoch.number).epoch_time
            if epoch.state == CLOSED:
                yield self.releases.moment(epoch)
            elif epoch.closes_at is not None and epoch.state == WAITING:
                yield epoch.closes_at
            elif lasts is not None and epoch.began is not None and epoch.state == OPEN:
                yield epoch.began + lasts.total_seconds()

    def plan_now(self) -> None:
        """Plan the next epoch: nothing can be decided before."""
        with self.state.lock:
            self.state.refresh()
            self._plan_due(ahead=False)

    def _release_due(self) -> None:
        """Releases whose moment has come, and lessons of those that nobody learnt from."""
        for epoch in self.state.ground.epochs:
            if epoch.state == CLOSED and not self._is_public(epoch):
                return
            if epoch.state in (CLOSED, RELEASED):
                self.take_in(epoch.number)

    def _is_public(self, epoch: EpochRow) -> bool:
        """Whether the moment of a closed epoch has come, and its sum is ready."""
        return self.state.now() >= self.releases.moment(epoch) and self.releases.is_ready(
            epoch.number
        )

    def _plan_due(self, *, ahead: bool) -> None:
        """A new segment after a release, and the next epoch when it is time."""
        newest = self.state.ground.newest
        if newest is None:
            self.open_next(self.state.issued)
            return
        given_up = self.state.issued > newest.first and self.state.learning.learner.obsolete(
            newest.number
        )
        if self.state.played != len(self.state.learning.records) and not given_up:
            self.turn()
            newest = self.state.ground.newest or newest
        margin = newest.length // AHEAD if ahead else 0
        if self.state.is_over(newest, newest.first):  # else by the clock
            self.open_next(self.state.issued)
        elif given_up:  # at a public slot: when a release was ready is nobody's business
            self.open_next(self.state.effect(newest, self.state.issued), given_up=True)
        elif self.state.issued >= newest.first + newest.length - margin:
            end = newest.first + newest.length
            self.open_next(max(end, self.state.effect(newest, self.state.issued)))

    def _is_due(self, epoch: EpochRow, *, before: bool) -> bool:
        """Whether an epoch has waited long enough; ``before`` the slot after it is handed out."""
        if epoch.closes is not None and epoch.closes_at is None and before:
            return self.state.issued >= epoch.closes
        return epoch.is_past(self.state.issued, self.state.now())

    def _finish(self) -> None:
        """What a process left half-way: closed epochs, and releases that nobody learnt from."""
        for epoch in self.state.ground.epochs:
            if epoch.state in (CLOSED, RELEASED):
                self.take_in(epoch.number)

    def take_in(self, number: int) -> None:
        """Close, release and learn from an epoch, as far as that is still to be done."""
        for epoch in self.state.ground.epochs:  # others may have taken steps since
            if epoch.number == number and epoch.state == WAITING:
                self.releases.close(epoch)
        self.releases.release(number)
        self.learn(number)
        if self.releases.unclean:  # last: users play an old law until it is learnt
            self.releases.clean()

    def close_all(self, *, early: bool) -> None:
        """Release every epoch whose decisions are all taken; ``early`` ends the one under way."""
        with self.state.lock:
            self.state.refresh()
            self._finish()
            newest = self.state.ground.newest
            if newest is not None and newest.number > 1 and self.state.issued <= newest.first:
                # Planned ahead: what counts is the epoch before it.
                self._close_before(newest, early=early)
                return
            if newest is not None and not self.state.is_over(newest, self.state.issued):
                left = newest.first + newest.length - self.state.issued
                if not early:
                    raise _decisions_left(left)
                if self.state.issued <= newest.first:
                    return
            if newest is not None:
                self.end(newest)
            for waiting in self.state.ground.waiting:
                self.take_in(waiting.number)

    def _close_before(self, planned: EpochRow, *, early: bool) -> None:
        """Close the epochs before one that nobody is in yet."""
        left = planned.first - self.state.issued
        if left and not early:
            raise _decisions_left(left)

        def skip(unit: Unit) -> None:
            issued, _ = self.state.current(unit)
            if issued < planned.first:  # others decide meanwhile: a slot is handed out once
                unit.set_counter("issued", planned.first)

        if left:  # slots that nobody used were not realised
            self.state.write(skip)
        for waiting in self.state.ground.waiting:
            self.take_in(waiting.number)

    def close_full(self) -> None:
        """The same if no epoch takes decisions any more; else nothing happens."""
        with self.state.lock:
            self.state.refresh()
            newest = self.state.ground.newest
            if (
                newest is None
                or self.state.issued == newest.first
                or self.state.is_over(newest, self.state.issued)
            ):
                self.close_all(early=False)

    # -- single steps -----------------------------------------------------------------------------

    def end(self, epoch: EpochRow) -> None:
        """An epoch takes no more decisions; its rewards are awaited from here on."""

        def end(unit: Unit) -> None:
            issued, generation = self.state.current(unit)
            self._set_end(unit, epoch, issued, at_once=True)
            what = b"end %d at %d" % (epoch.number, issued)
            self.repository.publish(unit, generation, what)

        self.state.write(end)

    def _set_end(self, unit: Unit, epoch: EpochRow, last: int, *, at_once: bool) -> None:
        """The last slot of an epoch, and until when its rewards count.

        A wait by time begins when the epoch was full; where its last slots are still to come, with
        the first decision of the next one (:meth:`~capri.joint.slots.SlotBook.count`).
        """
        terms, closes_at = self.state.terms(self.state.ground, epoch.number), None
        closes = None if isinstance(terms.wait, timedelta) else last + terms.wait
        if isinstance(terms.wait, timedelta) and at_once:
            now = self.state.now()
            ended = epoch.filled
            if ended is None and epoch.began is not None and terms.epoch_time is not None:
                ended = min(now, epoch.began + terms.epoch_time.total_seconds())
            closes_at = (now if ended is None else ended) + terms.wait.total_seconds()
        self.state.move(unit, epoch.number, OPEN, WAITING)
        times = {"last": last, "closes": closes, "closes_at": closes_at}
        unit.update("epochs", times, number=epoch.number)

    def learn(self, number: int) -> None:
        """Learn from a release, and publish what is known now."""
        epoch = next((each for each in self.state.ground.epochs if each.number == number), None)
        if epoch is None or epoch.state != RELEASED:
            return
        found, release = self.repository.value("epochs", "release", number=number), None
        values, arrays = ({}, {}) if found is None else self.repository.codec.unpack(found)
        if "vector" in arrays:  # else none of its slots was used by who teaches
            event = values["event"]
            release = Release(
                plan=self.state.plan(number),
                vector=arrays["vector"],
                event=None if event is None else ReleaseEvent(**event),
                segments=tuple(self.state.segment(number, each.number) for each in epoch.segments),
                counts=tuple(values["counts"]),
            )
        newest = self.state.ground.newest
        # Where all is done at once the turn comes after all releases that are due, as in memory.
        turn = newest is not None and not self.state.synchronous and release is not None

        def publish(unit: Unit, result: PlanResult, generation: int, issued: int) -> None:
            self.state.move(unit, number, RELEASED, LEARNT)
            self.repository.drop_learnt(unit, number)
            if newest is not None:
                self._write_turn(unit, newest, result, generation, issued)

        request = PlanRequest(
            learn=number, release=release, turn=turn, catalogue=self.state.catalogue
        )
        self._advance(request, publish)

    def turn(self) -> None:
        """A new segment for the newest epoch, from a public slot on that nobody holds."""
        newest = self.state.ground.newest
        assert newest is not None

        def publish(unit: Unit, result: PlanResult, generation: int, issued: int) -> None:
            self._write_turn(unit, newest, result, generation, issued)

        self._advance(PlanRequest(turn=True, catalogue=self.state.catalogue), publish)

    def _write_turn(
        self, unit: Unit, epoch: EpochRow, result: PlanResult, generation: int, issued: int
    ) -> None:
        if result.segment is not None:
            first = max(epoch.first, self.state.effect(epoch, issued))
            self._add_segment(unit, epoch.number, result, first, generation + 1)

    def check_plan(self, plan: EpochPlan, *, opening: bool = False) -> None:
        """Refuse what the budget would not cover, before any data are in.

        ``opening``: it is to be played, so an organisation's ledger is asked, too.
        """
        model, length = self.state.problem.model, plan.length
        ask = self._gate.plan if opening else self._gate.check
        ask(plan.layout, epoch=plan.epoch, participants=length, model=model)

    def open_next(self, first: int, *, given_up: bool = False) -> bool:
        """Plan the next epoch, to begin at a slot; False at the horizon.

        ``given_up``: what the newest one was planned by is not believed any more.
        """
        newest = self.state.ground.newest
        number = self.state.following()
        if self.state.length(number, first) == 0:
            if newest is not None and self.state.issued >= newest.first + newest.length:
                self.end(newest)  # the last one: its wait begins
            if self._ledger is not None:
                self._ledger.settle()
            return False

        def publish(unit: Unit, result: PlanResult, generation: int, issued: int) -> None:
            start = first
            assert result.plan is not None
            if newest is not None:
                # Ended by the clock: now. By its number, or because what it was planned by was
                # given up: at a public slot that is still to come.
                at_once = not given_up and first < newest.first + newest.length
                start = issued if at_once else max(first, self.state.effect(newest, issued))
                self._set_end(unit, newest, start, at_once=at_once)
            times, release = [None] * 6, [None] * 3
            planned = (number, start, result.plan.length, OPEN, *times, result.kept_plan, *release)
            unit.insert("epochs", [planned])
            self._add_segment(unit, number, result, start, generation + 1)
            if coming is not None:
                unit.update("catalogues", {"epoch": number}, version=coming)

        coming = self.state.ground.coming
        renewed = None if coming is None else self.state.versions[coming]
        version = self.state.catalogue if coming is None else coming
        self._advance(
            PlanRequest(
                plan=(number, first),
                endless=self.state.ground.mode.endless,
                renewed=renewed,
                catalogue=version,
            ),
            publish,
        )
        return True

    def _add_segment(
        self, unit: Unit, epoch: int, result: PlanResult, first: int, law: int
    ) -> None:
        assert result.segment is not None
        row = (epoch, result.segment.number, first, law, result.kept_segment)
        unit.insert("segments", [row])

    def _advance(
        self, request: PlanRequest, write: Callable[[Unit, PlanResult, int, int], None]
    ) -> None:
        """Compute on a branch of the learning loop, and publish it if nobody was faster.

        What was learnt must be that of the ground: a step may have looked at the store since, and
        found what another process has learnt.
        """
        if self.state.law != self.state.ground.law:
            raise OvertakenError
        once = nullcontext() if self.repository.single_writer else self._computing()
        with once, self.state.drawing:
            request = replace(request, codec=self.repository.codec)
            result = self.planner.make(
                self.state.learning.branch(), request, self.state.played, self._streams
            )
            if result.plan is not None:
                self.check_plan(result.plan, opening=True)

            def publish(unit: Unit) -> int:
                issued, generation = self.state.current(unit)
                unit.insert("laws", [(generation + 1, result.law)])
                write(unit, result, generation, issued)
                drop_laws(unit)
                self.repository.write_streams(unit, self._streams)
                self.repository.publish(unit, generation, result.mark)
                return generation + 1

            law = self.repository.write(publish)
        self.state.adopt(
            result.learning,
            law=law,
            played=result.played,
            catalogue=request.catalogue,
            chooser=result.chooser,
            plan=result.plan,
        )

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Where another process is at the same step, its result is waited for, for a while.

        All of it is public: what takes long is learning and planning.
        """
        give_up, mine = monotonic() + _OTHERS, self.repository.begin_step()
        while not mine and monotonic() < give_up:
            sleep(_NAP)
            if self.repository.counter(self.state.ground)[1] != self.state.ground.generation:
                raise OvertakenError
            mine = self.repository.begin_step()
        try:
            yield
        finally:
            if mine:
                self.repository.end_step()


def _decisions_left(left: int) -> HorizonError:
    return HorizonError(
        f"{left} decisions of this epoch are still to be taken: an epoch closes on its number of "
        "decisions. Give early=True to end it now"
    )
