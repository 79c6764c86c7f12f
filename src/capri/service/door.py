"""The way in and out of every endpoint: host, key, role, content type, size, time; then the answer.

Whatever goes wrong behind a door becomes an answer that quotes nothing of the request; what nobody
expected is told to the log by the name of its type alone.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

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
from capri.service.keys import EVERYBODY, Holder, KeyRing
from capri.service.limits import Bucket, Limits
from capri.service.messages import RefusalError, encode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]

JSON = b"application/json"
_log = logging.getLogger("capri.service")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
# Headers that a proxy adds: behind one, "local" is everybody.
_FORWARDED = re.compile(
    rb"(x-)?forwarded(-.*)?|via|x-real-ip|(x-)?(cluster-)?client-ip|(true|cf)-.*ip|x-original-.*"
)
# Headers that mean one thing: sent twice, a proxy and this service might read different ones.
_ONCE = (b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding")
_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]
_AWAY = (
    "the store cannot be reached or does not go on: this was not done, and nothing acknowledged is "
    "lost. Try again"
)
_IN_DOUBT = (
    "the store was lost while it stored this, or takes too long: it may have been done or not. Ask "
    "again with the same key"
)
_NOTHING = b"default-src 'none'; frame-ancestors 'none'"


class Call(Struct):
    """A request that was let in."""

    holder: Holder
    body: bytes
    query: bytes = b""
    kind: bytes = JSON
    receive: Receive | None = None

    def taken(self) -> bytes:
        """The body, which is not kept: what waits for the store has been read."""
        body, self.body = self.body, b""
        return body


class Answer(Struct):
    """What goes back; JSON unless it says otherwise."""

    body: bytes
    status: int = 200
    kind: bytes = JSON
    more: tuple[tuple[bytes, bytes], ...] = ()
    policy: bytes = _NOTHING


Handler = Callable[[Call], Awaitable[Answer]]


class Guard:
    """Who may come in: the keys, hosts and limits of one service."""

    def __init__(self, keys: KeyRing | None, hosts: tuple[str, ...], limits: Limits) -> None:
        """Without ``keys`` everybody on this machine may do everything."""
        self._keys, self.limits = keys, limits
        self._hosts = frozenset((*_LOCAL, *hosts))
        self._buckets: dict[str, Bucket] = {}
        self._failures = Bucket(50.0)

    def check_host(self, headers: Headers, *, foreign: bool = False) -> None:
        """Refuse names that are not ours, and proxies in front of a service without keys.

        ``foreign``: what is asked for is for the pages of other sites, too.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts:
            raise RefusalError(
                421, "must be localhost or one of the hosts of [service] in the policy file", "Host"
            )
        if self._keys is None:
            if any(_FORWARDED.fullmatch(name) for name in headers):
                raise RefusalError(
                    403, "a service without keys is for this machine alone: it answers no proxy"
                )
            other = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
            if other and not foreign:
                raise RefusalError(403, "other sites may not ask a service without keys")

    def holder(self, headers: Headers, role: str | None) -> Holder:
        """Whose key came with a request, if it is good for this."""
        if role is None or self._keys is None:
            return EVERYBODY
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        found = self._keys.holder(key.strip()) if scheme.lower() == b"bearer" else None
        if found is None:
            if not self._failures.take(1, time.monotonic()):
                raise RefusalError(429, "too many requests without a key that is known", wait=1)
            raise RefusalError(401, "must be 'Bearer' and a key of this service", "Authorization")
        if role not in found.roles:
            raise RefusalError(403, f"this key has not the role {role!r}", "Authorization")
        return found

    def admit(self, holder: Holder, items: int) -> None:
        """Refuse more items a second than a key may have."""
        bucket = self._buckets.get(holder.name)
        if bucket is None:
            bucket = self._buckets[holder.name] = Bucket(self.limits.rate)
        if not bucket.take(items, time.monotonic()):
            raise RefusalError(429, f"at most {self.limits.rate:g} items a second", wait=1)


class Door:
    """An endpoint as ASGI has it."""

    def __init__(
        self,
        guard: Guard,
        handler: Handler,
        role: str | None,
        *,
        reads_body: bool = False,
        items: int = 1,
        anywhere: bool = False,
    ) -> None:
        """``items``: what a request counts as; 0 where the handler counts what is in it.

        ``anywhere``: by whatever name it is asked for, as those do who look after machines.
        """
        self._anywhere = anywhere
        self._guard, self._handler, self._role = guard, handler, role
        self._items = items if role is not None else 0
        self._reads_body = reads_body
        self.method = "POST" if reads_body else "GET"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and its answer out."""
        if scope["method"] != self.method:
            answer = answer_to(RefusalError(405, "this method is not offered here", "method"))
            await reply(answer, send, close=True)
            return
        unread = self._reads_body
        try:
            headers: Headers = dict(scope["headers"])
            if len(headers) < len(scope["headers"]):
                check_once(scope["headers"])
            if not self._anywhere:
                self._guard.check_host(headers)
            holder = self._guard.holder(headers, self._role)
            if self._items:
                self._guard.admit(holder, self._items)
            call = Call(holder, b"", scope["query_string"], receive=receive)
            if self._reads_body:
                self._check_kind(headers)
                call.body = await self._body(headers, receive)
                unread = False
            answer = await self._handler(call)
        except BaseException as problem:
            answer = answer_to(problem)
        await reply(answer, send, close=unread and answer.status >= 400)

    @staticmethod
    def _check_kind(headers: Headers) -> None:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != JSON:
            raise RefusalError(415, "must be application/json", "Content-Type")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RefusalError(415, "must not be compressed", "Content-Encoding")

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        largest = self._guard.limits.largest_body
        told = headers.get(b"content-length", b"0")
        if len(told) > 18 or not told.isdigit() or int(told) > largest:
            raise RefusalError(413, f"must not be larger than {largest} bytes", "body")
        parts: list[bytes] = []
        size = 0
        while True:  # a body that comes too slowly ends with its connection: see protocol
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusalError(400, "the connection ended before the body", "body")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > largest:
                raise RefusalError(413, f"must not be larger than {largest} bytes", "body")
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


def check_once(given: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that came twice and means one thing."""
    names = [name for name, _ in given]
    for name in _ONCE:
        if names.count(name) > 1:
            raise RefusalError(400, "must be sent once", name.decode().title())


def answer_to(problem: BaseException) -> Answer:
    """What is said of a problem: our own words, which quote no value, or no words at all."""
    if not isinstance(problem, Exception):
        raise problem  # the server is told to stop
    if isinstance(problem, RefusalError):
        more = ((b"retry-after", str(problem.wait).encode()),) if problem.wait else ()
        if problem.status == 401:
            more = ((b"www-authenticate", b"Bearer"),)
        return Answer(encode({"error": problem.problem}), problem.status, more=more)
    status, said = refusal_of(problem)
    more = ((b"retry-after", b"1"),) if status in (503, 504) else ()
    return Answer(encode({"error": {"problem": said}}), status, more=more)


def refusal_of(problem: BaseException) -> tuple[int, str]:
    """The status and the words for what the library raised."""
    if isinstance(problem, StorageError | BudgetError):
        note(logging.WARNING, f"the store does not serve ({type(problem).__name__})")
        if isinstance(problem, InDoubtError):
            return 504, _IN_DOUBT
        return 503, _AWAY
    if isinstance(problem, HorizonError):
        return 409, str(problem)
    if isinstance(problem, ConfigurationError | DataError):
        return 422, str(problem)
    if not isinstance(problem, CapriError):
        note(logging.ERROR, f"a request failed unexpectedly ({type(problem).__name__})")
    return 500, "something failed here: the log of the service names its kind"


_noted: dict[str, float] = {}


def note(level: int, text: str) -> None:
    """A line of the log, at most one a second of each: a store that is away fails many requests."""
    now = time.monotonic()
    if now - _noted.get(text, -1.0) >= 1.0:
        _noted[text] = now
        _log.log(level, "%s", text)


async def reply(answer: Answer, send: Send, *, close: bool = False) -> None:
    """Send an answer."""
    headers = [
        (b"content-type", answer.kind),
        (b"content-length", str(len(answer.body)).encode()),
        (b"content-security-policy", answer.policy),
        *_SAFE,
        *answer.more,
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
