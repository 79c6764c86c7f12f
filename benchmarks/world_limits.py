"""Warm start and constraints: what they are worth, and whether every decision keeps them.

    python benchmarks/world_limits.py [--functions 12] [--decisions 1000000] [warm] [sets] [kept]

``warm``: regret at T = 1e4 with and without 1,000 public rows, rows of another function, rows of
opposite sign, and the releases of a policy and of a fit. ``sets``: users come with half of the
actions; the plan is told so or not. ``kept``: every one of a million decisions is compared with
its set, rules, floors and ceilings, and the share of an action with its limit. Fresh functions
(seeds 4000, 4001, ...). Writes results/world_limits.json and the tables in docs/results.md.
"""

import argparse
import json
import warnings
from time import perf_counter
from typing import Any

import common
import numpy as np

import capri
from capri import environments

FIRST_SEED = 4000
ROUNDS, ROWS = 10_000, 1000
BUDGET = capri.Budget(epsilon=1.0, delta=common.DELTA)
MATERN = common.M52
WARM = ("nothing", "1,000 rows", "rows of another function", "rows of opposite sign")
TOLD = ("a policy's releases", "a fit's releases")


def policy_of(world: Any, kernel: str, seed: int, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": MATERN if kernel == "told" else "auto",
        "actions": world.actions,
        "contexts": capri.ContextPool(world.contexts),
        "budget": BUDGET,
        "horizon": ROUNDS,
        "simulation_seed": seed,
    }
    return capri.Capri(**(settings | changes))


def prior_of(kind: str, world: Any, seed: int) -> Any:
    """What is known beforehand."""
    rng = np.random.default_rng([seed, 7])
    context = world.draw_contexts(rng, ROWS)
    action = rng.integers(len(world.actions), size=ROWS)
    if kind == "nothing":
        return None
    if kind == "a policy's releases":
        other = policy_of(world, "told", seed + 1)
        capri.simulate(other, world, ROUNDS, seed=seed + 1)
        return other
    if kind == "a fit's releases":
        context = world.draw_contexts(rng, 2 * ROUNDS)
        action = rng.integers(len(world.actions), size=2 * ROUNDS)
        pairs = np.concatenate([world.contexts[context], world.actions[action]], axis=1)
        fit = capri.PrivateKernelRidge(
            kernel=MATERN, epsilon=1.0, X_bounds=(0, 1), y_bounds=(-1, 1), random_state=seed
        )
        return fit.fit(pairs, world.rewards(rng, context, action))
    source = world
    if kind == "rows of another function":
        source = common.PROBLEMS["matern"].make(seed + 50_000)
    rewards = source.rewards(rng, context, action)
    if kind == "rows of opposite sign":
        rewards = -rewards
    return capri.Prior.from_rows(world.contexts[context], action, rewards)


def warm(kind: str, kernel: str, seed: int) -> float:
    world = common.PROBLEMS["matern"].make(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = policy_of(world, kernel, seed, prior=prior_of(kind, world, seed))
        return float(capri.simulate(policy, world, ROUNDS, seed=seed).ratio)


def sets(expected: bool, seed: int) -> float:
    """Regret against the best of what is available, each action one time in two."""
    world = common.PROBLEMS["matern"].make(seed)
    count = len(world.actions)
    chance = dict.fromkeys(range(count), 0.5) if expected else None
    policy = policy_of(world, "told", seed, limits=capri.Limits(availability=chance))
    rng, lost, uniform, played = np.random.default_rng([seed, 9]), 0.0, 0.0, 0
    while played < ROUNDS:
        number = min(policy.remaining, ROUNDS - played)
        context = world.draw_contexts(rng, number)
        available = rng.random((number, count)) < 0.5
        made = policy.act_many(world.contexts[context], available=available)
        policy.update_many(made, world.rewards(rng, context, made.action_index))
        values = np.where(available, world.means[context], np.nan)
        best = np.nanmax(values, axis=1)
        lost += float((best - values[np.arange(number), made.action_index]).sum())
        uniform += float((best - np.nanmean(values, axis=1)).sum())
        played += number
    return lost / uniform


def kept(decisions: int, seed: int) -> dict[str, Any]:
    """Play with every kind of limit, and look at every decision."""
    world = environments.random_rkhs(MATERN, actions=20, seed=seed)
    count = len(world.actions)
    limits = capri.Limits(
        floor={3: 0.05, 11: 0.02},
        ceiling={9: 0.2, 10: 0.1},
        allowed={14: {0: (0.5, None)}, 15: {0: (None, 0.3)}},
        availability=dict.fromkeys(range(count), 0.6),
    )
    floor, ceiling = np.zeros(count), np.ones(count)
    floor[[3, 11]], ceiling[[9, 10]] = (0.05, 0.02), (0.2, 0.1)
    policy = policy_of(world, "told", seed, limits=limits, horizon=decisions)
    rng, broken, unserved, played = np.random.default_rng([seed, 5]), 0, 0, 0
    started = perf_counter()
    warnings.simplefilter("ignore", capri.RewardIgnoredWarning)  # of contexts that are no numbers
    while played < decisions:
        number = min(policy.remaining, decisions - played, 1 << 13)
        context = world.draw_contexts(rng, number)
        rows = world.contexts[context].copy()
        kind = rng.random(number)
        rows[kind < 0.05] = rng.uniform(-1, 2, ((kind < 0.05).sum(), 1))  # outside of the pool
        rows[kind > 0.99] = np.nan
        available = rng.random((number, count)) < 0.6
        made = policy.act_many(rows, available=available)
        known = np.isfinite(rows[:, 0])
        offered = available.copy()
        with np.errstate(invalid="ignore"):
            offered[:, 14] &= rows[:, 0] >= 0.5
            offered[:, 15] &= rows[:, 0] <= 0.3
        chosen, every = made.action_index, np.arange(number)
        law = policy._learning.learner.probabilities(np.nan_to_num(rows), available)
        within = (law >= offered * floor) & (law <= ceiling) & (offered | (law == 0))
        fine = offered[every, chosen] & (made.propensity <= ceiling[chosen])
        fine &= made.propensity >= floor[chosen]
        fine &= ~known | (within.all(axis=1) & (made.propensity == law[every, chosen]))
        broken += int((~fine).sum())
        unserved += int((made.status != 0).sum())
        rewards = world.rewards(rng, context, chosen)
        policy.update_many(made[:], np.where(made.status == 0, rewards, np.nan))
        played += number
    share = capri.Limits(share={7: 0.05, 12: 0.08})
    shared = policy_of(world, "told", seed, limits=share)
    largest, played = np.zeros(2), 0
    while played < ROUNDS:
        law = shared.probabilities(world.contexts)
        largest = np.maximum(largest, (world.weights @ law)[[7, 12]])
        number = min(shared.remaining, ROUNDS - played)
        context = world.draw_contexts(rng, number)
        made = shared.act_many(world.contexts[context])
        shared.update_many(made, world.rewards(rng, context, made.action_index))
        played += number
    return {
        "decisions": decisions,
        "broken": broken,
        "no numbers": unserved,
        "largest shares": largest.tolist(),
        "limits on shares": [0.05, 0.08],
        "seconds": perf_counter() - started,
    }


def measure(parts: list[str], functions: int, decisions: int) -> dict[str, Any]:
    path = common.RESULTS / "world_limits.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    seeds = range(FIRST_SEED, FIRST_SEED + functions)
    results |= {"seeds": [seeds[0], seeds[-1]], "rounds": ROUNDS, **common.about()}
    if "warm" in parts:
        results["warm"] = {}
        for kernel in ("told", "auto"):
            for kind in (*WARM, *TOLD):
                ratios = [warm(kind, kernel, seed) for seed in seeds]
                results["warm"][f"{kernel}, {kind}"] = {**common.summary(ratios), "ratios": ratios}
                print(f"{kernel:5} {kind:26} {np.mean(ratios):.4f}", flush=True)
                common.save_json("world_limits", results)
    if "sets" in parts:
        results["sets"] = {}
        for expected in (True, False):
            ratios = [sets(expected, seed) for seed in seeds]
            name = "expected" if expected else "not expected"
            results["sets"][name] = {**common.summary(ratios), "ratios": ratios}
            print(f"sets {name:20} {np.mean(ratios):.4f}", flush=True)
    if "kept" in parts:
        results["kept"] = kept(decisions, FIRST_SEED)
        print(results["kept"], flush=True)
    common.save_json("world_limits", results)
    return results


def warm_table(results: dict[str, Any]) -> str:
    lines = [
        "| known beforehand | kernel told: mean | largest | no kernel told: mean | largest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in (*WARM, *TOLD):
        rows = [results["warm"].get(f"{kernel}, {kind}") for kernel in ("told", "auto")]
        cells = [
            cell
            for row in rows
            for cell in (
                ("", "")
                if row is None
                else (f"{row['mean']:.3f} ± {row['standard_error']:.3f}", f"{row['max']:.3f}")
            )
        ]
        lines.append(f"| {' | '.join([kind, *cells])} |")
    return "\n".join(lines) + "\n"


def sets_text(results: dict[str, Any]) -> str:
    found, checked = results["sets"], results["kept"]
    means = {name: f"{row['mean']:.3f}" for name, row in found.items()}
    return (
        f"Measured, T = 1e4, {len(found['expected']['ratios'])} functions, every action "
        "available to half of the visits, regret over uniform play on the same sets: "
        f"{means['expected']} with `availability`, {means['not expected']} without. Of "
        f"{checked['decisions']:,} decisions with sets, rules, floors and ceilings, contexts "
        f"outside of the pool and contexts that are no numbers, {checked['broken']} broke a "
        "limit.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["warm", "sets", "kept"])
    parser.add_argument("--functions", type=int, default=12)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    asked = parser.parse_args()
    results = measure(asked.parts, asked.functions, asked.decisions)
    if "warm" in results:
        common.publish("warm", warm_table(results))
    if "sets" in results and "kept" in results:
        common.publish("sets", sets_text(results))


if __name__ == "__main__":
    main()
