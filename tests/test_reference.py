"""The site holds every public name, command, option and endpoint, and every page has its place."""

import re
from pathlib import Path

import pytest

import capri
import write_reference

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return write_reference.pages()


def test_every_public_name_is_described(pages: dict[str, str]) -> None:
    for name in capri.__all__:
        assert re.search(rf"capri\.{name}\b", pages["python.md"]), name


def test_every_command_option_and_endpoint_is_described(pages: dict[str, str]) -> None:
    from capri.service.app import ROUTES

    for command in ("demo", "serve", "certificate verify", "store"):
        assert f"`capri {command}" in pages["capri.md"]
    assert "`--epsilon`" in pages["capri.md"]
    assert "`capri-lab arena`" in pages["capri-lab.md"]
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in pages["endpoints.md"]


def test_every_key_of_a_file_is_described(pages: dict[str, str]) -> None:
    """What a reader of the file accepts, as its refusal of an unknown key lists it."""
    from dataclasses import fields

    from capri.learners.options import PracticalOptions
    from capri.service.auth import ServiceLimits
    from capri.service.tables import KEYS
    from capri_lab.experiments import study_from_dict

    found = set(re.findall(r"^\| `([\w-]+)` \|", pages["files.md"], flags=re.MULTILINE))
    for kind in (ServiceLimits, PracticalOptions):
        assert {each.name for each in fields(kind)} <= found
    assert {key for keys in KEYS.values() for key in keys} <= found
    tables = {"environments": [{"name": "branin"}], "policies": [{"name": "capri"}]}
    for place in ("", "policies"):
        table = {"name": "a", "rounds": 9, "epsilons": 1.0, **tables}
        if place:
            table["policies"] = [{"name": "capri", "nonsense": 1}]
        else:
            table["nonsense"] = 1
        with pytest.raises(capri.ConfigurationError) as refusal:
            study_from_dict(table)
        allowed = str(refusal.value).partition("allowed: ")[2].split(", ")
        assert len(allowed) > 5
        assert set(allowed) <= found


def test_every_key_of_a_column_is_described() -> None:
    """The tables of a policy file are checked by kind of column: all of them together."""
    from capri.files import Given, Source
    from capri.service.tables import KEYS, read_column

    seen = set()
    for kind in ("numeric", "categorical", "boolean"):
        given = Given({"name": "a", "kind": kind, "nonsense": 1}, Source("a", None))
        with pytest.raises(capri.ConfigurationError) as refusal:
            read_column(given)
        seen |= set(str(refusal.value).partition("allowed: ")[2].split(", "))
    assert seen == set(KEYS["context"])


def test_every_metric_is_described(pages: dict[str, str]) -> None:
    from capri.service.telemetry import LIVE, PUBLIC

    for name in (*PUBLIC, *LIVE):
        assert re.search(rf"^\| `capri_{name}(_total)?` \|", pages["metrics.md"], re.MULTILINE)


def test_every_rival_and_problem_is_described(pages: dict[str, str]) -> None:
    from capri_lab.datasets.real import PROBLEMS
    from capri_lab.rivals import RIVAL_NAMES

    named = set(re.findall(r"^\| `([\w-]+)`", pages["laboratory.md"], re.MULTILINE))
    assert {*RIVAL_NAMES, *PROBLEMS} <= named
    line = next(each for each in pages["laboratory.md"].splitlines() if "`zhou-tan`" in each)
    assert "| local | pure | one round | rewards only |" in line


def test_what_says_nothing_of_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capri.Budget, "__doc__", " ")
    with pytest.raises(SystemExit, match="Budget says nothing"):
        write_reference.names()
    monkeypatch.undo()
    monkeypatch.setitem(capri._HOMES, "Stray", "capri.nowhere")
    with pytest.raises(SystemExit, match="no topic of the reference holds Stray"):
        write_reference.names()


def test_every_page_has_one_place_in_the_site() -> None:
    trees = {"": DOCS / "index.md", "proofs/": DOCS / "proofs" / "index.md"}
    listed = [
        folder + name
        for folder, page in trees.items()
        for name in re.findall(r"^[\w/-]+$", page.read_text(), flags=re.MULTILINE)
    ]
    found = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    found |= {f"reference/{Path(page).stem}" for page in write_reference.pages()}
    assert sorted(listed) == sorted(found)
