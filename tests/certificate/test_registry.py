"""Entries of the public registry: every field is one of its own, and none is made up."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from devices import small_aggregator
from typer.testing import CliRunner

import capri
from builders import play_epoch, small_policy
from capri.cli import app
from capri.errors import ConfigurationError, StorageError
from capri.privacy.certificate.registry import (
    registry_entry,
    registry_schema,
    registry_yaml,
)
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


# -- the file that is handed in -------------------------------------------------------------------


def paths_of(node: Any, path: str = "") -> list[str]:
    """Of every leaf, in the order of a file."""
    if not isinstance(node, dict):
        return [path]
    return [each for name, below in node.items() for each in paths_of(below, f"{path}/{name}")]


def places_of(schema: dict[str, Any], path: str = "") -> list[str]:
    """The same of a schema."""
    below = schema.get("properties", {})
    found = [each for name in below for each in places_of(below[name], f"{path}/{name}")]
    return [path, *found]


# The registry finds the slug by a search for "^url_slug: " at the start of the file, and compares
# what follows with a slug of its own: letters of any script stay, runs of all else are one dash.
SLUGS = {
    ("Reminders", "Ada's Clinic"): "reminders-ada-s-clinic-2026",
    ("Rappels d'été (n° 2)", "Søn & Zoë A/S"): "rappels-d-été-n-2--søn-zoë-a-s-2026",
    ("Data_Maker  3", "Åbo"): "data-maker-3-åbo-2026",
    ("(beta)", "東京病院"): "-beta--東京病院-2026",
}


@pytest.mark.parametrize("names", SLUGS)
def test_a_slug_is_the_one_that_the_registry_makes(names: tuple[str, str]) -> None:
    name, organisation = names
    declared = capri.Declaration(organisation=organisation, purpose="x", date="2026-11-16")
    told = small_policy(simulation_seed=None).certificate(declaration=declared)
    text = registry_yaml(registry_entry(told, name=name, region="EU"))
    found = re.search(r"^url_slug: (.*)", text)
    assert found is not None
    assert found[1] == SLUGS[names]
    assert yaml.safe_load(text)["url_slug"] == found[1]


def test_the_file_says_what_the_entry_says() -> None:
    """In the registry's own order, with numbers that YAML reads as numbers."""
    run = small_policy(simulation_seed=None, budget=capri.Budget(1.0, 1e-6))
    play_epoch(run)
    odd = 'Tab\there, "quotes", a colon: # no comment, \\x, \x7f, \U0001f600 and\u2028lines'
    declared = capri.Declaration(organisation="A: B", purpose="# none", date="2026-11-16")
    told = replace(run.certificate(declaration=declared), statement=odd)
    entry = registry_entry(told, **PLACE, sector="Healthcare")
    found = yaml.safe_load(registry_yaml(entry))
    assert found == entry
    check_schema(found, registry_schema(), "entry")
    assert found["deployment"]["privacy_loss"]["privacy_parameters"]["delta"] == 1e-6
    assert found["deployment"]["basic"]["description"] == odd
    order = [places_of(registry_schema()).index(path) for path in paths_of(found)]
    assert order == sorted(order)


def test_the_command_writes_a_file_that_can_be_handed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declared = capri.Declaration(organisation="Søn A/S", purpose="x", date="2026-11-16")
    small_policy(simulation_seed=None).certificate(declaration=declared).save("c.json")
    asked = ["certificate", "registry", "c.json", "--name", "R é", "--region", "EU"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    (written,) = tmp_path.glob("*.yaml")
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", written.name)
    assert written.name == "r_e_s_n_a_s_2026.yaml"
    assert written.name in done.output
    text = written.read_text(encoding="utf-8")
    assert text.startswith("url_slug: r-é-søn-a-s-2026\n")
    check_schema(yaml.safe_load(text), registry_schema(), "entry")
    asked.insert(3, "reminders.yaml")
    assert CliRunner().invoke(app, asked).exit_code == 0
    for name in ("entry.json", "Reminders.yaml", "my-entry.yaml"):
        asked[3] = name
        done = CliRunner().invoke(app, asked)
        assert done.exit_code != 0
        assert "lower-case letters" in str(done.exception or done.output) + done.output
        assert not (tmp_path / name).exists()


def test_names_are_lines() -> None:
    told = small_policy(simulation_seed=None).certificate(declaration=DECLARED)
    for wrong in ({"name": ""}, {"region": "a\x00b"}, {"name": "x" * 301}):
        with pytest.raises(ConfigurationError, match="printable characters"):
            registry_entry(told, **PLACE | wrong)
