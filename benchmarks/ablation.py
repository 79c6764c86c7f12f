"""One change from the defaults at a time: what each option of the practical preset is worth.

    python benchmarks/ablation.py [--functions 10] [--longest 100000]

Regret per round divided by that of uniform play, joint model, epsilon 1, seeds 3000, 3001, ...
Runs longer than ``--longest`` are taken from the last results. Writes results/ablation.json and the
table in docs/results.md.
"""

import argparse
from typing import Any

import common
import numpy as np

FIRST_SEED = 3000

CASES = [
    ("matern", 10**4, "Matern 1e4"),
    ("matern", 10**5, "Matern 1e5"),
    ("contexts", 10**5, "200 x 20 1e5"),
    ("hartmann", 10**5, "Hartmann 1e5"),
]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"thompson_scale": 0.3},
    {"thompson_scale": 1.0},
    {"draws": 16},
    {"draws": 256},
    {"residual": False},
    {"clip_scale": 1.0},
    {"clip_scale": 3.0},
    {"moment_share": 0.05},
    {"moment_share": 0.4},
    {"tail_share": 0.03},
    {"tail_share": 0.3},
    {"smoothness": 0.0},
    {"smoothness": 1.0},
    {"norm_bound": 0.3},
    {"norm_bound": 3.0},
    {"rank_tolerance": 1e-2},
    {"rank_tolerance": 1e-4, "max_rank": 300},
    {"max_rank": 20},
    {"growth": 1.25},
    {"growth": 2.0},
    {"growth": 3.0},
    {"first_epoch": 30},
    {"first_epoch": 1000},
    {"noise": "gaussian"},
    {"noise": "laplace"},
]


def name(variant: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in variant.items()) or "defaults"


def measure(functions: int, longest: int) -> dict[str, Any]:
    seeds = range(FIRST_SEED, FIRST_SEED + functions)
    older = common.last_results("ablation")["rows"]
    cases = [case for case in CASES if case[1] <= longest]
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS:
        calls = [
            (problem, rounds, 1.0, seed, variant) for problem, rounds, _ in cases for seed in seeds
        ]
        runs = common.in_parallel(common.play, calls)
        ratios = np.array([run["ratio"] for run in runs]).reshape(len(cases), len(seeds))
        found = {
            label: common.summary(values) | {"ratios": values.tolist(), "commit": common.commit()}
            for (_, _, label), values in zip(cases, ratios, strict=True)
        }
        kept = next((row["cases"] for row in older if row["options"] == variant), {})
        rows.append({"options": variant, "cases": kept | found})
        print(line(rows[-1], rows[0]), flush=True)
    return {"seeds": [seeds[0], seeds[-1]], **common.about(), "rows": rows}


def line(row: dict[str, Any], default: dict[str, Any]) -> str:
    """Means with the standard error of the last digits; bold where clearly worse than default."""
    cells = [name(row["options"])]
    for _, _, label in CASES:
        if label not in row["cases"]:
            cells.append("")
            continue
        found = row["cases"][label]
        pairs = np.array(found["ratios"]) - np.array(default["cases"][label]["ratios"])
        error = pairs.std(ddof=1) / np.sqrt(len(pairs)) if pairs.any() else 0.0
        text = f"{found['mean']:.3f} ± {found['standard_error']:.3f}"
        worse = pairs.mean() > 2.5 * error and pairs.mean() > 0
        better = pairs.mean() < -2.5 * error and pairs.mean() < 0
        cells.append(f"**{text}**" if worse else f"*{text}*" if better else text)
    return "| " + " | ".join(cells) + " |"


def table(results: dict[str, Any]) -> str:
    head = "| change | " + " | ".join(label for _, _, label in CASES) + " |\n"
    head += "| --- |" + " --- |" * len(CASES) + "\n"
    rows = results["rows"]
    return head + "".join(line(row, rows[0]) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--longest", type=int, default=10**5)
    arguments = parser.parse_args()
    results = measure(arguments.functions, arguments.longest)
    common.save_json("ablation", results)
    common.publish("ablation", table(results))


if __name__ == "__main__":
    main()
