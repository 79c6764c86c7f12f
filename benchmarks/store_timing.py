"""Does it show on a store how often one user was rewarded? Two worlds, and the best guess.

In world 0 a user is rewarded once, in world 1 again and again with other keys, always with 0: the
sum is the same. Others come at a public pace. What anybody sees of the release is when it becomes
public: after how many visits and seconds, and from which visit on the next law is played. A
threshold is chosen on one half of the runs and tried on the other; a right guess is worth
``epsilon >= log(p / (1 - p))`` at the lower end of its confidence interval.

    python benchmarks/store_timing.py --rewards 60000 --runs 60
"""

import argparse
import random
import tempfile
import time
import warnings
from math import log

import numpy as np
from scipy.stats import beta, ks_2samp

import capri

PACE, FIRST, WAIT = 0.004, 256, 8
ROWS = np.linspace(0, 1, 4)[:, None]


def seen(rewards: int, folder: str) -> dict[str, float]:
    """What anybody sees of one run."""
    policy = capri.Capri(
        actions=np.linspace(0, 1, 3)[:, None],
        contexts=capri.ContextPool(ROWS),
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.4),
        budget=capri.Budget(1.0, 1e-5),
        first_epoch=FIRST,
        reward_rule="sum",
        reward_wait=WAIT,
        store=f"sqlite:///{folder}/store.db",
    )
    policy.warm()
    target = policy.act(ROWS[0])
    for start in range(0, rewards, 2000):
        keys = [f"{place}" for place in range(start, min(start + 2000, rewards))]
        policy.update_many([target.id] * len(keys), np.zeros(len(keys)), keys=keys)
    rest = policy.act_many(np.repeat(ROWS[:1], FIRST - 40, axis=0))
    policy.update_many(rest, np.zeros(len(rest)), keys=["x"] * len(rest))
    # The grid of moments is that of the clock: no world is to begin at a place of its own.
    time.sleep(random.uniform(0, 0.5))
    begun, due, shown, law = time.perf_counter(), None, None, None
    before = policy.act(ROWS[1]).propensity
    for visit in range(2000):
        decision = policy.act(ROWS[1])
        if due is None and decision.epoch > 1:
            due = time.perf_counter(), visit
        if shown is None and policy.epochs:
            shown = time.perf_counter(), visit
        if law is None and decision.propensity != before:
            law = visit
        if shown is not None and law is not None and visit > shown[1] + 20:
            break
        time.sleep(max(0.0, begun + (visit + 1) * PACE - time.perf_counter()))
    missed = policy.progress.missed
    policy.close()
    assert due is not None
    assert shown is not None
    return {
        "visits until it is public": shown[1] - due[1],
        "seconds until it is public": shown[0] - due[0],
        "visits until the law is played": (law or 2000) - due[1],
        "missed moments": missed,
    }


def guess(worlds: list[np.ndarray], confidence: float = 0.95) -> tuple[float, float]:
    """How often the best threshold is right on runs that it was not chosen on; what that proves."""
    half = len(worlds[0]) // 2
    chosen, tried = [each[:half] for each in worlds], [each[half:] for each in worlds]
    cuts = np.unique(np.concatenate(chosen))
    scores = [(chosen[0] <= cut).mean() - (chosen[1] <= cut).mean() for cut in cuts]
    best = int(np.argmax(np.abs(scores)))
    below, cut = scores[best] >= 0, cuts[best]
    right = int(((tried[0] <= cut) == below).sum() + ((tried[1] <= cut) != below).sum())
    total = sum(len(each) for each in tried)
    least = float(beta.ppf(1 - confidence, right, total - right + 1)) if right else 0.0
    return right / total, max(0.0, log(least / (1 - least))) if 0 < least < 1 else 0.0


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rewards", type=int, default=60_000)
    options.add_argument("--runs", type=int, default=60)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    runs: list[list[dict[str, float]]] = [[], []]
    for run in range(given.runs):
        for world in (0, 1) if run % 2 else (1, 0):
            with tempfile.TemporaryDirectory() as folder:
                runs[world].append(seen(given.rewards if world else 1, folder))
    for name in runs[0][0]:
        worlds = [np.array([run[name] for run in each]) for each in runs]
        share, epsilon = guess(worlds)
        print(
            f"{name:32s} mean {worlds[0].mean():8.3f} {worlds[1].mean():8.3f}  "
            f"right guesses {share:.2f}  proven epsilon >= {epsilon:.2f}  "
            f"Kolmogorov-Smirnov p {ks_2samp(*worlds).pvalue:.2f}"
        )


if __name__ == "__main__":
    main()
