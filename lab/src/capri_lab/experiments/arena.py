"""The arena: CAPRI and every rival on the same problems, as a study that is played right here."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from capri.errors import ConfigurationError
from capri.files import Given, Source
from capri.players import CAPRI
from capri.privacy.budget import NOTHING
from capri.simulation import PeakMemory
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.play import Record, play
from capri_lab.experiments.players import Player, read_player
from capri_lab.experiments.study import Study, load_study
from capri_lab.experiments.worlds import World
from capri_lab.own import is_own
from capri_lab.rivals import RIVAL_NAMES, Promise, kind_of

# CAPRI under each trust model, beside the rivals.
CAPRI_NAMES = {"capri-joint": "joint", "capri-local": "local"}
ENTRY_NAMES = (*CAPRI_NAMES, *RIVAL_NAMES)
PROBLEM_NAMES = ("rbf", "matern52", "hartmann4")
# Studies of published set-ups, and what they measure: a field of records.
_SIMPLE = "simple_regret"
_EXPERIMENTS = {"dubey-2021": "regret_per_round", "usca-2025": _SIMPLE}
EXPERIMENT_NAMES = tuple(_EXPERIMENTS)

Progress = Callable[[int, int], None]
Task = tuple[str, int, str, float | None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a player reached on a problem, averaged over seeds.

    ``ratio`` is regret per round over that of uniform play; None with a ``note`` where the player
    could not play. ``seconds`` and ``peak_memory_bytes`` are those of building and playing; memory
    is what came on top of the process's own before, the largest over seeds.
    """

    problem: str
    rounds: int
    policy: str
    epsilon: float | None
    promise: Promise
    seeds: int = 0
    ratio: float | None = None
    ratio_standard_error: float | None = None
    regret_per_round: float | None = None
    seconds: float | None = None
    peak_memory_bytes: int | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def arena_study(
    problems: Sequence[str] = PROBLEM_NAMES,
    policies: Sequence[str] = ENTRY_NAMES,
    *,
    epsilons: Sequence[float] = (1.0, math.inf),
    rounds: Sequence[int],
    seeds: Sequence[int],
    delta: float = 1e-5,
) -> Study:
    """Every policy under every epsilon (infinity is no noise) on every problem."""
    for name in problems:
        _among("problems", name, PROBLEM_NAMES)
    for epsilon in epsilons:
        if not epsilon > 0:
            raise ConfigurationError(f"epsilon must be positive, got {epsilon}")
    if min(rounds) < 2:
        raise ConfigurationError(f"rounds must be 2 or more, got {min(rounds)}")
    return Study(
        name="arena",
        title="The arena",
        description="CAPRI and its rivals on the same problems, with what each promises.",
        worlds=tuple(World(label=name, name=f"arena-{name}") for name in problems),
        players=tuple(_player(name, tuple(dict.fromkeys(epsilons))) for name in policies),
        epsilons=(),
        delta=delta,
        rounds=tuple(rounds),
        seeds=tuple(seeds),
    )


def published_study(name: str, seeds: Sequence[int]) -> Study:
    """A published set-up, on seeds of one's own.

    - "dubey-2021": RBF kernel in two dimensions, four centres, 25 random actions per round,
      Bernoulli rewards, T = 1024, epsilon 0.1 to 10 (Dubey 2021, AISTATS, Section 6);
    - "usca-2025": Hartmann-4, T = 50, simple regret, epsilon 0.1 to 50 (Pavlovic, Salgia and Zhao
      2025).
    """
    _among("experiment", name, EXPERIMENT_NAMES, "one of")
    study = load_study(name, thorough=False)
    players = tuple(_player(each.label, study.epsilons) for each in study.players)
    worlds = study.worlds
    if _EXPERIMENTS[name] == _SIMPLE:
        worlds = tuple(replace(each, label=f"{each.label}, simple regret") for each in worlds)
        players = tuple(each for each in players if each.name != "uniform")  # recommends nothing
    return replace(study, seeds=tuple(seeds), worlds=worlds, players=players)


def _player(name: str, epsilons: tuple[float, ...]) -> Player:
    if not is_own(name):
        _among("policies", name, ENTRY_NAMES)
    if name == "capri-local":
        # CAPRI without noise is the same in both models.
        epsilons = tuple(epsilon for epsilon in epsilons if epsilon < math.inf)
    capri = {"name": CAPRI, "model": CAPRI_NAMES.get(name)}
    table = capri if name in CAPRI_NAMES else {"name": name}
    return replace(read_player(Given(table, Source("arena", None))), epsilons=epsilons)


def _among(what: str, name: str, allowed: Sequence[str], how: str = "among") -> None:
    if name not in allowed:
        raise ConfigurationError(f"{what} must be {how} {', '.join(allowed)}, got {name!r}")


def play_arena(study: Study, progress: Progress | None = None) -> list[Result]:
    """Play all cells in this process: a result per problem, horizon, player and epsilon.

    A player beyond its reach is noted, not played.
    """
    found: defaultdict[Task, list[tuple[Record, int]]] = defaultdict(list)
    cells = [replace(cell, maps=False) for cell in study.cells()]
    told = progress or (lambda done, total: None)
    for number, cell in enumerate(cells):
        told(number, len(cells))
        found[*cell.group, cell.epsilon].append(_measured(cell))
    told(len(cells), len(cells))
    figure = _EXPERIMENTS.get(study.name, "regret_per_round")
    return [
        _result(world.label, rounds, player, epsilon, found, figure)
        for world in study.worlds
        for rounds in study.rounds
        for player in study.players
        for epsilon in (player.epsilons or () if player.private else (None,))
    ]


def _measured(cell: Cell) -> tuple[Record, int]:
    """The record of a cell, and the bytes of memory that it took on top of what was there."""
    with PeakMemory() as before:
        pass
    record = play(cell)
    return record, (record["measured"]["peak_memory_bytes"] or 0) - before.peak_bytes


def _result(
    problem: str,
    rounds: int,
    player: Player,
    epsilon: float | None,
    found: dict[Task, list[tuple[Record, int]]],
    figure: str,
) -> Result:
    """The mean over seeds, or why there is none."""
    own = None if epsilon == math.inf else epsilon
    kind = None if own is None else kind_of(player.name)
    result = Result(
        problem=problem,
        rounds=rounds,
        policy=player.label,
        epsilon=epsilon,
        promise=NOTHING if kind is None else kind.promise,
    )
    if rounds > player.reach:
        return replace(result, note=f"reaches T = {player.reach:g}")
    records, extra = zip(*found[problem, rounds, player.label, own], strict=True)
    failed = [record["error"] for record in records if record["status"] == "failed"]
    if failed:
        return replace(
            result, note=f"cannot play: {failed[0].removeprefix('ConfigurationError: ')}"
        )
    ratios = [record[figure] / record["uniform_regret_per_round"] for record in records]
    return replace(
        result,
        promise=Promise(**{k: v for k, v in records[-1]["promise"].items() if k != "label"}),
        seeds=len(records),
        ratio=fmean(ratios),
        ratio_standard_error=stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None,
        regret_per_round=fmean(record[figure] for record in records),
        seconds=fmean(record["measured"]["seconds"] for record in records),
        peak_memory_bytes=max(0, *extra),
        note=records[-1]["note"],
    )
