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
from capri.environments import Environment
from capri.simulation import UniformPlay, simulate
from capri_lab.cli import app
from capri_lab.cli.arena import EXPERIMENTS, PROBLEMS, grouped, to_markdown, to_wide_markdown
from capri_lab.environments import dubey_world, usca_world
from capri_lab.experiments.arena import (
    ENTRY_NAMES,
    EXPERIMENT_NAMES,
    PROBLEM_NAMES,
    Result,
    arena_study,
    play_arena,
    published_study,
)
from capri_lab.experiments.play import recommendation
from capri_lab.experiments.players import build_player
from capri_lab.experiments.worlds import SETUPS, build_world
from capri_lab.rivals import RIVAL_NAMES, Promise

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
    study = arena_study(rounds=[60], seeds=[0])
    assert {player.label for player in study.players} == set(ENTRY_NAMES) >= set(RIVAL_NAMES)
    epsilons: dict[str, list[float | None]] = {}
    for cell in study.cells():
        if cell.environment == "rbf":
            epsilons.setdefault(cell.policy, []).append(cell.epsilon)
    assert epsilons["gp-ucb"] == [None]
    assert epsilons["capri-joint"] == [1.0, None]
    assert epsilons["capri-local"] == [1.0]
    with pytest.raises(ConfigurationError, match=r"policies must be among capri-joint.*'gpucb'"):
        arena_study(policies=["gpucb"], rounds=[60], seeds=[0])
    with pytest.raises(ConfigurationError, match=r"epsilon must be positive, got 0"):
        arena_study(policies=["capri-joint"], epsilons=[0.0], rounds=[60], seeds=[0])


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


def test_wide_table_has_a_column_for_every_problem_and_horizon() -> None:
    first = [result("a", 0.25, JOINT, 1.0), result("b", 0.5, NONE, None)]
    more = [replace(each, rounds=1000, ratio=0.125, note="with care") for each in first[:1]]
    lines = to_wide_markdown(first + more).splitlines()
    assert lines[0].endswith("| epsilon | p 10 | p 10 s | p 1000 | p 1000 s |")
    assert lines[2].endswith("| one round | 1 | 0.250 | 1.0 | 0.125* | 1.0 |")
    assert set(lines[3]) == {"|", " "}
    assert lines[4].endswith("|  | 0.500 | 1.0 | - | - |")


def test_the_arena_plays_and_notes_who_cannot() -> None:
    names = ["uniform", "kusner", "dubey-joint"]
    study = arena_study(["matern52"], names, epsilons=[1.0], rounds=[60], seeds=[0, 1])
    results = play_arena(study)
    by_name = {each.policy: each for each in results}
    assert by_name["uniform"].ratio == pytest.approx(1.0, abs=0.5)
    assert by_name["uniform"].promise.model == "perfect"
    assert by_name["uniform"].ratio_standard_error is not None
    assert by_name["dubey-joint"].note == "with an RBF kernel"
    assert all(each.ratio is not None and each.seeds == 2 for each in results)
    (far,) = play_arena(arena_study(["rbf"], ["kusner"], epsilons=[1], rounds=[10**8], seeds=[0]))
    assert far.ratio is None
    assert far.note.startswith("reaches T = ")
    assert far.promise.model != "none"
    (unfit,) = play_arena(
        arena_study(["rbf"], ["dubey-joint"], epsilons=[1], rounds=[60], seeds=[0], delta=0.0)
    )
    assert unfit.note.startswith("cannot play: Gaussian noise needs delta above 0")
    assert unfit.ratio is None


def test_the_arena_equals_a_run_by_hand() -> None:
    study = arena_study(["rbf"], ["capri-joint"], epsilons=[2.0], rounds=[300], seeds=[3])
    (ours,) = play_arena(study)
    world, told = build_world({"name": "arena-rbf"}, 3)
    policy = capri.Capri(
        kernel=told.kernel,
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
        world, _ = build_world({"name": f"arena-{name}"}, 0)
        assert world.means.shape == (50, 50)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="among rbf, matern52, hartmann4, got 'sphere'"):
        arena_study(["sphere"], rounds=[60], seeds=[0])


def test_dubeys_world_is_as_published() -> None:
    """Frequencies of 40,000 rewards within 5 standard errors."""
    world = dubey_world(1)
    assert isinstance(world, Environment)
    assert world.contexts.shape == (400, 50)
    pairs = SETUPS["dubey-2021"][1].actions.pairs(world.contexts)  # type: ignore[union-attr]
    assert pairs.shape == (400, 25, 2)
    means = world.means
    assert means.min() >= 0
    assert 0.9 < means.max() <= 1.0
    context, action = np.zeros(40_000, dtype=np.int64), np.full(40_000, 3)
    rewards = world.rewards(np.random.default_rng(0), context, action)
    assert set(rewards) == {0.0, 1.0}
    p = means[0, 3]
    assert abs(rewards.mean() - p) < 5 * math.sqrt(p * (1 - p) / 40_000)
    assert world.parameters()["rewards"] == "Bernoulli"
    told = SETUPS["dubey-2021"][1]
    policy, _ = build_player({"name": "gp-ucb"}, told, world, budget=None, rounds=300, seed=0)
    assert simulate(policy, world, 300, seed=0).ratio < 0.5


def test_uscas_experiment_measures_simple_regret() -> None:
    results = play_arena(published_study("usca-2025", [0]))
    assert {each.policy for each in results} == {"capri-joint", "usca", "gp-ucb"}
    for each in results:
        assert each.rounds == 50
        assert each.ratio is not None
        assert each.ratio >= 0
    world = usca_world(0)
    told = SETUPS["usca-2025"][1]
    policy, _ = build_player({"name": "gp-ucb"}, told, world, budget=None, rounds=50, seed=0)
    simulate(policy, world, 50, seed=0)
    lost = world.means.max() - world.means[0] @ recommendation(policy, world)
    (reference,) = (each for each in results if each.policy == "gp-ucb")
    assert reference.regret_per_round == pytest.approx(lost)
    with pytest.raises(ConfigurationError, match="recommends no action"):
        recommendation(UniformPlay(actions=[[0.0]], horizon=1), world)


def test_unknown_experiment() -> None:
    with pytest.raises(ConfigurationError, match="one of dubey-2021, usca-2025, got 'usca'"):
        published_study("usca", [0])


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
