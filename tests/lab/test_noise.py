"""What the laboratory says of noise is what the library adds."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import capri
from capri.privacy.calibration import noise_multiplier
from capri.privacy.sphere import sphere
from capri_lab.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_noise_of_devices(tmp_path: Path) -> None:
    """Pure epsilon costs less than Gaussian noise at every epsilon."""
    path = tmp_path / "noise.json"
    outcome = run("noise", "--local", "--dimension", "50", "--json", path)
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["epsilon"] for row in rows] == [0.1, 0.5, 1.0, 2.0, 4.0, 8.0]
    for row in rows:
        best = sphere(row["epsilon"], 50)
        assert row["sphere_variance"] == pytest.approx(1 / (50 * best.shrinkage**2))
        budget = capri.Budget(epsilon=row["epsilon"], delta=1e-5)
        assert row["gaussian_variance"] == noise_multiplier(budget, 50) ** 2
        assert row["sphere_variance"] < row["gaussian_variance"]
        odds = row["chance"] / (1 - row["chance"])
        ratio = odds * (row["candidates"] - row["near"]) / row["near"]
        assert np.log(ratio) == pytest.approx(row["epsilon"])
    assert f"{rows[4]['sphere_variance']:.3g}" in outcome.stdout


def test_noise_of_mixed_reports(tmp_path: Path) -> None:
    """At local epsilon 4 and delta 1e-6: at most 0.125 of 1e5 reports, 0.42 of 1e4."""
    path = tmp_path / "noise.json"
    outcome = run(
        "noise", "--shuffled", "10000,100000", "--epsilon", "4", "--delta", "1e-6",
        "--dimension", "50", "--json", path,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert "0.371" in outcome.output or "0.372" in outcome.output
    some, many = json.loads(path.read_text())["rows"]
    assert some["sphere"] <= 0.42
    assert many["sphere"] <= 0.125
    assert many["sphere"] < many["any_randomizer"] < 0.175


def test_plan_of_mixed_reports(tmp_path: Path) -> None:
    """What a device may spend for a central epsilon of 1, and the noise that mixing saves."""
    path = tmp_path / "noise.json"
    outcome = run(
        "noise", "--shuffled", "1000", "--central", "--epsilon", "1", "--delta", "1e-6",
        "--dimension", "20", "--json", path,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    (row,) = json.loads(path.read_text())["rows"]
    assert 3.4 < row["local_epsilon"] < 3.6
    assert row["variance_unmixed"] > 9 * row["variance"]


def test_noise_table_has_the_figures_of_the_specification(tmp_path: Path) -> None:
    """At epsilon 1, delta 1e-5, T = 1e4 the paper adds 18 times the noise and delivers 0.04."""
    path = tmp_path / "noise.json"
    outcome = run("noise", "--json", path)
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 18
    row = next(row for row in rows if (row["epsilon"], row["rounds"]) == (1.0, 10_000))
    assert row["paper_noise"] / row["noise"] == pytest.approx(18.4, abs=0.1)
    assert row["paper_epsilon"] == pytest.approx(0.041, abs=0.001)
    assert row["epochs"] == 7
    for row in rows:
        assert row["noise"] < row["split_noise"] < row["paper_noise"]
        assert row["paper_epsilon"] < row["split_epsilon"] < row["delivered_epsilon"]
        assert row["delivered_epsilon"] == pytest.approx(row["epsilon"], abs=1e-6)
        assert row["delivered_epsilon"] <= row["epsilon"] + 1e-6
    assert "18.4" in outcome.stdout


def test_noise_table_for_the_documents() -> None:
    outcome = run("noise", "--markdown", "--epsilon", "1,2", "--rounds", "1e4")
    first, second = outcome.stdout.split("\n\nWhat a delta buys")
    assert [line.count("|") for line in first.splitlines()[2:]] == [10] * 4
    assert [line.count("|") for line in second.splitlines()[2:]] == [7] * 6
    assert json.loads(run("noise", "--epsilon", "1", "--json", "-").stdout)["delta"] == 1e-5


def test_noise_says_what_a_delta_buys(tmp_path: Path) -> None:
    """One cell has 2.83 where a coordinate has 7.46; from seven contributions on it has more."""
    path = tmp_path / "noise.json"
    outcome = run("noise", "--epsilon", "1", "--contributions", "1,6,7", "--json", path)
    assert outcome.exit_code == 0, outcome.output
    kinds = json.loads(path.read_text())["kinds"]
    budget = capri.Budget(epsilon=1.0, delta=1e-5)
    for row, times in zip(kinds, (1, 6, 7), strict=True):
        assert row["contributions"] == times
        assert row["laplace"] == pytest.approx(2 * np.sqrt(2) * times)
        assert row["gaussian"] == noise_multiplier(budget, 100, np.sqrt(times))
        assert (row["gaussian"] < row["laplace"]) == (times == 7)
        assert row["gaussian_from"] == 7
    said = " ".join(outcome.stdout.split())
    assert "What a delta buys" in said
    assert "2.83 7.46 2.64 7" in said


def test_noise_without_a_delta() -> None:
    """There is Laplace noise alone; the paper's divides by delta."""
    outcome = run("noise", "--epsilon", "0.5,1", "--delta", "0")
    assert outcome.exit_code == 0, outcome.output
    assert "Gaussian" not in outcome.stdout
    document = json.loads(run("noise", "--epsilon", "0.5,1", "--delta", "0", "--json", "-").stdout)
    assert (document["delta"], document["rows"]) == (0.0, [])
    for row in document["kinds"]:
        assert row["laplace"] == pytest.approx(np.sqrt(8) * row["contributions"] / row["epsilon"])
        assert set(row) == {"epsilon", "contributions", "laplace"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("noise", "--central"), "--central is about mixed reports: give --shuffled"),
        (("noise", "--local", "--epsilon", "31"), "the sphere randomizer needs epsilon between"),
        (("noise", "--local", "--dimension", "1"), "dimension must lie in 2 to 65536, got 1"),
        (("noise", "--local", "--delta", "0"), "Gaussian noise needs delta above 0"),
        (("noise", "--contributions", "0", "--delta", "0"), "total contributions must be a whole"),
        (("noise", "--rounds", "1"), "rounds must be at least 2, got 1"),
        (("noise", "--json", "no/such/folder.json"), "cannot write no/such/folder.json: the dir"),
    ],
)
def test_bad_options_end_with_one_line(arguments: tuple[str, ...], message: str) -> None:
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(message)
    assert outcome.stderr.count("\n") == 1
