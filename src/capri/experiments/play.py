"""Play one cell and write down what came of it."""

import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from traceback import extract_tb
from typing import Any

import numpy as np

from capri import __version__
from capri.arena.experiments import recommendation
from capri.blas import one_blas_thread
from capri.datasets import DataBandit
from capri.environments import Environment, TabularEnvironment
from capri.errors import CapriError, ConfigurationError
from capri.experiments.cells import Cell
from capri.experiments.maps import Maps
from capri.experiments.players import build_player
from capri.experiments.worlds import build_world
from capri.joint.policy import Capri
from capri.local.fleet import Fleet
from capri.memory import PeakMemory
from capri.simulation import Policy, SimulationResult, simulate

Record = dict[str, Any]
# Called with rounds played and regret per round over that of uniform play.
Watch = Callable[[int, float], None]

CURVE_POINTS = 150
NO_CLAIM = "none: seeded noise, nobody was protected"


def play(cell: Cell, watch: Watch | None = None) -> Record:
    """The record of a cell. What goes wrong inside it is recorded, not raised."""
    started = perf_counter()
    memory = PeakMemory()
    try:
        with memory, one_blas_thread():
            found = _play(cell, watch)
    except Exception as problem:
        return failure(cell, _in_words(problem), seconds=perf_counter() - started)
    measured = found.pop("measured")
    record: Record = _plain(
        _identity(cell)
        | {"status": "done", "error": None}
        | found
        | {
            "measured": {
                "seconds": perf_counter() - started,
                "peak_memory_bytes": max(memory.peak_bytes, measured.pop("peak_memory_bytes")),
                **measured,
                "finished": _now(),
            }
        }
    )
    return record


def failure(cell: Cell, error: str, *, seconds: float | None = None) -> Record:
    """The record of a cell that has no result."""
    path = cell.world.get("path")
    if path:
        error = error.replace(str(path), "the file of the table")
    nothing = dict.fromkeys(
        ("promise", "regret_per_round", "uniform_regret_per_round", "ratio", "simple_regret",
         "curve", "active", "certificate")
    )  # fmt: skip
    return (
        _identity(cell)
        | {"status": "failed", "error": error, "note": "", "epochs": []}
        | nothing
        | {"measured": {"seconds": seconds, "peak_memory_bytes": None, "epoch_seconds": [],
                        "finished": _now()}}
    )  # fmt: skip


def _play(cell: Cell, watch: Watch | None) -> Record:
    world, problem = build_world(cell.world, cell.seed)
    policy, promise, note = build_player(
        cell.player,
        problem,
        world,
        epsilon=cell.epsilon,
        delta=cell.delta,
        rounds=cell.rounds,
        seed=cell.seed,
    )
    maps = Maps(policy, world) if cell.maps else None
    uniform = world.uniform_regret()

    def progress(rounds: int, regret: float) -> None:
        if maps is not None:
            maps.look()
        if watch is not None:
            watch(rounds, regret / uniform if uniform > 0 else math.nan)

    result = simulate(policy, world, cell.rounds, seed=cell.seed, progress=progress)
    epochs = [record.to_dict() for record in result.epochs]
    seconds = [epoch.pop("seconds") for epoch in epochs]
    return {
        "promise": asdict(promise) | {"label": str(promise)},
        "note": note,
        "regret_per_round": result.regret_per_round,
        "uniform_regret_per_round": result.uniform_regret_per_round,
        "ratio": result.ratio,
        "simple_regret": _simple_regret(policy, world),
        "curve": _curve(result),
        "epochs": epochs,
        "active": None if maps is None else maps.to_dict(),
        # Rows of data come back, so what is certified for one visit says little about a person.
        "certificate": None if isinstance(world, DataBandit) else _certificate(policy),
        "measured": {"epoch_seconds": seconds, "peak_memory_bytes": result.peak_memory_bytes},
    }


def _identity(cell: Cell) -> Record:
    return {
        "cell": cell.hash,
        "study": cell.study,
        "version": __version__,
        "simulated": True,
        "environment": cell.environment,
        # Where a file lies is nobody's business; the hash of its content is there.
        "world": {key: value for key, value in cell.world.items() if key != "path"},
        "policy": cell.policy,
        "player": cell.player,
        "epsilon": cell.epsilon,
        "delta": cell.delta,
        "rounds": cell.rounds,
        "seed": cell.seed,
    }


def _curve(result: SimulationResult) -> dict[str, list[Any]]:
    """Cumulative regret at rounds evenly spaced on a log scale, the first and last included."""
    rounds = np.unique(np.geomspace(1, result.rounds, CURVE_POINTS).round().astype(np.int64))
    return {"round": rounds.tolist(), "regret": result.regret[rounds - 1].tolist()}


def _simple_regret(policy: Policy, world: Environment) -> float | None:
    """``max f - E f(recommended)`` where there is one context and the policy recommends."""
    if not isinstance(world, TabularEnvironment) or len(world.contexts) > 1:
        return None
    try:
        law = recommendation(policy, world)
    except ConfigurationError:
        return None
    return float(world.means[0].max() - law @ world.means[0])


def _certificate(policy: Policy) -> Record | None:
    """What a private run of this configuration would certify; the simulation itself claims nothing.

    Without what was spent and released: nothing was. None for runs without a budget and for rivals.
    """
    terms = policy.terms() if isinstance(policy, Capri | Fleet) else None
    return terms and {"simulated": True, "claim": NO_CLAIM, "would_certify": terms}


def _in_words(problem: Exception) -> str:
    text = f"{type(problem).__name__}: {problem}".strip().removesuffix(":")
    trace = extract_tb(problem.__traceback__)
    if isinstance(problem, CapriError) or not trace:
        return text
    # Unexpected: say where, without paths of this machine.
    return f"{text} ({Path(trace[-1].filename).name}, line {trace[-1].lineno})"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(value: Any) -> Any:
    """The same with lists for tuples and None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
