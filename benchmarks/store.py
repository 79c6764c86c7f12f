"""What a durable store costs, as ratios within one run.

    python benchmarks/store.py [--only sqlite | postgres] [--seconds 10]

SQLite: decisions and rewards in batches of 1,000 against a bare `executemany` of as many rows into
a file with the same settings, and single ones against a bare transaction of one row. The two are
interleaved and the median counts, since a disk has moods.

Postgres: one process and two processes, each deciding and rewarding one by one. Processor time is
that of the clients and of the server's processes together. Every 10 ms it is asked who waits for a
lock: in the server (`pg_stat_activity`: heavyweight locks, advisory ones among them, and
lightweight ones), and in each client (its deciding thread in front of a lock of ours). Waiting for
the log to be flushed is waiting for the disk; it is shown beside the locks.
"""

import argparse
import json
import linecache
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

import capri
from capri.kernels import Matern
from postgres_server import PostgresServer

BATCH, BATCHES = 1_000, 15
SINGLES, TURNS = 100, 15
ROW_BYTES = 64  # about what a decision's secret column takes
STORE_KEY = bytes(range(32))
HERTZ = 100
POOL = np.linspace(0, 1, 50)[:, None]
# Lightweight locks that are held while the log is written: the disk, not another decision.
FLUSH = ("WALWrite", "WALSync", "WalSync", "WALInsert")


def policy(url: str | None, **changes: Any) -> capri.Capri:
    """A private policy in an epoch that does not end here: no plan is made while we measure."""
    settings: dict[str, Any] = {
        "kernel": Matern(nu=2.5, lengthscale=0.3),
        "actions": POOL,
        "contexts": capri.ContextPool(POOL),
        "budget": capri.Budget(epsilon=1.0, delta=1e-5),
        "first_epoch": 1_000_000,
        "store": url,
    }
    return capri.Capri(**(settings | changes))


def seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


# -- SQLite ---------------------------------------------------------------------------------------


class Bare:
    """A table of numbers and bytes in a file with the store's settings, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, secret BLOB)")
        self._next = 0

    def insert(self, count: int) -> None:
        """So many rows in one transaction."""
        rows = [(self._next + each, os.urandom(ROW_BYTES)) for each in range(count)]
        self._next += count
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO bare VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")


class Stored:
    """A policy on a store: decisions and their rewards, in batches and one by one."""

    def __init__(self, url: str, **changes: Any) -> None:
        self._policy = policy(url, **changes)
        self._rng = np.random.default_rng(0)
        self._count = 0
        self.act(2)

    def _visits(self, count: int) -> tuple[np.ndarray, list[str]]:
        self._count += count
        keys = [f"order-{self._count - each}" for each in range(count)]
        return POOL[self._rng.integers(len(POOL), size=count)], keys

    def act(self, count: int) -> None:
        self._last = self._policy.act_many(self._visits(count)[0])

    def act_with_keys(self, count: int) -> None:
        contexts, keys = self._visits(count)
        self._last = self._policy.act_many(contexts, keys=keys)

    def update(self, count: int) -> None:
        self._policy.update_many(self._last[:count], np.full(count, 0.5))

    def act_one_by_one(self, count: int) -> None:
        contexts, _ = self._visits(count)
        self._singles = [self._policy.act(context) for context in contexts]

    def update_one_by_one(self, count: int) -> None:
        for decision in self._singles[:count]:
            self._policy.update(decision, 0.5)


def sqlite_table(folder: Path) -> list[tuple[str, float, float, float, float]]:
    """Rows: what, its rate, the bare rate, their ratio, the bar."""
    bare = Bare(folder / "bare.db")
    plain = Stored(f"sqlite:///{folder / 'plain.db'}")
    sealed = Stored(f"sqlite:///{folder / 'sealed.db'}", store_key=STORE_KEY)
    works: dict[str, tuple[Callable[[int], None], int, float]] = {
        "batch: act_many": (plain.act, BATCH, 0.2),
        "batch: update_many": (plain.update, BATCH, 0.2),
        "batch: act_many, sealed": (sealed.act, BATCH, 0.0),
        "batch: act_many, keys": (plain.act_with_keys, BATCH, 0.0),
        "single: act": (plain.act_one_by_one, SINGLES, 0.5),
        "single: update": (plain.update_one_by_one, SINGLES, 0.5),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    bare_times: dict[int, list[float]] = {BATCH: [], SINGLES: []}
    for _ in range(max(BATCHES, TURNS)):
        bare_times[BATCH].append(seconds(lambda: bare.insert(BATCH)))
        bare_times[SINGLES].append(seconds(lambda: [bare.insert(1) for _ in range(SINGLES)]))
        for name, (work, count, _) in works.items():
            times[name].append(seconds(lambda work=work, count=count: work(count)))
    rows = []
    for name, (_, count, bar) in works.items():
        rate, base = count / median(times[name]), count / median(bare_times[count])
        rows.append((name, rate, base, rate / base, bar))
    return rows


# -- Postgres -------------------------------------------------------------------------------------


class OwnLocks(threading.Thread):
    """Looks at the deciding thread every 10 ms: does it stand in front of a lock of ours?"""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._watched = threading.get_ident()
        self.looks = self.waits = 0
        self.over = False

    def run(self) -> None:
        while not self.over:
            sleep(1 / HERTZ)
            frame = sys._current_frames().get(self._watched)
            self.looks += 1
            self.waits += frame is not None and self._at_a_lock(frame)

    @staticmethod
    def _at_a_lock(frame: Any) -> bool:
        """The innermost line is a lock's own, or a ``with`` of one, in the package."""
        code, line = frame.f_code, linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if code.co_filename.endswith("threading.py"):
            return True
        ours = f"{os.sep}capri{os.sep}" in code.co_filename
        return ours and line.strip().startswith("with ") and "self._" in line


def client(url: str, duration: float) -> dict[str, float]:
    """One process: a decision and its reward, one after the other, for so long."""
    served = policy(url)
    rng, locks = np.random.default_rng(os.getpid()), OwnLocks()
    served.update(served.act(POOL[0]), 0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    locks.start()
    used, start, made = process_time(), perf_counter(), 0
    while perf_counter() - start < duration:
        served.update(served.act(POOL[rng.integers(len(POOL))]), 0.5)
        made += 1
    used, locks.over = process_time() - used, True
    return {
        "made": made,
        "cpu": used,
        "wall": perf_counter() - start,
        "looks": locks.looks,
        "waits": locks.waits,
    }


def server_cpu(server: PostgresServer) -> float:
    """Processor seconds of all processes of the server, also of those that have ended."""
    assert server._process is not None
    tick, total = os.sysconf("SC_CLK_TCK"), 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        if number == server._process.pid:
            total += sum(map(int, fields[11:15])) / tick  # with its children that were waited for
        elif int(fields[1]) == server._process.pid:
            total += sum(map(int, fields[11:13])) / tick
    return total


class ServerLocks(threading.Thread):
    """Asks the server every 10 ms which clients of a database wait, and for what."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        super().__init__(daemon=True)
        self._server, self._database = server, database
        self.busy = self.locks = self.flushes = 0
        self.names: dict[str, int] = {}
        self.over = False

    def run(self) -> None:
        asked = (
            "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE datname = %s "
            "AND backend_type = 'client backend' AND state <> 'idle'"
        )
        with self._server.connection() as connection:
            while not self.over:
                sleep(1 / HERTZ)
                for kind, event in connection.execute(asked, (self._database,)).fetchall():
                    self.busy += 1
                    flush = event in FLUSH
                    self.flushes += flush
                    waits = kind in ("Lock", "LWLock") and not flush
                    self.locks += waits
                    if kind in ("Lock", "LWLock"):
                        self.names[event] = self.names.get(event, 0) + 1


def postgres_run(server: PostgresServer, processes: int, duration: float) -> dict[str, Any]:
    """So many processes at once on a fresh store."""
    with server.database() as url:
        database = url.partition("?")[0].rpartition("/")[2]
        policy(url).close()
        command = [sys.executable, __file__, "--client", url, "--seconds", str(duration)]
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        clients = [subprocess.Popen(command, **pipe) for _ in range(processes)]
        for each in clients:
            if each.stdout.readline().strip() != "ready":
                raise SystemExit("a client did not start: see above")
        before, watch = server_cpu(server), ServerLocks(server, database)
        watch.start()
        for each in clients:
            each.stdin.write("go\n")
            each.stdin.flush()
        found = [json.loads(each.stdout.readline()) for each in clients]
        watch.over = True
        watch.join()
        used = server_cpu(server) - before
        for each in clients:
            each.wait()
    made = sum(each["made"] for each in found)
    samples = sum(each["looks"] for each in found)
    return {
        "made": made,
        "rate": made / max(each["wall"] for each in found),
        "client": sum(each["cpu"] for each in found) / made,
        "server": used / made,
        "server locks": watch.locks / samples,
        "own locks": sum(each["waits"] for each in found) / samples,
        "flush": watch.flushes / samples,
        "names": watch.names,
    }


def postgres_table(duration: float, repeats: int) -> dict[int, list[dict[str, Any]]]:
    """Runs of one and of two processes in turn, on a server that syncs its log."""
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    with PostgresServer(fsync="on", full_page_writes="on", shared_buffers="128MB") as server:
        for _ in range(repeats):
            for processes in runs:
                runs[processes].append(postgres_run(server, processes, duration))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(client(options.client, options.seconds)), flush=True)
        return
    failed = []
    if options.only != "postgres":
        with tempfile.TemporaryDirectory() as folder:
            rows = sqlite_table(Path(folder))
        print(
            "| SQLite | a second | bare, a second | ratio | bar |\n| --- | --- | --- | --- | --- |"
        )
        for name, rate, base, ratio, bar in rows:
            print(f"| {name} | {rate:,.0f} | {base:,.0f} | {ratio:.2f} | {bar or '-'} |")
            if ratio < bar:
                failed.append(f"{name}: {ratio:.2f}, not {bar}")
    if options.only != "sqlite":
        failed += postgres_report(postgres_table(options.seconds, options.repeats))
    if failed:
        raise SystemExit("below the bar: " + "; ".join(failed))


def postgres_report(runs: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Print the table; what misses its bar."""

    def middle(processes: int, name: str) -> float:
        return median(run[name] for run in runs[processes])

    print(
        "\n| Postgres, processes | decisions a second | client ms | server ms | waits for locks "
        "| for our own | for the log |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    cost = {}
    for processes in runs:
        cost[processes] = middle(processes, "client") + middle(processes, "server")
        print(
            f"| {processes} | {middle(processes, 'rate'):,.0f} "
            f"| {1e3 * middle(processes, 'client'):.2f} | {1e3 * middle(processes, 'server'):.2f} "
            f"| {middle(processes, 'server locks'):.2%} | {middle(processes, 'own locks'):.2%} "
            f"| {middle(processes, 'flush'):.2%} |"
        )
    ratio, waits = cost[2] / cost[1], middle(2, "server locks") + middle(2, "own locks")
    print(f"\nprocessor time of two over one: {ratio:.3f} (at most 1.15)")
    print(f"waits for locks with two processes: {waits:.2%} (below 2 %)")
    print("seen:", {name: sum(run["names"].get(name, 0) for run in runs[2])
                    for run in runs[2] for name in run["names"]})  # fmt: skip
    failed = []
    if ratio > 1.15:
        failed.append(f"processor time {ratio:.3f}")
    if waits >= 0.02:
        failed.append(f"lock waits {waits:.2%}")
    return failed


if __name__ == "__main__":
    main()
