"""Workers are killed at random points, and nothing that was acknowledged is lost or counted twice.

A few kills on every run of the tests; `make faults` does a thousand on each store.
"""

import re

import pytest

from fault_points import TRANSACTIONS, name_of
from run_faults import one_day, one_run

KILLS = 5  # on each of two runs
POINTS = 6  # kills of a short day


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
    day, verdict = one_day("sqlite", private=False, kills=POINTS, seed=6, first_epoch=30)
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2
    assert set(day.killed) - {"anywhere"}
    assert {"deliver", "again", "close", "clock"} <= set(day.events)


@pytest.mark.usefixtures("postgres_server")
def test_a_bad_day_leaves_one_true_history_on_a_server() -> None:
    day, verdict = one_day("postgres", private=True, kills=POINTS, seed=7, first_epoch=30)
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2


def test_premise_workers_that_forget_what_they_answered_are_found() -> None:
    with pytest.raises(AssertionError, match="another answer"):
        one_day("sqlite", private=False, kills=2, seed=8, plant="forgetful", first_epoch=30)


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
