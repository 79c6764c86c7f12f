"""Several processes at one socket: each is started anew when it ends, all end together."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from types import FrameType
from typing import Any

from capri.errors import CapriError

_PERIOD = 0.2
# A worker that ends sooner than this after its start is not started again at once.
_SOON, _REST = 5.0, 1.0
_PARTING = 15.0


def _work(work: Callable[[socket.socket], None], listening: socket.socket) -> None:
    """Serve, and end when the supervisor has: nobody else would end a worker that was left over."""
    Thread(target=_end_with_parent, name="capri-parent", daemon=True).start()
    try:
        work(listening)
    except CapriError as problem:  # such as a store that cannot be opened: tried again soon
        print(f"capri: {problem}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _context() -> Any:
    """Workers are forked from a process that has imported everything and opened nothing.

    A forked policy would be of no use, and imports are most of what a worker's start takes.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["capri.service.server", "capri.service.app"])
    return context


def supervise(work: Callable[[socket.socket], None], listening: socket.socket, count: int) -> None:
    """Keep so many workers running until this process is told to stop."""
    ended = Event()

    def stop(_: int, __: FrameType | None) -> None:
        ended.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    context = _context()

    def worker() -> tuple[BaseProcess, float]:
        process = context.Process(target=_work, args=(work, listening), daemon=False)
        process.start()
        return process, time.monotonic()

    workers = [worker() for _ in range(count)]
    while not ended.wait(_PERIOD):
        for place, (process, since) in enumerate(workers):
            if not process.is_alive():
                process.join()
                if time.monotonic() - since < _SOON and ended.wait(_REST):
                    break
                workers[place] = worker()
    for process, _ in workers:
        process.terminate()
    deadline = time.monotonic() + _PARTING
    for process, _ in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
