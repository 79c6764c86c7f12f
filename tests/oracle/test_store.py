"""The oracle test on a store: rows, leases, keys and steps, and what is public stays the same.

The planner's steps are taken by the test, so that no clock decides when something public happens;
everything else is a private policy as it serves people.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import capri
from builders import CONTEXTS
from capri.joint.pace import Worker
from capri.store import rollback
from oracle.blind import blind
from oracle.policies import POLICIES
from oracle.transcript import (
    BATCHES,
    Transcript,
    _answer,
    account,
    assert_same,
    certified,
    face,
    overheard,
    told_apart_by,
)
from oracle.worlds import World, quiet_world, wild_world

NAMES = (
    "practical",
    "late, thompson",
    "late, sum",
    "missing, as estimated, late, max",
    "practical, users",
    "paper",
    "pure, practical",
    "pure, missing, as estimated, late, max",
    "pure, many unrelated arms",
    "pure, practical, users",
)


def played(world: World, settings: dict[str, Any], url: str, *, restarts: bool) -> Transcript:
    """Everything public of a run on a store; with ``restarts`` another object after each batch."""
    transcript: Transcript = []
    with overheard(transcript):
        now = [datetime(2030, 1, 1, tzinfo=UTC)]
        policy = capri.Capri(**settings, store=url, clock=lambda: now[0])
        decisions: list[capri.Decision] = []
        for batch, size in enumerate(BATCHES):
            start = len(decisions)
            visits = world[start : start + size]
            users = (
                [visit.user for visit in visits] if "contributions_per_user" in settings else None
            )
            keys = [f"visit {place}" for place in range(start, start + size)]
            rows = [[visit.context] for visit in visits]
            decisions += policy.act_many(rows, users=users, keys=keys)
            again = policy.act_many(rows, users=users, keys=keys)
            assert list(again.id) == [each.id for each in decisions[start:]]
            transcript.append(("ids", [(each.id, each.epoch) for each in decisions[start:]]))
            _answer(policy, world, decisions, batch)
            assert policy._engine is not None
            for _ in range(3):  # due, ready, and at a moment of the grid public
                policy._engine.pace.step()
                now[0] += timedelta(seconds=3)
            transcript += account(policy)[:2] + face(policy, CONTEXTS)
            if restarts:
                policy.close()
                policy = capri.Capri(**settings, store=url, clock=lambda: now[0])
        policy.close_epoch(early=True)
        transcript.append(("certificate", certified(policy)))
        transcript += account(policy)[:2] + face(policy, CONTEXTS)
        policy.close()
    return transcript


def unwatched(patch: pytest.MonkeyPatch) -> None:
    """No planner, and no memory of the other world, whose store has the same name here.

    On a busy machine a plan would else move into another process, whose draws are its own.
    """
    patch.setattr("capri.joint.planner.LONG", float("inf"))
    patch.setattr(Worker, "start", lambda planner: None)
    patch.setattr(rollback, "_SEEN", {})


def public(world: World, name: str, url: str, *, restarts: bool = False) -> Transcript:
    """What a world shows under blind noise."""
    with pytest.MonkeyPatch.context() as patch:
        blind(patch)
        unwatched(patch)
        return played(world, POLICIES[name], url, restarts=restarts)


@pytest.mark.parametrize("name", NAMES)
def test_public_is_the_same_whatever_a_store_keeps(name: str, tmp_path: Path) -> None:
    seed = NAMES.index(name)
    worlds = quiet_world(), wild_world(seed)
    first, second = (
        public(world, name, f"sqlite:///{tmp_path}/{place}/store.db")
        for place, world in enumerate(worlds)
        for _ in [(tmp_path / str(place)).mkdir()]
    )
    assert_same(first, second)


def test_restarts_on_a_store_tell_nothing(tmp_path: Path) -> None:
    for place in range(2):
        (tmp_path / str(place)).mkdir()
    first, second = (
        public(world, "late, sum", f"sqlite:///{tmp_path}/{place}/store.db", restarts=True)
        for place, world in enumerate((wild_world(1), wild_world(2)))
    )
    assert_same(first, second)


def test_premise_a_release_with_the_real_sum_is_told(tmp_path: Path) -> None:
    """Without the blind noise the two worlds are told apart by what they release."""
    shown = []
    for place, world in enumerate((quiet_world(), wild_world(0))):
        (tmp_path / str(place)).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            blind(patch)
            unwatched(patch)
            patch.setattr("capri.privacy.gate.noised", lambda total, *_: total)
            url = f"sqlite:///{tmp_path}/{place}/store.db"
            shown.append(played(world, POLICIES["paper"], url, restarts=False))
    assert told_apart_by(*shown)
