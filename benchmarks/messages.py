"""Regret over uniform play at short horizons: what messages of one cell and a delta are worth.

    python benchmarks/messages.py --seeds 100 --count 5 --delta 1e-5 --out new.json told-3e3 digits

plays rows of the table below, each on ``count`` seeds from the first one on, and prints the mean
and its standard error; *stuck* are runs above three times the median. Seeds that a file holds are
not played again, so a long table can be played in pieces (``--minutes``). Another checkout of the
package can play the same seeds (``PYTHONPATH``), and so can a rival of the laboratory (``--rival``,
on real problems and 100 or 300 arms); ``--compare old.json new.json`` pairs two files by seed.
"""

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import capri
from capri import environments
from capri.kernels import Matern
from capri_lab.datasets import environment_by_name
from capri_lab.environments import unrelated_arms
from capri_lab.experiments.players import build_player
from capri_lab.experiments.worlds import build_world, view_of

KERNEL = Matern(nu=2.5, lengthscale=0.3)
REAL = (
    "digits", "segment", "diabetes", "engel", "travel", "phishing", "actg175", "rand",
    "open-bandit", "wine", "breast-cancer", "fair", "iris", "bananas", "shuttle", "party",
)  # fmt: skip
ARMS = ("arms-20", "arms-100", "arms-300", "arms-20@1e5", "arms-100@1e5", "arms-300@1e5")
# Name: kernel, epsilon, rounds.
MATERN: dict[str, tuple[object, float, int]] = {
    f"{kind}-{rounds:.0e}".replace("e+0", "e"): (kernel, 1.0, rounds)
    for kind, kernel in (("told", KERNEL), ("auto", "auto"))
    for rounds in (3_000, 10_000, 100_000)
} | {
    "told-eps4": (KERNEL, 4.0, 10_000),
    "auto-eps4": ("auto", 4.0, 10_000),
    "told-eps.1": (KERNEL, 0.1, 30_000),
    "auto-eps.1": ("auto", 0.1, 30_000),
}


def problem(row: str, seed: int) -> tuple[Any, dict[str, Any], float, int]:
    """A world, what a policy is told of it, epsilon and rounds."""
    if row in MATERN:
        kernel, epsilon, rounds = MATERN[row]
        world: Any = environments.random_rkhs(KERNEL, seed=seed)
        told = {"kernel": kernel, "actions": world.actions}
        return world, told | {"contexts": capri.ContextPool(world.contexts)}, epsilon, rounds
    name, _, horizon = row.partition("@")
    rounds = int(float(horizon or "1e4"))
    if name.startswith("arms-"):
        world = unrelated_arms(int(name.removeprefix("arms-")), seed=seed)
        told = {"actions": len(world.actions), "contexts": capri.ContextPool(world.contexts)}
        return world, told, 1.0, rounds
    world = environment_by_name(name, seed=seed, raw=True)
    told = {"actions": world.actions, "contexts": world.pool, "reward_bound": world.reward_bound}
    return world, told, 1.0, rounds


def rival(name: str, row: str, budget: capri.Budget | None, seed: int) -> tuple[Any, Any, int]:
    """The world of a row as a rival sees it, the rival, and rounds."""
    problem_name, _, horizon = row.partition("@")
    rounds, unsaid = int(float(horizon or "1e4")), {"kernel": None, "lengthscale": None}
    given = {"name": problem_name} | unsaid | ({"raw": True} if problem_name in REAL else {})
    world, told = view_of(*build_world(given, seed), {"name": name})
    player = {"name": name}
    return (
        world,
        build_player(player, told, world, budget=budget, rounds=rounds, seed=seed)[0],
        rounds,
    )


def play(row: str, delta: float | None, seed: int, policy_name: str = "") -> dict[str, float]:
    """One run; ``delta`` None is a run without privacy."""
    started = perf_counter()
    if policy_name:
        budget = None if delta is None else capri.Budget(epsilon=1.0, delta=delta)
        world, policy, rounds = rival(policy_name, row, budget, seed)
    else:
        world, told, epsilon, rounds = problem(row, seed)
        budget = None if delta is None else capri.Budget(epsilon=epsilon, delta=delta)
        policy = capri.Capri(budget=budget, simulation_seed=seed, **told)
    ratio = capri.simulate(policy, world, rounds, seed=seed).ratio
    return {"seed": seed, "ratio": ratio, "seconds": perf_counter() - started}


def line(values: Sequence[float]) -> str:
    """Mean and standard error."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{fmean(values):.3f} ± {error:.3f}"


def compare(old: Path, new: Path) -> None:
    """Rows of two files, paired by seed."""
    before, after = (json.loads(path.read_text()) for path in (old, new))
    print(f"{'row':14s} {'before':16s} {'after':16s} {'difference':16s} time")
    for row in after:
        ratios = [{each["seed"]: each for each in file.get(row, [])} for file in (before, after)]
        seeds = sorted(set(ratios[0]) & set(ratios[1]))
        if seeds:
            pairs = [(ratios[0][seed], ratios[1][seed]) for seed in seeds]
            own = [[each[side]["ratio"] for each in pairs] for side in (0, 1)]
            lost = [b["ratio"] - a["ratio"] for a, b in pairs]
            slower = sum(b["seconds"] for _, b in pairs) / sum(a["seconds"] for a, _ in pairs)
            print(f"{row:14s} {line(own[0]):16s} {line(own[1]):16s} {line(lost):16s} {slower:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--seeds", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rival", default="", help="a rival of the laboratory instead, epsilon 1")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after these")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    given = parser.parse_args()
    if given.compare:
        compare(*given.compare)
        return
    warnings.simplefilter("ignore")
    wanted = range(given.seeds, given.seeds + given.count)
    stop = perf_counter() + 60 * given.minutes
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for row in given.rows or (*MATERN, *REAL, *ARMS):
        found = known.setdefault(row, [])
        for seed in sorted(set(wanted) - {each["seed"] for each in found}):
            if perf_counter() > stop:
                return
            found.append(play(row, given.delta, seed, given.rival))
            if given.out:
                given.out.write_text(json.dumps(known, indent=1) + "\n")
        ratios = [each["ratio"] for each in found]
        seconds = fmean(each["seconds"] for each in found)
        stuck = sum(ratio > 3 * median(ratios) for ratio in ratios)
        print(f"{row:14s} {line(ratios)}  {seconds:.1f} s, {stuck} stuck", flush=True)


if __name__ == "__main__":
    main()
