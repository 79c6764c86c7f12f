"""The rivals without privacy, against one another and against their formulas."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels

import capri
from capri import ConfigurationError, ShapeError
from capri.environments import random_rkhs
from capri.kernels import Linear, Matern
from capri_lab.rivals import Rival, rival
from capri_lab.rivals.kernel.bkb import BKB
from capri_lab.rivals.kernel.gp_threds import Region, bisect
from capri_lab.rivals.kernel.optimism import GPUCB
from capri_lab.rivals.kernel.shrinking import ActiveSet, BatchedExploration, batch_lengths
from capri_lab.rivals.kernel.square_cb import SquareCB
from capri_lab.rivals.linear.linucb import LinUCB

KERNEL = Matern(nu=2.5, lengthscale=0.3)
WORLD = random_rkhs(KERNEL, contexts=8, actions=6, seed=3)


def make(name: str, horizon: int = 300, **options: Any) -> Any:
    return rival(name, WORLD, kernel=KERNEL, horizon=horizon, simulation_seed=0, **options)


def actions_of(policy: Rival, rounds: int) -> list[int]:
    """Play and note the actions."""
    rng = np.random.default_rng(5)
    actions = []
    for _ in range(rounds):
        context = WORLD.draw_contexts(rng, 1)
        decisions = policy.act_many(WORLD.contexts[context])
        policy.update_many(decisions, WORLD.rewards(rng, context, decisions.action_index))
        actions.append(int(decisions.action_index[0]))
    return actions


def leaves(region: Region) -> Iterator[Region]:
    """The single actions below a node."""
    if not region.halves:
        yield region
    for half in region.halves:
        yield from leaves(half)


def test_gp_ucb_plays_what_scikit_learn_would() -> None:
    policy = make("gp-ucb", beta=1.3, noise=0.2)
    model = GaussianProcessRegressor(
        sklearn_kernels.Matern(nu=2.5, length_scale=0.3), alpha=0.04, optimizer=None
    )
    rng = np.random.default_rng(6)
    rows: list[np.ndarray] = []
    rewards: list[float] = []
    for step in range(60):
        context = WORLD.draw_contexts(rng, 1)
        pairs = np.hstack([np.repeat(WORLD.contexts[context], 6, axis=0), WORLD.actions])
        if step:
            mean, deviation = model.fit(np.array(rows), rewards).predict(pairs, return_std=True)
            index = mean + 1.3 * deviation
        decisions = policy.act_many(WORLD.contexts[context])
        chosen = int(decisions.action_index[0])
        if step:
            assert index[chosen] > index.max() - 1e-9
        reward = WORLD.rewards(rng, context, decisions.action_index)
        policy.update_many(decisions, reward)
        rows.append(pairs[chosen])
        rewards.append(float(reward[0]))


@pytest.mark.parametrize("patience", [0.0, 0.5])
def test_bkb_with_a_full_dictionary_is_gp_ucb(patience: float) -> None:
    exact = make("gp-ucb", beta=1.5, noise=0.1)
    full = make("bkb", beta=1.5, noise=0.1, oversampling=np.inf, patience=patience)
    assert actions_of(exact, 200) == actions_of(full, 200)
    for context in range(8):
        for mine, theirs in zip(
            full._posterior.at(context), exact._posterior.at(context), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, atol=1e-8)


def test_bkb_keeps_a_small_dictionary_that_is_nearly_exact() -> None:
    smooth = capri.kernels.RBF(lengthscale=0.8)
    world = random_rkhs(smooth, contexts=20, actions=20, seed=1)
    policy = rival("bkb", world, kernel=smooth, horizon=1500, simulation_seed=0)
    assert isinstance(policy, BKB)
    result = capri.simulate(policy, world, 1500, seed=2)
    assert result.ratio < 0.1
    assert policy.dictionary_size < 60 < 400
    variance = policy._posterior.of(slice(None))[1]
    assert (variance > -1e-9).all()


def test_linucb_is_kernel_ucb_with_the_linear_kernel() -> None:
    pairs = np.hstack([np.repeat(WORLD.contexts, 6, axis=0), np.tile(WORLD.actions, (8, 1))])
    rows = np.hstack([pairs, np.ones((48, 1))]) / 2
    common: dict[str, Any] = {
        "actions": WORLD.actions,
        "contexts": capri.ContextPool(WORLD.contexts),
        "horizon": 300,
        "simulation_seed": 0,
    }
    linear = LinUCB(features=rows, alpha=0.3, ridge=0.05, **common)
    kernel = rival(
        "kernel-ucb",
        WORLD,
        kernel=Linear(variance=0.25, bias=0.25),
        horizon=300,
        simulation_seed=0,
        eta=0.3,
        regularisation=0.05,
    )
    assert isinstance(kernel, Rival)
    assert actions_of(linear, 300) == actions_of(kernel, 300)
    mean, variance = kernel._posterior.at(3)  # type: ignore[attr-defined]
    np.testing.assert_allclose(linear._posterior.at(3)[0], mean, atol=1e-9)
    np.testing.assert_allclose(linear._posterior.at(3)[1], variance, atol=1e-9)


def test_theory_widths_are_the_formulas() -> None:
    policy = make("gp-ucb", beta="theory", failure=0.05)
    assert isinstance(policy, GPUCB)
    expected = np.sqrt(2 * np.log(48 * 1 * np.pi**2 / (6 * 0.05)))
    assert policy._width() == pytest.approx(expected)
    actions_of(policy, 9)
    expected = np.sqrt(2 * np.log(48 * 100 * np.pi**2 / (6 * 0.05)))
    assert policy._width() == pytest.approx(expected)
    assert make("gp-ucb", beta=0.7)._width() == 0.7

    igp = make("igp-ucb", beta="theory", noise=0.2, norm_bound=3.0, failure=0.05)
    assert igp._ridge == 1 + 2 / 300
    played: list[int] = actions_of(igp, 20)
    rng = np.random.default_rng(5)
    pairs = []
    for action in played:
        context = WORLD.draw_contexts(rng, 1)
        WORLD.rewards(rng, context, np.array([action]))
        pairs.append(np.append(WORLD.contexts[context[0]], WORLD.actions[action]))
    gram = KERNEL(np.array(pairs), np.array(pairs)) / igp._ridge
    gain = 0.5 * np.linalg.slogdet(np.eye(20) + gram)[1]
    assert igp._gain == pytest.approx(gain, rel=1e-9)
    spread = 0.2 / np.sqrt(igp._ridge) * np.sqrt(2 * (gain + 1 + np.log(20)))
    assert igp._width() == pytest.approx(3.0 + spread)


@pytest.mark.parametrize("gamma", ["practical", "theory", 5.0])
def test_squarecb_plays_the_inverse_gap_law(gamma: Any) -> None:
    policy = make("squarecb", gamma=gamma)
    assert isinstance(policy, SquareCB)
    actions_of(policy, 50)
    mean = policy._posterior.at(2)[0]
    law = policy._law(mean)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert (law > 0).all()
    best = int(mean.argmax())
    assert law.argmax() == best
    rate = policy._learning_rate()
    others = np.arange(6) != best
    np.testing.assert_allclose(1 / law[others], 6 + rate * (mean[best] - mean[others]))


def test_squarecb_draws_from_its_law() -> None:
    """The law of the first round is uniform: 1,200 first rounds, chi-squared of 5 degrees at
    1e-5."""
    counts = np.zeros(6)
    for seed in range(1200):
        policy = rival("squarecb", SMALL, kernel=KERNEL, horizon=5, simulation_seed=seed)
        decision = policy.act_many(SMALL.contexts[:1])
        assert decision.propensity[0] == pytest.approx(1 / 6)
        counts[decision.action_index[0]] += 1
    assert ((counts - 200) ** 2 / 200).sum() < 30.9


SMALL = random_rkhs(KERNEL, contexts=1, actions=6, seed=3)


def test_active_set_drops_what_is_surely_worse_and_draws_evenly() -> None:
    """Frequencies within 5 standard errors: a false alarm less often than once in 100,000."""
    active = ActiveSet(2, 4)
    mean = np.array([[0.0, 0.5, 0.6, 0.1], [0.0, 0.0, 0.0, 0.0]])
    active.eliminate(mean.ravel(), np.full(8, 0.1))
    np.testing.assert_array_equal(active.table, [[0, 1, 1, 0], [1, 1, 1, 1]])
    active.eliminate(-mean.ravel(), np.full(8, 0.01))  # those ruled out no longer count
    np.testing.assert_array_equal(active.table[0], [0, 1, 0, 0])
    uniform = np.random.default_rng(0).random(4000)
    action, propensity = active.draw(np.ones(4000, dtype=np.int64), uniform)
    np.testing.assert_array_equal(propensity, 0.25)
    assert np.abs(np.bincount(action, minlength=4) - 1000).max() < 5 * np.sqrt(4000 * 3 / 16)
    only, sure = active.draw(np.zeros(3, dtype=np.int64), np.array([0.0, 0.5, 0.999999]))
    np.testing.assert_array_equal(only, 1)
    np.testing.assert_array_equal(sure, 1.0)


@pytest.mark.parametrize("name", ["reds", "batched-exploration"])
def test_elimination_keeps_the_best_action(name: str) -> None:
    """With theory's width a best action stays, but for the failure rate of 1e-5."""
    policy = make(name, horizon=3000, beta="theory", failure=1e-5)
    capri.simulate(policy, WORLD, 3000, seed=4)
    best = WORLD.means.argmax(axis=1)
    assert policy._active.table[np.arange(8), best].all()
    assert policy._active.table.mean() < 0.9, "premise: something was ruled out"


def test_batches_of_pure_exploration_are_as_published() -> None:
    policy = make("batched-exploration", horizon=1000)
    lengths = []
    while policy.remaining:
        lengths.append(policy.remaining)
        decisions = policy.act_many(WORLD.contexts[np.arange(lengths[-1]) % 8])
        policy.update_many(decisions, np.zeros(lengths[-1]))
    assert lengths == batch_lengths(1000) == [32, 179, 424, 365]


def test_pure_exploration_plays_the_largest_variance() -> None:
    policy = make("batched-exploration", horizon=1000)
    assert isinstance(policy, BatchedExploration)
    decisions = policy.act_many(WORLD.contexts[np.zeros(6, dtype=np.int64)])
    assert len(set(decisions.action_index[:2].tolist())) == 2
    pairs = np.hstack([np.repeat(WORLD.contexts[:1], 6, axis=0), WORLD.actions])
    for step in range(1, 6):
        seen = pairs[decisions.action_index[:step]]
        inverse = np.linalg.inv(KERNEL(seen, seen) + 0.06**2 * np.eye(step))
        cross = KERNEL(pairs, seen)
        variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
        assert variance[decisions.action_index[step]] > variance.max() - 1e-9


def test_tree_of_regions_holds_every_action_once() -> None:
    rows = np.random.default_rng(0).random((11, 2))
    tree = bisect(rows, np.arange(11))
    singles = [int(leaf.actions[0]) for leaf in leaves(tree)]
    assert sorted(singles) == list(range(11))
    assert sorted(np.concatenate([half.actions for half in tree.halves])) == list(range(11))
    widest = int(np.ptp(rows, axis=0).argmax())
    left, right = (rows[half.actions, widest] for half in tree.halves)
    assert left.max() <= right.min()


def test_thresholds_find_the_best_action() -> None:
    policy = make("gp-threds", horizon=3000)
    result = capri.simulate(policy, WORLD, 3000, seed=2)
    late = (result.regret[-1] - result.regret[1999]) / 1000
    assert late < 0.1 * result.uniform_regret_per_round


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("gp-ucb", {"beta": "best"}, "beta must be 'practical', 'theory' or a number, got 'best'"),
        ("gp-ucb", {"beta": 0.0}, "beta must be positive"),
        ("igp-ucb", {"noise": -1.0}, "noise must be positive and finite, got -1.0"),
        ("kernel-ucb", {"failure": 1.0}, "failure must lie strictly between 0 and 1, got 1.0"),
        ("bkb", {"oversampling": "all"}, "oversampling must be positive"),
        ("reds", {"first_epoch": 0}, "first_epoch must be a whole number of 1 or more, got 0"),
        ("linucb", {"features": "cubic"}, "raw, polynomial, fourier, kernel, got 'cubic'"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make(name, **options)


def test_bad_features_of_linucb() -> None:
    common: dict[str, Any] = {
        "actions": WORLD.actions,
        "contexts": capri.ContextPool(WORLD.contexts),
        "horizon": 3,
        "simulation_seed": 0,
    }
    with pytest.raises(ShapeError, match="one row per pair, 8 contexts times 6 actions, got 5"):
        LinUCB(features=np.zeros((5, 2)), **common)
    with pytest.raises(ShapeError, match="norm at most 1, got 2"):
        LinUCB(features=np.full((48, 1), 2.0), **common)


def test_pure_exploration_of_too_many_pairs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 5000 pairs, got 6000: use reds"):
        BatchedExploration(
            kernel=KERNEL,
            actions=np.arange(60.0),
            contexts=capri.ContextPool(np.arange(100.0)),
            horizon=10,
            simulation_seed=0,
        )
