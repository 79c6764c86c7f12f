"""A simulation on a store is the simulation in memory, decision by decision, restarts included."""

import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capri import Capri, ContextPool, HorizonError, RewardIgnoredWarning
from stored_policies import SETTINGS, context, decided, learning, policy

pytestmark = pytest.mark.usefixtures("unforced")
ROUNDS = 150
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "summed": {"reward_wait": 15, "reward_rule": "sum", "missing_reward": "as-estimated"},
    "paper, local": {"model": "local", "preset": "paper", "horizon": 200},
    "users": {"contributions_per_user": 3, "contributions_per_epoch": 2, "reward_wait": 15},
    "crowd": {
        "contexts": ContextPool.from_ranges([(-1, 1)], size=8),
        "first_epoch": 9,
        "reward_wait": 15,
    },
}


def play(
    store: str | None, settings: dict[str, Any], restart: int | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Decisions, statuses and epochs of a run whose rewards come seven decisions late, twice."""
    run = policy(store, simulation_seed=3, **settings)
    world = np.random.default_rng(1)
    decisions, statuses, late = [], [], []
    for number in range(ROUNDS):
        user = int(world.integers(60)) if "contributions_per_user" in settings else None
        decision = run.act(context(world), user=user, key=f"visit {number % 67}")
        decisions.append(decided(decision))
        late.append(decision.id)
        if len(late) > 7:
            oldest, values = late.pop(0), world.normal(size=3)
            values[0] = np.nan if number % 11 == 0 else values[0]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RewardIgnoredWarning)
                statuses += run.update_many([oldest] * 3, values, keys=["a", "b", "a"]).tolist()
        if restart and store and number % restart == restart - 1:
            run.close()
            run = Capri.open(store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RewardIgnoredWarning)
        run.close_epoch(early=True)
    found = learning(run)
    run.close()
    return decisions, statuses, found


@pytest.mark.parametrize("variant", VARIANTS)
def test_sqlite_changes_nothing_and_restarts_neither(variant: str, tmp_path: Path) -> None:
    settings = VARIANTS[variant]
    expected = play(None, settings)
    assert len(expected[2]) >= 3, "several epochs were released"
    assert len(set(expected[1])) >= 3, "rewards met several fates"
    assert play(f"sqlite:///{tmp_path}/whole.db", settings) == expected
    assert play(f"sqlite:///{tmp_path}/parts.db", settings, restart=23) == expected


@pytest.mark.slow
def test_postgres_changes_nothing_and_restarts_neither(postgres_url: str) -> None:
    settings = VARIANTS["users"]
    assert play(postgres_url, settings, restart=23) == play(None, settings)


def test_the_paper_on_a_store(tmp_path: Path) -> None:
    """Algorithm 1 as printed, to the end of its horizon."""

    def run(store: str | None) -> tuple[list[Any], list[Any]]:
        kept = {name: value for name, value in SETTINGS.items() if name != "first_epoch"}
        changes = {"preset": "paper", "horizon": 200, "simulation_seed": 4, "store": store}
        return _to_the_end(Capri(**(kept | changes)))

    assert run(f"sqlite:///{tmp_path}/store.db") == run(None)


def _to_the_end(run: Capri) -> tuple[list[Any], list[Any]]:
    world = np.random.default_rng(2)
    decisions = []
    while run.remaining:
        batch = run.act_many([context(world) for _ in range(min(9, run.remaining))])
        decisions += [decided(decision) for decision in batch]
        run.update_many(batch, world.normal(size=len(batch)))
    run.close_epoch()
    with pytest.raises(HorizonError, match="all 200 decisions"):
        run.act([0.0])
    found = learning(run)
    run.close()
    return decisions, found


def test_epochs_on_a_clock(tmp_path: Path) -> None:
    """The clock is public and given; a day passes every tenth decision."""

    def run(store: str | None) -> tuple[list[Any], list[Any]]:
        today = [datetime(2030, 1, 1)]
        chosen = policy(
            store,
            simulation_seed=5,
            reward_wait=timedelta(hours=30),
            epoch_time=timedelta(days=2),
            clock=lambda: today[0],
        )
        world = np.random.default_rng(3)
        decisions, statuses = [], []
        for number in range(150):
            decision = chosen.act(context(world))
            decisions.append(decided(decision))
            if number % 10 == 9:
                today[0] += timedelta(days=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RewardIgnoredWarning)
                statuses.append(chosen.update(decisions[max(0, number - 25)][0], 0.5))
        found = learning(chosen)
        chosen.close()
        return [decisions, statuses], found

    expected = run(None)
    assert len(expected[1]) >= 4
    assert len(set(expected[0][1])) >= 2
    assert run(f"sqlite:///{tmp_path}/store.db") == expected


def test_a_log_is_replayed_on_a_store(tmp_path: Path) -> None:
    def run(store: str | None) -> list[Any]:
        chosen, world = policy(store, simulation_seed=6), np.random.default_rng(4)
        kept = []
        for _ in range(30):
            rows = [context(world) for _ in range(min(4, chosen.remaining))]
            decisions, mask = chosen.match_many(rows, world.integers(5, size=len(rows)))
            kept.append((decisions.id.tolist(), mask.tolist()))
            chosen.update_many(decisions, world.normal(size=len(decisions)))
        chosen.close()
        return kept

    assert run(f"sqlite:///{tmp_path}/store.db") == run(None)
