"""The site of `make docs`: whole, searchable offline and readable on a phone."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import capri
from browser import Browser, find_browser

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow  # half a minute of a processor


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with warnings as errors: a dead link is one."""
    built = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-E", "-q", "-b", "html", ROOT / "docs", built]
    subprocess.run(build, check=True, cwd=ROOT)
    return built


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: see tools/install_browser.sh")
    with Browser(program) as opened:
        yield opened


def test_search_finds_every_public_name(site: Path, browser: Browser) -> None:
    """The search of the page itself, without a server: each name leads to the reference."""
    browser.open(site / "search.html")
    ask = (
        "Search._performSearch(...Search._parseQuery(name)).map(([page, , place]) => page + place)"
    )
    names = [*capri.__all__, *(f"kernels.{name}" for name in ("Matern", "RBF"))]
    assert len(names) > 50
    found = browser.run(f"{json.dumps(names)}.map(name => {ask})")
    led = [any(each.startswith("reference/python") for each in places) for places in found]
    assert [name for name, there in zip(names, led, strict=True) if not there] == []
    assert browser.run(f"['NoSuchNameAnywhere'].map(name => {ask})") == [[]]


def test_pages_fit_a_phone_and_ask_nobody(site: Path, browser: Browser) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    wide = {}
    browser.look(width=390, height=844, phone=True)
    for page in pages:
        browser.open(page)
        width = browser.run("document.documentElement.scrollWidth")
        if width > 390:
            wide[str(page.relative_to(site))] = width
    strangers = [each for each in browser.requests if not re.match(r"file:|data:", each)]
    assert wide == {}
    assert strangers == []
