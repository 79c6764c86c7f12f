"""What is refused was not done, what is in doubt is settled by its key, and what waits is bounded.

The application is a real one and so are the stores: a file that another process holds, a server
whose processes are stopped. Nothing here waits for a time that a busy machine could miss.
"""

import asyncio
import sqlite3
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capri
from capri.service import batch
from capri.service.auth import ServiceLimits
from capri.service.batch import MicroBatcher
from capri.store.postgres import PostgresDatabase
from inside import Inside, Reply, held, inside, policy_at, run
from postgres_server import PostgresServer
from service_process import SOMEBODY
from waiting import PATIENCE

PATIENT = ServiceLimits(answer_seconds=1e9)


@contextmanager
def impatient(shop: Inside) -> Iterator[None]:
    """Whatever waits is soon refused; before and afterwards it may take as long as it takes."""
    batchers = shop.handlers.batchers
    before = batchers[0].limits
    for each in batchers:
        each.limits = replace(before, answer_seconds=0.2)
    try:
        yield
    finally:
        for each in batchers:
            each.limits = before


@pytest.fixture(autouse=True)
def any_time_for_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not a store that does not serve."""
    monkeypatch.setattr("capri.service.handlers._READY", PATIENCE)


def rows(folder: Path, table: str) -> int:
    connection = sqlite3.connect(folder / "policy.db")
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    finally:
        connection.close()
    return int(count)


async def begun(batcher: MicroBatcher) -> None:
    """Wait until the work of all that waits has begun."""
    while not batcher._asked or any(each.state != batch._BEGUN for each in batcher._asked):
        await asyncio.sleep(0.001)


def visit(key: str) -> dict[str, Any]:
    return {"context": SOMEBODY, "key": key}


def test_what_waits_for_a_file_and_is_refused_is_never_done(folder: Path) -> None:
    async def test() -> None:
        async with inside(policy_at(folder), PATIENT) as shop:
            first = (await shop.ask("/v1/decisions", visit("first"))).said
            with held(folder), impatient(shop):
                asked = [shop.ask("/v1/decisions", visit(f"one {n}")) for n in range(40)]
                asked += [shop.ask("/v1/decisions", {"context": SOMEBODY}) for _ in range(40)]
                many = [visit(f"many {n}") for n in range(60)]
                asked.append(shop.ask("/v1/decisions:batch", many))
                asked.append(shop.ask("/v1/decisions:batch", [{"context": SOMEBODY}] * 60))
                asked.append(shop.ask("/v1/rewards", {"id": first["id"], "reward": 1}))
                refused = await asyncio.gather(*asked)
            assert {reply.status for reply in refused} == {503}
            assert all((b"retry-after", b"1") in reply.headers for reply in refused)
            assert "not done" in refused[0].said["error"]["problem"]
            # Every micro-batcher has come back to what it was at when it answers again.
            made = [(await shop.ask("/v1/decisions", visit("last"))).status]
            made.append((await shop.ask("/v1/decisions", {"context": SOMEBODY})).status)
            made.append(
                (await shop.ask("/v1/decisions:batch", [{"context": SOMEBODY}] * 40)).status
            )
            assert made == [200] * 3
            assert rows(folder, "keys") == 2
            assert rows(folder, "decisions") == 1 + 1 + 1 + 40
            told = (await shop.ask("/v1/rewards", {"id": first["id"], "reward": 1})).said
            assert told == {"status": "accepted"}  # the refused one had not counted
            again = await asyncio.gather(
                *(shop.ask("/v1/decisions", visit(f"one {n}")) for n in range(40))
            )
            assert len({reply.said["id"] for reply in again}) == 40
            assert rows(folder, "keys") == 42

    run(test)


def test_a_file_that_is_held_is_told_to_operators(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on, so readiness tries a write, one at a time."""

    async def test() -> None:
        async with inside(policy_at(folder), PATIENT) as shop:
            assert (await shop.ask("/readyz")).status == 200
            monkeypatch.setattr("capri.service.handlers._SOUND", 0.0)
            with held(folder), impatient(shop):
                for number in range(3):
                    told = await shop.ask("/v1/decisions", visit(f"{number}"))
                    assert told.status == 503
                    with monkeypatch.context() as brief:
                        brief.setattr("capri.service.handlers._READY", 0.1)
                        assert (await shop.ask("/readyz")).status == 503
            assert 1 <= caplog.text.count("the store takes too long") <= 3
            while (await shop.ask("/readyz")).status != 200:  # until the try of before is over
                await asyncio.sleep(0.01)

    run(test)


def test_a_list_with_and_without_keys_waits_once(folder: Path) -> None:
    """Both micro-batchers have their part of it at the same time."""

    async def test() -> None:
        async with inside(policy_at(folder), PATIENT) as shop:
            with held(folder):
                mixed = [{"context": SOMEBODY}, visit("a")]
                asked = asyncio.create_task(shop.ask("/v1/decisions:batch", mixed))
                for _ in range(100):
                    await asyncio.sleep(0)
                waiting = shop.handlers.plain.waiting, shop.handlers.keyed.waiting
            assert waiting == (1, 1)
            assert [each["status"] for each in (await asked).said] == ["served"] * 2

    run(test)


def test_who_hangs_up_before_the_work_begins_is_skipped(folder: Path) -> None:
    async def test() -> None:
        async with inside(policy_at(folder), PATIENT) as shop:
            with held(folder):
                gone = asyncio.Event()
                asked = asyncio.create_task(shop.ask("/v1/decisions", visit("gone"), hangs_up=gone))
                stays = asyncio.create_task(shop.ask("/v1/decisions", visit("stays")))
                await asyncio.sleep(0)
                gone.set()
                assert (await asked).status == 503  # which nobody reads
                assert not stays.done()
            assert (await stays).status == 200
            assert rows(folder, "keys") == 1

    run(test)


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own: that of others must not be stopped."""
    with PostgresServer() as own:
        yield own


@pytest.fixture
def url(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(PostgresDatabase.__init__.__kwdefaults__, "patience", 2.0)
    with server.database() as address:
        yield address


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.freeze(frozen=False)


async def numbers(shop: Inside, policy: capri.Capri, url: str, keys: list[str]) -> list[str]:
    """Those keys that the store knows, each once."""
    import psycopg

    assert policy._engine is not None
    shelf = policy._engine.repository
    digests = dict(zip(shelf.rows.key_digests(keys), keys, strict=True))
    with psycopg.connect(url) as connection:
        found = [digests.get(digest) for (digest,) in connection.execute("SELECT digest FROM keys")]
        counted = connection.execute("SELECT count(*), count(DISTINCT number) FROM keys").fetchone()
    assert counted is not None
    assert counted[0] == counted[1]
    return sorted(key for key in found if key is not None)


async def settled(shop: Inside, ask: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
    """Ask again until the store is back, as a client does; 503 and 504 both may be met."""
    while (reply := await ask()).status != 200:
        assert reply.status in (503, 504), reply
        await asyncio.sleep(0.01)
    return reply


def test_a_server_that_hangs_refuses_what_has_not_begun(
    folder: Path, server: PostgresServer, url: str
) -> None:
    async def test() -> None:
        policy = policy_at(folder, url)
        async with inside(policy, PATIENT) as shop:
            made = await shop.ask("/v1/decisions:batch", [{"context": SOMEBODY}] * 9)
            first, *others = ({"id": each["id"], "reward": 1} for each in made.said)
            with frozen(server), impatient(shop):
                doubtful = asyncio.create_task(shop.ask("/v1/rewards", first))
                await begun(shop.handlers.rewards)
                waiting = [shop.ask("/v1/rewards", other) for other in others]
                waiting += [shop.ask("/v1/decisions", visit(f"one {n}")) for n in range(30)]
                waiting.append(shop.ask("/v1/decisions:batch", [visit("a"), visit("b")]))
                refused = await asyncio.gather(*waiting)
                assert {reply.status for reply in refused} == {503}
                told = await doubtful
                assert (told.status, "same key" in told.body.decode()) == (504, True)
            done = await settled(shop, lambda: shop.ask("/v1/rewards", first))
            assert done.said["status"] in ("accepted", "duplicate")
            keys = ["a", "b", *(f"one {n}" for n in range(30))]
            assert await numbers(shop, policy, url, keys) == []
            for other in others:  # none of them had counted
                assert (await shop.ask("/v1/rewards", other)).said == {"status": "accepted"}
            assert (await shop.ask("/v1/rewards", first)).said == {"status": "duplicate"}

    run(test)


def test_a_commit_in_doubt_is_told_and_settled_by_its_key(
    folder: Path, server: PostgresServer, url: str
) -> None:
    """The server stops with the COMMIT on its way: it has happened when it goes on."""

    async def test() -> None:
        policy = policy_at(folder, url)
        async with inside(policy, PATIENT) as shop:
            assert (await shop.ask("/v1/decisions", visit("first"))).status == 200
            assert policy._engine is not None
            database = policy._engine.repository.database
            assert isinstance(database, PostgresDatabase)
            line = database._writer
            assert line is not None
            honest = line.execute

            def stopped(sql: Any, *values: Any) -> Any:
                if str(sql).endswith("COMMIT"):
                    server.freeze()
                return honest(sql, *values)

            line.execute = stopped  # type: ignore[method-assign, assignment]
            try:
                told = await shop.ask("/v1/decisions", visit("doubt"))
            finally:
                server.freeze(frozen=False)
            assert told.status == 504
            assert (b"retry-after", b"1") in told.headers
            done = await settled(shop, lambda: shop.ask("/v1/decisions", visit("doubt")))
            again = await shop.ask("/v1/decisions", {"context": None, "key": "doubt"})
            assert again.said["id"] == done.said["id"]
            assert await numbers(shop, policy, url, ["first", "doubt"]) == ["doubt", "first"]

    run(test)


def test_a_lock_of_another_session_ends_in_a_refusal(folder: Path, url: str) -> None:
    """The server itself ends the wait, so that nothing is in doubt."""
    import psycopg

    from capri.store.postgres_connection import LOCKS

    async def test() -> None:
        policy = policy_at(folder, url)
        async with inside(policy, PATIENT) as shop:
            assert (await shop.ask("/v1/decisions", visit("first"))).status == 200
            with psycopg.connect(url) as other:
                other.execute(f"SELECT pg_advisory_xact_lock({LOCKS}, 1)")
                told = await shop.ask("/v1/decisions", visit("refused"))
                assert told.status == 503, told
            assert (await shop.ask("/v1/decisions", visit("last"))).status == 200
            keys = ["first", "refused", "last"]
            assert await numbers(shop, policy, url, keys) == ["first", "last"]

    run(test)


def test_what_waits_is_bounded_whatever_is_in_it(folder: Path) -> None:
    """A request takes as many bytes as any other: refusals depend on how many came alone."""
    size = batch.REQUEST_BYTES + 4096
    huge = {"context": {"age": 41, "plan": ["x" * 300_000]}, "actions": ["y" * 300_000]}

    async def test() -> None:
        limits = ServiceLimits(answer_seconds=1e9, waiting_bytes=10 * size, rate_bytes=1e12)
        async with inside(policy_at(folder), limits) as shop:
            assert shop.handlers.item_bytes <= 4096
            small, room = {"context": SOMEBODY}, []
            for body in (small, huge):
                with held(folder), impatient(shop):
                    first = asyncio.create_task(shop.ask("/v1/decisions", body | {"key": "0"}))
                    await asyncio.sleep(0)
                    tracemalloc.start()
                    asked = [
                        asyncio.create_task(shop.ask("/v1/decisions", body | {"key": f"k{n}"}))
                        for n in range(40)
                    ]
                    await asyncio.sleep(0)
                    room.append((shop.handlers.keyed.waiting, shop.handlers.keyed.waiting_bytes))
                    kept, _ = tracemalloc.get_traced_memory()
                    tracemalloc.stop()
                    waits = [task for task in asked if not task.done()]
                    assert kept < 40 * size  # tasks and tickets, and of no body a copy
                    replies = await asyncio.gather(first, *asked)
                    assert {reply.status for reply in replies} == {503}
                    assert len(waits) < 40
                assert (await shop.ask("/v1/decisions", small)).status == 200
                assert (await shop.ask("/v1/decisions", small | {"key": "barrier"})).status == 200
            assert room[0] == room[1]
            assert 8 <= room[0][0] <= 12
            assert shop.handlers.keyed.waiting_bytes == shop.handlers.keyed.waiting == 0
            assert rows(folder, "keys") == 1

    run(test)


def test_rewards_of_one_decision_pass_nothing_that_others_share(folder: Path) -> None:
    async def test() -> None:
        limits = ServiceLimits(answer_seconds=1e9, rewards_each=3, rate=40)
        async with inside(policy_at(folder), limits) as shop:
            made = (await shop.ask("/v1/decisions", {"context": SOMEBODY})).said
            other = (await shop.ask("/v1/decisions", {"context": SOMEBODY})).said
            reward = {"id": made["id"], "reward": 1}
            with held(folder):
                first = [asyncio.create_task(shop.ask("/v1/rewards", reward)) for _ in range(3)]
                await asyncio.sleep(0)
                # Answered though the store is held, and counted by no rate.
                for _ in range(60):
                    assert (await shop.ask("/v1/rewards", reward)).said == {"status": "uncounted"}
                listed = (await shop.ask("/v1/rewards", [reward] * 500)).said
                assert listed == [{"status": "uncounted"}] * 500
                assert shop.handlers.rewards.waiting == 3
                assert shop.handlers.reward_lists.waiting == 0
            told = [(await each).said["status"] for each in first]
            assert told == ["accepted", "duplicate", "duplicate"]
            mixed = [reward, {"id": other["id"], "reward": 0}, reward]
            statuses = [each["status"] for each in (await shop.ask("/v1/rewards", mixed)).said]
            assert statuses == ["uncounted", "accepted", "uncounted"]

    run(test)


def test_a_refused_reward_may_be_sent_again(folder: Path) -> None:
    async def test() -> None:
        limits = ServiceLimits(answer_seconds=1e9, rewards_each=1)
        async with inside(policy_at(folder, rule='rule = "sum"'), limits) as shop:
            made = (await shop.ask("/v1/decisions", {"context": SOMEBODY})).said
            reward = {"id": made["id"], "reward": 1, "key": "a"}
            with held(folder), impatient(shop):
                assert (await shop.ask("/v1/rewards", reward)).status == 503
            assert (await shop.ask("/v1/rewards", reward)).said == {"status": "accepted"}
            beyond = await shop.ask("/v1/rewards", reward | {"key": "b"})
            assert beyond.said == {"status": "uncounted"}

    run(test)


def test_a_list_of_which_a_part_was_done_is_not_refused(folder: Path) -> None:
    """Visits with keys go their own way: where that is full, the others were decided."""

    async def test() -> None:
        async with inside(policy_at(folder), ServiceLimits(waiting=3)) as shop:
            shop.handlers.keyed.waiting = 3  # as many as may
            mixed = [{"context": SOMEBODY}, visit("refused"), {"context": SOMEBODY}]
            reply = await shop.ask("/v1/decisions:batch", mixed)
            assert reply.status == 200
            assert [each["status"] for each in reply.said] == ["served", "refused", "served"]
            assert (await shop.ask("/v1/decisions:batch", mixed[1:2])).status == 503
            assert (rows(folder, "decisions"), rows(folder, "keys")) == (2, 0)

    run(test)
