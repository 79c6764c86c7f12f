"""Two processes of one aggregator, killed at any moment: what they leave is one true history.

    python tests/local/crashes.py --kills 200

Each schedule starts two processes on one store. Both draw reports from one small stock, so most
come more than once, to both processes; both end epochs and make readings. They are killed
(SIGKILL) after a drawn number of answers and a drawn moment more. Impossible outcomes, checked by
:func:`verify`:

    an answered report that is not stored, or is stored twice
    numbers of reports with a gap
    readings that differ, in any bit, from those of an aggregator in memory that is given the
    stored reports in their order
"""

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from devices import CONTEXTS, small_aggregator  # noqa: E402

import capri  # noqa: E402
from capri.local import wire  # noqa: E402
from capri.local.bundle import open_bundle  # noqa: E402
from capri.store.sql import SqlRepository  # noqa: E402
from capri.store.transaction import open_database  # noqa: E402

# No epoch stops taking reports: all of them stay stored, to be counted.
SETTINGS: dict[str, Any] = {
    "horizon": None, "first_epoch": 40, "growth": 1.1, "reward_wait": 100_000,
}  # fmt: skip
STOCK = 300  # tokens of a schedule, of which both processes draw
ACCEPTED = int(capri.ReportStatus.ACCEPTED)


def aggregator(store: str | None) -> capri.LocalCapri:
    return small_aggregator(**SETTINGS, store=store)


def worker(url: str, seed: int, stock: int, answers: int) -> None:
    """Hand reports in until killed, and write down what was answered."""
    draw, policy = random.Random(seed), aggregator(url)
    candidates: dict[bytes, int] = {}
    while True:
        digest = policy.digest
        if digest not in candidates:
            sphere = open_bundle(policy.bundle()).plan.sphere
            assert sphere is not None
            candidates[digest] = sphere.candidates
        numbers = [stock * STOCK + draw.randrange(STOCK) for _ in range(draw.randrange(1, 12))]
        tokens = np.array([[number, number * 7919 + 1] for number in numbers], dtype=np.uint64)
        reports = wire.pack(digest, tokens, np.array(numbers) % candidates[digest])
        statuses = policy.receive_many(reports)
        counted = [row.tobytes().hex() for row in reports[statuses == ACCEPTED]]
        os.write(answers, (" ".join(counted) + "\n").encode())


def crash(url: str, schedule: int, draw: random.Random) -> list[str]:
    """One schedule: reports that two processes said had counted before both were killed."""
    pipes, children = [], []
    for place in range(2):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                worker(url, 2 * schedule + place, schedule, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        pipes.append(ours)
        children.append(child)
    written = dict.fromkeys(pipes, b"")
    wanted = draw.randrange(1, 30)
    while sum(each.count(b"\n") for each in written.values()) < wanted:
        for pipe in select.select(pipes, [], [])[0]:
            content = os.read(pipe, 1 << 16)
            assert content, "a process has ended by itself"
            written[pipe] += content
    time.sleep(draw.random() * 0.03)
    for child in children if draw.random() < 0.5 else reversed(children):
        os.kill(child, signal.SIGKILL)
        time.sleep(draw.choice((0.0, 0.02)))
    for child, pipe in zip(children, pipes, strict=True):
        while content := os.read(pipe, 1 << 16):
            written[pipe] += content
        os.close(pipe)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    # A line that was cut short was not answered.
    lines = [line for each in written.values() for line in each.decode().split("\n")[:-1]]
    return [report for line in lines for report in line.split()]


def verify(url: str, answered: list[str]) -> capri.LocalCapri:
    """Check for impossible outcomes; the aggregator as the store has it."""
    database = open_database(url, create=False)
    repository = SqlRepository(database, None)
    rows = repository.read(lambda unit: repository.rows.reports(unit, 0))
    issued, _ = repository.read(lambda unit: unit.counter())
    database.close()
    at = 0
    for row in rows:
        assert row.first == at, "numbers of reports have a gap"
        at += row.size
    assert at == issued
    reports = wire.as_messages(b"".join(row.messages for row in rows))
    stored = Counter(row.tobytes().hex() for row in reports)
    assert max(stored.values(), default=1) == 1, "a report counts twice"
    assert max(Counter(answered).values(), default=1) == 1, "a report was accepted twice"
    assert set(answered) <= stored.keys(), "an answered report is lost"
    found, alone = aggregator(url), aggregator(None)
    assert (alone.receive_many(reports) == ACCEPTED).all()
    assert alone.bundle() == found.bundle(), "readings differ"
    assert [each.length for each in alone.epochs] == [each.length for each in found.epochs]
    assert alone.estimate(CONTEXTS).tobytes() == found.estimate(CONTEXTS).tobytes()
    assert alone.certificate().releases == found.certificate().releases
    return found


def run(url: str, kills: int, seed: int, told: Callable[[str], object] = print) -> None:
    """So many kills of two processes each, then the verdict."""
    draw, answered = random.Random(seed), list[str]()
    aggregator(url).close()
    for schedule in range(kills):
        answered += crash(url, schedule, draw)
    found = verify(url, answered)
    told(
        f"{2 * kills} processes killed: {len(answered)} reports answered, {found.reports} stored, "
        f"{len(found.epochs)} readings, no impossible outcome"
    )
    found.close()


def main() -> None:
    """Both kinds of store."""
    from postgres_server import PostgresServer

    parser = argparse.ArgumentParser(description="two killed processes on one aggregator")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", help="one store at this address, instead of both kinds")
    given = parser.parse_args()
    if given.store is not None:
        run(given.store, given.kills, given.seed)
        return
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        run(f"sqlite:///{folder}/crashes.db", given.kills, given.seed)
        with server.database() as url:
            run(url, given.kills, given.seed)


if __name__ == "__main__":
    main()
