"""Workers are killed at random points, and nothing that was acknowledged is lost or counted twice.

A few kills on every run of the tests; `make faults` does hundreds.
"""

import pytest

from run_faults import one_run

KILLS = 5  # on each of four runs


@pytest.mark.parametrize("private", [False, True], ids=["exact", "private"])
def test_killed_workers_leave_one_true_history_in_a_file(private: bool) -> None:
    outcome, verdict = one_run(
        "sqlite", private=private, kills=KILLS, seed=4, sealed=private, first_epoch=30
    )
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2


@pytest.mark.usefixtures("postgres_server")  # a missing server is told once, in one place
@pytest.mark.parametrize("private", [False, True], ids=["exact", "private"])
def test_killed_workers_and_servers_leave_one_true_history(private: bool) -> None:
    outcome, verdict = one_run("postgres", private=private, kills=KILLS, seed=5, first_epoch=30)
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2
