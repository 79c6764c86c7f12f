"""When steps of an engine are taken: before the next decision, or beside the path of requests."""

from collections.abc import Callable
from threading import Thread
from typing import Protocol, TypeVar

from capri.arrays import BoolArray
from capri.epoch.decide import Decisions
from capri.joint.desk import Desk, Visits
from capri.joint.planner import Planner
from capri.joint.record import TURNS, OvertakenError
from capri.joint.rounds import Rounds

Result = TypeVar("Result")


def repeated(rounds: Rounds, step: Callable[[], Result]) -> Result:
    """Take a step, again where another process was faster."""
    for _ in range(TURNS):
        try:
            return step()
        except OvertakenError:
            continue
    raise rounds.never_current()


class Pace(Protocol):
    """Who takes the steps of an engine, and when."""

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """Decide for some visits, after or beside what is due."""

    def open(self) -> None:
        """Have an epoch under way, or say that the horizon is reached."""

    def step(self) -> float | None:
        """Take the steps that are due; the seconds until more are."""

    def check(self) -> None:
        """Raise where nothing is released or planned any more."""

    def wake(self) -> None:
        """Something is left to be done."""

    def runs_in(self, thread: Thread) -> bool:
        """Whether a thread is one of its own."""

    def stop(self) -> None:
        """Take no more steps."""


class Synchronous:
    """All that is due is done before the next decision, by who asks for it."""

    def __init__(self, rounds: Rounds, desk: Desk) -> None:
        self._rounds, self._desk = rounds, desk

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """Decide in the order of the calls."""
        with self._rounds.lock:
            wanted = self._desk.wanted(visits)
            if wanted and not self._rounds.is_quiet(wanted):
                self._rounds.refresh()
                remaining = self._rounds.remaining()
                if wanted > remaining:
                    self._desk.slots.refuse(wanted, remaining)
                self._rounds.ready()
            return self._desk.decide(visits)

    def open(self) -> None:
        """Have an epoch under way, or say that the horizon is reached."""
        self._rounds.ready()

    def step(self) -> float | None:
        """Nothing is done between two calls."""
        return None

    def check(self) -> None:
        """What fails fails where it is asked for."""

    def wake(self) -> None:
        """Nothing is left to be done."""

    def runs_in(self, thread: Thread) -> bool:
        """No thread is its own."""
        return False

    def stop(self) -> None:
        """There is nothing to stop."""


class Background:
    """Releasing, learning and planning in a thread, adding up in another.

    How long it takes to add up an epoch must move nothing that the planner does.
    """

    def __init__(self, rounds: Rounds, desk: Desk) -> None:
        self._rounds, self._desk = rounds, desk
        self.planner = Planner(self.step)
        self.settler = Planner(rounds.settle_closed)
        self.planner.start()  # epochs on a clock also close where nobody decides
        self.settler.start()

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """A key that is known has its decision, also where no epoch takes another one."""
        self.check()
        if self._rounds.view.newest is None and self._desk.wanted(visits):
            self.open()
        decisions, kept = self._desk.decide(visits)
        if self._is_due(decisions):
            self.planner.wake()
        return decisions, kept

    def _is_due(self, decisions: Decisions) -> bool:
        """Whether these decisions have passed a slot at which something is to be done.

        Where many processes decide, the one that fills the slot goes ahead: if all did, each would
        compute the same. The others look by themselves a little later, should nothing come of it.
        """
        view = self._rounds.view
        due = [epoch.closes for epoch in view.waiting if epoch.closes is not None]
        if view.newest is not None:
            margin = self._rounds.margin(view.newest)
            due.append(view.newest.first + view.newest.length - margin - 1)
        if len(decisions) == 0:
            return False
        first, last = int(decisions.number.min()), int(decisions.number.max())
        if self._rounds.repository.single_writer or not due:
            return last >= min(due, default=0)
        return any(first <= slot <= last for slot in due)

    def open(self) -> None:
        """A step that a caller waits for."""
        self.step()
        if self._rounds.at_the_horizon():
            raise self._rounds.horizon_reached()

    def step(self) -> float | None:
        """All that is due, whoever else is at it; the seconds until more is."""
        soon = repeated(self._rounds, self._rounds.step)
        if self.settler.started:
            self.settler.wake()
        else:
            self._rounds.settle_closed()
        return soon

    def check(self) -> None:
        """Raise where nothing is released or planned any more: decisions would be refused."""
        self.planner.check()
        self.settler.check()

    def wake(self) -> None:
        """Something is left to be done."""
        self.planner.wake()

    def runs_in(self, thread: Thread) -> bool:
        """Whether a thread is the planner's."""
        return self.planner.runs_in(thread) or self.settler.runs_in(thread)

    def stop(self) -> None:
        """Stop both threads."""
        self._rounds.workshop.stop()
        self.planner.stop()
        self.settler.stop()
        self._rounds.workshop.close()
