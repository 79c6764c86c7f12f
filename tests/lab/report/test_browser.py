"""The page in a real browser: drawn, toggled, read by keyboard, in the dark and on a phone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, find_browser
from capri_lab.experiments import Here, run_study, study_from_text
from capri_lab.report import read_report

EXAMPLE = Path(__file__).parents[3] / "docs" / "example-report" / "report.html"
PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no browser: run tools/install_browser.sh, or name one in CAPRI_BROWSER",
)


@pytest.fixture(scope="module")
def path(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_bytes(read_report(results).html().encode())
    return page


@pytest.fixture(scope="module")
def running(path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as browser:
        yield browser


@pytest.fixture
def browser(running: Browser, path: Path) -> Iterator[Browser]:
    """The page as it is when opened, with no complaint before or after."""
    running.errors.clear()
    running.requests.clear()
    running.look(width=1280, height=900)
    running.open(path)
    yield running
    assert running.errors == []
    assert running.requests == [path.resolve().as_uri()]


def lines(browser: Browser, section: str = "regret") -> list[str]:
    """The names of the lines drawn in a section."""
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('#{section} .series')].map(g => g.dataset.name)"
    )
    return found


BUTTON = "document.querySelector('aside [data-player=\"0\"]')"


def test_everything_is_drawn(browser: Browser) -> None:
    sections = browser.run("[...document.querySelectorAll('main section')].map(s => s.id)")
    assert sections == [
        "regret", "epsilon", "horizon", "final", "epochs", "maps", "cost", "promises", "failures",
        "study",
    ]  # fmt: skip
    # One chart per trust model, uniform play in each, and CAPRI's own run without noise beside it.
    titles = browser.run("[...document.querySelectorAll('#regret h3')].map(h => h.textContent)")
    assert [title.split(":")[0] for title in titles] == [
        "Joint privacy", "Local privacy", "No privacynothing is promised",
    ]  # fmt: skip
    names = lines(browser)
    assert names.count("uniform") == 3
    assert {"capri-joint", "batched-linear", "adap-ucb", "linucb"} <= set(names)
    # Lines are where the numbers are: mean regret grows from left to right.
    heights = browser.run(
        "[...document.querySelectorAll('#regret .line')].map(p => p.getBBox().height)"
    )
    assert min(heights) > 5
    assert browser.run("document.querySelectorAll('#regret .band').length") > 3


def test_the_page_says_that_nobody_was_protected(browser: Browser) -> None:
    assert "seeded simulations nobody was protected" in browser.run(
        "document.querySelector('header').textContent"
    )
    summaries = browser.run(
        "[...document.querySelectorAll('#promises summary')].map(s => s.textContent)"
    )
    assert summaries
    assert all(each.startswith("What a private run of ") for each in summaries)
    assert "nobody was protected" in browser.run(
        "document.querySelector('#promises details').textContent"
    )
    assert browser.run("document.getElementById('tables')") is None
    assert "about a person" not in browser.run("document.querySelector('footer').textContent")


def test_rows_of_a_table_raise_an_alarm(running: Browser, tmp_path: Path) -> None:
    text = 'name = "rows"\nrounds = 20\nepsilons = 1.0\n[[environments]]\nname = "wine"\n'
    text += '[[policies]]\nname = "capri"\n[[policies]]\nname = "uniform"\n'
    run_study(study_from_text(text), tmp_path, backend=Here())
    page = tmp_path / "report.html"
    page.write_bytes(read_report(tmp_path / "rows").html().encode())
    running.errors.clear()
    running.open(page)
    for place in ("#tables", "footer"):
        said = running.run(f"document.querySelector('{place}').textContent")
        assert "without privacy: do not publish if they are private" in said
    assert running.run("document.querySelectorAll('#promises details').length") == 0
    assert running.errors == []


def test_promises_have_dashes_of_their_own(browser: Browser) -> None:
    dashes: dict[str, str] = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#regret .series')].map(g =>"
        " [g.dataset.name, g.querySelector('.line').getAttribute('stroke-dasharray')]))"
    )
    assert dashes["capri-joint"] == dashes["batched-linear"] == ""
    assert len({dashes[name] for name in ("capri-joint", "adap-ucb", "linucb", "uniform")}) == 4


def test_a_policy_is_switched_off_and_on_by_keyboard(browser: Browser) -> None:
    assert "capri-joint" in lines(browser)
    assert browser.run(f"{BUTTON}.getAttribute('aria-pressed')") == "true"
    browser.run(f"{BUTTON}.focus()")
    browser.key(" ", 32, " ")
    assert browser.run(f"{BUTTON}.getAttribute('aria-pressed')") == "false"
    assert "capri-joint" not in lines(browser)
    assert "capri-joint" not in lines(browser, "epsilon")
    assert "batched-linear" in lines(browser)
    joint = "document.querySelector('#final tbody').textContent"
    assert "capri-joint" not in browser.run(joint)
    assert browser.run(f"document.activeElement === {BUTTON}")
    browser.key("Enter", 13, "\r")
    assert "capri-joint" in lines(browser)
    assert "capri-joint" in browser.run(joint)


def test_values_are_read_out_by_pointer_and_keyboard(browser: Browser) -> None:
    box = browser.run(
        "(() => { const b = document.querySelector('#regret .chart').getBoundingClientRect();"
        " return [b.left, b.top, b.width, b.height]; })()"
    )
    browser.move(box[0] + 0.45 * box[2], box[1] + 0.5 * box[3])
    readout = "document.querySelector('#regret .readout')"
    assert browser.run(f"!{readout}.hidden")
    assert "round" in browser.run(f"{readout}.textContent")
    assert browser.run("document.querySelectorAll('#regret .faint').length") > 0
    browser.move(5, 5)
    assert browser.run(f"{readout}.hidden")
    browser.run("document.querySelector('#regret .chart').focus()")
    browser.key("End", 35)
    told = browser.run(f"{readout}.textContent")
    assert "round 120" in told
    assert "uniform" in told
    browser.key("ArrowLeft", 37)
    assert "round 120" not in browser.run(f"{readout}.textContent")
    browser.key("Escape", 27)
    assert browser.run(f"{readout}.hidden")


def choose(browser: Browser, label: str, value: str) -> None:
    browser.run(
        "(() => { const s = [...document.querySelectorAll('aside label')]"
        f".find(l => l.textContent.startsWith({label!r})).querySelector('select');"
        f" s.selectedIndex = [...s.options].findIndex(o => o.textContent.startsWith({value!r}));"
        " s.dispatchEvent(new Event('change')); })()"
    )
    browser.settle()


def test_choices_change_what_is_shown(browser: Browser, results: Path) -> None:
    summary = read_report(results).summaries[0]

    def cell() -> str:
        text: str = browser.run(
            "[...document.querySelectorAll('#final tbody tr')]"
            ".find(r => r.querySelector('th').textContent === 'capri-joint').cells[2].textContent"
        )
        return text.split(" ")[0]

    def wanted(environment: str, rounds: int, epsilon: float) -> str:
        one = next(
            each
            for each in summary.series
            if (each.environment, each.rounds, each.epsilon, each.player)
            == (environment, rounds, epsilon, 0)
        )
        return f"{float(f'{one.regret.mean:.3g}'):g}"

    assert cell() == wanted("branin", 120, 8.0)
    choose(browser, "Epsilon", "2")
    assert cell() == wanted("branin", 120, 2.0)
    choose(browser, "Rounds", "60")
    assert cell() == wanted("branin", 60, 2.0)
    other = next(one.environment for one in summary.series if one.environment != "branin")
    choose(browser, "Problem", other[:10])
    assert cell() == wanted(other, 60, 2.0)
    # Four dimensions cannot be mapped: the section is left out.
    assert browser.run("document.querySelector('#maps')") is None


def test_one_chart_and_log_axes(browser: Browser) -> None:
    assert browser.run("document.querySelectorAll('#regret .chart').length") == 3
    browser.run("document.getElementById('overlay').click()")
    browser.run("document.getElementById('log').click()")
    browser.settle()
    assert browser.run("document.querySelectorAll('#regret .chart').length") == 1
    assert "capri-joint, no privacy" in lines(browser)
    assert "unlike promises" in browser.run("document.querySelector('#regret h3').textContent")
    ticks = browser.run("[...document.querySelectorAll('#regret .tick')].map(t => t.textContent)")
    assert {"1", "10", "100"} <= set(ticks)


def texts(browser: Browser, chosen: str) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelectorAll({chosen!r})].map(e => e.textContent)"
    )
    return found


def test_what_was_measured_has_a_tick(browser: Browser) -> None:
    for section, wanted in (("epsilon", ["2", "8"]), ("horizon", ["60", "120"])):
        across = f"#{section} .chart .tick[text-anchor=middle]"
        charts = len(texts(browser, f"#{section} .chart"))
        assert texts(browser, across) == wanted * charts


def test_names_are_written_out(browser: Browser) -> None:
    """Beside the lines on a wide page, below them on a phone; never cut, never on each other."""
    names = set(lines(browser, "epochs"))
    assert any(len(name) > 30 for name in names)
    assert set(texts(browser, "#epochs .name")) == names
    outside = (
        "[...document.querySelectorAll('.chart .name')].filter(e => e.getBBox().x +"
        " e.getBBox().width > e.ownerSVGElement.viewBox.baseVal.width + 1).length"
    )
    assert browser.run(outside) == 0
    overlaps = (
        "[...document.querySelectorAll('.chart')].flatMap(c => { const boxes ="
        " [...c.querySelectorAll('.name')].map(e => e.getBBox()).sort((a, b) => a.y - b.y);"
        " return boxes.slice(1).map((b, i) => boxes[i].y + boxes[i].height - b.y); })"
    )
    assert max(browser.run(overlaps)) < 3  # of 13 pixels: boxes leave room for accents
    browser.look(width=390, height=844, phone=True)
    browser.settle()
    assert texts(browser, "#epochs .name") == []
    assert set(texts(browser, "#epochs .key span")) == names


def test_comparisons_follow_the_reference(browser: Browser) -> None:
    rows = (
        "[...document.querySelectorAll('#final tbody:first-of-type tr:not(.group)')]"
        ".map(r => [r.querySelector('th').textContent, r.cells[5].textContent])"
    )
    before = dict(browser.run(rows))
    assert before["capri-joint"] == "reference"
    browser.run(
        "(() => { const s = document.querySelector('#final select');"
        " s.selectedIndex = [...s.options].findIndex(o => o.textContent === 'batched-linear');"
        " s.dispatchEvent(new Event('change')); })()"
    )
    after = dict(browser.run(rows))
    assert after["batched-linear"] == "reference"
    sign = {"+": "\u2212", "\u2212": "+"}
    there, back = before["batched-linear"].split(" (")[0], after["capri-joint"].split(" (")[0]
    assert (there[0], there[1:]) == (sign[back[0]], back[1:])
    assert browser.run("document.activeElement.tagName") == "SELECT"


def test_studies_on_one_page_are_chosen(browser: Browser, results: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(results, tmp_path / "z"))
    text = (other / "study.toml").read_text()
    for old, new in (('"looks"', '"z"'), ("seeds = 3", "seeds = 1"), ("at </title>", "twice")):
        text = text.replace(old, new)
    (other / "study.toml").write_text(text)
    shutil.copytree(results, tmp_path / "looks")
    both = tmp_path / "both.html"
    both.write_bytes(read_report(tmp_path).html().encode())
    browser.open(both)
    browser.requests.pop()
    assert "at </title>" in browser.run("document.querySelector('h1').textContent")
    choose(browser, "Study", "z")
    assert browser.run("document.querySelector('h1').textContent") == "A study to look twice"
    # One seed: no band, no interval, and the page says so.
    assert browser.run("document.querySelectorAll('.band').length") == 0
    assert "no band and no test" in browser.run("document.querySelector('.facts').textContent")
    choose(browser, "Study", "looks")
    assert browser.run("document.querySelectorAll('.band').length") > 0


def test_a_study_without_results_says_so(browser: Browser, results: Path, tmp_path: Path) -> None:
    empty = Path(shutil.copytree(results, tmp_path / "looks"))
    (empty / "records.jsonl").write_text("")
    page = tmp_path / "empty.html"
    page.write_bytes(read_report(empty).html().encode())
    browser.open(page)
    browser.requests.pop()
    assert "No cell of this study" in browser.run("document.querySelector('header').textContent")
    assert "132 not run yet" in browser.run("document.querySelector('.facts').textContent")


def test_hostile_names_are_text(browser: Browser) -> None:
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.querySelector('h1').textContent") == "A study to look at </title>"
    assert "<img src=x" in browser.run("document.querySelector('#failures').textContent")
    assert "alert(2)" in browser.run("document.querySelector('#study pre').textContent")


def test_tables_have_headers_and_controls_have_names(browser: Browser) -> None:
    assert browser.run(
        "[...document.querySelectorAll('table')].every(t => t.caption &&"
        " [...t.querySelectorAll('th')].every(h => h.scope))"
    )
    unnamed: list[Any] = browser.run(
        "[...document.querySelectorAll('button, select, canvas, svg[tabindex]')]"
        ".filter(e => !(e.textContent.trim() || e.ariaLabel)).map(e => e.outerHTML)"
    )
    assert unnamed == []


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)`` (WCAG 2)."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Browser, dark: bool) -> None:
    """WCAG AA: a contrast of 4.5 for every kind of text."""
    browser.look(width=1280, height=900, dark=dark)
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.05) == dark
    for kind, name in (
        ("body", "color"), (".note", "color"), (".alarm", "color"), ("aside small", "color"),
        (".chart .tick", "fill"), (".chart .name", "fill"), (".chart .name.quiet", "fill"),
    ):  # fmt: skip
        text = browser.run(f"getComputedStyle(document.querySelector({kind!r})).{name}")
        bright, dim = sorted((luminance(text), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, kind


def test_maps_are_painted_in_the_theme(browser: Browser) -> None:
    painted = "document.querySelector('#maps canvas').toDataURL()"
    before = browser.run(painted)
    browser.look(width=1280, height=900, dark=True)
    assert browser.run(painted) != before
    browser.look(width=1280, height=900)
    assert browser.run(painted) == before


def test_a_phone_scrolls_one_way_only(browser: Browser, path: Path) -> None:
    browser.look(width=390, height=844, phone=True)
    browser.open(path)
    browser.requests.pop()
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run("document.querySelector('.legend').open") is False
    charts = browser.run(
        "[...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().width)"
    )
    assert min(charts) > 300
    assert max(charts) <= 390
    sizes = browser.run(
        "[...document.querySelectorAll('.chart .tick')]"
        ".map(t => parseFloat(getComputedStyle(t).fontSize))"
    )
    assert min(sizes) >= 11


def test_screenshot(browser: Browser, path: Path) -> None:
    """Of the example report, as README shows it; written when CAPRI_SCREENSHOT names a file.

    Without an example, of the small study.
    """
    shown = EXAMPLE if EXAMPLE.exists() else path
    browser.look(width=1280, height=980)
    browser.open(shown)
    assert browser.requests.pop() == shown.resolve().as_uri()
    assert len(lines(browser)) > 5
    picture = browser.picture()
    assert picture.startswith(b"\x89PNG")
    target = os.environ.get("CAPRI_SCREENSHOT")
    if target:
        Path(target).write_bytes(picture)
