"""When each step of a stored policy is due: before a decision, in the background, or on demand."""

from collections.abc import Iterator

from capri.errors import HorizonError
from capri.joint.steps import Steps
from capri.store.view import CLOSED, OPEN, RELEASED, WAITING, EpochRow, Unit

# The next epoch is planned when this share of the one under way is still to come.
_AHEAD = 8


class EpochLoop:
    """Takes the steps that are due, in their order."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.state, self._releases = steps, steps.state, steps.releases

    def ready(self) -> None:
        """All that is due before the next decision, in the order of a policy in memory.

        For simulations: one process, no rounding, nothing in the background.
        """
        with self.state.lock:
            self.state.refresh()
            self._finish()
            newest = self.state.ground.newest
            if newest is not None and self.state.is_over(newest, self.state.issued):
                self.steps.end(newest)
            while (waiting := self.state.ground.waiting) and self._is_due(waiting[0], before=True):
                self.take_in(waiting[0].number)
            newest = self.state.ground.newest
            if newest is not None and self.state.is_over(
                newest, self.state.issued
            ):  # it told of a change
                self.steps.end(newest)
            if self.state.ground.newest is None:
                self.steps.open_next(self.state.issued)
            elif self.state.played != len(self.state.course.records):
                self.steps.turn()

    def step(self) -> float | None:
        """All that is due now, for a run whose planning is off the path of requests.

        All of it is public; what looks at users' data is done elsewhere (``settle_closed``).
        Returns the seconds until more is due by the clock, None where nothing is.
        """
        with self.state.lock:
            self.state.refresh()
            self._releases.drop_sums()
            self._releases.drop_keys()
            if self._releases.unclean:
                self._releases.clean()
            for waiting in self.state.ground.waiting:
                if not self._is_due(waiting, before=False):
                    break
                self._releases.close(waiting)
            self._release_due()
            self._plan_due(ahead=True)
            return min((each - self.state.now() for each in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[float]:
        """Public times at which something is due: none follows from how long a step took."""
        lasts = self.state.problem.rewards.epoch_time
        for epoch in self.state.ground.epochs:
            if epoch.state == CLOSED:
                yield self._releases.moment(epoch)
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
        return self.state.now() >= self._releases.moment(epoch) and self._releases.is_ready(
            epoch.number
        )

    def _plan_due(self, *, ahead: bool) -> None:
        """A new segment after a release, and the next epoch when it is time."""
        newest = self.state.ground.newest
        if newest is None:
            self.steps.open_next(self.state.issued)
            return
        given_up = self.state.issued > newest.first and self.state.course.learner.obsolete(
            newest.number
        )
        if self.state.played != len(self.state.course.records) and not given_up:
            self.steps.turn()
            newest = self.state.ground.newest or newest
        margin = self.margin(newest) if ahead else 0
        if self.state.is_over(newest, newest.first):  # else by the clock
            self.steps.open_next(self.state.issued)
        elif given_up:  # at a public slot: when a release was ready is nobody's business
            self.steps.open_next(self.state.effect(newest, self.state.issued), given_up=True)
        elif self.state.issued >= newest.first + newest.length - margin:
            end = newest.first + newest.length
            self.steps.open_next(max(end, self.state.effect(newest, self.state.issued)))

    def margin(self, epoch: EpochRow) -> int:
        """Slots before the end of an epoch at which the next one is planned."""
        return epoch.length // _AHEAD

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
        if (epoch := self._now_at(number)) is not None and epoch.state == WAITING:
            self._releases.close(epoch)
        self._releases.release(number)
        self.steps.learn(number)
        if (
            self._releases.unclean
        ):  # after what users wait for: they play an old law until it is learnt
            self._releases.clean()

    def _now_at(self, number: int) -> EpochRow | None:
        """An epoch as the ground has it: others may have taken steps since it was looked up."""
        return next((epoch for epoch in self.state.ground.epochs if epoch.number == number), None)

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
                    raise HorizonError(
                        f"{left} decisions of this epoch are still to be taken: an epoch closes "
                        "on its number of decisions. Give early=True to end it now"
                    )
                if self.state.issued <= newest.first:
                    return
            if newest is not None:
                self.steps.end(newest)
            for waiting in self.state.ground.waiting:
                self.take_in(waiting.number)

    def _close_before(self, planned: EpochRow, *, early: bool) -> None:
        """Close the epochs before one that nobody is in yet."""
        left = planned.first - self.state.issued
        if left and not early:
            raise HorizonError(
                f"{left} decisions of this epoch are still to be taken: an epoch closes on its "
                "number of decisions. Give early=True to end it now"
            )

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
