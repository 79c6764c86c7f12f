"""A device that forgets nothing: restarts, crashes, two processes, a ledger, lost replies."""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from devices import BUDGET, fill, late_bundle, small_aggregator
from test_javascript import Service

import capri
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError, StorageError
from capri.local.durable import upload_to
from capri.local.stores import DeviceStore, FolderStore, MemoryStore, Texts

BUNDLE = small_aggregator().bundle()
ALLOWANCE = capri.Allowance(epsilon=8.0, days=30)


def device(store: DeviceStore, **changes: Any) -> capri.DurableClient:
    settings: dict[str, Any] = {
        "bundle": BUNDLE, "budget": BUDGET, "policy": "books", "allowance": ALLOWANCE,
        "store": store, "send": lambda _: "accepted",
    }  # fmt: skip
    return capri.DurableClient(**(settings | changes))


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DeviceStore:
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path / "kept")


def test_a_visit_over_many_programs(store: DeviceStore) -> None:
    """Every step by a client of its own; the report answers the bundle of its decision."""
    sent: list[bytes] = []

    def offline(report: bytes) -> object:
        sent.append(report)
        raise OSError("no network")

    assert device(store).status == "none"
    assert device(store).act([0.4]).epoch == 1
    renewed = device(store, bundle=late_bundle())
    assert renewed.epoch == 2
    assert renewed.report(0.5)
    with pytest.raises(BudgetError, match="has reported"):
        device(store).report(0.5)
    assert device(store, send=offline).flush() is None
    assert device(store, send=offline).flush() is None  # it is not time yet
    assert device(store, send=offline).flush(again=True) is None
    assert device(store, send=lambda _: "please log in").flush(again=True) is None
    aggregator = small_aggregator()
    answered = device(store, send=lambda each: aggregator.receive(each))
    assert answered.flush(again=True) == "accepted"
    assert aggregator.reports == 1
    assert len(sent) == 2
    assert len({*sent}) == 1
    assert device(store, send=offline).flush(again=True) == "accepted"
    assert len(sent) == 2
    assert "(books: 4), at a cost of 4 of the 8" in device(store).spending()


def test_of_threads_at_once_one_reports(store: DeviceStore) -> None:
    device(store).act([0.4])
    outcomes: list[object] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        own = device(store)
        barrier.wait()
        try:
            outcomes.append(own.report(0.5))
        except BudgetError:
            outcomes.append(None)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["None"] * 5 + ["True"]


def test_processes_that_change_a_folder_at_once_count_every_change(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom capri.local.stores import FolderStore\n"
        "def step(texts): texts[0] = str(int(texts[0] or 0) + 1)\n"
        "for _ in range(150): FolderStore(sys.argv[1]).change(['a'], step)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        assert process.wait() == 0
    assert FolderStore(tmp_path).change(["a"], lambda texts: texts[0]) == "300"
    assert len(list(tmp_path.iterdir())) < 110
    (tmp_path / "301").write_text("{")
    with pytest.raises(StorageError, match="is damaged"):
        FolderStore(tmp_path).change(["a"], lambda texts: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Nothing was reported"):
        device(FolderStore(tmp_path / "file"))


def test_storage_that_is_evicted_or_damaged() -> None:
    store = MemoryStore()
    client = device(store)
    client.act([0.4])
    (person, *_), kept = list(store.texts), dict(store.texts)
    client.report(0.5)
    store.texts.clear()  # while the program runs
    client.act([0.4])
    with pytest.raises(BudgetError):
        client.report(0.5)
    store.texts = {person: kept[person]}  # and the bundle of the decision is gone
    with pytest.raises(DataError, match="decide again"):
        device(store, bundle=late_bundle()).report(0.5)
    store.texts[person] = kept[person][:-9]
    with pytest.raises(DataError, match="damaged"):
        device(store)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"allowance": 8.0}, ConfigurationError),
        ({"share": 2.0}, ConfigurationError),
        ({"budget": capri.Budget(epsilon=1.0)}, BundleError),
        ({"digest": bytes(32)}, BundleError),
    ],
)
def test_terms_that_are_none(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        device(MemoryStore(), **changes)
    for wrong in (0.0, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError):
            capri.Allowance(epsilon=1.0, days=wrong)
    client = device(MemoryStore(), bundle=late_bundle())
    with pytest.raises(BundleError, match="older"):
        client.renew(BUNDLE)


def test_no_report_to_a_bundle_that_others_are_not_shown() -> None:
    """A bundle for one person alone is in no log; a log only grows."""
    aggregator = small_aggregator()
    fill(aggregator)
    store, log = MemoryStore(), aggregator.digests
    assert log[0] == BUNDLE[-32:].hex()
    assert log[1] == aggregator.digest.hex()
    hers = small_aggregator(first_epoch=61).bundle()
    marked = device(store, bundle=hers, policy="marked", log=lambda: log)
    marked.act([0.4])
    with pytest.raises(BundleError, match="others may be shown") as refused:
        marked.report(0.5)
    assert refused.value.reason == "other-bundle"
    assert marked.status == "waiting"
    client = device(store, log=lambda: log, consent=lambda: False)
    client.act([0.4])
    assert not client.report(0.5)  # and the log was seen
    client.act([0.4])
    for shorter in (log[:1], (log[1], log[0]), ("x", *log)):
        with pytest.raises(BundleError):
            device(store, log=lambda each=shorter: each).report(0.5)
    with pytest.raises(DataError, match="no log of bundles now"):
        device(store, log=lambda: "please log in").report(0.5)
    assert device(store, log=lambda: (*log, "00")).report(0.5)


# -- everything at once ---------------------------------------------------------------------------

DAY = 86_400.0
POLICIES = ("books", "films", "songs")


class CrashError(Exception):
    """The program ends, before or after what it did was kept."""


class FragileStore:
    """A store whose program ends in one of ten steps."""

    def __init__(self, store: DeviceStore, chance: random.Random) -> None:
        self.store, self.chance, self.calm = store, chance, False

    def change(self, names: Any, step: Callable[[Texts], Any]) -> Any:
        fate = 1.0 if self.calm else self.chance.random()
        if fate < 0.05:
            raise CrashError
        found = self.store.change(names, step)
        if fate < 0.1:
            raise CrashError  # kept, and nobody heard of it
        return found


def schedule(seed: int, store: DeviceStore, aggregator: capri.LocalCapri) -> int:
    """Sixty things that happen to one device; how many reports counted."""
    chance = random.Random(seed)
    fragile = FragileStore(store, chance)
    passed, offset, jumps = 0.0, 1.7e9, 0
    left: dict[str, set[bytes]] = {policy: set() for policy in POLICIES}
    counted: list[bytes] = []
    spent: list[float] = []
    made: set[str] = set()

    def upload(policy: str) -> Callable[[bytes], object]:
        def send(report: bytes) -> object:
            fate = 1.0 if fragile.calm else chance.random()
            if fate < 0.2:
                raise OSError
            left[policy].add(report)
            status = aggregator.receive(report)
            if status is capri.ReportStatus.ACCEPTED:
                counted.append(report)
            if fate < 0.4:
                raise OSError  # the reply was lost
            return "please log in" if fate < 0.5 else status

        return send

    def opened(policy: str) -> capri.DurableClient:
        return device(
            fragile, bundle=aggregator.bundle(), policy=policy, send=upload(policy),
            clock=lambda: datetime.fromtimestamp(offset + passed, UTC),
        )  # fmt: skip

    tabs: list[tuple[capri.DurableClient, str] | None] = [None, None]
    for _ in range(60):
        passed += chance.random() * (10 * DAY if chance.random() < 0.1 else DAY / 50)
        place = chance.randrange(2)
        found = tabs[place]
        try:
            if found is None or chance.random() < 0.1:
                tabs[place] = None
                policy = chance.choice(POLICIES)
                tabs[place] = opened(policy), policy
                continue
            client, policy = found
            what = chance.random()
            if what < 0.35:
                client.act([chance.random()])
            elif what < 0.6:
                if client.report(None if chance.random() < 0.3 else chance.random()):
                    made.add(policy)
                    spent.append(passed)
            elif what < 0.9:
                client.flush(again=chance.random() < 0.5)
            elif what < 0.93:
                jumps, offset = jumps + 1, offset + 400 * DAY * chance.random()
            elif what < 0.95:
                offset -= 400 * DAY * chance.random()
            else:
                tabs[place] = None
        except CrashError:
            tabs[place] = None
        except (BudgetError, DataError):
            pass
    fragile.calm = True
    for policy in POLICIES:
        status = opened(policy).flush(again=True)
        assert len(left[policy]) <= 1  # none was made anew
        assert not (policy in made and not left[policy])  # none was lost
        assert not left[policy] or status in ("accepted", "replayed")
    assert sorted(counted) == sorted(each for reports in left.values() for each in reports)
    window = DAY * ALLOWANCE.days * (1 - jumps / 4)  # a jump ahead frees a quarter at most
    for start in spent:
        assert window <= 0 or 4 * sum(start <= each < start + window for each in spent) <= 8
    return len(counted)


def play(count: int, kept: Path, first: int = 1) -> None:
    aggregator = small_aggregator(reward_wait=10**6, horizon=None)
    total = 0
    for seed in range(first, first + count):
        store = MemoryStore() if seed % 2 else FolderStore(kept / str(seed))
        total += schedule(seed, store, aggregator)
    assert aggregator.reports == total > count / 2


def test_schedules_of_crashes_tabs_and_clocks(tmp_path: Path) -> None:
    play(16, tmp_path)


@pytest.mark.slow
def test_a_thousand_schedules(tmp_path: Path) -> None:
    play(1000, tmp_path, first=1001)


def test_uploads_over_http() -> None:
    service = Service()
    try:
        send = upload_to(f"{service.address}/reports")
        client = device(MemoryStore(), send=send, bundle=service.aggregator.bundle())
        client.act([0.4])
        client.report(0.5)
        assert client.flush() == "accepted"
        assert service.aggregator.reports == 1
    finally:
        service.close()
    gone = device(MemoryStore(), send=send)
    gone.act([0.4])
    gone.report(0.5)
    assert gone.flush() is None
    assert gone.status == "made"


def test_what_is_kept_is_public_to_the_person_alone(tmp_path: Path) -> None:
    """Files of one's own; context and action go with the report."""
    kept = FolderStore(tmp_path / "kept")
    client = device(kept, clock=lambda: datetime(2030, 1, 1, tzinfo=UTC), delay=timedelta(hours=1))
    client.act([0.73195])
    files = [path for path in (tmp_path / "kept").iterdir() if path.stat().st_size]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600]
    assert "0.73195" in files[0].read_text()
    client.report(0.25)
    files = [path for path in (tmp_path / "kept").iterdir() if path.stat().st_size]
    course = json.loads(json.loads(files[0].read_text())['""'])["policies"]['["","books"]0']
    assert {*course} == {"takesPart", "slot", "first", "tries", "due", "report"}
    assert "0.73195" not in repr(client)
