"""The page is one file, escapes what it is given, and the shell writes it."""

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from capri.plots import to_bytes
from capri_lab.cli import app
from capri_lab.report import read_report
from capri_lab.report.page import page


class Elements(HTMLParser):
    """Tags with their attributes, and the text inside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag in ("script", "style")
        if self._inside:
            self.raw.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[-1] += data


@pytest.fixture(scope="module")
def html(results: Path) -> str:
    return read_report(results).html()


def test_the_page_asks_for_no_other_file(html: str) -> None:
    for tag, attributes in Elements(html).found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert attributes.get("href") in (None, "#main")
        assert not any(name.startswith("on") for name in attributes)
    code = page([], title="")
    assert set(re.findall(r"https?://[^\"'`\s]+", code)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", code)


def test_the_page_is_small() -> None:
    assert len(page([], title="").encode()) < 150_000


def test_names_stay_names(html: str) -> None:
    """A study, a problem and a policy are called like markup; none of it becomes markup."""
    elements = Elements(html)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert [tag for tag, _ in elements.found].count("title") == 1
    _, data, _ = elements.raw
    (study,) = json.loads(data)
    assert study["title"] == "A study to look at </title>"
    assert "</script><script>alert(2)</script>" in study["text"]
    assert any("<img src=x onerror=alert(1)>" in one["environment"] for one in study["series"])
    assert "<img src=x" in study["failures"][0]["error"]


def test_a_placeholder_in_a_name_is_not_filled_in() -> None:
    assert "<title>{{DATA}}</title>" in page([], title="{{DATA}}")


def test_the_content_policy_names_these_scripts_and_nothing_else(html: str) -> None:
    elements = Elements(html)
    policy = next(
        attributes["content"]
        for tag, attributes in elements.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    style, _, script = elements.raw
    for text in (style, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_a_notebook_shows_the_page(results: Path) -> None:
    shown = Elements(read_report(results)._repr_html_()).found
    (frame,) = shown
    assert frame[0] == "iframe"
    assert frame[1]["srcdoc"] == read_report(results).html()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def copied(results: Path, folder: Path) -> Path:
    return Path(shutil.copytree(results, folder / results.name))


def test_report_writes_the_page_beside_the_results(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    outcome = run("report", folder)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output == f"wrote {folder / 'report.html'}\n"
    assert (folder / "report.html").read_text() == read_report(results).html()


def test_the_folder_above_gives_all_studies(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    other = shutil.copytree(results, tmp_path / "again")
    text = (other / "study.toml").read_text()
    (other / "study.toml").write_text(text.replace('name = "looks"', 'name = "again"'))
    target = tmp_path / "page.html"
    assert run("report", folder.parent, "-o", target).exit_code == 0
    studies = json.loads(Elements(target.read_text()).raw[1])
    assert [study["name"] for study in studies] == ["again", "looks"]


def test_an_unfinished_study_says_what_is_missing(results: Path, tmp_path: Path) -> None:
    folder = copied(results, tmp_path)
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace("seeds = 3", "seeds = 4"))
    (study,) = json.loads(Elements(read_report(folder).html()).raw[1])
    assert (study["cells"], study["missing"]) == (132, 44)


def cut(results: Path, folder: Path) -> Path:
    """The results of one problem and one horizon: a changed study keeps what is still in it."""
    folder = copied(results, folder)
    text = (folder / "study.toml").read_text().replace("[60, 120]", "120")
    before, _, after = text.partition('[[environments]]\nname = "hartmann4"')
    (folder / "study.toml").write_text(before + after[after.index("[[policies]]") :])
    return folder


def test_figures_for_papers(results: Path, tmp_path: Path) -> None:
    folder, pictures = cut(results, tmp_path), tmp_path / "new" / "figures"
    outcome = run("report", folder, "--svg", pictures)
    assert outcome.exit_code == 0, outcome.output
    places = [f"{kind}-branin-T120-epsilon{epsilon}" for kind in ("noise", "regret", "width")
              for epsilon in (2, 8)]  # fmt: skip
    wanted = sorted(f"looks-{name}.svg" for name in [*places, "epsilon-branin-T120"])
    assert sorted(path.name for path in pictures.iterdir()) == wanted
    assert all((pictures / name).read_bytes().startswith(b"<?xml") for name in wanted)


def test_figures_hold_the_numbers(results: Path, tmp_path: Path) -> None:
    report = read_report(cut(results, tmp_path))
    figure = report.figures()["looks-epsilon-branin-T120"]
    assert to_bytes(figure, "png").startswith(b"\x89PNG")
    joint, local = figure.axes
    (summary,) = report.summaries
    wanted = [
        one.ratio.mean
        for one in summary.series
        if (one.environment, one.rounds, one.player) == ("branin", 120, 0) and one.ratio
    ]
    assert list(joint.lines[0].get_ydata()) == wanted
    assert list(joint.lines[0].get_xdata()) == [2.0, 8.0]
    assert [label.get_text() for label in joint.get_xticklabels()] == ["2", "8"]
    assert joint.get_ylim() == local.get_ylim()
    inside = figure.bbox.x1
    assert all(text.get_window_extent().x1 <= inside for text in (*joint.texts, *local.texts))
    # Uniform play, level, in both panels.
    assert len(set(joint.lines[-1].get_ydata())) == len(set(local.lines[-1].get_ydata())) == 1


@pytest.mark.parametrize("name", ["", "not there"])
def test_a_folder_without_results_is_refused(tmp_path: Path, name: str) -> None:
    outcome = run("report", tmp_path / name)
    assert outcome.exit_code == 2
    assert "holds no results" in outcome.output
    assert not list(tmp_path.glob("*.html"))


def test_a_page_that_cannot_be_written_is_refused(results: Path, tmp_path: Path) -> None:
    outcome = run("report", results, "-o", tmp_path / "none" / "page.html")
    assert outcome.exit_code == 2
    assert "does not exist" in outcome.output


def test_figures_need_a_folder(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run("report", results, "-o", tmp_path / "page.html", "--png", tmp_path / "file")
    assert outcome.exit_code == 2
    assert "cannot write to" in outcome.output
