"""Environments of a study: tables of one's own, data sets, and what policies are told of them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from capri.environments import TabularEnvironment
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri_lab.experiments import Here, read_results, run_study, study_from_text
from capri_lab.experiments.play import play
from capri_lab.experiments.players import _with_wrong_law, build_player
from capri_lab.experiments.worlds import build_world
from capri_lab.surfaces import branin
from small_studies import results_of, small

TABLE = """\
name = "own"
rounds = 30
epsilons = 1.0
seeds = 1
[[environments]]
name = "table"
path = "PATH"
context = ["height", "weight"]
label_column = "class"
public_share = 0.5
[[policies]]
name = "capri"
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path / "people.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["height", "weight", "class"])
        for height, weight in rng.random((40, 2)):
            writer.writerow([height, weight, "ab"[int(height > weight)]])
    return file


def test_a_file_is_known_by_its_content_not_its_place(table: Path, tmp_path: Path) -> None:
    text = TABLE.replace("PATH", str(table))
    assert run_study(study_from_text(text), tmp_path, backend=Here()).failed == 0
    before = results_of(tmp_path / "own")
    assert str(tmp_path) not in (tmp_path / "own/records.jsonl").read_text()
    # A row may come back: what is certified for one visit is not said of it.
    assert [record["certificate"] for record in before] == [None]
    moved = table.rename(tmp_path / "moved.csv")
    # Results can be read without the file, and a moved file plays nothing again.
    assert results_of(tmp_path / "own") == before
    text = TABLE.replace("PATH", str(moved))
    assert run_study(study_from_text(text), tmp_path, backend=Here()).played == 0
    moved.write_text(moved.read_text().replace(",a", ",c"))
    summary = run_study(study_from_text(text), tmp_path, backend=Here())
    assert summary.played == 1
    assert read_results(tmp_path / "own").missing == 0


def test_a_file_that_changes_under_a_run_is_noticed(table: Path) -> None:
    cell = next(study_from_text(TABLE.replace("PATH", str(table))).cells())
    table.write_text(table.read_text() + "0.5,0.5,a\n")
    with pytest.raises(ConfigurationError, match="has changed since the study was read"):
        build_world(cell.world, 0)
    record = play(cell)
    assert "has changed since the study was read" in record["error"]
    assert str(table) not in json.dumps(record)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("PATH", "nowhere.csv", "line 7: cannot read nowhere.csv"),
        ('"weight"', '"wieght"', "wieght"),
        ("public_share", "public_shape", "line 10: unknown key 'public_shape'"),
    ],
)
def test_bad_tables_are_refused_with_a_line(table: Path, old: str, new: str, words: str) -> None:
    text = TABLE.replace(old, new).replace("PATH", str(table))
    with pytest.raises(ConfigurationError, match=words):
        study_from_text(text)


def test_policies_on_a_data_set_are_told_public_rows_only() -> None:
    world = {"name": "wine", "kernel": None, "lengthscale": None, "public_share": 0.3}
    environment, told = build_world(world, 0)
    player = {"name": "capri", "model": "joint", "preset": "practical"}
    budget = Budget(epsilon=1.0, delta=1e-5)
    policy, _ = build_player(player, told, environment, budget=budget, rounds=10, seed=0)
    known = policy._problem.contexts.rows  # type: ignore[attr-defined]
    private = {row.tobytes() for row in environment.contexts}
    assert len(known) == 53
    assert not any(row.tobytes() in private for row in known)


@pytest.mark.parametrize("distance", [0.05, 0.2, 0.4])
def test_the_wrong_law_is_off_by_the_total_variation_distance_asked_for(distance: float) -> None:
    world = branin(contexts=20, actions=3)
    told = _with_wrong_law(world, distance, seed=3)
    assert isinstance(told, TabularEnvironment)
    assert np.abs(told.weights - world.weights).sum() / 2 == pytest.approx(distance, rel=1e-12)
    assert (told.weights > 0).all()
    assert not np.array_equal(told.weights, _with_wrong_law(world, distance, seed=4).weights)


def test_a_policy_can_be_told_another_kernel_than_the_true_one() -> None:
    from capri.kernels import RBF, Matern

    cell = next(small().cells())
    player = cell.player | {"kernel": "rbf", "lengthscale": 0.7}
    environment, told = build_world(cell.world, 0)
    assert told.kernel == Matern(nu=2.5, lengthscale=0.3)
    budget = Budget(epsilon=1.0, delta=1e-5)
    policy, _ = build_player(player, told, environment, budget=budget, rounds=10, seed=0)
    assert policy._problem.kernel == RBF(lengthscale=0.7)  # type: ignore[attr-defined]
