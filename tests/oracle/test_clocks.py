"""The oracle test on a store whose clock moves and whose planner is on, and leaks it must see.

Two worlds differ in everything private: contexts, rewards, their kind and number, keys that come
again, users who ask to be forgotten. Others, the clock and who comes when are the same, and so must
be every slot, id, epoch, segment, generation, deadline, event and law.
"""

from pathlib import Path
from typing import Any

import pytest

from oracle.blind import blind
from oracle.clocked import CLOCKED, busy_world, paced, silent_world, walked, watched
from oracle.store_mutants import (
    MUTANTS,
    SHADOW,
    Plant,
    effects_are_not_rounded,
    leased,
    steady_leases,
)
from oracle.transcript import Transcript, assert_same, told_apart_by
from oracle.worlds import World, quiet_world

BUSY = busy_world(3)


def both(
    urls: list[str], name: str, plant: Plant | None = None, against: World = BUSY, **how: Any
) -> list[Transcript]:
    """What two worlds show under blind noise: a quiet one, and one that is busy in every way."""
    found = []
    for url, world in zip(urls, (quiet_world(), against), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            blind(patch)
            watched(patch)
            if plant is not None:
                plant(patch)
            found.append(walked(world, CLOCKED[name], url, **how))
    return found


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    """Two empty stores of the same name."""
    for place in range(2):
        (tmp_path / str(place)).mkdir()
    return [f"sqlite:///{tmp_path}/{place}/store.db" for place in range(2)]


@pytest.mark.parametrize("name", CLOCKED)
def test_public_is_the_same_whatever_comes_by_a_clock(name: str, urls: list[str]) -> None:
    assert_same(*both(urls, name))


def test_nobody_who_answers_tells_nothing(urls: list[str]) -> None:
    assert_same(*both(urls, "first, as estimated", against=silent_world()))


def test_shadow_by_a_clock_tells_nothing(urls: list[str]) -> None:
    assert_same(*both(urls, "last", **SHADOW))


def test_leased_slots_tell_nothing(urls: list[str]) -> None:
    assert_same(*both(urls, "last", steady_leases, prepare=leased))


def test_a_server_tells_nothing(request: pytest.FixtureRequest) -> None:
    """On Postgres, where slots are leased by its own rules."""
    server = request.getfixturevalue("postgres_server")
    with server.database() as one, server.database() as other:
        assert_same(*both([one, other], "sum, users", steady_leases))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("name", CLOCKED)
def test_more_worlds_tell_nothing(name: str, seed: int, urls: list[str]) -> None:
    how = SHADOW if seed % 2 else {}
    assert_same(*both(urls, name, against=busy_world(seed), **how))


@pytest.mark.parametrize("name", MUTANTS)
def test_leak_in_a_store_is_seen(name: str, urls: list[str]) -> None:
    plant, policy, witness, how = MUTANTS[name]
    assert witness in told_apart_by(*both(urls, policy, plant, **how))


# -- how long the planner takes -------------------------------------------------------------------


def settled_after(urls: list[str], visits: int, plant: Plant | None = None) -> list[Transcript]:
    """What is public where settling is done at once, and where it takes so many visits."""
    found = []
    for url, taken in zip(urls, (0, visits), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            blind(patch)
            watched(patch)
            if plant is not None:
                plant(patch)
            found.append(paced(patch, url, taken))
    return found


def of_slots(transcripts: list[Transcript]) -> list[Transcript]:
    """What users see in their own visits, and where epochs and segments begin."""
    return [
        [each for each in transcript if each[0] not in ("records", "ledger", "law", "progress")]
        for transcript in transcripts
    ]


def test_slots_are_rounded(urls: list[str]) -> None:
    """Settling that takes two visits more ends before the same public slot."""
    assert not told_apart_by(*of_slots(settled_after(urls, 2)))


def test_effect_slots_that_are_not_rounded_are_seen(urls: list[str]) -> None:
    assert told_apart_by(*of_slots(settled_after(urls, 2, effects_are_not_rounded)))


def test_how_long_settling_takes_moves_no_slot(urls: list[str]) -> None:
    """As long as it is done before the margin that was fixed before the data were touched."""
    assert not told_apart_by(*of_slots(settled_after(urls, 20)))


@pytest.mark.parametrize("visits", [2, 20])
def test_when_settling_was_done_is_shown_nowhere(urls: list[str], visits: int) -> None:
    """Records, ledger, law and progress of another process change at the effect slot."""
    assert not told_apart_by(*settled_after(urls, visits))
