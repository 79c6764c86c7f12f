"""A service within the process of a test: its own application, asked as a server asks it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import capri
from capri.service.app import Application
from capri.service.auth import ServiceLimits
from capri.service.handlers import JointHandlers
from capri.service.settings import load_settings
from service_process import POLICY

HOLD = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
file.execute("ROLLBACK")
"""


@dataclass
class Reply:
    """What a request was answered: nothing is left out."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    @property
    def said(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Inside:
    """The application of a policy, from its start to its end."""

    def __init__(self, app: Application) -> None:
        assert isinstance(app.handlers, JointHandlers)
        self._app, self.handlers = app, app.handlers

    async def ask(
        self, path: str, body: Any = None, *, hangs_up: asyncio.Event | None = None
    ) -> Reply:
        """POST where there is a body, as JSON unless it is bytes; a caller may hang up."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        scope = {
            "type": "http",
            "path": path,
            "method": "GET" if data is None else "POST",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"x-request-id", b"0" * 16),
            ],
        }
        reply, parts = Reply(), [] if data is None else [data]
        del data, body  # whoever waits holds what the application holds

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await (hangs_up or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            reply.status = message.get("status", reply.status)
            # The name of a request in the log is random.
            reply.headers += [
                each for each in message.get("headers", []) if each[0] != b"x-capri-request"
            ]
            reply.body += message.get("body", b"")

        await self._app(scope, receive, send)
        return reply


@asynccontextmanager
async def inside(policy: Any, limits: ServiceLimits | None = None) -> AsyncIterator[Inside]:
    """A service that has started; it and the policy are closed afterwards."""
    app = Application(policy, keys=None, limits=limits)
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heard: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan"}, told.get, heard.put))
    await told.put({"type": "lifespan.startup"})
    assert (await heard.get())["type"] == "lifespan.startup.complete"
    try:
        yield Inside(app)
    finally:
        await told.put({"type": "lifespan.shutdown"})
        assert (await heard.get())["type"] == "lifespan.shutdown.complete"
        await task


def policy_at(folder: Path, store: str | None = None, rule: str = "") -> capri.Capri:
    text = POLICY.format(top="", reward=rule, more="", first=100_000)
    (folder / "policy.toml").write_text(text)
    settings = load_settings(folder / "policy.toml")
    return settings.policy(store=store or settings.default_store)  # type: ignore[no-any-return]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The file is held by another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / "policy.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        process.communicate(b"\n")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())
