"""Rewards with a range and a transform: one public map, from the call to the estimate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capri
from builders import draw_contexts, small_policy
from capri.epoch.rewards import RewardScale, checked_scale, rescaled, tail_bound
from capri.errors import ConfigurationError
from capri.local.bundle import open_bundle
from capri_lab.environments import rare_clicks

RANGE: dict[str, Any] = {"reward_bound": None, "reward_range": (0.0, 1.0)}
numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    low=st.floats(0, 100),
    width=st.floats(0.1, 1e6),
    transform=st.sampled_from([None, "log1p", "sqrt"]),
    rewards=st.lists(numbers, min_size=1, max_size=8),
)
def test_any_reward_is_learnt_within_the_bound(
    low: float, width: float, transform: str | None, rewards: list[float]
) -> None:
    """No value raises or leaves the bound; NaN stays NaN, order stays order."""
    scale = checked_scale(None, (low, low + width), transform)
    values = np.array(rewards)
    with np.errstate(all="raise"):
        learnt = scale.learnt(values)
    assert (np.isnan(learnt) == np.isnan(values)).all()
    known = learnt[~np.isnan(learnt)]
    assert (np.abs(known) <= scale.bound).all()
    assert (np.diff(scale.learnt(np.sort(values[~np.isnan(values)]))) >= 0).all()
    ends = scale.learnt(np.array([-np.inf, np.inf]))
    assert ends == pytest.approx([-scale.bound, scale.bound], rel=1e-6)


def test_a_bound_is_a_symmetric_range_to_the_bit() -> None:
    values = np.random.default_rng(0).normal(0, 2, 1000)
    bound, ranged = checked_scale(1.5), checked_scale(None, (-1.5, 1.5))
    assert bound == ranged == RewardScale.within(1.5)
    assert (bound.learnt(values) == np.clip(values, -1.5, 1.5)).all()
    assert bound.told(values) is values
    assert bound.arguments() == {"reward_bound": 1.5}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"reward_bound": 1.0, "reward_range": (0, 1)}, "not both"),
        ({"reward_range": (1, 0)}, "low < high"),
        ({"reward_range": (0, float("inf"))}, "two numbers"),
        ({"reward_range": 1.0}, "two numbers"),
        ({"reward_range": (1e9, 1e9 + 1e-3)}, "too narrow"),
        ({"reward_transform": "sqrt"}, "needs the range"),
        ({"reward_range": (-1, 5), "reward_transform": "sqrt"}, "or more"),
        ({"reward_range": (0, 5), "reward_transform": "exp"}, "'log1p', 'sqrt'"),
        ({"reward_range": (1, 5)}, "missing_reward must lie in the range"),
        ({"reward_range": (0, 1), "missing_reward": -0.5}, "missing_reward must lie in the range"),
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        small_policy(**({"reward_bound": None} | wrong))


def test_a_range_halves_the_sensitivity() -> None:
    whole = small_policy(budget=capri.Budget(1.0, 1e-5))
    half = small_policy(budget=capri.Budget(1.0, 1e-5), **RANGE)
    assert half.problem.reward_bound == 0.5
    assert half.plan().noise_scale == pytest.approx(whole.plan().noise_scale / 2)
    assert half.plan().layout.diameter == whole.plan().layout.diameter  # in integers


def test_estimates_are_in_the_units_of_rewards() -> None:
    """Without noise: a constant reward, sent and missing alike, is found again."""
    for changes, reward, expected in [
        (RANGE, 0.8, 0.8),
        (RANGE | {"missing_reward": 0.8}, None, 0.8),
        ({"reward_bound": None, "reward_range": (2.0, 6.0), "missing_reward": 2.0}, 3.0, 3.0),
        (RANGE | {"reward_range": (0, 99), "reward_transform": "sqrt"}, 49.0, 7.0),
    ]:
        policy = small_policy(budget=None, preset="practical", horizon=None, **changes)
        for turn in range(6):
            decisions = policy.act_many(draw_contexts(turn, policy.remaining))
            if reward is not None:
                policy.update_many(decisions, np.full(len(decisions.action), reward))
            policy.close_epoch()
        assert policy.estimate(draw_contexts(0, 3)) == pytest.approx(expected, abs=0.05)


def test_estimates_are_means_that_rewards_can_have() -> None:
    """Noise alone takes them out of the range: nobody clicks, and no rate is below 0."""
    rows = np.linspace(0, 1, 6)[:, None]
    lowest = []
    for seed in range(6):
        policy = capri.Capri(
            actions=3, contexts=capri.ContextPool(rows), budget=capri.Budget(0.5, 1e-5),
            reward_range=(0, 1), first_epoch=200, simulation_seed=seed,
        )  # fmt: skip
        decisions = policy.act_many(rows[np.arange(policy.remaining) % 6])
        policy.update_many(decisions, np.zeros(len(decisions.action)))
        policy.close_epoch()
        estimate = policy.estimate(rows)
        assert ((estimate >= 0) & (estimate <= 1)).all()
        lowest.append(estimate.min())
    assert min(lowest) == 0.0  # where it would lie below


def test_a_changed_range_replaces_a_bound_and_back() -> None:
    policy = small_policy(**RANGE)
    assert policy.again(simulation_seed=1).problem.scale == RewardScale(0.0, 1.0)
    assert policy.again(simulation_seed=1, reward_bound=2.0).problem.reward_bound == 2.0
    assert rescaled({"reward_bound": 1.0}, {"reward_range": (0, 1)}) == {"reward_range": (0, 1)}


def test_a_saved_policy_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Belief at the ends, level and range are kept."""
    world = rare_clicks(0.1, seed=1)
    policy = capri.Capri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(1.0, 1e-5),
        reward_range=(0, 1),
        simulation_seed=1,
    )
    capri.simulate(policy, world, 2_000, seed=1)
    policy.save(tmp_path / "policy.npz")
    loaded = capri.Capri.load(tmp_path / "policy.npz")
    assert loaded.problem.scale == RewardScale(0.0, 1.0)
    both = [capri.simulate(each, world, 3_000, seed=2).ratio for each in (policy, loaded)]
    assert both[0] == both[1]
    assert (policy.estimate(world.contexts) == loaded.estimate(world.contexts)).all()
    assert policy._learning.learner.known.belief.ends


def test_devices_know_the_range() -> None:
    aggregator = capri.LocalCapri(
        actions=[[0.0], [1.0]],
        contexts=capri.ContextPool([[0.0], [1.0]]),
        kernel=capri.kernels.RBF(lengthscale=0.5),
        budget=capri.Budget(2.0, 0.0),
        reward_range=(10.0, 20.0),
        reward_transform="log1p",
        missing_reward=15.0,
        public_seed=0,
    )
    bundle = open_bundle(aggregator.bundle())
    assert bundle.scale == RewardScale(10.0, 20.0, "log1p")
    assert bundle.missing_reward == 15.0
    client = capri.LocalClient(aggregator.bundle(), capri.Budget(2.0, 0.0))
    client.act([0.0])
    client.report(1e300)
    assert aggregator.again(public_seed=1).problem.scale == bundle.scale


def test_the_tail_is_measured_to_what_may_matter() -> None:
    assert tail_bound(1.0, 0.5) == 1.0
    assert tail_bound(50.0, 0.1) == pytest.approx(1.6)
