"""``capri-lab arena``: CAPRI and every rival on the same problems, in one table.

Its rows are grouped by promise: unlike ones never stand side by side.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capri.cli.options import (
    Delta,
    FirstSeed,
    Json,
    Seeds,
    flag,
    numbers,
    of_policy,
    option,
    whole_numbers,
)
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri_lab.experiments.arena import Result

# Spelled out: asking the catalogues would make --help load everything. A test compares.
PROBLEMS = "rbf, matern52, hartmann4"
EXPERIMENTS = "dubey-2021, usca-2025"

HEADER = ("policy", "trusts", "kind", "protects", "unit", "epsilon", "regret / uniform", "seconds",
          "extra MB")  # fmt: skip
# Who is trusted, from nobody to everybody.
_ORDER = {"perfect": 0, "local": 1, "shuffle": 2, "joint": 3, "central": 4, "none": 5}


def arena(
    problems: Annotated[
        str, option(f"Problems, with commas: {PROBLEMS}.", "NAMES")
    ] = "rbf,matern52,hartmann4",
    policies: Annotated[
        str,
        of_policy("Players, with commas: all, capri-joint, capri-local or any rival.", "NAMES"),
    ] = "all",
    epsilon: Annotated[str, of_policy("Budgets with commas; inf: no noise.", "NUMBERS")] = "1,inf",
    delta: Delta = 1e-5,
    rounds: Annotated[str, option("Horizons with commas.", "NUMBERS")] = "1e4",
    seeds: Seeds = 1,
    seed: FirstSeed = 0,
    experiment: Annotated[
        str | None, option(f"A published set-up instead of the problems: {EXPERIMENTS}.", "NAME")
    ] = None,
    markdown: Annotated[str | None, option("Write the table to this file.", "PATH")] = None,
    wide: Annotated[
        bool, flag("--wide", "One table, a column for every problem and horizon.")
    ] = False,
    json: Json = None,
) -> None:
    """Play CAPRI and its rivals side by side, with what each promises.

    Regret over that of uniform play, seconds and extra memory. Rows are grouped
    by promise and epsilon: only rows of one group promise the same. All runs
    are seeded simulations and carry no privacy claim.
    """
    from capri.cli.outcome import PRIVACY_CLAIM, Meter, check_json, put_json, versions
    from capri.files import write_atomically
    from capri_lab.experiments.arena import ENTRY_NAMES, arena_study, play_arena, published_study

    for path in (markdown, json):
        check_json(path)
    played = range(seed, seed + seeds)
    if experiment is None:
        study = arena_study(
            names(problems),
            ENTRY_NAMES if policies == "all" else names(policies),
            epsilons=numbers("epsilon", epsilon),
            rounds=whole_numbers("rounds", rounds),
            seeds=played,
            delta=delta,
        )
    elif (policies, delta) == ("all", 1e-5):
        study = published_study(experiment, played)
    else:
        raise ConfigurationError(
            "an experiment has its own players and delta = 1e-5: leave out --policies and --delta"
        )
    with Meter("arena", "runs") as meter:
        results = play_arena(study, progress=meter)

    table = to_wide_markdown(results) if wide else to_markdown(results)
    typer.echo(table, err=json == "-")
    if markdown is not None:
        write_atomically(Path(markdown), table.encode())
    put_json(
        json,
        {
            "experiment": experiment,
            "seed": seed,
            "seeds": seeds,
            "delta": delta,
            "privacy_claim": PRIVACY_CLAIM,
            "results": [result.to_dict() for result in results],
            "versions": versions("capri-lab"),
        },
    )


def names(text: str) -> list[str]:
    """The names of a list with commas.

    >>> names("rbf, matern52")
    ['rbf', 'matern52']
    """
    return [part.strip() for part in text.split(",")]


def _group(result: "Result") -> tuple[int, str, float]:
    """ "Result"s of one group made the same promise with the same epsilon."""
    promise = result.promise
    epsilon = float("inf") if promise.model in ("none", "perfect") else result.epsilon or 0.0
    return _ORDER[promise.model], str(promise), epsilon


def grouped(results: "Sequence[Result]") -> "list[list[Result]]":
    """Groups of one problem, horizon and promise; within a group the best is first."""
    places = {key: place for place, key in enumerate(dict.fromkeys(map(_task, results)))}
    ordered = sorted(results, key=lambda each: (places[_task(each)], _group(each)))
    return [
        sorted(same, key=lambda each: (each.ratio is None, each.ratio or 0.0))
        for _, same in groupby(ordered, key=lambda each: (_task(each), _group(each)))
    ]


def _task(result: "Result") -> tuple[str, int]:
    return result.problem, result.rounds


def _table(header: Sequence[str], groups: Iterable[Iterable[Sequence[str]]]) -> list[str]:
    """Lines of a table; an empty row parts what must not be compared."""
    rows = [header, ["---"] * len(header)]
    for number, group in enumerate(groups):
        rows += [*([[" "] * len(header)] if number else []), *group]
    return ["| " + " | ".join(row) + " |" for row in rows]


def to_markdown(results: "Sequence[Result]") -> str:
    """One table per problem and horizon."""
    lines: list[str] = []
    groups = grouped(results)
    for (problem, rounds), several in groupby(groups, key=lambda group: _task(group[0])):
        table = _table(HEADER, (map(cells, group) for group in several))
        lines += [f"### {problem}, T = {rounds:,}", "", *table, ""]
    return "\n".join(lines)


def to_wide_markdown(results: "Sequence[Result]") -> str:
    """One table for all problems and horizons: a column of ratios and of seconds for each."""
    tasks = list(dict.fromkeys(map(_task, results)))
    columns = [f"{problem} {rounds:g}" for problem, rounds in tasks]
    header = [*HEADER[:6], *(f"{each}{what}" for each in columns for what in ("", " s"))]
    found = {(_task(each), each.policy, each.epsilon): each for each in results}

    def row(leader: "Result") -> list[str]:
        cells = [leader.policy, *_words(leader), _epsilon(leader)]
        for task in tasks:
            result = found.get((task, leader.policy, leader.epsilon))
            if result is None or result.ratio is None:
                cells += ["-", "-"]
            else:
                mark = "*" if result.note else ""
                cells += [f"{result.ratio:.3f}{mark}", f"{result.seconds:.1f}"]
        return cells

    # The first task with everybody in it gives the order of the rows.
    leaders = [each for each in results if _task(each) == tasks[0]]
    return "\n".join(_table(header, (map(row, group) for group in grouped(leaders)))) + "\n"


def _words(result: "Result") -> tuple[str, str, str, str]:
    promise = result.promise
    if promise.model in ("none", "perfect"):
        return ("no privacy" if promise.model == "none" else "nobody: no data used", "", "", "")
    return promise.model, promise.kind, promise.protects, promise.unit


def _epsilon(result: "Result") -> str:
    return "" if result.epsilon is None else f"{result.epsilon:g}"


def cells(result: "Result") -> tuple[str, ...]:
    """A row of the table."""
    if result.ratio is None:
        figures = (result.note, "", "")
    else:
        error = result.ratio_standard_error
        figures = (
            f"{result.ratio:.3f}" + ("" if error is None else f" +- {error:.3f}"),
            f"{result.seconds:.1f}",
            f"{(result.peak_memory_bytes or 0) / 1e6:,.0f}",
        )
    name = result.policy
    if result.ratio is not None and result.note:
        name += f" ({result.note})"
    return name, *_words(result), _epsilon(result), *figures
