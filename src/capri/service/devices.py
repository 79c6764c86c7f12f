"""Handlers of an aggregator: bundles for devices, reports from them."""

import asyncio
import gzip
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import asdict

from capri.files import secret
from capri.local.aggregator import LocalCapri
from capri.local.reports import EpochSum, ReportStatus
from capri.local.tickets import SIZE, Tickets
from capri.service.auth import Guard
from capri.service.batch import MicroBatcher
from capri.service.endpoint import BINARY, Handler, Request, Response
from capri.service.figures import DeviceFigures
from capri.service.handlers import item_of, metrics_of, shared_routes
from capri.service.messages import (
    REPORT_SIZE,
    CloseRequest,
    ReportAnswer,
    SumRequest,
    encode,
    is_list,
    read_public,
    read_reports,
)
from capri.service.telemetry import HttpCounts, live_text
from capri.store.seal import key_from

TICKET_KEY = "CAPRI_TICKET_KEY"


def tickets_of_environment() -> Tickets | None:
    """The key of tickets, where reports need them."""
    key = secret(TICKET_KEY)
    return Tickets(key_from(key.encode(), TICKET_KEY)) if key else None


@lru_cache(maxsize=1)
def _compressed(data: bytes) -> bytes:
    """Once for each bundle; without a time in it, so that workers send the same."""
    return gzip.compress(data, mtime=0)


class DeviceHandlers:
    """A bundle for everybody, reports from anybody, figures and operations of an aggregator.

    Nothing that arrives here needs protection by this process: a report is private when it leaves
    its device. What is refused is the envelope; every report has a status of its own.
    """

    elsewhere = (
        'this policy has model = "local": devices decide for themselves by GET /v1/bundle, and '
        "POST /v1/reports takes what they report"
    )

    def __init__(
        self, aggregator: LocalCapri, guard: Guard, figures: DeviceFigures, http: HttpCounts
    ) -> None:
        """Within a running event loop, which the micro-batcher answers to."""
        self._aggregator, self._guard, self._figures = aggregator, guard, figures
        self._http, self._tickets = http, tickets_of_environment()
        self._batcher = MicroBatcher("reports", self._receive, guard.limits)
        self.batchers = (self._batcher,)

    @property
    def routes(self) -> dict[str, Handler]:
        """The handler of each path."""
        figures = self._figures
        return shared_routes(figures, self._renew, figures.check) | {
            "/v1/bundle": self._bundle,
            "/v1/digests": self._digests,
            "/v1/reports": self._reports,
            "/v1/admin/close": self._close_epoch,
            "/v1/admin/sums": self._sums,
            "/metrics/live": metrics_of(
                partial(live_text, figures, self._http, self.batchers, None)
            ),
        }

    def _receive(self, reports: list[bytes]) -> list[ReportStatus]:
        """What became of each report; those that count are durable."""
        if self._tickets is not None:
            reports = self._tickets.reports(reports)
        return [ReportStatus(code) for code in self._aggregator.receive_many(reports).tolist()]

    async def _bundle(self, request: Request) -> Response:
        """The same bytes for everybody, or that they are those which the device has."""
        self._guard.admit(request.holder, 1)
        data = await asyncio.to_thread(self._aggregator.bundle)
        digest = data[-32:].hex().encode()
        short = b"gzip" in request.headers.get(b"accept-encoding", b"").lower()
        tag = b'"' + digest + (b'-gzip"' if short else b'"')  # another tag for other bytes
        # Asked for each time: a device that has the newest bundle is told so in a few bytes.
        headers = [(b"etag", tag), (b"cache-control", b"no-cache"), (b"vary", b"accept-encoding")]
        if digest in request.headers.get(b"if-none-match", b""):
            return Response(b"", 304, BINARY, tuple(headers))
        if short:
            headers.append((b"content-encoding", b"gzip"))
            data = await asyncio.to_thread(_compressed, data)
        return Response(data, kind=BINARY, headers=tuple(headers))

    async def _digests(self, request: Request) -> Response:
        """Of all bundles, oldest first."""
        self._guard.admit(request.holder, 1)
        listed = await asyncio.to_thread(lambda: list(self._aggregator.digests))
        return Response(encode(listed), headers=((b"cache-control", b"no-cache"),))

    async def _reports(self, request: Request) -> Response:
        """One, or many; durable before the answer."""
        binary = request.kind == BINARY
        size, most = (
            REPORT_SIZE if self._tickets is None else SIZE,
            self._guard.limits.largest_batch,
        )
        items = read_reports(request.body, most, binary=binary, size=size)
        self._guard.admit(request.holder, max(1, len(items)))
        outcomes = [item_of(item) for item in items]
        places = [place for place, item in enumerate(items) if isinstance(item, bytes)]
        if places:
            made = await self._batcher.do([items[place] for place in places])
            for place, outcome in zip(places, made, strict=True):
                if isinstance(outcome, BaseException):  # all of them, or none
                    raise outcome
                outcomes[place] = ReportAnswer(str(outcome))
        listed = len(items) > 1 if binary else is_list(request.body)
        return Response(encode(outcomes if listed else outcomes[0]))

    def _renew(self, actions: Any, **_: str) -> None:
        self._aggregator.replace_actions(actions)

    async def _close_epoch(self, request: Request) -> Response:
        """Read what has come in, and hand out a new bundle."""
        given = read_public(request.body, CloseRequest)
        return await self._ended("closed", lambda: self._aggregator.close_epoch(early=given.early))

    async def _sums(self, request: Request) -> Response:
        """Take up what the reports in files add up to; the newest epoch ends with it."""
        added = EpochSum.from_dict(asdict(read_public(request.body, SumRequest)))
        return await self._ended("accepted", lambda: self._aggregator.receive_sum(added))

    async def _ended(self, status: str, step: Callable[[], None]) -> Response:
        """What ends an epoch, and how many readings there are after it."""
        await asyncio.to_thread(step)
        releases = await asyncio.to_thread(lambda: len(self._aggregator.epochs))
        return Response(encode({"status": status, "releases": releases}))
