"""Regret with rewards as they are: coins, rare clicks, a bound that is far too large.

    python benchmarks/world_rewards.py [--functions 10] [--long]

Every row: fresh random functions (seeds 5000, 5001, ...), one run each, the defaults with the told
kernel and epsilon 1; regret per round divided by that of uniform play, once as ``reward_bound``
says it and once as ``reward_range``. ``--long`` adds the rows of a million rounds. Writes
results/world_rewards.json and the table in docs/results.md.
"""

import argparse
import warnings
from typing import Any

import common
from common import M52, Coins, power

import capri
from capri import environments

FIRST_SEED = 5000

# Label, lowest and highest reward, chance base and slope, rounds, bar.
COINS: list[tuple[str, float, float, float, float, int, float | None]] = [
    ("coins, -1 or 1", -1.0, 1.0, 0.5, 0.5, 10**5, 0.06),
    ("coins, 0 or 1", 0.0, 1.0, 0.5, 0.5, 10**5, 0.10),
    ("clicks at 10 %", 0.0, 1.0, 0.1, 0.1, 10**5, 0.20),
    ("clicks at 5 %", 0.0, 1.0, 0.05, 0.05, 10**5, None),
    ("clicks at 2 %", 0.0, 1.0, 0.02, 0.02, 10**5, 0.38),
]
LONG: list[tuple[str, float, float, float, float, int, float | None]] = [
    ("clicks at 10 %", 0.0, 1.0, 0.1, 0.1, 10**6, 0.04),
    ("clicks at 5 %", 0.0, 1.0, 0.05, 0.05, 10**6, None),
    ("clicks at 2 %", 0.0, 1.0, 0.02, 0.02, 10**6, 0.15),
]
BOUNDS = (1.0, 10.0, 50.0)


def coin(
    low: float,
    high: float,
    base: float,
    slope: float,
    rounds: int,
    seed: int,
    options: dict[str, Any],
) -> float:
    table = environments.random_rkhs(M52, seed=seed)
    world = Coins(table, low=low, high=high, base=base, slope=slope)
    return played(world, rounds, seed, options)


def loose(bound: float, rounds: int, seed: int) -> float:
    """A bound so many times what is needed."""
    return played(environments.random_rkhs(M52, seed=seed), rounds, seed, {"reward_bound": bound})


def played(world: Any, rounds: int, seed: int, options: dict[str, Any]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.KernelWarning)
        policy = common.make_policy(M52, world, 1.0, seed, **options)
        return float(capri.simulate(policy, world, rounds, seed=seed).ratio)


def measure(functions: int, *, long: bool) -> dict[str, Any]:
    seeds = range(FIRST_SEED, FIRST_SEED + functions)
    rows: list[dict[str, Any]] = []
    for label, low, high, base, slope, rounds, bar in COINS + (LONG if long else []):
        found = {}
        for name, options in {
            "bound": {"reward_bound": 1.0},
            "range": {"reward_range": (low, high)},
        }.items():
            calls = [(low, high, base, slope, rounds, seed, options) for seed in seeds]
            ratios = common.in_parallel(coin, calls)
            found[name] = {**common.summary(ratios), "ratios": ratios}
        rows.append({"label": label, "rounds": rounds, "bar": bar, **found})
        print(line(rows[-1]), flush=True)
    bounds = []
    for bound in BOUNDS:
        ratios = common.in_parallel(loose, [(bound, 10**5, seed) for seed in seeds])
        bounds.append({"bound": bound, **common.summary(ratios), "ratios": ratios})
        print(bound, bounds[-1]["mean"], flush=True)
    return {"seeds": [seeds[0], seeds[-1]], **common.about(), "rows": rows, "bounds": bounds}


def line(row: dict[str, Any]) -> str:
    cells = [
        row["label"],
        power(row["rounds"]),
        "" if row["bar"] is None else f"{row['bar']:g}",
        *(
            f"{row[name]['mean']:.3f} ± {row[name]['standard_error']:.3f}"
            for name in ("bound", "range")
        ),
    ]
    return "| " + " | ".join(cells) + " |"


def table(results: dict[str, Any]) -> str:
    names = "rewards", "T", "bar", "`reward_bound=1`", "`reward_range`"
    head = f"| {' | '.join(names)} |\n| {' | '.join('---' for _ in names)} |\n"
    loose_rows = "".join(
        f"| small noise, `reward_bound={row['bound']:g}` | 1e5 | | "
        f"{row['mean']:.3f} ± {row['standard_error']:.3f} | |\n"
        for row in results["bounds"]
    )
    return head + "".join(line(row) + "\n" for row in results["rows"]) + loose_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments.functions, long=arguments.long)
    common.save_json("world_rewards", results)
    common.publish("rewards", table(results))


if __name__ == "__main__":
    main()
