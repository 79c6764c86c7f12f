"""Exact GP-UCB against a plain implementation, and BKB on a long horizon.

The plain one keeps the posterior covariance of all 2,500 pairs and changes it by a rank-one update
after every reward, as a textbook has it, in place by BLAS (with NumPy's ``outer``, which makes a
new matrix each time, it takes several times as long). Both play the same rounds in one process.

    python benchmarks/rivals.py [--rounds 10000] [--long 100000]
"""

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.linalg.blas import dger

import capri
from capri.arrays import one_blas_thread
from capri.environments import random_rkhs
from capri_lab.rivals import rival

RESULTS = Path(__file__).parent / "results" / "rivals.json"
RIDGE, WIDTH = 0.06**2, 1.0


class PlainGPUCB:
    """``S <- S - s s^T / (s_x + ridge)`` on the whole grid, and nothing clever."""

    def __init__(self, covariance: np.ndarray, actions: int) -> None:
        self.covariance, self.actions = covariance, actions
        self.mean = np.zeros(len(covariance))

    def act(self, context: int) -> int:
        place = slice(context * self.actions, (context + 1) * self.actions)
        variance = np.maximum(self.covariance.diagonal()[place], 0.0)
        return int((self.mean[place] + WIDTH * np.sqrt(variance)).argmax())

    def update(self, context: int, action: int, reward: float) -> None:
        pair = context * self.actions + action
        column = self.covariance[pair].copy()
        total = column[pair] + RIDGE
        self.mean += column * ((reward - self.mean[pair]) / total)
        dger(-1.0 / total, column, column, a=self.covariance.T, overwrite_a=1)


def play_plain(kernel: Any, world: Any, rounds: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    started = perf_counter()
    contexts, actions = world.contexts, world.actions
    pairs = np.hstack(
        [np.repeat(contexts, len(actions), axis=0), np.tile(actions, (len(contexts), 1))]
    )
    policy = PlainGPUCB(kernel(pairs, pairs), len(actions))
    lost = 0.0
    for _ in range(rounds):
        context = world.draw_contexts(rng, 1)
        action = np.array([policy.act(int(context[0]))])
        reward = world.rewards(rng, context, action)
        policy.update(int(context[0]), int(action[0]), float(reward[0]))
        lost += float(world.best(context)[0] - world.mean(context, action)[0])
    seconds = perf_counter() - started
    return {"seconds": seconds, "ratio": lost / rounds / world.uniform_regret()}


def play_rival(
    name: str, kernel: Any, world: Any, rounds: int, seed: int, **options: Any
) -> dict[str, float]:
    started = perf_counter()
    policy = rival(name, world, kernel=kernel, horizon=rounds, simulation_seed=seed, **options)
    result = capri.simulate(policy, world, rounds, seed=seed)
    return {
        "seconds": perf_counter() - started,
        "ratio": result.ratio,
        "peak_memory_bytes": result.peak_memory_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--long", type=int, default=100_000)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"rounds": arguments.rounds, "long": arguments.long, "kernels": {}}
    with one_blas_thread():
        for label, kernel in (
            ("matern52", capri.kernels.Matern(nu=2.5, lengthscale=0.3)),
            ("rbf", capri.kernels.RBF(lengthscale=0.3)),
        ):
            world = random_rkhs(kernel, seed=0)
            common = (kernel, world, arguments.rounds, 0)
            ours = play_rival("gp-ucb", *common, beta=WIDTH, noise=RIDGE**0.5)
            plain = play_plain(*common)
            long = play_rival("bkb", kernel, world, arguments.long, 0)
            report["kernels"][label] = {
                "gp_ucb": ours,
                "plain_gp_ucb": plain,
                "plain_over_ours": plain["seconds"] / ours["seconds"],
                "bkb_long": long,
            }
            print(
                f"{label}: GP-UCB {ours['seconds']:.1f} s (ratio {ours['ratio']:.4f}), plain "
                f"{plain['seconds']:.1f} s (ratio {plain['ratio']:.4f}), "
                f"{plain['seconds'] / ours['seconds']:.1f} times; BKB at {arguments.long:,} "
                f"{long['seconds']:.1f} s (ratio {long['ratio']:.4f})"
            )
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
