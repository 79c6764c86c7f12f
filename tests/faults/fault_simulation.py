"""A discrete-event simulation of a bad day: real processes, a real store, a seeded schedule.

Clients send calls through a network that delays, reorders, duplicates and loses requests and
answers; a call that is not answered in time is made again with the same keys, as a client would.
Meanwhile workers die at named points (:mod:`fault_points`) or anywhere, clocks jump, the disk is
full for a while, the server is crashed and started again, all processes die at once, and two
workers close the same epoch. Events are in a queue by virtual time, all drawn from one seed.

What must never be seen, whatever the schedule, is listed and looked for in :mod:`fault_verdict`.
"""

import heapq
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from fault_driver import Driver
from fault_harness import Outcome
from fault_journal import ACCEPTED, Journal
from fault_points import PLACES
from fault_worker import GRAIN, POOL, USERS
from postgres_server import PostgresServer

WORKERS = 3
OUTSTANDING = 6  # requests that may be under way at once
PATIENCE = 40.0  # virtual seconds after which a client asks again
SILENCE = 90.0  # real seconds without any answer: the store hangs
TRIES = 6
# Mean number of client calls between two events of a kind.
EVERY = {"arm": 3, "kill": 60, "clock": 25, "full": 70, "close": 30, "crash": 150, "all": 200}
TRANSACTIONS = ("decide", "reward", "end", "skip", "close", "release", "publish")
OPENING = ("migrate",)  # met by every process when it opens the store; "create" by the first


@dataclass
class Request:
    """A call on its way, and how often it was sent."""

    call: dict[str, Any]
    tries: int = 0
    done: bool = False


class Simulation:
    """One bad day."""

    def __init__(self, driver: Driver, seed: int, server: PostgresServer | None = None) -> None:
        self._driver, self._server = driver, server
        self._rng = np.random.default_rng([seed, 0xFA17])
        self._queue: list[tuple[float, int, str, Any]] = []
        self._now, self._sequence, self._number = 0.0, 0, 0
        self.outcome = Outcome(Journal())
        self._journal = self.outcome.journal
        self._sent: dict[int, tuple[Request, int]] = {}  # under way, by number: and the worker
        self._lost: set[int] = set()  # whose answers the network will lose
        self._decided: list[dict[str, Any]] = []
        self._rewarded: list[dict[str, Any]] = []
        self._armed: dict[int, str] = {}  # where a worker is to die
        self._coming: dict[int, str] = {}  # where the next one in its place is
        self._full: set[int] = set()
        self._calls = 0
        names = (*TRANSACTIONS, *OPENING, *(("lease",) if server is not None else ()))
        self.points = [f"{name}.{place}" for name in names for place in PLACES]
        self.killed: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    # -- the run ----------------------------------------------------------------------------------

    def run(self, kills: int) -> Outcome:
        """Until so many kills, then a calm end: everything in doubt is asked again."""
        started = heard = time.monotonic()
        first = f"create.{PLACES[int(self._rng.integers(len(PLACES)))]}"
        self._armed[0] = first
        self._driver.start(0, arm=(first, 1, 2))
        for worker in range(1, WORKERS):
            self._driver.start(worker)
        self._at(0.0, "call", None)
        for kind, mean in EVERY.items():
            self._at(float(self._rng.exponential(mean)), kind, None)
        while self.outcome.kills < kills:
            if len(self._sent) < OUTSTANDING:
                self._next_event()
            before = len(self._sent)
            self._hear(0.0 if len(self._sent) < OUTSTANDING else 1.0)
            if len(self._sent) < before or not self._sent:
                heard = time.monotonic()
            assert time.monotonic() - heard < SILENCE, f"no answer for {SILENCE:g} seconds"
        self._calm_down()
        self.outcome.left = self._journal.all_doubtful()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _calm_down(self) -> None:
        """No more faults: what is under way is answered, then all workers end."""
        for worker in range(WORKERS):
            self._driver.control(worker, full=False, arm=("", 0, 1))
        give_up = time.monotonic() + SILENCE
        while self._sent:
            self._hear(1.0)
            assert time.monotonic() < give_up, "requests are never answered"
        self._driver.stop()
        ended = 0
        while ended < WORKERS:
            ended += sum(each.dead for each in self._driver.answers(1.0))
            assert time.monotonic() < give_up, "a worker does not end"

    def _at(self, after: float, kind: str, what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self._now + after, self._sequence, kind, what))

    def _next_event(self) -> None:
        self._now, _, kind, what = heapq.heappop(self._queue)
        self.events[kind] += 1
        getattr(self, f"_on_{kind}")(what)
        if kind in EVERY:
            self._at(float(self._rng.exponential(EVERY[kind])), kind, None)

    def _hear(self, patience: float) -> None:
        for each in self._driver.answers(patience):
            if each.dead:
                self._on_death(each.worker)
            elif each.request in self._sent:
                self._answered(each.request, each.answer)

    # -- clients and the network ------------------------------------------------------------------

    def _on_call(self, _: Any) -> None:
        """A client makes a call; the network may delay it, lose it, or bring it twice."""
        self._calls += 1
        request = Request(self._drawn())
        copies = 2 if self._rng.random() < 0.08 else 1
        for _copy in range(copies):
            self._at(float(self._rng.exponential(2.0)), "deliver", request)
        self._at(PATIENCE, "again", request)
        self._at(float(self._rng.exponential(1.0)), "call", None)

    def _on_deliver(self, request: Request) -> None:
        if self._rng.random() < 0.04:
            self.events["lost request"] += 1
            return
        self._number += 1
        worker = int(self._rng.integers(WORKERS))
        if request.call["op"] in ("act", "reward"):
            self._journal.take(self._number, {"op": "intent", "call": request.call})
        self._sent[self._number] = request, worker
        if self._rng.random() < 0.06:
            self._lost.add(self._number)
        self._driver.send(worker, self._number, request.call)

    def _on_again(self, request: Request) -> None:
        """A client that has no answer asks again, with the same keys."""
        request.tries += 1
        if not request.done and request.tries < TRIES:
            self.events["asked again"] += 1
            self._at(0.0, "deliver", request)
            self._at(PATIENCE, "again", request)

    def _answered(self, number: int, answer: Any) -> None:
        request, _ = self._sent.pop(number)
        if number in self._lost:
            self.events["lost answer"] += 1
            return  # it stays in doubt until it is asked again
        call = request.call
        if call["op"] in ("published", "close"):
            request.done = True
            if call["op"] == "published" and "failed" not in answer:
                self._journal.take(number, {"op": "published", "seen": answer})
            return
        self._journal.take(number, {"op": "answer", "call": call, "answer": answer})
        if isinstance(answer, dict):
            self.events["refused"] += 1
            return
        request.done = True
        if call["op"] == "act":
            rows = zip(call["keys"], answer, strict=True)
            self._decided += [{"key": key, "id": each["id"]} for key, each in rows]
            del self._decided[:-60]
        elif answer == ACCEPTED:
            self._rewarded.append(call)
            del self._rewarded[:-30]

    def _drawn(self) -> dict[str, Any]:
        """What a client wants: mostly a decision or a reward, or something told before."""
        rng, kind = self._rng, self._rng.random()
        if kind < 0.03:
            return {"op": "published"}
        if kind < 0.45 or not self._decided:
            return self._visit(1 if rng.random() < 0.8 else int(rng.integers(2, 6)))
        chosen = self._decided[int(rng.integers(len(self._decided)))]
        if kind < 0.50:  # a key again, with another context
            return {"op": "act", "keys": [chosen["key"]], "users": [0], "contexts": [0.25]}
        if kind < 0.58 and self._rewarded:  # a reward that counts, again with another value
            sent = self._rewarded[int(rng.integers(len(self._rewarded)))]
            return sent | {"value": -sent["value"]}
        value = int(rng.integers(-GRAIN, GRAIN + 1)) / GRAIN
        return {"op": "reward", "id": chosen["id"], "key": f"r{self._calls}", "value": value}

    def _visit(self, count: int) -> dict[str, Any]:
        contexts = self._rng.random(count)
        pooled = self._rng.random(count) < 0.5
        contexts[pooled] = POOL[self._rng.integers(len(POOL), size=count), 0][pooled]
        users = (USERS * self._rng.random(count) ** 3).astype(int).tolist()
        keys = [f"c{self._calls}-{place}" for place in range(count)]
        return {"op": "act", "keys": keys, "users": users, "contexts": contexts.tolist()}

    # -- faults -----------------------------------------------------------------------------------

    def _on_arm(self, _: Any) -> None:
        """Let a worker die at a named point; those that were met least come first."""
        worker = int(self._rng.integers(WORKERS))
        if worker in self._armed and self._rng.random() < 0.8:  # else it waits for another point
            return
        fewest = min(self.killed[point] for point in self.points)
        rare = [point for point in self.points if self.killed[point] <= fewest + 1]
        point = rare[int(self._rng.integers(len(rare)))]
        if point.startswith(OPENING):  # met when a process opens the store: the next one
            self._coming[worker] = point
            self._strike(worker)
            return
        self._armed[worker] = point
        self._driver.control(worker, arm=self._aimed(point))

    def _aimed(self, point: str) -> tuple[str, int, int]:
        often = point.startswith(("decide", "reward"))
        return point, int(self._rng.integers(1, 6 if often else 2)), int(self._rng.integers(1, 5))

    def _on_death(self, worker: int) -> None:
        """Whatever it was at is in doubt; another one takes its place."""
        armed = self._armed.pop(worker, "anywhere")
        self.outcome.kills += 1
        self.killed[armed] += 1
        self.outcome.at_release += armed.startswith(("release", "close"))
        for number, (_, whose) in list(self._sent.items()):
            if whose == worker:
                del self._sent[number]
        self._full.discard(worker)
        coming = self._coming.pop(worker, None)
        if coming is None:
            self._driver.start(worker)
        else:
            self._armed[worker] = coming
            self._driver.start(worker, arm=(coming, 1, int(self._rng.integers(1, 3))))

    def _strike(self, worker: int) -> None:
        """Kill a worker wherever it is."""
        self._armed[worker] = "anywhere"
        self._driver.kill(worker)

    def _on_kill(self, _: Any) -> None:
        self._strike(int(self._rng.integers(WORKERS)))

    def _on_all(self, _: Any) -> None:
        for worker in range(WORKERS):
            self._strike(worker)

    def _on_clock(self, _: Any) -> None:
        """A clock that is wrong by up to three hours, either way."""
        ahead = float(self._rng.uniform(-3, 3) * 3600)
        self._driver.control(int(self._rng.integers(WORKERS)), clock=ahead)

    def _on_full(self, _: Any) -> None:
        worker = int(self._rng.integers(WORKERS))
        self._full.add(worker)
        self._driver.control(worker, full=True)
        self._at(float(self._rng.exponential(8.0)), "room", worker)

    def _on_room(self, worker: int) -> None:
        if worker in self._full:
            self._full.discard(worker)
            self._driver.control(worker, full=False)

    def _on_close(self, _: Any) -> None:
        """Two workers close the epoch under way at the same time."""
        for worker in self._rng.permutation(WORKERS)[:2].tolist():
            self._number += 1
            self._sent[self._number] = Request({"op": "close"}), worker
            self._driver.send(worker, self._number, {"op": "close"})

    def _on_crash(self, _: Any) -> None:
        if self._server is not None:
            self._server.crash()
            self._server.start()
            self.outcome.crashes += 1
