"""Sampling laws: probabilities on the active set, worked out by hand, and what act reports."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import capri
from capri.epoch.decide import LawTable
from capri.epoch.play import BehaviourPolicy, Law, ThompsonLaw, UniformLaw
from capri.features import Basis, greedy_basis
from capri.kernels import Matern

KERNEL = Matern(nu=2.5, lengthscale=0.4)
LAWS = ["uniform", "thompson"]


def basis() -> Basis:
    points = np.random.default_rng(0).random((50, 2))
    return greedy_basis(KERNEL, points, tolerance=1e-6, max_rank=20)


def make_law(name: str, seed: int = 0, draws: int = 64) -> Law:
    rng = np.random.default_rng(seed)
    span = basis()
    if name == "thompson":
        return ThompsonLaw(span, rng.normal(size=(span.rank, draws)))
    return UniformLaw()


def probabilities(law: Law, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
    return law.of_scores(law.scores(pairs), active)


def make_pairs(contexts: int, actions: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pairs = np.empty((contexts, actions, 2))
    pairs[:, :, 0] = rng.random((contexts, 1))
    pairs[:, :, 1] = rng.random(actions)
    return pairs


def random_active(contexts: int, actions: int, seed: int) -> np.ndarray:
    """Active sets of every size, none empty."""
    rng = np.random.default_rng(seed)
    active = rng.random((contexts, actions)) < rng.random((contexts, 1))
    active[np.arange(contexts), rng.integers(actions, size=contexts)] = True
    return active


@settings(max_examples=60)
@given(
    name=st.sampled_from(LAWS),
    contexts=st.integers(1, 9),
    actions=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_law_is_a_probability_on_the_active_set(
    name: str, contexts: int, actions: int, seed: int
) -> None:
    active = random_active(contexts, actions, seed)
    law = probabilities(make_law(name, seed), make_pairs(contexts, actions, seed), active)
    assert law.shape == active.shape
    assert (law >= 0).all()
    assert (law[~active] == 0).all()
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=1e-12)


def test_uniform_law_is_uniform_on_the_active_set() -> None:
    active = np.array([[True, False, True, True], [False, True, False, False], [True] * 4])
    law = probabilities(UniformLaw(), make_pairs(3, 4), active)
    third = 1 / 3
    expected = [[third, 0, third, third], [0, 1, 0, 0], [0.25] * 4]
    np.testing.assert_allclose(law, expected, rtol=1e-15)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_thompson_law_counts_the_draws_an_action_wins(seed: int) -> None:
    """One draw and one context at a time, with ``f(w) = v(w)^T draw``."""
    law = make_law("thompson", seed, draws=40)
    assert isinstance(law, ThompsonLaw)
    pairs, active = make_pairs(6, 7, seed), random_active(6, 7, seed)
    rows = [[law.basis.coordinates(pair[None])[0] for pair in context] for context in pairs]
    wins = np.zeros((6, 7))
    for column in law.draws.T:
        for context in range(6):
            values = [
                float(rows[context][x] @ column) if active[context, x] else -np.inf
                for x in range(7)
            ]
            wins[context, int(np.argmax(values))] += 1
    np.testing.assert_array_equal(probabilities(law, pairs, active), wins / 40)


def test_thompson_support_keeps_at_least_one_draw_of_probability() -> None:
    law = probabilities(make_law("thompson", 3, draws=50), make_pairs(9, 9), np.ones((9, 9), bool))
    assert law[law > 0].min() >= 1 / 50
    assert np.count_nonzero(law) < law.size, "premise: some actions win no draw"


@pytest.mark.parametrize("name", LAWS)
def test_permuting_actions_permutes_the_law(name: str) -> None:
    law = make_law(name, 4)
    pairs, active = make_pairs(6, 8), random_active(6, 8, 5)
    order = np.random.default_rng(6).permutation(8)
    straight = probabilities(law, pairs, active)
    permuted = probabilities(law, pairs[:, order], active[:, order])
    np.testing.assert_allclose(permuted, straight[:, order], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", LAWS)
def test_contexts_do_not_influence_each_other(name: str) -> None:
    law = make_law(name, 4)
    pairs, active = make_pairs(6, 8), random_active(6, 8, 5)
    together = probabilities(law, pairs, active)
    for context in range(6):
        alone = probabilities(law, pairs[context : context + 1], active[context : context + 1])
        np.testing.assert_allclose(alone[0], together[context], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", LAWS)
def test_law_leaves_its_arguments_alone(name: str) -> None:
    pairs, active = make_pairs(6, 8), random_active(6, 8, 5)
    copies = pairs.copy(), active.copy()
    probabilities(make_law(name), pairs, active)
    np.testing.assert_array_equal(pairs, copies[0])
    np.testing.assert_array_equal(active, copies[1])


# -- drawing from a table -------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [1, 2, 3, 7, 64])
def test_table_draws_the_same_one_by_one_and_by_bisection(actions: int) -> None:
    """Small and large batches take different roads; zeros at both ends and inside."""
    rng = np.random.default_rng(actions)
    law = rng.dirichlet(np.full(actions, 0.3), size=20)
    law[law < 0.02] = 0.0
    law[np.arange(20), rng.integers(actions, size=20)] += 0.1
    law /= law.sum(axis=1, keepdims=True)
    table = LawTable(law)
    rows = rng.integers(20, size=2000)
    uniform = rng.random(2000)
    uniform[:50] = 0.0
    uniform[50:100] = np.nextafter(1.0, 0.0)
    chosen, propensity = table.draw(rows, uniform)
    for start in range(0, 2000, 25):
        part = slice(start, start + 25)
        few, probability = table.draw(rows[part], uniform[part])
        np.testing.assert_array_equal(few, chosen[part])
        np.testing.assert_array_equal(probability, propensity[part])
    np.testing.assert_array_equal(propensity, law[rows, chosen])
    assert (propensity > 0).all()


def test_table_draws_by_the_law() -> None:
    """40 000 draws; chi-squared with 4 degrees of freedom, false alarm 1e-6."""
    law = np.array([[0.5, 0.0, 0.2, 0.25, 0.04, 0.01]])
    rng = np.random.default_rng(3)
    chosen, _ = LawTable(law).draw(np.zeros(40_000, dtype=np.int64), rng.random(40_000))
    counts = np.bincount(chosen, minlength=6)
    assert counts[1] == 0
    used = law[0] > 0
    expected = 40_000 * law[0, used]
    assert np.sum((counts[used] - expected) ** 2 / expected) < chi2(4).isf(1e-6)


# -- what a policy reports ------------------------------------------------------------------------

CONTEXTS = np.linspace(0, 1, 6)[:, None]
OUTSIDE = np.array([[0.137], [0.911]])


def trained_policy(**changes: Any) -> capri.Capri:
    """After two releases, in an epoch with room for 40 000 decisions."""
    kernel = Matern(nu=2.5, lengthscale=0.4)
    settings: dict[str, Any] = {
        "kernel": kernel,
        "actions": np.linspace(0, 1, 5)[:, None],
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": capri.Budget(epsilon=5.0, delta=1e-5),
        "first_epoch": 400,
        "growth": 15.0,
        "simulation_seed": 8,
        "memory": np.inf,  # else epochs would be cut to see changes soon
    }
    policy = capri.Capri(**(settings | changes))
    rng = np.random.default_rng(0)
    for _ in range(2):
        context = rng.integers(6, size=policy.remaining)
        decisions = policy.act_many(CONTEXTS[context])
        values = 0.6 * np.sin(4 * CONTEXTS[context, 0] + 5 * decisions.action[:, 0])
        policy.update_many(decisions, values)
        policy.close_epoch()
    return policy


@pytest.mark.parametrize("limits", [None, capri.Limits(floor={0: 0.1, 4: 0.3})])
@pytest.mark.parametrize("contexts", [CONTEXTS, OUTSIDE], ids=["pool", "outside"])
def test_propensities_are_the_law_and_the_law_is_played(
    limits: capri.Limits | None, contexts: np.ndarray
) -> None:
    """3000 decisions per context: each reports the learner's probability of its action, and the
    actions follow it (chi-squared, false alarm 1e-6 per context)."""
    # Little is ruled out at so small an epsilon, whatever the last bits of a processor are.
    policy = trained_policy(budget=capri.Budget(epsilon=0.02, delta=1e-5), limits=limits)
    policy.act(CONTEXTS[0])  # opens the epoch
    law = policy._learning.learner.probabilities(contexts)
    assert (law.max(axis=1) < 1).any(), "premise: there is something to draw"
    row = np.repeat(np.arange(len(contexts)), 3000)
    decisions = policy.act_many(contexts[row])
    np.testing.assert_allclose(decisions.propensity, law[row, decisions.action_index], rtol=1e-12)
    assert (decisions.propensity > 0).all()
    for context in range(len(contexts)):
        counts = np.bincount(decisions.action_index[row == context], minlength=5)
        used = law[context] > 0
        assert counts[~used].sum() == 0
        expected = 3000 * law[context, used]
        statistic = np.sum((counts[used] - expected) ** 2 / expected)
        assert statistic < chi2(max(1, used.sum() - 1)).isf(1e-6)


def test_thompson_law_is_drawn_from_the_posterior() -> None:
    """Scale 1 and 4000 draws: the law's frequencies are those of fresh posterior draws. Two
    multinomials of 4000 in each of six contexts: chi-squared, false alarm 1e-6 each."""
    policy = trained_policy(thompson_scale=1.0, draws=4000)
    learner = policy._learning.learner
    policy.act(CONTEXTS[0])
    law = learner.probabilities(CONTEXTS)
    state = learner.known.posterior  # type: ignore[attr-defined]
    rng = np.random.default_rng(77)
    theta = state.mean[:, None] + state.factor @ rng.standard_normal((len(state.mean), 4000))
    pairs = policy._problem.actions.pairs(CONTEXTS)
    values = learner.known.basis.coordinates(pairs.reshape(-1, 2)) @ theta  # type: ignore[attr-defined]
    best = values.reshape(6, 5, -1).argmax(axis=1)
    for context in range(6):
        first, second = 4000 * law[context], np.bincount(best[context], minlength=5)
        used = first + second > 0
        statistic = np.sum((first - second)[used] ** 2 / (first + second)[used])
        assert statistic < chi2(max(1, used.sum() - 1)).isf(1e-6)


def test_smaller_thompson_scale_explores_less() -> None:
    """Under one and the same belief."""
    entropies = []
    known: Any = trained_policy(draws=500)._learning.learner.known  # type: ignore[attr-defined]
    for scale in (0.1, 0.7, 3.0):
        options = replace(known.options, thompson_scale=scale)
        drawn = replace(known.model, options=options).law(known, 500, np.random.default_rng(0))
        law = BehaviourPolicy(known.problem.actions, drawn).probabilities(CONTEXTS)
        entropies.append(float(-np.sum(law * np.log(np.maximum(law, 1e-12)))))
    assert entropies[0] < entropies[1] < entropies[2]
