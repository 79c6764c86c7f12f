"""Micro-batches: concurrent requests become one call, made by one thread.

A commit waits for the disk. Requests that come meanwhile gather, and share the next call: under
load the number of items per call grows by itself, and alone a request waits for nobody. What calls
of several micro-batchers store at the same time is committed together by the store.

What waits is bounded by its number and by its bytes. A request counts as a constant and so many
bytes an item, whatever is in it: which request is refused depends on how many came, and on no
value.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from capri.errors import InDoubtError, StorageError
from capri.service.auth import RefusalError, ServiceLimits
from capri.service.endpoint import note
from capri.service.telemetry import Histogram
from capri.store.transaction import GivenUpError, beginning

Work = Callable[[list[Any]], list[Any]]
Leave = Callable[[], Awaitable[Any]]
# Items of one call: a transaction holds up others while it runs.
_MOST = 2048
_PERIOD = 0.5
# Seconds to wait at most for others who are expected; half of what a transaction takes, if less.
_GATHER = 0.003
# Bytes that a request takes while it waits, with its connection and without its items.
REQUEST_BYTES = 8 << 10
_MUCH = "too much is waiting"
_FULL = f"{_MUCH}: this was not done, try again"
_SLOW = "the store takes too long"
_LATE = f"{_SLOW}: this was not done, try again"
_LEFT = "the caller has gone: this was not done"
_INTERRUPTED = "the work was interrupted"
_WAITING, _BEGUN, _GONE = range(3)


class _Ticket:
    """A request that waits, and then begins or is given up: never both."""

    __slots__ = ("asked", "future", "items", "leave", "size", "state", "watch")

    def __init__(
        self, future: asyncio.Future[list[Any]], items: list[Any], asked: float, leave: Leave | None
    ) -> None:
        self.future, self.items, self.size, self.asked = future, items, len(items), asked
        self.state = _WAITING
        self.leave = leave
        self.watch: asyncio.Task[None] | None = None


class MicroBatcher:
    """A thread that works on lists of items; each item's outcome is a value or an exception.

    A request that waits for longer than ``answer_seconds``, or whose caller hangs up, before its
    work has begun is refused: the work never begins. Work that has begun may still be done: its
    caller is told that it is in doubt, and settles it by asking again with the same key.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        limits: ServiceLimits,
        *,
        threads: int = 1,
        item_bytes: int = 2 << 10,
        stored: bool = False,
    ) -> None:
        """``threads``: with two, one computes while the other waits for the disk.

        ``item_bytes``: those of an item that waits, at most. ``stored``: the work is done in
        transactions of a store, and begins with the first of them.
        """
        self._work, self.limits, self.name = work, limits, name
        # For operators: items that were done, requests told no, calls that failed, their time.
        self.counts: Counter[str] = Counter()
        self.seconds = Histogram()
        self._item_bytes, self._stored = item_bytes, stored
        self._asked: dict[_Ticket, None] = {}
        self._queue: SimpleQueue[_Ticket | None] = SimpleQueue()
        self.waiting = self.waiting_bytes = 0
        self._states = Lock()
        self._loop = asyncio.get_running_loop()
        self._threads = [
            Thread(target=self._run, name=f"capri-{name}", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self._watch = self._loop.call_later(_PERIOD, self._hurry)

    # -- in the event loop ------------------------------------------------------------------------

    async def do(self, items: list[Any], leave: Leave | None = None) -> list[Any]:
        """The outcome of each item. ``leave`` returns when the caller hangs up."""
        count, size = len(items), REQUEST_BYTES + len(items) * self._item_bytes
        if self.waiting and (
            self.waiting + count > self.limits.waiting
            or self.waiting_bytes + size > self.limits.waiting_bytes
        ):
            note(logging.WARNING, _MUCH)
            self.counts["refused"] += 1
            raise RefusalError(503, _FULL, wait=1)
        self.waiting += count
        self.waiting_bytes += size
        ticket = _Ticket(self._loop.create_future(), items, self._loop.time(), leave)
        self._asked[ticket] = None
        self._queue.put(ticket)
        try:
            return await ticket.future
        finally:
            del self._asked[ticket]
            self._give_up(ticket)  # where the request itself was cancelled
            if ticket.watch is not None:
                ticket.watch.cancel()

    def _give_up(self, ticket: _Ticket) -> bool:
        """Whether the work of a request will never begin. What it held is let go of."""
        with self._states:
            if ticket.state == _WAITING:
                ticket.state, ticket.items = _GONE, []
            return ticket.state == _GONE

    def _refuse(self, ticket: _Ticket, why: str) -> None:
        if not ticket.future.done() and self._give_up(ticket):
            self.counts["refused"] += 1
            ticket.future.set_exception(RefusalError(503, why, wait=1))

    def _hurry(self) -> None:
        """Look from time to time who has waited for too long, or has gone."""
        overdue = self._loop.time() - self.limits.answer_seconds
        for ticket in list(self._asked):
            if ticket.asked < overdue:
                note(logging.WARNING, _SLOW)
                self._refuse(ticket, _LATE)
                if not ticket.future.done():
                    ticket.future.set_exception(InDoubtError(_SLOW))
            elif ticket.leave is not None and ticket.watch is None:  # seldom: most are served
                ticket.watch = self._loop.create_task(self._notice(ticket, ticket.leave))
        self._watch = self._loop.call_later(_PERIOD, self._hurry)

    async def _notice(self, ticket: _Ticket, leave: Leave) -> None:
        with suppress(Exception):
            await leave()
        self._refuse(ticket, _LEFT)

    def hurry(self, seconds: float) -> None:
        """Let nobody wait for longer than this."""
        least = min(seconds, self.limits.answer_seconds)
        self.limits = replace(self.limits, answer_seconds=least)

    def stop(self) -> None:
        """End after what waits."""
        self._watch.cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(30.0)

    def _deliver(
        self, taken: list[_Ticket], results: dict[_Ticket, list[Any]], took: float
    ) -> None:
        made = [outcome for each in results.values() for outcome in each]
        if any(isinstance(outcome, StorageError) for outcome in made):
            self.counts["failed"] += 1
        elif any(not isinstance(outcome, BaseException) for outcome in made):
            self.counts["done"] += len(made)
        self.seconds.observe(took)
        for ticket in taken:
            self.waiting -= ticket.size
            self.waiting_bytes -= REQUEST_BYTES + ticket.size * self._item_bytes
            if not ticket.future.done() and ticket in results:  # else who asked has gone
                ticket.future.set_result(results[ticket])

    # -- in the threads ---------------------------------------------------------------------------

    def _run(self) -> None:
        expected, took = 1, 0.0
        while (first := self._queue.get()) is not None:
            if self._queue.qsize() + 1 < expected:
                # Those who were just answered ask again: a transaction for all costs less.
                time.sleep(min(_GATHER, took / 2))
            began = time.perf_counter()
            taken, count, ended = [first], first.size, False
            while count < _MOST and not ended:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    ended = True
                else:
                    taken.append(more)
                    count += more.size
            results = self._results(taken)
            took = time.perf_counter() - began
            expected = len(taken) + self._queue.qsize()
            self._loop.call_soon_threadsafe(self._deliver, taken, results, took)
            if ended:
                return

    def _results(self, taken: list[_Ticket]) -> dict[_Ticket, list[Any]]:
        """What came of the requests that somebody waits for when their work begins."""
        while wanted := [ticket for ticket in taken if ticket.state != _GONE]:
            items = [item for ticket in wanted for item in ticket.items]
            if len(items) < sum(ticket.size for ticket in wanted):
                continue  # one was given up just now
            begin = partial(self._begun, wanted)
            if not self._stored and not begin():
                continue
            try:
                with beginning(begin):
                    made = self._work(items)
            except GivenUpError:
                continue
            except Exception as problem:
                made = [problem] * len(items)
            except BaseException:  # it must end neither this thread nor the event loop
                made = [InDoubtError(_INTERRUPTED)] * len(items)
            outcomes = iter(made)
            return {ticket: list(islice(outcomes, ticket.size)) for ticket in wanted}
        return {}

    def _begun(self, wanted: list[_Ticket]) -> bool:
        """Whether all of them still want it: from now on none can be given up."""
        with self._states:
            if any(ticket.state == _GONE for ticket in wanted):
                return False
            for ticket in wanted:
                ticket.state = _BEGUN
            return True
