"""What an organisation's ledger costs an epoch, and that it costs a decision nothing.

    python benchmarks/ledger.py [--epochs 300]

One plan and one release are entries of one transaction. It is timed against a bare transaction of
one row into a file with the same settings, interleaved, since a disk has moods; in processor time
as well, since the wait for the disk is that of the bare one. The ledger is timed when it is new and
again with 10,000 entries: a process reads on from what it knows.
"""

import argparse
import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import psycopg

import capri
from capri.privacy.filters import Charge
from capri.privacy.ledger import ReleaseEvent
from capri.store.reservation import Reservation
from postgres_server import PostgresServer
from stored_policies import policy

BUDGET = capri.Budget(1.0, 1e-6)
ENTRIES = 10_000


def event(epoch: int) -> ReleaseEvent:
    return ReleaseEvent(
        epoch=epoch, model="joint", calibration="exact", participants=100, rank=20,
        sensitivity=1.0, noise_scale=1.0, mechanism="laplace", norm="l1",
    )  # fmt: skip


def bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, value TEXT)")
    return connection


def timed(url: str, folder: Path, epochs: int) -> None:
    connection = bare(folder / f"bare{abs(hash(url))}.db")
    with capri.OrganisationLedger(url, organisation="Ada") as ledger:
        ledger.add_population("people", BUDGET)
        charge = Charge.of(BUDGET, gaussian=True, pure=True)
        held = Reservation(ledger, "people", "source", charge, kind="policy")
        held.hold()
        released: list[ReleaseEvent] = []
        for label, first in (("new", 1), (f"{ENTRIES:,} entries", ENTRIES // 2)):
            while len(released) + 1 < first:
                held.plan(event(len(released) + 1), released)
                released.append(event(len(released) + 1))
            if not url.startswith("sqlite"):  # as autovacuum does within a minute
                with psycopg.connect(url, autocommit=True) as server:
                    server.execute("ANALYZE")
            ours, cpu, theirs = [], [], []
            for epoch in range(first, first + epochs):
                wall, busy = perf_counter(), process_time()
                held.plan(event(epoch), released)
                ours.append(perf_counter() - wall)
                cpu.append(process_time() - busy)
                released.append(event(epoch))
                wall = perf_counter()
                connection.execute("INSERT INTO rows (value) VALUES (?)", ("x" * 200,))
                theirs.append(perf_counter() - wall)
            print(
                f"{url.partition(':')[0]:10} {label:15} {1e3 * median(ours):6.2f} ms an epoch "
                f"({1e3 * median(cpu):.2f} ms of them computing), "
                f"{median(ours) / median(theirs):.1f} bare transactions"
            )
    connection.close()


def decisions(folder: Path, count: int = 400) -> None:
    """Decisions of one epoch with a ledger and without, in turns."""
    with capri.OrganisationLedger(f"sqlite:///{folder}/d.db", organisation="Ada") as ledger:
        ledger.add_population("people", BUDGET)
        place = {"ledger": ledger, "population": "people"}
        common = {"budget": BUDGET, "first_epoch": 10 * count}
        with (
            policy(f"sqlite:///{folder}/with.db", **common, **place) as counted,
            policy(f"sqlite:///{folder}/without.db", **common) as plain,
        ):
            both: list[list[float]] = [[], []]
            before = sum(1 for _ in ledger.entries())
            for _ in range(count):
                for each, times in zip((counted, plain), both, strict=True):
                    start = perf_counter()
                    each.act([0.2])
                    times.append(perf_counter() - start)
            asked = sum(1 for _ in ledger.entries()) - before
    ratio = median(both[0]) / median(both[1])
    print(f"a decision under a ledger takes {ratio:.2f} times as long; entries made: {asked}")


def main() -> None:
    """SQLite and Postgres."""
    parser = argparse.ArgumentParser(description="what an organisation's ledger costs")
    parser.add_argument("--epochs", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, PostgresServer() as server:
        folder = Path(name)
        timed(f"sqlite:///{folder}/ledger.db", folder, given.epochs)
        with server.database() as url:
            timed(url, folder, given.epochs)
        decisions(folder)


if __name__ == "__main__":
    main()
