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

from capri.arrays import FloatArray, one_blas_thread
from capri.environments import Environment, TabularEnvironment
from capri.epoch.plan import unsaid
from capri.errors import CapriError, ConfigurationError
from capri.files import json_values
from capri.joint.policy import Capri
from capri.local.simulator import DeviceSimulator
from capri.privacy.budget import Budget
from capri.simulation import PeakMemory, Policy, SimulationResult, simulate
from capri.version import VERSION
from capri_lab.datasets import DataBandit
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.players import build_player
from capri_lab.experiments.worlds import build_world, view_of
from capri_lab.rivals import promise_of

Record = dict[str, Any]
# Called with rounds played and regret per round over that of uniform play.
Watch = Callable[[int, float], None]

CURVE_POINTS = 150
# Groups of contexts, and of actions, in a map of the pairs in play.
BINS = 24
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
    measured = {"seconds": perf_counter() - started} | found["measured"] | {"finished": _now()}
    measured["peak_memory_bytes"] = max(memory.peak_bytes, measured["peak_memory_bytes"])
    record: Record = json_values(
        _identity(cell) | {"status": "done", "error": None} | found | {"measured": measured}
    )
    return record


def failure(cell: Cell, error: str, *, seconds: float | None = None) -> Record:
    """The record of a cell that has no result."""
    path = cell.world.get("path")
    if path:
        error = error.replace(str(path), "the file of the table")
    nothing = dict.fromkeys(
        ("promise", "regret_per_round", "uniform_regret_per_round", "ratio", "halves",
         "simple_regret", "curve", "active", "certificate")
    )  # fmt: skip
    return (
        _identity(cell)
        | {"status": "failed", "error": error, "note": "", "epochs": []}
        | nothing
        | {"measured": {"seconds": seconds, "peak_memory_bytes": None, "epoch_seconds": [],
                        "finished": _now()}}
    )  # fmt: skip


def _play(cell: Cell, watch: Watch | None) -> Record:
    world, told = view_of(*build_world(cell.world, cell.seed), cell.player)
    budget = None
    if cell.epsilon is not None and cell.delta is not None:
        budget = Budget(epsilon=cell.epsilon, delta=cell.delta)
    with unsaid():  # the records say it
        policy, note = build_player(
            cell.player, told, world, budget=budget, rounds=cell.rounds, seed=cell.seed
        )
    promise = promise_of(policy)
    maps = Maps(policy, world) if cell.maps else None
    uniform = world.uniform_regret()

    def progress(rounds: int, regret: float) -> None:
        if maps is not None:
            maps.look()
        if watch is not None:
            watch(rounds, regret / uniform if uniform > 0 else math.nan)

    with unsaid():
        result = simulate(policy, world, cell.rounds, seed=cell.seed, progress=progress)
    if maps is not None:
        maps.look()  # the last epoch closes after the last round
    epochs = [record.to_dict() for record in result.epochs]
    seconds = [epoch.pop("seconds") for epoch in epochs]
    return {
        "promise": asdict(promise) | {"label": str(promise)},
        "note": note,
        "regret_per_round": result.regret_per_round,
        "uniform_regret_per_round": result.uniform_regret_per_round,
        "ratio": result.ratio,
        "halves": list(result.halves),
        "simple_regret": _simple_regret(policy, world),
        "curve": _curve(result),
        "epochs": epochs,
        "active": None if maps is None else maps.to_dict(),
        # Rows of data come back, so what is certified for one visit says little about a person.
        "certificate": None if isinstance(world, DataBandit) else _certificate(policy),
        "measured": {"peak_memory_bytes": result.peak_memory_bytes, "epoch_seconds": seconds},
    }


def _identity(cell: Cell) -> Record:
    return {
        "cell": cell.hash,
        "study": cell.study,
        "version": VERSION,
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


def recommendation(policy: Policy, world: TabularEnvironment) -> FloatArray:
    """The law of the action a policy would keep after its run, in the only context there is.

    Some rivals draw it from a ``law()``, others name it with ``recommend(context)``.
    """
    rival: Any = policy
    if hasattr(policy, "law"):
        return np.asarray(rival.law()[0])
    if isinstance(policy, Capri):
        kept = int(policy.estimate(world.contexts)[0].argmax())
    elif hasattr(policy, "recommend"):
        kept = rival.recommend(0)
    else:
        raise ConfigurationError(f"{type(policy).__name__} recommends no action")
    return np.asarray(np.eye(len(world.actions))[kept])


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
    terms = policy.terms() if isinstance(policy, Capri | DeviceSimulator) else None
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


class Maps:
    """Coarse pictures of the pairs in play, one per epoch, for problems with two dimensions.

    A map has a row per group of contexts and a digit per group of actions: the share of their pairs
    that the next epoch may play, 0 for none to 9 for all.
    """

    def __init__(self, policy: Policy, world: Environment) -> None:
        self._policy = policy
        self._epochs: list[dict[str, Any]] = []
        self._source: Any = policy.aggregator if isinstance(policy, DeviceSimulator) else policy
        self._fits = (
            isinstance(policy, Capri | DeviceSimulator)
            and world.contexts.shape[1] == 1
            and world.actions.shape[1] == 1
            and len(world.contexts) > 1
        )
        self._contexts, self._actions = (
            np.array_split(np.argsort(rows[:, 0]), min(BINS, len(rows)))
            for rows in (world.contexts, world.actions)
        )
        self._world = world

    def look(self) -> None:
        """Draw a map if an epoch has closed since the last one."""
        closed = len(self._policy.epochs)
        if not self._fits or closed == (self._epochs[-1]["epoch"] if self._epochs else 0):
            return
        playable = self._source.probabilities(self._world.contexts) > 0
        rows = [
            "".join(str(int(9 * playable[np.ix_(some, few)].mean())) for few in self._actions)
            for some in self._contexts
        ]
        self._epochs.append({"epoch": closed, "rows": rows})

    def to_dict(self) -> dict[str, Any] | None:
        """The maps, or None where there are none."""
        if not self._epochs:
            return None
        return {
            "contexts": [float(self._world.contexts[some, 0].mean()) for some in self._contexts],
            "actions": [float(self._world.actions[few, 0].mean()) for few in self._actions],
            "epochs": self._epochs,
        }
