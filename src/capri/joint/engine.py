"""The engine of a policy: one state machine over a repository, in memory or in a database.

    slots  ->  decisions  ->  rewards  ->  close  ->  release  ->  learn  ->  plan  ->  slots

Every change is one unit of work of the repository (:mod:`capri.store.repository`). When steps are
taken is the pace (:mod:`capri.joint.pace`); which steps there are is said in
:mod:`capri.joint.loop`.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from threading import Thread, current_thread
from typing import Any

from capri.codec import packed
from capri.epoch.decisions import SIMULATED, DecisionIds
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.modes import Mode
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowRecord
from capri.epoch.storage import version_state
from capri.errors import CapriError, ConfigurationError
from capri.joint.decisions import Decider
from capri.joint.loop import EpochLoop
from capri.joint.pace import Background, Pace, Synchronous
from capri.joint.release import stored_columns
from capri.joint.rewards import Rewards
from capri.joint.state import PublicState
from capri.privacy.budget import UserId, check_users, user_digest
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.store.memory import MemoryRepository
from capri.store.persistence import Described
from capri.store.repository import Forgotten, Repository, Rows, repeated
from capri.store.tables import Unit
from capri.streams import Streams

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


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """An epoch that is not released yet.

    ``taken`` of about ``length`` decisions; ``open`` while it takes more, then it waits for
    rewards until decision ``closes`` or the time ``closes_at`` (seconds since 1970). Where epochs
    also end by the clock, an open one does so at ``ends_at``.
    """

    epoch: int
    length: int
    taken: int
    open: bool
    closes: int | None = None
    closes_at: float | None = None
    ends_at: float | None = None


def end_by_clock(began: float | None, lasts: timedelta | None) -> float | None:
    """When an epoch ends by the clock; None where it does not, or has no decision yet."""
    return None if began is None or lasts is None else began + lasts.total_seconds()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Decisions taken so far, releases, and the epochs under way, oldest first.

    ``missed``: releases of a store that were not ready at the moment that was fixed for them.
    """

    decided: int
    released: int
    under_way: tuple[UnderWay, ...]
    missed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"under_way": [asdict(epoch) for epoch in self.under_way]}


@dataclass(frozen=True)
class Clock:
    """A public clock that was given, in seconds since 1970."""

    given: Callable[[], datetime]

    def __call__(self) -> float:
        """Now."""
        return self.given().timestamp()


def public_clock(given: Callable[[], datetime] | None) -> Callable[[], float]:
    """Seconds since 1970, by the clock that was given or by that of the machine."""
    if given is not None and not callable(given):
        raise ConfigurationError(
            "clock must be a function without arguments that gives a datetime.datetime, got "
            f"{type(given).__name__}"
        )
    return time.time if given is None else Clock(given)


class RepositoryUsers:
    """Users' counts in a repository, under digests with its salt."""

    def __init__(self, rows: Rows[Any]) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        return "RepositoryUsers()"

    def digests(self, users: Sequence[UserId]) -> list[str]:
        """What stands for the users in the repository."""
        return [user_digest(user, self._rows.salt) for user in users]

    def epochs_of(self, user: UserId) -> Counter[int]:
        """Contributions of a user by epoch."""
        check_users([user])
        return Counter(self._rows.visits_of(self.digests([user])[0]))


class Engine:
    """Decisions, rewards and epochs of one policy, as this process sees them."""

    def __init__(
        self,
        repository: Repository,
        *,
        problem: Problem,
        learning: LearningLoop,
        streams: Streams,
        gate: Gate,
        ledger: Ledger | None,
        horizon: int | None,
        retention: float,
        clock: Callable[[], float],
    ) -> None:
        self.repository, self._ledger, self.clock = repository, ledger, clock
        self.reservation = None if ledger is None else ledger.reservation
        self.hooks = learning.hooks
        repository.rows.columns = stored_columns(problem)
        self.state = state = PublicState(
            repository, problem, learning, streams, clock, self._publish, horizon
        )
        self.loop = EpochLoop(state, streams, gate, ledger)
        self.hooks.skip(len(self.learning.records))  # of before this process came
        self.loop.releases.clean_log()
        self.ids = SIMULATED if streams.simulated else repository.ids
        self.decider = Decider(
            state,
            self.loop.plan_now,
            streams,
            self.ids,
            retention=retention,
            now=clock,
        )
        self.rewards = Rewards(state)
        kind = Synchronous if state.synchronous else Background
        self.pace: Pace = kind(self.loop, self.decider)
        self.keyed = problem.rewards.rule.keyed
        self.closed = False

    def __repr__(self) -> str:
        return f"Engine({self.repository!r})"

    def _publish(self, learning: LearningLoop, events: list[ReleaseEvent]) -> None:
        """What this process has read or learnt, committed by whoever it was."""
        if self._ledger is not None:
            for event in events:
                self._ledger.record(event)
        learning.hooks = self.hooks
        self.hooks.tell(learning.records)
        self.hooks.warn(learning.learner.notices)

    @property
    def learning(self) -> LearningLoop:
        """What was learnt, as of the newest law this process has read."""
        return self.state.learning

    # -- serving ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what others have published since."""
        if not self.closed:
            self.state.refresh()

    def probe(self) -> None:
        """A unit of work that locks the counter and leaves it as it is."""
        self.repository.write(lambda unit: unit.lock())

    # -- operating --------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Who decides, as this process last read it."""
        return (self.state.view if self.closed else self.state.look()).mode

    def set_mode(self, mode: Mode, noted: dict[str, str], *, unless: str = "") -> None:
        """From the next decision on, in every process: each compares the generation.

        ``noted``: by whom and why. ``unless``: nothing happens where it is this mode already.
        """

        def prepare() -> Callable[[Unit], None] | None:
            if self.state.ground.mode.name == unless:
                return None
            for problem in self.state.problems(self.state.ground):
                mode.check(problem.actions)

            def change(unit: Unit) -> None:
                _, generation = self.state.current(unit)
                record = mode.to_dict() | noted
                self.repository.note_operation(unit, generation, "mode", record, self.clock())

            return change

        self._publish_change(prepare)

    def change(
        self,
        renewed: Callable[[Problem, int], Problem],
        configured: Callable[[Problem], Described] | None,
        record: dict[str, Any],
    ) -> None:
        """From the next epoch on that is not planned yet, in every process.

        What was asked for before and never played is replaced. ``renewed`` gives the next version
        of the problem, from the latest one and the slot up to which epochs are planned;
        ``configured`` what a policy of that version is built from, None where only actions change.
        """
        repository = self.repository

        def prepare() -> Callable[[Unit], None]:
            ground = self.state.ground
            planned = max((each.first + each.length for each in ground.epochs), default=0)
            problem = renewed(self.state.latest(ground), planned)
            kept = repository.codec.pack(*version_state(problem))
            digest = repository.codec.mark(kept).hex()
            count = problem.actions.count
            before = repository.codec.pack(*version_state(self.state.problem))
            described = None if configured is None else packed(*configured(problem))

            def change(unit: Unit) -> None:
                _, generation = self.state.current(unit)
                if described is not None:
                    repository.reconfigure(unit, before, described)
                unit.delete("catalogues", epoch=None)  # one that was never played
                unit.insert("catalogues", [(generation + 1, None, kept)])
                kind = "catalogue" if described is None else "settings"
                told = {"version": generation + 1, "actions": count, "digest": digest} | record
                repository.note_operation(unit, generation, kind, told, self.clock())

            return change

        self._publish_change(prepare)

    def _publish_change(self, prepare: Callable[[], Callable[[Unit], None] | None]) -> None:
        """A change by an operator is one publication, seen by every process."""

        def step() -> None:
            with self.state.lock:
                self.state.refresh()
                if (change := prepare()) is not None:
                    self.state.write(change)
                    self.state.refresh()  # and let the rollback guard know

        repeated(self.repository, step)

    def shadows(self) -> tuple[ShadowRecord, ...]:
        """What the policy would have been worth, for each released epoch with shadow visits."""
        kept = self.repository.read(self.repository.releases)
        found = (self.repository.codec.unpack(each)[0].get("shadow") for each in kept)
        return tuple(ShadowRecord(**each) for each in found if each is not None)

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
                with self.state.lock:  # else a step that ends now may think otherwise
                    self.loop.releases.unclean = True
                self.pace.wake()
        return done

    # -- epochs -----------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """How far all processes of this policy have come."""
        issued, view = self.state.read()
        newest = max((epoch.number for epoch in view.epochs), default=0)
        released = view.epochs[0].number - 1 if view.epochs else len(self.learning.records)
        return Progress(
            decided=issued,
            released=released,
            missed=sum(bool(each) for each in self.repository.epoch_values("missed")),
            under_way=tuple(
                UnderWay(
                    epoch=epoch.number,
                    length=epoch.length,
                    taken=max(0, min(issued, epoch.last or issued) - epoch.first),
                    open=epoch.number == newest and epoch.last is None,
                    closes=epoch.closes,
                    closes_at=epoch.closes_at,
                    ends_at=None
                    if epoch.last is not None
                    else end_by_clock(epoch.began, self.state.terms(view, epoch.number).epoch_time),
                )
                for epoch in view.epochs
                if epoch.accepts and epoch.first <= issued
            ),
        )

    def plan(self) -> EpochPlan:
        """The plan of the epoch under way, planned now where there is none."""
        if self.state.look().newest is None:
            self.pace.open()
        newest = self.state.look().newest
        if newest is None:
            raise self.state.horizon_reached()
        return self.state.plan(newest.number)

    def playing(self) -> tuple[EpochPlan, Segment] | None:
        """Plan and segment of the next decision, None where no epoch is open."""
        issued, view = self.state.read()
        if (newest := view.newest) is None:
            return None
        number = newest.segment(max(issued, newest.first)).number
        return self.state.plan(newest.number), self.state.segment(newest.number, number)

    def check_plans(self) -> None:
        """Read all that is played, and refuse what the budget does not cover.

        A file may hold anything.
        """
        for epoch in self.state.look().epochs:
            for segment in epoch.segments:
                self.state.segment(epoch.number, segment.number)
            self.loop.check_plan(self.state.plan(epoch.number))
            if epoch.last is None:
                self.state.chooser(epoch.segments[-1].law)

    def warm(self) -> None:
        """Plan an epoch where there is none, and read the laws that the next decisions play."""
        self.plan()
        for epoch in self.state.view.epochs:
            for segment in epoch.segments:
                if epoch.accepts:
                    self.state.chooser(segment.law)

    def close(self) -> None:
        """Take no more steps and give the connections back."""
        if not self.closed:
            self.closed = True
            self.repository.leave()
            self.pace.stop()
            self.repository.close()
            if self._ledger is not None:
                with suppress(CapriError):  # else with the next plan
                    self._ledger.settle()


def in_memory(problem: Problem, streams: Streams, learning: LearningLoop) -> MemoryRepository:
    """Where a policy without a store lives."""
    ids = SIMULATED if streams.simulated else DecisionIds()
    values, arrays = learning.state()
    law = {"learning": values, "plan_seconds": 0.0, "played": 0}, arrays
    return MemoryRepository(stored_columns(problem), ids, law, version_state(problem))


def shut(engine: Engine, process: int) -> None:
    """Close an engine: not in a forked child: the connections are its parent's.

    The last one to hold a policy may be its own planner, which can wait neither for itself nor for
    a transaction that it is in: then another thread closes.
    """
    if os.getpid() != process:
        return
    if engine.pace.runs_in(current_thread()):
        Thread(target=engine.close, name="capri-closing", daemon=True).start()
    else:
        engine.close()
