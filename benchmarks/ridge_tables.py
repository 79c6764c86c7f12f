"""Tables and a picture of the cells that `ridge_rivals.py` stored."""

from collections import defaultdict
from typing import Any

import common
import numpy as np
from ridge_methods import MEAN, METHODS, OURS
from ridge_sets import MADE_UP, SETS, UNSEEN

from capri.plots.style import new_figure, prepare

# Errors above this are not drawn.
CUT = 1.2
# At most this many times the error of DP-EBM.
_NEAR = 1.03
LINES = {"same": "o-", "weaker": "o:", "stronger": "o-.", "none": "--"}
HOW = "solid: the promise of ours; dotted: a weaker one"


class Cells:
    """Errors by set, number of rows, method and epsilon, one a split."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._errors: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        self._sizes: dict[str, set[int]] = defaultdict(set)
        self.columns: dict[str, int] = {}
        whole = {name: max(row["rows"] for row in rows if row["set"] == name)
                 for name in {row["set"] for row in rows}}  # fmt: skip
        self.epsilons = sorted({row["epsilon"] for row in rows if row["rows"] == whole[row["set"]]})
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

    def less(self, name: str, method: str, other: str, epsilon: float) -> tuple[float, float]:
        """Mean of the paired differences of two methods, and its standard error."""
        one, two = self.errors(name, method, epsilon), self.errors(name, other, epsilon)
        found = np.array([one[split] - two[split] for split in one if split in two])
        if len(found) < 2:
            return np.nan, np.nan
        return float(found.mean()), float(found.std(ddof=1) / np.sqrt(len(found)))


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
        label = f"{name}, {max(cells.sizes(name)):,} rows, {cells.columns[name]} columns"
        body.append(_row(cells, label, name, 1.0))
    return _lines(["epsilon 1", *METHODS], body)


def best_rivals(cells: Cells) -> str:
    """Ours beside the best rival, with standard errors of the paired differences over splits."""
    body, counts = [], dict.fromkeys(("same", "weaker", "DP-EBM", "mean"), 0)
    played = [(name, epsilon) for name in cells.sets for epsilon in cells.epsilons
              if name not in UNSEEN and cells.errors(name, OURS, epsilon)]  # fmt: skip
    for name, epsilon in played:
        ours = cells.mean(name, OURS, epsilon)
        line = [name, f"{epsilon:g}", f"{ours:.3f}"]
        for standings in (("same",), ("same", "weaker")):
            means = {method: cells.mean(name, method, epsilon) for method, rival in METHODS.items()
                     if method != OURS and rival.standing in standings}  # fmt: skip
            best = min(means, key=lambda method: np.nan_to_num(means[method], nan=np.inf))
            gap, half = cells.less(name, OURS, best, epsilon)
            line.append(f"{best} {means[best]:.3f} ({gap:+.3f} ± {half:.1g})")
            counts[standings[-1]] += gap <= half
        counts["DP-EBM"] += ours <= _NEAR * cells.mean(name, "DP-EBM", epsilon)
        counts["mean"] += cells.less(name, OURS, MEAN, epsilon)[0] <= 0
        body.append(line)
    text = (
        f"Best or within one standard error in {counts['same']} of {len(played)} cells among the "
        f"same promise and in {counts['weaker']} among the same or a weaker one; at most 3 % worse "
        f"than DP-EBM in {counts['DP-EBM']}; no worse than the private mean in {counts['mean']}.\n"
    )
    head = ["table", "epsilon", "ours", "best of the same promise", "best of it or a weaker one"]
    return text + "\n" + _lines(head, body)


def few(cells: Cells) -> str:
    """Few rows: ours and the private mean."""
    places = [(name, rows, epsilon) for name in cells.sets for rows in cells.sizes(name)[:-1]
              for epsilon in (0.1, 1.0) if cells.errors(name, OURS, epsilon, rows)]  # fmt: skip
    body = []
    for name, rows, epsilon in places:
        ours, mean = (cells.mean(name, each, epsilon, rows) for each in (OURS, MEAN))
        body.append([name, f"{rows:,}", f"{epsilon:g}", f"{ours:.3f}", f"{mean:.3f}"])
    return _lines(["table", "rows", "epsilon", "ours", "private mean"], body)


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
    real = [name for name in cells.sets if name not in (*MADE_UP, *UNSEEN)]
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
        "rivals: best": best_rivals(cells),
        "rivals: few": few(cells),
    }
    for name, text in tables.items():
        print(f"{name}\n\n{text}")
        if publish:
            common.publish(name, text)
    if publish and rows:
        picture_by_epsilon(cells)
