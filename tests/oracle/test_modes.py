"""The oracle test through modes and catalogues: shadow, default and new actions tell nothing.

When the mode and the actions change is public. What another system chose and how probable it was
are private, like everything else that differs between the worlds.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import CONTEXTS
from capri.epoch.shadow import ShadowSum
from oracle.blind import blind
from oracle.policies import POLICIES
from oracle.test_store import unwatched
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

CHANGES = {1: ("shadow", None), 4: ("default", "b"), 5: ("shadow", None), 7: ("active", None)}
NAMES = ("practical", "late, sum", "practical, users", "pure, auto", "pure, practical, users")
CHOSEN = ("a", "b", "no such action", 1, -7, None)
CHANCES = (0.5, 1.0, 0.0, 2.0, float("nan"), 1e-300)


def played(world: World, settings: dict[str, Any], store: str | None, private: int) -> Transcript:
    """Everything public of a run through all modes; ``private`` draws what others chose."""
    transcript: Transcript = []
    rng = np.random.default_rng(private)
    settings = settings | {"actions": ["a", "b", "c"], "horizon": None, "kernel": "auto"}
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    settings["clock"] = lambda: now[0]
    with overheard(transcript):
        policy = capri.Capri(**settings, store=store)
        decisions: list[capri.Decision] = []
        for batch, size in enumerate(BATCHES):
            if batch in CHANGES:
                mode, action = CHANGES[batch]
                policy.set_mode(mode, action=action)
            if batch == 2:
                policy.replace_actions(["b", "d"])
            start = len(decisions)
            for place in range(start, start + size):
                user = {"user": world[place].user} if "contributions_per_user" in settings else {}
                decisions.append(
                    policy.act(
                        [world[place].context],
                        chosen=CHOSEN[rng.integers(len(CHOSEN))],
                        chosen_propensity=CHANCES[rng.integers(len(CHANCES))],
                        **user,
                    )
                )
            transcript.append(("ids", [(each.id, each.epoch) for each in decisions[start:]]))
            _answer(policy, world, decisions, batch)
            if policy._engine is not None:
                for _ in range(3):  # due, ready, and at a moment of the grid public
                    policy._engine.pace.step()
                    now[0] += timedelta(seconds=3)
            transcript += account(policy)[:2] + face(policy, CONTEXTS)
            transcript.append(("shadow", policy.shadow))
            transcript.append(("operations", policy.operations))
        policy.close_epoch(early=True)
        transcript.append(("certificate", certified(policy)))
        transcript.append(("shadow", policy.shadow))
        transcript += account(policy)[:2] + face(policy, CONTEXTS)
        assert policy.shadow
        policy.close()
    return transcript


def both(name: str, folder: Path, *, stored: bool, plant: Any = None) -> list[Transcript]:
    found = []
    for place, world in enumerate((quiet_world(), wild_world(3005))):
        with pytest.MonkeyPatch.context() as patch:
            blind(patch)
            unwatched(patch)
            if plant is not None:
                plant(patch)
            url = f"sqlite:///{folder}/{place}.db" if stored else None
            found.append(played(world, POLICIES[name], url, place))
    for transcript in found:  # the two files have different names
        transcript[:] = [each for each in transcript if each[0] != "store"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_modes_and_catalogues_tell_nothing(name: str, tmp_path: Path) -> None:
    assert_same(*both(name, tmp_path, stored=name != "late, sum"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_modes_and_catalogues_tell_nothing_in_the_other_place(name: str, tmp_path: Path) -> None:
    assert_same(*both(name, tmp_path, stored=name == "late, sum"))


def test_premise_a_count_of_visits_with_a_sound_propensity_is_told(tmp_path: Path) -> None:
    """Who counts only visits that are not void publishes how many those are."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        honest = ShadowSum.add

        def add(shadow: ShadowSum, weights: Any, rewards: Any) -> None:
            honest(shadow, weights, rewards)
            shadow.visits = max(1, shadow.visits - np.count_nonzero(weights == 0))

        patch.setattr(ShadowSum, "add", add)

    assert told_apart_by(*both(NAMES[0], tmp_path, stored=True, plant=plant))
