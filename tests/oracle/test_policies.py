"""The oracle test: with noise that ignores its input, what is public knows nothing of anybody.

Two worlds with entirely different private data are played under the same fixed draws; everything
that others could see is compared byte for byte. A difference is a leak around the gate: with the
noise out of the way there is no other explanation.
"""

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from capri.learners import drift
from oracle.blind import blind
from oracle.policies import POLICIES
from oracle.transcript import Transcript, assert_same, played
from oracle.worlds import World, quiet_world, wild_world, worlds


def public(
    world: World, name: str, folder: Path, *, restart_after: int | None = None
) -> Transcript:
    """What a world shows when this policy serves it under blind noise."""
    with pytest.MonkeyPatch.context() as patch:
        blind(patch)
        return played(world, POLICIES[name], folder, restart_after=restart_after)


@pytest.mark.parametrize("name", POLICIES)
def test_public_is_the_same_whatever_users_are_and_do(name: str, tmp_path: Path) -> None:
    """Every preset, law, width, model and limit; contexts and rewards that are no numbers, come
    late, twice or never, and users beyond their limit."""
    seed = list(POLICIES).index(name)
    quiet = public(quiet_world(), name, tmp_path)
    assert_same(quiet, public(wild_world(seed), name, tmp_path))


@pytest.mark.parametrize("name", ["changes, late", "changes, arms", "pure, changes, late"])
def test_a_change_tells_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every release tells of a change that may: epochs are given up, dropped and cut short
    as releases say, and as nobody's data do."""
    monkeypatch.setattr(drift, "ALARM", -inf)
    quiet, wild = (public(world, name, tmp_path) for world in (quiet_world(), wild_world(7)))
    said, heard = ([each for kind, each in one if kind == "warnings"] for one in (quiet, wild))
    assert "drift: " in str(said)
    assert said == heard
    assert_same(
        *([(kind, each) for kind, each in one if kind != "warnings"] for one in (quiet, wild))
    )


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "paper, local, users",
        "practical",
        "late, sum",
        "late, paper, local",
        "limits",
        "crowd, pairs",
        "pure, auto, late and missing",
    ],
)
@pytest.mark.parametrize("batch", [0, 2, 3, 6], ids=str)
def test_restart_in_the_middle_tells_nothing(name: str, batch: int, tmp_path: Path) -> None:
    """Saved and loaded within an epoch, at its end and at its beginning."""
    first, second = (
        public(world, name, tmp_path, restart_after=batch)
        for world in (wild_world(batch), wild_world(batch + 100))
    )
    assert_same(first, second)


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=worlds, second=worlds)
def test_any_two_worlds_look_alike(first: World, second: World, tmp_path: Path) -> None:
    """Worlds made by Hypothesis, so that a failure comes with the smallest pair that differs."""
    name = "paper, users"
    assert_same(public(first, name, tmp_path), public(second, name, tmp_path))


@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=worlds, second=worlds)
def test_any_two_worlds_of_sets_look_alike(first: World, second: World, tmp_path: Path) -> None:
    """Users come with sets of available actions: what is in them is theirs."""
    assert_same(public(first, "limits", tmp_path), public(second, "limits", tmp_path))


@pytest.mark.parametrize("name", ["crowd, pairs", "crowd, pairs, pure, late"])
def test_premise_blind_crowds_tell_of_dependence(name: str, tmp_path: Path) -> None:
    """Else the scores of the last step would never be compared."""
    steps = [
        json.loads(said)["who comes"]["step"]
        for kind, said in public(wild_world(1), name, tmp_path)
        if kind == "explained"
    ]
    assert {"dependence", "over"} <= {*steps}


def test_premise_worlds_differ_and_noise_counts(tmp_path: Path) -> None:
    """Without the blind noise the same two worlds are told apart by what they release."""
    with pytest.MonkeyPatch.context() as patch:
        blind(patch)
        patch.setattr("capri.privacy.gate.noised", lambda total, *_: total)
        shown = [
            dict(played(world, POLICIES["paper"], tmp_path))["estimate"]
            for world in (quiet_world(), wild_world(0))
        ]
    assert shown[0] != shown[1]
