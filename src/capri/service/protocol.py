"""HTTP on a connection, with patience that ends: for headers, for bodies, for their size."""

import asyncio
from typing import Any, ClassVar
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEADERS = 64 << 10
_PERIOD = 0.5


class PatientProtocol(HttpToolsProtocol):
    """Closes connections whose headers or body take too long, or headers too much room.

    uvicorn itself closes those that stay idle between requests. Deadlines are looked at from time
    to time, all at once: a timer for each request would cost more than it is worth.
    """

    header_seconds = 10.0
    body_seconds = 10.0
    _watched: ClassVar["WeakSet[PatientProtocol]"] = WeakSet()
    _watch: asyncio.TimerHandle | None = None
    _deadline: float | None = None
    _size = 0
    _in_headers = True

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.time() + self.header_seconds
        cls = PatientProtocol
        cls._watched.add(self)
        if cls._watch is None:
            cls._watch = self.loop.call_later(_PERIOD, _look, self.loop)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
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

    def hurry(self, now: float) -> None:
        """Close the connection where what is awaited is overdue."""
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
