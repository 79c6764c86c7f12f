"""Regret of the defaults against the bars and against the best private rival.

    python benchmarks/regret.py [--functions 20] [--rival measure|keep|none]
                                [--longest 1000000] [--minutes 1000]

Every row: fresh random functions (seeds 2000, 2001, ...), one run each, the same defaults
everywhere; regret per round divided by that of uniform play. The rival's settings are picked per
row on the very functions it is measured on; ``keep`` takes it from the last results. Runs longer
than ``--longest``, and those for which no time is left, are taken from the last results, too, and
marked where their code is older.
Writes results/regret.json, docs/figures/regret.png and the table in docs/results.md.
"""

import argparse
import json
from time import perf_counter
from typing import Any

import common
import numpy as np
from common import BLUE, GREEN, GREY, ORANGE, PROBLEMS, power
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rival_linucb import FEATURES, SETTINGS, rival_ratios, schedules

FIRST_SEED = 2000

# Problem, epsilon (None: no privacy), rounds, bar (None: not promised).
ROWS: list[tuple[str, float | None, int, float | None]] = [
    ("matern", 1.0, 10**4, 0.22),
    ("rbf", 1.0, 10**4, 0.20),
    ("matern", 1.0, 10**5, 0.07),
    ("rbf", 1.0, 10**5, 0.06),
    ("matern", 1.0, 10**6, 0.025),
    ("rbf", 1.0, 10**6, 0.02),
    ("matern", 0.1, 10**6, 0.10),
    ("rbf", 0.1, 10**6, 0.10),
    ("matern", None, 10**5, 0.02),
    ("rbf", None, 10**5, 0.02),
    ("contexts", 1.0, 10**4, 0.33),
    ("contexts", 1.0, 10**5, 0.13),
    ("hartmann", 1.0, 10**5, 0.2),
    ("bernoulli", 1.0, 10**5, None),
    ("rough", 1.0, 10**5, None),
    ("actions", 1.0, 10**5, None),
    ("five", 1.0, 10**5, None),
    ("camel", 1.0, 10**5, None),
    ("michalewicz", 1.0, 10**5, None),
    ("long", 1.0, 10**5, None),
    ("short", 1.0, 10**5, None),
    ("weak", 1.0, 10**5, None),
    ("clicks", 1.0, 10**5, None),
    ("clicks", 1.0, 10**6, None),
]


def rival(
    problem: str, rounds: int, epsilon: float, seed: int, features: int, schedule: tuple[str, float]
) -> list[float]:
    chosen = PROBLEMS[problem]
    ratios = rival_ratios(
        chosen.kernel,
        chosen.make(seed),
        rounds,
        epsilon=epsilon,
        features=features,
        schedule=schedule,
        seed=seed,
    )
    return [float(ratio) for ratio in ratios]


def best_rival(problem: str, rounds: int, epsilon: float, seeds: range) -> dict[str, Any]:
    """The rival with the features, schedule, bonus and shift of the smallest mean regret."""
    started = perf_counter()
    variants = [(count, kind) for count in FEATURES for kind in schedules(rounds)]
    calls = [
        (problem, rounds, epsilon, seed, count, kind) for count, kind in variants for seed in seeds
    ]
    ratios = np.array(common.in_parallel(rival, calls)).reshape(len(variants), len(seeds), -1)
    means = ratios.mean(axis=1)
    variant, setting = np.unravel_index(means.argmin(), means.shape)
    features, schedule = variants[variant]
    published = [number for number, (_, kind) in enumerate(variants) if kind[0] == "tree"]
    return {
        **common.summary(ratios[variant, :, setting]),
        "features": features,
        "schedule": list(schedule),
        "bonus": SETTINGS[setting][0],
        "shift": SETTINGS[setting][1],
        "tried": means.size,
        "mean_as_published": float(means[published].min()),
        "ratios": ratios[variant, :, setting].tolist(),
        "seconds": perf_counter() - started,
    }


def kept_rivals(seeds: range) -> dict[tuple[str, int], dict[str, Any]]:
    """Rivals of the last results, if they were measured on the same functions."""
    if not (common.RESULTS / "regret.json").exists():
        return {}
    last = json.loads((common.RESULTS / "regret.json").read_text())
    if last["seeds"] != [seeds[0], seeds[-1]]:
        raise SystemExit("the last results are of other functions: measure the rival again")
    return {(row["problem"], row["rounds"]): row["rival"] for row in last["rows"] if row["rival"]}


def measure(functions: int, rivals: str, longest: int, minutes: float) -> dict[str, Any]:
    started = perf_counter()
    seeds = range(FIRST_SEED, FIRST_SEED + functions)
    kept = kept_rivals(seeds) if rivals == "keep" else {}
    older = common.last_results("regret")["rows"]
    header = {"seeds": [seeds[0], seeds[-1]], "delta": common.DELTA, **common.about()}
    rows: list[dict[str, Any]] = []
    for problem, epsilon, rounds, bar in ROWS:
        if rounds > longest or perf_counter() - started > 60 * minutes:
            key = problem, epsilon, rounds
            rows += [row for row in older if (row["problem"], row["epsilon"], row["rounds"]) == key]
            continue
        runs = common.in_parallel(
            common.play, [(problem, rounds, epsilon, seed, {}) for seed in seeds]
        )
        ratios = [run["ratio"] for run in runs]
        row: dict[str, Any] = {
            "problem": problem,
            "label": PROBLEMS[problem].label,
            "epsilon": epsilon,
            "rounds": rounds,
            "bar": bar,
            **common.summary(ratios),
            "ratios": ratios,
            "seconds_per_run": float(np.median([run["seconds"] for run in runs])),
            "rival": None,
            "commit": common.commit(),
        }
        if epsilon == 1.0 and rivals == "measure":
            row["rival"] = best_rival(problem, rounds, epsilon, seeds)
        elif epsilon == 1.0 and rivals == "keep":
            row["rival"] = kept.get((problem, rounds))
        rows.append(row)
        print(line(row), flush=True)
    return header | {"rows": rows}


def setting(row: dict[str, Any]) -> str:
    epsilon = "no privacy" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}"
    return f"{epsilon}, T = {power(row['rounds'])}"


def line(row: dict[str, Any]) -> str:
    digits = 4 if row["mean"] < 0.1 else 3
    cells = [
        row["label"],
        setting(row),
        "" if row["bar"] is None else f"{row['bar']:g}",
        f"**{row['mean']:.{digits}f}**",
        f"{row['standard_error']:.4f}",
        f"{row['max']:.3f}",
    ]
    if row["rival"] is None:
        cells += ["", ""]
    else:
        chosen = row["rival"]
        kind = f"{chosen['schedule'][0]} {chosen['schedule'][1]:g}"
        cells += [
            f"{chosen['mean']:.3f} ± {chosen['standard_error']:.3f}",
            f"{chosen['features']} features, {kind}, {chosen['bonus']:g}, {chosen['shift']:g}",
        ]
    return "| " + " | ".join(cells) + " |"


def table(results: dict[str, Any]) -> str:
    head = (
        "| problem | setting | bar | mean | std. error | max | best private LinUCB | settings |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    newest = results["rows"][0].get("commit")
    marked = [
        row | {"label": row["label"] + " †" * (row.get("commit") != newest)}
        for row in results["rows"]
    ]
    return head + "".join(line(row) + "\n" for row in marked)


def draw(results: dict[str, Any]) -> Figure:
    rows = results["rows"][::-1]
    figure = Figure(figsize=(9.5, 0.34 * len(rows) + 1.5), facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.47, right=0.98, top=0.93, bottom=0.09)
    for place, row in enumerate(rows):
        axes.plot(row["ratios"], np.full(len(row["ratios"]), place), "|", color=BLUE, alpha=0.35)
        axes.plot(row["mean"], place, "o", color=BLUE, markersize=7)
        if row["rival"] is not None:
            axes.plot(row["rival"]["mean"], place, "s", color=ORANGE, markersize=6)
        if row["bar"] is not None:
            axes.plot(row["bar"], place, "<", color=GREEN, markersize=7)
    promised = sum(row["bar"] is None for row in rows)
    axes.axhline(promised - 0.5, color=GREY, linewidth=0.8)
    axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--")
    axes.text(0.93, len(rows) - 0.4, "uniform play", color=GREY, size=8.5, ha="right")
    axes.set_yticks(range(len(rows)), [f"{row['label']}   {setting(row)}" for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.set(xscale="log", xlim=(4e-4, 1.5), ylim=(-0.7, len(rows) + 0.2))
    axes.set_xlabel("regret per round / regret of uniform play (lower is better)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    handles = [
        Line2D([], [], marker="o", color=BLUE, linestyle="", label="CAPRI, defaults: mean"),
        Line2D([], [], marker="|", color=BLUE, linestyle="", label="each function"),
        Line2D([], [], marker="s", color=ORANGE, linestyle="", label="best private LinUCB"),
        Line2D([], [], marker="<", color=GREEN, linestyle="", label="bar to stay below"),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=4, frameon=False, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--rival", choices=("measure", "keep", "none"), default="measure")
    parser.add_argument("--longest", type=int, default=10**6)
    parser.add_argument("--minutes", type=float, default=1000.0)
    arguments = parser.parse_args()
    results = measure(arguments.functions, arguments.rival, arguments.longest, arguments.minutes)
    common.save_json("regret", results)
    common.publish("regret", table(results))
    common.save_figure(draw(results), "regret")


if __name__ == "__main__":
    main()
