"""The code in README and docs runs as it stands there."""

import json
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest

import capri
import write_reference

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


GENERATED = {ROOT / "docs" / "reference" / name for name in write_reference.FILES}
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - GENERATED
    if blocks(str(page.relative_to(ROOT)))
    and page.name != "service.md"  # asks a service: tests/service/test_docs.py
)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader copies one block alone: each runs by itself, in an empty folder."""
    examples = blocks(page)
    assert examples
    for number, example in enumerate(examples):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        exec(compile(example, page, "exec"), {})


EXAMPLES = [
    *ROOT.glob("*.md"),
    *sorted(set(ROOT.glob("docs/**/*.md")) - GENERATED),
    *ROOT.glob("clients/*/README.md"),
    *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("examples/**/*.toml"),
    *ROOT.glob("src/capri/service/**/*.*"),
]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_keys_of_decisions_in_examples_cannot_be_guessed(page: Path) -> None:
    """Whoever sends a key gets its decision. What is copied from here must not be "order-7713"."""
    if page.suffix not in (".md", ".py", ".toml", ".js", ".html"):
        return
    literal = (
        r"""act(?:_many)?\([^)\n]*\bkeys?=\[?["']|context[^\n]*["']?\bkey\b["']?\s*:\s*["'][\w-]"""
    )
    assert re.findall(literal, page.read_text()) == []


def test_clock_hides_no_visit() -> None:
    """Epochs that end by a clock publish how many came, as all others do: presence is public."""
    lengths = []
    for visitors in (40, 41):
        now = [datetime(2030, 1, 1, tzinfo=UTC)]
        policy = capri.Capri(
            actions=[[0.0], [1.0]],
            contexts=capri.ContextPool([[0.0], [1.0]]),
            budget=capri.Budget(1.0, 1e-5),
            first_epoch=500,
            epoch_time=timedelta(hours=1),
            reward_wait=timedelta(minutes=1),
            clock=lambda now=now: now[0],  # type: ignore[misc]
        )
        policy.act_many([[0.0]] * visitors)
        for _ in range(2):
            now[0] += timedelta(hours=2)
            policy.act([0.0])
        lengths.append((policy.epochs[0].length, policy.ledger.events[0].participants))
    assert lengths == [(40, 40), (41, 41)]
    assert "**No mode hides it.**" in (ROOT / "docs" / "explanation" / "privacy.md").read_text()


@pytest.mark.parametrize(
    "page",
    sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - GENERATED),
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to or shows exist; anchors name a heading; fences are closed."""
    assert len(re.findall(r"^```", page.read_text(), flags=re.MULTILINE)) % 2 == 0
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        generated = file.resolve() in GENERATED
        assert file.exists() or generated, target
        if anchor:
            text = write_reference.pages()[file.name] if generated else file.read_text()
            headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("docs/proofs/calibration.md", ["--epsilon", "0.1,1,4", "--rounds", "100000"]),
        ("docs/proofs/sphere.md", ["--local", "--dimension", "50", "--epsilon", "0.5,1,2,4,8"]),
    ],
)
def test_noise_table_is_what_the_command_prints(page: str, options: list[str]) -> None:
    from typer.testing import CliRunner

    from capri_lab.cli import app

    printed = CliRunner().invoke(app, ["noise", "--markdown", *options])
    assert printed.exit_code == 0
    text = (ROOT / page).read_text()
    assert printed.stdout.strip() in text
    assert " ".join(["capri-lab noise", *options]) in text


def test_regret_of_devices_is_what_was_measured() -> None:
    """Every row of the benchmark stands on the page as measured, and below its bar."""
    text = (ROOT / "docs/results.md").read_text()
    rows = json.loads((ROOT / "benchmarks/results/local.json").read_text())["regret"]
    names = {"matern": "Matern-5/2, lengthscale 0.3", "rbf 0.6": "RBF, lengthscale 0.6"}
    assert len(rows) == 6
    for row in rows:
        start = f"| {names[row['problem']]} | {row['epsilon']:g} | {row['bar']:g} | "
        (line,) = [line for line in text.splitlines() if line.startswith(start)]
        assert f" **{row['mean']:.3f}** | {row['error']:.3f} | {row['worst']:.3f} |" in line
        assert row["mean"] <= row["bar"]
        assert row["functions"] >= 10


@pytest.mark.parametrize(
    ("benchmark", "function", "file", "key"),
    [
        ("regret", "table", "regret", ""),
        ("ablation", "table", "ablation", ""),
        ("speed", "table", "speed", ""),
        ("arena_table", "table", "arena", "results"),
        ("local_table", "start_table", "local", "start"),
        ("local_table", "model_table", "local", "shuffle"),
        ("local_table", "speed_text", "local", "speed"),
        ("world_rewards", "table", "world_rewards", ""),
        ("world_limits", "warm_table", "world_limits", ""),
        ("world_limits", "sets_text", "world_limits", ""),
        ("forecast", "table", "forecast", "rows"),
    ],
)
def test_tables_of_results_are_those_of_their_benchmarks(
    benchmark: str, function: str, file: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line what the benchmark writes of its stored numbers: nobody edits a figure."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    stored = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())
    drawn = getattr(import_module(benchmark), function)(stored[key] if key else stored)
    page = (ROOT / "docs/results.md").read_text().splitlines()
    assert [line for line in drawn.strip().splitlines() if line not in page] == []


def test_every_table_of_results_says_its_commit_and_day() -> None:
    page = (ROOT / "docs/results.md").read_text()
    sections = page.split("\n## ")[1:]
    assert len(sections) > 10
    for section in sections:
        assert re.search(r"[Cc]ommit `[0-9a-f]{7,9}(-dirty)?`, \d{4}-\d\d-\d\d", section), section[
            :60
        ]


def test_every_test_that_a_proof_names_exists() -> None:
    """docs/explanation/privacy.md proves its theorem in steps that each name what checks them."""
    text = (ROOT / "docs/explanation/privacy.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 15
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    proof = text[text.index("### Proof, and the test") : text.index("## One message, one gate")]
    steps = re.split(r"^\*\*\d+\. ", proof, flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert all("*Test" in step for step in steps), "a step without a test"
