"""Uniform play is the yardstick, so it must measure what the environment says it measures."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from capri import ConfigurationError, DataError, HorizonError, environments, kernels, simulate
from capri.simulation import UniformPlay

ENVIRONMENT = environments.random_rkhs(
    kernels.Matern(nu=2.5, lengthscale=0.3), contexts=20, actions=10, seed=5
)


def test_regret_agrees_with_the_environment() -> None:
    """Within 4 standard errors: a false alarm less often than once in 10,000 runs."""
    rounds = 50_000
    policy = UniformPlay(actions=ENVIRONMENT.actions, horizon=rounds, simulation_seed=1)
    result = simulate(policy, ENVIRONMENT, rounds, seed=2)
    means = ENVIRONMENT.means
    losses = means.max(axis=1, keepdims=True) - means
    standard_error = losses.std() / math.sqrt(rounds)
    assert result.uniform_regret_per_round == pytest.approx(losses.mean())
    assert abs(result.regret_per_round - losses.mean()) < 4 * standard_error
    assert result.epochs == ()


def test_actions_are_equally_likely() -> None:
    """Chi-square at a false-alarm rate of 1e-4."""
    policy = UniformPlay(actions=np.arange(7.0), horizon=70_000, simulation_seed=3)
    decisions = policy.act_many(np.zeros((70_000, 2)))
    counts = np.bincount(decisions.action_index, minlength=7)
    statistic = float(((counts - 10_000.0) ** 2 / 10_000.0).sum())
    assert statistic < chi2.ppf(1 - 1e-4, df=6)
    np.testing.assert_array_equal(decisions.action[:, 0], decisions.action_index)
    np.testing.assert_array_equal(decisions.propensity, 1 / 7)


def test_ids_go_on_and_the_horizon_ends_play() -> None:
    policy = UniformPlay(actions=[[0.0], [1.0]], horizon=5, simulation_seed=0)
    first, second = policy.act_many([[0.0], [0.0]]), policy.act_many([[0.0]])
    np.testing.assert_array_equal([*first.number, *second.number], [0, 1, 2])
    with pytest.raises(HorizonError, match=r"3 decisions were asked for, 2 of 5 are left"):
        policy.act_many(np.zeros((3, 1)))
    assert policy.remaining == 2


def test_play_ignores_contexts_and_rewards() -> None:
    chosen = []
    for value in (0.0, 1.0):
        policy = UniformPlay(actions=[[0.0], [1.0]], horizon=40, simulation_seed=4)
        for _ in range(2):
            decisions = policy.act_many(np.full((20, 1), value))
            policy.update_many(decisions, np.full(20, value))
            chosen.append(decisions.action_index)
    np.testing.assert_array_equal(chosen[:2], chosen[2:])


@pytest.mark.parametrize("horizon", [0, -3, 2.5, True])
def test_bad_horizon(horizon: object) -> None:
    with pytest.raises(ConfigurationError, match="horizon must be a whole number of 1 or more"):
        UniformPlay(actions=[[0.0]], horizon=horizon)  # type: ignore[arg-type]


def test_bad_context_changes_nothing() -> None:
    policy = UniformPlay(actions=[[0.0]], horizon=2)
    with pytest.raises(DataError, match="finite"):
        policy.act_many([[float("nan")]])
    assert policy.remaining == 2
