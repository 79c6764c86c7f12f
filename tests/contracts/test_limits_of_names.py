"""Limits stay with the names of actions, wherever a catalogue is read: memory, stores, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri import ConfigurationError, Limits
from capri.local.bundle import open_bundle
from capri.local.simulator import DeviceSimulator
from stores import Place

NAMES = ["control", "costly", "loan"]
LIMITS = Limits(ceiling={"costly": 0.05}, allowed={"loan": {0: (0.5, None)}})
ROWS = np.linspace(0, 1, 5)[:, None]
SETTINGS: dict[str, Any] = {
    "actions": NAMES,
    "contexts": capri.ContextPool(ROWS),
    "budget": capri.Budget(4.0, 1e-5),
    "first_epoch": 16,
    "kernel": "auto",
    "preset": "practical",
    "horizon": 2_000,
    "simulation_seed": 5,
}
pytestmark = pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning")


def opened(place: Place, **changes: Any) -> capri.Capri:
    return place.open(**(SETTINGS | {"limits": LIMITS} | changes))


def played(policy: capri.Capri, visits: int = 40) -> set[str]:
    """What was played at 0.1, where no loan is allowed; ceilings are looked at on the way."""
    names = set()
    for _ in range(visits):
        decision = policy.act([0.1])
        assert decision.action_name != "costly" or decision.propensity <= 0.05
        names.add(str(decision.action_name))
        policy.update(decision, 0.5)
    return names


def law(policy: capri.Capri) -> dict[str, float]:
    """The law of now at 0.1, by name."""
    row = policy.probabilities([[0.1]])[0]
    return dict(zip(policy.actions.names or (), row.tolist(), strict=True))


def past_epoch(policy: capri.Capri) -> None:
    """Into an epoch that plays the newest catalogue."""
    for _ in range(2):
        played(policy, policy.remaining)
        policy.close_epoch()
    policy.act([0.1])


@pytest.mark.parametrize(
    "catalogue",
    [["loan", "control", "costly"], ["letter", *NAMES], ["control", "loan"], ["control"]],
    ids=len,
)
def test_limits_follow_names_through_a_catalogue(place: Place, catalogue: list[str]) -> None:
    policy = opened(place)
    policy.act([0.1])
    policy.replace_actions(catalogue)
    past_epoch(policy)
    policy = place.restarted(policy, **SETTINGS, limits=LIMITS)
    assert policy.actions.names == tuple(catalogue)
    assert "loan" not in played(policy)
    found = law(policy)
    assert found.get("loan", 0.0) == 0.0
    assert found.get("costly", 0.0) <= 0.05
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_limit_rests_while_its_action_is_gone_and_comes_back_with_it(place: Place) -> None:
    policy = opened(place)
    policy.act([0.1])
    for catalogue in (["control", "letter"], ["costly", "loan", "letter", "control"]):
        policy.replace_actions(catalogue)
        past_epoch(policy)
        policy = place.restarted(policy, **SETTINGS, limits=LIMITS)
    assert "loan" not in played(policy)
    assert law(policy)["loan"] == 0.0
    assert law(policy)["costly"] <= 0.05


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [(["costly", "loan"], "add up to at least 1"), (["loan"], "leave nothing to play")],
)
def test_a_catalogue_that_limits_leave_nothing_of_is_refused_by_the_call(
    place: Place, catalogue: list[str], message: str
) -> None:
    policy = opened(place)
    policy.act([0.1])
    before = policy.operations
    with pytest.raises(ConfigurationError, match=message):
        policy.replace_actions(catalogue)
    assert policy.operations == before
    past_epoch(policy)
    assert policy.actions.names == tuple(NAMES)


def test_limits_by_number_stay_with_the_action_of_that_name(place: Place) -> None:
    numbered = Limits(ceiling={1: 0.05}, allowed={2: {0: (0.5, None)}})
    policy = opened(place, limits=numbered)
    policy.act([0.1])
    policy.replace_actions(["loan", "costly", "control"])
    past_epoch(policy)
    assert "loan" not in played(policy)
    assert law(policy)["costly"] <= 0.05


def test_a_sample_of_sets_stays_with_names(place: Place) -> None:
    sets = [[True, False, False], [True, True, True], [False, True, False]]
    sample = Limits(ceiling={"costly": 0.05}, availability=sets)
    policy = opened(place, limits=sample)
    policy.act([0.1])
    policy.replace_actions(["loan", "control"])
    past_epoch(policy)
    bounds = policy.problem.bounds
    assert bounds is not None
    assert bounds.masks is not None
    assert bounds.masks.tolist() == [[False, True], [True, True]]
    with pytest.raises(ConfigurationError, match="says nothing of 'letter'"):
        policy.replace_actions(["letter", "control"])
    with pytest.raises(ConfigurationError, match="holds any of these actions"):
        opened(
            Place("memory", None), limits=Limits(availability=[[True, False, False]])
        ).replace_actions(["loan"])


def test_names_and_numbers_of_limits_are_not_exchanged(place: Place) -> None:
    rows = np.eye(3)
    named = opened(place, actions=capri.FixedActions(rows, NAMES))
    with pytest.raises(ConfigurationError, match="give actions with names"):
        named.replace_actions(rows)
    unnamed = opened(Place("memory", None), actions=rows, limits=Limits(ceiling={2: 0.05}))
    with pytest.raises(ConfigurationError, match="give actions without names"):
        unnamed.replace_actions(capri.FixedActions(rows, NAMES))
    with pytest.raises(ConfigurationError, match="an action 2; there are 0 to 1"):
        unnamed.replace_actions(rows[:2])


def test_files_keep_limits_that_rest(tmp_path: Path) -> None:
    policy = opened(Place("memory", None))
    policy.replace_actions(["control", "letter"])
    past_epoch(policy)
    policy.save(tmp_path / "policy")
    again = capri.Capri.load(tmp_path / "policy")
    assert law(again) == law(policy)
    again.replace_actions(["loan", "costly", "control"])
    again.save(tmp_path / "policy")
    again = capri.Capri.load(tmp_path / "policy")  # with a catalogue that is still to come
    past_epoch(again)
    assert "loan" not in played(again)
    assert law(again)["costly"] <= 0.05


def test_bundles_of_other_catalogues_keep_limits() -> None:
    server = capri.LocalCapri(
        actions=NAMES,
        contexts=capri.ContextPool(ROWS),
        budget=capri.Budget(epsilon=2.0),
        limits=LIMITS,
        first_epoch=20,
        public_seed=0,
    )
    server.replace_actions(["letter", "loan", "costly", "control"])
    fleet = DeviceSimulator(server, capri.Budget(epsilon=2.0), simulation_seed=0)
    while server.actions.names == tuple(NAMES):
        decisions = fleet.act_many(np.zeros((10, 1)))
        fleet.update_many(decisions, np.zeros(10))
    bundle = open_bundle(server.bundle())
    assert bundle.actions.names == ("letter", "loan", "costly", "control")
    found = bundle.behaviour.probabilities(np.array([[0.1]]))[0]
    assert found[1] == 0.0
    assert found[2] <= 0.05


def test_the_other_process_plans_by_names(tmp_path: Path) -> None:
    policy = capri.Capri(
        **(SETTINGS | {"simulation_seed": None, "store": f"sqlite:///{tmp_path}/store.db"}),
        limits=LIMITS,
    )
    assert policy._engine is not None
    planner = policy._engine.loop.planner
    planner.apart = True
    policy.replace_actions(["loan", "letter", "control", "costly"])
    for _ in range(3):
        played(policy, 20)
        policy.close_epoch(early=True)
    assert planner._process is not None
    assert policy.actions.names == ("loan", "letter", "control", "costly")
    assert "loan" not in played(policy)
    assert law(policy)["costly"] <= 0.05
    policy.close()
