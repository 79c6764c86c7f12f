"""A day in the life of the service: does it learn as well as one process that nobody disturbs?

    python benchmarks/service_day.py [--functions 10] [--seed 7200] [--rate 2000]

1e5 decisions over HTTP in lists of 100, two workers on Postgres, each reward 1,000 decisions after
its own. Ten times everything that serves is killed (SIGKILL, in the middle of requests) and started
again; callers repeat what was not answered, with the same keys. Beside it the same policy file in
one process without restarts or a store: the same function, visitors and noise of rewards, several
runs, since a private run cannot be repeated and its own noise moves its regret.

The day is told in time lapse. Learning takes a moment, in which users play an old law: with a
decision a second that is nothing, with hundreds a second much of the regret. So callers pause at
the public slots at which something is due, until it is done; ``--hurry`` leaves the pauses out.

Printed for each function: regret of both relative to uniform play, and their ratio.
"""

import argparse
import fcntl
import json
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from statistics import mean
from threading import Lock, Thread
from typing import Any

HERE = Path(__file__).resolve()
sys.path.append(str(HERE.parents[1] / "tests"))

import numpy as np  # noqa: E402
from common import PROBLEMS, RESULTS, about, save_json, summary  # noqa: E402  (sets BLAS threads)

from capri import Client  # noqa: E402
from capri.service.auth import add_key  # noqa: E402
from capri.service.settings import load_settings  # noqa: E402

BATCH = 100
CALLERS = 4
# Rewards count for longer than they take: what was leased and never filled counts as decisions.
DELAY, WAIT = 1000, 2000
NAME = "service_day"

POLICY = """
actions = "actions.csv"
public = "public.csv"
kernel = "matern52"
lengthscale = 0.3
[budget]
epsilon = 1.0
delta = 1e-5
[reward]
wait = {wait}
[service]
rate = 1e9
[[context]]
name = "x"
kind = "numeric"
low = 0
high = 1
"""


class Visitors:
    """Who comes, and what they would say to every action: the same in all runs of a function."""

    def __init__(self, seed: int, rounds: int) -> None:
        self.world = PROBLEMS["matern"].make(seed)
        generator = np.random.default_rng(seed)
        self.contexts = self.world.draw_contexts(generator, rounds)
        self.noise = generator.uniform(-self.world.noise, self.world.noise, rounds)
        best, uniform = self.world.means.max(axis=1), self.world.means.mean(axis=1)
        self.lost = best[:, None] - self.world.means
        self.scale = float((best - uniform)[self.contexts].sum())

    def rewards(self, places: slice, actions: list[int]) -> list[float]:
        """What some visitors say."""
        means = self.world.means[self.contexts[places], actions]
        return (means + self.noise[places]).tolist()  # type: ignore[no-any-return]

    def regret(self, actions: np.ndarray) -> list[float]:
        """Relative to uniform play, by tenths of the day: they add up to the regret of all."""
        lost = self.lost[self.contexts, actions] / self.scale
        return [float(part.sum()) for part in np.array_split(lost, 10)]

    def write(self, folder: Path) -> Path:
        """The policy file, with its public rows and actions."""
        cells = [f"{cell!r}" for cell in self.world.contexts[:, 0].tolist()]
        (folder / "public.csv").write_text("\n".join(["x", *cells]) + "\n")
        rows = [f"action {n},{cell!r}" for n, cell in enumerate(self.world.actions[:, 0].tolist())]
        (folder / "actions.csv").write_text("\n".join(["name,y", *rows]) + "\n")
        file = folder / "policy.toml"
        file.write_text(POLICY.format(wait=WAIT))
        return file


# -- one process ----------------------------------------------------------------------------------


def undisturbed(visitors: Visitors, file: Path) -> list[float]:
    """Regret in memory, by the same lists and with the same delay."""
    policy = load_settings(file).policy(store=None)
    rows = visitors.world.contexts[visitors.contexts]
    actions = np.empty(len(rows), dtype=np.int64)
    waiting: deque[tuple[int, Any, list[float]]] = deque()
    done = 0
    while done < len(rows):
        count = min(BATCH, len(rows) - done, policy.remaining)
        made = policy.act_many(rows[done : done + count])
        part = slice(done, done + count)
        actions[part] = made.action_index
        done += count
        waiting.append((done, made, visitors.rewards(part, made.action_index.tolist())))
        while waiting and waiting[0][0] <= done - DELAY:
            _, earlier, rewards = waiting.popleft()
            policy.update_many(earlier, rewards)
    return visitors.regret(actions)


# -- the service ----------------------------------------------------------------------------------


class Day:
    """Callers who keep asking, whatever happens to the service."""

    def __init__(self, visitors: Visitors, url: str, key: str, rate: float, *, hurry: bool) -> None:
        self._visitors, self._rate = visitors, rate
        self._allowed = len(visitors.contexts) if hurry else BATCH
        self._client = Client(url, key, timeout=15.0, retries=40)
        self.actions = np.full(len(visitors.contexts), -1)
        self.decided, self._taken, self._next = 0, 0, 0.0
        self.statuses: Counter[str] = Counter()
        self._waiting: deque[tuple[int, list[str], list[float]]] = deque()
        self._lock = Lock()
        self.problems: list[BaseException] = []
        self._callers = [Thread(target=self._call, daemon=True) for _ in range(CALLERS)]

    def start(self) -> None:
        for caller in self._callers:
            caller.start()

    @property
    def over(self) -> bool:
        return not any(caller.is_alive() for caller in self._callers)

    def _call(self) -> None:
        try:
            while (part := self._part()) is not None:
                self._decide(part)
                while (late := self._due()) is not None:
                    ids, rewards = late
                    said = self._client.update_many(ids, rewards)
                    with self._lock:
                        self.statuses.update(str(status) for status in said)
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            self._client.close()

    def pause(self) -> None:
        """Let callers go on to the next slot at which something is due, if nothing is now."""
        progress = self._client.policy()["progress"]
        with self._lock:
            known, taken = self.decided, self._taken
        if known < taken:  # some are on their way
            return
        issued, under_way = progress["decided"], progress["under_way"]
        due = [each["closes"] for each in under_way if each["closes"] is not None]
        due += [issued - each["taken"] + each["length"] for each in under_way if each["open"]]
        numbers = [each["epoch"] for each in under_way]
        between = numbers and min(numbers) > progress["released"] + 1  # closed, and not learnt from
        if due and min(due) >= issued and not between:
            self._allowed = known + min(due) - issued + BATCH

    def _part(self) -> slice | None:
        """The next visitors, not faster than the rate."""
        while self._taken >= self._allowed and self._taken < len(self.actions):
            time.sleep(0.01)
        with self._lock:
            if self._taken >= len(self.actions):
                return None
            part = slice(self._taken, min(self._taken + BATCH, len(self.actions)))
            self._taken = part.stop
            self._next = max(self._next, time.monotonic()) + BATCH / self._rate
            until = self._next
        time.sleep(max(0.0, until - time.monotonic()))
        return part

    def _decide(self, part: slice) -> None:
        cells = self._visitors.world.contexts[self._visitors.contexts[part], 0].tolist()
        keys = [f"visit {place}" for place in range(part.start, part.stop)]
        made = self._client.act_many([{"x": cell} for cell in cells], keys=keys)
        actions = [decision.action_index for decision in made]
        rewards = self._visitors.rewards(part, actions)
        with self._lock:
            self.actions[part] = actions
            self.decided += len(made)
            self._waiting.append((self.decided, [each.id for each in made], rewards))

    def _due(self) -> tuple[list[str], list[float]] | None:
        with self._lock:
            if not self._waiting or self._waiting[0][0] > self.decided - DELAY:
                return None
            return self._waiting.popleft()[1:]


def lived(
    visitors: Visitors, file: Path, url: str, rate: float, restarts: int, hurry: bool
) -> dict[str, Any]:
    """Regret over HTTP, with restarts; and what became of the rewards."""
    from service_process import Running

    key = add_key(file.with_suffix(".keys"), "day", ["admin"])
    source = str(HERE.parents[1] / "src")
    running = Running(
        file.parent, ("--workers", "2"), {"CAPRI_STORE": url, "PYTHONPATH": source}, key=key
    )
    running.start()
    try:
        day = Day(visitors, running.url, key, rate, hurry=hurry)
        began = time.monotonic()
        day.start()
        step, done = len(visitors.contexts) // (restarts + 1), 0
        while not day.over:
            if done < restarts and day.decided >= (done + 1) * step:
                running.kill()
                running.start()
                done += 1
            if not hurry:
                day.pause()
            time.sleep(0.05)
        took = time.monotonic() - began
        if day.problems:
            raise day.problems[0]
        epochs = len(running.get("/v1/epochs"))
    finally:
        running.stop()
    assert done == restarts
    return {
        "restarts": restarts,
        "hurry": hurry,
        "tenths": visitors.regret(day.actions),
        "statuses": dict(day.statuses),
        "epochs": epochs,
        "seconds": took,
    }


# -- functions ------------------------------------------------------------------------------------


def one(
    seed: int, rounds: int, rate: float, repeats: int, restarts: int, hurry: bool
) -> dict[str, Any]:
    """One function: the service once, one process several times."""
    from postgres_server import PostgresServer

    visitors = Visitors(seed, rounds)
    with PostgresServer() as server, server.database() as url, tempfile.TemporaryDirectory() as at:
        file = visitors.write(Path(at))
        found = lived(visitors, file, url, rate, restarts, hurry)
        alone = [undisturbed(visitors, file) for _ in range(repeats)]
    return {
        "seed": seed,
        "service": sum(found["tenths"]),
        "alone": [sum(tenths) for tenths in alone],
        "ratio": sum(found["tenths"]) / mean(sum(tenths) for tenths in alone),
        **found,
        "alone_tenths": np.mean(alone, axis=0).tolist(),
    }


def keep(path: Path, found: dict[str, Any]) -> None:
    """Functions may be run in processes of their own: what was found is added up in one file."""
    path.parent.mkdir(exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = json.loads(path.read_text())["runs"] if path.exists() else []
        alike = ("rounds", "rate", "restarts", "hurry")
        runs = [run for run in kept if all(run[name] == found[name] for name in alike)]
        runs = [run for run in runs if run["seed"] != found["seed"]] + [found]
        save_json(NAME, {"about": about(), "runs": sorted(runs, key=lambda run: run["seed"])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7200, help="of the first function")
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="decisions a second at most")
    parser.add_argument("--repeats", type=int, default=5, help="runs in one process")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--hurry", action="store_true")
    options = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    for seed in range(options.seed, options.seed + options.functions):
        how = (options.rate, options.repeats, options.restarts, options.hurry)
        found = one(seed, options.rounds, *how)
        print(json.dumps(found), flush=True)
        keep(path, {**found, "rounds": options.rounds, "rate": options.rate})
    ratios = [run["ratio"] for run in json.loads(path.read_text())["runs"]]
    if len(ratios) > 1:
        told = summary(ratios)
        print(f"{len(ratios)} functions, ratio {told['mean']:.3f} ± {told['standard_error']:.3f}")


if __name__ == "__main__":
    main()
