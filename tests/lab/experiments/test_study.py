"""Declaring a study: what is read, what is refused and where the error points."""

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from capri.errors import ConfigurationError
from capri_lab.experiments import (
    Here,
    load_study,
    run_study,
    shipped_studies,
    study_from_dict,
    study_from_text,
)
from capri_lab.experiments.cells import code_digest
from capri_lab.experiments.study import to_toml
from small_studies import SMALL, small


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        study_from_text(text)
    return str(caught.value)


def test_cells_are_the_product_with_one_cell_for_those_that_spend_no_budget() -> None:
    cells = list(small().cells())
    # Per seed and horizon: CAPRI twice, the two others once.
    assert len(cells) == 2 * 2 * (2 + 1 + 1)
    assert {cell.epsilon for cell in cells if cell.player["name"] == "capri"} == {1.0, None}
    assert all(cell.delta is None for cell in cells if cell.epsilon is None)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_hash_says_what_determines_the_result_and_nothing_else() -> None:
    cells = list(small().cells())
    assert len({cell.hash for cell in cells}) == len(cells)
    cell = cells[0]
    same = replace(cell, study="other", environment="e", policy="p", maps=not cell.maps)
    assert same.hash == cell.hash
    for change in (
        {"seed": 7},
        {"rounds": 21},
        {"epsilon": 1.5},
        {"delta": 1e-6},
        {"world": cell.world | {"contexts": 7}},
        {"player": cell.player | {"model": "local"}},
        {"code": code_digest()},
    ):
        assert replace(cell, **change).hash != cell.hash  # type: ignore[arg-type]


def test_hash_is_that_of_the_canonical_text() -> None:
    """Spelled out: with another text every stored result would look new."""
    cell = replace(next(small().cells()), world={"name": "w"}, player={"name": "p"})
    text = (
        '{"delta":1e-05,"epsilon":1.0,"player":{"name":"p"},"rounds":20,"seed":0,'
        '"world":{"name":"w"}}'
    )
    assert cell.hash == hashlib.sha256(text.encode()).hexdigest()[:16]


# Over the hashes of all cells of the studies that come with the package.
PINNED = {
    "ablation": "705f7c4f3ce152ab",
    "clicks": "75f82e61285ba30d",
    "context-law": "147f180d6cca25d3",
    "data-sets": "065078de99bb9ae8",
    "drift": "ed9f7cbf679a5a58",
    "dubey-2021": "79c1c9270e0a2ae2",
    "epsilon": "be1f26deb94f6263",
    "horizon": "0d2ad58e0e023075",
    "joint-and-local": "04294aa2a919086c",
    "kernel": "470506464b012ab5",
    "rivals": "36b87de275321f80",
    "usca-2025": "7aecc11ef2cdec1d",
    "warm-start": "8a7c813b6aeb03b7",
}


def test_cells_of_shipped_studies_keep_their_hashes() -> None:
    """Or every result that somebody keeps would look new."""
    by_code = {name for name in shipped_studies() if load_study(name, thorough=False).code_version}
    assert {*PINNED} == {*shipped_studies()} - by_code
    for name, pinned in PINNED.items():
        hashes = "".join(cell.hash for cell in load_study(name, thorough=False).cells())
        assert hashlib.sha256(hashes.encode()).hexdigest()[:16] == pinned, name


def test_code_version_is_part_of_the_identity_on_request() -> None:
    plain, coded = small(), study_from_text("code_version = true\n" + SMALL)
    assert {cell.hash for cell in plain.cells()}.isdisjoint(cell.hash for cell in coded.cells())
    assert len(code_digest()) == 16


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('name = "gp-ucb"', 'name = "gp-ucp"', 17, ["'gp-ucp'", "did you mean 'gp-ucb'", "usca"]),
        ('name = "branin"', 'name = "brain"', 7, ["'brain'", "branin", "hartmann4", "digits"]),
        ("contexts = 6", "contets = 6", 8, ["'contets'", "did you mean 'contexts'"]),
        ("contexts = 6", "contexts = -6", 8, ["contexts must be a whole number", "-6"]),
        ("epsilons = [1.0, inf]", "epsilons = [1.0, -1.0]", 3, ["positive", "-1.0"]),
        ("epsilons = [1.0, inf]", "epsilons = [0]", 3, ["positive", "got 0"]),
        ("epsilons = [1.0, inf]", "epsilons = [nan]", 3, ["positive", "nan"]),
        ("epsilons = [1.0, inf]", "", 1, ["epsilons is missing"]),
        ("rounds = [20, 60]", "rounds = [20, 1]", 2, ["2 or more", "got 1"]),
        ("rounds = [20, 60]", "rounds = 20.5", 2, ["whole numbers", "20.5"]),
        ("rounds = [20, 60]", "rounds = [20, 20]", 2, ["different"]),
        ("seeds = 2", "seeds = 0", 4, ["1 or more"]),
        ("seeds = 2", "seeds = [1, -1]", 4, ["0 or more", "-1"]),
        ("seeds = 2", "sedes = 2", 4, ["'sedes'", "did you mean 'seeds'"]),
        ("epsilons = [1.0, inf]", "epsilon = 1.0", 3, ["did you mean 'epsilons'", "allowed: code"]),
        ("rounds = [20, 60]", "round = 20", 2, ["'round'", "did you mean 'rounds'"]),
        ('name = "small"', 'nmae = "small"', 1, ["'nmae'", "did you mean 'name'"]),
        ('name = "gp-ucb"', 'nmae = "gp-ucb"', 17, ["'nmae'", "did you mean 'name'", "law_error"]),
        ('name = "branin"', 'nmae = "branin"', 7, ["'nmae'", "did you mean 'name'", "contexts"]),
        ('[[policies]]\nname = "gp-ucb"', '[[policy]]\nname = "gp-ucb"', 16,
         ["'policy'", "did you mean 'policies'"]),
        ('name = "small"', 'name = "small"\ntitle = """\nseed = 2\n[[policies]]\n"""\nseed = 1', 6,
         ["did you mean 'seeds'"]),
        ("seeds = 2", "delta = 1.5", 4, ["delta", "between 0 and 1"]),
        ("first_epoch = 10", "first_epok = 10", 14, ["first_epok", "first_epoch", "draws"]),
        ("first_epoch = 10", "growth = 0.5", 14, ["growth must be above 1"]),
        ('name = "uniform"', 'name = "uniform"\nmodel = "local"', 21, ["'model'"]),
        ('name = "uniform"', 'name = "gp-ucb"', 19, ["two policies are called 'gp-ucb'"]),
        ('name = "small"', 'name = "../up"', 1, ["small letters", "../up"]),
        ('name = "gp-ucb"', 'name = "gp-ucb"\noptions = { beta = -1.0 }', 18, ["beta", "-1.0"]),
        ('name = "gp-ucb"', 'name = "gp-ucb"\noptions = { alpha = 1.0 }', 18, ["'alpha'", "beta"]),
        ("actions = 5", 'lengthscale = 1\nkernel = "cubic"', 10, ["'cubic'", "matern52"]),
        ("actions = 5", 'kernel = "rbf"\nlengthscale = -1', 10, ["lengthscale", "-1"]),
        ('name = "gp-ucb"', 'name = "gp-ucb"\nkernel = "rbf"', 16, ["given together"]),
        ('name = "gp-ucb"', 'name = "capri"\nmodel = "central"', 18, ["'central'", "joint"]),
        ('name = "gp-ucb"', 'name = "capri"\nlabel="b"\nlaw_error = 0.7', 19, ["below 0.5", "0.7"]),
        ('name = "gp-ucb"', 'name = "capri"\nlabel="b"\nepsilons = -1', 19, ["positive", "-1"]),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_what_is_allowed(
    old: str, new: str, line: int, words: list[str]
) -> None:
    assert SMALL.count(old) == 1
    said = refusal(SMALL.replace(old, new))
    assert said.startswith(f"study.toml, line {line}: "), said
    for word in words:
        assert word in said


def test_lines_are_those_of_keys_not_of_words_in_texts() -> None:
    text = SMALL.replace('name = "small"', 'name = \'small\'  # """ is no text here')
    text = 'description = """\n[[policies]]\nname = "a"\nseeds = 1 \\"""\n"""\n' + text
    assert refusal(text.replace("seeds = 2", "seeds = 0")).startswith("study.toml, line 9: ")
    assert refusal(text.replace("gp-ucb", "gp-ucp")).startswith("study.toml, line 22: ")


DATA = SMALL.replace('name = "branin"', 'name = "wine"').replace("contexts = 6\nactions = 5\n", "")


def test_what_cannot_fit_is_said_before_anything_is_played() -> None:
    """Users of a data set are not in the pool; with prototypes they come as members of it."""
    said = refusal(DATA)
    assert said.startswith("study.toml, line 14: gp-ucb plays on a pool of known contexts only")
    assert "prototypes" in said
    assert study_from_text(DATA, thorough=False).name == "small", "old results can be read"
    assert study_from_text(DATA.replace('"wine"', '"wine"\nprototypes = 20'))
    told = DATA.replace('name = "gp-ucb"', 'name = "capri"\nlabel = "off"\nlaw_error = 0.1')
    assert "law_error needs a context law that is known: wine" in refusal(told)


def test_the_study_of_the_documents_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/evaluate.md").read_text(encoding="utf-8")
    text, _ = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    text = text.replace("[1_000, 10_000]", "60").replace("seeds = 5", "seeds = 1")
    summary = run_study(study_from_text(text), tmp_path, backend=Here())
    assert (summary.played, summary.failed) == (10, 0)


def test_what_is_no_toml_is_refused_with_its_line() -> None:
    assert "line 3" in refusal('name = "a"\nrounds = [1,\n= 3')


@pytest.mark.parametrize("missing", ["environments", "policies"])
def test_a_study_without_players_or_worlds_is_refused(missing: str) -> None:
    table = {"name": "a", "rounds": 10, "epsilons": [1.0]} | {
        "environments": [{"name": "branin"}],
        "policies": [{"name": "uniform"}],
    }
    with pytest.raises(ConfigurationError, match=f"{missing} is missing"):
        study_from_dict({key: value for key, value in table.items() if key != missing})


def test_python_and_toml_declare_the_same_study() -> None:
    import tomllib

    table = tomllib.loads(SMALL)
    declared = study_from_dict(table)
    assert [cell.hash for cell in declared.cells()] == [cell.hash for cell in small().cells()]
    assert tomllib.loads(to_toml(table)) == table
    odd = {"a": [1, 2.5, math.inf], "b": {"c": 'quo"te', "d": True}, "e": [{"f": [{"g": 1}]}]}
    assert tomllib.loads(to_toml(odd)) == odd


def test_cells_beyond_the_reach_of_a_policy_are_left_out_and_said_so() -> None:
    study = small(rounds="[60, 1_000_000]")
    beyond = [c for c in study.cells() if c.player["name"] == "gp-ucb" and c.rounds == 1_000_000]
    assert beyond == []
    assert study.left_out() == ["gp-ucb at T = 1e+06: it reaches 100000"]


def test_shipped_studies_are_sound() -> None:
    wanted = {"horizon", "epsilon", "ablation", "joint-and-local", "rivals", "dubey-2021",
              "usca-2025", "context-law", "kernel", "data-sets", "real", "untold",
              "warm-start", "clicks", "drift"}  # fmt: skip
    assert set(shipped_studies()) == wanted
    for name in shipped_studies():
        study = load_study(name)
        assert study.name == name
        assert study.title != name
        assert study.description
        hashes = [cell.hash for cell in study.cells()]
        assert len(set(hashes)) == len(hashes), name


def test_the_rivals_study_has_every_rival() -> None:
    from capri_lab.rivals import RIVAL_NAMES

    players = {player.name for player in load_study("rivals").players}
    assert players == {*RIVAL_NAMES, "capri"}


def test_unknown_studies_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"neither a file nor one of .*rivals"):
        load_study("rival")
