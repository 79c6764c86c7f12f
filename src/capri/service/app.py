"""One application for both models: it serves what the policy describes, and says so elsewhere.

Routes of the table (:data:`capri.service.openapi.ROUTES`) for which the model has a handler are
served; the others answer 409 and name the model that has them.
"""

import asyncio
import logging
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.service.aggregator import DurableAggregator
from capri.service.auth import Guard, KeyRing, RefusalError, ServiceLimits
from capri.service.endpoint import (
    Endpoint,
    Handler,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    respond,
    response_to,
)
from capri.service.figures import DeviceFigures, Figures
from capri.service.handlers import DeviceHandlers, JointHandlers
from capri.service.messages import encode
from capri.service.openapi import ROUTES, Route, document

_log = logging.getLogger("capri.service")
_SELF = b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
_SELF += b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SITE = _SELF + b"; worker-src 'self'; font-src 'self'"
_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
}
_LARGEST_FILE = 1 << 23
_PAGES = {"/": "index.html", "/v1/docs": "api.html"}
_ASSETS = ("icon.svg", "page.css", "page.js", "chart.js", "charts.js", "api.js")


class Application:
    """The service of an open policy, as ASGI has it; the policy is closed with the service.

    Endpoints are found by their path: a router that tries one route after the other, and wraps
    each request, takes as long as deciding.
    """

    def __init__(
        self,
        policy: Capri | DurableAggregator,
        *,
        name: str = "policy",
        keys: KeyRing | None,
        hosts: tuple[str, ...] = (),
        limits: ServiceLimits | None = None,
        expected: Callable[[], Any] = lambda: None,
        site: Path | None = None,
    ) -> None:
        """Without ``keys`` whoever reaches it may do everything: for this machine alone.

        ``expected`` looks for a forecast. ``site``: a folder whose files are served at ``/site/``.
        """
        self._policy, self._name, self._expected = policy, name, expected
        self._guard = Guard(keys, hosts, limits or ServiceLimits())
        public = page_files() | site_files(site)
        public["/v1/openapi.json"] = Response(encode(document(self._guard.limits)))
        self._endpoints = {
            path: Endpoint(self._guard, fixed(response), Route("GET", path))
            for path, response in public.items()
        }
        self.handlers: JointHandlers | DeviceHandlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end with the server."""
        if scope["type"] != "http":
            await self._lifespan(receive, send)
        elif (endpoint := self._endpoints.get(scope["path"])) is not None:
            await endpoint(scope, receive, send)
        else:
            missing = RefusalError(404, "there is nothing here: see /v1/openapi.json")
            await respond(response_to(missing), send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """From the start of the server to its end."""
        await receive()
        try:
            await self._start()
        except Exception as problem:
            await send({"type": "lifespan.startup.failed", "message": type(problem).__name__})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self.handlers.stop)
        await asyncio.to_thread(self._policy.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        if isinstance(self._policy, DurableAggregator):
            figures = DeviceFigures(self._policy, self._name)
            self.handlers = DeviceHandlers(self._policy, self._guard, figures)
        else:
            try:
                await asyncio.to_thread(self._policy.warm)
            except Exception as problem:  # keys are served all the same, and /readyz tells
                _log.warning("no epoch could be planned at the start (%s)", type(problem).__name__)
            self.handlers = JointHandlers(
                self._policy,
                self._guard,
                Figures(self._policy, self._name, self._expected),
            )
        offered = self.handlers.routes | {"/healthz": fixed(Response(encode({"status": "alive"})))}
        for route in ROUTES:
            handler = offered.get(route.path)
            if handler is None:
                handler, route = elsewhere(self.handlers.elsewhere), Route(route.method, route.path)
            self._endpoints[route.path] = Endpoint(self._guard, handler, route)


def fixed(response: Response) -> Handler:
    """The same for everybody."""

    async def handle(_: Request) -> Response:
        return response

    return handle


def elsewhere(why: str) -> Handler:
    """For what a policy of this model does not do."""

    async def handle(_: Request) -> Response:
        raise RefusalError(409, why)

    return handle


def page_files() -> dict[str, Response]:
    """The page, its files, and the interface for a reader: public."""
    paths = _PAGES | {f"/assets/{name}": name for name in _ASSETS}
    found = {}
    for path, name in paths.items():
        body = files("capri").joinpath("service", "page", name).read_bytes()
        found[path] = Response(body, kind=_KINDS[Path(name).suffix], policy=_SELF)
    return found


def site_files(folder: Path | None) -> dict[str, Response]:
    """The files of a folder at ``/site/``, for a page whose visitors' devices decide and report.

    Read once, when the service starts; nothing is looked for on the disk by the name of a request.
    ``/site/`` is ``index.html``.
    """
    if folder is None:
        return {}
    if not (folder / "index.html").is_file():
        raise ConfigurationError(f"--site must be a folder with an index.html, got {folder}")
    found: dict[str, Response] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in _KINDS and path.is_file():
            if path.stat().st_size > _LARGEST_FILE:
                raise ConfigurationError(f"{path} is larger than {_LARGEST_FILE} bytes")
            response = Response(path.read_bytes(), kind=_KINDS[path.suffix], policy=_SITE)
            found["/site/" + path.relative_to(folder).as_posix()] = response
    found["/site/"] = found["/site/index.html"]
    return found
