"""A catalogue that changes: what was learnt stays, what is new is tried, nothing else moves."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import capri
from builders import snapshot
from capri import Numeric, Schema
from capri.choices import as_actions, successor
from capri.errors import ConfigurationError, ShapeError
from capri.features import spectral_basis
from capri.kernels import Categories, ContextAction, Linear, Matern
from capri.learners.belief import Belief, Observation
from capri.learners.change_of_basis import Passage, between
from capri.learners.options import PracticalOptions

CONTEXTS = np.linspace(0, 1, 12)[:, None]
KERNEL = Matern(nu=2.5, lengthscale=0.4)
LOW, HIGH = np.linspace(0, 0.6, 13)[:, None], np.linspace(0.2, 1.0, 17)[:, None]
BY_NAME = ContextAction(KERNEL, Categories(), 1)


def truth(contexts: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * np.sin(3 * contexts) * np.cos(4 * actions) + 0.3 * actions)


def policy_of(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": LOW,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": capri.Budget(epsilon=4.0, delta=1e-5),
        "simulation_seed": 1,
    }
    return capri.Capri(**(settings | changes))


def play(policy: capri.Capri, rounds: int, seed: int = 0) -> list[capri.Decisions]:
    """Rewards of the smooth function, with noise."""
    generator = np.random.default_rng(seed)
    made = []
    while rounds:
        count = min(policy.remaining, rounds, 500)
        rows = CONTEXTS[generator.integers(len(CONTEXTS), size=count)]
        decisions = policy.act_many(rows)
        noise = 0.1 * generator.standard_normal(count)
        policy.update_many(decisions, truth(rows[:, 0], decisions.action[:, 0]) + noise)
        made.append(decisions)
        rounds -= count
    return made


def play_names(policy: capri.Capri, values: dict[str, float], rounds: int) -> None:
    generator = np.random.default_rng(3)
    while rounds:
        count = min(policy.remaining, rounds, 500)
        decisions = policy.act_many(CONTEXTS[generator.integers(len(CONTEXTS), size=count)])
        assert decisions.action_name is not None
        policy.update_many(decisions, [values[name] for name in decisions.action_name.tolist()])
        rounds -= count


def regret(policy: capri.Capri) -> float:
    """Of the law in force, over that of uniform play."""
    assert isinstance(policy.actions, capri.FixedActions)
    values = truth(CONTEXTS, policy.actions.rows[:, 0])
    played = (policy.probabilities(CONTEXTS) * values).sum(axis=1)
    best = values.max(axis=1)
    return float((best - played).mean() / (best - values.mean(axis=1)).mean())


# -- the passage ----------------------------------------------------------------------------------


def old_and_new(kernel: Any = KERNEL) -> tuple[Any, Passage, np.ndarray, np.ndarray]:
    options = PracticalOptions()
    old_pairs = as_actions(LOW).pairs(CONTEXTS).reshape(-1, 2)
    new_pairs = as_actions(HIGH).pairs(CONTEXTS).reshape(-1, 2)
    old, _ = spectral_basis(
        kernel, old_pairs, tolerance=options.rank_tolerance, max_rank=options.max_rank
    )
    return old, between(old, new_pairs, options)[0], old_pairs, new_pairs


def test_functions_of_the_old_basis_are_functions_of_the_new() -> None:
    old, passage, old_pairs, new_pairs = old_and_new()
    theta = np.random.default_rng(0).standard_normal(old.rank)
    theta /= np.linalg.norm(theta)
    again = passage.matrix.T @ theta
    for pairs in (old_pairs, new_pairs):
        before = old.coordinates(pairs) @ theta
        np.testing.assert_allclose(passage.basis.coordinates(pairs) @ again, before, atol=0.03)
    assert np.linalg.norm(passage.matrix @ again - theta) < 0.1  # what the cut of the basis costs


def test_information_is_that_of_observing_in_the_new_basis() -> None:
    """``M^T (H^T R^-1 H) M`` is what the same release says of the new coefficients."""
    old, passage, _, _ = old_and_new()
    generator = np.random.default_rng(1)
    design = generator.standard_normal((8, old.rank))
    root = generator.standard_normal((8, 8))
    covariance, released = root @ root.T + np.eye(8), generator.standard_normal(8)
    baseline = generator.standard_normal(old.rank)
    seen = Observation(design=design, covariance=covariance, baseline=baseline)
    first = Belief.empty(old.rank).observe([(..., seen, released)])
    moved = passage.belief(first)
    shifted = released + design @ baseline
    nothing = np.zeros(passage.basis.rank)
    seen = Observation(design=design @ passage.matrix, covariance=covariance, baseline=nothing)
    direct = Belief.empty(passage.basis.rank).observe([(..., seen, shifted)])
    np.testing.assert_allclose(moved.information, direct.information, atol=1e-9)
    np.testing.assert_allclose(moved.vector, direct.vector, atol=1e-9)
    assert moved.epochs == direct.epochs


def test_nothing_is_believed_of_an_action_that_is_like_none() -> None:
    """However much is known of others: this is what the old pivots in the basis are for."""
    policy = policy_of(kernel=BY_NAME, actions=["a", "b"], budget=None)
    play_names(policy, {"a": 0.2, "b": 0.9}, 3000)
    policy.close_epoch(early=True)
    before = policy.estimate(CONTEXTS)
    policy.replace_actions(["b", "new"])
    policy.act(CONTEXTS[0])
    after = policy.estimate(CONTEXTS)
    np.testing.assert_allclose(after[:, 0], before[:, 1], atol=0.01)
    np.testing.assert_allclose(after[:, 1], 0.0, atol=1e-9)
    learner: Any = policy._learning.learner
    v = learner.known.basis.coordinates(policy.actions.pairs(CONTEXTS))
    deviation = np.linalg.norm(v @ learner.known.posterior.factor, axis=2)
    assert (deviation[:, 1] > 20 * deviation[:, 0]).all()
    assert (deviation[:, 1] > 0.2).all()


def test_an_action_half_like_a_known_one_is_half_known() -> None:
    """Correlation 1/2 leaves three quarters of the variance, not none of it."""
    kernel = ContextAction(Matern(nu=2.5, lengthscale=5.0), Categories(0.5), 1)
    policy = policy_of(kernel=kernel, actions=["a", "b"], budget=None, smoothness=0.0)
    play_names(policy, {"a": 0.8, "b": 0.8}, 4000)
    policy.close_epoch(early=True)
    policy.replace_actions(["new", "a"])
    policy.act(CONTEXTS[0])
    learner: Any = policy._learning.learner
    v = learner.known.basis.coordinates(policy.actions.pairs(CONTEXTS))
    deviation = np.linalg.norm(v @ learner.known.posterior.factor, axis=2).mean(axis=0)
    assert deviation[0] > 5 * deviation[1]
    estimate = policy.estimate(CONTEXTS).mean(axis=0)
    assert 0.2 < estimate[0] < 0.7  # between the prior and the known ones; 2/3 of 0.8 by hand
    assert estimate[1] == pytest.approx(0.8, abs=0.05)


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [pytest.param(0, marks=pytest.mark.slow), 300])
def test_what_was_learnt_stays(wait: int) -> None:
    """The law of the first epoch after a change is far better than that of a new policy."""
    policy = policy_of(reward_wait=wait)
    play(policy, 5000)
    policy.replace_actions(HIGH)
    assert policy.actions.count == 13
    end = policy.plan().length  # no epoch is longer than those that are left of it
    while policy.actions.count == 13 and end > 0:
        count = policy.remaining
        play(policy, count, seed=1)
        policy.act(CONTEXTS[0])
        end -= count
    assert policy.actions.count == 17
    assert regret(policy) < 0.35  # a new policy has 1
    near = policy.estimate(CONTEXTS)[:, :9] - truth(CONTEXTS, HIGH[:9, 0])
    assert np.abs(near).mean() < 0.1
    play(policy, 6000, seed=2)
    assert regret(policy) < 0.08


def test_what_is_new_is_tried_and_found() -> None:
    """Though everything known is good, and the prior expects a new action to be around 0."""
    policy = policy_of(kernel=BY_NAME, actions=["a", "b", "c"])
    values = {"a": 0.2, "b": 0.9, "c": 0.5, "new": 1.0}
    play_names(policy, values, 3000)
    policy.replace_actions(["c", "new", "b"])
    play_names(policy, values, 8000)
    assert policy.probabilities(CONTEXTS)[:, 1].mean() > 0.7
    assert policy.estimate(CONTEXTS)[:, 1].mean() == pytest.approx(1.0, abs=0.1)


def test_decisions_that_were_made_do_not_change() -> None:
    policy, undisturbed = policy_of(reward_wait=200), policy_of(reward_wait=200)
    play(policy, 1500)
    play(undisturbed, 1500)
    rows = CONTEXTS[:5]
    before = policy.act_many(rows)
    undisturbed.act_many(rows)
    policy.replace_actions(HIGH)
    left = policy.remaining
    first = policy.act_many(np.tile(CONTEXTS[3], (left, 1)))
    second = undisturbed.act_many(np.tile(CONTEXTS[3], (left, 1)))
    np.testing.assert_array_equal(first.action, second.action)
    np.testing.assert_array_equal(first.propensity, second.propensity)
    for decision, row in zip(before, rows, strict=True):
        assert policy.update(decision, 0.5) is capri.RewardStatus.ACCEPTED
        assert decision.action[0] in LOW[:, 0]
        assert row in CONTEXTS


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("missing", [0.0, "as-estimated"])
def test_a_saved_change_goes_on_to_the_bit(missing: Any, names: bool, tmp_path: Path) -> None:
    """Before it is in force, and while epochs of the old actions still wait for rewards."""
    settings: dict[str, Any] = {"reward_wait": 400, "missing_reward": missing, "first_epoch": 150}
    new: Any = HIGH
    if names:
        settings |= {"kernel": BY_NAME, "actions": ["a", "b", "c"]}
        new = ["b", "c", "d", "e"]
    policy = policy_of(**settings)
    generator = np.random.default_rng(0)

    def step(each: capri.Capri, seed: int) -> None:
        draw = np.random.default_rng(seed)
        count = min(each.remaining, 100)
        decisions = each.act_many(CONTEXTS[draw.integers(len(CONTEXTS), size=count)])
        kept = draw.random(count) < 0.7
        numbers = [decision for decision, keep in zip(decisions, kept, strict=True) if keep]
        each.update_many(numbers, draw.uniform(0, 1, len(numbers)))

    for _ in range(12):
        step(policy, int(generator.integers(1 << 30)))
    policy.replace_actions(new)
    moved = False
    for number in range(7):
        policy.save(tmp_path / f"{number}.capri")
        again = capri.Capri.load(tmp_path / f"{number}.capri")
        for seed in generator.integers(1 << 30, size=4).tolist():
            step(policy, seed)
            step(again, seed)
        assert snapshot(policy, tmp_path) == snapshot(again, tmp_path)
        pending = policy._learning.learner.known.pending.values()  # type: ignore[attr-defined]
        moved |= any(each.moved for segments in pending for each in segments)
    assert moved
    assert policy.actions.count == len(new)


def test_changes_of_a_private_run_are_public_and_kept(tmp_path: Path) -> None:
    policy = policy_of(simulation_seed=None, first_epoch=50)
    play(policy, 120)
    policy.replace_actions(HIGH)
    spent = policy.ledger.spent
    policy.save(tmp_path / "policy.capri")
    again = capri.Capri.load(tmp_path / "policy.capri")
    assert again.ledger.spent == spent
    assert again.actions.count == 13
    play(again, 400)
    assert again.actions.count == 17


def test_before_any_release_a_change_is_a_new_start() -> None:
    policy = policy_of()
    policy.replace_actions(HIGH)
    decision = policy.act(CONTEXTS[0])
    assert decision.propensity == pytest.approx(1 / 17)
    assert policy.actions.count == 17


def test_of_several_changes_the_last_counts() -> None:
    policy = policy_of(kernel=BY_NAME, actions=["a", "b"], first_epoch=40)
    play_names(policy, {"a": 0.1, "b": 0.9}, 50)
    policy.replace_actions(["b", "c"])
    policy.replace_actions(["a", "d"])
    play_names(policy, {"a": 0.1, "b": 0.9, "d": 0.5}, policy.remaining + 1)
    assert policy.actions.names == ("a", "d")
    assert isinstance(policy.actions, capri.FixedActions)
    assert policy.actions.rows.argmax(axis=1).tolist() == [0, 3]
    policy.replace_actions(["b", "a"])  # what was known of b comes back with its name
    play_names(policy, {"a": 0.1, "b": 0.9, "d": 0.5}, policy.remaining + 1)
    assert policy.actions.rows.argmax(axis=1).tolist() == [1, 0]  # type: ignore[attr-defined]
    assert policy.estimate(CONTEXTS)[:, 0].mean() > 0.3


def test_devices_get_the_new_actions_with_their_bundle(tmp_path: Path) -> None:
    aggregator = capri.LocalCapri(
        kernel=BY_NAME,
        actions=["a", "b"],
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(epsilon=8.0, delta=0.0),
        first_epoch=20,
        public_seed=1,
    )

    def fill(each: capri.LocalCapri) -> set[str | None]:
        seen = set()
        for _ in range(each.remaining):
            client = capri.LocalClient(each.bundle(), capri.Budget(epsilon=8.0, delta=0.0))
            seen.add(client.act(CONTEXTS[0]).action_name)
            each.receive(client.report(0.5))
        return seen

    fill(aggregator)
    aggregator.replace_actions(["b", "c", "d"])
    aggregator.save(tmp_path / "aggregator.capri")
    again = capri.LocalCapri.load(tmp_path / "aggregator.capri")
    for each in (aggregator, again):
        assert fill(each) <= {"a", "b"}
        assert each.actions.names == ("b", "c", "d")
        assert fill(each) <= {"b", "c", "d"}


def test_other_choices_go_on_too() -> None:
    for options in ({"residual": False}, {"memory": np.inf}, {"draws": 5}):
        policy = policy_of(first_epoch=60, **options)
        play(policy, 100)
        policy.replace_actions(HIGH)
        play(policy, 500, seed=1)
        law = policy.probabilities(CONTEXTS)
        assert law.shape == (12, 17)
        np.testing.assert_allclose(law.sum(axis=1), 1)


# -- what may take the place of what --------------------------------------------------------------


def test_a_table_is_read_by_the_schema_of_the_first() -> None:
    first = as_actions(pandas.DataFrame({"name": ["tea", "cola"], "price": [2.0, 4.0]}))
    second = successor(first, [{"name": "wine", "price": 3.0}, {"name": "gold", "price": 99.0}])
    assert second.names == ("wine", "gold")
    assert second.rows.ravel().tolist() == [0.5, 1.0]
    assert second.schema == Schema([Numeric("price", 2, 4)])


def test_numbers_of_actions_grow_and_shrink() -> None:
    grown = successor(as_actions(2), 4)
    assert grown.rows.tolist() == np.eye(4).tolist()
    assert successor(grown, 1).rows.tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (LOW, np.zeros((3, 2)), "have 1 features, the new ones 2"),
        (["a", "b"], [[0.0], [1.0]], "have 2 features, the new ones 1"),
        (LOW, capri.VaryingActions(2, 1), "only a fixed list of actions"),
        (LOW, ["a", "b"], "have 1 features, the new ones 2"),
        (LOW, [[np.nan]], "must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(old: Any, new: Any, message: str) -> None:
    policy = policy_of(actions=old)
    with pytest.raises(ConfigurationError, match=message):
        policy.replace_actions(new)
    policy.act(CONTEXTS[0])
    assert policy.actions.count == len(old)


def test_what_the_kernel_cannot_bear_is_refused() -> None:
    policy = policy_of(kernel=Linear(variance=0.5), actions=LOW)
    with pytest.raises(ConfigurationError, match=r"k\(w, w\) must be at most 1"):
        policy.replace_actions([[5.0]])
    with pytest.raises(ShapeError, match="one per lengthscale"):
        policy_of(kernel=Matern(lengthscale=(0.3, 0.3, 0.3)), actions=["a", "b"]).replace_actions(
            ["a", "b", "c"]
        )


def test_varying_actions_and_the_paper_keep_theirs() -> None:
    varying = policy_of(
        actions=capri.VaryingActions(2, 1), contexts=capri.ContextPool(np.zeros((2, 3)))
    )
    with pytest.raises(ConfigurationError, match="every context brings its own"):
        varying.replace_actions(LOW)
    paper = policy_of(preset="paper", horizon=1000)
    with pytest.raises(ConfigurationError, match="only preset 'practical' replaces actions"):
        paper.replace_actions(HIGH)
    assert paper.act(CONTEXTS[0]).action[0] in LOW
