"""Players on worlds with raw columns: who sees what, and that all meet the same users."""

import numpy as np
import pytest

from capri.environments import TabularEnvironment
from capri.errors import ConfigurationError
from capri.kernels import RBF, Matern
from capri.simulation import simulate
from capri_lab.datasets import DataBandit, suggested_kernel
from capri_lab.experiments import study_from_text
from capri_lab.experiments.play import play
from capri_lab.experiments.players import build_player
from capri_lab.experiments.worlds import Told, build_world, view_of
from capri_lab.rivals.fixed import FixedPlay, best_fixed_action

STUDY = """\
name = "raw"
rounds = 400
epsilons = 1.0
seeds = 1
[[environments]]
name = "iris"
raw = true
[[policies]]
name = "capri"
kernel = "suggested"
[[policies]]
name = "shariff-sheffet"
[[policies]]
name = "adap-ucb"
[[policies]]
name = "best-fixed"
[[policies]]
name = "uniform"
"""
WORLD = {"name": "iris", "kernel": None, "lengthscale": None, "raw": True}


def seen(player: dict[str, object]) -> tuple[DataBandit, Told]:
    world, told = view_of(*build_world(WORLD, 3), player)
    assert isinstance(world, DataBandit)
    return world, told


def test_everybody_meets_the_same_users() -> None:
    raw, _ = build_world(WORLD, 3)
    assert isinstance(raw, DataBandit)
    users = raw.draw_contexts(np.random.default_rng(0), 50)
    for name in ("capri", "shariff-sheffet", "adap-ucb", "best-fixed", "uniform"):
        for kernel in ("auto", "suggested") if name == "capri" else (None,):
            world, _ = seen({"name": name, "kernel": kernel})
            np.testing.assert_array_equal(world.means, raw.means)
            np.testing.assert_array_equal(world.draw_contexts(np.random.default_rng(0), 50), users)


def test_an_untold_kernel_sees_columns_as_they_are() -> None:
    for player in ({"name": "capri"}, {"name": "capri", "kernel": "auto"}):
        world, told = seen(player)
        assert told.kernel is None
        np.testing.assert_array_equal(world.contexts, build_world(WORLD, 3)[0].contexts)
    # Said by the player, it holds where the world tells a kernel as well.
    told_world = WORLD | {"kernel": "rbf", "lengthscale": 0.3}
    world, _ = view_of(*build_world(told_world, 3), {"name": "capri", "kernel": "auto"})
    assert np.abs(world.contexts).max() > 1.0


def test_a_told_kernel_sees_the_unit_ball() -> None:
    world, told = seen({"name": "capri", "kernel": "suggested"})
    assert np.linalg.norm(world.contexts, axis=1).max() <= 1.0
    assert told.kernel == suggested_kernel(world)
    own = {"name": "capri", "kernel": "rbf", "lengthscale": 0.3}
    world, _ = seen(own)
    assert np.linalg.norm(world.contexts, axis=1).max() <= 1.0
    told_world = WORLD | {"kernel": "matern52", "lengthscale": 0.5}
    world, told = view_of(*build_world(told_world, 3), {"name": "capri"})
    assert np.linalg.norm(world.contexts, axis=1).max() <= 1.0
    assert told.kernel == Matern(nu=2.5, lengthscale=0.5)


def test_rivals_see_public_prototypes() -> None:
    world, told = seen({"name": "shariff-sheffet"})
    assert (world.pool.locate(world.contexts) >= 0).all()
    assert told.features == 40
    assert told.kernel == suggested_kernel(world)


def test_what_is_not_raw_is_seen_as_it_is() -> None:
    kernel = RBF(lengthscale=0.3)
    world, told = build_world({"name": "rkhs", "kernel": "rbf", "lengthscale": 0.3,
                               "contexts": 4, "actions": 3}, 0)  # fmt: skip
    for player in ({"name": "shariff-sheffet"}, {"name": "capri", "kernel": "auto"}):
        same, told_same = view_of(world, told, player)
        assert same is world
        assert told_same.kernel == kernel


def test_a_study_plays_on_raw_columns() -> None:
    records = {cell.policy: play(cell) for cell in study_from_text(STUDY).cells()}
    assert [record["error"] for record in records.values()] == [None] * 5
    assert records["uniform"]["ratio"] == pytest.approx(1.0, abs=0.2)
    assert records["best-fixed"]["promise"]["label"] == "none"
    assert records["best-fixed"]["epsilon"] is None
    assert records["capri-joint"]["world"]["raw"] is True


def test_a_suggestion_needs_raw_data() -> None:
    for world in ('name = "branin"', 'name = "wine"'):
        text = STUDY.replace('name = "iris"\nraw = true', world)
        with pytest.raises(ConfigurationError, match="belongs to data with raw columns"):
            study_from_text(text)


def test_the_best_fixed_action_is_best_on_average() -> None:
    world = TabularEnvironment(
        name="two", contexts=[[0.0], [1.0]], weights=[0.7, 0.3], actions=[[0.0], [1.0], [2.0]],
        means=[[0.5, 0.0, 0.4], [-0.5, 1.0, 0.4]], reward_bound=1.0, noise=0.0,
    )  # fmt: skip
    assert best_fixed_action(world) == 2
    policy, note = build_player(
        {"name": "best-fixed"}, Told(kernel=RBF(lengthscale=0.3)), world,
        budget=None, rounds=500, seed=0,
    )  # fmt: skip
    assert isinstance(policy, FixedPlay)
    assert note == ""
    result = simulate(policy, world, 500, seed=0)
    # It loses 0.1 in the first context and 0.6 in the second.
    steps = np.diff(result.regret, prepend=0.0).round(12)
    assert set(steps.tolist()) == {0.1, 0.6}
    with pytest.raises(ConfigurationError, match="action must be from 0 to 2, got 3"):
        FixedPlay(actions=world.actions, horizon=5, action=3)
