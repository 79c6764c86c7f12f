"""Steps of two processes that meet: each is taken once, and from the state it was meant for."""

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from capri import Capri
from capri.joint.loop import EpochLoop
from capri.joint.pace import Worker
from capri.store.repository import OvertakenError
from capri.store.view import LEARNT
from stored_policies import context, learning, policy

pytestmark = pytest.mark.usefixtures("unforced")


def loop_of(run: Capri) -> EpochLoop:
    assert run._engine is not None
    return run._engine.loop


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Capri, Capri]:
    """Two objects on one store, with an epoch that has taken its decisions.

    Their planners do not start: every step is taken by the test.
    """
    monkeypatch.setattr(Worker, "start", lambda planner: None)
    url = f"sqlite:///{tmp_path}/store.db"
    runs = policy(url, first_epoch=10, reward_wait=4), policy(url, first_epoch=10, reward_wait=4)
    world = np.random.default_rng(0)
    for number in range(10):
        runs[number % 2].act(context(world))
    return runs


def test_an_epoch_that_was_released_is_never_closed_again(pair: tuple[Capri, Capri]) -> None:
    """The second looks up an epoch, the first releases it, the second goes on with its look-up."""
    one, two = pair
    slow = loop_of(two)
    slow.state.refresh()
    newest = slow.state.ground.epochs[0]
    one.close_epoch(early=True)
    released = learning(one)
    events = one.ledger.events
    slow.state.survey()  # as every step does between its transactions
    for step in (slow.end, slow.releases.close):
        with pytest.raises(OvertakenError):
            step(newest)
    slow.take_in(newest.number)  # finds nothing left to do
    assert slow.state.repository.database.read(
        lambda transaction: transaction.rows(
            "SELECT state FROM epochs WHERE number = ?", (newest.number,)
        )
    ) == [(LEARNT,)]
    assert learning(two) == released
    assert two.ledger.events == events
    for run in pair:
        run.close()


def test_a_plan_needs_the_law_of_its_ground(pair: tuple[Capri, Capri]) -> None:
    """What another process has learnt is read before anything is computed from what was known."""
    one, two = pair
    slow = loop_of(two)
    slow.state.refresh()
    one.close_epoch(early=True)
    slow.state.survey()
    with pytest.raises(OvertakenError):
        slow.open_next(slow.state.issued)
    assert len(two.epochs) == 1
    two.act([0.2])
    assert learning(two) == learning(one)
    for run in pair:
        run.close()


def test_many_who_step_at_once_release_each_epoch_once(tmp_path: Path) -> None:
    """Four objects of one store, whose planners and callers all find the same things due."""
    url = f"sqlite:///{tmp_path}/store.db"
    runs = [policy(url, first_epoch=8, reward_wait=4) for _ in range(4)]

    def work(run: Capri, seed: int) -> None:
        world = np.random.default_rng(seed)
        for _ in range(30):
            run.update(run.act(context(world)), 0.5)
            run._engine.pace.step()  # type: ignore[union-attr]

    threads = [Thread(target=work, args=each) for each in zip(runs, range(4), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs[0].close_epoch(early=True)
    assert sum(record.length for record in runs[1].epochs) == 120
    epochs = [record.epoch for record in runs[2].epochs]
    assert epochs == sorted(set(epochs))
    assert [event.epoch for event in runs[3].ledger.events] == epochs
    for run in runs:
        run.close()


def test_closing_never_takes_back_a_slot_that_was_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closes an epoch looks at the counter, and others decide before the rest is skipped."""
    monkeypatch.setattr(Worker, "start", lambda planner: None)
    url = f"sqlite:///{tmp_path}/store.db"
    one, two = (policy(url, first_epoch=16, reward_wait=4) for _ in range(2))
    world = np.random.default_rng(2)
    numbers = [one.act(context(world)).number for _ in range(15)]
    one._engine.pace.step()  # type: ignore[union-attr]
    closing = loop_of(one).state
    planned = closing.ground.newest
    assert planned is not None
    assert planned.number == 2
    assert planned.first > closing.issued
    write = closing.write

    def late(*arguments: Any, **options: Any) -> Any:
        if len(numbers) < 20:
            numbers.extend(two.act(context(world)).number for _ in range(5))
        return write(*arguments, **options)

    monkeypatch.setattr(closing, "write", late)
    one.close_epoch(early=True)
    numbers += [two.act(context(world)).number for _ in range(5)]
    assert len(set(numbers)) == 25
    assert [record.length for record in one.epochs] == [16]
    for run in (one, two):
        run.close()
