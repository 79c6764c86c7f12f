"""What the simulation drives: workers that take calls, one after the other, and may be killed.

A driver starts workers, hands calls to them and gives back what they answer; it can also let one
die at a named point, set its clock, or fill its disk. Here a worker is a process with the library
in it. A service is driven the same way (:mod:`fault_http`).
"""

import multiprocessing
import resource
import tempfile
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import capri
from fault_control import Control
from fault_plants import PLANTS
from fault_points import Points
from fault_worker import Setting, Worker, published
from memory import MEMORY

SAID = ".said"
FULL = 4096  # bytes that a file may have on a full disk


@dataclass(frozen=True)
class Answer:
    """What came of a request; a worker that has died answers nothing any more."""

    worker: int
    request: int = -1
    answer: Any = None
    dead: bool = False
    point: str = ""  # where it died, "" for anywhere


class Driver(ABC):
    """Workers on one store."""

    count = 3
    loses = True  # whether what a worker was asked dies with it

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self._controls = [
            Control(Path(self._folder.name) / str(worker)) for worker in range(self.count)
        ]

    def start(self, worker: int, point: str = "", statement: int = 1) -> None:
        """Start a worker, or another in the place of a dead one; it may be to die at a point."""
        self._controls[worker].clock = 0.0
        self.arm(worker, point, 1, statement)
        self._start(worker)

    def arm(self, worker: int, point: str, nth: int = 1, statement: int = 1) -> None:
        """Let a worker die at a point."""
        self._controls[worker].arm(point, nth, statement)

    def set_clock(self, worker: int, seconds: float) -> None:
        """Let a worker's clock be so wrong."""
        self._controls[worker].clock = seconds

    def fill(self, worker: int, *, full: bool) -> None:
        """Let no file of a worker grow, or all of them again."""
        for process in self._processes_of(worker):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
                resource.prlimit(process, resource.RLIMIT_FSIZE, (FULL if full else hard, hard))

    @abstractmethod
    def _start(self, worker: int) -> None:
        """A fresh process."""

    @abstractmethod
    def _processes_of(self, worker: int) -> list[int]:
        """Numbers of the processes of a worker."""

    @abstractmethod
    def send(self, worker: int, request: int, call: dict[str, Any]) -> None:
        """Hand a call to a worker; one that is dead takes none, and nobody is told."""

    @abstractmethod
    def answers(self, patience: float) -> list[Answer]:
        """What has been answered since, and who has died; waits so many seconds for the first."""

    def said(self) -> str:
        """What the workers have written, for who wonders."""
        return ""

    @abstractmethod
    def kill(self, worker: int) -> None:
        """Now, wherever it is."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers in peace, after what they were asked."""

    @abstractmethod
    def close(self) -> None:
        """Leave nobody behind."""

    def check(self) -> None:
        """Whatever else must not have happened."""
        assert "Traceback" not in self.said(), self.said()


class LibraryDriver(Driver):
    """Workers that have the library in them, behind pipes."""

    def __init__(self, setting: Setting, plant: str = "") -> None:
        """``plant``: a defect to build into the workers, to see that it is found."""
        super().__init__()
        self._setting, self._plant = setting, plant
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fault_driver", "psycopg", "capri.joint.policy"])
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, Connection] = {}

    def _start(self, worker: int) -> None:
        ours, theirs = self._context.Pipe()
        control = self._controls[worker].path
        process = self._context.Process(
            target=serve, args=(self._setting, worker, theirs, control, self._plant), daemon=True
        )
        process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, ours

    def _processes_of(self, worker: int) -> list[int]:
        found = self._processes.get(worker)
        return [] if found is None or found.pid is None else [found.pid]

    def send(self, worker: int, request: int, call: dict[str, Any]) -> None:
        """Into the pipe."""
        if worker in self._pipes:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._pipes[worker].send((request, call))

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
                found.append(Answer(worker, dead=True, point=self._controls[worker].died()[0]))
        return found

    def said(self) -> str:
        """Why workers ended by themselves."""
        found = Path(self._folder.name).glob(f"*{SAID}")
        return "\n".join(each.read_text() for each in found)

    def kill(self, worker: int) -> None:
        """SIGKILL."""
        if worker in self._processes:
            self._processes[worker].kill()

    def stop(self) -> None:
        """All calls in the pipes are served before."""
        for worker in list(self._pipes):
            self.send(worker, -1, {"op": "stop"})

    def close(self) -> None:
        """Leave nobody behind."""
        for process in self._processes.values():
            process.kill()
        self._folder.cleanup()


class _Silent:
    """The end of a pipe that nobody reads."""

    def send(self, line: Any) -> None:
        """Nothing."""


def serve(setting: Setting, worker: int, pipe: Connection, control: Path, plant: str) -> None:
    """Where a worker's process begins; what ends it but a kill is told."""
    try:
        _serve(setting, worker, pipe, control, plant)
    except BaseException:
        control.with_suffix(SAID).write_text(traceback.format_exc())
        raise


def _serve(setting: Setting, worker: int, pipe: Connection, control: Path, plant: str) -> None:
    """Calls in their order."""
    shared = Control(control)

    def clock() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=shared.clock)

    Points(shared).install()
    if plant:
        PLANTS[plant]()
    behind = Worker(setting, f"d{worker}", 0, _Silent(), clock)  # type: ignore[arg-type]
    while True:
        request, call = pipe.recv()
        if call["op"] == "stop":
            behind._policy.close()
            return
        pipe.send((request, _answered(behind, call)))


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
