"""The page in a real browser: nothing cut on a phone, two sheets of paper. Skipped without one."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capri
from browser import Browser, find_browser
from builders import small_policy
from capri.privacy.certificate import Certificate
from capri.privacy.certificate.total import stated_total
from standing import Standing

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

LONG = capri.Declaration(
    organisation="Gesellschaft für angewandte Arzneimittelforschung und Gesundheitsberatung mbH",
    contact="datenschutz-beauftragte@" + "sehr-lange-unterdomain." * 6 + "example",
    purpose="Choosing which of several reminders a patient receives before an appointment, so that "
    "fewer appointments are missed; no diagnosis or treatment is chosen.",
    date="2026-11-16",
)


def certificate(releases: int, standing: Any = None, **changes: Any) -> Certificate:
    """A real one, with as many releases as are wanted, all of them told."""
    told = small_policy(simulation_seed=None, **changes).certificate(declaration=LONG)
    row = {
        "epoch": 1, "decisions": 1_048_576, "mechanism": "gaussian", "norm": "l2",
        "coordinates": 152, "sensitivity": 0.64394512, "noise": 2.40231944,
        "calibration": "analytic", "epsilon": 0.99999999,
    }  # fmt: skip
    rows = tuple(row | {"epoch": number + 1, "noise": 2.4 + number} for number in range(releases))
    plans = [f"{number:064x}" for number in range(releases)]
    total = stated_total(standing, told.privacy_unit, None)
    digests = told.digests | {"plans": plans}
    return replace(told, releases=rows, digests=digests, in_total=total)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as opened:
        yield opened


CASES: dict[str, dict[str, Any]] = {
    "nothing yet": {"releases": 0},
    "twelve": {"releases": 12},
    "many unlike": {"releases": 60},
    "users": {"releases": 12, "contributions_per_user": 3},
    "local": {"releases": 12, "model": "local"},
    "in total": {"releases": 12, "standing": Standing(organisation=LONG.organisation)},
    "users in total": {"releases": 12, "contributions_per_user": 3, "standing": Standing()},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_cut_and_nothing_scrolls_sideways(
    browser: Browser, case: str, width: int, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    certificate(**CASES[case]).save(path)
    browser.look(width=width, height=844, phone=width < 600)
    browser.open(path)
    assert browser.run("document.documentElement.clientWidth") == width
    assert browser.run("document.documentElement.scrollWidth") == width
    outside = browser.run(
        "[...document.body.querySelectorAll('*')].filter(e => e.tagName !== 'SCRIPT' && ("
        "e.getBoundingClientRect().right > innerWidth + .5 || e.getBoundingClientRect().left < 0 ||"
        "e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline'))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    hidden = browser.run(
        "[...document.querySelectorAll('*')].filter(e => "
        "/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)).length"
    )
    assert hidden == 0
    small = browser.run(
        "Math.min(...[...document.querySelectorAll('main *')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert small >= 12
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


@pytest.mark.parametrize("case", CASES)
def test_prints_on_two_sheets_of_a4_and_a_third_for_a_total(
    browser: Browser, case: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    certificate(**CASES[case]).save(path)
    browser.open(path)
    answer = browser.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
    pdf = base64.b64decode(answer["data"])
    sheets = re.findall(rb"/Type\s*/Page\b(?!s)", pdf)
    assert 1 <= len(sheets) <= (3 if "standing" in CASES[case] else 2)
    (width, height) = map(float, re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)[0])
    assert (width, height) == pytest.approx((595, 842), abs=1)


def test_many_releases_fold_and_none_is_lost() -> None:
    """Alike in what the promise depends on: one row. Unlike: the range of each column."""
    told = certificate(40)
    alike = replace(
        told,
        releases=tuple(
            row | {"sensitivity": 1.0 + n, "noise": 4.0 * (1.0 + n)}
            for n, row in enumerate(told.releases)
        ),
    )
    for each in (told, alike):
        page = each.to_html()
        table = page.partition('<table class="releases">')[2].partition("</table>")[0]
        assert table.count("<tr>") == 2
        assert ">1 to 40<" in table
        assert "lists them" in page
        assert each.to_text().count("| analytic |") == 40
        assert page.partition("<script")[2].count('"calibration":"analytic"') == 40
    halves = replace(
        alike,
        releases=alike.releases[:20] + tuple(r | {"epsilon": 0.5} for r in alike.releases[20:]),
    )
    assert ">21 to 40<" in halves.to_html()
    laplace = {"mechanism": "laplace", "norm": "l1"}
    kinds = replace(
        alike, releases=alike.releases[:20] + tuple(r | laplace for r in alike.releases[20:])
    )
    assert ">21 to 40<" in kinds.to_html()
