"""HTTP on a connection, with patience for headers that ends."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEADERS = 64 << 10


class PatientProtocol(HttpToolsProtocol):
    """Closes connections whose headers take too long or too much room.

    uvicorn itself closes those that stay idle between requests, and the doors end slow bodies.
    """

    header_seconds = 10.0
    _slow: asyncio.TimerHandle | None = None
    _size = 0
    _in_headers = True

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def _await_headers(self) -> None:
        self._slow = self.loop.call_later(self.header_seconds, self._too_slow)
        self._in_headers, self._size = True, 0

    def _too_slow(self) -> None:
        self._slow = None
        if not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
        if self._in_headers:
            self._size += len(data)
            super().data_received(data)
            if self._in_headers and self._size > _MOST_HEADERS:
                self.transport.close()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._slow is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        """Headers are here: the rest is for the doors."""
        self._in_headers = False
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        super().connection_lost(exc)
