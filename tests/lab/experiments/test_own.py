"""Policies and environments of one's own: the templates of the page, and what breaks them."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capri.errors import ConfigurationError
from capri_lab.cli import app
from capri_lab.experiments import load_study, run_study, study_from_dict
from capri_lab.experiments.contract import contract
from capri_lab.own import load
from capri_lab.report import read_report

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "evaluate.md"
(TEMPLATES,) = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    if "(Rival)" in block
]
STUDY = """
name = "own"
rounds = 60
seeds = 2
epsilons = [1.0]
[[environments]]
name = "mine:coins"
sides = 6
[[policies]]
name = "mine:Greedy"
options = { explore = 0.2 }
[[policies]]
name = "uniform"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(TEMPLATES)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_templates_pass_the_contract_and_stand_in_a_report(folder: Path) -> None:
    for name in ("mine:Greedy", "mine:coins"):
        found = CliRunner().invoke(app, ["check", name])
        assert found.exit_code == 0, found.output
        assert "missing" not in found.output
    Path("study.toml").write_text(STUDY)
    run_study(load_study("study.toml"), folder / "out")
    report = read_report(folder / "out")
    assert {each["error"] for each in report.results[0].records} == {None}
    assert "greedy" in report.html()
    (table,) = report.tables("csv").values()
    assert "mine:coins,60,none,greedy," in table
    (paper,) = report.tables("tex").values()
    assert r"mine:coins & none & 60 & greedy &  & $" in paper


def test_a_changed_module_is_another_cell(folder: Path) -> None:
    Path("study.toml").write_text(STUDY)
    before = {cell.hash for cell in load_study("study.toml").cells()}
    Path("mine.py").write_text(TEMPLATES + "\n# changed\n")
    sys.modules.pop("mine")
    after = {cell.hash for cell in load_study("study.toml").cells()}
    assert len(before) == 4
    assert not before & after


def test_classes_and_functions_go_by_their_names(folder: Path) -> None:
    greedy, coins = load("mine:Greedy"), load("mine:coins")
    table = {
        "name": "own", "rounds": 60, "epsilons": [1.0],
        "environments": [{"name": coins}], "policies": [{"name": greedy}],
    }  # fmt: skip
    study = study_from_dict(table)
    assert [each.name for each in study.players] == ["mine:Greedy"]
    assert [each.name for each in study.worlds] == ["mine:coins"]
    with pytest.raises(ConfigurationError, match="at the top of a module"):
        study_from_dict(table | {"policies": [{"name": lambda: None}]})


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("(Rival)", "", r"Greedy must be a class that derives from .*Rival \(mine.py, line 9\)"),
        ("name, reference", "name, other", "Greedy lacks reference.*line 9"),
        ("_learn(self", "_lern(self", r"Greedy lacks _learn \(mine.py, line 9\)"),
        ('"arms", 10**6', '"pairs", 10**6', "needs must be .*got 'pairs'"),
        ("def coins(seed, ", "def coins(", "function of a keyword seed.*mine.py, line 3"),
        ("    return TabularEnvironment(", "    return dict(", "lacks draw_contexts|lacks .*mean"),
        ("import numpy as np", "import numpi as np", "needs numpi"),
        ("import numpy as np", "1 / 0", r"ZeroDivisionError: .*\(mine.py, line 3\)"),
        ("return action, law[action]", "return action", r"_choose must return.*mine.py, line 21"),
        ("np.add.at(self._sum, ", "np.add.at(self._sums, ", r"_sums.*\(mine.py, line 29\)"),
        ("weights=[0.5, 0.5]", "weights=[0.5, 0.6]", r"sum to 1, got .*\(mine.py, line 37\)"),
        ("class Greedy", "class Greedi", "has no 'Greedy': did you mean 'Greedi'"),
    ],
)
def test_what_breaks_the_protocol_is_named_before_anything_is_played(
    folder: Path, before: str, after: str, said: str
) -> None:
    Path("mine.py").write_text(TEMPLATES.replace(before, after))
    Path("study.toml").write_text(STUDY)
    with pytest.raises(ConfigurationError, match=said):
        load_study("study.toml")


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("Greedy", "self._draws.choice", "np.random.default_rng().choice", "with one seed differ"),
        ("Greedy", "law[action]", "law[action] / 2", "do not follow them"),
        ("Greedy", "return action, ", "return action + 40, ", "IndexError|does not exist"),
        ("coins", "weights=[0.5, 0.5]", "weights=[0.5, 0.6]", "weights"),
        ("coins", "default_rng(seed)", "default_rng()", "one seed, two functions"),
    ],
)
def test_contract_sees_what_it_asks_for(
    folder: Path, name: str, before: str, after: str, said: str
) -> None:
    assert before in TEMPLATES
    Path("mine.py").write_text(TEMPLATES.replace(before, after))
    found = " ".join(each.missing for each in contract(f"mine:{name}"))
    assert re.search(said, found), found


def test_check_asks_for_a_module(folder: Path) -> None:
    found = CliRunner().invoke(app, ["check", "greedy"])
    assert found.exit_code != 0
