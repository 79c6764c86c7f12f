"""Users who are not whom the public pool says: regret over uniform play, law by law.

``python benchmarks/world_law.py --rounds 100000 --functions 10 --seed 4000`` prints one line for
each law.

Functions are Matern-5/2, lengthscale 0.3, on an even grid of 50 contexts times 50 actions; epsilon
1, delta 1e-5. ``pool`` says what the policy is told of contexts, ``users`` who really comes.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from time import perf_counter

import numpy as np

import capri

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
Law = Callable[[np.ndarray], np.ndarray]


def even(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def near(x: np.ndarray) -> np.ndarray:
    """Crowded around 0.8."""
    return np.asarray(np.exp(-0.5 * ((x - 0.8) / 0.1) ** 2))


def beta(x: np.ndarray) -> np.ndarray:
    """Beta(5, 1)."""
    return np.asarray(x**4)


def half(x: np.ndarray) -> np.ndarray:
    return (x <= 0.5).astype(float)


def other_half(x: np.ndarray) -> np.ndarray:
    return (x > 0.5).astype(float)


def middle(x: np.ndarray) -> np.ndarray:
    return ((x >= 1 / 3) & (x <= 2 / 3)).astype(float)


# What the pool says, who comes, how many actions.
CASES: dict[str, tuple[Law, Law, int]] = {
    "right": (even, even, 50),
    "told near": (near, near, 20),
    "near": (even, near, 20),
    "beta": (even, beta, 50),
    "users in the middle third": (even, middle, 50),
    "pool of the left half": (half, even, 50),
    "pool of the middle third": (middle, even, 50),
    "pool of the other half": (half, other_half, 50),
}


def play(case: str, seed: int, rounds: int, kernel: object, options: dict) -> dict:
    """One run: regret over uniform play at powers of the rounds, and how long it took."""
    pool_law, user_law, actions = CASES[case]
    world = capri.environments.random_rkhs(KERNEL, contexts=50, actions=actions, seed=seed)
    means, x = np.asarray(world.means), world.contexts[:, 0]
    told, law = pool_law(x), user_law(x)
    law = law / law.sum()
    rows = told > 0
    pool = capri.ContextPool(world.contexts[rows], weights=told[rows] / told.sum())
    started = perf_counter()
    policy = capri.Capri(
        kernel=kernel,
        actions=world.actions,
        contexts=pool,
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        simulation_seed=seed,
        **options,
    )
    generator = np.random.default_rng(seed)
    regret = uniform = 0.0
    done, curve = 0, []
    while done < rounds:
        n = min(policy.remaining, rounds - done)
        i = generator.choice(len(x), size=n, p=law)
        decisions = policy.act_many(world.contexts[i])
        policy.update_many(
            decisions, means[i, decisions.action_index] + generator.uniform(-0.1, 0.1, n)
        )
        done += n
        regret += (means[i].max(1) - means[i, decisions.action_index]).sum()
        uniform += (means[i].max(1) - means[i].mean(1)).sum()
        curve.append((done, float(regret / uniform)))
    return {
        "ratio": float(regret / uniform),
        "seconds": perf_counter() - started,
        "curve": curve,
        "mismatch": [getattr(record, "mismatch", None) for record in policy.epochs],
        "notices": [notice.kind for notice in policy.notices],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--seed", type=int, default=4000)
    parser.add_argument("--kernel", choices=("told", "auto"), default="told")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--json", help="also write every run here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kernel = KERNEL if arguments.kernel == "told" else "auto"
    found = {}
    for case in arguments.cases:
        runs = [
            play(case, arguments.seed + number, arguments.rounds, kernel, {})
            for number in range(arguments.functions)
        ]
        found[case] = runs
        ratios = [run["ratio"] for run in runs]
        print(
            f"{case:28s} {np.mean(ratios):.4f}",
            " ".join(f"{ratio:.3f}" for ratio in ratios),
            f"{sum(run['seconds'] for run in runs):.1f} s",
            sorted({kind for run in runs for kind in run["notices"]}),
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
