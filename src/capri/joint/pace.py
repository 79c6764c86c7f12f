"""When steps of an engine are taken: before the next decision, or beside the path of requests."""

import logging
from collections.abc import Callable
from threading import Event, Thread

from capri.arrays import BoolArray
from capri.epoch.decisions import Decisions
from capri.errors import CapriError, StorageError
from capri.joint.decisions import Decider, Visits
from capri.joint.loop import AHEAD, EpochLoop
from capri.store.repository import repeated

# Seconds after which it looks by itself: for epochs on a clock, and for what others left half-way.
_PERIOD = 0.5
# Seconds to rest at least, also where a release is due at once.
_SHORTEST = 0.01
# Seconds to rest after a step has failed.
_REST = 2.0
# Failures in a row before requests are refused.
_PATIENCE = 3
# Seconds to wait on closing for a step under way; whatever it still computes is thrown away.
_PARTING = 5.0

_log = logging.getLogger("capri.store")


class Synchronous:
    """All that is due is done before the next decision, by who asks for it."""

    def __init__(self, loop: EpochLoop, decider: Decider) -> None:
        self._loop, self._state, self._decider = loop, loop.state, decider

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """Decide in the order of the calls."""
        with self._state.lock:
            keys, count = visits.keys, len(visits.rows)
            wanted = count if keys is None else self._decider.wanted(keys)
            if wanted and not self._state.is_quiet(wanted):
                self._state.refresh()
                remaining = self._state.remaining()
                if wanted > remaining:
                    self._decider.slots.refuse(wanted, remaining)
                self._loop.ready()
            return self._decider.decide(visits)

    def open(self) -> None:
        """Have an epoch under way, or say that the horizon is reached."""
        self._loop.ready()

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


class Worker:
    """A thread beside the path of requests: takes a step when it is woken, and from time to time.

    A step that fails is told to the logger ``capri.store`` and tried again. If it goes on failing,
    who asks for decisions or brings rewards is told, too: nothing would be released or learnt any
    more. Neither says more than the kind of the failure, and its words where they are ours.
    """

    def __init__(self, step: Callable[[], float | None] | Callable[[], None]) -> None:
        """``step`` returns after how many seconds it wants to be called again at the latest."""
        self._step = step
        self._due, self._ended = Event(), Event()
        self._thread: Thread | None = None
        self._failures, self._said = 0, ""

    def check(self) -> None:
        """Refuse to go on where nothing is released or planned any more."""
        if self._failures >= _PATIENCE:
            raise StorageError(
                f"releasing and planning have failed {self._failures} times in a row "
                f"({self._said}): nothing was changed by this call. Mend that; it is tried again "
                "all the time"
            )

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="capri-planner", daemon=True)
            self._thread.start()

    @property
    def started(self) -> bool:
        """Whether there is a thread, to which a step can be left."""
        return self._thread is not None

    def runs_in(self, thread: Thread) -> bool:
        """Whether a thread is this one."""
        return thread is self._thread

    def wake(self) -> None:
        """Something is due."""
        self._due.set()

    def stop(self) -> None:
        """End after the step under way, or without it where that takes long."""
        self._ended.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(_PARTING)

    def _run(self) -> None:
        rest: float = _PERIOD
        while not self._ended.is_set():
            self._due.wait(rest)
            self._due.clear()
            if self._ended.is_set():
                return
            try:
                soon = self._step()
                rest = _PERIOD if soon is None else min(_PERIOD, max(soon, _SHORTEST))
            except BaseException as problem:  # also what would end a thread: others need this one
                if self._ended.is_set():
                    return
                self._note(problem)
                self._ended.wait(_REST)
            else:
                self._failures = 0

    def _note(self, problem: BaseException) -> None:
        """Words of others may quote a value."""
        kind = type(problem).__name__
        self._said = f"{kind}: {problem}" if isinstance(problem, CapriError) else kind
        self._failures += 1
        _log.warning(
            "a step of releasing and planning failed, %d in a row (%s)", self._failures, self._said
        )


class Background:
    """Releasing, learning and planning in a thread, adding up in another.

    How long it takes to add up an epoch must move nothing that the planner does.
    """

    def __init__(self, loop: EpochLoop, decider: Decider) -> None:
        self._loop, self._state, self._decider = loop, loop.state, decider
        self.planner = Worker(self.step)
        self.settler = Worker(loop.releases.settle_closed)
        self.planner.start()  # epochs on a clock also close where nobody decides
        self.settler.start()

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """A key that is known has its decision, also where no epoch takes another one."""
        self.check()
        if self._state.view.newest is None and (
            visits.keys is None or self._decider.wanted(visits.keys)
        ):
            self.open()
        decisions, kept = self._decider.decide(visits)
        if self._is_due(decisions):
            self.planner.wake()
        return decisions, kept

    def _is_due(self, decisions: Decisions) -> bool:
        """Whether these decisions have passed a slot at which something is to be done.

        Where many processes decide, the one that fills the slot goes ahead: if all did, each would
        compute the same. The others look by themselves a little later, should nothing come of it.
        """
        view = self._state.view
        due = [epoch.closes for epoch in view.waiting if epoch.closes is not None]
        if view.newest is not None:
            newest = view.newest
            due.append(newest.first + newest.length - newest.length // AHEAD - 1)
        if len(decisions.number) == 0:
            return False
        first, last = int(decisions.number.min()), int(decisions.number.max())
        if self._state.repository.single_writer or not due:
            return last >= min(due, default=0)
        return any(first <= slot <= last for slot in due)

    def open(self) -> None:
        """A step that a caller waits for."""
        self.step()
        if self._state.at_the_horizon():
            raise self._state.horizon_reached()

    def step(self) -> float | None:
        """All that is due, whoever else is at it; the seconds until more is."""
        soon = repeated(self._state.repository, self._loop.step)
        if self.settler.started:
            self.settler.wake()
        else:
            self._loop.releases.settle_closed()
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
        self._loop.planner.stop()
        self.planner.stop()
        self.settler.stop()
        self._loop.planner.close()


# Who takes the steps of an engine, and when.
Pace = Synchronous | Background
