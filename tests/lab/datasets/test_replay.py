"""Logs carry exact propensities, and replayed rounds follow the law of the policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import capri
from capri.environments import TabularEnvironment, random_rkhs
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.kernels import RBF
from capri.simulation import UniformPlay
from capri_lab.datasets import BanditLog, load_log, record, replay
from capri_lab.rivals import RIVAL_NAMES, rival

KERNEL = RBF(lengthscale=0.3)
MEANS = np.array([[0.9, 0.1, -0.5], [-0.3, 0.8, 0.2], [0.0, -0.6, 0.7], [0.4, 0.4, -0.9]])
WORLD = TabularEnvironment(
    name="small",
    contexts=[[0.0], [0.3], [0.6], [1.0]],
    weights=[0.1, 0.2, 0.3, 0.4],
    actions=[[0.0], [0.5], [1.0]],
    means=MEANS,
    reward_bound=1.0,
    noise=0.1,
)
# Laws of a logging policy and of a target, by context.
LOGGED = np.array([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2], [0.25, 0.25, 0.5], [0.3, 0.5, 0.2]])
TARGET = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.5, 0.1, 0.4], [0.2, 0.3, 0.5]])


class FixedLaw:
    """Plays a fixed table of probabilities, and counts what it is fed."""

    def __init__(self, law: np.ndarray, horizon: int, seed: int = 0) -> None:
        self._law, self.horizon, self._rng = law, horizon, np.random.default_rng(seed)
        self.contexts: list[float] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []

    @property
    def remaining(self) -> int:
        return self.horizon - len(self.actions)

    def match_many(self, contexts: object, action_index: object) -> Any:
        rows, wanted = np.asarray(contexts), np.asarray(action_index)
        where = np.searchsorted(WORLD.contexts[:, 0], rows[:, 0])
        cumulative = np.cumsum(self._law[where], axis=1)
        chosen = (cumulative <= self._rng.random(len(rows))[:, None]).sum(axis=1)
        kept = chosen == wanted
        first = len(self.actions)
        self.contexts += list(rows[kept, 0])
        self.actions += list(chosen[kept])
        ids = np.arange(first, len(self.actions))
        chances = self._law[where[kept], chosen[kept]]
        return capri.Decisions.simulated(ids, 1, chosen[kept], rows[kept], chances), kept

    def update_many(self, decisions: capri.Decisions, rewards: object) -> None:
        self.rewards += list(np.asarray(rewards))


def log_of(law: np.ndarray, rounds: int, seed: int) -> BanditLog:
    rng = np.random.default_rng(seed)
    context = WORLD.draw_contexts(rng, rounds)
    action = (np.cumsum(law[context], axis=1) <= rng.random(rounds)[:, None]).sum(axis=1)
    return BanditLog(
        contexts=WORLD.contexts[context],
        action_index=action,
        rewards=WORLD.rewards(rng, context, action),
        propensities=law[context, action],
        actions=3,
    )


@pytest.mark.parametrize("logged", [np.full((4, 3), 1 / 3), LOGGED], ids=["uniform", "uneven"])
def test_accepted_rounds_follow_the_policy(logged: np.ndarray) -> None:
    """Chi-squared over 10 possible pairs, 9 degrees of freedom: beyond 45 with probability 1e-6.

    The mean reward lies within 5 standard errors of its expectation: false alarm 6e-7.
    """
    policy = FixedLaw(TARGET, horizon=10**6)
    result = replay(policy, log_of(logged, 60_000, seed=1), seed=2)
    assert result.used == 60_000
    # A share q = smallest propensity of the rounds is accepted, whatever the target.
    q = logged.min()
    assert abs(result.accepted - 60_000 * q) < 5 * np.sqrt(60_000 * q * (1 - q))
    where = np.searchsorted(WORLD.contexts[:, 0], policy.contexts)
    counts = np.zeros((4, 3))
    np.add.at(counts, (where, policy.actions), 1)
    expected = result.accepted * WORLD.weights[:, None] * TARGET
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert np.sum((counts - expected)[possible] ** 2 / expected[possible]) < 45.0
    truth = float(np.sum(WORLD.weights[:, None] * TARGET * MEANS))
    error = result.rewards.std() / np.sqrt(result.accepted)
    assert abs(result.mean_reward - truth) < 5 * error
    np.testing.assert_array_equal(result.rewards, policy.rewards)
    np.testing.assert_array_equal(result.propensities, TARGET[where, policy.actions])


def test_without_offering_by_propensity_an_uneven_log_would_mislead() -> None:
    """What the thinning is for: pretending that the log is uniform shifts the law of contexts."""
    log = log_of(LOGGED, 60_000, seed=1)
    naive = BanditLog(
        contexts=log.contexts,
        action_index=log.action_index,
        rewards=log.rewards,
        propensities=np.full(len(log), 1 / 3),
        actions=3,
    )
    result = replay(FixedLaw(TARGET, horizon=10**6), naive, seed=2)
    truth = float(np.sum(WORLD.weights[:, None] * TARGET * MEANS))
    assert abs(result.mean_reward - truth) > 5 * result.rewards.std() / np.sqrt(result.accepted)


def test_it_stops_where_it_is_told() -> None:
    log = log_of(np.full((4, 3), 1 / 3), 3_000, seed=3)
    result = replay(FixedLaw(TARGET, horizon=10**6), log, rounds=50)
    assert result.accepted == 50
    assert 100 < result.used < 300
    assert replay(FixedLaw(TARGET, horizon=70), log).accepted == 70
    nothing = replay(FixedLaw(TARGET, horizon=10), log[:1], seed=5)
    assert nothing.used == 1
    assert nothing.accepted == 1 or np.isnan(nothing.mean_reward)


def small_capri(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": WORLD.actions,
        "contexts": capri.ContextPool(WORLD.contexts, weights=WORLD.weights),
        "budget": None,
        "simulation_seed": 5,
        "first_epoch": 40,
    }
    return capri.Capri(**(settings | changes))


def test_capri_sees_accepted_rounds_only() -> None:
    """Epochs close on accepted rounds, and their length is that of a live run."""
    policy = small_capri()
    result = replay(policy, log_of(LOGGED, 4_000, seed=4))
    lengths = [epoch.length for epoch in policy.epochs]
    assert lengths[0] == 40
    assert sum(lengths) <= result.accepted < sum(lengths) + policy.remaining + max(lengths) * 2
    assert policy.progress.decided == result.accepted


def test_a_replayed_capri_earns_what_a_live_one_does() -> None:
    """Means over 8 seeds of 400 rounds, within 5 standard errors of their difference."""
    live, replayed = [], []
    for seed in range(8):
        policy = small_capri(simulation_seed=seed)
        live.append(record(policy, WORLD, 400, seed=seed).rewards.mean())
        policy = small_capri(simulation_seed=seed + 100)
        log = log_of(np.full((4, 3), 1 / 3), 2_000, seed=seed + 50)
        result = replay(policy, log, rounds=400, seed=seed)
        assert result.accepted == 400
        replayed.append(result.mean_reward)
    error = np.sqrt((np.var(live, ddof=1) + np.var(replayed, ddof=1)) / 8)
    assert abs(np.mean(live) - np.mean(replayed)) < 5 * error
    uniform = float(np.sum(WORLD.weights * MEANS.mean(axis=1)))
    assert np.mean(replayed) > uniform + 0.3


@pytest.mark.parametrize("name", RIVAL_NAMES)
def test_rivals_replay_too(name: str) -> None:
    policy = rival(name, WORLD, kernel=KERNEL, horizon=100, simulation_seed=1)
    result = replay(policy, log_of(LOGGED, 3_000, seed=6))
    assert result.accepted == 100
    assert policy.remaining == 0
    assert ((result.propensities > 0) & (result.propensities <= 1)).all()


def test_a_private_policy_replays_nothing() -> None:
    policy = small_capri(budget=capri.Budget(epsilon=1.0, delta=1e-5), simulation_seed=None)
    before = policy.remaining
    with pytest.raises(ConfigurationError, match="a private policy replays no log"):
        replay(policy, log_of(LOGGED, 10, seed=0))
    assert policy.remaining == before
    assert not policy.pending


@pytest.mark.parametrize("policy", [small_capri(), UniformPlay(actions=WORLD.actions, horizon=9)])
def test_matching_takes_actions_that_exist(policy: Any) -> None:
    before = policy.remaining
    for wanted, message in (
        ([3], "the number of an action must lie in 0 to 2"),
        ([0.0], "one whole number per context is needed"),
        ([0, 1], "one whole number per context is needed"),
    ):
        with pytest.raises(DataError, match=message):
            policy.match_many(WORLD.contexts[:1], wanted)
    assert policy.remaining == before


# -- logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [None, capri.Limits(floor={0: 0.1, 1: 0.1, 2: 0.1})])
def test_propensities_of_decisions_are_exact(limits: capri.Limits | None) -> None:
    """Each is the probability under the policy's public law, to the last bit, and draws follow it.

    ``sum_t (1{x_t = k} - p_t(k))`` is a martingale of known variance; each of three stays within
    5 standard deviations: false alarm 2e-6.
    """
    world = random_rkhs(KERNEL, contexts=6, actions=3, seed=2)
    policy = capri.Capri(
        kernel=KERNEL,
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(epsilon=4.0, delta=1e-5),
        simulation_seed=3,
        limits=limits,
    )
    rng = np.random.default_rng(0)
    surplus, variance = np.zeros(3), np.zeros(3)
    for _ in range(6):
        context = world.draw_contexts(rng, policy.remaining)
        # Some users stand beside the pool: their law is computed when they come.
        rows = (
            world.contexts[context] + np.where(rng.random(len(context)) < 0.3, 0.01, 0.0)[:, None]
        )
        law = policy.probabilities(rows)
        decisions = policy.act_many(rows)
        chosen = decisions.action_index
        np.testing.assert_array_equal(decisions.propensity, law[np.arange(len(rows)), chosen])
        policy.update_many(decisions, world.rewards(rng, context, chosen))
        policy.close_epoch()  # the law asked for above is the one of the next decisions
        surplus += np.bincount(chosen, minlength=3) - law.sum(axis=0)
        variance += (law * (1 - law)).sum(axis=0)
    assert (np.abs(surplus) < 5 * np.sqrt(variance)).all()


def test_a_record_is_what_was_played() -> None:
    log = record(small_capri(), WORLD, 300, seed=1)
    assert len(log) == 300
    again = record(small_capri(), WORLD, 300, seed=1)
    np.testing.assert_array_equal(log.rewards, again.rewards)
    where = np.searchsorted(WORLD.contexts[:, 0], log.contexts[:, 0])
    assert np.abs(log.rewards - MEANS[where, log.action_index]).max() <= 0.1 + 1e-12
    with pytest.raises(ConfigurationError, match="the policy is done after 100 rounds"):
        record(small_capri(horizon=100), WORLD, 300)
    assert "0." not in repr(log)


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_a_log_is_read_back(form: str, tmp_path: Path) -> None:
    log = log_of(LOGGED, 50, seed=1)
    source: Any = pd.DataFrame(
        {
            "who": log.contexts[:, 0],
            "did": np.array(["stop", "wait", "go"])[log.action_index],
            "got": log.rewards,
            "chance": log.propensities,
        }
    )
    if form != "frame":
        path = tmp_path / f"log.{form}"
        source.to_csv(path, index=False) if form == "csv" else source.to_parquet(path)
        source = path
    names: dict[str, Any] = {"context": ["who"], "action": "did", "reward": "got"}
    names |= {"propensity": "chance", "actions": ["stop", "wait", "go"]}
    again = load_log(source, **names)
    for column in ("contexts", "action_index", "rewards", "propensities"):
        np.testing.assert_array_equal(getattr(again, column), getattr(log, column))
    with pytest.raises(DataError, match="not among the 2 listed"):
        load_log(source, **(names | {"actions": ["stop", "wait"]}))
    with pytest.raises(ConfigurationError, match="has no column 'chances'; did you mean 'chance'"):
        load_log(source, **(names | {"propensity": "chances"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": []}, "actions must list the actions of the log"),
        ({"actions": [0, "0"]}, "actions must be different from each other"),
        ({"context": "c"}, "context must be a list of one or more columns, got 'c'"),
        ({"reward": "p"}, "column 'p' cannot serve two ends"),
    ],
)
def test_descriptions_of_a_log_that_make_no_sense(changes: Any, message: str) -> None:
    frame = pd.DataFrame({"c": [0.0, 1.0], "x": [0, 1], "y": [1.0, 2.0], "p": 0.5})
    names: dict[str, Any] = {"context": ["c"], "action": "x", "reward": "y", "propensity": "p"}
    with pytest.raises(ConfigurationError, match=message):
        load_log(frame, **(names | {"actions": [0, 1]} | changes))


@pytest.mark.parametrize("form", ["frame", "csv"])
def test_a_log_with_named_columns_is_read_by_its_schema(form: str, tmp_path: Path) -> None:
    schema = capri.Schema(
        [capri.Numeric("age", 0, 100), capri.Categorical("city", ["linz", "graz"])]
    )
    source: Any = pd.DataFrame(
        {"age": [20, 40, 80], "city": ["graz", "linz", "wien"], "x": [0, 1, 1], "y": 1.0, "p": 0.5}
    )
    names: dict[str, Any] = {"action": "x", "reward": "y", "propensity": "p", "actions": [0, 1]}
    records = source[["age", "city"]].to_dict("records")
    if form == "csv":
        source.to_csv(tmp_path / "log.csv", index=False)
        source = tmp_path / "log.csv"
    log = load_log(source, context=schema, **names)
    np.testing.assert_array_equal(log.contexts, schema.rows(records))
    with pytest.raises(DataError, match="column 'city' holds text: give context as a"):
        load_log(source, context=["age", "city"], **names)


def test_a_replay_says_how_many_rounds_were_accepted() -> None:
    played = replay(
        UniformPlay(actions=3, horizon=400, simulation_seed=0), log_of(LOGGED, 300, seed=1)
    )
    assert 0 < played.accepted < played.used == 300
    assert repr(played).startswith(f"Replay({played.accepted} of 300 rounds accepted, mean reward ")


def test_bad_cells_of_a_log_are_not_shown() -> None:
    frame = pd.DataFrame({"c": [0.0, 1.0], "x": [0, 1], "y": ["1.5", "secret-4711"], "p": 0.5})
    with pytest.raises(DataError, match="a private row has a cell") as caught:
        load_log(frame, context=["c"], action="x", reward="y", propensity="p", actions=[0, 1])
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"propensities": [0.5, 0.0]}, DataError, "propensities must lie above 0"),
        ({"propensities": [0.5, 1.5]}, DataError, "propensities must lie above 0"),
        ({"propensities": [0.5]}, ShapeError, r"propensities must have shape \(2,\), got \(1,\)"),
        ({"action_index": [0, 2]}, DataError, "action_index must be whole numbers from 0 to 1"),
        ({"action_index": [0, 0.5]}, DataError, "action_index must be whole numbers from 0 to 1"),
        ({"rewards": [0.0, float("nan")]}, DataError, "rewards must be finite numbers"),
        ({"rewards": ["a", "b"]}, DataError, "rewards must be finite numbers"),
        ({"actions": 0}, ConfigurationError, "actions must be a whole number"),
        ({"contexts": np.empty((0, 1))}, ShapeError, "at least one round"),
    ],
)
def test_logs_that_make_no_sense(changes: Any, error: Any, message: str) -> None:
    columns = {
        "contexts": [[0.0], [1.0]],
        "action_index": [0, 1],
        "rewards": [0.0, 1.0],
        "propensities": [0.5, 0.5],
        "actions": 2,
    }
    with pytest.raises(error, match=message):
        BanditLog(**(columns | changes))


def test_a_bound_above_the_log_is_refused() -> None:
    log = log_of(LOGGED, 100, seed=1)
    for wrong in (0.21, 0.0, -1.0):
        with pytest.raises(ConfigurationError, match="no larger than any in the log"):
            replay(FixedLaw(TARGET, horizon=10), log, smallest_propensity=wrong)
    with pytest.raises(ConfigurationError, match="rounds must be a whole number of 1 or more"):
        replay(FixedLaw(TARGET, horizon=10), log, rounds=0)
