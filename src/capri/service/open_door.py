"""The way in for devices: no key, any origin, and nothing kept of who came.

A door that other sites may ask, which no other of the service is. It needs no key, reads neither
addresses nor cookies, and answers nothing that is not public; so whoever makes a browser ask here
learns nothing by it.
"""

from msgspec import structs

from capri.service.door import (
    JSON,
    Answer,
    Call,
    Door,
    Guard,
    Handler,
    Headers,
    Receive,
    Scope,
    Send,
    answer_to,
    check_once,
    reply,
)
from capri.service.keys import Holder
from capri.service.messages import RefusalError

BINARY = b"application/octet-stream"
# One holder for all of them: a limit for each would need to know who is who.
DEVICES = Holder("devices", frozenset())
_CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"cross-origin-resource-policy", b"cross-origin"),
)
_A_DAY = b"86400"


class OpenDoor(Door):
    """An endpoint that anybody may ask, from any page."""

    def __init__(self, guard: Guard, handler: Handler, *, reads_body: bool = False) -> None:
        super().__init__(guard, handler, None, reads_body=reads_body)
        self._allowed = (
            *_CORS,
            (b"access-control-allow-methods", self.method.encode()),
            (b"access-control-allow-headers", b"content-type"),
            (b"access-control-max-age", _A_DAY),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and its answer out."""
        unread = True
        try:
            headers: Headers = dict(scope["headers"])
            if len(headers) < len(scope["headers"]):
                check_once(scope["headers"])
            self._guard.check_host(headers, foreign=True)
            if scope["method"] == "OPTIONS":
                await reply(Answer(b"", 204, more=self._allowed), send)
                return
            if scope["method"] != self.method:
                raise RefusalError(405, "this method is not offered here", "method")
            body, kind = b"", b""
            if self._reads_body:
                kind = _kind_of(headers)
                body = await self._body(headers, receive)
            unread = False
            answer = await self._handler(Call(DEVICES, body, kind=kind))
        except BaseException as problem:
            answer = answer_to(problem)
        answer = structs.replace(answer, more=(*answer.more, *_CORS))
        await reply(answer, send, close=unread)


def _kind_of(headers: Headers) -> bytes:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in (JSON, BINARY):
        allowed = f"must be {BINARY.decode()} or {JSON.decode()}"
        raise RefusalError(415, allowed, "Content-Type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RefusalError(415, "must not be compressed", "Content-Encoding")
    return kind
