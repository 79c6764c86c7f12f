"""The application: which door leads where, and what starts and stops with it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from capri.joint.policy import Capri
from capri.service.admin import Admin
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
from capri.service.clerk import Clerk
from capri.service.desk import Desk
from capri.service.door import Answer, Call, Door, Guard, Handler
from capri.service.facts import Facts
from capri.service.keys import ADMIN, DECIDE, OPERATOR, READ, REWARD, KeyRing
from capri.service.limits import Limits
from capri.service.live import Live

_log = logging.getLogger("capri.service")
_FIGURES = (
    "policy",
    "epochs",
    "estimate",
    "explanation",
    "certificate",
    "ledger",
    "shadow",
    "forecast",
)
_HERE = (
    'this policy has model = "joint": it decides here, by POST /v1/decisions. Bundles and reports '
    'are of model = "local"'
)


def application(
    policy: Capri,
    *,
    name: str = "policy",
    keys: KeyRing | None,
    hosts: tuple[str, ...] = (),
    limits: Limits | None = None,
    expected: Callable[[], Any] = lambda: None,
) -> Service:
    """The service of an open policy; it is closed with the service.

    Without ``keys`` whoever reaches it may do everything: for this machine alone.
    """
    guard = Guard(keys, hosts, limits or Limits())
    schema = policy.contexts.schema
    live = Live(policy.problem.rewards, schema.names if schema is not None else ())
    facts = Facts(policy, name, expected)
    doors: dict[str, Door] = {}

    def post(path: str, handler: Handler, role: str) -> None:
        doors[path] = Door(guard, handler, role, reads_body=True, items=int(role == ADMIN))

    def get(path: str, handler: Handler, role: str | None) -> None:
        doors[path] = Door(guard, handler, role)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(policy.warm)
        except Exception as problem:  # keys are served all the same, and /readyz tells
            _log.warning("no epoch could be planned at the start (%s)", type(problem).__name__)
        desk = Desk(Clerk(policy, live.columns), guard, live)
        handlers["desk"] = desk
        try:
            yield
        finally:
            await asyncio.to_thread(desk.stop)
            await asyncio.to_thread(policy.close)

    handlers: dict[str, Desk] = {}

    def at_desk(method: str) -> Handler:
        handle: Callable[[Desk, Call], Awaitable[Answer]] = getattr(Desk, method)
        return lambda call: handle(handlers["desk"], call)

    def check() -> None:
        facts.check()
        if "desk" in handlers:
            handlers["desk"].check()

    admin = Admin(policy, facts)
    post("/v1/decisions", at_desk("decide"), DECIDE)
    post("/v1/rewards", at_desk("reward"), REWARD)
    post("/v1/decisions:batch", at_desk("decide_many"), DECIDE)
    for what in _FIGURES:
        get(f"/v1/{what}", read(getattr(facts, what)), READ)
    get("/v1/operations", read(admin.operations), READ)
    get("/v1/live", read(live.to_dict), OPERATOR)
    for what in ("catalogue", "mode", "close"):
        post(f"/v1/admin/{what}", getattr(admin, what), ADMIN)
    for path in ("/v1/bundle", "/v1/reports"):
        doors[path] = Door(guard, elsewhere(_HERE), None, reads_body=path == "/v1/reports")
    get("/metrics", metrics_of(facts), READ)
    doors["/healthz"] = Door(guard, healthy, None, anywhere=True)
    doors["/readyz"] = Door(guard, readiness(check), None, anywhere=True)
    doors |= page_doors(guard)
    return Service(doors, Starlette(lifespan=lifespan, exception_handlers={HTTPException: unknown}))
