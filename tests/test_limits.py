"""Limits on what is played: kept in every decision, known to plans, devices and files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capri
from builders import CONTEXTS, small_policy
from capri.epoch.bounds import Bounds, Rule, as_sets
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.local.bundle import open_bundle
from capri.spaces import FixedActions

# Rewards of visits that count for nothing are ignored, and simulations say so.
pytestmark = pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning")
NAMES = ("control", "costly", "cheap", "new")
ROWS = np.linspace(0, 1, 4)[:, None]
LIMITS = capri.Limits(
    floor={"control": 0.05}, ceiling={"costly": 0.2}, allowed={"new": {0: (0.5, None)}}
)


def limited(limits: capri.Limits | None = LIMITS, **changes: Any) -> capri.Capri:
    """Four named actions, epochs of 8, 16, ...; seeded."""
    usual: dict[str, Any] = {
        "actions": FixedActions(ROWS, NAMES),
        "preset": "practical",
        "first_epoch": 8,
        "growth": 2.0,
        "draws": 8,
        "horizon": 20_000,
        "limits": limits,
    }
    return small_policy(**(usual | changes))


# -- the law within bounds ------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 7), spread=st.floats(0.1, 3))
def test_any_law_is_kept_within_floors_and_ceilings(seed: int, count: int, spread: float) -> None:
    """Whatever is offered: rows add up to 1, each probability lies between its ends."""
    rng = np.random.default_rng(seed)
    floor = rng.dirichlet(np.full(count, spread)) * rng.choice([0, rng.random()])
    ceiling = np.where(rng.random(count) < 0.5, 1.0, np.maximum(floor, rng.random(count)))
    if ceiling.sum() < 1:
        ceiling[0] = 1.0
    bounds = Bounds(floor=floor, ceiling=ceiling)
    offered = rng.random((40, count)) < 0.6
    offered[~offered.any(axis=1), 0] = True
    scores = rng.standard_normal((40, count)) * 10

    def law(active: np.ndarray) -> np.ndarray:
        weights = np.exp(scores - scores.max(axis=1, keepdims=True)) * active + 1e-300 * active
        return weights / weights.sum(axis=1, keepdims=True)

    found = bounds.kept(offered, law)
    room = (offered * ceiling).sum(axis=1) >= 1
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    assert (found[~offered] == 0).all()
    assert (found[room] >= (offered * floor)[room]).all()
    assert (found[room] <= (offered * ceiling)[room]).all()
    tight = offered[~room] * ceiling
    np.testing.assert_allclose(found[~room], tight / tight.sum(axis=1, keepdims=True))


def test_what_is_above_a_ceiling_goes_to_what_the_law_would_play_without() -> None:
    bounds = Bounds(floor=np.zeros(3), ceiling=np.array([0.2, 1.0, 1.0]))

    def law(active: np.ndarray) -> np.ndarray:
        best = np.where(active, [3.0, 1.0, 2.0], -np.inf).argmax(axis=1)
        return np.eye(3)[best]

    everything = np.ones((1, 3), dtype=np.bool_)
    np.testing.assert_allclose(bounds.kept(everything, law), [[0.2, 0, 0.8]])


# -- every decision -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernel": "auto"},
        {"kernel": "auto", "actions": [*NAMES, *"abcdefgh"]},
        {"reward_wait": 6, "missing_reward": "as-estimated"},
    ],
    ids=str,
)
def test_every_decision_keeps_floors_ceilings_rules_and_sets(changes: dict[str, Any]) -> None:
    """In the pool, outside of it, and where contexts are no numbers; over several epochs."""
    policy, rng = limited(**changes), np.random.default_rng(3)
    count = policy.actions.count
    for _ in range(6):
        number = policy.remaining
        contexts = rng.choice([0.0, 0.3, 0.6, 1.0, 0.47, 7.5, np.nan], size=(number, 1))
        sets = rng.random((number, count)) < 0.6
        made = policy.act_many(contexts, available=sets)
        chosen, known = made.action_index, np.isfinite(contexts[:, 0])
        served = made.status == capri.VisitStatus.SERVED
        assert not served[~known].any()
        offered = sets & np.where(np.arange(count) == 3, contexts >= 0.5, True)
        fits = (offered * np.where(np.arange(count) == 1, 0.2, 1.0)).sum(axis=1) >= 1
        np.testing.assert_array_equal(served, known & fits)
        assert offered[np.arange(number), chosen][served].all()
        assert ((chosen != 3) | (contexts[:, 0] >= 0.5)).all()
        assert (made.propensity[(chosen == 1) & served] <= 0.2).all()
        assert (made.propensity[(chosen == 0) & served] >= 0.05).all()
        policy.update_many(made[:], np.where(served, rng.uniform(-1, 1, number), np.nan))
    law = policy.probabilities([[0.0], [0.3], [0.9], [3.0]])
    assert (law[:, 0] >= 0.05).all()
    assert (law[:, 1] <= 0.2).all()
    assert (law[:2, 3] == 0).all()
    np.testing.assert_allclose(law.sum(axis=1), 1)


def test_a_share_is_kept_under_the_law_of_contexts() -> None:
    """Contexts in which an action is worth most keep it: more there than the share allows."""
    policy = limited(capri.Limits(share={"costly": 0.1}), budget=None)
    rng = np.random.default_rng(0)
    for _ in range(7):
        number = policy.remaining
        contexts = CONTEXTS[rng.integers(4, size=number)]
        made = policy.act_many(contexts)
        policy.update_many(made, np.where(made.action_index == 1, contexts[:, 0], 0.3))
        law = policy.probabilities(CONTEXTS)
        assert law[:, 1].mean() <= 0.1
    assert law[:, 1].max() > 0.2


def test_sets_are_read_by_name_number_and_truth_value() -> None:
    actions = FixedActions(ROWS, NAMES)
    wanted = [[False, True, False, True]]
    for given_ in (
        ["costly", "new"],
        [1, 3],
        ("costly", 3, "nobody", 17, None, 2.5),
        [False, True, False, True],
        np.array([1, 3]),
        np.array([False, True, False, True]),
    ):
        assert as_sets(given_, 1, actions, single=True).tolist() == wanted
    many = as_sets([["costly", "new"], None, 7, []], 4, actions)
    assert many.tolist() == [*wanted, [True] * 4, [False] * 4, [False] * 4]
    table = np.array([[0.0, 1.0, np.nan, 1.0]])
    assert as_sets(table, 1, actions).tolist() == wanted
    for wrong in (3, "costly"):
        with pytest.raises(DataError, match="list of actions"):
            as_sets(wrong, 1, actions, single=True)
    with pytest.raises(DataError, match=r"shape \(2, 4\)"):
        as_sets(np.ones((2, 3), dtype=bool), 2, actions)
    with pytest.raises(DataError, match="2 in all"):
        as_sets([["new"]], 2, actions)


def test_a_set_of_which_nothing_is_offered_counts_for_nothing() -> None:
    policy = limited()
    for sets in ([], ["nobody"], ["new"], ["costly"]):
        decision = policy.act([0.0], available=sets)
        assert decision.status == capri.VisitStatus.INVALID
        assert policy.update(decision, 1.0) == capri.RewardStatus.UNCOUNTED
    assert decision.action_name == "costly"  # its set leaves no other


# -- what the plan expects ------------------------------------------------------------------------


def test_the_plan_expects_the_law_that_sets_make() -> None:
    """Against the mean over many visits; the law of a visit without a set stays as it is."""
    chance = {"control": 0.9, "costly": 0.5, "new": 0.3}
    policy = limited(capri.Limits(ceiling={"costly": 0.6}, availability=chance))
    plain = limited(capri.Limits(ceiling={"costly": 0.6}))
    behaviour = policy._learning.learner.behaviour()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(policy.probabilities(CONTEXTS), plain.probabilities(CONTEXTS))
    rng = np.random.default_rng(0)
    sets = rng.random((20_000, 4)) < [0.9, 0.5, 1.0, 0.3]
    law = behaviour.probabilities(np.zeros((20_000, 1)), sets).mean(axis=0)
    np.testing.assert_allclose(behaviour.expected(np.zeros((1, 1)))[0], law, atol=0.02)


def test_expected_sets_take_the_bias_out() -> None:
    """Without noise: an action that is rarely available is not taken for a bad one."""
    rng = np.random.default_rng(5)
    errors = []
    for availability in (None, {"cheap": 0.1}):
        limits = capri.Limits(availability=availability)
        policy = limited(limits, budget=None, first_epoch=20_000)
        sets = rng.random((20_000, 4)) < [1, 1, 0.1, 1]
        contexts = CONTEXTS[rng.integers(4, size=20_000)]
        made = policy.act_many(contexts, available=sets)
        policy.update_many(made, np.full(20_000, 0.5))
        policy.close_epoch()
        errors.append(np.abs(policy.estimate(CONTEXTS) - 0.5).max())
    assert errors[1] < 0.08 < 0.2 < errors[0], errors


# -- files, stores, devices, other actions --------------------------------------------------------


def test_limits_go_into_files_and_stores(tmp_path: Path) -> None:
    limits = capri.Limits(
        floor={"control": 0.1}, share={"costly": 0.3}, availability=[[1, 1, 0, 1], [1, 1, 1, 1]]
    )
    policy = limited(limits)
    policy.act_many(np.zeros((5, 1)), available=[["cheap"]] * 5)
    policy.save(tmp_path / "a.capri")
    again = capri.Capri.load(tmp_path / "a.capri")
    for each in (policy, again):
        made = each.act_many(np.full((3, 1), 0.3), available=[["new", "cheap"]] * 3)
        each.update_many(made, [0.1, 0.2, 0.3])
        each.act_many(np.zeros((16, 1)))
    np.testing.assert_array_equal(policy.probabilities(CONTEXTS), again.probabilities(CONTEXTS))
    assert again.problem.limits is not None
    assert again.problem.limits.to_dict() == limits.to_dict()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with limited(store=url) as stored:
        made = stored.act_many(np.zeros((8, 1)), available=[["cheap", "new"]] * 8)
        assert made.action_name is not None
        assert set(made.action_name) == {"cheap"}
    with capri.Capri.open(url) as reopened:
        assert (reopened.probabilities(CONTEXTS)[:, 1] <= 0.2).all()
        assert reopened.act([0.0], available=["cheap"]).action_name == "cheap"


def test_limits_follow_names_when_actions_are_replaced(tmp_path: Path) -> None:
    policy = limited(kernel="auto", actions=NAMES)
    policy.act_many(np.zeros((8, 1)))
    policy.replace_actions(["cheap", "newest", "costly"])
    policy.act([0.0], available=["costly", "newest"])
    law = policy.probabilities(CONTEXTS)
    assert (law[:, 2] <= 0.2).all()
    policy.save(tmp_path / "a.capri")
    renewed = capri.Capri.load(tmp_path / "a.capri")
    np.testing.assert_array_equal(renewed.probabilities(CONTEXTS), law)
    with pytest.raises(ConfigurationError, match="add up to at least 1"):
        policy.replace_actions(["costly"])


def test_devices_keep_limits() -> None:
    server = capri.LocalCapri(
        actions=FixedActions(ROWS, NAMES),
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(epsilon=2.0),
        limits=LIMITS,
        public_seed=0,
    )
    bundle = open_bundle(server.bundle())
    np.testing.assert_array_equal(
        bundle.behaviour.probabilities(CONTEXTS), server.probabilities(CONTEXTS)
    )
    client = capri.LocalClient(server.bundle(), capri.Budget(epsilon=2.0))
    for context in (0.0, float("nan")):
        assert client.act([context], available=["new", "cheap"]).action_name == "cheap"
    status = client.act([0.0], available=["new"]).status
    assert status == capri.VisitStatus.INVALID
    assert len(client.report(0.5)) > 0


def test_a_bundle_with_limits_of_the_wrong_kind_is_refused() -> None:
    for values in (
        {"floor": [0.9, 0.9], "ceiling": [1, 1], "rules": []},
        {"floor": [0, 0, 0], "ceiling": [1, 1, 1], "rules": []},
        {"floor": [0, 0], "ceiling": [1, 1], "rules": [[5, [0], 0, None]]},
        {"floor": [0, 0], "ceiling": [1, 1], "rules": [[0, [-1], 0, None]]},
        {"floor": [0, 0], "ceiling": [1, 1], "rules": [[0, [0], float("nan"), None]]},
        {"floor": [0, 0], "ceiling": [0.1, 0.1], "rules": []},
    ):
        with pytest.raises(ConfigurationError):
            Bounds.from_state(values, 2)
    assert Bounds(floor=np.zeros(2), ceiling=np.ones(2), rules=(Rule(0, (7,), 0, 1),)).columns == 8


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"floor": {"control": 0.6, "cheap": 0.6}}, "at most 1, got 1.2"),
        ({"floor": {"nobody": 0.1}}, "'nobody'; there are 'control'"),
        ({"ceiling": {17: 0.1}}, "17"),
        ({"floor": {"control": 0.5}, "ceiling": {"control": 0.4}}, "floor above its ceiling"),
        ({"floor": {"control": 0.5}, "share": {"control": 0.4}}, "floor above its share"),
        ({"ceiling": dict.fromkeys(NAMES, 0.2)}, "add up to at least 1"),
        ({"allowed": {name: {0: (0.5, None)} for name in NAMES}}, "add up to at least 1"),
        ({"allowed": {"new": {"age": (18, None)}}}, "columns go by number"),
        ({"allowed": {"new": {0: (None, None)}}}, "a lowest or a highest"),
        ({"allowed": {"new": {0: (2, 1)}}}, "is empty"),
        ({"allowed": {"new": {}}}, "maps an action to columns"),
        ({"availability": [[True, False]]}, "4 truth values"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits: dict[str, Any], text: str) -> None:
    with pytest.raises((ConfigurationError, ShapeError), match=text):
        limited(capri.Limits(**limits))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"floor": {"a": 1.5}}, "between 0 and 1, got 1.5"),
        ({"floor": [0.5]}, "mapping from actions, got list"),
        ({"ceiling": {"a": 0}}, "would take an action away"),
        ({"availability": [[False, False]]}, "hold one at least"),
        ({"availability": 3}, "rows of truth values"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], text: str) -> None:
    with pytest.raises((ConfigurationError, ShapeError), match=text):
        capri.Limits(**limits)


def test_the_paper_knows_no_limits() -> None:
    with pytest.raises(ConfigurationError, match="preset='practical'"):
        small_policy(limits=capri.Limits(floor={0: 0.1}))
    with pytest.raises(ConfigurationError, match="preset='practical'"):
        small_policy().act([0.0], available=[0])
    with pytest.raises(ConfigurationError, match=r"capri\.Limits"):
        small_policy(limits={"floor": {0: 0.1}})


def test_rules_by_columns_of_a_schema() -> None:
    schema = capri.Schema(
        [
            capri.Numeric("age", 0, 100, missing="own"),
            capri.Categorical("country", ["at", "de", "ch"]),
            capri.Boolean("member", missing=False),
        ]
    )
    rows = [
        {"age": 20, "country": "at", "member": True},
        {"age": 60, "country": "ch", "member": None},
    ]
    policy = small_policy(
        preset="practical",
        contexts=capri.ContextPool(rows, schema=schema),
        actions=FixedActions(ROWS, NAMES),
        limits=capri.Limits(
            allowed={
                "costly": {"age": (18, 65), "country": ["at", "de"]},
                "new": {"member": True},
            }
        ),
    )
    people = [
        {"age": 18, "country": "de", "member": True},
        {"age": 17, "country": "at", "member": True},
        {"age": 40, "country": "ch", "member": False},
        {"age": None, "country": "at", "member": True},
        {"age": 40, "country": "xx", "member": None},
    ]
    offered = policy.probabilities(people) > 0
    assert offered[:, 1].tolist() == [True, False, False, False, False]
    assert offered[:, 3].tolist() == [True, True, False, True, False]
    for wrong, text in (
        ({"city": ["x"]}, "the schema has age"),
        ({"country": ["fr"]}, "levels at, de, ch"),
        ({"age": (18, 200)}, "runs from 0 to 100"),
        ({"member": 1}, "True or False"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            policy.again(simulation_seed=0, limits=capri.Limits(allowed={"new": wrong}))


def test_no_limits_change_nothing() -> None:
    """An empty object plays, plans and learns as none does, to the bit."""
    found = []
    for limits in (None, capri.Limits()):
        policy, rng = limited(limits), np.random.default_rng(1)
        for _ in range(3):
            made = policy.act_many(CONTEXTS[rng.integers(4, size=policy.remaining)])
            policy.update_many(made, rng.uniform(-1, 1, len(made)))
        found.append((policy.estimate(CONTEXTS), policy.probabilities(CONTEXTS)))
    np.testing.assert_array_equal(found[0], found[1])


def test_a_set_that_cannot_be_read_is_its_own_visit_s_alone() -> None:
    """Neither what cannot be listed nor a text in a table refuses a batch."""
    policy = limited(capri.Limits())
    table = np.ones((3, 4), dtype=object)
    table[1] = ["no", None, float("nan"), 10**400]
    for sets in ([None, np.array(3), ["cheap"]], table):
        status = policy.act_many(np.zeros((3, 1)), available=sets).status
        assert status.tolist() == [0, 1, 0]
