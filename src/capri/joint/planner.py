"""A thread beside the path of requests: takes a step when something is due.

One releases, learns and plans; another adds up epochs, since how long that takes is private.

A step that fails is told to the logger ``capri.store`` and tried again. If it goes on failing, who
asks for decisions or brings rewards is told, too: nothing would be released or learnt any more.
Neither says more than the kind of the failure, and its words where they are ours.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread

from capri.errors import CapriError, StorageError

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


class Planner:
    """Calls a step whenever it is woken, and from time to time."""

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
        """Whether a thread is the planner's."""
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
