"""Four processes that open policies, fits and a fleet over the same people, killed at any moment.

    python tests/faults/ledger_crashes.py --schedules 1000

Every schedule has a new ledger, three policies, a fleet and any number of fits. Together they want
more than their population was promised. Each of four processes opens one of them after the other,
serves some people and goes on; all four are killed (SIGKILL) at drawn moments. Impossible outcomes,
checked by :func:`verify` on what is left:

    an epoch, bundle or fit whose data were touched and that the ledger does not know
    a release that costs more than the ledger says
    sources that together cost somebody who was in all of them more than was promised, by the
    filter, or by dp-accounting from the noise of their plans
"""

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "local")]

from devices import one_report, small_aggregator  # noqa: E402

import capri  # noqa: E402
from capri.store.sql import SqlRepository  # noqa: E402
from capri.store.transaction import open_database  # noqa: E402
from stored_policies import CONTEXTS, policy  # noqa: E402

# Loaded before the processes begin: else most are killed while they load it.
LOADED = capri.PrivateKernelRidge, capri.LocalCapri, import_module("opendp.measurements")
WORKERS, POLICIES = 4, 3
PEOPLE = "people"
ACCOUNTS = {"basic": capri.Budget(1.5, 3e-6), "mixed": capri.Budget(2.9, 1e-6)}
OF_POLICY, OF_FIT, OF_FLEET = capri.Budget(0.8, 1e-6), capri.Budget(0.5, 5e-7), capri.Budget(0.6)
ROWS = np.linspace(0, 1, 60)[:, None]


def worker(url: str, folder: Path, seed: int, journal: int) -> None:
    """Open and serve until killed; what was touched is written down before it is."""
    draw = random.Random(seed)
    warnings.simplefilter("ignore")
    ledger = capri.OrganisationLedger(url)
    while True:
        what = draw.choice(["policy"] * POLICIES + ["fleet", "fit", "fit"])
        number = draw.randrange(POLICIES)
        try:
            if what == "policy":
                serve(ledger, f"sqlite:///{folder}/policy{number}.db", draw)
            elif what == "fleet":
                report(ledger, f"sqlite:///{folder}/fleet.db", draw)
            else:
                fit(ledger, journal)
            said = "done"
        except capri.BudgetError:
            said = "refused"
        os.write(journal, f"{said} {what}\n".encode())


def serve(ledger: capri.OrganisationLedger, url: str, draw: random.Random) -> None:
    settings = {"budget": OF_POLICY, "first_epoch": 8, "ledger": ledger, "population": PEOPLE}
    with policy(url, **settings) as opened:
        for _ in range(draw.randrange(1, 30)):
            opened.update(opened.act([float(draw.choice(CONTEXTS))]), draw.random())


def report(ledger: capri.OrganisationLedger, url: str, draw: random.Random) -> None:
    fleet = small_aggregator(
        store=url, budget=OF_FLEET, first_epoch=20, horizon=None, ledger=ledger, population=PEOPLE
    )
    bundle = fleet.bundle()
    fleet.receive_many(
        [one_report(bundle, OF_FLEET, draw.randrange(10**6)) for _ in range(draw.randrange(25))]
    )
    fleet.close()


def fit(ledger: capri.OrganisationLedger, journal: int) -> None:
    ridge = capri.PrivateKernelRidge(
        kernel="rbf", epsilon=OF_FIT, X_bounds=(0, 1), y_bounds=(0, 1), rank=4,
        ledger=ledger, population=PEOPLE,
    )  # fmt: skip
    ridge.fit(ROWS, ROWS[:, 0])
    held = ridge.ledger_.reservation
    os.write(journal, f"fitted {held.source} {max(e.mu for e in ridge.ledger_.events)}\n".encode())


def crash(url: str, folder: Path, seed: int) -> list[list[str]]:
    """One schedule; the lines that its processes wrote before they were killed."""
    draw, ours, children = random.Random(seed), [], []
    for place in range(WORKERS):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                worker(url, folder, WORKERS * seed + place, write)
            except BaseException as problem:  # told by the parent, as it ends by itself
                os.write(write, f"failed {type(problem).__name__} {problem}\n".encode())
            finally:
                os._exit(1)
        os.close(write)
        ours.append(read)
        children.append(child)
    written = dict.fromkeys(ours, b"")
    wanted = draw.randrange(1, 14)  # by what was done, not by a clock: machines are busy or not
    while sum(each.count(b"\n") for each in written.values()) < wanted:
        for pipe in select.select(ours, [], [])[0]:
            content = os.read(pipe, 1 << 16)
            assert content, f"a process has ended by itself: {written[pipe][-300:]!r}"
            written[pipe] += content
    for child in draw.sample(children, WORKERS):
        time.sleep(draw.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
    for child, pipe in zip(children, ours, strict=True):
        while content := os.read(pipe, 1 << 16):
            written[pipe] += content
        os.close(pipe)
        os.waitpid(child, 0)
    # A line that was cut short was not written.
    lines = [line for each in written.values() for line in each.decode().split("\n")[:-1]]
    return [line.split(" ", 2) for line in lines]


def epochs_of(path: Path) -> tuple[str | None, list[tuple[int, list[dict[str, Any]]]]]:
    """Source and epochs of a store, each with the events of its releases."""
    if not path.exists():
        return None, []
    try:
        database = open_database(f"sqlite:///{path}", create=False)
    except capri.StorageError:
        return None, []  # killed before its tables were made
    repository = SqlRepository(database, None)
    try:
        if repository.configuration() is None:
            return None, []
        repository.read_secrets()
        numbers = repository.epoch_values("number")
        releases = repository.epoch_values("release")
        events = [
            [] if kept is None else [repository.codec.unpack(kept)[0].get("event")]
            for kept in releases
        ]
        return repository.store_id, list(zip(numbers, events, strict=True))
    finally:
        database.close()


def verify(url: str, folder: Path, lines: list[list[str]]) -> Counter[str]:
    """Check for impossible outcomes; how many sources were opened, and how often one was not."""
    assert not [line for line in lines if line[0] == "failed"], lines
    with capri.OrganisationLedger(url) as ledger:  # reads and checks every entry
        entries = list(ledger.entries())
        spent, budget = ledger.spent(PEOPLE), ledger.look().population(PEOPLE).budget
    plans = {
        (entry["source"], entry["epoch"]): entry for entry in entries if entry["kind"] == "plan"
    }
    touched: dict[str, list[dict[str, Any]]] = {}
    for path in [*(folder / f"policy{n}.db" for n in range(POLICIES)), folder / "fleet.db"]:
        source, epochs = epochs_of(path)
        for number, events in epochs:
            assert (source, number) in plans, f"{path.name}: epoch {number} is not in the ledger"
            plan = plans[str(source), number]
            touched.setdefault(str(source), []).append(plan)
            for event in filter(None, events):
                made = capri.ReleaseEvent(**event)
                cost = plan["mu"] if plan["epsilon"] is None else plan["epsilon"]
                assert (made.pure(1) or made.mu) <= cost * (1 + 1e-9), "a release is dearer"
    for line in lines:
        if line[0] == "fitted":
            assert (line[1], 1) in plans, "a fit is not in the ledger"
            touched[line[1]] = [{"mu": float(line[2]), "epsilon": None}]
    assert spent.epsilon <= budget.epsilon * (1 + 1e-9), "the filter let too much through"
    assert spent.delta <= budget.delta * (1 + 1e-9)
    by_hand = composed(list(touched.values()), budget.delta)
    assert by_hand <= spent.epsilon + 1e-3, f"dp-accounting finds {by_hand}, we {spent.epsilon}"
    told = Counter(" ".join(line[:1]) for line in lines)
    told["sources"] = len(touched)
    return told


def composed(sources: list[list[dict[str, Any]]], delta: float) -> float:
    """Epsilon of somebody who was in the dearest plan of every source, by another accountant."""
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    events = []
    for plans in sources:
        pure = max((plan["epsilon"] for plan in plans if plan["epsilon"] is not None), default=0.0)
        mu = max((plan["mu"] for plan in plans if plan["epsilon"] is None), default=0.0)
        # Each person is in one epoch of a source: a pure one of so much costs more than Gaussian.
        events.append(LaplaceDpEvent(1 / pure) if pure else GaussianDpEvent(1 / mu))
    if not events:
        return 0.0
    accountant = PLDAccountant()
    accountant.compose(ComposedDpEvent(events))
    return float(accountant.get_epsilon(delta))


def run(url: str, account: str, seed: int) -> Counter[str]:
    """One schedule on an empty ledger, and its verdict."""
    with capri.OrganisationLedger(url, organisation="Ada") as ledger:
        ledger.add_population(PEOPLE, ACCOUNTS[account], account=account)
    with tempfile.TemporaryDirectory() as folder:
        lines = crash(url, Path(folder), seed)
        return verify(url, Path(folder), lines)


@contextmanager
def places(kind: str, folder: str) -> Iterator[Any]:
    """Gives an empty place of a kind, again and again."""
    from postgres_server import PostgresServer

    if kind == "sqlite":
        numbers = iter(range(10**9))

        @contextmanager
        def place() -> Iterator[str]:
            yield f"sqlite:///{folder}/ledger{next(numbers)}.db"

        yield place
    else:
        with PostgresServer() as server:
            yield server.database


def main() -> None:
    """Both kinds of database, both kinds of account."""
    parser = argparse.ArgumentParser(description="four killed processes on one ledger")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given, told = parser.parse_args(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("sqlite", "postgres"):
            with places(kind, folder) as place:
                for number in range(given.schedules // 2):
                    with place() as url:
                        account = list(ACCOUNTS)[number % len(ACCOUNTS)]
                        told += run(url, account, given.seed * 10**6 + number)
    killed = f"{given.schedules} schedules, {WORKERS * given.schedules} processes killed"
    print(f"{killed}: no impossible outcome. {json.dumps(told)}")


if __name__ == "__main__":
    main()
