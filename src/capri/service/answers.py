"""Answers that every application gives, whichever model its policy has."""

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from capri.errors import CapriError
from capri.service.door import Answer, Call, Door, Guard, Handler, Receive, Scope, Send
from capri.service.facts import Facts, metrics
from capri.service.messages import RefusalError, encode
from capri.service.openapi import document

SELF = b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
SELF += b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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


def fixed(answer: Answer) -> Handler:
    """The same for everybody."""

    async def handle(_: Call) -> Answer:
        return answer

    return handle


def elsewhere(why: str) -> Handler:
    """For what a policy of this model does not do."""

    async def handle(_: Call) -> Answer:
        raise RefusalError(409, why)

    return handle


def page_doors(guard: Guard) -> dict[str, Door]:
    """The page, its files, and the description of the interface: public."""
    doors = {"/v1/openapi.json": Door(guard, fixed(Answer(encode(document(guard.limits)))), None)}
    for path, (file, kind) in _PAGES.items():
        body = files("capri").joinpath("service", "page", file).read_bytes()
        doors[path] = Door(guard, fixed(Answer(body, kind=kind, policy=SELF)), None)
    return doors


def read(compute: Callable[[], Any]) -> Handler:
    """Figures are computed in a thread: nobody's decision waits for them."""

    async def handle(_: Call) -> Answer:
        return Answer(encode(await asyncio.to_thread(compute)))

    return handle


def metrics_of(facts: Facts) -> Handler:
    """For Prometheus."""

    async def handle(_: Call) -> Answer:
        text = await asyncio.to_thread(metrics, facts)
        return Answer(text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

    return handle


async def healthy(_: Call) -> Answer:
    """The process lives."""
    return Answer(encode({"status": "alive"}))


def readiness(check: Callable[[], None]) -> Handler:
    """Whether the store serves; ``check`` raises where it does not."""

    async def handle(_: Call) -> Answer:
        try:
            async with asyncio.timeout(_READY):
                await asyncio.to_thread(check)
        except (CapriError, TimeoutError):
            return Answer(encode({"status": "the store does not serve"}), 503)
        return Answer(encode({"status": "ready"}))

    return handle


async def unknown(_: Request, problem: Exception) -> Response:
    """Paths and methods that are not there."""
    assert isinstance(problem, HTTPException)
    said = "there is nothing here" if problem.status_code == 404 else "this method is not offered"
    body = encode({"error": {"problem": f"{said}: see /v1/openapi.json"}})
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    headers |= dict(problem.headers or {})
    return Response(body, problem.status_code, headers, media_type="application/json")
