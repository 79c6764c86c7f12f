"""The shell gives the library's numbers, and ends with one clear line when it cannot."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import capri
from capri.cli import app
from capri.cli.contest import Run
from capri.cli.findings import finding
from capri.cli.simulate import ENVIRONMENTS, KERNELS
from capri.environments import ENVIRONMENT_NAMES
from capri.kernels.catalogue import KERNEL_NAMES
from capri.rivals import UniformPlay

ROUNDS = 120
SMALL = ("--contexts", "6", "--actions", "5", "--rounds", str(ROUNDS))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def library_run(seed: int, policy: str = "capri", **settings: object) -> capri.SimulationResult:
    kernel = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
    environment = capri.environments.random_rkhs(kernel, contexts=6, actions=5, seed=seed)
    if policy == "uniform":
        player = UniformPlay(actions=environment.actions, horizon=ROUNDS, simulation_seed=seed)
    else:
        player = capri.Capri(
            kernel=kernel,
            actions=environment.actions,
            contexts=capri.ContextPool(environment.contexts),
            horizon=ROUNDS,
            simulation_seed=seed,
            **{"budget": capri.Budget(epsilon=2.0, delta=1e-4), **settings},
        )
    return capri.simulate(player, environment, ROUNDS, seed=seed)


def without_clock(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in one.items() if key != "seconds"} for one in records]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ((), {}),
        (("--model", "local"), {"model": "local"}),
        (("--no-privacy",), {"budget": None}),
        (("--preset", "paper"), {"preset": "paper"}),
        (
            ("--preset", "paper", "--features", "dense", "--tau", "0.5"),
            {"preset": "paper", "features": "dense", "tau": 0.5},
        ),
        (("--policy", "uniform"), {"policy": "uniform"}),
    ],
)
def test_simulate_gives_the_numbers_of_the_library(
    tmp_path: Path, options: tuple[str, ...], settings: dict[str, object]
) -> None:
    path = tmp_path / "out.json"
    budget = ("--epsilon", "2", "--delta", "1e-4")
    outcome = run(
        "simulate", *SMALL, *budget, "--seeds", "2", "--seed", "3", *options, "--json", path
    )
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(path.read_text())
    assert [entry["seed"] for entry in document["seeds"]] == [3, 4]
    expected = [library_run(seed, **settings) for seed in (3, 4)]
    for entry, result in zip(document["seeds"], expected, strict=True):
        assert entry["regret_per_round"] == result.regret_per_round
        assert entry["uniform_regret_per_round"] == result.uniform_regret_per_round
        assert entry["ratio"] == result.ratio
        assert entry["seconds"] > 0
        assert entry["peak_memory_bytes"] > 1e6
        records = [record.to_dict() for record in result.epochs]
        assert without_clock(entry["epochs"]) == without_clock(records)
    ratios = [result.ratio for result in expected]
    mean = document["mean"]
    assert mean["regret_per_round"] == pytest.approx(
        np.mean([result.regret_per_round for result in expected])
    )
    assert mean["ratio"] == pytest.approx(np.mean(ratios))
    assert mean["ratio_standard_error"] == pytest.approx(np.std(ratios, ddof=1) / np.sqrt(2))
    assert mean["epochs"] == len(expected[0].epochs)
    assert document["privacy_claim"].startswith("none")
    assert document["parameters"]["epsilon"] == (None if "--no-privacy" in options else 2.0)
    assert document["versions"]["numpy"] == np.__version__
    assert list(tmp_path.iterdir()) == [path]


def test_json_alone_on_standard_output() -> None:
    outcome = run("simulate", *SMALL, "--json", "-")
    document = json.loads(outcome.stdout)
    assert document["mean"]["ratio_standard_error"] is None
    assert "ratio" in outcome.stderr


def test_json_to_a_device_leaves_the_device() -> None:
    assert run("simulate", *SMALL, "--policy", "uniform", "--json", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "--epsilon", "-1"), "epsilon must be positive and finite, got -1.0"),
        (("simulate", "--delta", "1"), "delta must lie strictly between 0 and 1, got 1.0"),
        (("simulate", "--tau", "0"), "tau must be positive and finite, got 0.0"),
        (("simulate", "--policy", "greedy"), "policy must be 'capri' or 'uniform', got 'greedy'"),
        (("simulate", "--kernel", "rfb"), f"kernel must be one of {KERNELS}, got 'rfb'"),
        (("simulate", "--env", "mars"), f"environment must be one of {ENVIRONMENTS}, got 'mars'"),
        (("simulate", "--actions", "0"), "actions must be a whole number of 1 or more, got 0"),
        (("simulate", "--actions", "1"), "every action is equally good here"),
        (
            ("simulate", "--json", "no/such/folder.json"),
            "cannot write no/such/folder.json: the dir",
        ),
        (("simulate", "--json", "."), "cannot write .: it is a directory"),
        (("demo", "--epsilon", "nan"), "epsilon must be positive and finite, got nan"),
        (("demo", "--output", "demo.gif"), "the picture must end in .png, .svg or .pdf"),
        (("demo", "--output", "no/such/folder.png"), "cannot write no/such/folder.png: the dir"),
    ],
)
def test_bad_options_end_with_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: object, **__: object) -> None:
        raise AssertionError("the run must not start")

    monkeypatch.setattr("capri.simulation.simulate", play)
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(message)
    assert outcome.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    outcome = run("simulate", "--json", tmp_path / "out.json")
    assert outcome.exit_code == 2
    assert "permission denied" in outcome.stderr


def test_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "out.json"
    path.write_text("old")
    monkeypatch.setattr("capri.simulation.simulate", play)
    outcome = run("simulate", *SMALL, "--json", path)
    assert outcome.exit_code == 130
    assert outcome.stderr == "stopped: nothing was written\n"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_demo_draws_and_says_what_one_sees(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    outcome = run("demo", "--preset", "paper", "--rounds", "300", "--output", path)
    assert outcome.exit_code == 0, outcome.output
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    said = " ".join(outcome.stdout.split())
    assert "Simulation, no privacy claim" in said
    assert "No better than uniform play: CAPRI joint, CAPRI local and CAPRI non-private" in said
    assert "nothing was eliminated" in said
    assert f"Picture: {path}" in outcome.stdout
    for label in ("CAPRI joint", "CAPRI local", "CAPRI non-private", "uniform play"):
        assert label in said


def a_run(label: str, ratio: float, active_share: float, width: float) -> Run:
    result = library_run(0)
    records = tuple(
        replace(record, width=width, active_share=active_share) for record in result.epochs
    )
    rounds = 10_000
    regret = ratio * result.uniform_regret_per_round * np.arange(1.0, rounds + 1)
    result = replace(result, rounds=rounds, regret=regret, epochs=records)
    return Run(label=label, promise="", result=result, errors=(), seconds=0.0)


def test_the_finding_follows_the_records() -> None:
    winner, idle = a_run("winner", 0.25, 0.5, 0.1), a_run("idle", 1.0, 1.0, 300.0)
    reason = (
        "; nothing was eliminated, as an action must trail by 4 x width, "
        "never below 1,200, and rewards span 2"
    )
    assert finding([winner], 2.0) == "Less regret than uniform play: winner 75%."
    assert finding([idle], 2.0) == f"No better than uniform play: idle{reason}."
    assert finding([winner, idle], 2.0) == (
        f"Less regret than uniform play: winner 75%. No better than uniform play: idle{reason}."
    )
    unlucky = a_run("unlucky", 1.3, 0.5, 0.1)
    assert finding([unlucky], 2.0) == "No better than uniform play: unlucky."


def test_help_names_what_the_catalogues_know() -> None:
    assert ENVIRONMENTS.split(", ") == list(ENVIRONMENT_NAMES)
    assert KERNELS.split(", ") == list(KERNEL_NAMES)


def test_the_console_entry_in_a_process_of_its_own(tmp_path: Path) -> None:
    source = Path(capri.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}

    def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "capri", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    version = shell("--version")
    assert (version.returncode, version.stdout) == (0, f"capri {capri.__version__}\n")
    good = shell(
        "simulate", *SMALL, "--seed", "3", "--epsilon", "2", "--delta", "1e-4", "--json", "-"
    )
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["seeds"][0]["ratio"] == library_run(3).ratio
    bad = shell("simulate", "--epsilon", "-1")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "epsilon must be positive and finite, got -1.0\n"
    assert list(tmp_path.iterdir()) == []
