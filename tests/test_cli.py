"""The shell gives the library's numbers, and ends with one clear line when it cannot."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import capri
import capri.forecast.run  # loaded before a test replaces what it imports
from capri.audit.proof import AttackResult, AuditResult
from capri.audit.scenarios import audit_policy as audit
from capri.cli import app
from capri.cli.simulate import KERNELS
from capri.kernels import KERNEL_NAMES
from capri.local.simulator import DeviceSimulator
from capri.players import ContestRun, finding, price_of_trust
from capri.simulation import UniformPlay

ROUNDS = 120
SMALL = ("--contexts", "6", "--actions", "5", "--rounds", str(ROUNDS))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def library_run(seed: int, policy: str = "capri", **settings: object) -> capri.SimulationResult:
    kernel = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
    environment = capri.environments.random_rkhs(kernel, contexts=6, actions=5, seed=seed)
    if policy == "uniform":
        player = UniformPlay(actions=environment.actions, horizon=ROUNDS, simulation_seed=seed)
    elif policy == "devices":
        player = DeviceSimulator.build(
            kernel=kernel,
            actions=environment.actions,
            contexts=capri.ContextPool(environment.contexts),
            horizon=ROUNDS,
            simulation_seed=seed,
            budget=capri.Budget(epsilon=2.0, delta=1e-4),
            **settings,
        )
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
        (("--model", "local"), {"policy": "devices"}),
        (("--model", "shuffle"), {"policy": "devices", "shuffle": capri.Shuffle()}),
        (("--model", "local", "--preset", "paper"), {"model": "local", "preset": "paper"}),
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
    spends = not {"--no-privacy", "uniform"} & set(options)
    assert document["parameters"]["epsilon"] == (2.0 if spends else None)
    assert document["versions"]["numpy"] == np.__version__
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_may_be_written_like_1e2_and_inf_is_no_privacy() -> None:
    small = ("--contexts", "6", "--actions", "5e0", "--rounds", "1.2e2", "--json", "-")
    documents = [
        json.loads(run("simulate", *small, *wish).stdout)
        for wish in (("--epsilon", "inf"), ("--no-privacy",))
    ]
    assert [each["seeds"][0]["ratio"] for each in documents] == [
        library_run(0, budget=None).ratio
    ] * 2
    assert documents[0]["parameters"] == documents[1]["parameters"]
    assert documents[0]["parameters"]["epsilon"] is None
    for wrong in ("1", "1e-4", "inf", "nan", "many", "1e40"):
        refused = run("simulate", "--rounds", wrong)
        assert refused.exit_code == 2
        assert f"{wrong} is not a whole number of 2 or more" in refused.stderr


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
        (("simulate", "--delta", "1"), "delta must be 0 or more and below 1, got 1.0"),
        (
            ("simulate", "--preset", "paper", "--tau", "0"),
            "tau must be positive and finite, got 0.0",
        ),
        (("simulate", "--policy", "greedy"), "policy must be one of 'capri', 'uniform', got"),
        (
            ("simulate", "--policy", "uniform", "--tau", "1"),
            "leave out --tau, of capri alone: uniform has a promise of its own",
        ),
        (
            ("simulate", "--policy", "uniform", "--model", "local", "--tau", "1"),
            "leave out --model and --tau, of capri alone: uniform has a promise of its own",
        ),
        (("simulate", "--policy", "uniform", "--preset", "paper"), "leave out --preset, of capri"),
        (("simulate", "--epsilon=-inf"), "epsilon must be positive and finite, got -inf"),
        (("simulate", "--kernel", "rfb"), f"kernel must be one of {KERNELS}, got 'rfb'"),
        (("simulate", "--actions", "0"), "actions must be a whole number of 1 or more, got 0"),
        (("simulate", "--actions", "1"), "every action is equally good here"),
        (
            ("simulate", "--json", "no/such/folder.json"),
            "cannot write no/such/folder.json: the dir",
        ),
        (("simulate", "--json", "."), "cannot write .: it is a directory"),
        (("demo", "--epsilon", "nan"), "epsilon must be positive and finite, got nan"),
        (("demo", "--local-epsilon", "0"), "epsilon must be positive and finite, got 0.0"),
        (("demo", "--output", "demo.gif"), "the picture must end in .png, .svg or .pdf"),
        (("forecast", "--output", "f.gif"), "the picture must end in .png, .svg or .pdf"),
        (("forecast", "--epsilon", "1;2"), "epsilon must be numbers with commas between them"),
        (("forecast", "--epsilon", "0"), "epsilon must be positive and finite, got 0.0"),
        (("forecast", "--rounds", "1.5"), "rounds must be whole numbers, got '1.5'"),
        (("forecast", "--rounds", "1"), "horizon must be a whole number of 2 or more, got 1"),
        (("forecast", "--detail", "3"), "detail must be one of the epsilons 0.1,1,4, got 3"),
        (("forecast", "--contexts", "0"), "contexts must be a whole number of 1 or more, got 0"),
        (("forecast", "--actions", "1"), "with a single action there is nothing to forecast"),
        (("forecast", "--contexts-csv", "no.csv"), "no.csv cannot be read: No such file"),
        (("forecast", "--model", "global"), "model must be one of 'joint', 'local', 'shuffle'"),
        (
            ("forecast", "--model", "shuffle", "--preset", "paper"),
            "model shuffle needs preset prac",
        ),
        (("audit", "--trials", "5"), "an audit needs at least 100 trials, got 5"),
        (("audit", "--confidence", "1"), "confidence must lie strictly between 0 and 1, got 1.0"),
        (("audit", "--preset", "best"), "preset must be 'practical' or 'paper', got 'best'"),
        (("audit", "--model", "global"), "model must be one of 'joint', 'local', got 'global'"),
        (("audit", "--model", "local"), "model='local' in one process is the paper's"),
        (("audit", "--model", "device", "--trials", "5"), "an audit needs at least 100 trials"),
        (("audit", "--model", "device", "--output", "a.png"), "there is no picture of a device"),
        (("audit", "--model", "device", "--preset", "paper"), "devices run preset 'practical'"),
        (("demo", "--output", "no/such/folder.png"), "cannot write no/such/folder.png: the dir"),
    ],
)
def test_bad_options_end_with_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: object, **__: object) -> None:
        raise AssertionError("the run must not start")

    monkeypatch.setattr("capri.simulation.simulate", play)
    monkeypatch.setattr("capri.forecast.run.simulate", play)
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
    assert "No better than uniform play: CAPRI joint at epsilon" in said
    assert "(4, 1e-05), noise" in said  # the paper's local form, not devices
    assert "nothing was eliminated" in said
    assert f"Picture: {path}" in outcome.stdout
    for label in ("CAPRI joint", "CAPRI local", "CAPRI non-private", "uniform play"):
        assert label in said


def test_demo_of_the_practical_preset_learns(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    outcome = run("demo", "--rounds", "2500", "--local-epsilon", "2", "--output", path)
    assert outcome.exit_code == 0, outcome.output
    said = " ".join(outcome.stdout.split())
    assert "Less regret than uniform play: CAPRI joint" in said
    assert "Even at epsilon 2, trusting nobody costs" in said
    assert "pure epsilon 2," in said
    assert "on each device" in said
    assert path.read_bytes().startswith(b"<?xml")


def a_run(
    label: str,
    ratio: float,
    active_share: float = 1.0,
    width: float = 0.1,
    *,
    predicted_error: float | None = None,
    epsilon: float | None = None,
) -> ContestRun:
    result = library_run(0)
    records = tuple(
        replace(record, width=width, active_share=active_share, predicted_error=predicted_error)
        for record in result.epochs
    )
    rounds = 10_000
    regret = ratio * result.uniform_regret_per_round * np.arange(1.0, rounds + 1)
    result = replace(result, rounds=rounds, regret=regret, epochs=records)
    return ContestRun(
        label=label, promise="", result=result, errors=(), seconds=0.0, epsilon=epsilon
    )


def test_the_finding_follows_the_records() -> None:
    winner, idle = a_run("winner", 0.25, 0.5, 0.1), a_run("idle", 1.0, 1.0, 300.0)
    reason = (
        "; nothing was eliminated, as an action must trail by 4 x width, "
        "never below 1,200, and rewards span 2"
    )
    assert finding([winner], 2.0) == "Less regret than uniform play: winner (75%)."
    assert finding([idle], 2.0) == f"No better than uniform play: idle{reason}."
    assert finding([winner, idle], 2.0) == (
        f"Less regret than uniform play: winner (75%). No better than uniform play: idle{reason}."
    )
    unlucky = a_run("unlucky", 1.3, 0.5, 0.1)
    assert finding([unlucky], 2.0) == "No better than uniform play: unlucky."


def test_the_finding_follows_the_predicted_error() -> None:
    """Below half of the mean gap, an error hides little: then no reason is given."""
    gap = library_run(0).uniform_regret_per_round
    blind = a_run("blind", 1.0, predicted_error=0.9 * gap)
    assert finding([blind], 2.0) == (
        "No better than uniform play: blind; the expected error of the estimate, never below "
        f"{0.9 * gap:.2g}, hides the mean gap between an action and the best, {gap:.2g}."
    )
    unlucky = a_run("unlucky", 1.0, predicted_error=0.4 * gap)
    assert finding([unlucky], 2.0) == "No better than uniform play: unlucky."


def test_the_price_of_trust_is_computed() -> None:
    joint, local = a_run("joint", 0.05, epsilon=1.0), a_run("local", 0.25, epsilon=4.0)
    assert price_of_trust(joint, local) == (
        "Even at epsilon 4, trusting nobody costs 5.0 times the regret of trusting the curator "
        "at epsilon 1."
    )
    equal = replace(local, epsilon=1.0)
    assert price_of_trust(joint, equal) == (
        "At the same epsilon, trusting nobody costs 5.0 times the regret of trusting the curator."
    )
    assert price_of_trust(joint, a_run("local", 1.0, epsilon=0.5)) == (
        "At epsilon 0.5, trusting nobody costs 20 times the regret of trusting the curator "
        "at epsilon 1."
    )
    assert price_of_trust(joint, replace(joint, epsilon=4.0)) is None
    assert price_of_trust(a_run("joint", 1.0, epsilon=1.0), local) is None


FORECAST = (
    "forecast", "--contexts", "6", "--actions", "5", "--functions", "2", "--rounds", "200,1e3",
)  # fmt: skip


def test_forecast_prints_draws_and_writes_the_numbers_of_the_library(tmp_path: Path) -> None:
    picture, results = tmp_path / "forecast.png", tmp_path / "forecast.json"
    outcome = run(*FORECAST, "--epsilon", "1,inf", "--json", results, "--output", picture)
    assert outcome.exit_code == 0, outcome.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(results.read_text())
    environment = capri.environments.random_rkhs(
        capri.kernels.Matern(nu=2.5, lengthscale=0.3), contexts=6, actions=5
    )
    expected = capri.Capri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts),
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
    ).forecast(horizons=(200, 1000), epsilons=(1.0, float("inf")), functions=2)
    for entry, row in zip(document["rows"], expected.rows, strict=True):
        assert entry["ratio"] == row.ratio
        assert entry["verdict"] == row.verdict
    assert document["rows"][2]["epsilon"] is None
    row = expected.at(1.0, 1000)
    said = outcome.stdout
    assert f"{row.ratio:.3f} +- {row.ratio_standard_error:.3f}" in said
    assert row.grade in said
    assert "no privacy" in said
    assert "Epochs at no privacy" in said


def test_forecast_tells_kinds_apart_and_what_the_kernel_costs(tmp_path: Path) -> None:
    picture, results = tmp_path / "forecast.png", tmp_path / "forecast.json"
    outcome = run(*FORECAST, "--epsilon", "1,4", "--detail", "4", "--json", results,
                  "--output", picture)  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(results.read_text())
    assert {entry["kind"] for entry in document["kinds"]} == {"rough", "mostly actions"}
    every = document["costs"][0]
    assert (every["kind"], every["epsilon"]) == ("all", 4.0)
    said = " ".join(outcome.stdout.split())
    assert f"the known kernel has {every['cost']:.2g} times the regret of kernel='auto'" in said
    assert "By kind of function, at epsilon 4" in said
    alone = run(*FORECAST, "--epsilon", "4", "--kernel", "auto", "--output", picture)
    assert alone.exit_code == 0, alone.output
    assert "the known kernel" not in " ".join(alone.stdout.split())


def test_forecast_says_what_a_delta_buys(tmp_path: Path) -> None:
    """With a delta and without: from the two noises of the epsilon whose epochs are listed."""
    results = tmp_path / "forecast.json"
    arguments = (
        *FORECAST, "--rounds", "200", "--epsilon", "1", "--no-compare", "--output",
        tmp_path / "f.png", "--json", results,
    )  # fmt: skip
    noises = (
        "dense messages, with Gaussian noise of 7.46 a coordinate; those of one cell need none, "
        "have Laplace noise of 2.83 and tell more up to 7 cells a direction (epsilon 1)."
    )
    for delta, begins in (("1e-5", "Delta 1e-05 buys"), ("0", "A delta of 1e-05 would buy")):
        outcome = run(*arguments, "--delta", delta)
        assert outcome.exit_code == 0, outcome.output
        assert f"{begins} {noises}" in " ".join(outcome.stdout.split())
        found = json.loads(results.read_text())
        assert (found["delta"], found["delta_buys"]) == (float(delta), f"{begins} {noises}")
    assert run(*arguments, "--model", "local").exit_code == 0
    assert json.loads(results.read_text())["delta_buys"] == ""


def test_forecast_of_devices(tmp_path: Path) -> None:
    arguments = (*FORECAST, "--model", "local", "--no-compare", "--output", tmp_path / "f.png")
    outcome = run(*arguments, "--rounds", "200", "--epsilon", "8")
    assert outcome.exit_code == 0, outcome.output
    assert "local model" in " ".join(outcome.stdout.split())
    mixed = run(*arguments, "--model", "shuffle", "--epsilon", "2", "--json", "-")
    found = json.loads(mixed.stdout)
    assert (found["model"], found["delta"]) == ("shuffle", 1e-5)
    paper = run(*arguments, "--preset", "paper", "--epsilon", "2", "--json", "-")
    ratios = [json.loads(each.stdout)["rows"][-1]["ratio"] for each in (mixed, paper)]
    assert ratios[0] < ratios[1]
    refused = run(*arguments, "--epsilon", "inf")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("devices always make their reports private")


def test_forecast_json_alone_on_standard_output(tmp_path: Path) -> None:
    outcome = run(
        *FORECAST, "--epsilon", "0.01", "--json", "-", "--output", tmp_path / "forecast.svg"
    )
    assert json.loads(outcome.stdout)["rows"][0]["epsilon"] == 0.01
    assert "no epoch closes within 1,000 rounds" in outcome.stderr


def test_forecast_of_rows_from_files(tmp_path: Path) -> None:
    contexts, actions = tmp_path / "contexts.csv", tmp_path / "actions.csv"
    contexts.write_text("age,income\n0.1,0.2\n0.5,0.6\n\n0.9,1\n")
    actions.write_text('\ufeffprice\n0.1\n"0.9"\n')
    outcome = run(
        *FORECAST, "--epsilon", "2", "--preset", "paper",
        "--contexts-csv", contexts, "--actions-csv", actions, "--output", tmp_path / "forecast.pdf",
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert "the pool of 3 contexts" in " ".join(outcome.stdout.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a header and at least one row"),
        ("price\n", "needs a header and at least one row"),
        ("0.1,0.2\n0.3,0.4\n", "needs a header that names its columns"),
        ("a,b\n1,2\n3\n", "line 3: 2 cells are needed, got 1"),
        ("a,b\n1,x\n", "line 2, column 'b': a finite number is needed, got 'x'"),
        ("a\n1\ninf\n", "line 3, column 'a': a finite number is needed, got 'inf'"),
        ("a\n\x00\xff\n", "column 'a': a finite number is needed"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    outcome = run(*FORECAST, "--contexts-csv", path, "--output", tmp_path / "forecast.png")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(str(path))
    assert message in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    path.write_bytes(b"\xff\xfe\x00")
    outcome = run(*FORECAST, "--actions-csv", path, "--output", tmp_path / "forecast.png")
    assert outcome.stderr == f"{path} cannot be read: it is no CSV text\n"


@pytest.mark.parametrize(
    ("model", "preset", "delta", "unit"),
    [("joint", "practical", 1e-5, "mu"), ("joint", "practical", 0.0, "epsilon"),
     ("local", "paper", 1e-5, "mu")],
)  # fmt: skip
def test_audit_prints_claim_and_proof(
    tmp_path: Path,
    model: str,
    preset: str,
    delta: float,
    unit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One attack of ten: the others play more epochs or fork processes, which takes its time.
    monkeypatch.setattr("capri.audit.scenarios.audit_policy", partial(audit, attacks=("reward",)))
    picture, results = tmp_path / "audit.png", tmp_path / "audit.json"
    outcome = run(
        "audit", "--model", model, "--preset", preset, "--trials", "100", "--epsilon", "8",
        "--delta", str(delta), "--json", results, "--output", picture,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(results.read_text())
    assert document["model"] == model
    assert f"proven {unit}" in outcome.stdout
    assert document["claimed"]["epsilon"] == 8.0
    assert document["passed"] is True
    names = ["reward", "4 actions"]
    if model == "joint" and delta:  # plans may take either noise
        names = [f"{name}, {noise}" for name in names for noise in ("gaussian", "laplace")]
    assert [attack["name"] for attack in document["attacks"]] == names
    assert f"{document['claimed'][unit]:.3f}" in outcome.stdout
    assert "Passed" in outcome.stdout


def test_audit_that_proves_too_much_ends_with_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = np.linspace(2.0, 4.0, 100)
    attack = AttackResult(name="release", trials=100, low=-apart, high=apart, proven=3.0)
    broken = AuditResult(
        model="joint",
        epsilon=4.0,
        delta=1e-5,
        confidence=0.999,
        attacks=(attack,),
    )
    monkeypatch.setattr("capri.audit.scenarios.audit_policy", lambda *_, **__: broken)
    outcome = run("audit", "--json", "-", "--output", tmp_path / "audit.png")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["passed"] is False
    assert "FAILED: an attack proves more loss than is claimed" in outcome.stderr
    assert (tmp_path / "audit.png").exists()


def test_audit_of_the_bytes_of_devices(tmp_path: Path) -> None:
    """A sound device fails by chance with 1e-5 at most, the confidence."""
    path = tmp_path / "audit.json"
    outcome = run(
        "audit", "--model", "device", "--trials", "1000", "--epsilon", "4",
        "--confidence", "0.99999", "--json", path,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(path.read_text())
    assert document["claimed"] == {"epsilon": 4.0}
    assert (document["model"], document["delta"]) == ("device", 0.0)
    proven = {attack["name"]: attack["proven"] for attack in document["attacks"]}
    assert 0.0 < proven["report"] <= 4.0
    assert proven["tokens"] == 0.0
    assert set(document["checks"]) == {"law", "bias"}
    for name in ("report", "bits", "tokens", "law", "bias", "Passed"):
        assert name in outcome.stdout
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("proven", "law", "bias", "said"),
    [
        (4.5, 0.5, 0.0, "proves more loss than is claimed"),
        (1.0, 0.5, 9.0, "do not follow the law"),
        (1.0, 1e-9, 0.0, "do not follow the law"),
    ],
)
def test_audit_of_a_broken_device_ends_with_code_1(
    proven: float, law: float, bias: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = AttackResult(name="report", trials=100, proven=proven)
    broken = AuditResult(
        model="device",
        epsilon=4.0,
        delta=0.0,
        confidence=0.999,
        attacks=(attack,),
        checks={"law": (law, law > 1e-6), "bias": (bias, bias < 5)},
    )
    monkeypatch.setattr("capri.audit.device.audit_device", lambda *_, **__: broken)
    outcome = run("audit", "--model", "device", "--json", "-")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["passed"] is False
    assert said in " ".join(outcome.stderr.split())


def test_help_names_what_the_catalogues_know() -> None:
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
