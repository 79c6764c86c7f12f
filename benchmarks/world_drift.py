"""Regret in worlds that change: by evidence, and with a policy that never forgets.

    python benchmarks/world_drift.py [--functions 8]

Fresh functions (seeds 5000, 5001, ...), 50 x 50, Matern-5/2, epsilon 1, T = 1e5. Regret of the
second half, after the change, over that of uniform play in it. Writes results/world_drift.json
and the table in docs/results.md.
"""

import argparse
from typing import Any

import common
import numpy as np
from common import M52

import capri
from capri.epoch.plan import unsaid
from capri_lab.environments import drifting

FIRST_SEED, ROUNDS = 5000, 10**5
# Label, change, options of the policy, and the bar for the second half.
ROWS: list[tuple[str, str, dict[str, Any], float | None]] = [
    ("nothing changes", "none", {}, None),
    ("sign flip", "flip", {}, 0.15),
    ("sign flip, rewards 1,000 decisions late", "flip", {"reward_wait": 1000}, 0.25),
    ("new function", "new", {}, 0.10),
    ("quarter turn", "quarter-turn", {}, None),
    ("full turn", "full-turn", {}, 0.20),
]


def play(change: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """One function, one run."""
    world = drifting(M52, change=change, rounds=ROUNDS, seed=seed)
    policy = common.make_policy(M52, world, 1.0, seed, **options)
    with unsaid():
        result = capri.simulate(policy, world, ROUNDS, seed=seed)
    alarms = sum("drift" in (record.kinds or "") for record in result.epochs)
    return {"halves": result.halves, "epochs": len(result.epochs), "alarms": alarms}


def measure(functions: int) -> list[dict[str, Any]]:
    rows = []
    for label, change, options, bar in ROWS:
        row: dict[str, Any] = {"label": label, "bar": bar}
        for name, memory in (("evidence", None), ("never", float("inf"))):
            given = options | ({} if memory is None else {"memory": memory})
            seeds = range(FIRST_SEED, FIRST_SEED + functions)
            runs = [play(change, seed, given) for seed in seeds]
            row[name] = {
                "second": common.summary(run["halves"][1] for run in runs),
                "first": common.summary(run["halves"][0] for run in runs),
                "epochs": float(np.mean([run["epochs"] for run in runs])),
                "alarms": sum(run["alarms"] > 0 for run in runs),
            }
        rows.append(row)
        print(line(row, functions), flush=True)
    return rows


def line(row: dict[str, Any], functions: int) -> str:
    own, never = row["evidence"], row["never"]
    cells = [
        row["label"],
        "" if row["bar"] is None else f"{row['bar']:g}",
        f"**{own['second']['mean']:.3f}** ± {own['second']['standard_error']:.3f}",
        f"{never['second']['mean']:.3f}",
        f"{own['first']['mean']:.3f}",
        f"{own['epochs']:.0f}",
        f"{own['alarms']} of {functions}",
    ]
    return f"| {' | '.join(cells)} |"


def table(rows: list[dict[str, Any]], functions: int) -> str:
    head = [
        "| world | bar | second half | never forgets | first half | epochs | notice *drift* |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *(line(row, functions) for row in rows)]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=8)
    wanted = parser.parse_args()
    found = measure(wanted.functions)
    common.save_json("world_drift", {**common.about(), "rows": found})
    common.publish("drift", table(found, wanted.functions))
