"""How often the truth lies in the intervals of PrivateKernelRidge: ten kinds of data.

    python benchmarks/calibration.py              # 20 functions of each kind: an hour
    python benchmarks/calibration.py --picture    # draw the stored results again

Epsilon 1, delta 1e-5, default settings but for what ``calibration_worlds.py`` says. Coverage is of
the true function at 1,000 points of the law of the rows (inside) and as many where there are few
rows or none (outside). Functions, rows and noise are drawn anew for every seed.
"""

import common  # isort: skip - sets one BLAS thread
import argparse
import json
import sys
import warnings
from typing import Any

import numpy as np
from calibration_worlds import WORLDS

import capri

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
FUNCTIONS = 20
# Seeds of the functions: nothing was chosen on them.
FIRST = 440
FILE = common.RESULTS / "calibration.json"


def one(kind: str, seed: int) -> dict[str, Any]:
    """Coverage of one fit at every level, and the widths."""
    world = WORLDS[kind](np.random.default_rng(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ridge = capri.PrivateKernelRidge(random_state=seed, **world.settings).fit(world.X, world.y)
    found: dict[str, Any] = {"kind": kind, "seed": seed}
    for place, points in (("inside", world.inside), ("outside", world.outside)):
        truth = world.truth(points)
        mean, width = ridge.predict(points, return_std=True)
        found[f"{place}_error"] = float(np.sqrt(np.mean((mean - truth) ** 2)))
        found[f"{place}_width"] = float(np.sqrt(np.mean(width**2)))
        for simultaneous in (False, True):
            hit = []
            for level in LEVELS:
                low, high = ridge.predict_interval(points, level, simultaneous=simultaneous)
                within = (low <= truth) & (truth <= high)
                hit.append(float(within.all() if simultaneous else within.mean()))
            found[f"{place}_{'all' if simultaneous else 'each'}"] = hit
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    """A table of coverage at nominal 95 %."""
    lines = [
        "| rows | error | width | inside, each point | all points at once | outside, each point |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    at = LEVELS.index(0.95)
    for kind, make in WORLDS.items():
        found = [row for row in rows if row["kind"] == kind]
        if not found:
            continue

        def mean(name: str, found: list[dict[str, Any]] = found) -> float:
            values = [row[name] for row in found]
            return float(np.mean([v[at] if isinstance(v, list) else v for v in values]))

        inside = [row["inside_each"][at] for row in found]
        about = (make.__doc__ or kind).strip().rstrip(".")
        lines.append(
            f"| {kind}: {about[0].lower() + about[1:]} | {mean('inside_error'):.3g} "
            f"| {mean('inside_width'):.3g} | {100 * np.mean(inside):.1f} % "
            f"({100 * min(inside):.0f} to {100 * max(inside):.0f}) "
            f"| {100 * mean('inside_all'):.0f} % | {100 * mean('outside_each'):.1f} % |"
        )
    return "\n".join(lines)


def picture(rows: list[dict[str, Any]]) -> None:
    """Coverage against level, a panel for each kind of data."""
    from capri.plots.style import new_figure, prepare

    figure = new_figure(
        13.0,
        7.0,
        "Coverage of intervals, where rows are and where they are not",
        f"Share of points at which the true function lies in the interval, against its level. Mean "
        f"of up to {FUNCTIONS} functions; epsilon 1.",
    )
    for place, kind in enumerate(WORLDS):
        axes = figure.add_subplot(2, 5, place + 1)
        prepare(axes, kind, "coverage" if place % 5 == 0 else "")
        found = [row for row in rows if row["kind"] == kind]
        axes.plot([0.45, 1], [0.45, 1], color=common.GREY, linestyle="--", linewidth=1)
        for name, colour, label in (
            ("inside_each", common.BLUE, "where rows are"),
            ("outside_each", common.ORANGE, "where they are not"),
            ("inside_all", common.GREEN, "all points at once"),
        ):
            values = np.mean([row[name] for row in found], axis=0)
            axes.plot(LEVELS, values, "o-", color=colour, markersize=4, label=label)
        axes.set_xlim(0.45, 1.02)
        axes.set_ylim(0.0, 1.03)
        if place >= 5:
            axes.set_xlabel("level")
    common.save_panels(figure, "calibration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", action="store_true", help="draw the stored results again")
    parser.add_argument("--kinds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    chosen = parser.parse_args()
    rows = json.loads(FILE.read_text()) if FILE.exists() else []
    if not chosen.picture:
        rows = [row for row in rows if row["kind"] not in chosen.kinds]
        for seed in range(FIRST, FIRST + FUNCTIONS):
            for kind in chosen.kinds:
                rows.append(one(kind, seed))
                FILE.write_text(json.dumps(rows, indent=0) + "\n")
    print(summary(rows))
    picture(rows)


if __name__ == "__main__":
    sys.exit(main())
