"""Under load and faults: who hangs, floods or sends strange bodies makes nobody else wait."""

import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from capri.service.auth import LARGE, ServiceLimits
from capri.service.messages import shallow
from inside import inside, policy_at, run
from postgres_server import PostgresServer
from service_process import SOMEBODY, Running, service
from waiting import PATIENCE, eventually

STRANGE = {f"column {number}": [number] for number in range(8_000)}


def test_told_to_end_it_ends_also_while_the_database_hangs(
    folder: Path, postgres_server: PostgresServer
) -> None:
    """Whoever waits is told what became of it, and nothing waits for the store any longer."""
    with (
        PostgresServer() as server,
        server.database() as url,
        service(folder, environment={"CAPRI_STORE": url}) as shop,
    ):
        shop.post("/v1/decisions", {"context": SOMEBODY})
        server.freeze()
        answers: list[int] = []

        def ask() -> None:
            answers.append(shop.ask("POST", "/v1/decisions", {"context": SOMEBODY})[0])

        asking = [threading.Thread(target=ask) for _ in range(5)]
        for each in asking:
            each.start()
        eventually(lambda: shop.ask("GET", "/readyz")[0] == 503)
        shop.process.send_signal(signal.SIGTERM)
        shop.process.wait(PATIENCE)
        for each in asking:
            each.join(PATIENCE)
        server.freeze(frozen=False)
        assert set(answers) <= {503, 504}
        assert len(answers) == 5
        eventually(lambda: "ended without the store" in "".join(shop.said))


def memory_of(shop: Running) -> int:
    """Bytes that a process holds."""
    said = Path(f"/proc/{shop.process.pid}/status").read_text()
    return int(said.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.slow
def test_nothing_of_a_thousand_is_done_that_was_refused_while_the_database_hung(
    folder: Path,
) -> None:
    """Those that had begun may be done; no other, and all memory is given back."""
    with (
        PostgresServer() as server,
        server.database() as url,
        service(
            folder,
            more="[service]\nanswer_seconds = 1\nrate = 1e9\n",
            environment={"CAPRI_STORE": url},
        ) as shop,
        ThreadPoolExecutor(50) as callers,
    ):

        def asked(key: str) -> int:
            return shop.ask("POST", "/v1/decisions", {"context": SOMEBODY, "key": key})[0]

        def kept() -> int:
            with server.connection(urlsplit(url).path[1:]) as connection:
                found = connection.execute("SELECT count(*) FROM keys").fetchone()
            assert found is not None
            return int(found[0])

        assert set(callers.map(asked, map("before {}".format, range(1000)))) == {200}
        before = memory_of(shop)
        server.freeze()
        told = list(callers.map(asked, map("meanwhile {}".format, range(1000))))
        assert memory_of(shop) < 1.3 * before
        server.freeze(frozen=False)
        eventually(lambda: asked("afterwards") == 200)
        assert set(told) <= {503, 504}
        assert 1001 <= kept() <= 1001 + told.count(504)
        assert told.count(504) < 10


def test_idle_connections_lock_nobody_out(folder: Path) -> None:
    with service(folder, more="[service]\nconnections = 20\n") as shop:
        idle = [socket.create_connection(("127.0.0.1", shop.port)) for _ in range(60)]
        try:
            for _ in range(5):
                shop.post("/v1/decisions", {"context": SOMEBODY})
        finally:
            for each in idle:
                each.close()


def test_who_never_reads_locks_nobody_out(folder: Path) -> None:
    """Answers that nobody takes are waited for as long as a body that does not come."""
    more = "[service]\nconnections = 20\nbody_seconds = 1\n"
    with service(folder, more=more) as shop:
        asked = b"GET /assets/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
        deaf = [socket.create_connection(("127.0.0.1", shop.port)) for _ in range(20)]
        try:
            for each in deaf:
                each.setblocking(False)
                with suppress(OSError):
                    each.send(asked)
            eventually(lambda: shop.ask("POST", "/v1/decisions", {"context": SOMEBODY})[0] == 200)
        finally:
            for each in deaf:
                each.close()


def test_what_is_nested_in_a_cell_is_not_read(folder: Path) -> None:
    """A hundred thousand lists in a cell took others half a second, whatever became of them."""
    nested = b"[" + b"[[[[]]]]," * 100_000 + b"1]"
    for body, levels in ((b'{"context":{"age":%s}}', 3), (b'[{"context":{"age":%s}}]', 4)):
        cut = shallow(body % nested, levels)
        assert cut == body % (b"[" + b"0," * 100_000 + b"1]")

    async def test() -> None:
        async with inside(policy_at(folder)) as shop:
            for path, body in (
                ("/v1/decisions", b'{"context":{"age":%s,"plan":"pro"}}'),
                ("/v1/decisions:batch", b'[{"context":{"age":%s,"plan":"pro"}}]'),
            ):
                reply = await shop.ask(path, body % nested)
                assert reply.status == 200
                assert b'"marks":["unreadable value"]' in reply.body

    run(test)


def test_large_bodies_have_a_rate_of_their_own(folder: Path) -> None:
    """Their size follows from private values: they refuse each other, and nobody else."""
    large = {"context": SOMEBODY | STRANGE}
    size = len(json.dumps(large))
    assert size > LARGE

    async def test() -> None:
        limits = ServiceLimits(answer_seconds=1e9, rate_bytes=1.5 * size)
        async with inside(policy_at(folder), limits) as shop:
            statuses = [(await shop.ask("/v1/decisions", large)).status for _ in range(3)]
            assert statuses[0] == 200
            assert statuses[-1] == 429
            for _ in range(5):
                assert (await shop.ask("/v1/decisions", {"context": SOMEBODY})).status == 200

    run(test)


def test_lists_of_usual_items_count_for_no_bytes_however_long(folder: Path) -> None:
    """Whether the next list of a key is refused does not follow from the sizes of this one."""
    usual = [{"context": SOMEBODY, "key": f"{number:0100d}"} for number in range(600)]
    assert len(json.dumps(usual)) > LARGE

    async def test() -> None:
        limits = ServiceLimits(answer_seconds=1e9, rate_bytes=1.0)
        async with inside(policy_at(folder), limits) as shop:
            for _ in range(3):
                assert (await shop.ask("/v1/decisions:batch", usual)).status == 200
            strange = [{"context": SOMEBODY | STRANGE}]
            assert (await shop.ask("/v1/decisions:batch", strange)).status == 200
            assert (await shop.ask("/v1/decisions:batch", usual)).status == 429
            assert (await shop.ask("/v1/decisions:batch", usual[:9])).status == 200

    run(test)
