"""Connections of the service: patience with callers that ends, and whole answers."""

import asyncio
from typing import Any, ClassVar, cast
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEADERS = 64 << 10
_PERIOD = 0.5  # seconds after which deadlines of connections are looked at again
_FINAL = (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4", b"HTTP/1.1 5")


class WholeAnswers:
    """A transport on which the head of an answer waits for its body, and both go out together.

    Handing bytes to the system takes about as long as reading a request.
    """

    __slots__ = ("_head", "_transport", "is_closing")

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or keep a head that says that a body follows."""
        if not self._head and data.startswith(_FINAL) and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close after what was written."""
        self.flush()
        self._transport.close()


class PatientProtocol(HttpToolsProtocol):
    """HTTP on a connection, with patience that ends: for headers, for bodies, for their size.

    Closes connections whose headers or body take too long, or headers too much room, and those
    whose caller takes no answers. Where there
    are as many connections as there may be, a new one takes the place of that which has been idle
    for longest; where none is idle it is closed itself.

    uvicorn itself closes those that stay idle between requests. Deadlines are looked at from time
    to time, all at once: a timer for each request would cost more than it is worth.
    """

    header_seconds = 10.0
    body_seconds = 10.0
    most = 512
    _watched: ClassVar["WeakSet[PatientProtocol]"] = WeakSet()
    _watch: asyncio.TimerHandle | None = None
    _deadline: float | None = None
    _unread: float | None = None  # when answers that nobody takes have waited for long enough
    _size = 0
    _heard = 0.0
    _in_headers = True

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        self._answers = answers = WholeAnswers(transport)  # a transport in all but name
        super().connection_made(cast(Any, answers))
        self._make_room()
        self._deadline = self.loop.time() + self.header_seconds
        cls = PatientProtocol
        cls._watched.add(self)
        if cls._watch is None:
            cls._watch = self.loop.call_later(_PERIOD, _look, self.loop)

    def _make_room(self) -> None:
        """Close a connection where there would be too many: an idle one, or this."""
        self._heard = self.loop.time()
        watched = PatientProtocol._watched
        if len(watched) >= self.most:
            idle = [each for each in watched if each._is_idle() and not each.transport.is_closing()]
            longest = min(idle, key=lambda each: each._heard, default=self)
            watched.discard(longest)
            longest.transport.close()

    def _is_idle(self) -> bool:
        """Whether no request is under way, the first bytes of one aside."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
        self._heard = self.loop.time()
        super().data_received(data)
        if self._in_headers:
            self._size += len(data)
            if self._size > _MOST_HEADERS:
                self.transport.close()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._deadline = self.loop.time() + self.header_seconds
        self._in_headers, self._size = True, 0

    def on_headers_complete(self) -> None:
        """Now the body."""
        self._in_headers = False
        self._deadline = self.loop.time() + self.body_seconds
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of a request is here."""
        self._deadline = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """There are more answers than the caller has taken."""
        super().pause_writing()
        self._unread = self.loop.time() + self.body_seconds

    def resume_writing(self) -> None:
        """It has taken most of them."""
        super().resume_writing()
        self._unread = None

    def on_response_complete(self) -> None:
        """An answer without a body ends with its head."""
        self._answers.flush()
        super().on_response_complete()

    def hurry(self, now: float) -> None:
        """Close the connection where what is awaited is overdue."""
        if self._unread is not None and now > self._unread:
            self.transport.abort()  # closing would wait for the caller, too
        if self._deadline is not None and now > self._deadline and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        PatientProtocol._watched.discard(self)
        super().connection_lost(exc)


def _look(loop: asyncio.AbstractEventLoop) -> None:
    now = loop.time()
    for connection in list(PatientProtocol._watched):
        connection.hurry(now)
    PatientProtocol._watch = loop.call_later(_PERIOD, _look, loop)
