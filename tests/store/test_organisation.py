"""One ledger for many sources: reserved before data, refused beyond a budget, found if changed."""

import json
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import one_report, small_aggregator
from sklearn.base import clone

from capri import (
    Budget,
    BudgetError,
    Capri,
    ConfigurationError,
    LocalCapri,
    OrganisationLedger,
    PrivacyLeakWarning,
    PrivateKernelRidge,
    StorageError,
)
from capri.codec import packed, unpacked
from capri.privacy import filters
from capri.privacy.filters import Charge
from capri.service.server import open_policy
from capri.service.settings import load_settings
from capri.store.book import Population
from capri.store.reservation import Reservation
from operated_stores import command
from stored_policies import policy

BUDGET = Budget(1.0, 1e-6)
CHARGE = Charge.of(BUDGET, gaussian=True, pure=True)


@pytest.fixture
def ledger(url: str) -> Iterator[OrganisationLedger]:
    with OrganisationLedger(url, organisation="Ada's Clinic") as found:
        found.add_population("patients", Budget(3.0, 3e-6))
        yield found


def hold(ledger: OrganisationLedger, source: str, charge: Charge = CHARGE) -> None:
    Reservation(ledger, "patients", source, charge, kind="policy").hold()


def kinds(ledger: OrganisationLedger) -> list[str]:
    return [entry["kind"] for entry in ledger.entries()]


def stored(tmp_path: Path, name: str, ledger: object, **changes: Any) -> Capri:
    where = f"sqlite:///{tmp_path}/{name}.db"
    settings = {"budget": BUDGET, "population": "patients"} | changes
    return policy(where, ledger=ledger, **settings)


def play(policy: Capri, visits: int) -> None:
    for _ in range(visits):
        policy.update(policy.act([0.2]), 0.5)


def test_the_last_of_a_budget_goes_to_one(ledger: OrganisationLedger, url: str) -> None:
    with OrganisationLedger(url) as other:
        hold(ledger, "a")
        hold(other, "b")
        hold(ledger, "c")
        with pytest.raises(BudgetError, match="does not fit"):
            hold(other, "d")
        hold(other, "a")  # the same source holds the same once
        assert other.spent("patients").epsilon == pytest.approx(3.0)
        assert kinds(ledger) == kinds(other) == ["population", *3 * ["source"]]


def test_a_period_has_a_budget_of_its_own(url: str) -> None:
    days = [datetime(2026, 12, 31, tzinfo=UTC)]
    with OrganisationLedger(url, organisation="Ada", clock=lambda: days[-1]) as ledger:
        ledger.add_population("patients", BUDGET, period="year")
        hold(ledger, "a")
        with pytest.raises(BudgetError, match="in 2026"):
            hold(ledger, "b")
        days.append(datetime(2027, 1, 1, tzinfo=UTC))
        hold(ledger, "b")
        with pytest.raises(BudgetError, match="in 2027"):
            hold(ledger, "a")  # it has 2026, and 2027 is another's
        days.append(datetime(2026, 6, 1, tzinfo=UTC))  # a clock that was set back
        with pytest.raises(BudgetError, match="in 2027"):
            hold(ledger, "c")
        assert ledger.spent("patients", "2026") == ledger.spent("patients", "2027")


ROWS = np.linspace(0, 1, 200)[:, None]
OF_ROWS: dict[str, Any] = {
    "X_bounds": (0, 1), "y_bounds": (0, 1), "epsilon": BUDGET, "population": "patients",
}  # fmt: skip


def test_nobody_is_taken_in_a_period_in_which_a_source_holds_nothing(
    url: str, tmp_path: Path
) -> None:
    """Visits, reports and rows that come after the year of their epoch has ended."""
    days = [datetime(2026, 12, 31, tzinfo=UTC)]
    with OrganisationLedger(url, organisation="Ada", clock=lambda: days[-1]) as ledger:
        ledger.add_population("patients", Budget(3.0, 3e-6), period="year")
        place = {"ledger": ledger, "population": "patients"}
        fleet = small_aggregator(
            store=f"sqlite:///{tmp_path}/fleet.db", budget=Budget(1.0), first_epoch=30, **place
        )
        ridge = PrivateKernelRidge(ledger=ledger, **OF_ROWS).partial_fit(ROWS, ROWS[:, 0])
        reports = [one_report(fleet.bundle(), Budget(1.0), user) for user in range(3)]
        with stored(tmp_path, "a", ledger) as policy:
            play(policy, 3)
            fleet.receive_many(reports[:1])
            assert ledger.spent("patients").epsilon == 3.0
            days.append(datetime(2027, 1, 1, tzinfo=UTC))
            assert ledger.spent("patients").epsilon == 0.0
            play(policy, 1)
            fleet.receive_many(reports[1:2])
            ridge.partial_fit(ROWS, ROWS[:, 0])
            assert ledger.spent("patients").epsilon == 3.0  # before any of these epochs has ended
            days.append(datetime(2028, 1, 1, tzinfo=UTC))
            for other in "bcd":
                hold(ledger, other)
            taken = policy.progress.decided
            for late in (
                lambda: play(policy, 1),
                lambda: fleet.receive_many(reports[2:]),
                lambda: ridge.partial_fit(ROWS, ROWS[:, 0]),
            ):
                with pytest.raises(BudgetError, match="in 2028"):
                    late()
            assert policy.progress.decided == taken
        fleet.close()


@pytest.mark.parametrize(
    ("period", "ends"),
    [
        ("year", datetime(2028, 1, 1, tzinfo=UTC)),
        ("month", datetime(2027, 3, 1, tzinfo=UTC)),
        ("day", datetime(2027, 3, 1, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_period_ends_where_the_next_one_begins(period: str | None, ends: datetime | None) -> None:
    people = Population(name="patients", epsilon=1.0, delta=0.0, period=period)
    now = datetime(2027, 2, 28, 23, 59, tzinfo=UTC).timestamp()
    end = people.period_ends(now)
    assert end == (inf if ends is None else ends.timestamp())
    if ends is not None:
        assert people.period_at(end - 1) == people.period_at(now) != people.period_at(end)


def test_a_fit_that_is_refused_has_cost_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noise, or its coordinates, are more than the account takes: told before any row."""
    monkeypatch.setattr(filters, "MOST_COORDINATES", 10)
    with OrganisationLedger(url, organisation="Ada") as ledger:
        ledger.add_population("patients", Budget(3.0, 3e-6), account="gaussian")
        ridge = PrivateKernelRidge(ledger=ledger, **OF_ROWS)
        with pytest.raises(BudgetError, match="does not fit"):
            ridge.fit(ROWS, ROWS[:, 0])
        assert ledger.spent("patients").epsilon == 0.0
        assert kinds(ledger) == ["population"]
    monkeypatch.undo()
    with OrganisationLedger(url) as ledger:
        ridge = PrivateKernelRidge(ledger=ledger, **OF_ROWS)
        with pytest.raises(ValueError, match="inconsistent"):
            ridge.fit(ROWS, ROWS[:-1, 0])
        assert kinds(ledger) == ["population"]
        ridge.fit(ROWS, ROWS[:, 0])
        assert kinds(ledger)[1:3] == ["source", "plan"]


def test_a_ledger_with_a_guard_warns_where_it_is_opened_without(file: Path, tmp_path: Path) -> None:
    guard = str(tmp_path / "guard.json")
    OrganisationLedger(f"sqlite:///{file}", rollback_guard=guard, new_rollback_guard=True).close()
    with pytest.warns(PrivacyLeakWarning, match="opened without it") as caught:
        OrganisationLedger(f"sqlite:///{file}").close()
    assert caught[0].filename == __file__
    OrganisationLedger(f"sqlite:///{file}", rollback_guard=guard).close()


def test_a_ledger_by_its_address_has_the_guard_of_the_environment(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    place, guard = f"sqlite:///{file}", tmp_path / "guard.json"
    OrganisationLedger(place, rollback_guard=str(guard), new_rollback_guard=True).close()
    monkeypatch.setenv("CAPRI_LEDGER_GUARD", str(guard))
    stored(tmp_path, "p", place).close()
    assert not [each for each in recwarn if "opened without it" in str(each.message)]
    with OrganisationLedger(place, read_only=True) as ledger:
        at = ledger.known().at
        assert json.loads(guard.read_text())[ledger.id]["generation"] == at.generation


def test_a_reservation_is_noted_beside_the_file(file: Path) -> None:
    """Or a copy from before it would pass on a machine that goes on."""
    with OrganisationLedger(f"sqlite:///{file}") as ledger:
        hold(ledger, "c")
        noted = json.loads(file.with_name("privacy.db-seen").read_text())
        assert noted[ledger.id]["generation"] == ledger.known().at.generation


def test_what_is_reserved_is_shown_rounded_up(file: Path) -> None:
    charge = Charge.of(Budget(0.70001), gaussian=False, pure=True)
    with OrganisationLedger(f"sqlite:///{file}") as ledger:
        hold(ledger, "c", charge)
        with pytest.raises(BudgetError, match=r"sources hold epsilon 2\.701 of it"):
            hold(ledger, "d")
    assert "(2.701, 2e-06)" in command("ledger", "show", f"sqlite:///{file}")


def test_a_policy_is_counted_from_its_opening_on(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    with stored(tmp_path, "a", ledger) as first:
        assert kinds(ledger)[-1] == "source"  # before anything was planned
        play(first, 60)
        assert [entry["epoch"] for entry in ledger.entries() if entry["kind"] == "plan"][:1] == [1]
        first.close_epoch(early=True)
        released = len(first.ledger.events)
    noted = [entry for entry in ledger.entries() if entry["kind"] == "release"]
    assert released == len(noted) > 0
    for entry in noted:
        assert entry["epsilon"] is None or entry["epsilon"] <= 1.0
    assert ledger.spent("patients").epsilon == 1.0
    with pytest.raises(BudgetError, match="does not fit"):
        stored(tmp_path, "b", ledger, budget=Budget(2.5, 1e-6))


def test_a_policy_under_a_ledger_is_not_opened_without_it(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    place = f"sqlite:///{tmp_path}/a.db"
    stored(tmp_path, "a", ledger).close()
    with pytest.raises(BudgetError, match="under an organisation's ledger"):
        Capri.open(place)
    with OrganisationLedger(f"sqlite:///{tmp_path}/other.db", organisation="Eve") as other:
        other.add_population("patients", Budget(3.0, 3e-6))
        with pytest.raises(StorageError, match="ledger differ"):
            Capri.open(place, ledger=other)
    with Capri.open(place, ledger=ledger) as again:
        play(again, 3)
    assert ledger.spent("patients").epsilon == 1.0


def test_a_ledger_goes_with_what_it_can_count(ledger: OrganisationLedger, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a store"):
        policy(None, ledger=ledger, population="patients")
    with pytest.raises(ConfigurationError, match="promise nothing"):
        stored(tmp_path, "s", ledger, simulation_seed=1)
    with pytest.raises(ConfigurationError, match="go together"):
        stored(tmp_path, "s", None)
    with pytest.raises(ConfigurationError, match="no population 'staff'"):
        stored(tmp_path, "s", ledger, population="staff")
    with pytest.raises(ConfigurationError, match="other terms"):
        ledger.add_population("patients", BUDGET)


def test_a_person_who_came_to_one_policy_has_spent_less_than_the_population(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    settings = {"contributions_per_user": 2, "first_epoch": 20}
    with (
        stored(tmp_path, "a", ledger, **settings) as first,
        stored(tmp_path, "b", ledger, **settings) as second,
    ):
        for number in range(60):
            first.update(first.act([0.2], user=f"u{number}"), 0.5)
        first.close_epoch(early=True)
        known = [first, second]
        assert ledger.spent("patients").epsilon == 2.0
        came = ledger.spent_by("patients", "u0", known).epsilon
        assert 0 < came <= 1.0
        assert ledger.spent_by("patients", "nobody", known).epsilon == 0.0
        assert ledger.spent_by("patients", "u0", [second]).epsilon == 1.0  # the first counts whole


# -- a ledger that is older, cut, edited or of others ----------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "privacy.db"
    with OrganisationLedger(f"sqlite:///{path}", organisation="Ada's Clinic") as ledger:
        ledger.add_population("patients", Budget(3.0, 3e-6))
        hold(ledger, "a")
        hold(ledger, "b")
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE operations SET record = (SELECT record FROM operations WHERE generation = 3) "
         "WHERE generation = 2", "entry 2 of the ledger was changed"),
        ("UPDATE operations SET kind = 'plan' WHERE generation = 2", "entry 2"),
        ("DELETE FROM operations WHERE generation = 2", "gap after entry 1"),
        ("DELETE FROM history WHERE generation = 2", "gap"),
        ("UPDATE history SET digest = '00' WHERE generation = 2", "entry 2"),
        ("UPDATE counter SET generation = 2", "gap|cut"),
        ("UPDATE counter SET generation = 9", "gap|cut"),
    ],
)  # fmt: skip
def test_a_ledger_that_was_changed_is_refused(file: Path, change: str, told: str) -> None:
    with sqlite3.connect(file) as connection:
        assert connection.execute(change).rowcount == 1
    connection.close()
    with pytest.raises(StorageError, match=told):
        OrganisationLedger(f"sqlite:///{file}", read_only=True)


def test_an_older_copy_is_refused_by_who_has_seen_a_newer_one(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(file, copy)
    with OrganisationLedger(f"sqlite:///{file}") as ledger:
        hold(ledger, "c")
    shutil.copy(copy, file)
    with pytest.raises(StorageError, match="older copy"):
        OrganisationLedger(f"sqlite:///{file}")


def test_an_older_copy_is_refused_by_a_policy_that_it_does_not_know(
    file: Path, tmp_path: Path
) -> None:
    """Also on a machine that has seen nothing: the policy's own store tells."""
    with (
        OrganisationLedger(f"sqlite:///{file}") as ledger,
        stored(tmp_path, "p", ledger) as policy,
    ):
        source = policy.ledger.reservation
        play(policy, 5)
    assert source is not None
    with OrganisationLedger(f"sqlite:///{tmp_path}/new.db", organisation="Ada") as older:
        older.add_population("patients", Budget(3.0, 3e-6))
        held = Reservation(older, "patients", source.source, CHARGE, kind="policy")  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="knows nothing of epoch 1"):
            held.require([1])


_OPENED = "import sys, capri; capri.Capri.open(sys.argv[1], ledger=sys.argv[2]).close()"


def test_an_older_copy_of_a_policy_is_refused_by_its_ledger(file: Path, tmp_path: Path) -> None:
    """By a process that has seen nothing, with all of the store's own files put back."""
    place, opened = tmp_path / "p.db", f"sqlite:///{file}"
    with OrganisationLedger(opened) as ledger:
        with stored(tmp_path, "p", ledger, first_epoch=20) as policy:
            play(policy, 10)
        old = {each: each.read_bytes() for each in tmp_path.glob("p.db*")}
        with Capri.open(f"sqlite:///{place}", ledger=ledger) as again:
            play(again, 5)
            again.close_epoch(early=True)
            assert again.ledger.events
        with Capri.open(f"sqlite:///{place}", ledger=ledger) as newest:
            play(newest, 1)
    for each in tmp_path.glob("p.db*"):
        each.unlink()
    for each, content in old.items():
        each.write_bytes(content)
    command = [sys.executable, "-c", _OPENED, f"sqlite:///{place}", opened]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "is an older copy" in refused.stderr
    assert "release of epoch 1" in refused.stderr


def test_a_source_gives_nothing_back(ledger: OrganisationLedger, url: str) -> None:
    """What it held may have been spent."""
    hold(ledger, "a")
    for epsilon, delta in ((0.5, 1e-6), (1.0, 5e-7), (1.0, 0.0)):
        less = Charge.of(Budget(epsilon, delta), gaussian=delta > 0, pure=True)
        with pytest.raises(BudgetError, match=r"holds epsilon 1 .*instead"):
            hold(ledger, "a", less)
    entry = list(ledger.entries())[-1]
    for change in ({"epsilon": 0.5}, {"mu": 0.01}, {"pure": 0.5}, {"pure": None}, {}):
        book = ledger.look().branch()
        with pytest.raises(StorageError, match=r"holds epsilon 1|gives back"):
            book.read("source", entry | {"charge": entry["charge"] | change})
    hold(ledger, "a", Charge.of(Budget(2.0, 1e-6), gaussian=True, pure=True))  # more is asked for
    assert ledger.spent("patients").epsilon == 2.0


def test_what_is_no_population_is_refused(ledger: OrganisationLedger) -> None:
    for name in (5, None, "", " ", "p ", " p", "p\n", 101 * "p"):
        with pytest.raises(ConfigurationError, match="a population needs a name"):
            ledger.add_population(name, BUDGET)  # type: ignore[arg-type]
    for budget in (None, 1.0, {"epsilon": 1.0}):
        with pytest.raises(ConfigurationError, match="budget must be a capri"):
            ledger.add_population("p", budget)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="budget must be a capri"):
            ledger.add_population("p", budget, account="mixed")  # type: ignore[arg-type]
    for period in (["year"], {}, "week", 2026):
        with pytest.raises(ConfigurationError, match="period must be"):
            ledger.add_population("p", BUDGET, period=period)  # type: ignore[arg-type]
    for account in ("basic", "gaussian"):
        with pytest.raises(ConfigurationError, match="order is of account 'mixed'"):
            ledger.add_population("p", BUDGET, account=account, order=9)
    assert kinds(ledger) == ["population"]


def test_a_period_that_nobody_knows_is_refused(url: str) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    with OrganisationLedger(url, organisation="Ada", clock=lambda: now) as ledger:
        ledger.add_population("patients", BUDGET, period="year")
        assert ledger.spent("patients").epsilon == ledger.spent("patients", "2026").epsilon == 0.0
        for when in ("2031", "2026-06", "", 2026):
            with pytest.raises(ConfigurationError, match=r"nothing was reserved.*no period yet"):
                ledger.spent("patients", when)  # type: ignore[arg-type]
        hold(ledger, "a")
        with pytest.raises(ConfigurationError, match=r"in '2031'; it was in '2026'"):
            ledger.spent_by("patients", "u", [], "2031")
        assert ledger.spent("patients", "2026").epsilon == 1.0


def test_another_name_of_the_organisation_is_found(file: Path) -> None:
    """The name is no entry, and every promise says by whom it is."""
    with sqlite3.connect(file) as connection:
        told = connection.execute("SELECT configuration FROM policy").fetchone()[0]
        values, arrays = unpacked(told)
        changed = packed(values | {"organisation": "Eve's Clinic"}, arrays)
        connection.execute("UPDATE policy SET configuration = ?", (changed,))
    connection.close()
    with pytest.raises(StorageError, match='promise by "Ada\'s Clinic"'):
        OrganisationLedger(f"sqlite:///{file}", read_only=True)


def test_a_ledger_is_that_of_its_organisation(file: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ledger of \"Ada's Clinic\", not of 'Eve'"):
        OrganisationLedger(f"sqlite:///{file}", organisation="Eve")
    with pytest.raises(StorageError, match=r"empty|no ledger"):
        OrganisationLedger(f"sqlite:///{tmp_path}/none.db")
    policy(f"sqlite:///{tmp_path}/policy.db").close()
    with pytest.raises(StorageError, match="store of a policy"):
        OrganisationLedger(f"sqlite:///{tmp_path}/policy.db")
    with pytest.raises(StorageError, match="OrganisationLedger"):
        Capri.open(f"sqlite:///{file}")


# -- fits and fleets -------------------------------------------------------------------------------


def test_every_fit_is_counted_and_one_too_many_is_refused(
    ledger: OrganisationLedger, url: str
) -> None:
    rows, settings = ROWS, OF_ROWS
    ridge = PrivateKernelRidge(ledger=ledger, **settings)
    for spent in (1.0, 2.0):  # the same rows again: a further source
        clone(ridge).fit(rows, rows[:, 0])  # as searches do
        assert ledger.spent("patients").epsilon == spent
    partial = PrivateKernelRidge(ledger=url, **settings).partial_fit(rows, rows[:, 0]).release()
    assert ledger.spent("patients").epsilon == 3.0
    plans, releases = (
        [entry for entry in ledger.entries() if entry["kind"] == kind]
        for kind in ("plan", "release")
    )
    assert len(plans) == len(releases) >= 3
    with pytest.raises(BudgetError, match="does not fit"):
        ridge.fit(rows, rows[:, 0])
    kept = pickle.loads(pickle.dumps(partial))  # what it held stays behind
    with (
        pytest.warns(PrivacyLeakWarning, match="of other people"),
        pytest.raises(BudgetError, match="does not fit"),
    ):
        kept.partial_fit(rows, rows[:, 0])
    with pytest.raises(ConfigurationError, match="promise nothing"):
        PrivateKernelRidge(ledger=ledger, **settings | {"epsilon": float("inf")}).fit(rows, rows)


def test_copies_of_a_fit_are_sources_of_their_own(ledger: OrganisationLedger) -> None:
    """Rows that two copies are told would be released twice."""
    fitted = PrivateKernelRidge(ledger=ledger, **OF_ROWS).fit(ROWS, ROWS[:, 0])
    twin = deepcopy(fitted)
    with pytest.warns(PrivacyLeakWarning, match="of other people"):
        twin.partial_fit(ROWS, ROWS[:, 0]).release()
    assert ledger.spent("patients").epsilon == 2.0
    assert kinds(ledger).count("release") == 2


def test_reports_that_nobody_counts_are_refused(ledger: OrganisationLedger) -> None:
    with pytest.raises(ConfigurationError, match="cannot count reports"):
        PrivateKernelRidge(ledger=ledger, **OF_ROWS).report_plan(ROWS.shape[1], reports=100)


def test_a_fleet_is_counted_from_its_first_bundle_on(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    place = f"sqlite:///{tmp_path}/fleet.db"
    settings = {"first_epoch": 30, "horizon": 60, "budget": Budget(1.0)}
    fleet = small_aggregator(store=place, ledger=ledger, population="patients", **settings)
    assert [entry["kind"] for entry in ledger.entries()][1:] == ["source", "plan"]
    while fleet.remaining:
        reports = [one_report(fleet.bundle(), Budget(1.0), user) for user in range(fleet.remaining)]
        fleet.receive_many(reports)
    fleet.close()
    kinds = [entry["kind"] for entry in ledger.entries()][1:]
    assert kinds.count("plan") == kinds.count("release") == 2
    assert ledger.spent("patients").delta == 0.0
    with pytest.raises(BudgetError, match="under an organisation's ledger"):
        LocalCapri.open(place)
    LocalCapri.open(place, ledger=ledger).close()
    assert ledger.spent("patients").epsilon == 1.0


FILE = """
actions = ["red", "blue"]
population = "patients"
{model}
[[context]]
name = "age"
kind = "numeric"
low = 0
high = 1
[budget]
epsilon = 1.0
"""


@pytest.mark.parametrize("model", ["", 'model = "local"'])
def test_a_service_takes_the_ledger_from_the_environment(
    ledger: OrganisationLedger,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(FILE.format(model=model))
    settings = load_settings(file)
    with pytest.raises(ConfigurationError, match=r"\$CAPRI_LEDGER"):
        open_policy(settings, None)
    settings = load_settings(file)
    monkeypatch.setenv("CAPRI_LEDGER", url)
    place = f"sqlite:///{tmp_path}/served.db"
    open_policy(settings, place).close()
    assert ledger.spent("patients").epsilon == 1.0
    open_policy(settings, place).close()  # another process of it
    assert ledger.spent("patients").epsilon == 1.0
    if not model:
        Capri.open(place).close()  # as every command does
        monkeypatch.delenv("CAPRI_LEDGER")
        with pytest.raises(BudgetError, match="CAPRI_LEDGER"):
            Capri.open(place)


def test_a_ledger_without_a_population_is_exported_with_its_digest(
    url: str, tmp_path: Path
) -> None:
    target = tmp_path / "entries.json"
    with OrganisationLedger(url, organisation="Ada") as ledger:
        at = ledger.known().at
    command("ledger", "export", url, str(target))
    told = json.loads(target.read_text())
    assert (told["generation"], told["digest"], told["entries"]) == (0, at.digest, [])


def test_the_commands_promise_show_check_and_export(url: str, tmp_path: Path) -> None:
    target = tmp_path / "entries.json"
    asked = ("--epsilon", "3", "--delta", "1e-5", "--period", "year")
    command("ledger", "promise", url, "patients", *asked, code=2)  # there is no ledger yet
    command("ledger", "promise", url, "patients", *asked, "--organisation", "Ada")
    with OrganisationLedger(url) as ledger:
        hold(ledger, "a" * 32)
    shown = command("ledger", "show", url)
    assert "(3, 1e-05)" in shown
    assert "(1, 1e-06)" in shown
    assert "2 entries, chained" in command("ledger", "check", url)
    command("ledger", "export", url, str(target))
    told = json.loads(target.read_text())
    assert [entry["kind"] for entry in told["entries"]] == ["population", "source"]
    assert told["populations"][0]["reserved"]["epsilon"] == 1.0
    with OrganisationLedger(url) as ledger:
        ledger.repository.database.write(
            lambda unit: unit.run("UPDATE operations SET kind = 'plan' WHERE generation = 2")
        )
    assert "entry 2 of the ledger was changed" in command("ledger", "check", url, code=1)
    for name in ("show", "export"):
        words = (str(target),) if name == "export" else ()
        command("ledger", name, url, *words, code=2)
