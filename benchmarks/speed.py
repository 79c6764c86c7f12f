"""Time, memory and regret as ratios to a 4000^3 float64 matrix product measured in the same run.

    python benchmarks/speed.py [--quick]

Every measurement is a process of its own, so that memory is that of the measurement alone and the
number of BLAS threads can be chosen. Repeats are interleaved with the product and the best of them
counts: other processes only ever add time. Writes results/speed.json and the table in
docs/results.md.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

import common
import numpy as np
from common import M52, M52_WIDE, power
from scipy.linalg.blas import dger

import capri
from capri import environments
from capri.kernels import Matern
from capri.simulation import PeakMemory

SEED = 2000
Numbers = dict[str, Any]


# -- what is measured, each in a process of its own -----------------------------------------------


def product() -> Numbers:
    """The yardstick."""
    matrix = np.random.default_rng(0).random((4000, 4000))
    started = perf_counter()
    matrix @ matrix
    return {"seconds": perf_counter() - started}


def _run(kernel: Any, environment: Any, rounds: int, **options: Any) -> Numbers:
    """A whole run, construction of the policy included."""
    with PeakMemory() as memory:
        started = perf_counter()
        policy = common.make_policy(kernel, environment, 1.0, SEED, **options)
        result = capri.simulate(policy, environment, rounds, seed=SEED)
        seconds = perf_counter() - started
    return {
        "seconds": seconds,
        "peak_bytes": max(memory.peak_bytes, result.peak_memory_bytes),
        "regret": result.ratio,
        "epochs": len(result.epochs),
        "rank": max((record.rank for record in result.epochs), default=0),
        "epoch_seconds": float(np.median([record.seconds for record in result.epochs])),
    }


def grid(rounds: int = 10**6, **options: Any) -> Numbers:
    """50 contexts x 50 actions, Matern-5/2, lengthscale 0.3."""
    return _run(M52, environments.random_rkhs(M52, seed=SEED), rounds, **options)


def pairs(contexts: int = 2000, rounds: int = 10**5) -> Numbers:
    """``contexts`` (d = 4) x 500 actions (d = 3), Matern-5/2, lengthscale 0.8."""
    environment = environments.random_rkhs(
        M52_WIDE,
        contexts=contexts,
        actions=500,
        context_dimension=4,
        action_dimension=3,
        seed=SEED,
    )
    return _run(M52_WIDE, environment, rounds)


def dimension(half: int) -> Numbers:
    """200 contexts x 50 actions in ``half + half`` dimensions; the lengthscale grows along."""
    kernel = Matern(nu=2.5, lengthscale=0.3 * half**0.5)
    environment = environments.random_rkhs(
        kernel,
        contexts=200,
        actions=50,
        context_dimension=half,
        action_dimension=half,
        seed=SEED,
    )
    return _run(kernel, environment, 10**5)


def rank(limit: int) -> Numbers:
    """A rough function and a basis of exactly ``limit`` coordinates."""
    kernel = Matern(nu=1.5, lengthscale=0.1)
    environment = environments.random_rkhs(kernel, seed=SEED)
    return _run(kernel, environment, 10**5, rank_tolerance=1e-9, max_rank=limit)


def exact_gp(rounds: int) -> Numbers:
    """GP-UCB without privacy on the whole grid: mean and covariance of 2,500 pairs, rank one."""
    environment = environments.random_rkhs(M52, seed=SEED)
    contexts, actions = len(environment.contexts), len(environment.actions)
    generator = np.random.default_rng(SEED)
    table = np.concatenate(
        [np.repeat(environment.contexts, actions, 0), np.tile(environment.actions, (contexts, 1))],
        axis=1,
    )
    variance = environment.noise**2 / 3
    context = environment.draw_contexts(generator, rounds)
    action = np.empty(rounds, dtype=np.int64)
    with PeakMemory() as memory:
        started = perf_counter()
        covariance = M52(table, table)
        mean = np.zeros(len(table))
        for t in range(rounds):
            row = slice(context[t] * actions, (context[t] + 1) * actions)
            width = np.sqrt(np.maximum(covariance.diagonal()[row], 0.0))
            action[t] = np.argmax(mean[row] + 2.0 * width)
            place = row.start + action[t]
            reward = environment.rewards(generator, context[t : t + 1], action[t : t + 1])[0]
            column = covariance[place].copy()
            scale = column[place] + variance
            mean += column * ((reward - mean[place]) / scale)
            # In place and in one pass: covariance -= outer(column, column) / scale.
            dger(-1.0 / scale, column, column, a=covariance.T, overwrite_a=True)
        seconds = perf_counter() - started
    lost = environment.best(context) - environment.mean(context, action)
    return {
        "seconds": seconds,
        "peak_bytes": memory.peak_bytes,
        "regret": float(lost.mean()) / environment.uniform_regret(),
    }


def scikit_learn(rounds: int) -> Numbers:
    """GaussianProcessRegressor without privacy, refitted every 50 rounds, kernel known."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern as Theirs

    environment = environments.random_rkhs(M52, seed=SEED)
    generator = np.random.default_rng(SEED)
    context = environment.draw_contexts(generator, rounds)
    action = np.empty(rounds, dtype=np.int64)
    rewards = np.empty(rounds)
    played = np.empty((rounds, 2))
    with PeakMemory() as memory:
        started = perf_counter()
        model = GaussianProcessRegressor(
            Theirs(length_scale=0.3, nu=2.5), alpha=environment.noise**2 / 3, optimizer=None
        )
        for t in range(rounds):
            if t and t % 50 == 0:
                model.fit(played[:t], rewards[:t])
            here = np.broadcast_to(environment.contexts[context[t]], environment.actions.shape)
            mean, width = model.predict(
                np.concatenate([here, environment.actions], axis=1), return_std=True
            )
            best = mean + 2.0 * width
            action[t] = generator.choice(np.flatnonzero(best >= best.max() - 1e-12))
            rewards[t] = environment.rewards(generator, context[t : t + 1], action[t : t + 1])[0]
            played[t] = environment.contexts[context[t], 0], environment.actions[action[t], 0]
        seconds = perf_counter() - started
    lost = environment.best(context) - environment.mean(context, action)
    return {
        "seconds": seconds,
        "peak_bytes": memory.peak_bytes,
        "regret": float(lost.mean()) / environment.uniform_regret(),
    }


def latency() -> Numbers:
    """Single calls of a private run (no seed, exact noise) in its twelfth epoch, microseconds."""
    environment = environments.random_rkhs(M52, seed=SEED)
    policy = common.make_policy(M52, environment, 1.0, None)
    generator = np.random.default_rng(SEED)
    releases = []
    for _ in range(11):
        context = environment.draw_contexts(generator, policy.remaining)
        decisions = policy.act_many(environment.contexts[context])
        rewards = environment.rewards(generator, context, decisions.action_index)
        started = perf_counter()
        policy.update_many(decisions, rewards)
        releases.append(perf_counter() - started)
    policy.act(environment.contexts[0])
    warm, fresh, update = [], [], []
    for turn in range(3000):
        if turn % 10:
            row, times = environment.contexts[turn % 50], warm
        else:
            row, times = generator.random(1), fresh
        started = perf_counter_ns()
        decision = policy.act(row)
        decided = perf_counter_ns()
        policy.update(decision, 0.3)
        times.append((decided - started) / 1e3)
        update.append((perf_counter_ns() - decided) / 1e3)
    return {
        "act_warm": float(np.median(warm)),
        "act_unseen": float(np.median(fresh)),
        "update": float(np.median(update)),
        "release_seconds": float(np.median(releases)),
    }


TASKS: dict[str, Callable[..., Numbers]] = {
    task.__name__: task
    for task in (product, grid, pairs, dimension, rank, exact_gp, scikit_learn, latency)
}


# -- one run of everything ------------------------------------------------------------------------


def measure(task: str, threads: int | None = 1, **arguments: Any) -> Numbers:
    """Run a task in a process of its own; ``threads`` of None leaves BLAS at its default."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    surroundings = {key: value for key, value in os.environ.items() if key not in names}
    surroundings |= {name: str(threads or os.cpu_count()) for name in names}
    command = [sys.executable, __file__, "--task", task, "--arguments", json.dumps(arguments)]
    done = subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True)
    found: Numbers = json.loads(done.stdout.splitlines()[-1])
    print(task, arguments, f"threads={threads or 'all'}", short(found), flush=True)
    return found


def short(found: Numbers) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in found.items())


def best(first: Numbers, second: Numbers) -> Numbers:
    return min(first, second, key=lambda found: found["seconds"])


def everything(quick: bool) -> Numbers:
    repeats = 1 if quick else 3
    yard = measure("product", None)
    million: Numbers = {}
    for _ in range(repeats):
        for threads in (1, None):
            found = measure("grid", threads)
            name = "one" if threads == 1 else "all"
            million[name] = best(million.get(name, found), found)
        yard = best(yard, measure("product", None))
    timings = [measure("latency") for _ in range(1 if quick else 4)]
    calls = {key: min(timing[key] for timing in timings) for key in timings[0]}
    large = {"one": measure("pairs", 1)}
    yard = best(yard, measure("product", None))
    if not quick:
        large["all"] = measure("pairs", None)
        yard = best(yard, measure("product", None))
    paper = {"preset": "paper", "horizon": 10**4}
    rivals = {
        "CAPRI, 50 x 50, T = 1e3": measure("grid", rounds=10**3),
        "CAPRI, 50 x 50, T = 1e4": measure("grid", rounds=10**4),
        "scikit-learn GP, refit every 50, T = 1e3": measure("scikit_learn", rounds=10**3),
        "exact GP-UCB on the grid, T = 1e3": measure("exact_gp", None, rounds=10**3),
        "exact GP-UCB on the grid, T = 1e4": measure("exact_gp", None, rounds=10**4),
        "paper's CAPRI, low rank, T = 1e4": measure("grid", rounds=10**4, **paper),
        "paper's CAPRI, dense, T = 1e4": measure(
            "grid", None, rounds=10**4, features="dense", **paper
        ),
    }
    yard = best(yard, measure("product", None))
    horizons = [10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6]
    spaces = [20, 60, 200, 600, 2000]
    ranks = [25, 50, 100, 200, 400]
    halves = [1, 2, 4, 10]
    growth: dict[str, list[Numbers]] = {
        "rounds": [measure("grid", rounds=rounds) for rounds in horizons],
        "pairs": [measure("pairs", contexts=count, rounds=3000) for count in spaces],
        "rank": [measure("rank", limit=limit) for limit in ranks],
        "dimension": [measure("dimension", half=half) for half in halves],
    }
    yard = best(yard, measure("product", None))
    sizes = {
        "rounds": horizons,
        "pairs": [500 * count for count in spaces],
        "rank": ranks,
        "dimension": [2 * half for half in halves],
    }
    return {
        **common.about(),
        "product_seconds": yard["seconds"],
        "million_rounds": million,
        "million_pairs": large,
        "latency_microseconds": calls,
        "rivals": rivals,
        "sizes": sizes,
        "growth": growth,
    }


# -- what is shown --------------------------------------------------------------------------------


def table(results: Numbers) -> str:
    product_seconds = results["product_seconds"]
    head = "| run | BLAS threads | time / product | peak memory | regret | bar |\n"
    head += "| --- | --- | --- | --- | --- | --- |\n"
    lines = []

    def add(name: str, threads: str, found: Numbers, bar: str = "") -> None:
        ratio = found["seconds"] / product_seconds
        memory = f"{found['peak_bytes'] / 1e9:.2f} GB"
        lines.append(
            f"| {name} | {threads} | {_short(ratio)} | {memory} | {found['regret']:.2g} | {bar} |\n"
        )

    for threads, found in results["million_rounds"].items():
        add("CAPRI, 50 x 50, T = 1e6", threads, found, "5, 1 GB")
    for threads, found in results["million_pairs"].items():
        add("CAPRI, 2,000 x 500, T = 1e5", threads, found, "60, 4 GB")
    for name, found in results["rivals"].items():
        add(name, "all" if "dense" in name or "exact" in name else "one", found)
    calls = results["latency_microseconds"]
    foot = "\n| call, private run, 50 actions | median | bar |\n| --- | --- | --- |\n"
    foot += f"| `act`, context of the pool | {calls['act_warm']:.0f} µs | 100 µs |\n"
    foot += f"| `act`, context never seen | {calls['act_unseen']:.0f} µs | 2,000 µs |\n"
    foot += f"| `update` | {calls['update']:.0f} µs | 50 µs |\n"
    foot += f"| closing an epoch | {calls['release_seconds'] * 1e3:.0f} ms | |\n"
    return head + "".join(lines) + foot


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of each")
    parser.add_argument("--task", choices=tuple(TASKS))
    parser.add_argument("--arguments", default="{}")
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(TASKS[arguments.task](**json.loads(arguments.arguments))))
        return
    started = perf_counter()
    results = everything(arguments.quick)
    common.save_json("speed", results)
    common.publish("speed", table(results))
    print(table(results), f"\nall of it: {(perf_counter() - started) / 60:.1f} minutes")
    print("T = " + ", ".join(power(size) for size in results["sizes"]["rounds"]))


if __name__ == "__main__":
    main()
