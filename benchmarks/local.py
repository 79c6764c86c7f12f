"""The local model on devices: regret, bytes, and what a device and the aggregator cost.

    python benchmarks/local.py [--functions 10] [--only regret|speed|late|start|shuffle]
        [--late-rounds 100000] [--rows NAME,...]

Regret per round divided by that of uniform play, fresh random functions (seeds 2000, 2001, ...),
one run each through the real device and aggregator code. ``--only late`` plays reports that arrive
some decisions late, with and without a wait for them; ``--only start`` short horizons, ``--only
shuffle`` mixed reports beside single ones and a curator. Writes results/local.json.
"""

import argparse
import json
from time import perf_counter
from typing import Any

import common
import numpy as np
from common import M52, SMOOTH_WIDE

import capri
from capri.kernels import Matern
from capri.local.simulator import DeviceSimulator
from capri.local.wire import pack
from capri.privacy.sphere import sphere as sphere_for
from capri_lab import surfaces

FIRST_SEED = 2000
ROUNDS = 10**6
KERNELS = {"matern": M52, "rbf 0.6": SMOOTH_WIDE}
# Decisions by which reports are late.
DELAYS = (0, 1000, 10_000)
# Epsilon and the regret to stay below on each problem.
BARS = {1.0: (0.45, 0.30), 4.0: (0.20, 0.12), 8.0: (0.14, 0.09)}


def deployment(
    kernel: str, epsilon: float, rounds: int, seed: int
) -> tuple[Any, capri.LocalCapri, DeviceSimulator]:
    environment = capri.environments.random_rkhs(KERNELS[kernel], seed=seed)
    budget = capri.Budget(epsilon=epsilon)
    aggregator = capri.LocalCapri(
        kernel=KERNELS[kernel],
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts, weights=environment.weights),
        budget=budget,
        horizon=rounds,
        public_seed=seed,
    )
    return environment, aggregator, DeviceSimulator(aggregator, budget, simulation_seed=seed)


def regret(kernel: str, epsilon: float, seed: int) -> dict[str, float]:
    environment, aggregator, fleet = deployment(kernel, epsilon, ROUNDS, seed)
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
    fleet = DeviceSimulator.build(
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


# Short horizons: problem, epsilon, rounds, and the regret to stay at or below.
STARTS = (
    ("matern", 1.0, 10_000, 0.48),
    ("matern", 1.0, 100_000, 0.10),
    ("matern", 4.0, 10_000, 0.25),
    ("rbf 0.6", 1.0, 10_000, None),
    ("hartmann4", 4.0, 100_000, 0.5),
)
# Central epsilon 1 at this delta: whom the users of the Matern problem trust.
MIXED_DELTA = 1e-6
MODELS = ("local", "shuffle", "joint")


def early(problem: str, epsilon: float, rounds: int, seed: int) -> dict[str, float]:
    """A short run of devices; Hartmann-4 has two columns of contexts and a rougher kernel."""
    if problem == "hartmann4":
        environment = surfaces.hartmann4(seed=seed)
        kernel = Matern(nu=2.5, lengthscale=0.8)
    else:
        kernel = KERNELS[problem]
        environment = capri.environments.random_rkhs(kernel, seed=seed)
    fleet = DeviceSimulator.build(
        budget=capri.Budget(epsilon=epsilon),
        simulation_seed=seed,
        kernel=kernel,
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts, weights=environment.weights),
        horizon=rounds,
        reward_bound=environment.reward_bound,
    )
    result = capri.simulate(fleet, environment, rounds, seed=seed)
    return {"ratio": result.ratio, "seconds": result.seconds}


def trusting(model: str, rounds: int, seed: int) -> dict[str, float]:
    """Matern at epsilon 1: single reports, mixed ones, or a curator."""
    kernel = KERNELS["matern"]
    environment = capri.environments.random_rkhs(kernel, seed=seed)
    settings: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": capri.ContextPool(environment.contexts, weights=environment.weights),
        "horizon": rounds,
        "simulation_seed": seed,
        "budget": capri.Budget(1.0, MIXED_DELTA),
    }
    policy: Any
    if model == "joint":
        policy = capri.Capri(**settings)
    elif model == "shuffle":
        policy = DeviceSimulator.build(shuffle=capri.Shuffle(), **settings)
    else:
        policy = DeviceSimulator.build(**(settings | {"budget": capri.Budget(1.0)}))
    result = capri.simulate(policy, environment, rounds, seed=seed)
    return {"ratio": result.ratio, "seconds": result.seconds}


def summary(runs: list[dict[str, float]], **named: Any) -> dict[str, Any]:
    ratios = np.array([run["ratio"] for run in runs])
    return {
        **named,
        "mean": float(ratios.mean()),
        "error": float(ratios.std(ddof=1) / np.sqrt(len(ratios))),
        "worst": float(ratios.max()),
        "seconds": float(np.mean([run["seconds"] for run in runs])),
        "functions": len(ratios),
    }


def starts(functions: int, wanted: list[str]) -> list[dict[str, Any]]:
    rows = []
    for problem, epsilon, rounds, bar in STARTS:
        if wanted and f"{problem}-{epsilon:g}-{rounds}" not in wanted:
            continue
        seeds = range(FIRST_SEED, FIRST_SEED + functions)
        runs = common.in_parallel(early, [(problem, epsilon, rounds, seed) for seed in seeds])
        rows.append(summary(runs, problem=problem, epsilon=epsilon, rounds=rounds, bar=bar))
        print(rows[-1], flush=True)
    return rows


def models(functions: int, rounds: int, wanted: list[str]) -> list[dict[str, Any]]:
    rows = []
    for model in [each for each in MODELS if not wanted or each in wanted]:
        seeds = range(FIRST_SEED, FIRST_SEED + functions)
        runs = common.in_parallel(trusting, [(model, rounds, seed) for seed in seeds])
        rows.append(summary(runs, model=model, rounds=rounds))
        print(rows[-1], flush=True)
    return rows


def renewed(old: list[dict[str, Any]], new: list[dict[str, Any]], *keys: str) -> list[Any]:
    """Rows measured now in the place of those measured before."""
    found = {tuple(row[key] for key in keys): row for row in [*old, *new]}
    return list(found.values())


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

    (newest,) = aggregator._state.epochs
    newest.plan = replace(newest.plan, sphere=sphere, length=10 * reports)
    newest.sphere = sphere
    newest.total = np.zeros(dimension, dtype=np.int64)
    tokens = rng.integers(0, 2**64, size=(reports, 2), dtype=np.uint64)
    numbers = rng.integers(0, sphere.candidates, size=reports)
    messages = pack(aggregator.digest, tokens, numbers)
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
    parser.add_argument("--only", choices=("regret", "speed", "late", "start", "shuffle"))
    parser.add_argument("--late-rounds", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of --only shuffle")
    parser.add_argument("--rows", default="", help="of --only start, shuffle or regret")
    arguments = parser.parse_args()
    target = common.RESULTS / "local.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    if arguments.only == "late":
        results["late"] = late_reports(arguments.late_rounds, arguments.functions)
    wanted = [name for name in arguments.rows.split(",") if name]
    if arguments.only in (None, "start"):
        rows = starts(arguments.functions, wanted)
        keys = ("problem", "epsilon", "rounds")
        results["start"] = renewed(results.get("start", []), rows, *keys)
    if arguments.only in (None, "shuffle"):
        rows = models(arguments.functions, arguments.rounds, wanted)
        results["shuffle"] = renewed(results.get("shuffle", []), rows, "model", "rounds")
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
        kinds = [
            (kernel, epsilon)
            for epsilon in BARS
            for kernel in KERNELS
            if not wanted or f"{kernel}-{epsilon:g}" in wanted
        ]
        measured: list[dict[str, Any]] = []
        for kernel, epsilon in kinds:
            runs = common.in_parallel(regret, [(kernel, epsilon, seed) for seed in seeds])
            ratios = np.array([run["ratio"] for run in runs])
            measured.append(
                {
                    "problem": kernel,
                    "epsilon": epsilon,
                    "bar": BARS[epsilon][list(KERNELS).index(kernel)],
                    "mean": float(ratios.mean()),
                    "error": float(ratios.std(ddof=1) / np.sqrt(len(ratios))),
                    "worst": float(ratios.max()),
                    "seconds": float(np.mean([run["seconds"] for run in runs])),
                    "bundle": max(run["bundle"] for run in runs),
                    "functions": len(ratios),
                }
            )
            print(measured[-1], flush=True)
        keys = ("problem", "epsilon")
        results["regret"] = renewed(results.get("regret", []), measured, *keys)
    target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
