"""The family of kernels: features of public rows, candidates on them, and nothing of neighbours."""

from typing import Any

import numpy as np
import pytest

import capri
from capri.choices import as_actions
from capri.epoch.storage import PLANS
from capri.family import Family, ProductBasis, family_of
from capri.features import LowRankFeatures
from capri.spaces import Actions, Contexts

RNG = np.random.default_rng(7)
POOL = capri.ContextPool(RNG.normal(size=(60, 3)) * [1.0, 1e4, 1e-3] + [0.0, 5e4, 0.0])
MANY = capri.ContextPool(RNG.normal(size=(80, 20)))
POINTS = as_actions(np.linspace(0, 30, 9)[:, None])


def family(contexts: Contexts = POOL, actions: Actions = POINTS, max_rank: int = 60) -> Family:
    return family_of(contexts, actions, max_rank=max_rank, generator=np.random.default_rng(0))


@pytest.mark.parametrize("contexts", [POOL, MANY], ids=["few columns", "many columns"])
@pytest.mark.parametrize("actions", [POINTS, as_actions(4)], ids=["points", "unrelated"])
def test_features_are_uncorrelated_and_of_mean_square_one(contexts: Any, actions: Any) -> None:
    """Over the public rows, constant first: weights of candidates are shares of ``E f^2``."""
    found = family(contexts, actions)
    for factor, rows in (
        (found.basis.context, contexts.rows),
        (found.basis.action, actions.rows),
    ):
        u = factor(rows)
        np.testing.assert_allclose(u.T @ u / len(u), np.eye(factor.width), atol=1e-6)


def test_candidates_have_trace_one_and_leave_the_constant_alone() -> None:
    found = family()
    for side in (found.contexts, found.actions):
        np.testing.assert_allclose(np.trace(side.covariances, axis1=1, axis2=2), 1.0)
        assert (side.covariances[:, 0] == 0).all()
        assert (np.linalg.eigvalsh(side.covariances) > -1e-12).all()
        assert side.shares.sum() == pytest.approx(1.0)
    assert len(found.parts) == 1 + 3 + 4 + 12
    assert found.parts[0].name == "constant"


def test_units_of_a_column_do_not_matter() -> None:
    """Metres or kilometres, Celsius or Kelvin: the same features, to rounding."""
    scaled = capri.ContextPool(POOL.rows * [1e3, 1.0, 60.0] + [0.0, 273.15, 4.0])
    plain, other = family(), family(scaled)
    np.testing.assert_allclose(
        plain.basis.context(POOL.rows[:5]), other.basis.context(scaled.rows[:5]), atol=1e-6
    )


@pytest.mark.parametrize("contexts", [POOL, MANY], ids=["few columns", "many columns"])
def test_a_row_does_not_depend_on_its_neighbours(contexts: Any) -> None:
    """To the last bit, for features, laws and values: the others are other people."""
    basis = family(contexts).basis
    wild = np.concatenate([contexts.rows[:6], np.full((1, contexts.dimension), 1e100)])
    pairs, weights = POINTS.pairs(wild), RNG.normal(size=(basis.rank, 5))
    together, values = basis.rows(pairs), basis.values(pairs, weights)
    flat = basis.rows(pairs.reshape(-1, pairs.shape[-1]))
    assert np.isfinite(together).all()
    for number in range(len(wild)):
        np.testing.assert_array_equal(together[number], basis.rows(pairs[number : number + 1])[0])
        np.testing.assert_array_equal(
            values[number], basis.values(pairs[number : number + 1], weights)[0]
        )
    np.testing.assert_array_equal(flat.reshape(together.shape), together)
    # What is sent: of one user alone, and of one among others.
    function, whitening = basis.function(weights[:, 0]), RNG.normal(size=(basis.rank, 7))
    features = LowRankFeatures(basis, whitening, 1.0)
    chosen = pairs[:, 2]
    for number in range(len(wild)):
        alone = chosen[number : number + 1]
        np.testing.assert_array_equal(function(alone)[0], function(chosen)[number])
        np.testing.assert_array_equal(
            features.whitened(alone)[0], features.whitened(chosen)[number]
        )


def test_values_are_products_of_rows_and_weights() -> None:
    basis = family().basis
    pairs, weights = POINTS.pairs(POOL.rows[:4]), RNG.normal(size=(basis.rank, 3))
    np.testing.assert_allclose(basis.values(pairs, weights), basis.rows(pairs) @ weights)
    function = basis.function(weights[:, 0])
    np.testing.assert_allclose(function(pairs), basis.rows(pairs) @ weights[:, 0])


def test_a_stored_basis_is_the_same_to_the_bit() -> None:
    basis = family(MANY).basis
    again = PLANS.read(ProductBasis, *PLANS.write(basis, "basis"), "basis")
    pairs = POINTS.pairs(MANY.rows[:5])
    np.testing.assert_array_equal(again.rows(pairs), basis.rows(pairs))


def test_what_never_changes_says_nothing() -> None:
    """A constant column, one context, one action: still a basis, and the constant is in it."""
    same = capri.ContextPool(np.full((5, 2), 3.0))
    assert family(same, as_actions([[1.0]])).basis.rank == 1
    half = capri.ContextPool(np.column_stack([np.arange(9.0), np.full(9, 2.0)]))
    assert np.isfinite(family(half).basis.rows(POINTS.pairs(half.rows))).all()


def test_contexts_that_bring_their_actions() -> None:
    actions = capri.VaryingActions(3, 2)
    basis = family(capri.ContextPool(RNG.normal(size=(50, 8))), actions).basis
    assert basis.table is None
    assert basis.rows(actions.pairs(RNG.normal(size=(4, 8)))).shape == (4, 3, basis.rank)


def policy(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "actions": np.linspace(0, 1, 5)[:, None],
        "contexts": POOL,
        "budget": capri.Budget(epsilon=1.0, delta=1e-5),
        "simulation_seed": 1,
        "first_epoch": 100,
    }
    return capri.Capri(**(settings | changes))


def played(each: capri.Capri, rounds: int) -> capri.Capri:
    rng = np.random.default_rng(3)
    while rounds > 0:
        count = min(rounds, each.remaining)
        decisions = each.act_many(POOL.rows[rng.integers(60, size=count)])
        each.update_many(decisions, rng.uniform(-1, 1, count))
        rounds -= count
    return each


def test_what_needs_a_told_kernel_says_so_at_once() -> None:
    with pytest.raises(capri.ConfigurationError, match="kernel"):
        capri.Capri(
            actions=3, contexts=POOL, budget=None, simulation_seed=1, preset="paper", horizon=1000
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.linspace(0, 1, 5)[:, None], np.array([[0.5]])),
        (np.array([[0.5]]), np.linspace(0, 1, 5)[:, None]),
        (["a", "b", "c"], ["a"]),
        ([f"arm {number}" for number in range(12)], ["arm 1"]),
    ],
    ids=["to one", "from one", "to one name", "to one arm"],
)
def test_actions_may_go_down_to_one_and_come_back(old: Any, new: Any) -> None:
    """Candidates of the actions come and go with them."""
    each = played(policy(actions=old), 250)
    each.replace_actions(new)
    played(each, 600)
    each.replace_actions(old)
    played(each, 1500)
    assert each.actions.count == len(old)


def test_the_same_again_decides_anew_about_blocks() -> None:
    assert policy(actions=12).again(simulation_seed=3, actions=5).options.blocks is False
    assert policy(actions=5).again(simulation_seed=3, actions=30).options.blocks is True


def test_products_that_are_too_few_are_said_aloud() -> None:
    with pytest.warns(capri.KernelWarning, match="leave out"):
        few = policy(max_rank=5)
    assert [notice.kind for notice in few.notices] == ["rank"]


def test_rare_categories_are_kept_and_tiny_columns_explained() -> None:
    rows = np.zeros((5_000, 2))
    rows[:, 0], rows[17, 1] = np.random.default_rng(0).normal(size=5_000), 1.0
    assert (family(capri.ContextPool(rows)).basis.context.scores.rate > 0).all()
    tiny = capri.ContextPool(np.column_stack([1e-200 * np.arange(50.0), np.ones(50)]))
    assert len(policy(contexts=tiny).explain().columns) == 2


def test_pairs_of_actions_that_were_replaced_are_read_by_their_own_rows() -> None:
    """An epoch may be read after its actions were replaced: the table is that of the new ones."""
    basis, old = family(actions=as_actions(np.linspace(0, 30, 5)[:, None])).basis, POINTS
    row, action = np.array([0, 1, 2]), np.array([8, 1, 4])
    pairs, features = basis.played(old, POOL.rows, row, action)
    np.testing.assert_allclose(features, basis.coordinates(pairs), rtol=1e-12)
