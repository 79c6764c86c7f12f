"""What a certificate says of the total over a population: its words, assumptions and ledger."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import capri
from capri.cli import app
from capri.errors import ConfigurationError, StorageError
from capri.privacy.certificate import Certificate
from capri.privacy.certificate.total import stated_total
from capri.privacy.certificate.verify import read_certificate, verified
from capri.store.organisation import OrganisationLedger
from operated_stores import command, forget_what_was_seen
from standing import CLINIC, Standing
from stored_policies import SETTINGS, policy

BUDGET = capri.Budget(1.0, 1e-6)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[OrganisationLedger]:
    with OrganisationLedger(f"sqlite:///{tmp_path}/ledger.db", organisation=CLINIC) as opened:
        opened.add_population("patients", capri.Budget(3.0, 3e-6), period="year")
        yield opened


def certified(ledger: OrganisationLedger, tmp_path: Path, **changes: Any) -> Certificate:
    place = {"ledger": ledger, "population": "patients", "budget": BUDGET}
    with policy(f"sqlite:///{tmp_path}/policy.db", **place | changes) as opened:
        return opened.certificate()


def total_of(told: Certificate) -> dict[str, Any]:
    assert told.in_total is not None
    return told.in_total


def said(**changes: Any) -> dict[str, Any]:
    found = stated_total(Standing(**changes), "one visit", None)  # type: ignore[arg-type]
    assert found is not None
    return found


# -- what is said ---------------------------------------------------------------------------------


def test_the_total_is_printed_with_its_assumptions_and_their_keepers(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    told = certified(ledger, tmp_path)
    total = total_of(told)
    assert len(total["assumptions"]) == len(total["kept_by"]) >= 6
    for form in (told.to_text(), told.to_html().replace("&#x27;", "'")):
        for text in (*total["assumptions"], total["statement"], total["unit"], total["lasts"]):
            assert text in form
    year = f"{datetime.now(UTC):%Y}"
    for word in (f"in {year}", "Another year adds"):
        assert word in total["statement"] + total["lasts"]
    assert "one round of one user" in total["unit"]
    assert "whoever comes back" in total["unit"]
    assumed = " ".join(total["assumptions"])
    for word in ("another name", "under this ledger", "mixed batch", "clock", "rollback guard"):
        assert word in assumed
    assert set(total["kept_by"]) == {"organisation", "operators", "shuffler"}
    for name in ("a.json", "a.html"):
        told.save(tmp_path / name)
        assert read_certificate(tmp_path / name) == told


def test_the_unit_is_that_of_the_source(ledger: OrganisationLedger, tmp_path: Path) -> None:
    told = certified(ledger, tmp_path, contributions_per_user=3)
    assert "up to 3 contributions" in total_of(told)["unit"]


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [
        (0.1, "almost as likely in 99 of 100 cases"),
        (1.0, "at most 2.8 times as likely in 99 of 100 cases"),
        (4.0, "at most 55 times as likely"),
        (20.0, "at most 490,000,000 times as likely"),
    ],
)
def test_words_of_the_total_follow_its_figures(epsilon: float, word: str) -> None:
    """As those of the certificate's own promise do; only (epsilon, delta) is known of a sum."""
    found = said(promised={"epsilon": epsilon, "delta": 1e-6})
    assert word in found["statement"]
    grades = {0.1: "strong", 1.0: "moderate", 4.0: "hardly any", 20.0: "hardly any"}
    assert f"{grades[epsilon]} protection" in found["statement"]
    pure = said(promised={"epsilon": epsilon, "delta": 0.0})["statement"]
    assert "in 99 of 100 cases" not in pure


def test_gaussian_totals_are_said_as_exactly_as_they_are_known() -> None:
    promised = {"epsilon": 4.0, "delta": 1e-5}
    assert "weak protection" in said(promised=promised, account="gaussian")["statement"]
    assert "hardly any protection" in said(promised=promised, account="mixed")["statement"]


def test_periods_add_and_one_for_ever_has_no_clock() -> None:
    for period, name in (("2026", "year"), ("2026-11", "month"), ("2026-11-19", "day")):
        found = said(period=period)
        assert f"Another {name} adds" in found["lasts"]
        assert any("clock" in each for each in found["assumptions"])
    for_ever = said(period=None)
    assert "without an end" in for_ever["lasts"]
    assert not any("clock" in each for each in for_ever["assumptions"])


def test_a_guard_is_told_and_so_is_its_absence(tmp_path: Path) -> None:
    url, guard = f"sqlite:///{tmp_path}/guarded.db", str(tmp_path / "guard.json")
    with OrganisationLedger(url, organisation=CLINIC, rollback_guard=guard) as opened:
        opened.add_population("patients", capri.Budget(3.0, 3e-6))
        told = certified(opened, tmp_path)
    assert total_of(told)["guarded"]
    assert "with a rollback guard" in told.to_text()
    bare = said()
    assert any("There is no rollback guard" in each for each in bare["assumptions"])
    assert not any("There is no rollback guard" in each for each in total_of(told)["assumptions"])


def test_shufflers_are_named_only_where_shuffled_reports_may_be_counted() -> None:
    assert "shuffler" in said()["kept_by"]
    assert "shuffler" not in said(account="gaussian")["kept_by"]


def test_a_total_without_keepers_is_refused(ledger: OrganisationLedger, tmp_path: Path) -> None:
    told = certified(ledger, tmp_path)
    short = replace(told, in_total=total_of(told) | {"kept_by": total_of(told)["kept_by"][:-1]})
    with pytest.raises(StorageError, match="who keeps"):
        verified(short.to_json().encode())


# -- whose it is ----------------------------------------------------------------------------------


def test_a_declaration_of_another_organisation_is_refused(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    place: dict[str, Any] = {"ledger": ledger, "population": "patients"}
    other, same = (capri.Declaration(organisation=name) for name in ("Another Ltd", CLINIC))
    settings = {"X_bounds": (0, 1), "y_bounds": (0, 1), "epsilon": BUDGET, **place}
    X = np.linspace(0, 1, 200)[:, None]
    fleet = {**SETTINGS, **place, "store": f"sqlite:///{tmp_path}/fleet.db"}
    fleet["budget"] = capri.Budget(0.5)
    with (
        policy(f"sqlite:///{tmp_path}/p.db", **place, budget=BUDGET) as opened,
        closing(capri.LocalCapri(**fleet)) as devices,
    ):
        fits = [capri.PrivateKernelRidge(**settings).fit(X, X[:, 0])]
        for each in (opened, devices, *fits):
            with pytest.raises(ConfigurationError, match=r"'Another Ltd'.*ledger.*Ada's Clinic"):
                each.certificate(declaration=other)
            assert each.certificate(declaration=same).in_total is not None
            assert each.certificate().declaration["organisation"] is None


def test_quantiles_say_the_same(ledger: OrganisationLedger) -> None:
    fit = capri.PrivateKernelQuantiles(
        y_bounds=(0, 1), X_bounds=(0, 1), epsilon=BUDGET, ledger=ledger, population="patients"
    ).fit(np.linspace(0, 1, 200)[:, None], np.linspace(0, 1, 200))
    assert "one row" in total_of(fit.certificate())["unit"]
    with pytest.raises(ConfigurationError, match="Another Ltd"):
        fit.certificate(declaration=capri.Declaration(organisation="Another Ltd"))


# -- against the ledger ---------------------------------------------------------------------------


def verify(file: Path, url: str) -> Any:
    return CliRunner().invoke(app, ["certificate", "verify", str(file), "--ledger", url])


def test_the_entry_that_is_named_says_what_is_stated(
    ledger: OrganisationLedger, tmp_path: Path
) -> None:
    url, told = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "told.json"
    certificate = certified(ledger, tmp_path)
    certificate.save(told)
    done = verify(told, url)
    assert done.exit_code == 0, done.stderr
    assert "says what is stated; entries since: 0" in done.output
    ledger.add_population("visitors", BUDGET)
    done = verify(told, url)
    assert done.exit_code == 0, done.stderr
    assert "entries since: 1" in done.output
    # What is changed, with a digest that fits the change.
    stated = total_of(certificate)
    for name, value in {
        "digest": "0" * 64, "population": "visitors", "sources": 2, "account": "mixed",
        "promised": {"epsilon": 2.0, "delta": 3e-6}, "organisation": "Another Ltd",
        "reserved": stated["reserved"] | {"epsilon": 0.5}, "period": "1999",
    }.items():  # fmt: skip
        replace(certificate, in_total=stated | {name: value}).save(told)
        done = verify(told, url)
        assert done.exit_code == 1, name
        assert "differ" in done.stderr


def test_another_ledger_an_older_one_and_none_are_refused(
    ledger: OrganisationLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told.json"
    command("backup", f"sqlite:///{tmp_path}/ledger.db", str(tmp_path / "older.db"))
    certified(ledger, tmp_path).save(told)
    forget_what_was_seen(monkeypatch)
    assert "1 entries against 2" in verify(told, f"sqlite:///{tmp_path}/older.db").stderr
    OrganisationLedger(f"sqlite:///{tmp_path}/other.db", organisation=CLINIC).close()
    for place, why in (("other", "is of the ledger"), ("none", "no"), ("policy", "no ledger")):
        done = verify(told, f"sqlite:///{tmp_path}/{place}.db")
        assert done.exit_code == 1, place
        assert why in done.stderr
    with policy(f"sqlite:///{tmp_path}/alone.db") as alone:
        alone.certificate().save(told)
    assert "states no total" in verify(told, f"sqlite:///{tmp_path}/other.db").stderr
