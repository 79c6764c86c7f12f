"""Data sets satisfy what every environment must do, and CAPRI learns on them under noise."""

import json
from typing import Any

import numpy as np
import pytest

import capri
from capri.environments import Environment, public_pool
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.kernels import Linear, Matern
from capri_lab.datasets import (
    DATASET_NAMES,
    DataBandit,
    OnePass,
    environment_by_name,
    suggested_kernel,
)
from capri_lab.rivals import rival

every_set = pytest.mark.parametrize("name", DATASET_NAMES)


@every_set
def test_it_is_an_environment(name: str) -> None:
    bandit = environment_by_name(name)
    assert isinstance(bandit, Environment)
    assert bandit.name == name
    assert json.loads(json.dumps(bandit.parameters(), allow_nan=False))["name"] == name
    users, actions = np.indices(bandit.means.shape)
    means = bandit.mean(users.ravel(), actions.ravel()).reshape(bandit.means.shape)
    np.testing.assert_array_equal(means, bandit.means)
    np.testing.assert_array_equal(bandit.best(np.arange(len(means))), means.max(axis=1))
    assert np.abs(means).max() <= bandit.reward_bound
    regret = (means.max(axis=1, keepdims=True) - means).mean()
    assert bandit.uniform_regret() == pytest.approx(regret, rel=1e-12)
    rng = np.random.default_rng(0)
    rewards = bandit.rewards(rng, users.ravel(), actions.ravel())
    if bandit.bernoulli:
        np.testing.assert_array_equal(np.unique(rewards), [0.0, 1.0])
        # Five standard errors, at most: further with probability below 6e-7.
        spread = np.sqrt((means * (1.0 - means)).sum())
        assert abs(rewards.sum() - means.sum()) < 5.0 * spread
    else:
        np.testing.assert_array_equal(rewards, means.ravel())
    for attribute in ("contexts", "actions", "means", "weights"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(bandit, attribute)[0] = 0.0
    if not bandit.origin.get("raw"):
        assert np.linalg.norm(bandit.contexts, axis=1).max() <= 1.0


def test_sizes_are_those_of_the_sets() -> None:
    sizes = {"digits": (1797, 10), "wine": (178, 3), "breast-cancer": (569, 2)}
    sizes["diabetes"] = (442, 11)
    for name, (rows, actions) in sizes.items():
        bandit = environment_by_name(name, public_share=0.5)
        assert len(bandit.contexts) == rows - round(rows / 2)
        assert len(bandit.actions) == actions


def test_private_users_have_the_labels_of_their_rows() -> None:
    from sklearn.datasets import load_wine

    from capri_lab.datasets.loader import public_mask

    target = load_wine().target
    private = ~public_mask(178, public_share=0.3, seed=4)
    wine = environment_by_name("wine", seed=4)
    np.testing.assert_array_equal(wine.means.argmax(axis=1), target[private])
    np.testing.assert_array_equal(np.unique(wine.means), [-1.0, 1.0])


def test_users_come_with_equal_chances() -> None:
    """Chi-squared with 124 degrees of freedom: beyond 205 with probability 7e-6."""
    wine = environment_by_name("wine")
    index = wine.draw_contexts(np.random.default_rng(5), 50_000)
    counts = np.bincount(index, minlength=125)
    assert np.sum((counts - 400.0) ** 2 / 400.0) < 205.0


def play(bandit: DataBandit, rounds: int, budget: capri.Budget | None, seed: int) -> float:
    policy = capri.Capri(
        kernel=suggested_kernel(bandit),
        actions=bandit.actions,
        contexts=bandit.pool,
        reward_bound=bandit.reward_bound,
        budget=budget,
        horizon=rounds,
        simulation_seed=seed,
    )
    return capri.simulate(policy, bandit, rounds, seed=seed).ratio


@pytest.mark.parametrize(
    ("name", "most"), [("wine", 0.45), ("breast-cancer", 0.35), ("diabetes", 0.8)]
)
def test_capri_at_epsilon_one_beats_uniform_play(name: str, most: float) -> None:
    """Regret over that of uniform play; over six seeds 0.17-0.21, 0.17-0.22 and 0.57-0.59."""
    budget = capri.Budget(epsilon=1.0, delta=1e-5)
    assert play(environment_by_name(name), 5_000, budget, seed=1) < most


def test_embedded_classes_stand_where_their_examples_are() -> None:
    plain = environment_by_name("wine")
    embedded = environment_by_name("wine", features="embedding")
    assert embedded.actions.shape == (3, 4)
    # Users of a class are nearer to their own class than to the others, most of the time.
    distance = np.linalg.norm(plain.contexts[:, None] - embedded.actions[None], axis=2)
    assert (distance.argmin(axis=1) == plain.means.argmax(axis=1)).mean() > 0.9


def test_rivals_play_on_prototypes_only() -> None:
    exact = environment_by_name("wine")
    settings: dict[str, Any] = {"horizon": 300, "simulation_seed": 0}
    blind = rival("linucb", exact, kernel=suggested_kernel(exact), **settings)
    with pytest.raises(DataError, match="not in the pool"):
        capri.simulate(blind, exact, 300)
    rounded = environment_by_name("wine", prototypes=20)
    player = rival("kernel-ucb", rounded, kernel=suggested_kernel(rounded), **settings)
    assert capri.simulate(player, rounded, 300).ratio < 0.6


def test_kernels_fit_the_kind_of_action() -> None:
    kernel: Any = suggested_kernel(environment_by_name("wine"))
    assert kernel.action == Linear()
    assert kernel.context_dimension == 4
    dosing: Any = suggested_kernel(environment_by_name("diabetes"))
    assert isinstance(dosing.action, Matern)


def test_an_unknown_set_is_told_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match="must be one of 'digits', 'wine', 'breast-cancer'"
    ):
        environment_by_name("irises")


def test_parts_must_fit() -> None:
    parts: dict[str, Any] = {
        "name": "x",
        "pool": capri.ContextPool([[0.0]]),
        "contexts": [[0.5], [0.6]],
        "actions": [[0.0], [1.0]],
        "action_names": ("a", "b"),
        "features": "dose",
        "means": [[0.0, 1.0], [1.0, 0.0]],
        "reward_bound": 1.0,
    }
    assert DataBandit(**parts).uniform_regret() == 0.5
    with pytest.raises(ShapeError, match="pool and contexts must have the same columns"):
        DataBandit(**(parts | {"pool": capri.ContextPool([[0.0, 1.0]])}))
    with pytest.raises(ShapeError, match="one name per action is needed: 2, got 1"):
        DataBandit(**(parts | {"action_names": ("a",)}))
    assert "0.5" not in repr(DataBandit(**parts))


def test_one_pass_brings_every_user_once() -> None:
    wine = environment_by_name("wine")
    once = OnePass(wine, seed=3)
    assert isinstance(once, Environment)
    assert public_pool(once) is wine.pool
    rng = np.random.default_rng(0)
    drawn = np.concatenate([once.draw_contexts(rng, n) for n in (0, 100, 20, 5)])
    np.testing.assert_array_equal(np.sort(drawn), np.arange(125))
    assert once.remaining == 0
    with pytest.raises(ConfigurationError, match="1 users were asked for, 0 of 125"):
        once.draw_contexts(rng, 1)
    again = OnePass(wine, seed=3).draw_contexts(rng, 125)
    np.testing.assert_array_equal(drawn, again)
    policy = capri.Capri(
        kernel=suggested_kernel(wine),
        actions=wine.actions,
        contexts=wine.pool,
        budget=None,
        simulation_seed=0,
        first_epoch=10,
    )
    result = capri.simulate(policy, OnePass(wine, seed=4), 125)
    assert result.uniform_regret_per_round == wine.uniform_regret()
    assert result.ratio < 0.9
    assert json.loads(json.dumps(once.parameters()))["replacement"] is False
