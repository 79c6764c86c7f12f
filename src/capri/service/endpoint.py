"""An endpoint as ASGI has it: host, key, role, content type, size; then the handler's answer.

Whatever goes wrong in a handler becomes an answer that quotes nothing of the request; what nobody
expected is told to the log by the name of its type alone.

An endpoint for devices needs no key and may be asked by the pages of any site. It reads neither
addresses nor cookies, and answers nothing that is not public; so whoever makes a browser ask there
learns nothing by it.
"""

import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from msgspec import Struct

from capri.errors import (
    BudgetError,
    CapriError,
    ConfigurationError,
    DataError,
    HorizonError,
    InDoubtError,
    StorageError,
)
from capri.service.auth import ADMIN, DEVICES, OPERATOR, READ, Guard, Headers, Holder, RefusalError
from capri.service.messages import ErrorAnswer, ErrorDetail, encode
from capri.service.telemetry import HttpCounts, request_id

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON, BINARY = b"application/json", b"application/octet-stream"
_log = logging.getLogger("capri.service")
# Headers that mean one thing: sent twice, a proxy and this service might read different ones.
_ONCE = (b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding")
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
_CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"cross-origin-resource-policy", b"cross-origin"),
)
_AWAY = (
    "the store cannot be reached or does not go on: this was not done, and nothing acknowledged is "
    "lost. Try again"
)
_IN_DOUBT = (
    "the store was lost while it stored this, or takes too long: it may have been done or not. Ask "
    "again with the same key"
)
_NOTHING = b"default-src 'none'; frame-ancestors 'none'"


class Request(Struct):
    """A request that was let in."""

    holder: Holder
    body: bytes = b""
    kind: bytes = JSON
    receive: Receive | None = None
    headers: Headers = {}

    def take_body(self) -> bytes:
        """The body, which is not kept: what waits for the store has been read."""
        body, self.body = self.body, b""
        return body


class Response(Struct):
    """What goes back; JSON unless it says otherwise."""

    body: bytes
    status: int = 200
    kind: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    policy: bytes = _NOTHING


Handler = Callable[[Request], Awaitable[Response]]


class Route(NamedTuple):
    """What may be asked for at a path, by which role, with which types.

    ``body`` and ``answers`` are types of JSON values, of which any one may stand; a list of answers
    holds an item that was refused, too. ``devices``: without a key, from the pages of any site.
    ``anywhere``: by whatever name of the host, as those ask who look after machines.
    """

    method: str
    path: str
    role: str | None = None
    summary: str = ""
    body: tuple[Any, ...] = ()
    answers: tuple[Any, ...] = (dict,)
    devices: bool = False
    anywhere: bool = False


class Endpoint:
    """The handler of a route, behind a guard."""

    def __init__(
        self, guard: Guard, handler: Handler, route: Route, counts: HttpCounts | None = None
    ) -> None:
        """``counts``: of requests, for operators."""
        self._guard, self._handler = guard, handler
        self._path, self._counted = route.path, counts
        self._method, self._role = route.method, route.role
        self._anywhere, self._devices = route.anywhere, route.devices
        # Handlers of decisions and rewards count what is in a request.
        self._counts = route.role in (READ, OPERATOR, ADMIN)
        self._kinds = (JSON, BINARY) if route.devices else (JSON,)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and its answer out."""
        began = time.perf_counter()
        name = request_id.set(_new_name())
        try:
            status = await self._answer(scope, receive, send)
            if self._counted is not None:
                self._counted.note(self._path, status, time.perf_counter() - began)
        finally:
            request_id.reset(name)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        reads = unread = self._method == "POST"
        headers: Headers = dict(scope["headers"])
        try:
            if len(headers) < len(scope["headers"]):
                _check_once(scope["headers"])
            if not self._anywhere:
                self._guard.check_host(headers, foreign=self._devices)
            if scope["method"] != self._method:
                unread = True
                response = self._other_method(scope["method"])
            else:
                request = Request(self._holder(headers), receive=receive, headers=headers)
                if reads:
                    request.kind = self._kind(headers)
                    request.body = await self._body(headers, receive)
                    self._guard.admit_bytes(request.holder, len(request.body))
                    unread = False
                response = await self._handler(request)
        except BaseException as problem:
            response = response_to(problem)
        if self._devices:
            response.headers += _CORS
        await respond(response, send, headers, close=unread and response.status >= 400)
        return response.status

    def _holder(self, headers: Headers) -> Holder:
        """Whose request this is."""
        if self._devices:
            return DEVICES
        holder = self._guard.holder(headers, self._role)
        if self._counts:
            self._guard.admit(holder, 1)
        return holder

    def _other_method(self, method: str) -> Response:
        """A browser's question whether its page may ask, or a refusal."""
        if not self._devices or method != "OPTIONS":
            raise RefusalError(405, "this method is not offered here", "method")
        allowed = (
            (b"access-control-allow-methods", self._method.encode()),
            (b"access-control-allow-headers", b"content-type"),
            (b"access-control-max-age", b"86400"),
        )
        return Response(b"", 204, headers=allowed)

    def _kind(self, headers: Headers) -> bytes:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind not in self._kinds:
            allowed = " or ".join(each.decode() for each in reversed(self._kinds))
            raise RefusalError(415, f"must be {allowed}", "Content-Type")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RefusalError(415, "must not be compressed", "Content-Encoding")
        return kind

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        largest = self._guard.limits.largest_body
        told = headers.get(b"content-length", b"0")
        if len(told) > 18 or not told.isdigit() or int(told) > largest:
            raise RefusalError(413, f"must not be larger than {largest} bytes", "body")
        parts: list[bytes] = []
        size = 0
        while True:  # a body that comes too slowly ends with its connection: see the server
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusalError(400, "the connection ended before the body", "body")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > largest:
                raise RefusalError(413, f"must not be larger than {largest} bytes", "body")
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_once(given: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that came twice and means one thing."""
    names = [name for name, _ in given]
    for name in _ONCE:
        if names.count(name) > 1:
            raise RefusalError(400, "must be sent once", name.decode().title())


# -- answers ---------------------------------------------------------------------------------------


def response_to(problem: BaseException) -> Response:
    """What is said of a problem: our own words, which quote no value, or no words at all."""
    if not isinstance(problem, Exception):
        raise problem  # the server is told to stop
    status, detail = error_of(problem)
    wait = problem.wait if isinstance(problem, RefusalError) else int(status in (503, 504))
    headers = ((b"retry-after", str(wait).encode()),) if wait else ()
    if status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    return Response(encode(ErrorAnswer(detail)), status, headers=headers)


def error_of(problem: BaseException) -> tuple[int, ErrorDetail]:
    """The status and the words for a refusal, or for what the library raised."""
    if isinstance(problem, RefusalError):
        return problem.status, ErrorDetail(problem.problem, problem.field)
    if isinstance(problem, StorageError | BudgetError):
        note(logging.WARNING, f"the store does not serve ({type(problem).__name__})")
        if isinstance(problem, InDoubtError):
            return 504, ErrorDetail(_IN_DOUBT)
        return 503, ErrorDetail(_AWAY)
    if isinstance(problem, HorizonError):
        return 409, ErrorDetail(str(problem))
    if isinstance(problem, ConfigurationError | DataError):
        return 422, ErrorDetail(str(problem))
    if not isinstance(problem, CapriError):
        note(logging.ERROR, f"a request failed unexpectedly ({type(problem).__name__})")
    return 500, ErrorDetail("something failed here: the log of the service names its kind")


_OTHERS = re.compile(rb"[!-~]{1,128}")
_random: Iterator[bytes] = iter(())


def _new_name() -> bytes:
    """A random name: a number that counts up tells of others. Asked for many at a time."""
    global _random
    for name in _random:
        return name
    digits = os.urandom(4096).hex().encode()
    _random = (digits[place : place + 16] for place in range(0, len(digits), 16))
    return next(_random)


def _names(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    """What a request is called in its answer: by the caller, and in the log.

    Whatever a caller writes may say whose request it is, so it goes back to the caller and into no
    log. Ours goes along, for who keeps both.
    """
    own, theirs = request_id.get() or _new_name(), headers.get(b"x-request-id", b"")
    if not _OTHERS.fullmatch(theirs):
        return ((b"x-request-id", own),)
    return ((b"x-request-id", theirs), (b"x-capri-request", own))


_noted: dict[str, float] = {}


def note(level: int, text: str) -> None:
    """A line of the log, at most one a second of each: a store that is away fails many requests."""
    now = time.monotonic()
    if now - _noted.get(text, -1.0) >= 1.0:
        _noted[text] = now
        _log.log(level, "%s", text)


async def respond(response: Response, send: Send, asked: Headers, *, close: bool = False) -> None:
    """Send an answer to a request with these headers."""
    told = {name for name, _ in response.headers}
    headers = [
        (b"content-type", response.kind),
        (b"content-length", str(len(response.body)).encode()),
        (b"content-security-policy", response.policy),
        *(each for each in _SAFE if each[0] not in told),
        *_names(asked),
        *response.headers,
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
