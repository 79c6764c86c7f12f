"""Threads of one process at one ledger, and a read that is made once more."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from capri import Budget, BudgetError, OrganisationLedger, StorageError
from capri.privacy.filters import Charge
from capri.privacy.ledger import ReleaseEvent
from capri.store.reservation import Reservation

EPOCHS = 12


def pure(epsilon: float) -> Charge:
    return Charge(epsilon=epsilon, delta=0.0, pure=epsilon)


def reservation(ledger: OrganisationLedger, source: str, epsilon: float = 1.0) -> Reservation:
    return Reservation(ledger, "people", source, pure(epsilon), kind="policy")


def event(epoch: int) -> ReleaseEvent:
    return ReleaseEvent(
        epoch=epoch, model="joint", calibration="exact", participants=5, rank=1,
        sensitivity=1.0, noise_scale=10.0, mechanism="laplace", norm="l1",
    )  # fmt: skip


def in_a_thread(function: Callable[[], object]) -> None:
    thread = Thread(target=function)
    thread.start()
    thread.join()


@pytest.fixture
def ledger(url: str) -> Iterator[OrganisationLedger]:
    with OrganisationLedger(url, organisation="Ada") as found:
        found.add_population("people", Budget(1.0))
        yield found


def when_read_on(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[], object], then: Callable[[], object]
) -> None:
    """Have something done once just before and once just after a book is read on."""
    honest, left = OrganisationLedger._read_on, [first, then]

    def read_on(self: OrganisationLedger, *given: Any) -> Any:
        before, after = (left.pop(0), left.pop(0)) if left else (int, int)
        before()
        found = honest(self, *given)
        after()
        return found

    monkeypatch.setattr(OrganisationLedger, "_read_on", read_on)


def test_a_look_within_an_append_makes_no_stale_book(
    ledger: OrganisationLedger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread asks the odometer while another appends, after another process has been there."""
    with OrganisationLedger(url) as other:
        reservation(other, "other").hold()  # all of the budget is gone

        def look() -> None:
            in_a_thread(lambda: ledger.spent("people"))

        when_read_on(monkeypatch, look, look)
        with pytest.raises(BudgetError, match="does not fit"):
            reservation(ledger, "ours").hold()
    assert ledger.spent("people").epsilon == 1.0
    OrganisationLedger(url).close()


def test_an_append_within_a_look_is_not_forgotten(
    ledger: OrganisationLedger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that ends after an append does not bring back the book from before."""
    with OrganisationLedger(url) as other:
        reservation(other, "other", 0.5).hold()

        def append() -> None:
            in_a_thread(reservation(ledger, "ours", 0.5).hold)

        when_read_on(monkeypatch, append, int)
        ledger.look()
        assert ledger.spent("people").epsilon == 1.0
        with pytest.raises(BudgetError, match="does not fit"):
            reservation(ledger, "one more", 0.1).hold()


def test_a_book_that_was_given_out_stays_as_it_was(ledger: OrganisationLedger) -> None:
    before = ledger.look()
    held = reservation(ledger, "ours")
    held.plan(event(1))
    held.release([event(1)])
    assert (not before.sources, not before.held) == (True, True)
    plan = "ours", 1, "learning"
    assert plan not in before.plans
    assert plan not in before.released
    assert plan in ledger.look().plans
    assert plan in ledger.look().released


def test_no_entry_is_written_that_nobody_could_read(ledger: OrganisationLedger, url: str) -> None:
    """What a source builds is read before it is committed: a mistake there is no lasting one."""
    reservation(ledger, "ours").hold()
    (entry,) = [each for each in ledger.entries() if each["kind"] == "source"]
    more = {name: value for name, value in entry.items() if name != "kind"} | {"source": "more"}
    with pytest.raises(StorageError, match="beyond the budget"):
        ledger.append(lambda book, now: [("source", more)])
    OrganisationLedger(url).close()


def test_threads_of_two_processes_write_what_all_can_read(
    ledger: OrganisationLedger, url: str
) -> None:
    """Sources in threads, one that looks, and others at a ledger of their own."""
    ledger.add_population("many", Budget(100.0))

    def source(used: OrganisationLedger, name: str) -> None:
        held = Reservation(used, "many", name, pure(1.0), kind="policy")
        held.hold()
        for epoch in range(1, EPOCHS + 1):
            held.plan(event(epoch), [event(each) for each in range(1, epoch)])

    def look() -> None:
        for _ in range(3 * EPOCHS):
            ledger.spent("many")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with OrganisationLedger(url) as other, ThreadPoolExecutor(5) as pool:
            jobs = [
                pool.submit(source, used, f"s{n}") for n, used in enumerate((ledger, other) * 2)
            ]
            for job in [*jobs, pool.submit(look)]:
                job.result()
    finally:
        sys.setswitchinterval(before)
    with OrganisationLedger(url) as again:
        kinds = [entry["kind"] for entry in again.entries()]
        assert again.spent("many").epsilon == 4.0
    assert (kinds.count("plan"), kinds.count("release")) == (4 * EPOCHS, 4 * (EPOCHS - 1))


def test_a_read_that_is_made_once_more_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is looked at and begins to change is read again, into another book."""
    file = tmp_path / "ledger.db"
    with OrganisationLedger(f"sqlite:///{file}", organisation="Ada") as ledger:
        ledger.add_population("people", Budget(1.0))
        reservation(ledger, "ours").hold()
    when_read_on(monkeypatch, int, lambda: os.utime(file))
    with OrganisationLedger(f"sqlite:///{file}", read_only=True) as looked:
        assert looked.spent("people").epsilon == 1.0
