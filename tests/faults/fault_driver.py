"""What the simulation drives: workers that take calls, one after the other, and may be killed.

A driver starts workers, hands calls to them and gives back what they answer; it can also let one
die at a named point, set its clock, or fill its disk. Here a worker is a process with the library
in it. A service is driven the same way: calls become requests, and control goes to its process.
"""

import multiprocessing
import resource
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import capri
from fault_points import Points
from fault_worker import Setting, Worker, published

FULL = 4096  # bytes that a file may have on a full disk


@dataclass(frozen=True)
class Answer:
    """What came of a request; a worker that has died answers nothing any more."""

    worker: int
    request: int = -1
    answer: Any = None
    dead: bool = False


class Driver(ABC):
    """Workers on one store."""

    @abstractmethod
    def start(self, worker: int, **control: Any) -> None:
        """Start a worker, or another one in the place of a dead one."""

    @abstractmethod
    def send(self, worker: int, request: int, call: dict[str, Any]) -> None:
        """Hand a call to a worker; one that is dead takes none, and nobody is told."""

    @abstractmethod
    def control(self, worker: int, **control: Any) -> None:
        """``arm``: die at a point. ``clock``: seconds ahead. ``full``: whether its disk is."""

    @abstractmethod
    def answers(self, patience: float) -> list[Answer]:
        """What has been answered since, and who has died; waits so many seconds for the first."""

    @abstractmethod
    def kill(self, worker: int) -> None:
        """Now, wherever it is."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers in peace."""


class LibraryDriver(Driver):
    """Workers that have the library in them, behind pipes."""

    def __init__(self, setting: Setting, plant: str = "") -> None:
        """``plant``: a defect to build into the workers, to see that it is found."""
        self._setting, self._plant = setting, plant
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fault_driver", "psycopg", "capri.joint.policy"])
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, Connection] = {}

    def start(self, worker: int, **control: Any) -> None:
        """A fresh process."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve, args=(self._setting, worker, theirs, control, self._plant), daemon=True
        )
        process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, ours

    def send(self, worker: int, request: int, call: dict[str, Any]) -> None:
        """Into the pipe."""
        self._put(worker, {"request": request, "call": call})

    def control(self, worker: int, **control: Any) -> None:
        """Into the pipe, too: it takes effect between two calls."""
        self._put(worker, {"control": control})

    def _put(self, worker: int, line: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[worker].send(line)

    def answers(self, patience: float) -> list[Answer]:
        """Whatever is in the pipes."""
        found = []
        ready = wait(list(self._pipes.values()), timeout=patience)
        for worker, pipe in list(self._pipes.items()):
            if pipe not in ready:
                continue
            try:
                while True:
                    found.append(Answer(worker, *pipe.recv()))
                    if not pipe.poll():
                        break
            except (EOFError, ConnectionResetError):
                pipe.close()
                del self._pipes[worker]
                self._processes.pop(worker).join()
                found.append(Answer(worker, dead=True))
        return found

    def kill(self, worker: int) -> None:
        """SIGKILL."""
        if worker in self._processes:
            self._processes[worker].kill()

    def stop(self) -> None:
        """All calls in the pipes are served before."""
        for worker in list(self._pipes):
            self._put(worker, {"control": {"stop": True}})

    def close(self) -> None:
        """Leave nobody behind."""
        for process in self._processes.values():
            process.kill()


class _Silent:
    """The end of a pipe that nobody reads."""

    def send(self, line: Any) -> None:
        """Nothing."""


def serve(
    setting: Setting, worker: int, pipe: Connection, control: dict[str, Any], plant: str
) -> None:
    """Where a worker's process begins: calls and controls in their order."""
    offset = [0.0]

    def clock() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=offset[0])

    points = Points()
    points.install()

    def obey(control: dict[str, Any]) -> None:
        if "arm" in control:
            points.arm(*control["arm"])
        offset[0] = control.get("clock", offset[0])
        if "full" in control:
            _fill(full=control["full"])

    obey(control)
    if plant == "forgetful":
        _forget_some()
    behind = Worker(setting, f"d{worker}", 0, _Silent(), clock)  # type: ignore[arg-type]
    while True:
        line = pipe.recv()
        if "control" in line:
            if line["control"].get("stop"):
                behind._policy.close()
                return
            obey(line["control"])
            continue
        pipe.send((line["request"], _answered(behind, line["call"])))


def _answered(worker: Worker, call: dict[str, Any]) -> Any:
    try:
        if call["op"] == "close":
            worker._policy.close_epoch(early=True)
            return "closed"
        if call["op"] == "published":
            return published(worker._policy)
        return worker._answer(call)
    except capri.StorageError as problem:
        return {"failed": str(problem)}


def _fill(*, full: bool) -> None:
    """Let no file of this process grow, or all of them again; a server's disk is left alone."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL if full else hard, hard))


def _forget_some() -> None:
    """A defect: now and then a decision is answered and not committed."""
    from capri.joint.desk import Desk

    honest, calls = Desk.decide, [0]

    class _Undone(Exception):  # noqa: N818 - not an error
        pass

    def decide(desk: Desk, visits: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3:
            return honest(desk, visits)
        kept, made = desk._decide, []

        def undone(*arguments: Any) -> Any:
            made.append(kept(*arguments))
            raise _Undone

        desk._decide = undone  # type: ignore[method-assign]
        try:
            return honest(desk, visits)
        except _Undone:
            return made[-1][:2]
        finally:
            del desk._decide

    Desk.decide = decide  # type: ignore[method-assign]
