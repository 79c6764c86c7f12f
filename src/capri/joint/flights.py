"""Which epochs of a policy in memory are open, which wait for rewards, and when they close.

Every event here is public: a number of decisions, a time on the public clock, or a call. None of
them looks at a context or a reward.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.available import Sets, given_sets
from capri.epoch.decide import Chooser, RewardStatus
from capri.epoch.plan import EpochPlan, Segment
from capri.errors import ConfigurationError, HorizonError
from capri.joint.operated import Operated
from capri.joint.progress import Progress, UnderWay, end_by_clock


class Flights(Operated):
    """The epochs of :class:`capri.Capri` that are not released yet."""

    _clock: Callable[[], datetime] | None
    _timed: bool
    _chooser: Chooser | None

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        if self._backing is not None:
            return self._backing.pending
        with self._lock:
            return any(epoch.issued > 0 for epoch in self._flights)

    @property
    def _flights(self) -> list[OpenEpoch]:
        """Every epoch that is not released yet, oldest first."""
        return [*self._waiting, self._open] if self._open is not None else self._waiting

    @property
    def progress(self) -> Progress:
        """How far it has come; all of it is public."""
        if self._backing is not None:
            return self._backing.progress()
        lasts = self._problem.rewards.epoch_time
        with self._lock:
            return Progress(
                decided=self._decided,
                released=self._course.closed,
                under_way=tuple(
                    UnderWay(
                        epoch=epoch.plan.epoch,
                        length=epoch.plan.length,
                        taken=epoch.issued,
                        open=epoch is self._open,
                        closes=epoch.closes,
                        closes_at=epoch.deadline,
                        ends_at=end_by_clock(epoch.began, lasts) if epoch is self._open else None,
                    )
                    for epoch in self._flights
                ),
            )

    def _sets(self, available: object, count: int, *, single: bool = False) -> Sets | None:
        """Sets of available actions, as they were given."""
        if available is not None and self._preset == "paper":
            raise ConfigurationError(
                "available needs preset='practical': the paper's algorithm plays every active "
                "action alike"
            )
        return given_sets(available, count, single=single)

    def warm(self) -> None:
        """Do now what the next decision would wait for: planning, and reading what is played."""
        self._check_process()
        if self._backing is not None:
            self._backing.warm()
        else:
            self.plan()

    def check(self) -> None:
        """Raise where nothing is released and planned any more, and decisions are refused."""
        if self._backing is not None:
            self._backing.check()

    def plan(self) -> EpochPlan:
        """The public plan of the epoch under way; opens one where there is none, closes none."""
        self._check_process()
        if self._backing is not None:
            return self._backing.plan()
        with self._lock:
            return (self._epoch_with_room() if self._open is None else self._open).plan

    @property
    def playing(self) -> tuple[EpochPlan, Segment] | None:
        """Plan and segment that new decisions are made by, as anybody may know them.

        None where no epoch is open, and on a store, whose processes keep none. Opens nothing.
        """
        epoch = self._open
        return None if epoch is None else (epoch.plan, epoch.segments[-1])

    @property
    def remaining(self) -> int:
        """Decisions that the next call of :meth:`act_many` may ask for; 0 at the horizon.

        As many as come before the next public event: an epoch that is full, a release that is due.
        Where a release is due first that may tell of a change, as many as fit in any case.
        """
        if self._backing is not None:
            return self._backing.remaining
        with self._lock:
            epoch, decided = self._open, self._decided
            over = epoch is not None and self._is_over(epoch)
            wait = self._problem.rewards.wait
            due = [waiting.closes - decided for waiting in self._waiting if waiting.closes]
            if over and isinstance(wait, int):
                due.append(wait)
            told_first = over or any(number <= 0 for number in due)
            if epoch is None or over:
                room = self._course.length(self._opened + 1, decided)
            else:
                room = epoch.remaining
            if told_first:
                room = min(room, self._course.shortest(self._opened + 1, decided))
            return min([room, *(number for number in due if number > 0)])

    def _reward_apart(
        self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None
    ) -> IntArray:
        """Each reward to the epoch of its decision; late where that is released or past its time.

        A reward never closes an epoch: when one comes is not for others to know.
        """
        known = (numbers >= 0) & (numbers < self._decided)
        statuses = np.where(known, int(RewardStatus.LATE), int(RewardStatus.UNKNOWN))
        now = self._now() if self._problem.rewards.timed else 0.0
        for epoch in self._flights:
            deadline = self._deadline(epoch)
            mine = np.flatnonzero((numbers >= epoch.first) & (numbers < epoch.first + epoch.issued))
            if len(mine) and (deadline is None or now < deadline):
                own = None if keys is None else [keys[place] for place in mine.tolist()]
                statuses[mine] = epoch.reward(numbers[mine], values[mine], own)
        return statuses

    def _at_the_horizon(self) -> HorizonError:
        return HorizonError(
            f"all {self._horizon} decisions of the horizon are taken: build a new policy, for "
            "new users or with a new budget, to go on"
        )

    # -- epochs -----------------------------------------------------------------------------------

    def close_epoch(self, *, early: bool = False) -> None:
        """Close every epoch whose decisions are all taken: their rewards count up to now.

        Else each closes by itself, ``reward_wait`` after its last decision. Never when the last
        reward comes: whether all of them came is not for others to know. Call it after the last
        decision of the horizon. ``early`` ends the epoch under way, too: what is read of it is
        scaled by the decisions that were made.
        """
        self._check_process()
        if self._backing is not None:
            self._backing.close_epoch(early=early)
            return
        with self._lock:
            epoch = self._open
            under_way = epoch is not None and epoch.remaining > 0 and not self._is_over(epoch)
            if epoch is not None and under_way and not early:
                raise HorizonError(
                    f"{epoch.remaining} decisions of this epoch are still to be taken: an epoch "
                    "closes on its number of decisions. Give early=True to end it now"
                )
            self._course.learn()
            if epoch is not None and epoch.visited:
                self._end(epoch)
            while self._waiting:
                self._close_oldest()

    def close_full_epoch(self) -> None:
        """Close epochs whose decisions are all taken, if none is under way; else nothing happens.

        Those that wait for rewards go on waiting while another epoch takes decisions.
        """
        if self._backing is not None:
            self._backing.close_full_epoch()
            return
        with self._lock:
            if self._flights and (self._open is None or self._open.remaining == 0):
                self.close_epoch()

    def _now(self) -> float:
        """Seconds on the public clock."""
        return time.time() if self._clock is None else self._clock().timestamp()

    def _keep_time(self, epoch: OpenEpoch, count: int) -> None:
        """Note when an epoch had its first decision and when it was full."""
        now = self._now()
        if epoch.began is None:
            epoch.began = now
        if epoch.issued + count >= epoch.plan.length:
            epoch.filled = now

    def _is_over(self, epoch: OpenEpoch) -> bool:
        """Whether an epoch has taken its decisions: by their number, or by the public clock."""
        if epoch.issued >= epoch.plan.length:
            return True
        if epoch.issued > 0 and self._course.learner.obsolete(epoch.plan.epoch):
            return True  # what it plays and clips at belongs to a function that has changed
        limit = self._problem.rewards.epoch_time
        if limit is None or epoch.began is None or not epoch.visited:
            return False
        return self._now() >= epoch.began + limit.total_seconds()

    def _end(self, epoch: OpenEpoch) -> None:
        """An epoch takes no more decisions; it waits for rewards from here on."""
        terms = self._problem.rewards
        if isinstance(terms.wait, timedelta):
            deadline = self._deadline(epoch)
            wait = terms.wait.total_seconds()
            epoch.deadline = self._now() + wait if deadline is None else deadline
        else:
            epoch.closes = epoch.first + epoch.issued + terms.wait
        self._waiting = [*self._waiting, epoch]  # not in place: a copy goes its own way
        self._open = None

    def _deadline(self, epoch: OpenEpoch) -> float | None:
        """When rewards are late: the wait after the last decision, or after the epoch's time.

        None while it goes on, and where the wait is a number of decisions.
        """
        terms = self._problem.rewards
        if epoch.deadline is not None or not isinstance(terms.wait, timedelta):
            return epoch.deadline
        ended = epoch.filled
        if ended is None and self._is_over(epoch) and epoch.began is not None:
            if terms.epoch_time is not None:
                ended = epoch.began + terms.epoch_time.total_seconds()
            else:  # planned by a belief that was given up: it ends now
                ended = self._now()
        return None if ended is None else ended + terms.wait.total_seconds()

    def _is_due(self, epoch: OpenEpoch) -> bool:
        """Whether an epoch has waited long enough: a public number of decisions, or a time."""
        if epoch.closes is not None:
            return self._decided >= epoch.closes
        return epoch.deadline is not None and self._now() >= epoch.deadline

    def _epoch_with_room(self) -> OpenEpoch:
        """The epoch that takes the next decision, after everything public that is due.

        Epochs that have waited long enough are released in their order; the one under way then goes
        on with the newest law, or the next one is planned with it.
        """
        epoch = self._open
        usual = not self._waiting and not self._timed and self._played == self._course.closed
        if usual and epoch is not None and epoch.issued < epoch.plan.length:
            return epoch  # nothing is due
        self._course.learn()
        if self._open is not None and self._is_over(self._open):
            self._end(self._open)
        while self._waiting and self._is_due(self._waiting[0]):
            self._close_oldest()
        if self._open is not None and self._is_over(self._open):  # a release told of a change
            self._end(self._open)
        if self._open is None:
            self._renew_actions()
            plan = self._course.plan(self._opened + 1, self._decided)
            if plan is None:
                raise self._at_the_horizon()
            self._enter(plan, self._decided)
        assert self._open is not None
        if self._played != self._course.learnt:
            segment = self._course.turn()
            if segment is not None:
                self._open.turn(segment)
                self._chooser = None
            self._played = self._course.learnt
        return self._open

    def _enter(self, plan: EpochPlan, first: int) -> None:
        """Open an epoch whose first decision has this number."""
        self._open = OpenEpoch(plan, first, self._problem, self._gate)
        self._opened = plan.epoch
        self._played = self._course.learnt
        self._chooser = None

    def _close_oldest(self) -> None:
        """Release the oldest epoch, forget it, and learn from the release."""
        epoch = self._waiting[0]
        if (shadow := epoch.release_shadow()) is not None:
            self._shadows = [*self._shadows, shadow]
        if not sum(epoch.counts):  # all of its decisions were lost with another process
            self._waiting = self._waiting[1:]
            self._course.learner.drop(epoch.plan.epoch)
            return
        release = epoch.release()
        self._waiting = self._waiting[1:]
        self._course.close(release)
