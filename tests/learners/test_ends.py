"""Rewards at the ends of their range, and bounds that are far too large."""

import numpy as np
import pytest

import capri
from capri.environments import random_rkhs
from capri.learners.belief import Belief, Expected, Posterior, Squares
from capri.learners.boundary import (
    Encoding,
    Intercept,
    noise_at,
    room_of,
    shared_baseline,
    size_reach,
    sized,
)
from capri_lab.environments import rare_clicks

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)


def _policy(world: capri.environments.Environment, **changes: object) -> capri.Capri:
    return capri.Capri(
        kernel=changes.pop("kernel", KERNEL),  # type: ignore[arg-type]
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(1.0, 1e-5),
        simulation_seed=3,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kernel", [KERNEL, "auto"], ids=["told", "auto"])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_clicks_are_known_from_the_first_release(rate: float, kernel: object) -> None:
    """At any rate: ``E y^2 = B^2``, measured with deviation 1/16 ``B^2``; 0.7 is 3.8 away."""
    world = rare_clicks(rate, seed=3)
    policy = _policy(world, reward_range=(0, 1), kernel=kernel)
    capri.simulate(policy, world, 5_000, seed=3)
    learner = policy._learning.learner
    assert learner.known.belief.ends
    assert not learner.known.belief.heavy_tails
    assert policy.plan().value_bound >= policy.problem.reward_bound  # nothing is cut off
    assert "tail" not in policy.plan().layout.blocks
    level = float(policy.estimate(world.contexts).mean())
    assert level == pytest.approx(float(world.means.mean()), abs=0.1)


def test_other_rewards_are_not_taken_for_clicks() -> None:
    world = random_rkhs(KERNEL, seed=3)
    policy = _policy(world)
    capri.simulate(policy, world, 5_000, seed=3)
    assert not policy._learning.learner.known.belief.ends
    assert policy.plan().value_bound < 1.0


def test_noise_follows_the_mean_of_coins() -> None:
    belief = Belief.empty(1).with_noise((0.2, 100.0))
    assert noise_at(belief, np.array([0.3]), 0.5) == belief.noise_variance(0.5)
    ends = sized(belief, _squares(0.25), np.zeros(1), 0.5)
    assert ends.ends
    found = noise_at(ends, np.array([0.0, 0.3, 0.5, 9.0]), 0.5)
    least = 0.25 * belief.noise_variance(0.5)
    assert found == pytest.approx([0.25, 0.16, least, least])


def _squares(square: float) -> Squares:
    nothing = Expected.of(np.eye(1), np.zeros(1))
    return Squares.empty(1).measured(square, 0.01, nothing)


def test_the_share_of_the_baseline_weighs_both_noises() -> None:
    """Short epochs subtract nothing, long ones all; nothing is ever cut off."""
    problem = _policy(rare_clicks(0.02), reward_range=(0, 1)).problem
    estimate, weights = np.array([-0.48, -0.46]), np.array([0.5, 0.5])
    shares = []
    for length in (10, 1_000, 1_000_000):
        found = shared_baseline(problem, 7.5, estimate, weights, length)
        assert found.bound == pytest.approx(0.5 + found.share * 0.48)
        shares.append(found.share)
    assert shares[0] == 0 < shares[2] == 1
    assert sorted(shares) == shares
    assert not Encoding(0.5, 0.0, clips=False).subtracted(np.array([-1.0])).any()


def test_the_level_of_clicks_says_how_much_may_vary() -> None:
    assert room_of(-0.48, 0.0, 0.5) == pytest.approx(0.04)
    assert room_of(0.0, 0.1, 0.5) == 1.0
    features = np.column_stack([np.ones(50), np.linspace(-1, 1, 50)])
    level = Intercept.of(features, 0.5)
    assert level.one == pytest.approx([1.0, 0.0], abs=1e-4)
    state = Posterior(mean=np.array([-0.48, 0.2]), factor=np.zeros((2, 2)), scale=1.0)
    assert level.room(state.mean, state.factor) == pytest.approx(0.04, abs=1e-6)


def test_squares_far_below_the_bound_shrink_the_prior() -> None:
    unknown = Belief.empty(1)
    assert size_reach(unknown, 1.0) == 1.0
    small = sized(unknown, _squares(1e-4), np.zeros(1), 50.0)
    assert small.size == pytest.approx(0.0101)
    assert size_reach(small, 50.0) == pytest.approx(np.sqrt(0.101) / 50 / 0.25)
    assert sized(unknown, _squares(0.1), np.zeros(1), 1.0).size is None


@pytest.mark.slow
def test_a_bound_fifty_times_too_large_is_found_out() -> None:
    """Residuals are clipped at a tenth of the bound or less after 20,000 decisions.

    Over 64 runs the bound had the geometric mean 0.5 and a deviation of a factor 5: that of eight
    runs drawn from them is above 5 in 3 of 100,000 draws.
    """
    logarithms = []
    for seed in range(4, 12):
        world = random_rkhs(KERNEL, seed=seed)
        policy = _policy(world, reward_bound=50.0)
        capri.simulate(policy, world, 20_000, seed=seed)
        logarithms.append(np.log(policy.plan().value_bound))
    assert np.mean(logarithms) < np.log(5.0)
