"""A discrete-event simulation of a bad day: real processes, a real store, a seeded schedule.

Clients send calls through a network that delays, reorders, duplicates and loses requests and
answers; a call that is not answered in time is made again with the same keys, as a client would.
Operators change the mode and the catalogue, and close epochs, often two of them the same one.
Meanwhile workers die at named points (:mod:`fault_points`) or anywhere, clocks jump, the disk is
full for a while, the server is crashed and started again, and all processes die at once. Events are
in a queue by virtual time, all drawn from one seed.

What must never be seen, whatever the schedule, is listed and looked for in :mod:`fault_verdict`.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fault_driver import Driver
from fault_harness import Outcome
from fault_journal import ACCEPTED, Journal
from fault_points import PLACES
from fault_worker import BASE, CHANGES, GRAIN, POOL, USERS
from postgres_server import PostgresServer

OUTSTANDING = 6  # requests that may be under way at once
PATIENCE = 40.0  # virtual seconds after which a client asks again
FILLING = 110  # calls during which nobody closes an epoch, and then as many with closings
STUCK = 2.0  # real seconds without any answer after which somebody makes room on the disk
SILENCE = 90.0  # real seconds without any answer: the store hangs
TRIES = 6
SERVER = -1  # in the place of a worker
# Mean number of client calls between two events of a kind.
EVERY = {"arm": 3, "kill": 60, "clock": 25, "full": 70, "close": 30, "crash": 150, "all": 200}
EVERY |= {"change": 16}
TRANSACTIONS = ("decide", "reward", "end", "skip", "close", "release", "publish", *CHANGES)
OPENING = ("schema", "sign-in")  # met by every process when it opens the store
# Met until the store is there, and until it notes that it has a rollback guard.
CREATING = tuple(f"{name}.{place}" for name in ("create", "rollback_guard") for place in PLACES)
# What is counted of a day, and must all have happened in a long run.
HAPPENED = (
    "lost request", "lost answer", "duplicate", "reordered", "delayed", "asked again",
    "clock jump", "disk full", "refused for a full disk", "closed by two", "all at once",
    "mode changed", "settings changed",
)  # fmt: skip


@dataclass
class Request:
    """A call on its way, and how often it was sent."""

    call: dict[str, Any]
    number: int = 0  # the order in which calls are made
    tries: int = 0
    done: bool = False


class Simulation:
    """One bad day."""

    def __init__(
        self,
        driver: Driver,
        seed: int,
        server: PostgresServer | None = None,
        planned_ahead: Callable[[], bool] = lambda: False,
        *,
        made: bool = False,
    ) -> None:
        """``planned_ahead``: whether the next epoch is planned, and nobody is in it yet.

        ``made``: nobody dies while the store is made.
        """
        self._driver, self._server, self._planned_ahead = driver, server, planned_ahead
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
        # Where the next ones in its place are.
        self._coming: dict[int, list[str]] = {0: [] if made else list(CREATING)}
        self._struck: set[int] = set()
        self._full: set[int] = set()
        self._pair: set[int] = set()  # closings of the same epoch that are under way
        self._mode = "active"
        self._calls = self._newest = self._catalogues = 0
        opening = OPENING[:1] if server is None else OPENING
        self.points = [f"{name}.{place}" for name in (*TRANSACTIONS, *opening) for place in PLACES]
        self.killed: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    # -- the run ----------------------------------------------------------------------------------

    def run(self, kills: int) -> Outcome:
        """Until so many kills, then a calm end: everything in doubt is asked again."""
        started = heard = time.monotonic()
        self._start(0)  # the store is made by one; the others come when it is there
        while self._coming.get(0) or self._armed.get(0):
            if self._hear(1.0):  # one more has died on the way, or the store is there
                heard = time.monotonic()
            assert time.monotonic() - heard < SILENCE, "the store is never there"
        for worker in range(1, self._driver.count):
            self._start(worker)
        self._at(0.0, "call", None)
        for kind, mean in EVERY.items():
            self._at(float(self._rng.exponential(mean)), kind, None)
        heard = time.monotonic()
        while self.outcome.kills < kills:
            if len(self._sent) < OUTSTANDING:
                self._next_event()
            elif SERVER in self._full or time.monotonic() - heard > STUCK:
                for full in list(self._full):  # all wait for it
                    self._on_room(full)
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
        self._coming.clear()
        self._on_room(SERVER)
        for worker in range(self._driver.count):
            self._driver.arm(worker, "")
            self._driver.fill(worker, full=False)
        give_up = time.monotonic() + SILENCE
        while self._sent:
            self._hear(1.0)
            assert time.monotonic() < give_up, "requests are never answered"
        self._driver.stop()
        ended: set[int] = set()
        while len(ended) < self._driver.count:
            self._mind_server()  # one that is still opening the store waits for it
            ended |= {each.worker for each in self._driver.answers(1.0) if each.dead}
            assert time.monotonic() < give_up, "a worker does not end"

    def _at(self, after: float, kind: str, what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self._now + after, self._sequence, kind, what))

    def _next_event(self) -> None:
        self._now, _, kind, what = heapq.heappop(self._queue)
        getattr(self, f"_on_{kind}")(what)
        if kind in EVERY:
            self._at(float(self._rng.exponential(EVERY[kind])), kind, None)

    def _hear(self, patience: float) -> bool:
        """Whether there was a word from any worker."""
        self._mind_server()
        answers = self._driver.answers(patience)
        for each in answers:
            if each.dead:
                self._on_death(each.worker, each.point)
            elif each.request in self._sent:
                self._answered(each.request, each.answer)
        return bool(answers)

    # -- clients and the network ------------------------------------------------------------------

    def _on_call(self, _: Any) -> None:
        """A client makes a call; the network may delay it, lose it, or bring it twice."""
        self._calls += 1
        request = Request(self._drawn(), self._calls)
        copies = 2 if self._rng.random() < 0.08 else 1
        self.events["duplicate"] += copies - 1
        for _copy in range(copies):
            late = float(self._rng.exponential(2.0))
            self.events["delayed"] += late > 4.0
            self._at(late, "deliver", request)
        self._at(PATIENCE, "again", request)
        self._at(float(self._rng.exponential(1.0)), "call", None)
        skipping = [worker for worker, at in self._armed.items() if at.startswith("skip")]
        if skipping and self._planned_ahead():
            self._send(Request({"op": "close"}), skipping[0])

    def _on_deliver(self, request: Request) -> None:
        if self._rng.random() < 0.04:
            self.events["lost request"] += 1
            return
        self.events["reordered"] += request.number < self._newest
        self._newest = max(self._newest, request.number)
        self._send(request, int(self._rng.integers(self._driver.count)))
        if self._rng.random() < 0.06:
            self._lost.add(self._number)

    def _send(self, request: Request, worker: int) -> int:
        self._number += 1
        if request.call["op"] in ("act", "reward", *CHANGES):
            self._journal.take(self._number, {"op": "intent", "call": request.call})
        self._sent[self._number] = request, worker
        self._driver.send(worker, self._number, request.call)
        return self._number

    def _on_again(self, request: Request) -> None:
        """A client that has no answer asks again, with the same keys."""
        request.tries += 1
        if not request.done and request.tries < TRIES:
            self.events["asked again"] += 1
            self._at(0.0, "deliver", request)
            self._at(PATIENCE, "again", request)

    def _answered(self, number: int, answer: Any) -> None:
        request, worker = self._sent.pop(number)
        call, refused = request.call, isinstance(answer, dict) and "failed" in answer
        if refused:
            self.events["refused"] += 1
            full = bool({worker, SERVER} & self._full) or "disk" in answer["failed"]
            self.events["refused for a full disk"] += full
        if number in self._lost:
            self.events["lost answer"] += 1
            return  # it stays in doubt until it is asked again
        if call["op"] == "close":
            self.events["closed by two"] += number in self._pair and not refused
            self._pair.clear()
        elif call["op"] == "published":
            request.done = True
            if not refused:
                self._journal.take(number, {"op": "published", "seen": answer})
        elif call["op"] in CHANGES:
            self.events[f"{call['op']} changed"] += not refused
            self._journal.take(number, {"op": "answer", "call": call, "answer": answer})
        else:
            self._journal.take(number, {"op": "answer", "call": call, "answer": answer})
            if not refused:
                self._remember(request, answer)

    def _remember(self, request: Request, answer: Any) -> None:
        request.done = True
        call = request.call
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

    # -- operators --------------------------------------------------------------------------------

    def _on_change(self, _: Any) -> None:
        """Another mode or other actions: one change after the other, on any worker."""
        if any(request.call["op"] in CHANGES for request, _ in self._sent.values()):
            return
        armed = {each: at for each, at in self._armed.items() if at.startswith(CHANGES)}
        worker = int(self._rng.integers(self._driver.count))
        op = CHANGES[int(self._rng.integers(2))]
        if armed:  # somebody waits for a change, to die of it
            worker, point = next(iter(armed.items()))
            op = point.partition(".")[0]
        self._send(Request(self._changed(op)), worker)

    def _changed(self, op: str) -> dict[str, Any]:
        if op == "settings":
            self._catalogues += 1
            count = int(self._rng.integers(1, 4))
            new = [
                {"name": f"c{self._catalogues}-{place}", "place": float(self._rng.random())}
                for place in range(count)
            ]
            growth = 1.02 + 0.02 * float(self._rng.random())  # no two are alike
            return {"op": op, "actions": [*BASE, *new], "growth": growth}
        if self._mode != "active":  # most of the time the policy decides
            self._mode = "active"
            return {"op": op, "mode": "active"}
        self._mode = "shadow" if self._rng.random() < 0.5 else "default"
        if self._mode == "shadow":
            return {"op": op, "mode": "shadow"}
        named = BASE[int(self._rng.integers(len(BASE)))]["name"]
        return {"op": op, "mode": "default", "action": named}

    @property
    def _fills(self) -> bool:
        """Whether epochs are left alone for a while: only one that is nearly full has a next."""
        return self._calls % (2 * FILLING) < FILLING

    def _on_close(self, _: Any) -> None:
        """Two workers close the epoch under way at the same time."""
        if self._fills:
            return
        workers = self._rng.permutation(self._driver.count)[:2].tolist()
        self._pair = {self._send(Request({"op": "close"}), worker) for worker in (workers * 2)[:2]}

    # -- faults -----------------------------------------------------------------------------------

    def _on_arm(self, _: Any) -> None:
        """Let a worker die at a named point; those that were met least come first."""
        worker = int(self._rng.integers(self._driver.count))
        fewest = min(self.killed[point] for point in self.points)
        rare = [point for point in self.points if self.killed[point] <= fewest + 1]
        skips = [point for point in rare if point.startswith("skip")]
        if skips and self._fills and self._planned_ahead():  # which is seldom
            rare = skips
        elif self._armed.get(worker) and self._rng.random() < 0.8:
            return  # else it waits for another point
        point = rare[int(self._rng.integers(len(rare)))]
        if point.startswith(OPENING):  # met when a process opens the store: the next one
            self._coming[worker] = [point]
            self._strike(worker)
            return
        self._armed[worker] = point
        usual = point.startswith(("decide", "reward"))
        nth = int(self._rng.integers(1, 6 if usual else 2))
        self._driver.arm(worker, point, nth, int(self._rng.integers(1, 4)))
        closes = point.startswith("skip") and self._planned_ahead()
        if not self._fills:
            often = 1.0 if point.startswith("end") else 0.3
            closes |= point.startswith(("end", "close", "release")) and self._rng.random() < often
        if closes:
            self._send(Request({"op": "close"}), worker)
        elif point.startswith(CHANGES):
            self._on_change(None)

    def _start(self, worker: int) -> None:
        """A process in a worker's place, which may be to die when it opens the store."""
        coming = self._coming.get(worker)
        point = coming.pop(0) if coming else ""
        self._armed[worker] = point
        short = point.startswith(OPENING)  # of few statements
        self._driver.start(worker, point, 1 if short else 2)

    def _on_death(self, worker: int, point: str) -> None:
        """Whatever it was at is in doubt; another one takes its place."""
        if point or worker in self._struck:
            self._struck.discard(worker)
            self.outcome.kills += 1
            self.killed[point or "anywhere"] += 1
        else:  # a service that finds no room to open its store ends, perhaps without room to say so
            starved = bool({worker, SERVER} & self._full)
            assert starved, f"a worker died by itself: {self._driver.said()}"
        self.outcome.at_release += point.startswith(("release", "close"))
        if self._driver.loses:
            for number, (_, whose) in list(self._sent.items()):
                if whose == worker:
                    del self._sent[number]
                    self._pair.discard(number)
        self._on_room(worker)  # of a service only one process may be gone, and the rest starves
        self._start(worker)

    def _strike(self, worker: int) -> None:
        """Kill a worker wherever it is."""
        self._struck.add(worker)
        self._driver.kill(worker)

    def _on_kill(self, _: Any) -> None:
        self._strike(int(self._rng.integers(self._driver.count)))

    def _on_all(self, _: Any) -> None:
        self.events["all at once"] += 1
        for worker in range(self._driver.count):
            self._strike(worker)

    def _on_clock(self, _: Any) -> None:
        """A clock that is wrong by up to three hours, either way."""
        self.events["clock jump"] += 1
        ahead = float(self._rng.uniform(-3, 3) * 3600)
        self._driver.set_clock(int(self._rng.integers(self._driver.count)), ahead)

    def _on_full(self, _: Any) -> None:
        self.events["disk full"] += 1
        worker = int(self._rng.integers(self._driver.count)) if self._server is None else SERVER
        self._full.add(worker)
        if self._server is not None:
            self._server.fill(full=True)
        else:
            self._driver.fill(worker, full=True)
        self._at(float(self._rng.exponential(8.0)), "room", worker)

    def _on_room(self, worker: int) -> None:
        if worker not in self._full:
            return
        self._full.discard(worker)
        if self._server is None:
            self._driver.fill(worker, full=False)
        elif self._server.running:
            self._server.fill(full=False)

    def _mind_server(self) -> None:
        """Start a server that has given up for want of room, when there is some."""
        if self._server is None or SERVER in self._full or self._server.running:
            return
        self.events["server stopped for a full disk"] += 1
        self._server.start()

    def _on_crash(self, _: Any) -> None:
        if self._server is not None:
            self._full.discard(SERVER)
            self._server.crash()
            self._server.start()
            self.outcome.crashes += 1
