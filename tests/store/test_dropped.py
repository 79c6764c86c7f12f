"""A policy that is dropped without close() goes quietly, whichever thread holds it last."""

import threading
from pathlib import Path

import pytest

from builders import CONTEXTS, small_policy
from waiting import PATIENCE, eventually


def test_the_last_one_to_hold_a_policy_may_be_its_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot wait for itself to end: another one closes."""
    complaints: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", complaints.append)
    policy = small_policy(store=f"sqlite:///{tmp_path}/store.db", simulation_seed=None)
    policy.act(CONTEXTS[0])
    backing = policy._engine
    assert backing is not None
    holder, dropped, seen = [policy], threading.Event(), []
    honest = backing.pace.planner._step

    def step() -> None:
        if holder and dropped.wait(PATIENCE):
            seen.append(threading.current_thread())
            holder.clear()  # the last reference: its end is told in this thread
        honest()

    backing.pace.planner._step = step
    backing.pace.planner.wake()
    del policy
    dropped.set()
    eventually(lambda: backing.closed and backing.repository.database._closed)  # type: ignore[attr-defined]
    assert seen == [backing.pace.planner._thread]
    assert complaints == []
