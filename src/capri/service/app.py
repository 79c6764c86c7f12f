"""One application for both models: it serves what the policy describes, and says so elsewhere.

Routes of the table (:data:`ROUTES`) for which the model has a handler are served; the others answer
409 and name the model that has them. The OpenAPI 3.1 document is generated from the same table, its
schemas from the types that go over the wire (:mod:`capri.service.messages`).
"""

import asyncio
import logging
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.local.aggregator import LocalCapri
from capri.service import messages
from capri.service.auth import (
    ADMIN,
    DECIDE,
    OPERATOR,
    READ,
    REWARD,
    Guard,
    KeyRing,
    RefusalError,
    ServiceLimits,
)
from capri.service.devices import DeviceHandlers
from capri.service.endpoint import (
    BINARY,
    JSON,
    Endpoint,
    Handler,
    Receive,
    Request,
    Response,
    Route,
    Scope,
    Send,
    respond,
    response_to,
)
from capri.service.figures import DeviceFigures, Figures
from capri.service.handlers import JointHandlers
from capri.service.messages import REPORT_SIZE, encode
from capri.service.telemetry import HttpCounts, Traced
from capri.version import VERSION

if TYPE_CHECKING:
    from capri.service.changes import PolicyFile

_log = logging.getLogger("capri.service")
_PLACE = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The body is no JSON, or nested too deeply.",
    "401": "No key that is known: `Authorization: Bearer ...`.",
    "403": "The key has not the role.",
    "405": "This method is not offered here.",
    "409": "The horizon is reached, an epoch cannot be closed yet, or the model is another.",
    "413": "The body or the list is too large.",
    "415": "The content type is not application/json.",
    "421": "The Host is none of this service's.",
    "422": "A field of the envelope is not as it must be; `field` names it.",
    "429": "Too many items a second for this key.",
    "503": "The store cannot be reached, or too much waits: this was not done. Try again.",
    "504": "The store was lost meanwhile: this was done or not. Ask again with the same key.",
}
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

ROUTES = (
    Route(
        "POST", "/v1/decisions", DECIDE, "Decide for one visit",
        (messages.DecisionRequest,), (messages.DecisionAnswer,),
    ),
    Route(
        "POST", "/v1/decisions:batch", DECIDE,
        "Decide for many visits, item by item, some perhaps `refused` or `in doubt`",
        (list[messages.DecisionRequest],), (list[messages.DecisionAnswer],),
    ),
    Route(
        "POST", "/v1/rewards", REWARD,
        "Bring one reward, or a list of them, judged item by item, some perhaps `refused` or "
        "`in doubt`",
        (messages.RewardRequest, list[messages.RewardRequest]),
        (messages.RewardAnswer, list[messages.RewardAnswer]),
    ),
    Route(
        "GET", "/v1/bundle", None, "What devices of a local policy decide with",
        answers=(bytes,), devices=True,
    ),
    Route(
        "GET", "/v1/digests", None, "Digests of all bundles, oldest first, for devices to compare",
        answers=(list[str],), devices=True,
    ),
    Route(
        "POST", "/v1/reports", None, "Bring reports of devices, one or many, judged one by one",
        (messages.ReportRequest, list[messages.ReportRequest]),
        (messages.ReportAnswer, list[messages.ReportAnswer]),
        devices=True,
    ),
    Route(
        "POST", "/v1/admin/catalogue", ADMIN, "Offer other actions from the next epoch on",
        (messages.CatalogueRequest,),
    ),
    Route(
        "POST", "/v1/admin/settings", ADMIN, "Change what may change, from the next epoch on",
        (messages.SettingsRequest,),
    ),
    Route("POST", "/v1/admin/mode", ADMIN, "Change who decides", (messages.ModeRequest,)),
    Route("POST", "/v1/admin/close", ADMIN, "Close what is due", (messages.CloseRequest,)),
    Route(
        "POST", "/v1/admin/sums", ADMIN, "Take up what files of reports add up to",
        (messages.SumRequest,),
    ),
    Route("GET", "/v1/live", OPERATOR, "Live counts, inside the trust boundary"),
    Route("GET", "/metrics", READ, "Public figures for Prometheus", answers=(str,)),
    Route(
        "GET", "/metrics/live", OPERATOR,
        "The same with counts and times of requests, inside the trust boundary", answers=(str,),
    ),
    Route("GET", "/healthz", None, "Whether the process lives", anywhere=True),
    Route("GET", "/readyz", None, "Whether the store serves", anywhere=True),
    Route("GET", "/v1/policy", READ, "What the policy is, and how far it has come"),
    Route("GET", "/v1/epochs", READ, "One record for each closed epoch", answers=(list,)),
    Route("GET", "/v1/estimate", READ, "Estimated reward by action, over the public contexts"),
    Route("GET", "/v1/explanation", READ, "What the releases made it believe"),
    Route("GET", "/v1/certificate", READ, "The certificate of differential privacy"),
    Route(
        "GET", "/v1/certificate.html", READ, "The same as pages to be printed", answers=(str,),
    ),
    Route("GET", "/v1/worth", READ, "Lift over other ways to play, and who gets what"),
    Route("GET", "/v1/ledger", READ, "What was promised and spent, release by release"),
    Route(
        "GET", "/v1/shadow", READ, "What the policy would have been worth, as released",
        answers=(list,),
    ),
    Route("GET", "/v1/forecast", READ, "What was expected before the first user"),
    Route("GET", "/v1/operations", READ, "What operators did, one line each", answers=(list,)),
)  # fmt: skip


class Application:
    """The service of an open policy, as ASGI has it; the policy is closed with the service.

    Endpoints are found by their path: a router that tries one route after the other, and wraps
    each request, takes as long as deciding.
    """

    def __init__(
        self,
        policy: Capri | LocalCapri,
        *,
        name: str = "policy",
        keys: KeyRing | None,
        hosts: tuple[str, ...] = (),
        limits: ServiceLimits | None = None,
        expected: Callable[[], Any] = lambda: None,
        site: Path | None = None,
        file: "PolicyFile | None" = None,
        told: Traced | None = None,
    ) -> None:
        """Without ``keys`` whoever reaches it may do everything: for this machine alone.

        ``expected`` looks for a forecast. ``site``: a folder whose files are served at ``/site/``.
        ``file``: what the policy was described by. ``told``: of each request.
        """
        self._policy, self._name, self._expected, self._file = policy, name, expected, file
        self._guard, self._http = Guard(keys, hosts, limits or ServiceLimits()), HttpCounts(told)
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
            await respond(response_to(missing), send, dict(scope["headers"]))

    def hurry(self, seconds: float) -> None:
        """Tell who waits for longer than this what became of it: the service is to end."""
        for batcher in self.handlers.batchers:
            batcher.hurry(seconds)

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
        for batcher in self.handlers.batchers:  # each after what waits
            await asyncio.to_thread(batcher.stop)
        await asyncio.to_thread(self._policy.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        if isinstance(self._policy, LocalCapri):
            figures = DeviceFigures(self._policy, self._name)
            self.handlers = DeviceHandlers(self._policy, self._guard, figures, self._http)
        else:
            try:
                await asyncio.to_thread(self._policy.warm)
            except Exception as problem:  # keys are served all the same, and /readyz tells
                _log.warning("no epoch could be planned at the start (%s)", type(problem).__name__)
            self.handlers = JointHandlers(
                self._policy,
                self._guard,
                Figures(self._policy, self._name, self._expected, self._file),
                self._http,
                self._file,
            )
        offered = self.handlers.routes | {"/healthz": fixed(Response(encode({"status": "alive"})))}
        for route in ROUTES:
            handler = offered.get(route.path)
            if handler is None:
                handler = elsewhere(self.handlers.elsewhere)
                route = Route(route.method, route.path, route.role)
            self._endpoints[route.path] = Endpoint(self._guard, handler, route, self._http)


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


# -- the interface as a document -------------------------------------------------------------------


def document(limits: ServiceLimits) -> dict[str, Any]:
    """All endpoints, with the limits of this service."""
    kinds = [each for route in ROUTES for each in (*route.body, *route.answers)]
    kinds += [messages.ErrorAnswer, messages.RefusedItem]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_PLACE)
    for schema in schemas.values():
        schema.pop("title", None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "capri",
            "version": VERSION,
            "description": (
                "A differentially private contextual bandit. Only the envelope of a request may "
                "be refused; whatever is in `context`, `actions`, `chosen` or `reward` is private, "
                "is served, and is never quoted."
            ),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": {
            route.path: {route.method.lower(): _operation(route, limits.largest_batch)}
            for route in ROUTES
        },
    }


def _operation(route: Route, most: int) -> dict[str, Any]:
    refusal = _content(_schema(messages.ErrorAnswer))
    described: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": route.summary, **_answer(route)},
            **{code: {"description": text, **refusal} for code, text in _REFUSALS.items()},
        },
    }
    if route.role is not None:
        described["description"] = f"Role `{route.role}`."
    else:
        described["security"] = []
    if route.devices:
        described["description"] = "No key; other sites may ask."
    if route.body:
        schemas = [_schema(kind, {"maxItems": most}) for kind in route.body]
        described["requestBody"] = {"required": True, **_content(_any_of(schemas))}
        if route.devices:
            longest = {"minLength": REPORT_SIZE, "maxLength": REPORT_SIZE * most}
            binary = {"type": "string", "format": "binary", **longest}
            described["requestBody"]["content"][BINARY.decode()] = {"schema": binary}
    return described


def _answer(route: Route) -> dict[str, Any]:
    if route.answers == (str,):
        return {"content": {"text/html" if route.path.endswith(".html") else "text/plain": {}}}
    if route.answers == (bytes,):
        return _content({"type": "string"}, BINARY)
    return _content(_any_of([_schema(kind, refused=True) for kind in route.answers]))


def _content(schema: dict[str, Any], kind: bytes = JSON) -> dict[str, Any]:
    return {"content": {kind.decode(): {"schema": schema}}}


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _schema(
    kind: Any, bounds: dict[str, int] | None = None, *, refused: bool = False
) -> dict[str, Any]:
    """A type as JSON Schema; ``refused``: items of a list may have been refused."""
    (found,), _ = msgspec.json.schema_components([kind], ref_template=_PLACE)
    schema: dict[str, Any] = found
    if "items" in schema:
        schema |= bounds or {}
        if refused:
            schema["items"] = {"anyOf": [schema["items"], _schema(messages.RefusedItem)]}
    return schema
