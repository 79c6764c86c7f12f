"""Processes of a service: started in one way, kept running, and ended with the process they serve.

Each is forked from a process that has imported everything and opened nothing: a forked policy
would be of no use, and imports are most of what a start takes.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any

from capri.epoch.notice import unsaid
from capri.errors import CapriError
from capri.files import write_atomically
from capri.service.settings import load_settings

_PERIOD = 0.2
# A worker that ends sooner than this after its start is not started again at once.
_SOON, _REST = 5.0, 1.0
_PARTING = 15.0
# Rounds and functions that a forecast plays.
_ROUNDS = 10_000
_FUNCTIONS = 3


def start(target: Callable[..., None], *arguments: Any, daemon: bool = False) -> BaseProcess:
    """Run a function in a process of its own; ``daemon``: ended, not waited for, at the end."""
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(["capri.service.server"])
    process: BaseProcess = context.Process(target=_run, args=(target, *arguments), daemon=daemon)
    process.start()
    return process


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """End when the parent has: nobody else would end a process that was left over."""
    Thread(target=_end_with_parent, name="capri-parent", daemon=True).start()
    try:
        target(*arguments)
    except CapriError as problem:  # such as a store that cannot be opened
        print(f"capri: {problem}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


# -- workers at one socket -------------------------------------------------------------------------


def supervise(work: Callable[[socket.socket], None], listening: socket.socket, count: int) -> None:
    """Keep so many workers running until this process is told to stop; all end together."""
    ended = Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ended.set())

    def worker() -> tuple[BaseProcess, float]:
        return start(work, listening), time.monotonic()

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


# -- a forecast beside the service -----------------------------------------------------------------


def start_forecast(path: Path) -> None:
    """Compute what to expect of a policy file, unless that is there, and keep it beside the file.

    Plays made-up functions: neither users nor the store are touched. The page shows the forecast
    against what happened.
    """
    if read_forecast(path) is None:
        start(_forecast, path, daemon=True)


def read_forecast(path: Path) -> dict[str, Any] | None:
    """The forecast of a policy file as it is now; None where there is none."""
    try:
        found = json.loads(_forecast_file(path).read_text())
        if found["file"] != _digest(path):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {"functions": found["functions"], "epochs": found["epochs"]}


def _forecast(path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the service
    os.nice(19)
    settings = load_settings(path)
    with unsaid():
        policy = settings.policy(store=None)
        told = policy.forecast(horizons=(_ROUNDS,), functions=_FUNCTIONS, compare=False)
    budget = policy.budget
    epsilon = None if budget is None else budget.epsilon
    epochs = [epoch.to_dict() for epoch in told.epochs if epoch.epsilon == epsilon]
    text = json.dumps({"file": _digest(path), "functions": _FUNCTIONS, "epochs": epochs})
    write_atomically(_forecast_file(path), text.encode())


def _forecast_file(path: Path) -> Path:
    return path.with_suffix(".forecast.json")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
