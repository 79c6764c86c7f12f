"""What policies are told comes from public rows alone: private rows may change at will."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from capri import Budget, Capri, kernels
from capri.environments import public_pool, random_rkhs
from capri.errors import ConfigurationError, ShapeError
from capri_lab.datasets import (
    Closeness,
    DataBandit,
    Sale,
    environment_by_name,
    load,
    suggested_kernel,
)
from capri_lab.experiments.players import make_player
from capri_lab.experiments.worlds import Told
from capri_lab.rivals import rival

CONTEXT = ["age", "weight", "dose_before"]
PUBLIC = np.arange(60) % 3 == 0

KINDS: dict[str, dict[str, Any]] = {
    "classes": {"label": "kind"},
    "embedding": {"label": "kind", "features": "embedding"},
    "doses": {"label": "level", "reward": Closeness(doses=5)},
    "columns": {"actions": ["left", "right"]},
    "raw": {"label": "kind", "raw": True},
    "prices": {"label": "level", "reward": Sale(prices=4)},
    "chances": {"actions": ["left", "right"], "bernoulli": True},
    "projected": {"label": "kind", "dimensions": 2},
    "prototypes": {"label": "kind", "dimensions": 2, "prototypes": 4},
}


def table(private_seed: int) -> pd.DataFrame:
    """Sixty rows; the public third is always the same, the rest depends on the seed."""
    rows = {}
    for side, seed in ((PUBLIC, 1), (~PUBLIC, private_seed)):
        rng = np.random.default_rng(seed)
        scale = 1.0 if seed == 1 else 10.0 ** rng.integers(-3, 4)
        for name in [*CONTEXT, "level", "left", "right"]:
            rows.setdefault(name, np.empty(60))[side] = rng.normal(size=side.sum()) * scale
        kind = ["a", "b", "c"] if seed == 1 else ["b", "zz", "a"]
        rows.setdefault("kind", np.empty(60, dtype=object))[side] = rng.choice(
            kind, size=side.sum()
        )
    return pd.DataFrame(rows).assign(public=PUBLIC)


def public_side(bandit: DataBandit) -> tuple[Any, ...]:
    """All that a policy is built from, to the last bit."""
    return (
        bandit.pool.rows.tobytes(),
        bandit.pool.weights.tobytes(),
        bandit.actions.tobytes(),
        bandit.action_names,
        bandit.reward_bound,
        suggested_kernel(bandit),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_private_rows_change_nothing_that_is_public(kind: str, form: str, tmp_path: Path) -> None:
    bandits = []
    for seed in (2, 3, 4):
        source: Any = table(seed)
        if form == "csv":
            source.to_csv(tmp_path / "rows.csv", index=False)
            source = tmp_path / "rows.csv"
        elif form == "parquet":
            source.to_parquet(tmp_path / "rows.parquet")
            source = str(tmp_path / "rows.parquet")
        bandits.append(load(source, context=CONTEXT, public="public", **KINDS[kind]))
    first, second, third = (public_side(bandit) for bandit in bandits)
    assert first == second == third
    # The private side did change, or the test would show nothing.
    assert not np.array_equal(bandits[0].means, bandits[1].means)
    assert not np.array_equal(bandits[0].contexts, bandits[1].contexts)


def test_types_of_private_cells_change_nothing_that_is_public(tmp_path: Path) -> None:
    """A private cell that is missing turns whole numbers of a frame into fractions, not labels."""
    whole = table(2).assign(kind=np.arange(60) % 2, age=np.arange(60))
    gap = whole.copy()
    gap.loc[np.flatnonzero(~PUBLIC)[3], ["kind", "age"]] = np.nan
    assert gap["kind"].dtype != whole["kind"].dtype
    expected = load(whole, context=CONTEXT, label="kind", public=PUBLIC)
    got = load(gap, context=CONTEXT, label="kind", public=PUBLIC, missing="drop")
    assert public_side(got) == public_side(expected)
    assert got.action_names == ("0", "1")
    assert len(got.contexts) == len(expected.contexts) - 1


def test_a_user_is_mapped_alone() -> None:
    """Replacing one private row changes that user's context, and no other's, to the bit."""
    before = table(2)
    after = before.copy()
    changed = int(np.flatnonzero(~PUBLIC)[7])
    after.loc[changed, CONTEXT] = [9.0, -9.0, 9.0]
    options: dict[str, Any] = {"label": "kind", "public": PUBLIC, "dimensions": 2}
    old = load(before, context=CONTEXT, **options)
    new = load(after, context=CONTEXT, **options)
    same = (old.contexts == new.contexts).all(axis=1)
    np.testing.assert_array_equal(same, np.arange(40) != 7)
    alone = load(after.iloc[[*np.flatnonzero(PUBLIC), changed]], context=CONTEXT, label="kind",
                 public=np.arange(21) < 20, dimensions=2)  # fmt: skip
    np.testing.assert_array_equal(alone.contexts[0], new.contexts[7])


@pytest.mark.parametrize("name", ["digits", "wine", "breast-cancer", "diabetes"])
def test_no_user_of_a_shipped_set_is_in_the_pool(name: str) -> None:
    bandit = environment_by_name(name)
    assert (bandit.pool.locate(bandit.contexts) == -1).all()
    assert public_pool(bandit) is bandit.pool


def test_every_builder_hands_out_the_public_pool() -> None:
    bandit = environment_by_name("wine", prototypes=12)
    kernel = suggested_kernel(bandit)
    policy = rival("kernel-ucb", bandit, kernel=kernel, horizon=10, simulation_seed=0)
    assert policy.contexts is bandit.pool  # type: ignore[union-attr]
    player = {"name": "capri", "model": "joint", "preset": "practical"}
    budget = Budget(epsilon=1.0, delta=1e-5)
    capri = make_player(player, Told(kernel=kernel), bandit, budget=budget, rounds=10, seed=0)
    assert isinstance(capri, Capri)
    assert capri._problem.contexts is bandit.pool


def test_an_environment_without_rows_is_its_own_pool() -> None:
    world = random_rkhs(kernels.RBF(lengthscale=0.3), contexts=5, actions=3)
    pool = public_pool(world)
    np.testing.assert_array_equal(pool.rows, world.contexts)
    np.testing.assert_array_equal(pool.weights, world.weights)


def test_scaling_is_that_of_public_rows() -> None:
    frame = table(2)
    bandit = load(frame, context=CONTEXT, label="kind", public=PUBLIC)
    raw = frame[CONTEXT].to_numpy()
    standard = (raw - raw[PUBLIC].mean(axis=0)) / raw[PUBLIC].std(axis=0)
    radius = np.quantile(np.linalg.norm(standard[PUBLIC], axis=1), 0.95)
    scaled = standard / radius
    scaled /= np.maximum(1.0, np.linalg.norm(scaled, axis=1, keepdims=True))
    np.testing.assert_allclose(bandit.contexts, scaled[~PUBLIC], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        bandit.pool.rows, np.unique(scaled[PUBLIC], axis=0), rtol=1e-9, atol=1e-12
    )


def test_projection_agrees_with_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)), columns=list("abcdef")
    )
    mask = np.arange(200) < 120
    frame["y"] = rng.integers(2, size=200)
    bandit = load(frame, context=list("abcdef"), label="y", public=mask, dimensions=3)
    raw = frame[list("abcdef")].to_numpy()
    standard = (raw - raw[mask].mean(axis=0)) / raw[mask].std(axis=0)
    expected = PCA(3).fit(standard[mask]).transform(standard)
    expected /= np.quantile(np.linalg.norm(expected[mask], axis=1), 0.95)
    expected /= np.maximum(1.0, np.linalg.norm(expected, axis=1, keepdims=True))
    np.testing.assert_allclose(np.abs(bandit.contexts), np.abs(expected[~mask]), atol=1e-9)


def test_far_users_keep_the_kernel_bounded() -> None:
    frame = table(2)
    frame.loc[~PUBLIC, CONTEXT] *= 1e6
    bandit = load(frame, context=CONTEXT, label="kind", public=PUBLIC)
    pairs = np.hstack([bandit.contexts, np.tile(bandit.actions[0], (len(bandit.contexts), 1))])
    assert suggested_kernel(bandit).diagonal(pairs).max() <= 1.0 + 1e-9
    policy = Capri(
        kernel=suggested_kernel(bandit), actions=bandit.actions, contexts=bandit.pool,
        budget=Budget(epsilon=1.0, delta=1e-5), simulation_seed=0,
    )  # fmt: skip
    assert len(policy.act_many(bandit.contexts)) == len(bandit.contexts)


def test_prototypes_are_the_only_contexts() -> None:
    bandit = load(table(2), context=CONTEXT, label="kind", public=PUBLIC, prototypes=4)
    assert bandit.pool.size <= 4
    assert (bandit.pool.locate(bandit.contexts) >= 0).all()
    assert bandit.pool.weights.sum() == pytest.approx(1.0)
    # Each user is rounded to the nearest centre.
    exact = load(table(2), context=CONTEXT, label="kind", public=PUBLIC)
    distance = np.linalg.norm(exact.contexts[:, None] - bandit.pool.rows[None], axis=2)
    np.testing.assert_array_equal(bandit.contexts, bandit.pool.rows[distance.argmin(axis=1)])


def test_shares_are_whole_rows_and_fixed_by_the_seed() -> None:
    def contexts(**split: Any) -> np.ndarray:
        return load(table(2), context=CONTEXT, label="kind", **split).contexts

    assert len(contexts(public_share=0.25)) == 45
    np.testing.assert_array_equal(contexts(public_share=0.4), contexts(public_share=0.4, seed=0))
    assert not np.array_equal(contexts(public_share=0.4), contexts(public_share=0.4, seed=1))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({}, "say which rows are public: give either public_share"),
        ({"public_share": 0.3, "public": PUBLIC}, "give either public_share"),
        ({"public_share": 0.0}, "public_share must lie strictly between 0 and 1, got 0.0"),
        ({"public_share": True}, "public_share must lie strictly between 0 and 1, got True"),
        ({"public_share": float("nan")}, "public_share must lie strictly between 0 and 1, got nan"),
        ({"public_share": 0.01}, "at least 2 rows must be public and 1 private, got 1"),
        ({"public": np.ones(60, dtype=bool)}, "got 60 public of 60"),
        ({"public": np.ones(60)}, "public must be a mask of True and False"),
        ({"public": "age"}, "column 'age' cannot serve two ends"),
        ({"public": "level"}, "column 'level' must hold true and false"),
        ({"public_share": 0.3, "seed": -1}, "seed must be a whole number of 0 or more, got -1"),
        ({"public_share": 0.3, "dimensions": 4}, "dimensions must be a whole number from 1 to 3"),
        ({"public": PUBLIC, "prototypes": 21}, "prototypes must be a whole number from 1 to 20"),
    ],
)  # fmt: skip
def test_splits_that_make_no_sense(split: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(table(2), context=CONTEXT, label="kind", **split)


def test_a_mask_of_another_length() -> None:
    with pytest.raises(
        ShapeError, match=r"public must have shape \(60,\), one per row, got \(3,\)"
    ):
        load(table(2), context=CONTEXT, label="kind", public=np.array([True, False, True]))


def test_a_prototype_without_public_rows_stands_for_nobody() -> None:
    """Public rows lose a centre here, and users near it would have met a pool without them."""
    bandit = environment_by_name("segment", seed=1, prototypes=200)
    assert (bandit.pool.locate(bandit.contexts) >= 0).all()
    assert bandit.pool.size < 200
