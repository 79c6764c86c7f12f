"""Arms in cells: one public cell a pair, sums read exactly, as many cells as plays can tell."""

from dataclasses import replace

import numpy as np
import pytest

import capri
from builders import BUDGET
from capri.epoch.encode import Encoder
from capri.epoch.storage import plan_from_state, plan_state
from capri.family import ArmFeatures
from capri.kernels import Auto
from capri.learners.arm_messages import Sums, cells_of
from capri.learners.draws import Outlook, Tries
from capri.privacy.histogram import HistogramLayout
from capri.privacy.layout import Norm
from capri.spaces import ContextPool

ARMS = 12
CONTEXTS = np.random.default_rng(5).random((30, 2))


def policy(first_epoch: int = 400) -> capri.Capri:
    """Twelve unrelated arms with epochs long enough for several cells."""
    return capri.Capri(
        actions=ARMS,
        contexts=ContextPool(CONTEXTS),
        budget=BUDGET,
        first_epoch=first_epoch,
        simulation_seed=3,
    )


def plan_of(one: capri.Capri) -> tuple[HistogramLayout, ArmFeatures]:
    """The layout and the features of the open epoch, which are those of cells."""
    plan = one.plan()
    assert isinstance(plan.layout, HistogramLayout)
    assert plan.layout.norm is Norm.L1
    assert isinstance(plan.features, ArmFeatures)
    return plan.layout, plan.features


def test_a_pair_is_in_one_cell_of_its_arm_whatever_stands_beside_it() -> None:
    """And after the plan was stored; a context that is not a number is in none."""
    one = policy()
    layout, features = plan_of(one)
    assert layout.cells == features.rank > ARMS  # several cells for some arm
    pairs = one.problem.actions.pairs(CONTEXTS).reshape(-1, 2 + ARMS)
    psi = features.whitened(pairs)
    assert sorted(set(psi.ravel())) == [0.0, 1.0]
    assert (psi.sum(axis=1) == 1).all()
    arm, cell = np.tile(np.arange(ARMS), len(CONTEXTS)), psi.argmax(axis=1)
    assert (features.starts[arm] <= cell).all()
    assert (cell < features.starts[arm] + features.sizes[arm]).all()
    for row in range(0, len(pairs), 7):
        assert np.array_equal(features.whitened(pairs[row : row + 1])[0], psi[row])
    restored = plan_from_state(*plan_state(one.plan()), Auto())
    assert np.array_equal(restored.features.whitened(pairs), psi)
    odd = pairs[:2].copy()
    odd[0, 0] = np.nan
    with np.errstate(all="ignore"):
        assert not features.whitened(odd)[0].any()
        assert np.array_equal(features.whitened(odd)[1], psi[1])


def test_sums_of_cells_are_the_rewards_of_their_users() -> None:
    """Encoded one by one: in units of the level, within half a unit each."""
    one = policy()
    layout, features = plan_of(one)
    plan, generator = one.plan(), np.random.default_rng(0)
    encoder = Encoder(plan, one.problem)
    row, action = generator.integers(30, size=200), generator.integers(ARMS, size=200)
    rewards = generator.uniform(-1, 1, 200)
    pairs = one.problem.actions.chosen(CONTEXTS[row], action)
    total = encoder.total(plan.opening, pairs, row, action, rewards)
    found = layout.main(layout.numbers(total), plan.value_bound)
    np.testing.assert_allclose(found, features.whitened(pairs).T @ rewards, atol=200 / layout.level)


def test_cells_grow_with_the_plays_of_an_arm() -> None:
    """One for all contexts while noise is above what differs between them, then more."""
    generator = np.random.default_rng(1)
    u = np.concatenate([np.ones((200, 1)), generator.normal(size=(200, 3))], axis=1)
    weights, factor = np.full(200, 1 / 200), np.diag([0.5, 0.3, 0.2, 0.1])
    few, some, many = (
        cells_of(u, weights, factor, Sums(length=n, noise=3.0, variance=0.05))
        for n in (10, 60, 3_000)
    )
    assert few.shape.shape[1] == 1 < some.shape.shape[1] < many.shape.shape[1] <= 32
    assert few.left > some.left > many.left > 0
    # What is predicted is what the posterior of a Gaussian leaves.
    label = (u @ some.shape - some.offset).argmax(axis=1)
    psi = np.eye(len(some.offset))[label]
    design = 60 * (psi * weights[:, None]).T @ u
    noise = np.diag(9.0 + 60 * 0.05 * weights @ psi)
    prior = factor @ factor.T
    seen = design @ prior @ design.T + noise
    after = prior - prior @ design.T @ np.linalg.solve(seen, design @ prior)
    left = float(np.einsum("ci,ij,cj,c->", u, after, u, weights))
    assert some.left == pytest.approx(left, rel=1e-9)


def test_an_arm_that_is_behind_is_tried_when_it_pays() -> None:
    """Not after few decisions, and not where it is known to be worse; a new one in any case."""
    mean = np.array([[0.5], [0.0], [0.0]])
    covariance = np.array([1e-4, 0.04, 1e-4]).reshape(3, 1, 1)  # the second is hardly known
    levels, outlook = covariance[:, 0, 0], Outlook(length=1000.0, noise=1.0, variance=0.01)
    young = Tries(u=np.ones((8, 1)), offered=np.arange(3), decisions=300.0, level=0.1)
    old = replace(young, decisions=100_000.0)
    assert young.tries(mean, covariance, levels, outlook, 30.0) == []
    (found,) = old.tries(mean, covariance, levels, outlook, 30.0)
    assert found[0] == 1
    assert 0 < found[1] <= 1
    others = replace(old, offered=np.array([0, 2]))
    assert others.tries(mean, covariance, levels, outlook, 30.0) == []
    new = replace(young, level=0.05)
    assert [arm for arm, _ in new.tries(mean, covariance, levels, outlook, 30.0)] == [1]
    assert new.tries(mean, covariance, levels, outlook, 8.0) == []  # so few plays tell nothing
