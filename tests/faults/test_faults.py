"""Workers are killed at random points, and nothing that was acknowledged is lost or counted twice.

A few kills on every run of the tests; `make faults` does a thousand on each store.
"""

import re

import pytest

from fault_points import PLACES, TRANSACTIONS, name_of
from fault_simulation import EVERY
from fault_verdict import OUTCOMES
from run_faults import PARTS, conclude, one_day, one_run

KILLS = 5  # on each of two runs
CREATED = {f"create.{place}" for place in PLACES}
POINTS = 8  # kills of a short day, half of them while the store is made


def test_killed_workers_leave_one_true_history_in_a_file() -> None:
    outcome, verdict = one_run(
        "sqlite", private=True, kills=KILLS, seed=4, sealed=True, first_epoch=30
    )
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2


@pytest.mark.usefixtures("postgres_server")  # a missing server is told once, in one place
def test_killed_workers_and_servers_leave_one_true_history() -> None:
    outcome, verdict = one_run("postgres", private=False, kills=KILLS, seed=5, first_epoch=30)
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2


def test_a_bad_day_leaves_one_true_history_in_a_file() -> None:
    day, verdict = one_day(
        "sqlite", private=False, timed=False, kills=POINTS, seed=6, first_epoch=30
    )
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2
    assert {point for point in day.killed if point.startswith("create")} == CREATED
    assert day.events["mode changed"] + day.events["catalogue changed"] > 0


@pytest.mark.usefixtures("postgres_server")
def test_a_bad_day_leaves_one_true_history_on_a_server() -> None:
    day, verdict = one_day("postgres", private=True, kills=POINTS, seed=7, first_epoch=30)
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2


def test_a_bad_day_of_a_service_leaves_one_true_history() -> None:
    day, verdict = one_day(
        "sqlite", private=False, timed=False, kills=2, seed=9, workers=1, first_epoch=20, made=True
    )
    assert day.outcome.kills >= 2
    assert len(verdict.releases) >= 2


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        ("forgetful", "another answer"),
        ("change lost", "history of operations"),
        ("change twice", "history of operations"),
    ],
)
def test_premise_defects_are_found(plant: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that forget what they answered, or that change nothing or twice."""
    monkeypatch.setitem(EVERY, "change", 2)
    monkeypatch.setitem(EVERY, "arm", 12)
    with pytest.raises(AssertionError, match=found):
        one_day(
            *("sqlite",), private=False, timed=False, kills=5, seed=8, plant=plant,
            first_epoch=30, made=True,
        )  # fmt: skip


def test_a_long_run_asks_for_every_point_and_event() -> None:
    result = {"met": {}, "events": {}, "kills": 1000, "crashes": 0}
    with pytest.raises(AssertionError, match=r"never met.*decide\.inside.*disk full"):
        conclude("sqlite", [result], long=True)
    assert len(OUTCOMES) == 14
    assert sum(part.share for part in PARTS) == pytest.approx(1.0)


def test_premise_points_have_the_names_of_transactions_that_exist() -> None:
    """A function that is renamed would never be met again, and nobody would notice."""
    from capri.joint import changes, desk, keeper, rounds, slots
    from capri.store import postgres, shelf, sqlite

    modules = (desk, keeper, rounds, slots, shelf, sqlite, postgres, changes)
    known = {name for module in modules for name in vars(module)}
    for place in TRANSACTIONS:
        owner, _, method = place.partition(".")
        assert owner in known
        found = next(vars(module)[owner] for module in modules if owner in vars(module))
        assert name_of(getattr(found, method)) == TRANSACTIONS[place]


def test_the_package_has_no_points_to_die_at() -> None:
    from pathlib import Path

    import capri

    files = list(Path(capri.__file__).parent.rglob("*.py"))
    assert files
    # A worker whose supervisor is gone asks itself to stop, which is no death.
    stops = r"\(os\.getpid\(\), signal\.SIGTERM\)"
    dies = re.compile(rf"SIGKILL|\bfault|os\.kill\b(?!{stops})|os\.abort")
    assert not [path.name for path in files if dies.search(path.read_text())]
