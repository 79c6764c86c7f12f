"""``model = "local"`` over HTTP: a bundle for everybody, reports from anybody, figures by role.

Nothing that arrives here needs protection by this process: a report is private when it leaves its
device. What is refused is the envelope; every report has a status of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from capri.joint.policy import Capri
from capri.privacy.promise import PrivacyModel
from capri.service.admin import DEEPEST, replace_actions
from capri.service.answers import (
    Service,
    elsewhere,
    healthy,
    metrics_of,
    page_doors,
    read,
    readiness,
    unknown,
)
from capri.service.collector import REPORT_SIZE, Collector
from capri.service.door import Answer, Call, Door, Guard, Handler
from capri.service.envelope import check_depth, read_as
from capri.service.facts import Facts
from capri.service.keys import ADMIN, READ, KeyRing
from capri.service.lane import Lane
from capri.service.limits import Limits
from capri.service.messages import Close, RefusalError, Report, Reported, encode
from capri.service.open_door import BINARY, OpenDoor
from capri.service.site import site_doors

_FIGURES = ("policy", "epochs", "estimate", "explanation", "certificate", "ledger")
_ELSEWHERE = (
    'this policy has model = "local": devices decide for themselves by GET /v1/bundle, and POST '
    "/v1/reports takes what they report"
)
_NOT_HERE = {
    "POST": ("/v1/decisions", "/v1/decisions:batch", "/v1/rewards", "/v1/admin/mode"),
    "GET": ("/v1/shadow", "/v1/forecast", "/v1/operations", "/v1/live"),
}
_REPORT = f"must be an object with the field report: {2 * REPORT_SIZE} hexadecimal digits"
_report = msgspec.json.Decoder(Report)
_reports = msgspec.json.Decoder(list[msgspec.Raw])


class DeviceDesk:
    """Hands out bundles and takes reports."""

    def __init__(self, collector: Collector, guard: Guard) -> None:
        self._collector, self._guard = collector, guard
        limits = guard.limits
        self._lane = Lane(
            "reports",
            collector.receive,
            limits.waiting,
            limits.answer_seconds,
            room=limits.waiting_bytes,
        )

    def stop(self) -> None:
        """End after what waits."""
        self._lane.stop()

    async def bundle(self, call: Call) -> Answer:
        """``GET /v1/bundle``: the same bytes for everybody."""
        self._guard.admit(call.holder, 1)
        data = await asyncio.to_thread(self._collector.bundle)
        digest = (b"etag", b'"' + data[-32:].hex().encode() + b'"')
        return Answer(data, kind=BINARY, more=(digest,))

    async def reports(self, call: Call) -> Answer:
        """``POST /v1/reports``: one, or many; durable before the answer."""
        most = self._guard.limits.largest_batch
        binary = call.kind == BINARY
        items, listed = _apart(call.body, most) if binary else _read(call.body, most)
        self._guard.admit(call.holder, max(1, len(items)))
        places = [place for place, item in enumerate(items) if isinstance(item, bytes)]
        outcomes: list[Any] = [
            item.item() if isinstance(item, RefusalError) else None for item in items
        ]
        if places:
            made = await self._lane.do([items[place] for place in places])
            for place, outcome in zip(places, made, strict=True):
                if isinstance(outcome, BaseException):  # all of them, or none
                    raise outcome
                outcomes[place] = Reported(str(outcome))
        return Answer(encode(outcomes if listed else outcomes[0]))


def _apart(body: bytes, most: int) -> tuple[list[bytes | RefusalError], bool]:
    """Reports one behind the other."""
    count, rest = divmod(len(body), REPORT_SIZE)
    if rest or not count:
        raise RefusalError(422, f"must be reports of {REPORT_SIZE} bytes each", "body")
    _check_count(count, most)
    items: list[bytes | RefusalError] = [
        body[start : start + REPORT_SIZE] for start in range(0, len(body), REPORT_SIZE)
    ]
    return items, count > 1


def _read(body: bytes, most: int) -> tuple[list[bytes | RefusalError], bool]:
    """A report as JSON, or a list of them."""
    check_depth(body, DEEPEST)
    if not body.lstrip(b" \t\r\n").startswith(b"["):
        return [_one(body)], False
    try:
        listed = _reports.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusalError(400, "must be JSON in UTF-8", "body") from None
    _check_count(len(listed), most)
    items: list[bytes | RefusalError] = []
    for each in listed:
        try:
            items.append(_one(bytes(each)))
        except RefusalError as refusal:
            items.append(refusal)
    return items, True


def _one(text: bytes) -> bytes:
    try:
        return bytes.fromhex(_report.decode(text).report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise RefusalError(422, _REPORT, "report") from None


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RefusalError(413, f"at most {most} reports may come at once", "body")


class _Follower:
    """The aggregator of a collector, whichever it is now."""

    model = PrivacyModel.LOCAL

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector.aggregator, name)


class DeviceFacts(Facts):
    """Public figures of an aggregator: all that it knows is public."""

    def __init__(self, collector: Collector, name: str) -> None:
        super().__init__(cast(Capri, _Follower(collector)), name)
        self._collector = collector

    @property
    def _state(self) -> object:
        """What changes with a reading, and with a new catalogue."""
        aggregator = self._collector.aggregator
        return len(aggregator.epochs), id(aggregator.actions)

    def check(self) -> None:
        """Raise where the file does not serve."""
        self._collector.check()

    def progress(self) -> Any:
        """Reports and epochs."""
        self._collector.look()
        aggregator = self._collector.aggregator
        epoch, taken, length = aggregator.under_way
        under_way = {"epoch": epoch, "length": length, "taken": taken, "open": True}
        return {
            "decided": aggregator.reports,
            "released": len(aggregator.epochs),
            "under_way": [under_way] if aggregator.remaining else [],
        }

    def _mode(self) -> dict[str, Any]:
        return {"mode": "active"}

    def ledger(self) -> Any:
        """What a device spends with its report: once, and on the device."""
        aggregator = self._collector.aggregator
        epsilon = aggregator.budget.epsilon if aggregator.budget else 0.0
        reported = epsilon if aggregator.reports else 0.0
        return {
            "budget": {"epsilon": epsilon, "delta": 0.0},
            "spent": {"epsilon": reported, "delta": 0.0, "mu": None},
            "releases": [
                {"epoch": each.epoch, "participants": each.length} for each in aggregator.epochs
            ],
        }


class DeviceAdmin:
    """Calls of the role ``admin``."""

    def __init__(self, collector: Collector, facts: Facts) -> None:
        self._collector, self._facts = collector, facts

    async def close(self, call: Call) -> Answer:
        """``POST /v1/admin/close``: read what has come in, and hand out a new bundle."""
        given = read_as(call.body, Close, DEEPEST)
        releases = await asyncio.to_thread(self._collector.close_epoch, early=given.early)
        return Answer(encode({"status": "closed", "releases": releases}))

    async def catalogue(self, call: Call) -> Answer:
        """``POST /v1/admin/catalogue``: other actions, from the next bundle on."""
        return await replace_actions(call, self._collector, self._facts)


def device_application(
    collector: Collector,
    *,
    name: str = "policy",
    keys: KeyRing | None,
    hosts: tuple[str, ...] = (),
    limits: Limits | None = None,
    site: Path | None = None,
) -> Service:
    """The service of an aggregator; it is closed with the service."""
    guard = Guard(keys, hosts, limits or Limits())
    facts = DeviceFacts(collector, name)
    admin = DeviceAdmin(collector, facts)
    desks: list[DeviceDesk] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        desks.append(DeviceDesk(collector, guard))
        try:
            yield
        finally:
            await asyncio.to_thread(desks[0].stop)
            await asyncio.to_thread(collector.close)

    def at_desk(handle: Callable[[DeviceDesk, Call], Any]) -> Handler:
        return lambda call: handle(desks[0], call)

    doors: dict[str, Door] = {
        "/v1/bundle": OpenDoor(guard, at_desk(DeviceDesk.bundle)),
        "/v1/reports": OpenDoor(guard, at_desk(DeviceDesk.reports), reads_body=True),
        "/v1/admin/close": Door(guard, admin.close, ADMIN, reads_body=True),
        "/v1/admin/catalogue": Door(guard, admin.catalogue, ADMIN, reads_body=True),
        "/metrics": Door(guard, metrics_of(facts), READ),
        "/healthz": Door(guard, healthy, None, anywhere=True),
        "/readyz": Door(guard, readiness(facts.check), None, anywhere=True),
    }
    for what in _FIGURES:
        doors[f"/v1/{what}"] = Door(guard, read(getattr(facts, what)), READ)
    for method, paths in _NOT_HERE.items():
        for path in paths:
            doors[path] = Door(guard, elsewhere(_ELSEWHERE), None, reads_body=method == "POST")
    doors |= page_doors(guard)
    if site is not None:
        doors |= site_doors(guard, site)
    return Service(doors, Starlette(lifespan=lifespan, exception_handlers={HTTPException: unknown}))
