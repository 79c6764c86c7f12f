"""The application: which door leads where, and what starts and stops with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from capri.errors import CapriError, HorizonError, StorageError
from capri.joint.policy import Capri
from capri.service.admin import Admin
from capri.service.clerk import Clerk
from capri.service.desk import Desk
from capri.service.door import Answer, Call, Door, Guard, Handler, Receive, Scope, Send
from capri.service.facts import Facts, metrics
from capri.service.keys import ADMIN, DECIDE, OPERATOR, READ, REWARD, KeyRing
from capri.service.limits import Limits
from capri.service.live import Live
from capri.service.messages import encode
from capri.service.openapi import document

_SELF = b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
_SELF += b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_FIGURES = (
    "policy",
    "epochs",
    "estimate",
    "explanation",
    "certificate",
    "ledger",
    "shadow",
    "forecast",
)
_READY = 2.0  # seconds within which a store answers that is ready
_PAGES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/v1/docs": ("api.html", b"text/html; charset=utf-8"),
    "/assets/icon.svg": ("icon.svg", b"image/svg+xml"),
    "/assets/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/assets/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/assets/chart.js": ("chart.js", b"text/javascript; charset=utf-8"),
    "/assets/charts.js": ("charts.js", b"text/javascript; charset=utf-8"),
    "/assets/api.js": ("api.js", b"text/javascript; charset=utf-8"),
}


class Service:
    """The application: doors are found by their path, and Starlette keeps its life.

    Starlette's router tries one route after the other and wraps each request three times, which
    takes as long as deciding.
    """

    def __init__(self, doors: dict[str, Door], starlette: Starlette) -> None:
        self._doors, self._starlette = doors, starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        door = self._doors.get(scope.get("path", "")) if scope["type"] == "http" else None
        await (self._starlette if door is None else door)(scope, receive, send)


def application(
    policy: Capri,
    *,
    name: str = "policy",
    keys: KeyRing | None,
    hosts: tuple[str, ...] = (),
    limits: Limits | None = None,
    expected: Callable[[], Any] = lambda: None,
) -> Service:
    """The service of an open policy; it is closed with the service.

    Without ``keys`` whoever reaches it may do everything: for this machine alone.
    """
    guard = Guard(keys, hosts, limits or Limits())
    facts, live = Facts(policy, name, expected), Live()
    doors: dict[str, Door] = {}

    def post(path: str, handler: Handler, role: str) -> None:
        doors[path] = Door(guard, handler, role, reads_body=True, items=int(role == ADMIN))

    def get(path: str, handler: Handler, role: str | None) -> None:
        doors[path] = Door(guard, handler, role)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with suppress(
            HorizonError, StorageError
        ):  # keys are served all the same, and /readyz tells
            await asyncio.to_thread(policy.warm)
        desk = Desk(Clerk(policy), guard, live)
        handlers["desk"] = desk
        try:
            yield
        finally:
            await asyncio.to_thread(desk.stop)
            await asyncio.to_thread(policy.close)

    handlers: dict[str, Desk] = {}

    def at_desk(method: str) -> Handler:
        handle: Callable[[Desk, Call], Awaitable[Answer]] = getattr(Desk, method)
        return lambda call: handle(handlers["desk"], call)

    admin = Admin(policy, facts)
    post("/v1/decisions", at_desk("decide"), DECIDE)
    post("/v1/rewards", at_desk("reward"), REWARD)
    post("/v1/decisions:batch", at_desk("decide_many"), DECIDE)
    for what in _FIGURES:
        get(f"/v1/{what}", _read(getattr(facts, what)), READ)
    get("/v1/operations", _read(admin.operations), READ)
    get("/v1/live", _read(live.to_dict), OPERATOR)
    for what in ("catalogue", "mode", "close"):
        post(f"/v1/admin/{what}", getattr(admin, what), ADMIN)
    get("/metrics", _metrics(facts), READ)
    get("/healthz", _healthy, None)
    get("/readyz", _ready(facts), None)
    described = Answer(encode(document(guard.limits)))
    get("/v1/openapi.json", _fixed(described), None)
    for path, (file, kind) in _PAGES.items():
        # Elements and ticks are those of the report's charts.
        room = files("capri.report" if file == "chart.js" else "capri.service").joinpath
        body = (room(file) if file == "chart.js" else room("page", file)).read_bytes()
        get(path, _fixed(Answer(body, kind=kind, policy=_SELF)), None)
    return Service(
        doors, Starlette(lifespan=lifespan, exception_handlers={HTTPException: _unknown})
    )


def _fixed(answer: Answer) -> Handler:
    async def handle(_: Call) -> Answer:
        return answer

    return handle


def _read(compute: Callable[[], Any]) -> Handler:
    """Figures are computed in a thread: nobody's decision waits for them."""

    async def handle(_: Call) -> Answer:
        return Answer(encode(await asyncio.to_thread(compute)))

    return handle


def _metrics(facts: Facts) -> Handler:
    async def handle(_: Call) -> Answer:
        text = await asyncio.to_thread(metrics, facts)
        return Answer(text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

    return handle


async def _healthy(_: Call) -> Answer:
    return Answer(encode({"status": "alive"}))


def _ready(facts: Facts) -> Handler:
    async def handle(_: Call) -> Answer:
        try:
            async with asyncio.timeout(_READY):
                await asyncio.to_thread(facts.check)
        except (CapriError, TimeoutError):
            return Answer(encode({"status": "the store does not answer"}), 503)
        return Answer(encode({"status": "ready"}))

    return handle


async def _unknown(_: Request, problem: Exception) -> Response:
    """Paths and methods that are not there."""
    assert isinstance(problem, HTTPException)
    said = "there is nothing here" if problem.status_code == 404 else "this method is not offered"
    body = encode({"error": {"problem": f"{said}: see /v1/openapi.json"}})
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    headers |= dict(problem.headers or {})
    return Response(body, problem.status_code, headers, media_type="application/json")
