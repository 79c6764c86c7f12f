"""Simulated users: many at once are the same as each alone."""

import numpy as np
import pytest
from devices import BUDGET, CONTEXTS, reward_of, small_aggregator

import capri
from capri.environments import random_rkhs
from capri.errors import BundleError, DataError, HorizonError
from capri.local.simulator import DeviceSimulator

ACCEPTED, STALE = capri.ReportStatus.ACCEPTED, capri.ReportStatus.STALE


def small_fleet(seed: int = 5) -> tuple[capri.LocalCapri, DeviceSimulator]:
    aggregator = small_aggregator()
    return aggregator, DeviceSimulator(aggregator, BUDGET, simulation_seed=seed)


def test_users_in_any_batches_are_the_same_users() -> None:
    """Users one by one (as clients), in batches of odd sizes, all at once: equal to the bit."""
    results = []
    for sizes in ((60,), (1, 2, 57), (13,) * 4 + (8,)):
        aggregator, fleet = small_fleet()
        actions = []
        for size in sizes:
            first = len(actions)
            users = np.arange(first, first + size)
            decisions = fleet.act_many(CONTEXTS[users % 6])
            assert (decisions.number == users).all()
            actions += decisions.action_index.tolist()
            rewards = [reward_of(u, a) for u, a in zip(users, decisions.action_index, strict=True)]
            assert (fleet.update_many(decisions, rewards) == ACCEPTED).all()
        results.append((tuple(actions), aggregator.bundle(), fleet.estimate(CONTEXTS).tobytes()))
    aggregator = small_aggregator()
    bundle, actions, reports = aggregator.bundle(), [], []
    for user in range(60):
        client = capri.LocalClient(bundle, BUDGET, simulation=(5, user))
        decision = client.act(CONTEXTS[user % 6])
        actions.append(decision.action_index)
        reports.append(client.report(reward_of(user, decision.action_index)))
    aggregator.receive_many(reports)
    results.append((tuple(actions), aggregator.bundle(), aggregator.estimate(CONTEXTS).tobytes()))
    assert len(set(results)) == 1


def test_learns_an_easy_problem() -> None:
    """Regret well below uniform play at epsilon 8; the same run from the same seed."""
    kernel = capri.kernels.RBF(lengthscale=0.6)
    environment = random_rkhs(
        kernel, contexts=8, actions=8, context_dimension=1, action_dimension=1, noise=0.1, seed=1
    )
    ratios = []
    for _ in range(2):
        fleet = DeviceSimulator.build(
            budget=capri.Budget(epsilon=8.0),
            simulation_seed=2,
            kernel=kernel,
            actions=environment.actions,
            contexts=capri.ContextPool(environment.contexts, weights=environment.weights),
            horizon=20_000,
        )
        result = capri.simulate(fleet, environment, 20_000, seed=3)
        assert fleet.remaining == 0
        assert len(result.epochs) > 3
        ratios.append(result.ratio)
    assert ratios[0] == ratios[1]
    assert ratios[0] < 0.6


def test_makes_no_claim() -> None:
    assert "no privacy claim" in small_fleet()[1].guarantee


def test_devices_of_a_fleet_check_the_promise() -> None:
    fleet = DeviceSimulator(small_aggregator(), capri.Budget(epsilon=1.0), simulation_seed=1)
    with pytest.raises(BundleError, match="costs epsilon"):
        fleet.act_many(CONTEXTS)


def test_bad_use_changes_nothing() -> None:
    aggregator, fleet = small_fleet()
    for bad in ([[0.1, 0.2]], "text"):
        with pytest.raises(DataError):
            fleet.act_many(bad)
    decisions = fleet.act_many(CONTEXTS)
    assert (decisions.number == np.arange(6)).all()  # bad contexts used up no user
    for bad in ([0.0] * 5, "text", [[0.0] * 6]):
        with pytest.raises(DataError):
            fleet.update_many(decisions, bad)
    assert aggregator.remaining == 60
    assert (fleet.update_many(decisions, np.zeros(6)) == ACCEPTED).all()
    with pytest.raises(DataError, match="once"):
        fleet.update_many(decisions, np.zeros(6))
    assert aggregator.remaining == 54


def test_one_users_value_is_nobody_elses_matter() -> None:
    """A value that is no number takes its slot and changes no other user's action or report."""
    aggregator, fleet = small_fleet()
    usual = fleet.act_many(CONTEXTS)
    other, strange = small_fleet()
    contexts = CONTEXTS.copy()
    contexts[2], contexts[4] = np.nan, 1e300
    decisions = strange.act_many(contexts)
    assert (decisions.id == usual.id).all()
    others = [0, 1, 3, 5]
    assert (decisions.action_index[others] == usual.action_index[others]).all()
    assert (decisions.propensity[[2, 4]] == 1 / 5).all()
    rewards = np.linspace(-1, 1, 6)
    assert (fleet.update_many(usual, rewards) == ACCEPTED).all()
    rewards[3] = np.inf
    assert (strange.update_many(decisions, rewards) == ACCEPTED).all()
    assert aggregator.remaining == other.remaining == 54


def test_users_with_any_value_are_the_clients_of_that_value() -> None:
    aggregator, fleet = small_fleet()
    contexts, rewards = [[np.nan], [0.4], [1e200], [0.2]], [1.0, np.nan, 0.5, None]
    decisions = fleet.act_many(contexts)
    for user in range(4):
        client = capri.LocalClient(aggregator.bundle(), BUDGET, simulation=(5, user))
        decision = client.act(contexts[user])
        assert decision.action_index == decisions.action_index[user]
        assert aggregator.receive(client.report(rewards[user])) == ACCEPTED
    replayed = fleet.update_many(decisions, rewards)
    assert (replayed == capri.ReportStatus.REPLAYED).all()  # the same tokens: the same reports


def test_nobody_comes() -> None:
    aggregator, fleet = small_fleet()
    decisions = fleet.act_many(np.empty((0, 1)))
    assert len(decisions) == 0
    assert aggregator.remaining == 60
    assert len(fleet.act_many(CONTEXTS)) == 6


def test_late_users_answer_the_bundle_they_decided_with() -> None:
    """Just like a client that keeps its old bundle: the epoch is closed, the datum is dropped."""
    aggregator, fleet = small_fleet()
    late = fleet.act_many(CONTEXTS)
    on_time = fleet.act_many(np.tile(CONTEXTS, (10, 1)))
    assert (fleet.update_many(on_time, np.zeros(60)) == ACCEPTED).all()
    newer = fleet.act_many(CONTEXTS)
    assert newer.epoch == 2
    assert (fleet.update_many(late, np.zeros(6)) == STALE).all()
    assert (fleet.update_many(newer, np.zeros(6)) == ACCEPTED).all()
    assert aggregator.remaining == 84


def test_after_the_horizon() -> None:
    aggregator, fleet = small_fleet()
    while fleet.remaining:
        decisions = fleet.act_many(np.zeros((fleet.remaining, 1)))
        fleet.update_many(decisions, np.zeros(len(decisions)))
    assert fleet.epochs == aggregator.epochs
    with pytest.raises(HorizonError):
        fleet.act_many(CONTEXTS)
