"""Entries of the public registry: every field is one of its own, and none is made up."""

from pathlib import Path

import pytest
from devices import small_aggregator
from typer.testing import CliRunner

import capri
from builders import play_epoch, small_policy
from capri.cli import app
from capri.errors import ConfigurationError, StorageError
from capri.privacy.certificate.registry import registry_entry, registry_schema
from capri.privacy.certificate.verify import check_schema
from stored_policies import policy

DECLARED = capri.Declaration(organisation="Ada's Clinic", purpose="reminders", date="2026-11-16")
PLACE = {"name": "Reminders", "region": "Denmark"}


def test_an_entry_says_what_the_certificate_says() -> None:
    run = small_policy(simulation_seed=None)
    play_epoch(run)
    told = run.certificate(declaration=DECLARED)
    entry = registry_entry(told, **PLACE, sector="Healthcare")
    assert entry["url_slug"] == "reminders-ada-s-clinic-2026"
    deployment = entry["deployment"]
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-5}
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["deployment_model"]["model_name"] == "Central"
    assert told.digest in deployment["administrative"]["notes"]
    assert "is not counted here" in deployment["accounting"]["composition"]
    # Every required and optional field of the registry that a run can know is there.
    known = registry_schema()["properties"]["deployment"]["properties"]
    assert set(deployment) == set(known)


def test_devices_and_totals_are_told() -> None:
    told = small_aggregator().certificate(declaration=DECLARED)
    entry = registry_entry(told, **PLACE)["deployment"]
    assert entry["deployment_model"]["model_name"] == "Local"
    assert entry["dp_variant"]["variant_name"] == "Pure DP"
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 4.0}


def test_the_total_of_a_population_is_in_the_entry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with capri.OrganisationLedger(url, organisation="Ada's Clinic") as ledger:
        ledger.add_population("patients", capri.Budget(3.0, 1e-5), period="year")
        place = {"ledger": ledger, "population": "patients", "budget": capri.Budget(1.0, 1e-6)}
        with policy(f"sqlite:///{tmp_path}/p.db", **place) as opened:
            entry = registry_entry(opened.certificate(declaration=DECLARED), **PLACE)
    said = entry["deployment"]["accounting"]["composition"]
    assert "'patients': (3, 1e-05)-differential privacy in 20" in said
    assert "(1, 1e-06)-differential privacy is reserved by 1 of its policies" in said


def test_what_the_registry_does_not_know_is_refused() -> None:
    told = small_policy(simulation_seed=None).certificate(declaration=DECLARED)
    with pytest.raises(StorageError, match="data_product_sector"):
        registry_entry(told, **PLACE, sector="Astrology")
    entry = registry_entry(told, **PLACE)
    for broken in (entry | {"tier": 4}, entry | {"stray": 1}, {"tier": 3}):
        with pytest.raises(StorageError):
            check_schema(broken, registry_schema(), "entry")
    with pytest.raises(ConfigurationError, match="organisation, purpose, date"):
        registry_entry(small_policy(simulation_seed=None).certificate(), **PLACE)


def test_the_command_writes_an_entry(tmp_path: Path) -> None:
    file, target = tmp_path / "c.json", tmp_path / "entry.json"
    small_policy(simulation_seed=None).certificate(declaration=DECLARED).save(file)
    asked = ["certificate", "registry", str(file), str(target), "--name", "R", "--region", "EU"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert '"Draft"' in target.read_text()
