"""Tails and noise: what noise alone says, pooled over readings, expected before measured."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import capri
from capri.epoch.plan import EpochPlan, Release
from capri.learners.belief import Squares
from capri.learners.learner import PracticalLearner
from capri.learners.residuals import (
    clipped_square,
    cuts_off_too_much,
    expected_excess,
    measured_excess,
    pooled,
    restored_square,
    too_heavy,
)
from capri.local.simulator import DeviceSimulator

KERNEL = capri.kernels.RBF(lengthscale=0.4)


def fleet_on(epsilon: float, seed: int, **changes: Any) -> DeviceSimulator:
    world = capri.environments.random_rkhs(KERNEL, contexts=8, actions=6, seed=seed)
    settings: dict[str, Any] = {
        "kernel": KERNEL, "actions": world.actions, "contexts": capri.ContextPool(world.contexts),
    }  # fmt: skip
    return DeviceSimulator.build(
        budget=capri.Budget(epsilon=epsilon), simulation_seed=seed, **(settings | changes)
    )


def learner_of(fleet: DeviceSimulator) -> PracticalLearner:
    learner = fleet.aggregator._learning.learner
    assert isinstance(learner, PracticalLearner)
    return learner


def newest_plan(fleet: DeviceSimulator) -> EpochPlan:
    return fleet.aggregator._newest.epochs[-1].plan


@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.5, 4.0])
def test_what_is_left_of_a_clipped_gaussian(ratio: float) -> None:
    left = quad(lambda x: min(x * x, ratio**2) * norm.pdf(x), -inf, inf, points=None)[0]
    assert clipped_square(ratio) == pytest.approx(left, rel=1e-6)
    beyond = 2 * quad(lambda x: (x - ratio) * norm.pdf(x), ratio, inf)[0]
    assert expected_excess(ratio) == pytest.approx(beyond / ratio, rel=1e-6)


def test_tails_are_heavy_beyond_doubt_or_not_at_all() -> None:
    nothing = Squares.empty(2)
    assert not too_heavy(nothing)
    assert not too_heavy(replace(nothing, cut=0.6 * 100, cut_weight=100.0))  # 3 deviations
    assert too_heavy(replace(nothing, cut=0.6 * 400, cut_weight=400.0))  # 6
    assert not too_heavy(replace(nothing, cut=0.25 * 1e6, cut_weight=1e6))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_alone_cries_wolf_once_in_a_thousand_releases(noise: str) -> None:
    """Of 20,000 releases at the limit: 20 alarms expected, 5 to 50 in all but 2e-5 of samples."""
    world = capri.environments.random_rkhs(KERNEL, contexts=8, actions=6, seed=3)
    policy = capri.Capri(
        kernel=KERNEL, actions=world.actions, contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(epsilon=1.0, delta=1e-5), noise=noise, simulation_seed=3,
    )  # fmt: skip
    capri.simulate(policy, world, 2000, seed=3)
    learner, plan = policy._learning.learner, policy.plan()
    assert isinstance(learner, PracticalLearner)
    design = learner.known.pending[plan.epoch][0].design
    assert design is not None
    assert design.residual
    vector = np.zeros(plan.dimension)
    tail = plan.layout.part(vector, "tail")  # a view
    tail[0] = 1.0
    found = measured_excess(Release.as_planned(plan, vector), design, 1.0)
    nothing = measured_excess(Release.as_planned(plan, 0 * vector), design, 1.0)
    assert found is not None
    assert nothing is not None
    unit, limit = found[0] - nothing[0], 0.3 * design.value_bound - nothing[0]
    rng = np.random.default_rng(4)
    drawn = rng.normal(size=20_000) if noise == "gaussian" else rng.laplace(size=20_000) / 2**0.5
    alarms = 0
    for each in drawn:
        tail[0] = (limit + each * found[1]) / unit
        alarms += cuts_off_too_much(Release.as_planned(plan, vector), design, 1.0)
    assert 5 <= alarms <= 50


def exact_release(fleet: DeviceSimulator, square: float, excess: float) -> tuple[Release, Any]:
    """A reading without noise of an epoch that clips: residuals of this square and excess."""
    learner = learner_of(fleet)
    plan, design = newest_plan(fleet), learner.known.design
    assert design is not None
    assert design.residual
    bound, n, rank = plan.value_bound, plan.length, plan.features.rank
    most = min(1.0, 16 * bound)
    vector = np.zeros(plan.dimension)
    vector[rank] = bound * plan.layout.moment_share * n * (2 * square / bound**2 - 1)
    vector[rank + 1] = bound * plan.layout.tail_share * n * (2 * excess / most - 1)
    return Release.as_planned(plan, vector), design


def test_squares_are_restored_and_tails_averaged() -> None:
    fleet = fleet_on(8.0, 3)
    world = capri.environments.random_rkhs(KERNEL, contexts=8, actions=6, seed=3)
    capri.simulate(fleet, world, 600, seed=3)
    bound = learner_of(fleet).known.pending[max(learner_of(fleet).known.pending)][0].value_bound
    left = clipped_square(1.0)
    release, design = exact_release(fleet, bound**2 * left, 0.0)
    squares = pooled(Squares.empty(3), release, design, 1.0)
    assert squares.cut == pytest.approx(0.0, abs=1e-6 * squares.cut_weight)
    square, deviation = restored_square(squares, release, design, 1.0)
    assert square == pytest.approx(bound**2, rel=1e-6)  # clipped at one predicted deviation
    assert deviation > 0
    release, design = exact_release(fleet, bound**2 * left, 0.5 * bound)
    for _ in range(19):  # enough that what is measured is beyond its doubt
        squares = pooled(squares, release, design, 1.0)
    assert squares.cut / squares.cut_weight == pytest.approx(0.5 * 19 / 20)
    assert restored_square(squares, release, design, 1.0)[0] > bound**2


def test_noise_is_measured_and_no_alarm_is_false() -> None:
    """Uniform noise of 0.1: variance 0.0033; bounds come down with it and nothing is dropped."""
    for seed in range(4):
        fleet = fleet_on(4.0, seed)
        world = capri.environments.random_rkhs(KERNEL, contexts=8, actions=6, seed=seed)
        capri.simulate(fleet, world, 4000, seed=seed)
        learner = learner_of(fleet)
        assert not learner.known.belief.heavy_tails
        assert 0.002 < learner.known.belief.noise_variance(1.0) < 0.03
        newest = learner.known.design
        assert newest is not None
        assert newest.value_bound < 0.3


def test_coins_are_never_clipped() -> None:
    """Rewards of -1 and 1 have no small residuals: every plan leaves them whole."""
    fleet = fleet_on(4.0, 5)
    rng = np.random.default_rng(6)
    contexts = fleet.problem.contexts
    assert isinstance(contexts, capri.ContextPool)
    for _ in range(20):
        count = min(200, fleet.remaining)
        decisions = fleet.act_many(contexts.rows[rng.integers(8, size=count)])
        rewards = np.where(rng.random(count) < 0.5 + 0.05 * decisions.action_index, 1.0, -1.0)
        fleet.update_many(decisions, rewards)
        assert newest_plan(fleet).value_bound >= 1.0
    assert learner_of(fleet).known.belief.ends
