"""Concurrent requests become one call: whatever waits is taken together, by one thread.

A commit waits for the disk. Requests that come meanwhile gather, and share the next one: under load
the number of items per commit grows by itself, and alone a request waits for nobody.
"""

import asyncio
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from capri.errors import StorageError
from capri.service.messages import RefusalError

Work = Callable[[list[Any]], list[Any]]
# Items of one call: a transaction holds up others while it runs.
_MOST = 2048
_PERIOD = 0.5
# Seconds to wait at most for others who are expected; half of what a transaction takes, if less.
_GATHER = 0.003


class Lane:
    """A thread that works on lists of items; each item's outcome is a value or an exception.

    Who waits for longer than ``patience`` seconds is told that the store is away. What was asked
    for may still happen; it was not acknowledged, and with its key it may be asked for again.
    """

    def __init__(
        self, name: str, work: Work, waiting: int, patience: float = 10.0, threads: int = 1
    ) -> None:
        """``threads``: with two, one computes while the other waits for the disk."""
        self._work, self._limit, self._patience = work, waiting, patience
        self._asked: dict[asyncio.Future[list[Any]], float] = {}
        self._queue: SimpleQueue[tuple[asyncio.Future[list[Any]], list[Any]] | None] = SimpleQueue()
        self._waiting = 0
        self._loop = asyncio.get_running_loop()
        self._threads = [
            Thread(target=self._run, name=f"capri-{name}", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self._watch = self._loop.call_later(_PERIOD, self._hurry)

    async def do(self, items: list[Any]) -> list[Any]:
        """The outcome of each item."""
        if self._waiting + len(items) > self._limit and self._waiting:
            raise RefusalError(503, "too much is waiting: try again", wait=1)
        self._waiting += len(items)
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._asked[future] = self._loop.time()
        self._queue.put((future, items))
        try:
            return await future
        finally:
            del self._asked[future]
            self._waiting -= len(items)

    def _hurry(self) -> None:
        """Look from time to time who has waited for too long."""
        overdue = self._loop.time() - self._patience
        for future, asked in list(self._asked.items()):
            if asked < overdue and not future.done():
                future.set_exception(StorageError("the store takes too long"))
        self._watch = self._loop.call_later(_PERIOD, self._hurry)

    def stop(self) -> None:
        """End after what waits."""
        self._watch.cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(30.0)

    def _run(self) -> None:
        expected, took = 1, 0.0
        while (first := self._queue.get()) is not None:
            if self._queue.qsize() + 1 < expected:
                # Those who were just answered ask again: a transaction for all costs less.
                time.sleep(min(_GATHER, took / 2))
            began = time.perf_counter()
            taken, count, ended = [first], len(first[1]), False
            while count < _MOST and not ended:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    ended = True
                else:
                    taken.append(more)
                    count += len(more[1])
            results = self._results([item for _, items in taken for item in items])
            took = time.perf_counter() - began
            expected = len(taken) + self._queue.qsize()
            self._loop.call_soon_threadsafe(_deliver, taken, results)
            if ended:
                return

    def _results(self, items: list[Any]) -> list[Any]:
        try:
            return self._work(items)
        except BaseException as problem:  # the thread is needed by those who come next
            return [problem] * len(items)


def _deliver(taken: list[tuple[asyncio.Future[list[Any]], list[Any]]], results: list[Any]) -> None:
    start = 0
    for future, items in taken:
        if not future.done():  # else who asked has gone
            future.set_result(results[start : start + len(items)])
        start += len(items)
