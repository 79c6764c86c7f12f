"""The code in README and docs runs as it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/ridge.md"])
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page share their names, as a reader would type them one after the other."""
    monkeypatch.chdir(tmp_path)
    examples = blocks(page)
    assert examples
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to or shows exist; anchors name a heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target


def test_noise_table_is_what_the_command_prints() -> None:
    from typer.testing import CliRunner

    from capri.cli import app

    printed = CliRunner().invoke(app, ["noise", "--markdown"])
    assert printed.exit_code == 0
    assert printed.stdout.strip() in (ROOT / "docs/privacy.md").read_text()
