"""A private run on a store: one policy for many processes, and nothing lost between them."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest

from capri import (
    Budget,
    BudgetError,
    Capri,
    ConfigurationError,
    ContextPool,
    RewardStatus,
    StorageError,
    kernels,
)
from capri.store import rollback
from capri.store.transaction import open_database
from stored_policies import SETTINGS, building, context, decided, learning, policy
from waiting import eventually

pytestmark = pytest.mark.usefixtures("unforced")
KEY = bytes(range(32))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where the store is, and the key to it."""
    if request.param == "postgres":
        return {"store": request.getfixturevalue("postgres_url"), "store_key": None}
    return {"store": f"sqlite:///{tmp_path}/store.db", "store_key": KEY}


@pytest.fixture
def build(place: dict[str, Any]) -> Iterator[Callable[..., Capri]]:
    """Builds policies on the store and closes them."""
    yield from building(SETTINGS | place)


def row(place: dict[str, Any], sql: str) -> Any:
    database = open_database(place["store"])
    try:
        return database.read(lambda transaction: transaction.rows(sql))
    finally:
        database.close()


def test_a_decision_and_its_reward_outlive_the_process(
    place: dict[str, Any], build: Callable[..., Capri]
) -> None:
    first = build()
    decision = first.act([0.2], key="order-7713")
    first.close()
    second = Capri.open(url=place["store"], store_key=place["store_key"])
    assert decided(second.act([0.8], key="order-7713")) == decided(decision)
    assert second.update(decision.id, 0.5) is RewardStatus.ACCEPTED
    assert second.update(decision, 0.5) is RewardStatus.DUPLICATE
    assert second.update("AAAAAAAAAAAAAAAAAAAA", 0.5) is RewardStatus.UNKNOWN
    assert second.update(second.act([0.2]), float("nan")) is RewardStatus.INVALID
    assert second.update(second.act([np.nan]), 0.1) is RewardStatus.UNCOUNTED
    second.close()
    assert row(place, "SELECT count(*) FROM decisions") == [(3,)]
    with pytest.raises(StorageError, match="was closed"):
        second.act([0.1])


def test_two_objects_are_one_policy(build: Callable[..., Capri]) -> None:
    """Every decision has a number of its own, and both see every release."""
    pair = [build(reward_wait=5), build(reward_wait=5)]
    world = np.random.default_rng(0)
    ids = []
    for number in range(160):
        decision = pair[number % 2].act(context(world))
        ids.append(decision.id)
        # By the other one: a decision belongs to the store, not to who made it.
        assert pair[1 - number % 2].update(decision.id, 0.5) is RewardStatus.ACCEPTED
    assert len(set(ids)) == 160
    eventually(lambda: len(pair[0].epochs) >= 2)
    pair[0].close_epoch(early=True)
    assert learning(pair[0]) == learning(pair[1])
    assert sum(record.length for record in pair[1].epochs) == 160
    events = [event.epoch for event in pair[1].ledger.events]
    assert events == [record.epoch for record in pair[1].epochs]
    assert pair[0].ledger.events == pair[1].ledger.events
    assert not pair[0].pending
    assert not pair[1].pending


@pytest.mark.slow
def test_threads_of_two_objects_lose_nothing(
    place: dict[str, Any], build: Callable[..., Capri]
) -> None:
    pair = [build(reward_wait=1000), build(reward_wait=1000)]

    def work(number: int) -> list[str]:
        own, world = pair[number % 2], np.random.default_rng(number)
        ids = []
        for visit in range(25):
            decision = own.act(context(world), key=f"{number // 2}-{visit}")
            ids.append(decision.id)
            own.update(decision, 0.25)
        return ids

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(work, range(8)))
    # Two threads share each key, one of each object: they got the same decisions.
    for number in range(0, 8, 2):
        assert ids[number] == ids[number + 1]
    assert len({each for listed in ids for each in listed}) == 100
    assert row(place, "SELECT count(*) FROM rewards") == [(100,)]
    pair[0].close_epoch(early=True)
    assert sum(record.length for record in pair[1].epochs) == 100


def test_users_are_counted_once_for_all(place: dict[str, Any], build: Callable[..., Capri]) -> None:
    """A user who is at two objects at once, in several epochs, stays within the limit."""
    limits = {"contributions_per_user": 3, "contributions_per_epoch": 2}
    pair = [build(**limits), build(**limits)]

    def work(number: int) -> list[int]:
        world = np.random.default_rng(number)
        return [
            int(pair[number % 2].act(context(world), user=visit % 9).status) for visit in range(40)
        ]

    with ThreadPoolExecutor(4) as threads:
        statuses = [status for listed in threads.map(work, range(4)) for status in listed]
    assert statuses.count(0) <= 27
    totals = row(place, "SELECT total FROM users")
    assert sum(total for (total,) in totals) == statuses.count(0)
    assert max(total for (total,) in totals) <= 3
    assert max(visits for (visits,) in row(place, "SELECT visits FROM visits")) <= 2
    third = build(**limits)
    assert third.ledger.spent_by(4).epsilon <= 4.0 * (1 + 1e-9)
    third.close_epoch(early=True)
    assert third.act([0.1], user="somebody new").status == 0


def test_what_a_release_leaves(place: dict[str, Any], build: Callable[..., Capri]) -> None:
    """After the release: no context, no reward, no decision in the tables, files or log."""
    sampler = ContextPool(np.linspace(0, 1, 6)[:, None])
    run = build(contexts=sampler, reward_wait=3)
    planted = [0.123456789 + number / 1000 for number in range(30)]
    for value in planted:
        run.update(run.act([value]), -value)
    run.close_epoch(early=True)
    assert row(place, "SELECT count(*) FROM decisions") == [(0,)]
    assert row(place, "SELECT count(*) FROM rewards") == [(0,)]
    if place["store"].startswith("sqlite"):
        folder = Path(place["store"].removeprefix("sqlite:///")).parent
        content = b"".join(path.read_bytes() for path in folder.iterdir())
        for value in planted:
            for kept in (np.float64(value), np.float64(-value)):
                assert kept.tobytes() not in content
    assert run.epochs[0].length >= 20


def test_sealed_columns_show_nothing(tmp_path: Path) -> None:
    run = policy(f"sqlite:///{tmp_path}/store.db", store_key=KEY)
    planted = [0.123456789 + number / 1000 for number in range(10)]
    for number, value in enumerate(planted):
        run.update(run.act([value], key=f"k{number}"), -value)
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for value in planted:
        for kept in (np.float64(value), np.float64(-value)):
            assert kept.tobytes() not in content
    run.close()
    for wrong in (None, bytes(32)):
        with pytest.raises(StorageError, match="key"):
            policy(f"sqlite:///{tmp_path}/store.db", store_key=wrong)


def test_rewards_after_the_wait_are_late(build: Callable[..., Capri]) -> None:
    run = build(first_epoch=8, reward_wait=4)
    world = np.random.default_rng(0)
    decisions = [run.act(context(world)) for _ in range(8)]
    assert run.update(decisions[0], 0.5) is RewardStatus.ACCEPTED
    eventually(lambda: run.update(decisions[1], 0.5) is RewardStatus.LATE or not run.act([0.2]))
    assert run.update(decisions[2], 0.5) is RewardStatus.LATE


def test_a_wait_on_the_clock_ends_by_itself(build: Callable[..., Capri]) -> None:
    """Rewards are late from the deadline on, and the planner's timer releases: nobody decides."""
    now = [datetime(2030, 1, 1)]
    run = build(
        first_epoch=8,
        reward_wait=timedelta(hours=1),
        epoch_time=timedelta(hours=1),
        clock=lambda: now[0],
    )
    decisions = [run.act([0.2]) for _ in range(5)]
    now[0] += timedelta(minutes=59)
    assert run.update(decisions[0], 0.5) is RewardStatus.ACCEPTED
    now[0] += timedelta(minutes=2)
    eventually(lambda: run._engine is not None and run._engine.state.look().waiting != ())
    assert run.update(decisions[1], 0.5) is RewardStatus.ACCEPTED
    now[0] += timedelta(hours=2)
    assert run.update(decisions[2], 0.5) is RewardStatus.LATE

    def released_later() -> bool:
        now[0] += timedelta(seconds=0.1)
        return len(run.epochs) == 1

    eventually(released_later)
    assert run.epochs[0].length == 5


def test_keys_expire(build: Callable[..., Capri]) -> None:
    now = [datetime(2030, 1, 1)]
    run = build(key_retention=timedelta(days=2), clock=lambda: now[0])
    first = run.act([0.2], key="order")
    now[0] += timedelta(days=1)
    assert decided(run.act([0.8], key="order")) == decided(first)
    now[0] += timedelta(days=1)
    assert run.act([0.8], key="order").id != first.id


def test_keys_in_batches(build: Callable[..., Capri]) -> None:
    run = build()
    first = run.act_many([[0.0], [0.2], [0.4]], keys=["a", "b", "a"])
    assert first.id[0] == first.id[2] != first.id[1]
    again = run.act_many([[0.6], [0.8], [1.0]], keys=["c", "b", "a"])
    assert again.id[1:].tolist() == first.id[[1, 0]].tolist()
    assert again.propensity[1:].tolist() == first.propensity[[1, 0]].tolist()
    with pytest.raises(ConfigurationError, match="must be a text"):
        run.act([0.1], key=7)  # type: ignore[arg-type]
    memory = policy(None)
    assert decided(memory.act([0.2], key="x")) == decided(memory.act([0.9], key="x"))


def test_another_configuration_is_refused_by_name(
    place: dict[str, Any], build: Callable[..., Capri]
) -> None:
    build().act([0.2])
    for changes, names in (
        ({"budget": Budget(epsilon=2.0, delta=1e-5)}, "problem.budget"),
        ({"reward_wait": 3}, "problem.rewards.wait"),
        ({"horizon": 1000}, "horizon"),
        ({"growth": 2.0}, "options.growth"),
        ({"actions": np.linspace(0, 1, 4)[:, None]}, "actions"),
        ({"kernel": kernels.RBF(lengthscale=0.3)}, "problem.kernel"),
        ({"simulation_seed": 1}, "simulated"),
    ):
        with pytest.raises(StorageError, match=f"another configuration: {names} differ"):
            build(**changes)
    assert build().act([0.2]).number == 1


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    run = policy(f"sqlite:///{path}", first_epoch=6)
    run.act([0.2])
    run.close()
    copyfile(path, copy)
    run = policy(f"sqlite:///{path}", first_epoch=6)
    for _ in range(5):
        run.act([0.2])
    run.close_epoch(early=True)
    certificate = run.certificate()
    run.close()
    copyfile(copy, path)
    with pytest.raises(StorageError, match="older copy: it has generation"):
        policy(f"sqlite:///{path}", first_epoch=6)
    # Another process knows it by the file beside, or by a certificate.
    known = dict(rollback._SEEN)
    rollback._SEEN.clear()
    try:
        with pytest.raises(StorageError, match="older copy"):
            policy(f"sqlite:///{path}", first_epoch=6)
        (tmp_path / "store.db-seen").unlink()
        with pytest.raises(StorageError, match="older copy"):
            policy(f"sqlite:///{path}", first_epoch=6, after=certificate)
        # The copy that went another way, and further: a close does not wait for the next plan, so
        # after one close alone its generation would depend on how fast that was drawn.
        run = policy(f"sqlite:///{path}", first_epoch=6)
        for _ in range(2):
            for _ in range(20):
                run.act([0.2])
            run.close_epoch(early=True)
        run.close()
        with pytest.raises(StorageError, match="went another way"):
            policy(f"sqlite:///{path}", first_epoch=6, after=certificate)
    finally:
        rollback._SEEN.update(known)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    with pytest.raises(StorageError, match="cannot be opened"):
        policy(f"sqlite:///{tmp_path}/missing/store.db")
    with pytest.raises(StorageError, match="this store is empty"):
        Capri.open(f"sqlite:///{tmp_path}/empty.db")
    run = policy(url)
    run.act([0.2])
    with pytest.raises(StorageError, match=r"lives in SqliteDatabase.*Capri\.open"):
        run.save(tmp_path / "saved.capri")
    run.close()
    with sqlite3.connect(path) as stranger:
        stranger.execute("UPDATE capri_schema SET version = 99")
    stranger.close()
    with pytest.raises(StorageError, match="schema version 99"):
        policy(url)
    content = bytearray(path.read_bytes())
    content[100:4000] = os.urandom(3900)
    path.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        policy(url)


def test_options_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="of use with a store only"):
        policy(None, store_key=KEY)
    with pytest.raises(ConfigurationError, match="32 random bytes"):
        policy(f"sqlite:///{tmp_path}/store.db", store_key=b"short")
    with pytest.raises(ConfigurationError, match="key_retention must be a positive"):
        policy(None, key_retention=timedelta(0))
    with pytest.raises(ConfigurationError, match="after must be a certificate"):
        policy(f"sqlite:///{tmp_path}/store.db", after="yesterday")


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    run = policy(f"sqlite:///{tmp_path}/store.db")
    run.act([0.2])
    run.close()  # no thread is left that a fork could cut off
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run.act([0.2])
            os.write(writing, b"served")
        except BudgetError:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"refused"
    os.close(reading)
    os.close(writing)


WORKER = """
import sys
import numpy as np
from stored_policies import policy
key = bytes.fromhex(sys.argv[3]) or None
run = policy(sys.argv[1], first_epoch=10, reward_wait=5, budget=None, store_key=key)
world = np.random.default_rng(int(sys.argv[2]))
while True:
    decision = run.act([float(world.choice(np.linspace(0, 1, 6)))])
    print(decision.id, flush=True)
    run.update(decision, 1.0)
"""


@pytest.mark.slow
def test_killed_processes_leave_what_they_answered(place: dict[str, Any]) -> None:
    """Two workers, killed at once in the middle of their work: every id they printed is there."""
    key = (place["store_key"] or b"").hex()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, place["store"], str(seed), key],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for seed in range(2)
    ]
    answered: list[str] = []
    for worker in workers:
        assert worker.stdout is not None
        answered += [worker.stdout.readline().decode().strip() for _ in range(20)]
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    for worker in workers:
        assert worker.stdout is not None
        lines = worker.stdout.read().decode().split("\n")
        answered += [line for line in lines[:-1] if line]  # the last one may be cut
        worker.wait()
        worker.stdout.close()
    run = policy(**(place | {"first_epoch": 10, "reward_wait": 5, "budget": None}))
    assert len(set(answered)) == len(answered)
    statuses = run.update_many(answered, np.full(len(answered), 0.5))
    assert set(statuses.tolist()) <= {0, 1, 2}, "each of them is known"
    run.close_epoch(early=True)
    # At most one decision of each worker was made and not answered.
    made = sum(record.length for record in run.epochs)
    assert len(answered) <= made <= len(answered) + 2
    assert run.estimate([[0.5]]).shape == (1, 5)
    run.close()


def test_everybody_is_told_of_a_release_once(build: Callable[..., Capri]) -> None:
    """Whoever made it: both objects tell their functions, and neither tells of old news."""
    one, two = build(first_epoch=6), build(first_epoch=6)
    told: dict[str, list[int]] = {"one": [], "two": [], "three": []}
    one.on_release(lambda record: told["one"].append(record.epoch))
    two.on_release(lambda record: told["two"].append(record.epoch))
    for _ in range(6):
        one.act([0.2])
    one.close_epoch(early=True)
    assert [record.epoch for record in two.epochs] == [1]
    three = build(first_epoch=6)
    three.on_release(lambda record: told["three"].append(record.epoch))
    for _ in range(9):
        two.act([0.2])
    two.close_epoch(early=True)
    released = [record.epoch for record in one.epochs]
    assert len(released) >= 2
    assert len(three.epochs) == len(released)
    assert told == {"one": released, "two": released, "three": released[1:]}
