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


def test_what_says_nothing_of_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capri.Budget, "__doc__", " ")
    with pytest.raises(SystemExit, match="Budget says nothing"):
        write_reference.names()
    monkeypatch.undo()
    monkeypatch.setitem(capri._HOMES, "Stray", "capri.nowhere")
    with pytest.raises(SystemExit, match="no topic of the reference holds Stray"):
        write_reference.names()


def test_every_page_has_one_place_in_the_site() -> None:
    listed = re.findall(r"^[\w/-]+$", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    found = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    found |= {f"reference/{Path(page).stem}" for page in write_reference.pages()}
    assert sorted(listed) == sorted(found)
