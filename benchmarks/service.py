"""What the service costs, as ratios within one run.

    python benchmarks/service.py [--seconds 1] [--turns 9] [--only singles]

Singles: decisions and rewards over HTTP, each durable before its answer, one worker, SQLite, 32
keep-alive connections, contexts outside of the pool. Beside it a bare endpoint of Starlette on the
same server that parses a JSON body and makes one insert durable, many of them in one
commit: the least that any such service does. The two are interleaved and medians count.

Batches: items a second in lists of 100. Postgres: the same with two workers of each on one server
whose disk is waited for, also while epochs turn, and against the bare endpoint on our own kind of
connections, too; processor time is that of workers and server together. Closing: the slowest
decision while an epoch of 2,000 contexts and 500 actions is released and the next one planned.
Reports of devices: in bodies of 1,000, two workers on SQLite and on Postgres.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).resolve()
sys.path.append(str(HERE.parents[1] / "tests"))

import numpy as np  # noqa: E402

CONNECTIONS = 32
BATCH = 100
ACTIONS = 10


# -- what is measured -----------------------------------------------------------------------------

POLICY = """
actions = {actions}
{public}
[budget]
epsilon = 1.0
delta = 1e-6
[options]
{options}
[service]
rate = 1e9
""" + "".join(
    f'[[context]]\nname = "x{number}"\nkind = "numeric"\nlow = 0\nhigh = 1\n' for number in range(4)
)


def write_policy(folder: Path, options: str = "first_epoch = 10000000", **parts: Any) -> Path:
    """A policy file whose epoch does not end while we measure."""
    names = [f"action {number}" for number in range(parts.get("actions", ACTIONS))]
    text = POLICY.format(actions=json.dumps(names), public=parts.get("public", ""), options=options)
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def durable(store: str) -> Callable[[list[bytes]], list[Any]]:
    """Rows of a table in one commit, by one statement: nothing that stores them does less."""
    if store.startswith("postgresql:"):
        import psycopg

        server = psycopg.connect(store, autocommit=True, prepare_threshold=1)
        server.execute("SET synchronous_commit = on")

        def into_server(bodies: list[bytes]) -> list[Any]:
            server.execute("INSERT INTO rows (body) SELECT unnest(%b::bytea[])", (bodies,))
            return bodies

        return into_server
    connection = sqlite3.connect(store, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB)")

    def into_file(bodies: list[bytes]) -> list[Any]:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO rows (body) VALUES (?)", [(each,) for each in bodies])
        connection.execute("COMMIT")
        return bodies

    return into_file


def bare(store: str, ours: bool, listening: socket.socket) -> None:
    """The bare endpoint: parse, insert with others in one commit, answer.

    On connections as the server has them, or on ``ours``.
    """
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from capri.service.auth import ServiceLimits
    from capri.service.batch import MicroBatcher
    from capri.service.connections import PatientProtocol

    sys.setswitchinterval(0.0005)
    insert = durable(store)
    batchers: list[MicroBatcher] = []

    async def endpoint(request: Request) -> Response:
        body = await request.body()
        msgspec.json.decode(body)
        if not batchers:
            batchers.append(MicroBatcher("insert", insert, ServiceLimits(waiting=100_000)))
        await batchers[0].do([body])
        return Response(b'{"status":"stored"}', media_type="application/json")

    app = Starlette(routes=[Route("/insert", endpoint, methods=["POST"])])
    how: dict[str, Any] = {"log_level": "error", "access_log": False}
    how["http"] = PatientProtocol if ours else "httptools"
    uvicorn.Server(uvicorn.Config(app, ws="none", **how)).run(sockets=[listening])


def serve_bare(port: int, store: str, workers: int, ours: bool) -> None:
    """One process, or several that share a socket as those of the service do."""
    from capri.service.server import _listen, supervise

    listening = _listen("127.0.0.1", port)
    if workers == 1:
        bare(store, ours, listening)
    else:
        supervise(partial(bare, store, ours), listening, workers)


@contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, from its first answer on."""
    paths = [str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(paths).strip(os.pathsep)
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, **environment})
    try:
        asyncio.run(_answering(port, process))
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answering(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit("a server ended by itself")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("a server does not answer")


def service(file: Path, port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "capri", "serve", str(file), "--port", str(port), *more]


# -- load -----------------------------------------------------------------------------------------


class Caller(asyncio.Protocol):
    """One connection that asks again as soon as it was answered."""

    def __init__(
        self, ask: Callable[[], bytes | None], hear: Callable[[float, bytes], None]
    ) -> None:
        self._ask, self._hear = ask, hear
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._next()

    def _next(self) -> None:
        request = self._ask()
        if request is None:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(self._buffer) < end + 4 + length:
            return
        body, self._buffer = self._buffer[end + 4 :], b""
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"refused: {head[:60]!r} {body[:300]!r}")
        self._hear(time.perf_counter() - self._began, body)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server hung up"))


def load(
    port: int,
    path: str,
    key: str,
    bodies: Iterator[bytes],
    seconds: float,
    connections: int,
    kind: str = "json",
) -> tuple[float, list[float], list[bytes]]:
    """Answers a second, latencies, and what was answered."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: "
    ).encode()
    latencies: list[float] = []
    answers: list[bytes] = []
    ends = time.perf_counter() + seconds

    def ask() -> bytes | None:
        body = next(bodies, None) if time.perf_counter() < ends else None
        return None if body is None else b"%s%d\r\n\r\n%s" % (head, len(body), body)

    def hear(latency: float, body: bytes) -> None:
        latencies.append(latency)
        answers.append(body)

    async def run() -> float:
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        callers = [
            (await loop.create_connection(lambda: Caller(ask, hear), "127.0.0.1", port))[1]
            for _ in range(connections)
        ]
        await asyncio.gather(*(caller.done for caller in callers))
        return time.perf_counter() - began

    took = asyncio.run(run())
    return len(latencies) / took, latencies, answers


def contexts(seed: int, size: int = 1) -> Iterator[bytes]:
    """Bodies of decisions: contexts that are in no pool."""
    generator = np.random.default_rng(seed)
    bodies = []
    for row in generator.random((20_000 // size, size, 4)).tolist():
        items = [{"context": {f"x{n}": cell for n, cell in enumerate(each)}} for each in row]
        bodies.append(json.dumps(items if size > 1 else items[0]).encode())
    return cycle(bodies)  # made beforehand: the load shares the processors with the service


def rewards(answers: list[bytes], size: int = 1) -> Iterator[bytes]:
    """Bodies of rewards for decisions that were answered."""
    bodies = []
    for answer in answers:
        made = json.loads(answer)
        items = [{"id": each["id"], "reward": 0.5} for each in (made if size > 1 else [made])]
        bodies.append(json.dumps(items if size > 1 else items[0]).encode())
    return iter(bodies)


def p99(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def key_beside(file: Path) -> str:
    from capri.service.auth import add_key

    return add_key(file.with_suffix(".keys"), "bench", ["admin"])


# -- the benches ----------------------------------------------------------------------------------


def singles(seconds: float, turns: int) -> dict[str, Any]:
    """Single decisions and rewards against the bare endpoint; and lists of 100."""
    with tempfile.TemporaryDirectory() as folder:
        file = write_policy(Path(folder))
        key = key_beside(file)
        bare_command = [sys.executable, str(HERE), "--bare", f"{folder}/bare.db", "--port", "8118"]
        figures: dict[str, list[float]] = {}

        def note(name: str, rate: float, latencies: list[float]) -> None:
            figures.setdefault(f"{name} a second", []).append(rate)
            figures.setdefault(f"{name} p50 ms", []).append(1000 * median(latencies))
            figures.setdefault(f"{name} p99 ms", []).append(1000 * p99(latencies))

        with (
            running(bare_command, 8118) as bare_process,
            running(service(file, 8117), 8117) as process,
        ):

            def measured(
                name: str, own: subprocess.Popen[bytes], *arguments: Any
            ) -> tuple[list[bytes], float]:
                before = processor_time([own.pid])
                rate, latencies, answers = load(*arguments)
                used = processor_time([own.pid]) - before
                note(name, rate, latencies)
                figures.setdefault(f"{name} processor us", []).append(1e6 * used / len(latencies))
                return answers, rate

            load(8118, "/insert", "", contexts(0), 0.5, CONNECTIONS)
            load(8117, "/v1/decisions", key, contexts(0), 0.5, CONNECTIONS)
            for turn in range(turns):
                many = (seconds, CONNECTIONS)
                measured("bare", bare_process, 8118, "/insert", "", contexts(turn), *many)
                path = "/v1/decisions"
                answers, _ = measured("decisions", process, 8117, path, key, contexts(turn), *many)
                path = "/v1/rewards"
                measured("rewards", process, 8117, path, key, rewards(answers), *many)
                path = "/v1/decisions:batch"
                answers, rate = measured(
                    "batches", process, 8117, path, key, contexts(turn, BATCH), *many
                )
                figures.setdefault("batched decisions a second", []).append(rate * BATCH)
                path = "/v1/rewards"
                _, rate = measured(
                    "reward lists", process, 8117, path, key, rewards(answers, BATCH), *many
                )
                figures.setdefault("batched rewards a second", []).append(rate * BATCH)
                one = (seconds / 2, 1)
                rate, _, _ = load(8117, "/v1/decisions", key, contexts(turn), *one)
                path = "/v1/decisions:batch"
                batched, _, _ = load(8117, path, key, contexts(turn, BATCH), *one)
                figures.setdefault("one connection, batched / single", []).append(
                    BATCH * batched / rate
                )
    found = {name: median(values) for name, values in figures.items()}
    # Of slices that lie beside each other: a machine has moods.
    for name in ("decisions", "rewards"):
        for what in ("a second", "p99 ms", "processor us"):
            pairs = zip(figures[f"{name} {what}"], figures[f"bare {what}"], strict=True)
            found[f"{name} / bare, {what}"] = median(own / other for own, other in pairs)
        pairs = zip(figures[f"batched {name} a second"], figures[f"{name} a second"], strict=True)
        found[f"batched / single {name}"] = median(own / other for own, other in pairs)
    return found


def inside(seconds: float) -> dict[str, float]:
    """Microseconds that `act` itself takes, in memory and outside of the pool."""
    from capri.service.settings import load_settings

    with tempfile.TemporaryDirectory() as folder:
        policy = load_settings(write_policy(Path(folder))).policy(store=None)
        rows = np.random.default_rng(0).random((2000, 4))
        policy.act(rows[0])
        taken = []
        for row in rows:
            began = time.thread_time()
            policy.act(row)
            taken.append(time.thread_time() - began)
    return {"act, processor us": 1e6 * median(taken)}


def processor_time(pids: list[int]) -> float:
    """Seconds of processor time of some processes and all below them."""
    ticks, found = os.sysconf("SC_CLK_TCK"), 0.0
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += (int(fields[11]) + int(fields[12])) / ticks
    return found


def at_rest(pid: int) -> None:
    """Wait until workers have started, which they do after the socket listens."""
    time.sleep(2)
    for _ in range(60):
        before = processor_time([pid])
        time.sleep(1)
        if processor_time([pid]) - before < 0.1:
            return
    raise SystemExit("a server does not come to rest")


def postgres(seconds: float, turns: int) -> dict[str, float]:
    """Two workers on Postgres, its disk waited for, against two of the bare endpoint on the same.

    Once with an epoch that does not end, once with epochs of some thousand decisions, which turn
    all the time.
    """
    import psycopg

    from postgres_server import PostgresServer

    found: dict[str, float] = {}
    kinds = {"": "first_epoch = 10000000", ", epochs turning": "first_epoch = 4000"}
    with (
        PostgresServer(fsync="on", full_page_writes="on") as server,
        tempfile.TemporaryDirectory() as folder,
        server.database() as plain,
    ):
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("CREATE TABLE rows (number bigserial PRIMARY KEY, body bytea)")
        assert server._process is not None
        command = [sys.executable, str(HERE), "--bare", plain, "--workers", "2"]
        with (
            running([*command, "--port", "8118"], 8118) as other,
            running([*command, "--port", "8120", "--ours"], 8120) as alike,
        ):
            at_rest(other.pid)
            at_rest(alike.pid)
            for said, options in kinds.items():
                file = write_policy(Path(folder), options)
                key = key_beside(file)
                with server.database() as url:
                    command = service(file, 8119, "--workers", "2")
                    with running(command, 8119, CAPRI_STORE=url) as own:
                        at_rest(own.pid)
                        calls = {
                            "bare": (other, 8118, "/insert", ""),
                            "bare on our connections": (alike, 8120, "/insert", ""),
                            "decisions": (own, 8119, "/v1/decisions", key),
                        }
                        for _, *where in calls.values():
                            load(*where, contexts(0), 1.0, CONNECTIONS)
                        found |= compared(calls, server._process.pid, seconds, turns, said)
    return found


def compared(
    calls: dict[str, tuple[Any, ...]], server: int, seconds: float, turns: int, said: str
) -> dict[str, float]:
    """Slices of two loads that lie beside each other: a machine has moods."""
    figures: dict[str, list[float]] = {}
    epochs: set[int] = set()
    for turn in range(turns):
        for name, (process, *where) in calls.items():
            pids = [process.pid, server]
            before = processor_time(pids)
            rate, latencies, answers = load(*where, contexts(turn), seconds, CONNECTIONS)
            used = processor_time(pids) - before
            epochs |= {json.loads(each).get("epoch", 0) for each in answers}
            for what, value in (
                ("a second", rate),
                ("p99 ms", 1000 * p99(latencies)),
                ("slowest ms", 1000 * max(latencies)),
                ("processor us", 1e6 * used / len(latencies)),
            ):
                figures.setdefault(f"{name}{said}, {what}", []).append(value)
    found = {name: median(values) for name, values in figures.items()}
    found[f"decisions{said}, slowest ms"] = max(figures[f"decisions{said}, slowest ms"])
    found[f"epochs{said}"] = len(epochs - {0})
    for name in calls.keys() - {"decisions"}:
        for what in ("a second", "p99 ms", "processor us"):
            pairs = zip(
                figures[f"decisions{said}, {what}"], figures[f"{name}{said}, {what}"], strict=True
            )
            found[f"decisions / {name}{said}, {what}"] = median(a / b for a, b in pairs)
    return found


def closing(seconds: float) -> dict[str, float]:
    """The slowest decision while 2,000 contexts x 500 actions are released and planned."""
    with tempfile.TemporaryDirectory() as folder:
        rows = np.random.default_rng(3000).random((2000, 4))
        lines = [",".join(f"x{n}" for n in range(4))]
        lines += [",".join(f"{cell:.6f}" for cell in row) for row in rows]
        (Path(folder) / "public.csv").write_text("\n".join(lines))
        file = write_policy(
            Path(folder), "first_epoch = 8000", actions=500, public='public = "public.csv"'
        )
        key = key_beside(file)
        with running(service(file, 8117), 8117):
            load(8117, "/v1/decisions", key, contexts(4), 1.0, 1)
            _, latencies, answers = load(8117, "/v1/decisions", key, contexts(5), seconds, 4)
        epochs = {json.loads(answer)["epoch"] for answer in answers}
    middle = median(latencies)
    return {
        "epochs seen": len(epochs),
        "decisions": len(latencies),
        "median ms": 1000 * middle,
        "slowest ms": 1000 * max(latencies),
        "allowed ms": 50 + 5000 * middle,
        "slower than allowed": sum(each > 0.05 + 5 * middle for each in latencies),
    }


REPORTS = 1000
DEVICES = """
model = "local"
actions = ["a", "b", "c", "d", "e", "f"]
[budget]
epsilon = 2.0
[reward]
range = [0, 1]
[[context]]
name = "x"
kind = "numeric"
low = 0
high = 1
[options]
first_epoch = 10000000
[service]
rate = 1e9
"""


def report_bodies(bundle: bytes, count: int, seed: int) -> list[bytes]:
    """Bodies of reports that devices could have made."""
    from capri.local import wire
    from capri.local.summing import epoch_of

    epoch, draw = epoch_of(bundle), np.random.default_rng(seed)
    tokens = draw.integers(0, 2**64, (count * REPORTS, 2), dtype=np.uint64)
    numbers = draw.integers(0, epoch.sphere.candidates, count * REPORTS)
    rows = wire.pack(epoch.digest, tokens, numbers).reshape(count, -1)
    return [row.tobytes() for row in rows]


def reports(seconds: float, turns: int) -> dict[str, float]:
    """Reports a millisecond in bodies of 1,000, two workers, each durable before its answer."""
    from urllib.request import urlopen

    from postgres_server import PostgresServer

    found: dict[str, float] = {}
    with (
        PostgresServer(fsync="on", full_page_writes="on") as server,
        server.database() as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        file = Path(folder) / "policy.toml"
        file.write_text(DEVICES)
        key_beside(file)
        for name, more in (("SQLite", {}), ("Postgres", {"CAPRI_STORE": url})):
            rates: list[float] = []
            slowest: list[float] = []
            with running(service(file, 8120, "--workers", "2"), 8120, **more) as own:
                at_rest(own.pid)
                bundle = urlopen("http://localhost:8120/v1/bundle").read()
                for turn in range(turns + 1):  # the first one warms up
                    bodies = report_bodies(bundle, int(300 * seconds), turn)
                    rate, latencies, answers = load(
                        8120, "/v1/reports", "", iter(bodies), seconds, 4, "octet-stream"
                    )
                    accepted = sum(each.count(b'"accepted"') for each in answers)
                    if accepted != REPORTS * len(answers):
                        raise SystemExit("a report was not accepted")
                    rates.append(rate * REPORTS / 1000)
                    slowest.append(1000 * max(latencies))
            found[f"reports a ms, {name}"] = median(rates[1:])
            found[f"reports a ms, {name}, least"] = min(rates[1:])
            found[f"slowest body ms, {name}"] = max(slowest[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", choices=("singles", "postgres", "closing", "reports"))
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare is not None:
        serve_bare(options.port, options.bare, options.workers, options.ours)
        return
    figures: dict[str, Any] = {}
    if options.only in (None, "singles"):
        figures |= inside(options.seconds) | singles(options.seconds, options.turns)
    if options.only in (None, "postgres"):
        figures |= postgres(4 * options.seconds, options.turns)
    if options.only in (None, "closing"):
        figures |= closing(60 * options.seconds)
    if options.only in (None, "reports"):
        figures |= reports(2 * options.seconds, options.turns)
    for name, value in figures.items():
        print(f"{name:42s} {value:12.3f}")


if __name__ == "__main__":
    main()
