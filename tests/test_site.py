"""The site of `make docs`: whole, searchable offline and readable on a phone."""

import json
import re
import subprocess
import sys
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


def test_search_finds_every_public_name(site: Path) -> None:
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    found = {entry[-1] for entries in index["objects"].values() for entry in entries}
    found |= set(index["terms"]) | set(index["titleterms"])
    names = set(capri.__all__)
    assert len(names) > 50
    assert {name for name in names if name not in found and name.lower() not in found} == set()


def test_pages_fit_a_phone_and_ask_nobody(site: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: see tools/install_browser.sh")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    wide = {}
    with Browser(program) as browser:
        browser.look(width=390, height=844, phone=True)
        for page in pages:
            browser.open(page)
            width = browser.run("document.documentElement.scrollWidth")
            if width > 390:
                wide[str(page.relative_to(site))] = width
        strangers = [each for each in browser.requests if not re.match(r"file:|data:", each)]
    assert wide == {}
    assert strangers == []
