"""The local model on devices: regret, bytes, and what a device and the aggregator cost.

    python benchmarks/local.py [--functions 10] [--only regret|speed|late] [--late-rounds 100000]

Regret per round divided by that of uniform play, fresh random functions (seeds 2000, 2001, ...),
one run each through the real device and aggregator code. ``--only late`` plays reports that arrive
some decisions late, with and without a wait for them. Writes results/local.json.
"""

import argparse
import json
from time import perf_counter
from typing import Any

import common
import numpy as np
from common import M52, SMOOTH_WIDE

import capri
from capri.local.fleet import Fleet
from capri.local.wire import pack
from capri.privacy.promise import Randomizer
from capri.privacy.sphere import sphere as sphere_for

FIRST_SEED = 2000
ROUNDS = 10**6
KERNELS = {"matern": M52, "rbf 0.6": SMOOTH_WIDE}
# Decisions by which reports are late.
DELAYS = (0, 1000, 10_000)
# Epsilon and the regret to stay below on each problem.
BARS = {1.0: (0.45, 0.30), 4.0: (0.20, 0.12), 8.0: (0.14, 0.09)}


def deployment(
    kernel: str, epsilon: float, rounds: int, seed: int, randomizer: str = "sphere"
) -> tuple[Any, capri.LocalCapri, Fleet]:
    environment = capri.environments.random_rkhs(KERNELS[kernel], seed=seed)
    budget = capri.Budget(epsilon=epsilon, delta=0.0 if randomizer == "sphere" else common.DELTA)
    aggregator = capri.LocalCapri(
        kernel=KERNELS[kernel],
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts, weights=environment.weights),
        budget=budget,
        horizon=rounds,
        randomizer=randomizer,
        public_seed=seed,
    )
    return environment, aggregator, Fleet(aggregator, budget, simulation_seed=seed)


def regret(kernel: str, epsilon: float, randomizer: str, seed: int) -> dict[str, float]:
    environment, aggregator, fleet = deployment(kernel, epsilon, ROUNDS, seed, randomizer)
    largest = len(aggregator.bundle())

    def watch(_rounds: int, _regret: float) -> None:
        nonlocal largest
        if aggregator.remaining:
            largest = max(largest, len(aggregator.bundle()))

    result = capri.simulate(fleet, environment, ROUNDS, seed=seed, progress=watch)
    return {"ratio": result.ratio, "seconds": result.seconds, "bundle": largest}


def late(delay: int, wait: int, rounds: int, seed: int) -> dict[str, float]:
    """Matern at epsilon 1, where every report arrives ``delay`` decisions late."""
    kernel = KERNELS["matern"]
    environment = capri.environments.random_rkhs(kernel, seed=seed)
    fleet = Fleet.build(
        budget=capri.Budget(epsilon=1.0),
        simulation_seed=seed,
        delay=delay,
        kernel=kernel,
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts, weights=environment.weights),
        horizon=rounds,
        reward_wait=wait,
    )
    result = capri.simulate(fleet, environment, rounds, seed=seed)
    return {"ratio": result.ratio, "stale": fleet.statuses[capri.ReportStatus.STALE] / rounds}


def late_reports(rounds: int, functions: int) -> list[dict[str, float]]:
    rows = []
    for delay, wait in [(each, wait) for each in DELAYS for wait in sorted({0, each})]:
        seeds = range(FIRST_SEED, FIRST_SEED + functions)
        runs = common.in_parallel(late, [(delay, wait, rounds, seed) for seed in seeds])
        ratios = np.array([run["ratio"] for run in runs])
        rows.append(
            {
                "delay": delay,
                "wait": wait,
                "rounds": rounds,
                "mean": float(ratios.mean()),
                "error": float(ratios.std(ddof=1) / np.sqrt(len(ratios))),
                "worst": float(ratios.max()),
                "stale": float(np.mean([run["stale"] for run in runs])),
                "functions": functions,
            }
        )
        print(rows[-1], flush=True)
    return rows


def product() -> float:
    """Seconds of a 4000^3 float64 product on all cores: the unit of the speed figures."""
    from threadpoolctl import threadpool_limits

    matrix = np.random.default_rng(0).random((4000, 4000))
    with threadpool_limits(limits=None):
        matrix @ matrix
        started = perf_counter()
        matrix @ matrix
        return perf_counter() - started


def aggregation(dimension: int = 200, reports: int = 10**6) -> float:
    """Seconds to receive a million sphere reports of many coordinates, checks included."""
    rng = np.random.default_rng(1)
    # Rough functions of one lengthscale each: the basis keeps its 150 coordinates at most, so the
    # message is made longer by hand, as the aggregator would see it.
    _, aggregator, _ = deployment("matern", 4.0, 10**7, 0)
    sphere = sphere_for(4.0, dimension)
    from dataclasses import replace

    newest = aggregator._newest
    newest.plan = replace(newest.plan, sphere=sphere, length=10 * reports)
    newest.total = np.zeros(dimension, dtype=np.int64)
    tokens = rng.integers(0, 2**64, size=(reports, 2), dtype=np.uint64)
    numbers = rng.integers(0, sphere.candidates, size=reports)
    messages = pack(Randomizer.SPHERE, aggregator.digest, tokens, numbers)
    started = perf_counter()
    statuses = aggregator.receive_many(messages)
    seconds = perf_counter() - started
    assert not statuses.any()
    return seconds


def client(epsilon: float, repeats: int = 300) -> dict[str, float]:
    """Milliseconds to decide and report, median, after the bundle is loaded; late epoch."""
    environment, aggregator, fleet = deployment("matern", epsilon, 10**6, 1)
    capri.simulate(fleet, environment, 20_000, seed=1)
    bundle, budget = aggregator.bundle(), capri.Budget(epsilon=epsilon)
    took, loading = [], []
    for _ in range(repeats):
        started = perf_counter()
        device = capri.LocalClient(bundle, budget)
        loaded = perf_counter()
        device.act(environment.contexts[0])
        device.report(0.3)
        took.append(perf_counter() - loaded)
        loading.append(loaded - started)
    return {
        "decide and report": 1e3 * float(np.median(took)),
        "slowest of 300": 1e3 * max(took),
        "load": 1e3 * float(np.median(loading)),
        "bundle bytes": len(bundle),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--only", choices=("regret", "speed", "late"))
    parser.add_argument("--late-rounds", type=int, default=100_000)
    arguments = parser.parse_args()
    target = common.RESULTS / "local.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    if arguments.only == "late":
        results["late"] = late_reports(arguments.late_rounds, arguments.functions)
    if arguments.only in (None, "speed"):
        unit = product()
        seconds = aggregation()
        results["speed"] = {
            "product seconds": unit,
            "aggregation seconds": seconds,
            "aggregation per product": seconds / unit,
            "client ms": {f"{epsilon:g}": client(epsilon) for epsilon in (1.0, 4.0, 8.0)},
        }
        print(json.dumps(results["speed"], indent=1))
    if arguments.only in (None, "regret"):
        seeds = range(FIRST_SEED, FIRST_SEED + arguments.functions)
        rows = [
            (kernel, epsilon, randomizer)
            for randomizer in ("sphere", "gaussian")
            for epsilon in BARS
            for kernel in KERNELS
        ]
        results["regret"] = []
        for kernel, epsilon, randomizer in rows:
            runs = common.in_parallel(
                regret, [(kernel, epsilon, randomizer, seed) for seed in seeds]
            )
            ratios = np.array([run["ratio"] for run in runs])
            results["regret"].append(
                {
                    "problem": kernel,
                    "epsilon": epsilon,
                    "randomizer": randomizer,
                    "bar": BARS[epsilon][list(KERNELS).index(kernel)],
                    "mean": float(ratios.mean()),
                    "error": float(ratios.std(ddof=1) / np.sqrt(len(ratios))),
                    "worst": float(ratios.max()),
                    "seconds": float(np.mean([run["seconds"] for run in runs])),
                    "bundle": max(run["bundle"] for run in runs),
                    "functions": len(ratios),
                }
            )
            print(results["regret"][-1], flush=True)
    target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
