"""Kill workers, services and the server until it is enough, then look for what must never be seen.

    python tests/faults/run_faults.py [--kills 1000] [--seed 0] [--only sqlite | postgres]
                                      [--results FOLDER] [--minutes M]

About half of the kills fall on runs without a budget, whose releases can be recounted to the last
bit, the others on private runs, which have a ledger. A third come at any moment (fault_harness.py),
the others are part of simulated bad days, many at named points (fault_simulation.py): of processes
with the library in them, and of services behind HTTP (fault_http.py). The list of what is looked
for stands in fault_verdict.py. Both stores are at it side by side. With --results a suite that was
interrupted goes on where it was.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from fault_driver import Driver, LibraryDriver
from fault_harness import Harness, Outcome
from fault_http import HttpDriver, write_policy
from fault_operators import OPERATIONS, kill_operators
from fault_points import PLACES
from fault_simulation import CREATING, HAPPENED, OPENING, TRANSACTIONS, Simulation
from fault_verdict import OUTCOMES, Verdict
from fault_worker import Setting
from memory import MEMORY
from postgres_server import PostgresServer
from recount import rows_of
from waiting import eventually

STORES = ("sqlite", "postgres")
STORE_KEY = bytes(range(32))
GUARD = "guard.json"
SECRETS = ("decisions", "rewards")
# A variable by which processes of a run are known.
MARK = "CAPRI_FAULT_RUN"
PLANNED_AHEAD = (
    "SELECT number FROM epochs, counter WHERE state = 'open' AND number > 1 AND first > issued"
)


def numbers_kept(setting: Setting, file: Path | None) -> dict[str, list[int]]:
    """The decisions that have rows in the tables of secrets, read without the package."""
    if file is not None:
        connection = sqlite3.connect(file)
        kept = {
            table: [int(number) for (number,) in connection.execute(f"SELECT number FROM {table}")]
            for table in SECRETS
        }
        connection.close()
        return kept
    import psycopg

    with psycopg.connect(setting.url) as server:
        return {
            table: [
                int(number)
                for (number,) in server.execute(f"SELECT number FROM {table}").fetchall()
            ]
            for table in SECRETS
        }


def marked_processes() -> dict[str, str]:
    """Numbers and command lines of processes that a run has started, directly or not."""
    mark, found = f"{MARK}={os.getpid()}".encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just ended, or is another user's
            continue
        if marked and not any(name in command for name in ("forkserver", "resource_tracker")):
            found[process.name] = command
    return found


def check_nobody_is_left(before: dict[str, str]) -> None:
    """Whatever a killed process had started ends by itself, soon."""
    eventually(lambda: not marked_processes().keys() - before.keys())


def one_run(
    store: str,
    *,
    private: bool,
    kills: int,
    seed: int,
    sealed: bool = False,
    first_epoch: int = 60,
) -> tuple[Outcome, Verdict]:
    """Workers on a fresh store, killed so often, and the verdict on what they left."""
    os.environ[MARK] = str(os.getpid())
    before = marked_processes()
    with ExitStack() as stack:
        server, file = None, None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        if store == "postgres":
            server = stack.enter_context(PostgresServer())
            url = stack.enter_context(server.database())
        else:
            file = folder / "faults.db"
            url = f"sqlite:///{file}"
        setting = Setting(
            url,
            private=private,
            store_key=STORE_KEY if sealed else None,
            first_epoch=first_epoch,
            wait=first_epoch // 2,
            rollback_guard=folder / GUARD,
        )
        outcome = Harness(setting, seed, server).run(kills)
        verdict = Verdict(setting, outcome)
        verdict.check()
        verdict.check_forgotten(numbers_kept(setting, file), file)
    check_nobody_is_left(before)
    return outcome, verdict


def killed_operators(store: str, places: Sequence[str] = PLACES) -> Counter[str]:
    """Those who operate a fresh store, killed at each place of what they do."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        url = f"sqlite:///{folder / 'faults.db'}"
        if store == "postgres":
            url = stack.enter_context(stack.enter_context(PostgresServer()).database())
        setting = Setting(url, private=True, rollback_guard=folder / GUARD)
        return kill_operators(setting, folder, places)


def planned_ahead(url: str) -> bool:
    """Whether the next epoch is planned, and the one before it still has slots."""
    try:
        return bool(rows_of(url, PLANNED_AHEAD))
    except Exception:  # the server is on its way up
        return False


def one_day(
    store: str,
    *,
    private: bool,
    kills: int,
    seed: int,
    timed: bool = True,
    workers: int = 0,
    plant: str = "",
    first_epoch: int = 60,
    made: bool = False,
) -> tuple[Simulation, Verdict]:
    """A simulated bad day on a fresh store, and the verdict on what is left of it.

    ``timed``: epochs and waits for rewards also end by the clock. ``workers``: those of a service
    behind HTTP; 0 for processes with the library in them. ``made``: nobody dies while the store
    is made.
    """
    os.environ[MARK] = str(os.getpid())
    before = marked_processes()
    with ExitStack() as stack:
        server, file = None, None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        if store == "postgres":
            server = stack.enter_context(PostgresServer())
            url = stack.enter_context(server.database())
        else:
            file = folder / "faults.db"
            url = f"sqlite:///{file}"
        setting = Setting(
            url,
            private=private,
            first_epoch=first_epoch,
            wait=timedelta(hours=1) if timed else first_epoch // 2,
            epoch_time=timedelta(hours=5) if timed else None,
            file=write_policy(folder, first_epoch) if workers else None,
            rollback_guard=folder / GUARD,
        )
        driver: Driver = (
            HttpDriver(setting, workers, seed) if workers else LibraryDriver(setting, plant)
        )
        stack.callback(driver.close)
        day = Simulation(driver, seed, server, partial(planned_ahead, url), made=made)
        verdict = Verdict(setting, day.run(kills))
        driver.check()
        verdict.check()
        verdict.check_forgotten(numbers_kept(setting, file), file)
    check_nobody_is_left(before)
    return day, verdict


# -- the whole suite -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One run of the suite, and its share of a store's kills."""

    what: str
    share: float
    private: bool
    timed: bool = False
    workers: int | None = None  # of a service; 0: the library; None: killed at any moment
    seed: int = 0
    operators: bool = False  # not workers: once at each place of what operators alone do

    def play(self, store: str, kills: int, seed: int) -> dict[str, Any]:
        """Plain values, for the report."""
        if self.operators:
            started = time.monotonic()
            killed = killed_operators(store)
            result = dict.fromkeys(COLUMNS, 0) | {"store": store, "what": self.what}
            result |= {"kills": killed.total(), "seconds": round(time.monotonic() - started)}
            return result | {"met": dict(killed), "events": {}}
        count = max(1, round(kills * self.share))
        met: dict[str, int] = {}
        events: dict[str, int] = {}
        if self.workers is None:
            sealed = self.private and store == "sqlite"
            outcome, verdict = one_run(
                store, private=self.private, kills=count, seed=seed + self.seed, sealed=sealed
            )
        else:
            day, verdict = one_day(
                store,
                private=self.private,
                kills=count,
                seed=seed + self.seed,
                timed=self.timed,
                workers=self.workers,
            )
            outcome, met, events = day.outcome, dict(day.killed), dict(day.events)
        return {
            "store": store,
            "what": self.what,
            "kills": outcome.kills,
            "crashes": outcome.crashes,
            "decisions": len(outcome.journal.visits),
            "answers": outcome.journal.answered,
            "releases": len(verdict.releases),
            "changes": len(outcome.journal.changes),
            "seconds": round(outcome.seconds),
            "met": met,
            "events": events,
        }


_DAYS = (
    Part("bad day, exact", 0.07, private=False, workers=0),
    Part("bad day, exact, timed", 0.075, private=False, timed=True, workers=0),
    Part("bad day, private", 0.07, private=True, workers=0),
    Part("bad day, private, timed", 0.075, private=True, timed=True, workers=0),
)
PARTS = (
    Part("at any moment, exact", 0.18, private=False, seed=0),
    Part("at any moment, private", 0.17, private=True, seed=1),
    *(replace(day, seed=2 + number) for number, day in enumerate(2 * _DAYS)),
    Part("bad day of a service, exact", 0.035, private=False, workers=1, seed=10),
    Part("bad day of two workers, private", 0.035, private=True, workers=2, seed=11),
    Part("operators", 0.0, private=True, operators=True),
)
COLUMNS = ("store", "what", "kills", "crashes", "decisions", "answers", "changes", "releases")
LONG = 1000  # kills on a store from which on every point and every event must have been met


def told(result: dict[str, Any]) -> str:
    """One line of the table."""
    return f"| {' | '.join(str(result[name]) for name in (*COLUMNS, 'seconds'))} |"


def points_of(store: str) -> list[str]:
    """All points of a store's transactions."""
    names = [*TRANSACTIONS, *OPERATIONS, *OPENING]
    if store == "sqlite":
        names.remove("sign-in")
    return [*CREATING, *(f"{name}.{place}" for name in names for place in PLACES)]


def summed(results: list[dict[str, Any]], what: str) -> Counter[str]:
    """Counts of all parts together."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result[what])
    return total


def conclude(store: str, results: list[dict[str, Any]], *, long: bool) -> None:
    """Say how often each point and each event was met; in a long run all must have been."""
    met, events = summed(results, "met"), summed(results, "events")
    kills, crashes = (sum(each[name] for each in results) for name in ("kills", "crashes"))
    points = points_of(store)
    listed = ", ".join(f"{point} {met[point]}" for point in points)
    print(f"\n{store}: {kills} kills, {met['anywhere'] + kills - met.total()} of them anywhere")
    print(f"  {len(points)} points, and how many died at each: {listed}")
    happened = ", ".join(f"{name} {count}" for name, count in sorted(events.items()))
    print(f"  what else happened: {happened}, server crashed {crashes}")
    missed = [point for point in points if not met[point]]
    missed += [name for name in HAPPENED if not events[name]]
    missed += ["server crashed"] if store == "postgres" and not crashes else []
    assert not (long and missed), f"points and events that were never met: {missed}"


def play(store: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Parts of a store that nobody has done or is at, while there is time; all that are done."""
    for number, part in enumerate(PARTS):
        kept = options.results / f"{store}-{number}-{options.kills}-{options.seed}.json"
        claim = kept.with_suffix(".taken")
        if time.monotonic() > options.until or kept.exists() or claim.exists():
            continue
        claim.touch()
        try:
            kept.write_text(json.dumps(part.play(store, options.kills, options.seed)))
            print(told(json.loads(kept.read_text())), flush=True)
        finally:
            claim.unlink()
    done = options.results.glob(f"{store}-*-{options.kills}-{options.seed}.json")
    return [json.loads(each.read_text()) for each in done]


def play_side_by_side(options: argparse.Namespace) -> None:
    """A process for each store: most of the time somebody waits for somebody."""
    names = ("kills", "seed", "results", "minutes")
    passed_on = [f"--{name}={getattr(options, name)}" for name in names]
    command = [sys.executable, __file__, "--rows", *passed_on]
    running = [subprocess.Popen([*command, f"--only={store}"]) for store in STORES]
    try:
        ended = [process.wait() for process in running]
    finally:
        for process in running:
            process.terminate()
    if any(ended):
        sys.exit("a run has failed: see above")


def main() -> None:
    """Print a line for each run; an impossible outcome ends it with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=LONG, help="on each store")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=STORES)
    parser.add_argument("--results", type=Path, help="a folder that keeps parts that are done")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no part after so many")
    parser.add_argument("--rows", action="store_true", help="lines of the table alone")
    options = parser.parse_args()
    options.until = time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and leave nobody behind
    if not options.rows:
        print(f"| {' | '.join((*COLUMNS, 'seconds'))} |\n{'| --- ' * (len(COLUMNS) + 1)}|")
    with tempfile.TemporaryDirectory() as folder:
        options.results = options.results or Path(folder)
        options.results.mkdir(parents=True, exist_ok=True)
        stores = STORES if options.only is None else (options.only,)
        if options.only is None:
            play_side_by_side(options)
            options.until = -inf  # all is done that there was time for
        results = {store: play(store, options) for store in stores}
    if options.rows or any(len(found) < len(PARTS) for found in results.values()):
        return
    for store in stores:
        conclude(store, results[store], long=options.kills >= LONG)
    total = sum(each["kills"] for found in results.values() for each in found)
    print(f"\n{total} kills. Impossible outcomes that were looked for after each run, none seen:")
    print("\n".join(OUTCOMES))


if __name__ == "__main__":
    main()
