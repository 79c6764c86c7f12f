"""What plays cells: this process, or worker processes on this machine.

Each worker is a fresh interpreter with one BLAS thread, fed with one cell at a time. A worker that
dies (killed, out of memory) is replaced and its cell played once more; a cell that kills two
workers is recorded as failed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from typing import Any, Protocol, final

import capri
from capri.checks import whole
from capri.errors import CapriError
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.play import failure, play


@dataclass(frozen=True)
class Started:
    """A worker took a cell."""

    cell: Cell


@dataclass(frozen=True)
class Going:
    """A cell is under way: rounds played, and regret over that of uniform play so far."""

    cell: Cell
    rounds: int
    ratio: float | None


@dataclass(frozen=True)
class Finished:
    """A cell has its record."""

    cell: Cell
    record: dict[str, Any]


Event = Started | Going | Finished


class Stop:
    """Says whether the user wants no new cells to be started."""

    asked = False


@contextmanager
def signals(handler: Callable[..., None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Another handler for these signals; only in the main thread, which alone may set one."""
    if current_thread() is not main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, own in former.items():
            signal.signal(number, own)


class Backend(Protocol):
    """Plays cells somewhere. Takes them from the iterator as workers come free, never all at once.

    Ending the iteration early ends all workers.
    """

    @property
    def workers(self) -> int:
        """How many cells are played at once."""
        ...

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play all cells; once ``stop`` is asked for, only those that are under way."""
        ...


@final
class Here:
    """Cells in this very process, one after the other: for small studies and debuggers."""

    workers = 1

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play cell after cell."""
        for cell in cells:
            yield Started(cell)
            yield Finished(cell, play(cell))
            if stop.asked:
                return


# Read by BLAS libraries when NumPy loads, so they must be set before a worker starts.
_THREAD_LIMITS = {
    f"{library}_THREADS": "1"
    for library in ("OPENBLAS_NUM", "OMP_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM")
}
_TRIES = 2


class WorkerError(CapriError, RuntimeError):
    """Workers cannot be started."""


@final
class Pool:
    """So many worker processes; by default one per core this process may use."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = usable_cores() if workers is None else whole("workers", workers)

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play all cells; results come in the order in which they are ready."""
        said: SimpleQueue[tuple[_Worker, str, Any]] = SimpleQueue()
        again: deque[Cell] = deque()
        tries: Counter[str] = Counter()
        team: set[_Worker] = set()

        def next_cell() -> Cell | None:
            if stop.asked:
                return None
            return again.popleft() if again else next(cells, None)

        def hire() -> Iterator[Event]:
            """Start a worker if there is something to do."""
            cell = next_cell()
            if cell is not None:
                worker = _Worker(said)
                team.add(worker)
                worker.give(cell)
                yield Started(cell)

        try:
            for _ in range(self.workers):
                yield from hire()
            while team:
                worker, kind, value = said.get()
                cell = worker.cell
                if kind == "going" and cell is not None:
                    yield Going(cell, *value)
                elif kind == "finished" and cell is not None:
                    # The worker gets its next cell before anybody looks at this one.
                    following = next_cell()
                    worker.give(following)
                    yield Finished(cell, value)
                    if following is not None:
                        yield Started(following)
                elif kind == "gone":
                    team.discard(worker)
                    code, last_words = worker.bury()
                    if cell is None:
                        continue
                    if not worker.ready and code > 0:
                        raise WorkerError(
                            f"a worker did not start (exit code {code}): {last_words}"
                        )
                    tries[cell.hash] += 1
                    if tries[cell.hash] < _TRIES:
                        again.append(cell)
                    else:
                        error = f"the worker process died {_TRIES} times (exit code {code})"
                        if last_words:
                            error += f": {last_words}"
                        yield Finished(cell, failure(cell, error))
                    yield from hire()
        finally:
            for worker in team:
                worker.process.kill()
            for worker in team:
                worker.bury()


class _Worker:
    """One process and the thread that listens to it."""

    def __init__(self, said: "SimpleQueue[tuple[_Worker, str, Any]]") -> None:
        self.cell: Cell | None = None
        self.ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capri_lab.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in the terminal is for the run alone
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._listener = Thread(target=self._listen, args=(said,), daemon=True)
        self._listener.start()

    def _listen(self, said: "SimpleQueue[tuple[_Worker, str, Any]]") -> None:
        for line in self._stdout:
            try:
                kind, value = json.loads(line)
            except ValueError:
                break  # cut short: the worker died while it wrote
            if kind == "ready":
                self.ready = True
            else:
                said.put((self, kind, value))
        said.put((self, "gone", None))

    def give(self, cell: Cell | None) -> None:
        """Let it play a cell, or end by itself. If it is dead the listener will say so."""
        self.cell = cell
        if cell is None:
            self._stdin.close()
            return
        with suppress(BrokenPipeError):
            self._stdin.write(json.dumps(cell.to_dict()).encode() + b"\n")
            self._stdin.flush()

    def bury(self) -> tuple[int, str]:
        """Exit code and last line on stderr; closes what was open."""
        code = self.process.wait()
        self._listener.join()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        self._stdout.close()
        with suppress(BrokenPipeError):  # an unsent cell, for a worker that is gone
            self._stdin.close()
        return code, words[-1] if words else ""


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment() -> dict[str, str]:
    """The same code for a worker, and one BLAS thread."""
    homes = [str(Path(module).parents[up]) for module, up in ((capri.__file__, 1), (__file__, 2))]
    paths = filter(None, [*homes, os.environ.get("PYTHONPATH")])
    return os.environ | _THREAD_LIMITS | {"PYTHONPATH": os.pathsep.join(paths)}
