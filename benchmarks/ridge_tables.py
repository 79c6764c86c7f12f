"""Tables and a picture of the cells that `ridge_rivals.py` stored."""

from collections import defaultdict
from typing import Any

import common
import numpy as np
from ridge_methods import METHODS, OURS
from ridge_sets import MADE_UP, SETS

from capri.plots.style import new_figure, prepare

# Errors above this are not drawn.
CUT = 1.2
LINES = {"same": "o-", "weaker": "o:", "stronger": "o-.", "none": "--"}
HOW = "solid: the promise of ours; dotted: a weaker one"


class Cells:
    """Errors by set, number of rows, method and epsilon, one a split."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._errors: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        self._sizes: dict[str, set[int]] = defaultdict(set)
        self.columns: dict[str, int] = {}
        self.epsilons = sorted({row["epsilon"] for row in rows})
        self.splits = len({row["split"] for row in rows})
        for row in rows:
            at = (row["set"], row["rows"], row["method"], row["epsilon"])
            self._errors[at][row["split"]] = row["error"]
            self._sizes[row["set"]].add(row["rows"])
            self.columns[row["set"]] = row["columns"]

    @property
    def sets(self) -> list[str]:
        return [name for name in SETS if name in self._sizes]

    def sizes(self, name: str) -> list[int]:
        return sorted(self._sizes[name])

    def errors(self, name: str, method: str, epsilon: float, rows: int = 0) -> dict[int, float]:
        """By split; of all rows where their number is not said."""
        epsilon = 1.0 if METHODS[method].standing == "none" else epsilon  # which it has not
        at = (name, rows or max(self._sizes[name]), method, epsilon)
        return self._errors.get(at, {})

    def mean(self, name: str, method: str, epsilon: float, rows: int = 0) -> float:
        found = list(self.errors(name, method, epsilon, rows).values())
        return float(np.mean(found)) if found else np.nan


def _lines(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(errors: dict[int, float], best: bool) -> str:
    if not errors:
        return ""
    values = list(errors.values())
    half = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    mean = f"{np.mean(values):.3f}"
    return (f"**{mean}**" if best else mean) + f" ± {max(half, 0.001):.1g}"


def _row(cells: Cells, label: str, name: str, epsilon: float, rows: int = 0) -> list[str]:
    """A line of a table, the best with the promise of ours or a weaker one in bold."""
    shown = {method: cells.errors(name, method, epsilon, rows) for method in METHODS}
    means = {method: np.mean(list(errors.values())) for method, errors in shown.items()
             if errors and METHODS[method].standing in ("same", "weaker")}  # fmt: skip
    best = min(means, key=lambda method: means[method]) if means else None
    return [label, *(_cell(errors, method == best) for method, errors in shown.items())]


def promises() -> str:
    body = [[name, rival.promise, rival.settings] for name, rival in METHODS.items()]
    return _lines(["method", "promise", "settings"], body)


def by_epsilon(cells: Cells) -> str:
    """At epsilon 1; the picture shows the others."""
    body = []
    for name in cells.sets:
        if name not in MADE_UP:
            label = f"{name}, {max(cells.sizes(name)):,} rows, {cells.columns[name]} columns"
            body.append(_row(cells, label, name, 1.0))
    return _lines(["epsilon 1", *METHODS], body)


def _draw(axes: Any, places: list[float], means: dict[str, list[float]]) -> None:
    for method, values in means.items():
        if np.all(np.isnan(values)):
            continue
        rival = METHODS[method]
        axes.plot(places, values, LINES[rival.standing], markersize=3,
                  color=rival.colour, label=method, zorder=5 if method == OURS else 2,
                  linewidth=2.2 if method == OURS else 1.2)  # fmt: skip
    axes.set_xscale("log")


def picture_by_epsilon(cells: Cells) -> None:
    real = [name for name in cells.sets if name not in MADE_UP]
    figure = new_figure(
        13.0,
        9.5,
        "Private regression on real tables",
        "Error on held-out rows over the spread of targets, against epsilon; mean of "
        f"{cells.splits} splits; above {CUT:g} is cut off; {HOW}.",
    )
    for place, name in enumerate(real):
        axes = figure.add_subplot(3, 4, place + 1)
        prepare(axes, f"{name}, {max(cells.sizes(name)):,} rows", "")
        _draw(axes, cells.epsilons, {method: [cells.mean(name, method, epsilon)
                                              for epsilon in cells.epsilons]
                                     for method in METHODS})  # fmt: skip
        axes.set_ylim(top=CUT)
        if place >= len(real) - 4:
            axes.set_xlabel("epsilon")
    common.save_panels(figure, "ridge-rivals", columns=5)


def show(rows: list[dict[str, Any]], *, publish: bool) -> None:
    """Print the tables; write them and the picture to docs/ where asked to."""
    cells = Cells(rows)
    tables = {
        "rivals: promises": promises(),
        "rivals: epsilon": by_epsilon(cells),
    }
    for name, text in tables.items():
        print(f"{name}\n\n{text}")
        if publish:
            common.publish(name, text)
    if publish and rows:
        picture_by_epsilon(cells)
