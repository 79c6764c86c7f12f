"""CAPRI on shipped data sets, beside what labels would teach: docs/howto/evaluate.md.

Regret over that of uniform play, mean over seeds. A seed fixes the split into public and private
rows, the users who come, and the policy. The last column is no bandit and not private: a supervised
model that sees the label of every private row (10-fold cross-validated on the same contexts).
"""

import argparse
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.svm import SVR

import capri
from capri.arrays import one_blas_thread
from capri.local.simulator import DeviceSimulator
from capri_lab.datasets import DATASET_NAMES, DataBandit, environment_by_name, suggested_kernel

# Model and epsilon; None is no noise.
PLAYERS: list[tuple[str, float | None]] = [
    ("joint", 1.0),
    ("joint", 4.0),
    ("local", 4.0),
    ("joint", None),
]


def ratio(bandit: DataBandit, rounds: int, model: str, epsilon: float | None, seed: int) -> float:
    settings: dict[str, Any] = {
        "kernel": suggested_kernel(bandit),
        "actions": bandit.actions,
        "contexts": bandit.pool,
        "reward_bound": bandit.reward_bound,
        "budget": None if epsilon is None else capri.Budget(epsilon=epsilon, delta=1e-5),
        "horizon": rounds,
        "simulation_seed": seed,
    }
    policy = DeviceSimulator.build(**settings) if model == "local" else capri.Capri(**settings)
    return capri.simulate(policy, bandit, rounds, seed=seed).ratio


def supervised(bandit: DataBandit) -> float:
    """Regret over that of uniform play of a model that learns from labels."""
    users = np.arange(len(bandit.contexts))
    best = bandit.means.argmax(axis=1)
    if bandit.features == "dose":
        level = bandit.actions[best, 0]
        wanted = cross_val_predict(SVR(epsilon=0.05), bandit.contexts, level, cv=10)
        chosen = np.abs(wanted[:, None] - bandit.actions[:, 0]).argmin(axis=1)
    else:
        chosen = cross_val_predict(
            LogisticRegression(C=100.0, max_iter=2000), bandit.contexts, best, cv=10
        )
    lost = bandit.best(users) - bandit.mean(users, chosen)
    return float(lost.mean()) / bandit.uniform_regret()


def cell(values: list[float]) -> str:
    return f"{fmean(values):.2f} ± {stdev(values) / len(values) ** 0.5:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, nargs="+", default=[5_000, 20_000])
    parser.add_argument("--sets", nargs="+", default=list(DATASET_NAMES))
    options = parser.parse_args()
    print("| data | T |", " | ".join(_title(*each) for each in PLAYERS), "| supervised | seconds |")
    print("| --- | ---: |" + " ---: |" * (len(PLAYERS) + 2))
    with one_blas_thread():
        for name in options.sets:
            bandits = [environment_by_name(name, seed=seed) for seed in range(options.seeds)]
            reference = cell([supervised(bandit) for bandit in bandits])
            for rounds in options.rounds:
                started = perf_counter()
                cells = [
                    cell([ratio(each, rounds, *player, seed) for seed, each in enumerate(bandits)])
                    for player in PLAYERS
                ]
                seconds = (perf_counter() - started) / (len(PLAYERS) * options.seeds)
                print(f"| {name} | {rounds:,} |", " | ".join(cells), end=" ")
                print(f"| {reference} | {seconds:.1f} |", flush=True)


def _title(model: str, epsilon: float | None) -> str:
    return "no privacy" if epsilon is None else f"{model}, ε = {epsilon:g}"


if __name__ == "__main__":
    main()
