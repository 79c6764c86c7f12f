"""Four real processes on one store, killed again and again; a parent that notes what they say.

A kill is SIGKILL to one worker or to all of them at once, at a random moment, at a random number of
microseconds after a call was announced, or right when an epoch is due for its release. A server is
now and then crashed as a whole. Every worker that died is replaced, and its replacement first makes
again what was in doubt.
"""

import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from fault_journal import Journal
from fault_worker import Setting, main
from postgres_server import PostgresServer
from waiting import PATIENCE

WORKERS = 4
SILENCE = 90.0  # seconds without a word from any worker: the store hangs
CRASH_EVERY = 8  # a server is crashed with every so many kills


@dataclass
class Process:
    """A worker and the pipe that it speaks into."""

    process: BaseProcess
    pipe: Connection


@dataclass
class Outcome:
    """What a run has done: counts for the report, and the journal for the verdict."""

    journal: Journal
    kills: int = 0
    crashes: int = 0
    at_release: int = 0
    seconds: float = 0.0
    left: list[dict[str, Any]] = field(default_factory=list)


class Harness:
    """Runs workers and kills them."""

    def __init__(self, setting: Setting, seed: int, server: PostgresServer | None = None) -> None:
        self._setting, self._server = setting, server
        self._rng = np.random.default_rng(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fault_worker", "psycopg", "capri.joint.policy"])
        self._workers: dict[int, Process] = {}
        self._born = 0
        self.outcome = Outcome(Journal())
        self._journal = self.outcome.journal
        self._due: int | None = None  # the decision with which an epoch is to be released
        self._epoch = 1
        self._newest = 0
        self._moments = 0

    def run(self, kills: int) -> Outcome:
        """Kill so often, then let all workers end by themselves."""
        started = time.monotonic()
        try:
            for worker in range(WORKERS):
                self._start(worker, [])
            while self.outcome.kills < kills:
                self._one_kill()
            self._stop()
            self.outcome.left = self._journal.all_doubtful()
        finally:
            for worker in self._workers.values():
                worker.process.kill()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _start(self, worker: int, in_doubt: list[dict[str, Any]]) -> None:
        ours, theirs = self._context.Pipe()
        name, seed = f"w{worker}.{self._born}", int(self._rng.integers(1 << 62))
        self._born += 1
        recent = self._journal.recent(20)
        process = self._context.Process(
            target=main, args=(self._setting, name, seed, theirs, in_doubt, recent), daemon=True
        )
        process.start()
        theirs.close()
        self._workers[worker] = Process(process, ours)

    def _one_kill(self) -> None:
        """Wait for the moment, then kill, read what is left in the pipes, and start anew."""
        at_release = self._await_moment()
        everybody = self._rng.random() < (0.5 if at_release else 0.1)
        victims = list(self._workers) if everybody else [int(self._rng.integers(WORKERS))]
        for victim in victims:
            self._workers[victim].process.kill()
        self.outcome.kills += len(victims)
        self.outcome.at_release += len(victims) if at_release else 0
        self._moments += 1
        if self._server is not None and self._moments % CRASH_EVERY == CRASH_EVERY // 2:
            self._server.crash()
            self._server.start()
            self.outcome.crashes += 1
        for victim in victims:
            gone = self._workers.pop(victim)
            gone.process.join()
            self._drain(victim, gone.pipe)
            self._start(victim, self._journal.doubtful(victim))

    def _await_moment(self) -> bool:
        """Listen until it is time to kill; whether a release is due at that moment."""
        heard, enough = 0, int(self._rng.geometric(1 / 60))
        wants_release = self._rng.random() < 0.35
        last = time.monotonic()
        while True:
            ready = wait([worker.pipe for worker in self._workers.values()], timeout=1.0)
            for worker, each in list(self._workers.items()):
                if each.pipe in ready:
                    heard += self._hear(worker, each.pipe)
                    last = time.monotonic()
            if time.monotonic() - last > SILENCE:
                raise AssertionError(f"no worker has said a word for {SILENCE:g} seconds")
            due = self._due is not None and self._newest >= self._due - 2
            if due and (wants_release or heard >= enough):
                self._due = None
                _pause(self._rng.exponential(0.004))
                return True
            if heard >= enough and not (wants_release and heard < 40 * enough):
                _pause(self._rng.exponential(0.0008))
                return False

    def _hear(self, worker: int, pipe: Connection) -> int:
        try:
            line = pipe.recv()
        except (EOFError, OSError):
            raise AssertionError(f"worker {worker} died by itself: see its traceback") from None
        self._note(worker, line)
        return 1

    def _note(self, worker: int, line: dict[str, Any]) -> None:
        self._journal.take(worker, line)
        if line["op"] != "answer" or line["call"]["op"] != "act":
            return
        if isinstance(line["answer"], dict):
            return
        for given in line["answer"]:
            if given["epoch"] > self._epoch:  # its first decision; the one before it waits from now
                self._epoch = given["epoch"]
                self._due = given["number"] + self._setting.wait
            self._newest = max(self._newest, given["number"])

    def _drain(self, worker: int, pipe: Connection) -> None:
        """What was said before the end; a half-said line was not said."""
        try:
            while True:
                self._note(worker, pipe.recv())
        except (EOFError, OSError):
            pipe.close()

    def _stop(self) -> None:
        for worker in self._workers.values():
            worker.pipe.send("stop")
        for name, worker in self._workers.items():
            while worker.pipe.poll(PATIENCE):
                try:
                    line = worker.pipe.recv()
                except (EOFError, OSError):
                    break
                if line["op"] == "end":
                    break
                self._note(name, line)
            worker.process.join(PATIENCE)
            assert worker.process.exitcode == 0, f"worker {name} did not end: see its traceback"
        self._workers.clear()


def _pause(seconds: float) -> None:
    """Wait to the microsecond: sleeping is too coarse."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
