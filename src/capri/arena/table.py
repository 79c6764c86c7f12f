"""The table of a contest. Rows are grouped by promise: unlike ones never stand side by side."""

from collections.abc import Sequence
from itertools import groupby

from capri.arena.contest import Result

HEADER = (
    "policy",
    "trusts",
    "kind",
    "protects",
    "unit",
    "epsilon",
    "regret / uniform",
    "seconds",
    "peak MB",
)
# Who is trusted, from nobody to everybody.
_ORDER = {"perfect": 0, "local": 1, "shuffle": 2, "joint": 3, "central": 4, "none": 5}


def _group(result: Result) -> tuple[int, str, float]:
    """Results of one group made the same promise with the same epsilon."""
    promise = result.promise
    epsilon = float("inf") if promise.model in ("none", "perfect") else result.epsilon or 0.0
    return _ORDER[promise.model], str(promise), epsilon


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Groups of one problem, horizon and promise; within a group the best is first."""
    groups = []
    places = {key: place for place, key in enumerate(dict.fromkeys(map(_task, results)))}
    ordered = sorted(results, key=lambda each: (places[_task(each)], _group(each)))
    for _, same in groupby(ordered, key=lambda each: (_task(each), _group(each))):
        groups.append(sorted(same, key=lambda each: (each.ratio is None, each.ratio or 0.0)))
    return groups


def _task(result: Result) -> tuple[str, int]:
    return result.problem, result.rounds


def to_markdown(results: Sequence[Result]) -> str:
    """One table per problem and horizon; an empty row parts what must not be compared."""
    lines: list[str] = []
    groups = grouped(results)
    for (problem, rounds), several in groupby(groups, key=lambda group: _task(group[0])):
        lines += [f"### {problem}, T = {rounds:,}", ""]
        lines += ["| " + " | ".join(HEADER) + " |", "| " + " | ".join(["---"] * len(HEADER)) + " |"]
        for number, group in enumerate(several):
            if number:
                lines.append("| " + " | ".join([" "] * len(HEADER)) + " |")
            lines += ["| " + " | ".join(cells(result)) + " |" for result in group]
        lines.append("")
    return "\n".join(lines)


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table."""
    promise = result.promise
    if promise.model in ("none", "perfect"):
        words = ("no privacy" if promise.model == "none" else "nobody: no data used", "", "", "")
    else:
        words = (promise.model, promise.kind, promise.protects, promise.unit)
    epsilon = "" if result.epsilon is None else f"{result.epsilon:g}"
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
    return name, *words, epsilon, *figures
