"""The engine of a policy: one state machine over a repository, in memory or in a database.

    slots  ->  decisions  ->  rewards  ->  close  ->  release  ->  learn  ->  plan  ->  slots

Every change is one unit of work of the repository (:mod:`capri.store.repository`). When steps are
taken is the pace (:mod:`capri.joint.pace`); which steps there are is said in
:mod:`capri.joint.keeper`.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.available import Sets
from capri.epoch.course import Course
from capri.epoch.decide import Decisions
from capri.epoch.ids import SIMULATED, DecisionIds
from capri.epoch.modes import Logged, Mode, Operation
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowRecord
from capri.errors import ConfigurationError
from capri.joint.changes import Changes
from capri.joint.desk import Desk, Visits
from capri.joint.pace import Background, Pace, Synchronous, repeated
from capri.joint.progress import Progress, UnderWay, end_by_clock
from capri.joint.record import kept_actions
from capri.joint.rewards import Rewards
from capri.joint.rounds import Rounds
from capri.joint.settle import stored_columns
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import Actions
from capri.store.codec import PlainCodec
from capri.store.memory import MemoryRepository
from capri.store.repository import Forgotten, Repository, Rows

DEFAULT_RETENTION = timedelta(days=30)


def checked_retention(retention: object, wait: int | timedelta) -> float:
    """Seconds for which the decision of a key is kept."""
    if retention is None:
        longest = wait if isinstance(wait, timedelta) else timedelta(0)
        return (DEFAULT_RETENTION + longest).total_seconds()
    if not isinstance(retention, timedelta) or retention <= timedelta(0):
        raise ConfigurationError(
            f"key_retention must be a positive datetime.timedelta or None, got {retention!r}"
        )
    return retention.total_seconds()


class Clock:
    """The public clock in seconds."""

    def __init__(self, given: Callable[[], datetime] | None) -> None:
        self.given = given

    def __call__(self) -> float:
        """Seconds since 1970."""
        return time.time() if self.given is None else self.given().timestamp()


class RepositoryUsers(Participation):
    """Users' counts in a repository, under digests with its salt."""

    def __init__(self, limit: UserLimit, rows: Rows[Any]) -> None:
        super().__init__(limit)
        self._rows = rows

    def digests(self, users: Sequence[UserId]) -> list[str]:
        """What stands for the users in the repository."""
        self.salt = self._rows.salt
        return [self._digest(user) for user in users]

    def epochs_of(self, user: UserId) -> Counter[int]:
        """Contributions of a user by epoch."""
        self.check([user])
        return Counter(self._rows.visits_of(self.digests([user])[0]))


class Engine:
    """Decisions, rewards and epochs of one policy, as this process sees them."""

    def __init__(
        self,
        repository: Repository[Any],
        *,
        problem: Problem,
        course: Course,
        streams: Streams,
        gate: Gate,
        ledger: Ledger | None,
        horizon: int | None,
        retention: float,
        clock: Clock,
    ) -> None:
        self.repository, self._ledger, self.clock = repository, ledger, clock
        self.hooks = course.hooks
        repository.rows.columns = stored_columns(problem)
        self.rounds = Rounds(
            repository, problem, course, streams, gate, clock, self._publish, ledger, horizon
        )
        self.hooks.skip(len(self.course.records))  # of before this process came
        self.rounds.clean_log()
        self.ids = SIMULATED if streams.simulated else repository.ids
        self.desk = Desk(
            self.rounds, streams, self.ids, horizon=horizon, retention=retention, now=clock
        )
        self._rewards = Rewards(self.rounds, clock)
        self._changes = Changes(self.rounds, clock)
        kind = Synchronous if self.rounds.synchronous else Background
        self.pace: Pace = kind(self.rounds, self.desk)
        self.keyed = problem.rewards.rule.keyed
        self.closed = False

    def __repr__(self) -> str:
        return f"Engine({self.repository!r})"

    def _publish(self, course: Course, events: list[ReleaseEvent]) -> None:
        """What this process has read or learnt, committed by whoever it was."""
        if self._ledger is not None:
            for event in events:
                self._ledger.record(event)
        course.hooks = self.hooks
        self.hooks.tell(course.records)
        self.hooks.warn(course.learner.notices)

    @property
    def course(self) -> Course:
        """What was learnt, as of the newest law this process has read."""
        return self.rounds.course

    @property
    def actions(self) -> Actions:
        """Those of now."""
        return self.course.learner.problem.actions

    @property
    def newest_epoch(self) -> int:
        """The number of the epoch that was planned last, 1 before the first."""
        return max(1, self.repository.last_epoch())

    def recall(self, other: "Engine") -> None:
        """Plans and laws that another engine has read already."""
        self.rounds.recall(other.rounds)

    # -- serving ----------------------------------------------------------------------------------

    def decide(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[str] | None,
        keys: Sequence[str] | None,
        logged: Logged | None = None,
        wanted: IntArray | None = None,
        available: Sets | None = None,
    ) -> tuple[Decisions, BoolArray]:
        """Decide for some visits; users are given as digests."""
        digests = None if keys is None else self.repository.rows.key_digests(keys)
        return self.pace.decide(Visits(rows, valid, users, digests, logged, wanted, available))

    def reward(self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None) -> IntArray:
        """Keep rewards; a status for each."""
        self.pace.check()
        return self._rewards.reward(numbers, values, keys)

    def look(self) -> None:
        """Read what is public now, and keys that were rotated; nothing heavier."""
        self.rounds.look()

    def refresh(self) -> None:
        """Read what others have published since."""
        if not self.closed:
            self.rounds.refresh()

    # -- operating --------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Who decides, as this process last read it."""
        return (self.rounds.view if self.closed else self.rounds.look()).mode

    def set_mode(self, mode: Mode) -> None:
        """From the next decision on, in every process."""
        repeated(self.rounds, lambda: self._changes.set_mode(mode))

    def replace_actions(self, renewed: Callable[[Problem], Problem]) -> None:
        """From the next epoch on that is not planned yet, in every process."""
        repeated(self.rounds, lambda: self._changes.replace_actions(renewed))

    def operations(self) -> tuple[Operation, ...]:
        """What operators did."""
        return self.repository.operations()

    def shadows(self) -> tuple[ShadowRecord, ...]:
        """What the policy would have been worth."""
        return self._changes.shadows()

    def forget_user(self, digest: str) -> Forgotten:
        """Delete what is kept of a user.

        Where a reader elsewhere keeps it from being overwritten, that is tried again until nobody
        does.
        """
        done = self.repository.forget_user(digest)
        clean = False
        try:
            clean = self.repository.overwrite()
        finally:
            if not clean:
                with self.rounds.lock:  # else a step that ends now may think otherwise
                    self.rounds.unclean = True
                self.pace.wake()
        return done

    # -- epochs -----------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        return self.rounds.has_data()

    @property
    def remaining(self) -> int:
        """Decisions that one call may ask for."""
        return self.rounds.remaining()

    def progress(self) -> Progress:
        """How far all processes of this policy have come."""
        issued, view = self.rounds.survey_only()
        newest = max((epoch.number for epoch in view.epochs), default=0)
        released = view.epochs[0].number - 1 if view.epochs else len(self.course.records)
        lasts = self.rounds.problem.rewards.epoch_time
        return Progress(
            decided=issued,
            released=released,
            missed=self.repository.missed(),
            under_way=tuple(
                UnderWay(
                    epoch=epoch.number,
                    length=epoch.length,
                    taken=max(0, min(issued, epoch.last or issued) - epoch.first),
                    open=epoch.number == newest and epoch.last is None,
                    closes=epoch.closes,
                    closes_at=epoch.closes_at,
                    ends_at=end_by_clock(epoch.began, lasts) if epoch.last is None else None,
                )
                for epoch in view.epochs
                if epoch.accepts and epoch.first <= issued
            ),
        )

    def plan(self) -> EpochPlan:
        """The plan of the epoch under way, planned now where there is none."""
        if self.rounds.look().newest is None:
            self.pace.open()
        newest = self.rounds.look().newest
        if newest is None:
            raise self.rounds.horizon_reached()
        return self.rounds.plan(newest.number)

    def playing(self) -> tuple[EpochPlan, Segment] | None:
        """Plan and segment of the next decision, None where no epoch is open."""
        issued, view = self.rounds.survey_only()
        if (newest := view.newest) is None:
            return None
        number = newest.stretch(max(issued, newest.first)).number
        return self.rounds.plan(newest.number), self.rounds.segment(newest.number, number)

    def check_plans(self) -> None:
        """Read all that is played, and refuse what the budget does not cover.

        A file may hold anything.
        """
        for epoch in self.rounds.look().epochs:
            for stretch in epoch.stretches:
                self.rounds.segment(epoch.number, stretch.number)
            self.rounds.check_plan(self.rounds.plan(epoch.number))
            if epoch.last is None:
                self.rounds.chooser(epoch.stretches[-1].law)

    def warm(self) -> None:
        """Plan an epoch where there is none, and read the laws that the next decisions play."""
        self.plan()
        for epoch in self.rounds.view.epochs:
            for stretch in epoch.stretches:
                if epoch.accepts:
                    self.rounds.chooser(stretch.law)

    def close_epoch(self, *, early: bool) -> None:
        """Close every epoch whose decisions are all taken, or also the one under way."""
        repeated(self.rounds, lambda: self.rounds.close_all(early=early))

    def close_full_epoch(self) -> None:
        """Close epochs whose decisions are all taken, if none is under way."""
        repeated(self.rounds, self.rounds.close_full)

    def runs_in(self, thread: Thread) -> bool:
        """Whether a thread is one of its own."""
        return self.pace.runs_in(thread)

    def close(self) -> None:
        """Take no more steps and give the connections back."""
        if not self.closed:
            self.closed = True
            self.repository.leave()
            self.pace.stop()
            self.repository.close()


def in_memory(problem: Problem, streams: Streams, course: Course) -> MemoryRepository:
    """Where a policy without a store lives."""
    ids = SIMULATED if streams.simulated else DecisionIds()
    values, arrays = course.state()
    law = {"course": values, "plan_seconds": 0.0, "played": 0}, arrays
    return MemoryRepository(stored_columns(problem), ids, law, kept_actions(problem, PlainCodec()))
