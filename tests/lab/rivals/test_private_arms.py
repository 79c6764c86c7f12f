"""Private multi-armed rivals: without noise they are their non-private forms, to the action."""

from math import log

import numpy as np
import pytest
from scipy.stats import binom

from capri import Budget, ConfigurationError
from capri_lab.rivals.arms.elimination import (
    SajedSheffet,
    Tenenbaum,
    coins_delta,
    coins_needed,
    phase_pulls,
    shuffled_sum,
)
from capri_lab.rivals.arms.ucb import LDPUCB, AdaPUCB, from_bits, private_bits, unit_rewards
from capri_lab.rivals.base import Rival
from private_rivals import HORIZON, build, history, played

KINDS = [SajedSheffet, AdaPUCB, LDPUCB, Tenenbaum]


@pytest.mark.parametrize("kind", KINDS)
def test_seed_fixes_the_run_and_noise_changes_it(kind: type[Rival]) -> None:
    plain = played(build(kind))
    noisy = played(build(kind, 0.5))
    assert (noisy != plain).any()
    np.testing.assert_array_equal(noisy, played(build(kind, 0.5)))


@pytest.mark.parametrize("kind", [SajedSheffet, AdaPUCB])
def test_tiny_noise_changes_nothing(kind: type[Rival]) -> None:
    np.testing.assert_array_equal(played(build(kind, 1e9)), played(build(kind)))


def test_laplace_ldp_ucb_with_tiny_noise_is_plain_ucb() -> None:
    np.testing.assert_array_equal(
        played(build(LDPUCB, 1e9, mechanism="laplace")), played(build(LDPUCB))
    )


def test_ldp_ucb_without_a_budget_is_ucb1() -> None:
    _, action, reward = history(build(LDPUCB, bonus="theory"))
    reward = unit_rewards(reward)
    sums, pulls = np.zeros(6), np.zeros(6)
    for t in range(HORIZON):
        if t < 6:
            assert action[t] == t
        else:
            index = sums / pulls + np.sqrt(2 * log(t + 1) / pulls)
            assert index[action[t]] == pytest.approx(index.max(), abs=1e-9)
        sums[action[t]] += reward[t]
        pulls[action[t]] += 1


@pytest.mark.parametrize("kind", [SajedSheffet, Tenenbaum])
def test_elimination_keeps_what_is_within_two_widths_of_the_best(kind: type[Rival]) -> None:
    """Phase by phase against plain elimination on the same rewards."""
    policy = build(kind, horizon=4000)
    alive, played_phases = np.arange(6), 0
    rng = np.random.default_rng(0)
    truth = np.linspace(-0.5, 0.5, 6)
    while policy.remaining and len(alive) > 1:
        pulls = policy._turn.pulls
        count = min(policy.remaining, 4000)
        assert count == pulls * len(alive) or policy.remaining < pulls * len(alive)
        decisions = policy.act_many(np.repeat(policy.contexts.rows[:1], count, axis=0))
        action = decisions.action_index
        np.testing.assert_array_equal(np.bincount(action, minlength=6)[alive], pulls)
        assert set(action) == set(alive)
        rewards = np.clip(truth[action] + rng.uniform(-0.3, 0.3, count), -1, 1)
        if kind is SajedSheffet:
            e = played_phases + 1
            # h_e of the paper, scaled by 0.1
            width = 0.1 * np.sqrt(log(8 * len(alive) * e**2 / 0.05) / (2 * pulls))
        else:
            events = 2 * 6 * log(4000, 2) / 0.05
            width = 0.1 * np.sqrt(2 * log(events)) / (2 * np.sqrt(pulls))
        policy.update_many(decisions, rewards)
        means = np.array([(rewards[action == arm].mean() + 1) / 2 for arm in alive])
        alive = alive[means >= means.max() - 2 * width]
        played_phases += 1
        np.testing.assert_array_equal(policy._turn.arms, alive)
    assert played_phases >= 2
    assert 5 in alive


def test_published_pulls() -> None:
    """``R_1 = max(32 ln(8 K / beta) / D^2, 8 ln(4 K / beta) / (eps D)) + 1`` at ``D = 1/2``."""
    assert phase_pulls(1, 10, None, 0.1, 1.0) == int(np.ceil(128 * log(800))) + 1
    assert phase_pulls(1, 10, 0.01, 0.1, 1.0) == int(np.ceil(1600 * log(400))) + 1


def test_adap_episodes_double_and_forget() -> None:
    policy = build(AdaPUCB, horizon=3000)
    pulls = np.zeros(6, dtype=int)
    lengths = []
    while policy.remaining:
        count = policy.remaining
        decisions = policy.act_many(np.repeat(policy.contexts.rows[:1], count, axis=0))
        arms = np.unique(decisions.action_index)
        if lengths and policy.remaining:
            assert len(arms) == 1
            assert count == pulls[arms[0]]
        policy.update_many(decisions, np.full(count, 0.1 * len(lengths) % 1))
        if policy.remaining:
            assert policy._means[arms[0]] == pytest.approx((0.1 * len(lengths) % 1 + 1) / 2)
        pulls += np.bincount(decisions.action_index, minlength=6)
        lengths.append(count)
    assert len(lengths) > 5


def test_private_bits_have_the_stated_law_and_an_unbiased_mean() -> None:
    """200,000 bits each: 5 standard errors; the largest ratio of chances is e^eps exactly."""
    rng = np.random.default_rng(1)
    for reward in (0.0, 0.3, 1.0):
        bits = private_bits(np.full(200_000, reward), 1.2, rng)
        chance = (1 + (np.exp(1.2) - 1) * reward) / (np.exp(1.2) + 1)
        error = 5 * np.sqrt(chance * (1 - chance) / 200_000)
        assert abs(bits.mean() - chance) < error
        slope = (np.exp(1.2) + 1) / (np.exp(1.2) - 1)
        assert abs(from_bits(bits.mean(), 1.2) - reward) < error * slope
    top, bottom = np.exp(1.2) / (np.exp(1.2) + 1), 1 / (np.exp(1.2) + 1)
    assert top / bottom == pytest.approx(np.exp(1.2))


def test_coins_are_just_enough() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    coins = coins_needed(budget)
    assert coins_delta(coins, 1.0) <= 1e-5 < coins_delta(coins - 1, 1.0)
    # A second formula: delta = P(B in A) - e^eps P(B + 1 in A) on the ratio's upper set.
    ones = np.arange(coins + 2)
    law, shifted = binom.pmf(ones, coins, 0.5), binom.pmf(ones - 1, coins, 0.5)
    for one, other in ((law, shifted), (shifted, law)):
        best = one > np.e * other
        assert one[best].sum() - np.e * other[best].sum() == pytest.approx(
            coins_delta(coins, 1.0), rel=1e-8
        )


def test_shuffled_sums_are_unbiased_with_the_variance_of_the_coins() -> None:
    """50,000 sums, 5 standard errors."""
    sums = shuffled_sum(np.full(50_000, 7.0), 200, np.random.default_rng(2))
    assert sums.mean() == pytest.approx(7.0, abs=5 * np.sqrt(50 / 50_000))
    assert sums.var() == pytest.approx(50.0, rel=5 * np.sqrt(2 / 50_000))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_bonus_is_refused(kind: type[Rival]) -> None:
    with pytest.raises(ConfigurationError, match="'practical', 'theory' or a number, got 'big'"):
        build(kind, bonus="big")
