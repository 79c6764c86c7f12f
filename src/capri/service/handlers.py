"""Handlers of a policy that decides here, and what handlers of both models share.

``routes`` has a handler for every path that the model serves.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import compress
from math import inf
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from capri.errors import AwayError, CapriError, ConfigurationError, InDoubtError
from capri.service.auth import Guard, RefusalError, RewardQuota
from capri.service.batch import Leave, MicroBatcher, Work
from capri.service.decisions import BulkPolicy
from capri.service.endpoint import Handler, Request, Response, error_of
from capri.service.messages import (
    CatalogueRequest,
    CloseRequest,
    DecisionAnswer,
    DecisionRequest,
    ErrorDetail,
    ModeRequest,
    RefusedItem,
    RewardAnswer,
    RewardRequest,
    SettingsRequest,
    encode,
    is_list,
    needed,
    read_many,
    read_one,
    read_public,
)
from capri.service.monitoring import LiveCounts
from capri.service.tables import actions_from
from capri.service.telemetry import METRICS, HttpCounts, live_text, public_text

if TYPE_CHECKING:
    from capri.joint.policy import Capri
    from capri.service.changes import PolicyFile
    from capri.service.figures import Figures

Item = TypeVar("Item", bound=Struct)
_LONG = 32  # items of a list that goes its own way
# Bytes of an item that may wait as it came. What is larger is read at once, and waits as numbers.
_SMALL = 1 << 10
# Of a reward beyond those that one decision may have: whether one of them counts is not known.
_BEYOND = RewardAnswer("uncounted")
_SOUND = 1.0  # seconds for which a store that took a write is not asked again
_READY = 2.0  # seconds within which a store answers that is ready
_PRINTED = b"default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PUBLIC = ("policy", "epochs", "estimate", "explanation", "certificate", "ledger")


class JointHandlers:
    """Decisions, rewards, figures and operations of a policy that decides here."""

    elsewhere = (
        'this policy has model = "joint": it decides here, by POST /v1/decisions. Bundles and '
        'reports are of model = "local"'
    )

    def __init__(
        self,
        policy: "Capri",
        guard: Guard,
        figures: "Figures",
        http: HttpCounts,
        file: "PolicyFile | None" = None,
    ) -> None:
        """Within a running event loop, which micro-batchers answer to."""
        self._policy, self._guard, self._limits = policy, guard, guard.limits
        self._figures, self._file = figures, file
        self._wrote, self._trying = -inf, Lock()
        schema = policy.contexts.schema
        assert schema is not None  # as every policy file has it
        self.live, self._http = LiveCounts(lambda: policy.problem, schema, http), http
        self._bulk = bulk = BulkPolicy(policy, self.live.columns.note, self.live.outside)
        self._quota = RewardQuota(guard.limits.rewards_each)
        self.item_bytes = bulk.item_bytes

        def batcher(name: str, work: Work, threads: int = 1) -> MicroBatcher:
            return MicroBatcher(
                name,
                work,
                guard.limits,
                threads=threads,
                item_bytes=bulk.item_bytes,
                stored=bulk.stored,
            )

        self.plain = batcher("decide", bulk.decide)
        self.keyed = batcher("decide-keyed", bulk.decide)
        self.rewards = batcher("reward", bulk.reward)
        # Lists are worth computing while another one is on its way to the disk.
        self.lists = batcher("decide-lists", bulk.decide, threads=2)
        self.reward_lists = batcher("reward-lists", bulk.reward, threads=2)
        self.batchers = (self.plain, self.keyed, self.rewards, self.lists, self.reward_lists)

    @property
    def routes(self) -> dict[str, Handler]:
        """The handler of each path."""
        figures, live = self._figures, self.live
        shared = shared_routes(figures, self._policy.change, self._check)
        return shared | {
            "/v1/decisions": self.decide,
            "/v1/decisions:batch": self.decide_many,
            "/v1/rewards": self.reward,
            "/v1/shadow": reading(figures.shadow),
            "/v1/forecast": reading(figures.forecast),
            "/v1/worth": reading(figures.worth),
            "/v1/operations": reading(self._operations),
            "/v1/live": reading(live.to_dict),
            "/v1/admin/settings": self._change,
            "/v1/admin/mode": self._set_mode,
            "/v1/admin/close": self._close_epoch,
            "/metrics/live": metrics_of(
                partial(live_text, figures, self._http, self.batchers, live)
            ),
        }

    def _check(self) -> None:
        """Raise where the store does not take a write, or releases do not go on.

        One try at a time, and one a second: a store that hangs holds one thread, not all of them.
        """
        self._figures.check()
        if time.monotonic() - self._wrote < _SOUND:
            return
        if not self._trying.acquire(blocking=False):
            raise AwayError("the last try of a write has not come back")
        try:
            self._policy.probe()
            self._wrote = time.monotonic()
        finally:
            self._trying.release()

    # -- decisions and rewards --------------------------------------------------------------------

    async def decide(self, request: Request) -> Response:
        """``POST /v1/decisions``."""
        size = len(request.body)
        visit = self._one(request, DecisionRequest)
        self._check_visit(visit)
        self._guard.admit(request.holder, 1)
        if size > _SMALL:
            self._bulk.read_visits([visit])
        batcher = self.plain if visit.key is None else self.keyed
        (made,) = await batcher.do([visit], request.receive)
        if isinstance(made, BaseException):
            raise made
        self.live.visits([made.status])
        return Response(encode(made))

    async def decide_many(self, request: Request) -> Response:
        """``POST /v1/decisions:batch``."""
        size = len(request.body)
        visits = self._listed(request, DecisionRequest)
        places = self._sound(visits, DecisionRequest, self._check_visit)
        self._guard.admit(request.holder, max(1, len(visits)))
        if size > _SMALL * len(visits):
            self._bulk.read_visits([visits[place] for place in places])
        keyed = [place for place in places if visits[place].key is not None]
        plain = [place for place in places if visits[place].key is None]
        own = self.plain if len(plain) < _LONG else self.lists
        await asyncio.gather(  # or a list of both kinds would wait twice
            *(
                _do(batcher, part, visits, request.receive)
                for batcher, part in ((own, plain), (self.keyed, keyed))
                if part
            )
        )
        statuses, body = _told(visits, places, DecisionAnswer)
        self.live.visits(statuses)
        return Response(body)

    def _check_visit(self, visit: DecisionRequest) -> None:
        if self._bulk.visit_needs:
            needed(self._bulk.visit_needs, visit)
        elif visit.user is not None:
            raise RefusalError(
                422, "is taken only by a policy that limits users: see [users] of its file", "user"
            )

    async def reward(self, request: Request) -> Response:
        """``POST /v1/rewards``: one, or a list."""
        if is_list(request.body):
            return await self._reward_many(request)
        item = self._one(request, RewardRequest)
        self._check_reward(item)
        self._bulk.read_rewards([item])
        outcomes: list[Any] = [item]
        await self._bring([0], outcomes, request)
        (outcome,) = outcomes
        if isinstance(outcome, BaseException):
            raise outcome
        self.live.rewards([outcome.status])
        return Response(encode(outcome))

    async def _reward_many(self, request: Request) -> Response:
        size = len(request.body)
        items = self._listed(request, RewardRequest)
        places = self._sound(items, RewardRequest, self._check_reward)
        if size > _SMALL * len(items):
            self._bulk.read_rewards([items[place] for place in places])
        await self._bring(places, items, request)
        statuses, body = _told(items, places, RewardAnswer)
        self.live.rewards(statuses)
        return Response(body)

    def _check_reward(self, item: RewardRequest) -> None:
        needed(self._bulk.reward_needs, item)

    async def _bring(self, places: list[int], items: list[Any], request: Request) -> None:
        """Have the rewards at some places done; those beyond their decision's number are told so.

        They pass no queue, no transaction and no rate, all of which others share.
        """
        takes = self._quota.takes([items[place].id for place in places])
        more = places if all(takes) else list(compress(places, takes))
        named = [items[place] for place in more]
        for place in set(places).difference(more):
            items[place] = _BEYOND
        try:
            if counted := len(items) - len(places) + len(more):
                self._guard.admit(request.holder, counted)
        except RefusalError:
            self._quota.refund(item.id for item in named)
            raise
        if more:
            batcher = self.rewards if len(more) < _LONG else self.reward_lists
            await _do(batcher, more, items, request.receive)
        if set(map(type, items)) != {RewardAnswer}:
            both = zip(more, named, strict=True)
            self._quota.refund(
                item.id for place, item in both if isinstance(items[place], BaseException)
            )

    def _one(self, request: Request, kind: type[Item]) -> Item:
        """The item of a body, one level less deep than in a list."""
        self._guard.count_bytes(request.holder, len(request.body), 1)
        return read_one(request.take_body(), kind, self._limits.deepest - 1)

    def _listed(self, request: Request, kind: type[Item]) -> list[Any]:
        """The items of a list, a refusal in the place of each that is none."""
        limits, size = self._limits, len(request.body)
        items = read_many(request.take_body(), kind, limits.deepest, limits.largest_batch)
        self._guard.count_bytes(request.holder, size, len(items))
        return [*items]

    @staticmethod
    def _sound(items: list[Any], kind: type[Item], check: Callable[[Item], None]) -> list[int]:
        """The places of items that are taken; a refusal comes in the place of any other."""
        places = []
        for place, item in enumerate(items):
            if type(item) is kind:
                try:
                    check(item)
                except RefusalError as refusal:
                    items[place] = refusal
                else:
                    places.append(place)
        return places

    # -- operations: bodies are public, and refusals may quote them --------------------------------

    def _operations(self) -> Any:
        return [operation.to_dict() for operation in self._policy.operations]

    async def _change(self, request: Request) -> Response:
        """Settings, as the policy file has them."""
        given, file = read_public(request.body, SettingsRequest), self._file
        if file is None:
            raise RefusalError(409, "this service was started without a policy file")

        def change() -> None:
            asked = file.requested(given.settings)
            if not asked:
                raise ConfigurationError("settings are empty: nothing is to change")
            self._policy.change(**asked, by=request.holder.name, why=given.why)

        try:
            await asyncio.to_thread(change)
        except ConfigurationError as problem:
            raise RefusalError(422, str(problem), "settings") from None
        self._figures.forget()
        return Response(encode({"status": "accepted", "effective": "from the next epoch on"}))

    async def _set_mode(self, request: Request) -> Response:
        given = read_public(request.body, ModeRequest)
        noted = {"by": request.holder.name, "why": given.why}
        try:
            await asyncio.to_thread(self._policy.set_mode, given.mode, action=given.action, **noted)
        except ConfigurationError as problem:
            raise RefusalError(422, str(problem), "mode") from None
        self._figures.forget()
        return Response(encode({"status": "accepted", "mode": given.mode}))

    async def _close_epoch(self, request: Request) -> Response:
        given = read_public(request.body, CloseRequest)
        await asyncio.to_thread(self._policy.close_epoch, early=given.early)
        return Response(encode({"status": "closed", "releases": len(self._policy.epochs)}))


async def _do(
    batcher: MicroBatcher, places: list[int], items: list[Any], leave: Leave | None
) -> None:
    """Have the items at some places done, and put what came of them there.

    A micro-batcher that takes none of them fails these alone: others may have been done.
    """
    try:
        made = await batcher.do([items[place] for place in places], leave)
    except (RefusalError, CapriError) as problem:
        made = [problem] * len(places)
    if len(places) == len(items):
        items[:] = made
        return
    for place, outcome in zip(places, made, strict=True):
        items[place] = outcome


def _told(outcomes: list[Any], places: list[int], kind: type) -> tuple[list[str], bytes]:
    """The status of each item of a list, and the answer.

    Where everything that was asked of the store failed alike, the whole request has.
    """
    if set(map(type, outcomes)) == {kind}:  # nearly always
        return [outcome.status for outcome in outcomes], encode(outcomes)
    made = [outcomes[place] for place in places]
    if made and all(isinstance(each, BaseException) for each in made):
        raise next((each for each in made if isinstance(each, InDoubtError)), made[0])
    items = [item_of(each) for each in outcomes]
    return [item.status for item in items], encode(items)


def item_of(outcome: Any) -> Any:
    """What a list says of an item."""
    if not isinstance(outcome, BaseException):
        return outcome
    _, detail = error_of(outcome)
    known = isinstance(outcome, RefusalError | CapriError)
    status = "in doubt" if isinstance(outcome, InDoubtError) else "refused"
    return RefusedItem(status, detail if known else ErrorDetail("failed here"))


# -- of both models --------------------------------------------------------------------------------


def shared_routes(
    figures: "Figures", replace: Callable[..., None], check: Callable[[], None]
) -> dict[str, Handler]:
    """``replace``: gives other actions to whatever decides or hands out bundles."""
    public = {f"/v1/{name}": reading(getattr(figures, name)) for name in _PUBLIC}
    return public | {
        "/v1/admin/catalogue": partial(replace_actions, replace, figures),
        "/metrics": metrics_of(partial(public_text, figures)),
        "/v1/certificate.html": page_of(figures.certificate_page),
        "/readyz": readiness(check, figures.mode),
    }


async def replace_actions(
    replace: Callable[..., None], figures: "Figures", request: Request
) -> Response:
    """A new catalogue, whose body is public."""
    given = read_public(request.body, CatalogueRequest)
    try:
        actions, by = actions_from(given.actions, Path()), request.holder.name
        await asyncio.to_thread(replace, actions=actions, by=by, why=given.why)
    except ConfigurationError as problem:
        raise RefusalError(422, str(problem), "actions") from None
    figures.forget()
    return Response(encode({"status": "accepted", "effective": "from the next epoch on"}))


def reading(compute: Callable[[], Any]) -> Handler:
    """Figures are computed in a thread: nobody's decision waits for them."""

    async def handle(_: Request) -> Response:
        return Response(encode(await asyncio.to_thread(compute)))

    return handle


def page_of(text: Callable[[], str]) -> Handler:
    """To be kept and opened: its own style, and no script."""

    async def handle(_: Request) -> Response:
        body = (await asyncio.to_thread(text)).encode()
        return Response(body, kind=b"text/html; charset=utf-8", policy=_PRINTED)

    return handle


def metrics_of(text: Callable[[], bytes]) -> Handler:
    """For Prometheus."""

    async def handle(_: Request) -> Response:
        return Response(await asyncio.to_thread(text), kind=METRICS)

    return handle


def readiness(check: Callable[[], None], mode: Callable[[], dict[str, Any]]) -> Handler:
    """Whether the store serves, and who decides; ``check`` raises where it does not."""

    def look() -> dict[str, Any]:
        check()
        return mode()

    async def handle(_: Request) -> Response:
        try:
            async with asyncio.timeout(_READY):
                told = await asyncio.to_thread(look)
        except (CapriError, TimeoutError):
            return Response(encode({"status": "the store does not serve"}), 503)
        return Response(encode({"status": "ready", **told}))

    return handle
