"""Everyone on the same problems, and never unlike promises side by side."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import capri
from capri import ConfigurationError
from capri.arena import (
    EXPERIMENT_NAMES,
    PROBLEM_NAMES,
    Entry,
    Result,
    contest,
    entries,
    experiment,
    problem_by_name,
    to_markdown,
)
from capri.arena.contest import ENTRY_NAMES, build
from capri.arena.experiments import DUBEY, USCA, dubey_world, recommendation, usca_world
from capri.arena.table import grouped
from capri.cli import app
from capri.cli.arena import EXPERIMENTS, PROBLEMS
from capri.environments import Environment
from capri.rivals import RIVAL_NAMES, Promise
from capri.simulation import simulate

RUNNER = CliRunner()


def result(policy: str, ratio: float | None, promise: Promise, epsilon: float | None) -> Result:
    return Result(
        problem="p", rounds=10, policy=policy, epsilon=epsilon, promise=promise, seeds=1,
        ratio=ratio, ratio_standard_error=None, regret_per_round=ratio, seconds=1.0,
        peak_memory_bytes=10**6, note="" if ratio is not None else "reaches T = 5",
    )  # fmt: skip


JOINT = Promise(model="joint", kind="approximate")
REWARDS = Promise(model="joint", kind="approximate", protects="rewards")
NONE = Promise(model="none", kind="none", protects="nothing")


def test_entries_are_everybody_once_per_epsilon_that_matters() -> None:
    field = entries()
    assert {entry.policy for entry in field} == set(ENTRY_NAMES) >= set(RIVAL_NAMES)
    assert [entry.epsilon for entry in field if entry.policy == "gp-ucb"] == [math.inf]
    assert [entry.epsilon for entry in field if entry.policy == "capri-joint"] == [1.0, math.inf]
    assert [entry.epsilon for entry in field if entry.policy == "capri-local"] == [1.0]
    with pytest.raises(ConfigurationError, match=r"policies must be among capri-joint.*'gpucb'"):
        entries(["gpucb"])
    with pytest.raises(ConfigurationError, match=r"epsilon must be positive, got 0"):
        entries(["capri-joint"], [0.0])


def test_rows_of_a_group_make_the_same_promise_with_the_same_epsilon() -> None:
    rows = [
        result("b", 0.5, JOINT, 1.0),
        result("a", 0.2, JOINT, 1.0),
        result("late", None, JOINT, 1.0),
        result("c", 0.1, JOINT, 4.0),
        result("d", 0.1, REWARDS, 1.0),
        result("e", 0.01, NONE, None),
        result("f", 0.02, NONE, math.inf),
    ]
    groups = [[each.policy for each in group] for group in grouped(rows)]
    assert groups == [["a", "b", "late"], ["c"], ["d"], ["e", "f"]]
    other = [replace(rows[0], problem="q"), replace(rows[0], rounds=20)]
    assert len(grouped(rows + other)) == 6


def test_markdown_shows_the_promise_of_every_row() -> None:
    text = to_markdown([result("a", 0.25, REWARDS, 1.0), result("b", 0.5, NONE, None)])
    lines = text.splitlines()
    assert lines[0] == "### p, T = 10"
    assert lines[4] == "| a | joint | approximate | rewards | one round | 1 | 0.250 | 1.0 | 1 |"
    assert set(lines[5]) == {"|", " "}, "groups are parted"
    assert lines[6] == "| b | no privacy |  |  |  |  | 0.500 | 1.0 | 1 |"


def test_contest_plays_and_notes_who_cannot() -> None:
    field = entries(["uniform", "kusner", "dubey-joint"], [1.0])
    results = list(contest([problem_by_name("matern52")], field, rounds=[60], seeds=[0, 1]))
    by_name = {each.policy: each for each in results}
    assert by_name["uniform"].ratio == pytest.approx(1.0, abs=0.5)
    assert by_name["uniform"].promise.model == "perfect"
    assert by_name["uniform"].ratio_standard_error is not None
    assert by_name["dubey-joint"].note == "with an RBF kernel"
    assert all(each.ratio is not None and each.seeds == 2 for each in results)
    far = list(contest([problem_by_name("rbf")], field[1:2], rounds=[10**8], seeds=[0]))[0]
    assert far.ratio is None
    assert far.note.startswith("reaches T = ")
    assert far.promise.model != "none"


def test_contest_equals_a_run_by_hand() -> None:
    problem = problem_by_name("rbf")
    (ours,) = contest([problem], entries(["capri-joint"], [2.0]), rounds=[300], seeds=[3])
    world = problem.world(3)
    policy = capri.Capri(
        kernel=problem.kernel,
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(epsilon=2.0, delta=1e-5),
        horizon=300,
        simulation_seed=3,
    )
    assert ours.ratio == simulate(policy, world, 300, seed=3).ratio
    assert ours.promise == Promise(model="joint", kind="approximate")


def test_problem_names() -> None:
    for name in PROBLEM_NAMES:
        problem = problem_by_name(name)
        assert problem.name == name
        assert problem.world(0).means.shape == (50, 50)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="among rbf, matern52, hartmann4, got 'sphere'"):
        problem_by_name("sphere")


def test_dubeys_world_is_as_published() -> None:
    """Frequencies of 40,000 rewards within 5 standard errors."""
    world = dubey_world(1)
    assert isinstance(world, Environment)
    assert world.contexts.shape == (400, 50)
    pairs = DUBEY.actions.pairs(world.contexts)  # type: ignore[union-attr]
    assert pairs.shape == (400, 25, 2)
    means = world.inner.means
    assert means.min() >= 0
    assert 0.9 < means.max() <= 1.0
    context, action = np.zeros(40_000, dtype=np.int64), np.full(40_000, 3)
    rewards = world.rewards(np.random.default_rng(0), context, action)
    assert set(rewards) == {0.0, 1.0}
    p = means[0, 3]
    assert abs(rewards.mean() - p) < 5 * math.sqrt(p * (1 - p) / 40_000)
    assert world.parameters()["rewards"] == "Bernoulli"
    policy, _ = build(
        Entry(policy="gp-ucb", epsilon=math.inf), DUBEY, world, rounds=300, seed=0, delta=1e-5
    )
    assert simulate(policy, world, 300, seed=0).ratio < 0.5


def test_uscas_experiment_measures_simple_regret() -> None:
    results = experiment("usca-2025", seeds=[0])
    assert {each.policy for each in results} == {"capri-joint", "usca", "gp-ucb"}
    for each in results:
        assert each.rounds == 50
        assert each.ratio is not None
        assert each.ratio >= 0
    world = usca_world(0)
    policy, _ = build(
        Entry(policy="gp-ucb", epsilon=math.inf), USCA, world, rounds=50, seed=0, delta=1e-5
    )
    simulate(policy, world, 50, seed=0)
    lost = world.means.max() - world.means[0] @ recommendation(policy, world)
    (reference,) = (each for each in results if each.policy == "gp-ucb")
    assert reference.regret_per_round == pytest.approx(lost)
    with pytest.raises(ConfigurationError, match="recommends no action"):
        recommendation(capri.rivals.UniformPlay(actions=[[0.0]], horizon=1), world)


def test_unknown_experiment() -> None:
    with pytest.raises(ConfigurationError, match="one of dubey-2021, usca-2025, got 'usca'"):
        experiment("usca", seeds=[0])


def test_command_writes_table_and_json(tmp_path: Path) -> None:
    table, file = tmp_path / "table.md", tmp_path / "results.json"
    outcome = RUNNER.invoke(
        app,
        ["arena", "--problems", "rbf,matern52", "--policies", "uniform, linucb,capri-local",
         "--rounds", "50,80", "--epsilon", "3", "--markdown", str(table), "--json", str(file)],
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    assert table.read_text() in outcome.stdout
    document = json.loads(file.read_text())
    assert len(document["results"]) == 2 * 2 * 3
    assert document["privacy_claim"].startswith("none")
    local = [each for each in document["results"] if each["policy"] == "capri-local"]
    assert {each["promise"]["model"] for each in local} == {"local"}
    assert {each["epsilon"] for each in local} == {3.0}


def test_command_spells_the_names_out() -> None:
    assert ", ".join(PROBLEM_NAMES) == PROBLEMS
    assert ", ".join(EXPERIMENT_NAMES) == EXPERIMENTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "sphere"], "problems must be among rbf"),
        (["--policies", "nobody"], "policies must be among capri-joint"),
        (["--rounds", "1"], "rounds must be 2 or more"),
        (["--experiment", "mine"], "experiment must be one of dubey-2021"),
    ],
)
def test_bad_options_end_with_one_line(arguments: list[str], message: str) -> None:
    outcome = RUNNER.invoke(app, ["arena", *arguments])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(message)
