"""Does a forecast rank epsilons and horizons as play on real problems does?

    python benchmarks/forecast.py diabetes wine             # plays these, adds them to the results
    python benchmarks/forecast.py --publish                 # writes the table to docs/results.md

The forecast sees public rows alone and plays ten made-up functions. Real play is a mean over three
seeds, with private rows as users. Two cells of a problem are an agreeing pair if forecast and play
order them alike; pairs that play itself does not tell apart (less than two standard errors of
their paired difference) are left out.
"""

import argparse
import os
import warnings
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import last_results, publish, save_json

import capri
from capri_lab.datasets import environment_by_name

EPSILONS, HORIZONS, SEEDS = (0.1, 1.0, 4.0), (1_000, 3_000, 10_000), (100, 101, 102)
CELLS = [(epsilon, rounds) for epsilon in EPSILONS for rounds in HORIZONS]


def policy_of(world: Any, epsilon: float, seed: int) -> capri.Capri:
    return capri.Capri(
        actions=world.actions,
        contexts=world.pool,
        reward_bound=world.reward_bound,
        budget=capri.Budget(epsilon=epsilon, delta=1e-5),
        simulation_seed=seed,
    )


def played(problem: str) -> dict[str, Any]:
    """Ratios of real play, seed by seed, and of the forecast, cell by cell."""
    real: list[list[float]] = [[] for _ in CELLS]
    for seed in SEEDS:
        world = environment_by_name(problem, seed=seed, raw=True)
        found = {
            each: capri.simulate(policy_of(world, each, seed), world, HORIZONS[-1], seed=seed)
            for each in EPSILONS
        }
        for ratios, (epsilon, rounds) in zip(real, CELLS, strict=True):
            run = found[epsilon]
            lost = float(run.regret[rounds - 1]) / rounds
            ratios.append(lost / run.uniform_regret_per_round)
    world = environment_by_name(problem, seed=SEEDS[0], raw=True)
    expected = policy_of(world, 1.0, 0).forecast(
        horizons=HORIZONS, epsilons=EPSILONS, functions=10, compare=False
    )
    rows = [expected.at(*cell) for cell in CELLS]
    return {
        "problem": problem,
        "real": real,
        "forecast": [row.ratio for row in rows],
        "error": [row.ratio_standard_error for row in rows],
    }


def agreement(row: dict[str, Any]) -> tuple[int, int]:
    """Pairs of cells that are ordered alike, of those that play tells apart."""
    alike = told = 0
    for one, other in combinations(range(len(CELLS)), 2):
        apart = [a - b for a, b in zip(row["real"][one], row["real"][other], strict=True)]
        if abs(fmean(apart)) > 2 * stdev(apart) / len(apart) ** 0.5:
            told += 1
            alike += fmean(apart) * (row["forecast"][one] - row["forecast"][other]) > 0
    return alike, told


def table(rows: list[dict[str, Any]]) -> str:
    heads = [f"{epsilon:g}, {rounds:.0e}".replace("e+0", "e") for epsilon, rounds in CELLS]
    lines = [
        f"| real / forecast | {' | '.join(heads)} | pairs in order |",
        "| --- " * (len(CELLS) + 2) + "|",
    ]
    for row in rows:
        alike, told = agreement(row)
        cells = [
            f"{fmean(real):.2f} / {ratio:.2f} ± {error:.2f}"
            for real, ratio, error in zip(row["real"], row["forecast"], row["error"], strict=True)
        ]
        lines.append(f"| {row['problem']} | {' | '.join(cells)} | {alike} of {told} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--publish", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for problem in given.problems:
        rows = [row for row in last_results("forecast")["rows"] if row["problem"] != problem]
        rows.append(played(problem))
        save_json("forecast", {"rows": sorted(rows, key=lambda row: row["problem"])})
        print(table(rows[-1:]), flush=True)
    if given.publish:
        publish("forecast", table(last_results("forecast")["rows"]))


if __name__ == "__main__":
    main()
