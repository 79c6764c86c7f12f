"""What is known before the first user: taken in exactly, and believed as far as it bears out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import BUDGET, CONTEXTS, small_policy
from capri.errors import ConfigurationError, ShapeError
from capri.learners.warm_start import DOUBTS, discounted
from capri.privacy.certificate.verify import verified
from capri_lab.environments import unrelated_arms

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)


def policy_of(world: Any, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": world.actions,
        "contexts": capri.ContextPool(world.contexts),
        "budget": BUDGET,
        "horizon": 3000,
        "simulation_seed": 5,
    }
    return capri.Capri(**(settings | changes))


def rows_of(world: Any, count: int = 1000, sign: float = 1.0) -> capri.Prior:
    """Public rows under uniform play."""
    rng = np.random.default_rng(8)
    context = world.draw_contexts(rng, count)
    action = rng.integers(len(world.actions), size=count)
    rewards = sign * world.rewards(rng, context, action)
    return capri.Prior.from_rows(world.contexts[context], action, rewards)


class _OneMean:
    """A prior that only counts evidence."""

    def infer(self, belief: Any, near: Any = None) -> Any:
        return type("State", (), {"evidence": float(belief.information.sum())})()


def test_doubt_is_a_function_between() -> None:
    """``J_d = V^T (s^2 I + d^2 V S V^T)^-1 V`` against the dense formula, and its vector."""
    rng = np.random.default_rng(0)
    v, y, root = rng.normal(size=(30, 6)), rng.normal(size=30), np.tril(rng.normal(size=(6, 6)))
    head = discounted(v.T @ v / 0.1, v.T @ y / 0.1, _OneMean(), root, None)
    for doubt, information, vector in zip(DOUBTS, head.informations, head.vectors, strict=True):
        if np.isinf(doubt):
            assert not information.any()
            continue
        inverse = np.linalg.inv(0.1 * np.eye(30) + doubt**2 * v @ root @ root.T @ v.T)
        np.testing.assert_allclose(information, v.T @ inverse @ v, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(vector, v.T @ inverse @ y, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(KERNEL, id="told"), pytest.param("auto", id="auto", marks=pytest.mark.slow)],
)
def test_public_rows_halve_the_regret(kernel: Any) -> None:
    """The estimate is good before the first release; rows of another sign are found out."""
    world = capri.environments.random_rkhs(KERNEL, seed=3100)
    prior = rows_of(world)
    policy = policy_of(world, kernel=kernel, prior=prior)
    values = np.array([world.mean(np.arange(50), np.full(50, a)) for a in range(50)]).T
    assert np.sqrt(np.mean((policy.estimate(world.contexts) - values) ** 2)) < 0.1
    warm = capri.simulate(policy, world, 3000, seed=1).ratio
    cold = capri.simulate(policy_of(world, kernel=kernel), world, 3000, seed=1).ratio
    assert warm < 0.5 * cold
    flipped = policy_of(world, kernel=kernel, prior=rows_of(world, sign=-1))
    wrong = capri.simulate(flipped, world, 3000, seed=1).ratio
    assert flipped._learning.learner.known.posterior.doubt == len(DOUBTS) - 1  # type: ignore[attr-defined]
    assert wrong < 0.6  # of uniform play: who believed such rows would lose more than that


def test_unrelated_arms_take_rows() -> None:
    world = unrelated_arms(30, seed=3101)
    told = policy_of(world, kernel="auto", actions=30, prior=rows_of(world))
    warm = capri.simulate(told, world, 2000, seed=1).ratio
    cold = policy_of(world, kernel="auto", actions=30)
    assert warm < 0.5 * capri.simulate(cold, world, 2000, seed=1).ratio
    with pytest.raises(ConfigurationError, match="one for every action"):
        told.as_prior()
    arms = small_policy(kernel="auto", actions=30, preset="practical", blocks=False)
    _played(arms)
    with pytest.raises(ConfigurationError, match="not releases"):
        arms.again(simulation_seed=0, prior=arms, blocks=True)


def _played(policy: capri.Capri) -> None:
    decisions = policy.act_many(CONTEXTS[np.arange(policy.remaining) % 4])
    policy.update_many(decisions, np.full(len(decisions), 0.2))
    policy.close_full_epoch()


def test_releases_of_others_are_told_and_recorded(tmp_path: Path) -> None:
    """A policy and a fit: the estimate begins with theirs, the ledger and certificate say so."""
    world = capri.environments.random_rkhs(KERNEL, seed=3102)
    first = policy_of(world)
    capri.simulate(first, world, 3000, seed=1)
    rng = np.random.default_rng(2)
    context, action = world.draw_contexts(rng, 5000), rng.integers(50, size=5000)
    pairs = np.concatenate([world.contexts[context], world.actions[action]], axis=1)
    fit = capri.PrivateKernelRidge(
        kernel=KERNEL, epsilon=2.0, X_bounds=(0, 1), y_bounds=(-0.5, 1.0)
    ).fit(pairs, world.rewards(rng, context, action))
    values = np.array([world.mean(np.arange(50), np.full(50, a)) for a in range(50)]).T
    for source, kind, epsilon in ((first, "policy", None), (fit, "fit", 2.0)):
        told = policy_of(world, prior=source, simulation_seed=None)
        mine = np.sqrt(np.mean((told.estimate(world.contexts) - values) ** 2))
        assert mine < 0.6 * np.sqrt(np.mean(values**2))
        event = told.ledger.prior
        assert event is not None
        assert (event.kind, event.epsilon) == (kind, epsilon)
        certificate = told.certificate()
        assert certificate.digests["prior"] == event.digest
        assert event.assumption in certificate.assumptions
        assert verified(certificate.to_json().encode()) == certificate
        told.save(tmp_path / f"{kind}.capri")
        loaded = capri.Capri.load(tmp_path / f"{kind}.capri")
        assert loaded.ledger.prior == event
        shown = [each.estimate(world.contexts) for each in (told, loaded)]
        np.testing.assert_array_equal(*shown)
    assert "sequential composition" in event.assumption


def test_a_told_policy_goes_on_to_the_bit(tmp_path: Path) -> None:
    rows = capri.Prior.from_rows(CONTEXTS[[0, 1, 2, 3] * 5], [0, 1, 2, 0] * 5, [0.1, 0.4] * 10)
    for changes in ({}, {"kernel": "auto"}, {"kernel": "auto", "actions": 12}):
        policy = small_policy(preset="practical", first_epoch=8, prior=rows, **changes)
        _played(policy)
        policy.save(tmp_path / "a.capri")
        loaded = capri.Capri.load(tmp_path / "a.capri")
        for each in (policy, loaded):
            _played(each)
        np.testing.assert_array_equal(policy.estimate(CONTEXTS), loaded.estimate(CONTEXTS))
        again = policy.again(simulation_seed=11)
        assert again.ledger.prior == policy.ledger.prior
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with small_policy(preset="practical", prior=rows, store=url):
        pass
    with capri.Capri.open(url) as reopened:
        assert reopened.ledger.prior is not None
        assert reopened.estimate(CONTEXTS).any()


def test_other_actions_keep_what_was_told() -> None:
    rows = capri.Prior.from_rows(CONTEXTS[[0, 1, 2, 3] * 5], ["a", "b"] * 10, [0.1, 0.4] * 10)
    for count in (2, 12):
        names = ["a", "b", *(f"more {n}" for n in range(count - 2))]
        policy = small_policy(preset="practical", kernel="auto", actions=names, prior=rows)
        policy.replace_actions(["b", "c", *names[2:]])
        policy.act([0.0])
        estimate = policy.estimate(CONTEXTS)
        assert (estimate[:, 0] > 0.2).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([[0.0]], [0], [0.1, 0.2]), "one reward for each"),
        (([[0.0]], [7], [0.1]), "7, which is not on offer"),
        (([[0.0]], [0], [float("nan")]), "must be finite"),
        (([[0.0]], [[0.0, 1.0]], [0.1]), r"shape \(1, 1\)"),
        (([[0.0]] * 2, [0], [0.1] * 2), "one action for each of the 2"),
    ],
)
def test_rows_that_do_not_fit_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises((ConfigurationError, ShapeError), match=text):
        small_policy(preset="practical", prior=capri.Prior.from_rows(*arguments))


def test_what_is_no_prior_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"capri\.Prior"):
        small_policy(preset="practical", prior=[[0.0]])
    with pytest.raises(ConfigurationError, match="from_releases takes"):
        capri.Prior.from_releases(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not released anything"):
        small_policy(preset="practical").as_prior()
    with pytest.raises(ConfigurationError, match="paper's algorithm keeps no belief"):
        small_policy(prior=capri.Prior.from_rows([[0.0]], [0], [0.1]))
    wide = capri.Prior.from_rows([[0.0, 1.0]], [0], [0.1])
    with pytest.raises(capri.CapriError, match="1"):
        small_policy(preset="practical", prior=wide)


def test_what_is_known_is_in_the_units_of_rewards() -> None:
    """Coins of rate 0.8 as 0 and 1: public rows, and another policy's releases."""
    rows, rng = np.linspace(0, 1, 10)[:, None], np.random.default_rng(3)
    told: dict[str, Any] = {
        "actions": rows,
        "contexts": capri.ContextPool(rows),
        "simulation_seed": 1,
    }
    told |= {"reward_range": (0.0, 1.0), "budget": capri.Budget(8.0, 1e-5)}
    where, action = rows[rng.integers(10, size=2000)], rng.integers(10, size=2000)
    coins = (rng.random(2000) < 0.8).astype(float)
    knowing = capri.Capri(prior=capri.Prior.from_rows(where, action, coins), **told)
    assert knowing.estimate(rows).mean() == pytest.approx(0.8, abs=0.08)
    other = capri.Capri(**told)
    for _ in range(4):
        made = other.act_many(rows[rng.integers(10, size=other.remaining)])
        other.update_many(made, (rng.random(len(made.action)) < 0.8).astype(float))
        other.close_epoch()
    heir = capri.Capri(prior=other, **(told | {"reward_range": (0.0, 2.0)}))
    assert heir.estimate(rows).mean() == pytest.approx(0.8, abs=0.1)
