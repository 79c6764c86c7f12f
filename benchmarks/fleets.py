"""What a fleet of devices must show on worlds that no class of kernels was made for.

    python benchmarks/fleets.py items|late|forged [--seeds 0,1,...] [--epsilon 2] [--rounds N]

``items``: six unrelated items, clicks of 12 %, columns of numbers, levels and truth values. Shares
of clicks over the last fifth, on the way from uniform play (0) to the best fixed item (1).

``late``: readers of examples/web, 20,000 of them, whose reports come so many readers late. What
they liked, and what the delay must cost: until the first report nobody can know anything, so
those readers are served as the first ones are, and the others as without a delay.

``forged``: a fleet of the same readers. Three in a hundred do not decide but want one book, and
search 4,000 tokens for the direction that it has against all others, or the numbers of their one
ticket; ``careful`` are those who stay below what is left out. The share of that book among all
decisions, over the last fifth.
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import capri
from capri.arrays import FloatArray, IntArray
from capri.environments import TabularEnvironment
from capri.local.bundle import open_bundle
from capri.local.simulator import DeviceSimulator
from capri.local.wire import pack
from capri.privacy.sphere import DIRECTION_UNITS, directions
from capri.simulation import play

ITEMS, CLICKS, PEOPLE = 6, 0.12, 300
READERS, SIDE = 20_000, 12
# Depth and length of the books of examples/web.
BOOKS = np.array(
    [
        [0.08, 0.12], [0.18, 0.62], [0.3, 0.92], [0.42, 0.36],
        [0.62, 0.1], [0.66, 0.66], [0.9, 0.32], [0.92, 0.88],
    ]
)  # fmt: skip
SHARE, TRIES = 0.03, 4000
SALT = 0xF1EE7


def item_world(seed: int) -> tuple[TabularEnvironment, capri.ContextPool]:
    """Items whose clicks depend on people by a factor of their own each."""
    draw = np.random.default_rng([seed, 33])
    schema = capri.Schema(
        [
            capri.Numeric("age", 18, 80),
            capri.Numeric("hour", 0, 24),
            capri.Categorical("plan", ["free", "basic", "pro"]),
            capri.Boolean("member"),
        ]
    )
    people = [
        {"age": age, "hour": hour, "plan": plan, "member": bool(member)}
        for age, hour, plan, member in zip(
            draw.uniform(18, 80, PEOPLE),
            draw.uniform(0, 24, PEOPLE),
            draw.choice(["free", "basic", "pro"], PEOPLE, p=[0.6, 0.3, 0.1]),
            draw.random(PEOPLE) < 0.3,
            strict=True,
        )
    ]
    pool = capri.ContextPool(people, schema=schema)
    seen = (pool.rows - pool.rows.mean(0)) / np.maximum(pool.rows.std(0), 1e-9)
    taste = seen @ draw.normal(0, 0.4 / np.sqrt(seen.shape[1]), (seen.shape[1], ITEMS))
    rates = np.exp(draw.normal(0, 0.4, ITEMS) + taste)
    means = np.clip(CLICKS * rates / rates.mean(), 0, 0.9)
    world = TabularEnvironment(
        name="items", contexts=pool.rows, weights=pool.weights, actions=np.eye(ITEMS), means=means,
        reward_bound=1.0, noise=0.0, bernoulli=True,
    )  # fmt: skip
    return world, pool


def reading_world() -> TabularEnvironment:
    """Readers on a grid of moods and evenings, and how likely each likes a book of examples/web."""
    line = (np.arange(SIDE) + 0.5) / SIDE
    readers = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    squares = ((readers[:, None] - BOOKS[None]) ** 2).sum(-1)
    return TabularEnvironment(
        name="readers", contexts=readers, weights=np.full(len(readers), 1 / len(readers)),
        actions=BOOKS, means=np.exp(-squares / (2 * 0.25**2)), reward_bound=1.0, noise=0.0,
        bernoulli=True,
    )  # fmt: skip


def fleet_of(
    world: TabularEnvironment, pool: capri.ContextPool, epsilon: float, seed: int, **more: Any
) -> DeviceSimulator:
    """Devices of a world, by the defaults."""
    return DeviceSimulator.build(
        budget=capri.Budget(epsilon=epsilon), simulation_seed=seed, kernel="auto",
        actions=world.actions, contexts=pool, reward_range=(0.0, 1.0), **more,
    )  # fmt: skip


def played(
    world: TabularEnvironment, fleet: DeviceSimulator, rounds: int, seed: int
) -> tuple[FloatArray, IntArray]:
    """What each user may expect of the action that the device took, and the action."""
    means, actions = np.empty(rounds), np.empty(rounds, dtype=np.int64)
    place = 0
    for context, decisions, _ in play(fleet, world, rounds, seed=seed, salt=SALT):
        part = slice(place, place + len(context))
        actions[part] = decisions.action_index
        means[part] = world.mean(context, actions[part])
        place += len(context)
    return means, actions


# -- six unrelated items ---------------------------------------------------------------------------


def items(epsilon: float, rounds: int, seed: int) -> dict[str, float]:
    """The last fifth, on the way from uniform play to the best fixed item."""
    world, pool = item_world(seed)
    fleet = fleet_of(world, pool, epsilon, seed)
    means, _ = played(world, fleet, rounds, seed)
    uniform = float(world.weights @ world.means.mean(axis=1))
    fixed, best = (
        float((world.weights @ world.means).max()),
        float(world.weights @ world.means.max(axis=1)),
    )
    fifths = means.reshape(5, -1).mean(axis=1)
    return {
        "seed": seed, "epsilon": epsilon, "uniform": uniform, "fixed": fixed, "best": best,
        "last": float(fifths[-1]), "way": float((fifths[-1] - uniform) / (fixed - uniform)),
        "fifths": [round(float(each), 4) for each in fifths],  # type: ignore[dict-item]
        "notices": [notice.kind for notice in fleet.notices],  # type: ignore[dict-item]
    }  # fmt: skip


# -- reports that are under way --------------------------------------------------------------------


def late(epsilon: float, rounds: int, seed: int) -> list[dict[str, float]]:
    """What was liked by delay, and what it would be if the delay cost its own readers alone."""
    world = reading_world()
    pool = capri.ContextPool(world.contexts)
    found: list[dict[str, float]] = []
    prompt = np.empty(0)
    for delay in (0, 100, 500, 1000, 2000, 5000):
        fleet = fleet_of(world, pool, epsilon, seed, delay=delay)
        means, _ = played(world, fleet, rounds, seed)
        if not delay:
            prompt = means
        waiting = np.full(delay, world.means.mean())
        could = float(np.concatenate([waiting, prompt[: rounds - delay]]).mean())
        liked = float(means.mean())
        stale = fleet.statuses[capri.ReportStatus.STALE] / rounds
        row = {"seed": seed, "epsilon": epsilon, "delay": delay, "liked": liked}
        found.append(row | {"could": could, "share": liked / could, "stale": stale})
        print(json.dumps(found[-1]), flush=True)
    return found


# -- reports that were made up ---------------------------------------------------------------------


class Coordinated:
    """A fleet in which some want one action: what they report was never decided or seen."""

    def __init__(self, fleet: DeviceSimulator, wanted: int, how: str, seed: int) -> None:
        self.fleet, self.wanted, self.how = fleet, wanted, how
        self._draw = np.random.default_rng([seed, 7])
        receive = fleet.aggregator.receive_many
        self._receive = receive
        fleet._deliver = self._deliver  # type: ignore[method-assign]

    def _deliver(self, _count: int) -> IntArray:
        """Three in a hundred of the reports are replaced before they leave."""
        rows = self.fleet._under_way.popleft()
        self.fleet._flying = 0
        mine = np.flatnonzero(self._draw.random(len(rows)) < SHARE)
        if len(mine):
            rows = rows.copy()
            rows[mine] = self._made_up(len(mine))
        return self._receive(rows)

    def _made_up(self, count: int) -> Any:
        bundle = open_bundle(self.fleet.aggregator.bundle())
        sphere = bundle.plan.sphere
        assert sphere is not None
        people = self.fleet.problem.contexts.rows  # type: ignore[attr-defined]
        aim = np.zeros(sphere.dimension)
        for action in range(bundle.actions.count):
            pairs = bundle.actions.chosen(people, np.full(len(people), action))
            told = bundle.plan.features.whitened(pairs).mean(axis=0)
            share = 1.0 if action == self.wanted else -1 / (bundle.actions.count - 1)
            aim[: len(told)] += share * told
        aim /= np.linalg.norm(aim)
        half = sphere.candidates // 2
        tokens, numbers = [], []
        for _ in range(count):
            tries, rows = (1, half) if self.how == "ticket" else (TRIES, 1)
            seeds = self._draw.integers(0, 2**64, (tries, 2), dtype=np.uint64)
            every = np.repeat(seeds, rows, axis=0)
            named = np.tile(np.arange(rows), tries)
            along = directions(every, named, sphere.dimension) @ aim / DIRECTION_UNITS
            size = np.abs(along) * np.sqrt(sphere.dimension)
            if self.how == "careful":  # stays below what the filter takes out
                size[size > 1.99] = 0
            best = int(size.argmax())
            tokens.append(every[best])
            numbers.append(2 * named[best] + (along[best] < 0))
        return pack(bundle.digest, np.array(tokens), np.array(numbers))


def forged(epsilon: float, rounds: int, seed: int) -> list[dict[str, Any]]:
    """The share of one book over the last fifth, by what its friends do."""
    world = reading_world()
    found: list[dict[str, Any]] = []
    for how in ("none", "searched", "careful", "none, tickets", "ticket"):
        pool = capri.ContextPool(world.contexts)
        fleet = fleet_of(world, pool, epsilon, seed, tickets="ticket" in how)
        wanted = seed % len(BOOKS)
        if not how.startswith("none"):
            Coordinated(fleet, wanted, how, seed)
        means, actions = played(world, fleet, rounds, seed)
        last = slice(rounds * 4 // 5, None)
        share = float(np.mean(actions[last] == wanted))
        row = {"seed": seed, "epsilon": epsilon, "how": how, "share": share}
        row |= {"liked": float(means[last].mean())}
        row |= {"notices": [notice.kind for notice in fleet.notices]}
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("items", "late", "forged"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=READERS)
    given = parser.parse_args()
    run = {"items": items, "late": late, "forged": forged}[given.what]
    for seed in map(int, given.seeds.split(",")):
        told = run(given.epsilon, given.rounds, seed)
        if isinstance(told, dict):
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
