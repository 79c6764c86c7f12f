"""A data set as a private bandit: play it, log it, and ask what another policy would have earned.

    python examples/dataset_bandit.py [--data wine] [--epsilon 1] [--rounds 5000]

Rows of the data set are users: a public share tells policies who may come, the private rest comes.
Runs offline; needs pandas and scikit-learn (pip install 'capri-lab[data]').
"""

import argparse
import warnings

import capri
from capri_lab.datasets import (
    DATASET_NAMES,
    doubly_robust,
    environment_by_name,
    ips,
    record,
    replay,
    snips,
    suggested_kernel,
)
from capri_lab.rivals import rival


def main() -> None:
    """Three steps: play under privacy, replay a log, estimate from a log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATASET_NAMES, default="wine")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5_000)
    options = parser.parse_args()

    # A few hundred people are drawn again and again here, and policies would say so.
    warnings.simplefilter("ignore", capri.KernelWarning)
    bandit = environment_by_name(options.data)
    print(
        f"{bandit.name}: {len(bandit.contexts)} private users, {bandit.pool.size} public contexts "
        f"of {bandit.pool.dimension} numbers, {len(bandit.actions)} actions"
    )

    def policy(budget: capri.Budget | None) -> capri.Capri:
        return capri.Capri(
            actions=bandit.actions,
            contexts=bandit.pool,  # never bandit.contexts: those are the users
            reward_bound=bandit.reward_bound,
            budget=budget,
            simulation_seed=0,
        )

    budget = capri.Budget(epsilon=options.epsilon, delta=1e-5)
    for name, player in (
        (f"CAPRI, epsilon {options.epsilon:g}", policy(budget)),
        ("CAPRI without privacy", policy(None)),
    ):
        result = capri.simulate(player, bandit, options.rounds)
        print(f"{name}: regret {result.ratio:.2f} of uniform play's")

    # A log of uniform play, as an A/B test would leave it, with the probability of every action.
    kernel = suggested_kernel(bandit)  # of no use to uniform play, but rivals ask for one
    logger = rival("uniform", bandit, kernel=kernel, horizon=options.rounds, simulation_seed=1)
    log = record(logger, bandit, options.rounds, seed=1)
    replayed = replay(policy(None), log)
    print(
        f"replayed on a log of uniform play: {replayed.accepted} of {replayed.used} rounds "
        f"accepted, {replayed.mean_reward:.2f} earned per round"
    )

    # What would the learnt policy earn? Plain estimates: nothing about them is private.
    target = policy(None)
    capri.simulate(target, bandit, options.rounds, seed=2)
    truth = float((target.probabilities(bandit.contexts) * bandit.means).sum(axis=1).mean())
    print(f"value of a learnt policy over all users: {truth:.3f}; estimated from the log:")
    for estimate in (ips(log, target), snips(log, target), doubly_robust(log, target)):
        print(
            f"  {estimate.method:<14}{estimate.value:6.3f}  "
            f"({estimate.low:.3f} to {estimate.high:.3f} at {estimate.confidence:.0%})"
        )


if __name__ == "__main__":
    main()
