"""Endpoints that decide and reward, singly and in lists."""

import asyncio
import time
from itertools import compress
from typing import Any

from capri.errors import AwayError, CapriError, InDoubtError
from capri.service.clerk import Clerk
from capri.service.door import Answer, Call, Guard, refusal_of
from capri.service.envelope import needed, read_many, read_one
from capri.service.lane import Lane, Leave, Work
from capri.service.live import Live
from capri.service.messages import (
    Decided,
    Problem,
    RefusalError,
    Refused,
    Rewarded,
    RewardItem,
    Visit,
    encode,
)
from capri.service.tally import Tally

_LIST = b"["
_LONG = 32  # items of a list that goes its own way
_SPACES = b" \t\r\n"
# Bytes of an item that may wait as it came. What is larger is read at once, and waits as numbers.
_SMALL = 1 << 10
# Of a reward beyond those that one decision may have: whether one of them counts is not known.
_BEYOND = Rewarded("uncounted")
# Seconds for which a store that failed a request is taken to be away, where nobody asks any more.
_UNREADY = 60.0


class Desk:
    """Takes visits and rewards apart, sends them down their lanes, and answers."""

    def __init__(self, clerk: Clerk, guard: Guard, live: Live) -> None:
        self._guard, self._limits, self._live = guard, guard.limits, live
        self._clerk, limits = clerk, guard.limits
        self._visit_needs, self._reward_needs = clerk.visit_needs, clerk.reward_needs
        self._tally = Tally(limits.rewards_each)

        def lane(name: str, work: Work, threads: int = 1) -> Lane:
            return Lane(
                name,
                work,
                limits.waiting,
                limits.answer_seconds,
                threads,
                room=limits.waiting_bytes,
                item_bytes=clerk.item_bytes,
                stored=clerk.stored,
            )

        self._plain = lane("decide", clerk.decide)
        self._keyed = lane("decide-keyed", clerk.decide)
        self._rewards = lane("reward", clerk.reward)
        # Lists are worth computing while another one is on its way to the disk.
        self._lists = lane("decide-lists", clerk.decide, threads=2)
        self._reward_lists = lane("reward-lists", clerk.reward, threads=2)
        self._lanes = (
            self._plain, self._keyed, self._rewards, self._lists, self._reward_lists,
        )  # fmt: skip

    def stop(self) -> None:
        """End after what waits."""
        for lane in self._lanes:
            lane.stop()

    def check(self) -> None:
        """Raise where the store failed a request and has done nothing that was asked since.

        After a minute without requests it is to be tried again: a proxy may send none meanwhile.
        """
        failed = max(lane.failed for lane in self._lanes)
        done = max(lane.done for lane in self._lanes)
        if failed > done and time.monotonic() - failed < _UNREADY:
            raise AwayError("the store does what is asked of it no more")

    # -- decisions --------------------------------------------------------------------------------

    async def decide(self, call: Call) -> Answer:
        """``POST /v1/decisions``."""
        began = time.perf_counter()
        large = len(call.body) > _SMALL
        visit = read_one(call.taken(), Visit, self._limits.deepest)
        self._check_visit(visit)
        self._guard.admit(call.holder, 1)
        if large:
            self._clerk.read_visits([visit])
        lane = self._plain if visit.key is None else self._keyed
        (made,) = await lane.do([visit], call.receive)
        if isinstance(made, BaseException):
            raise made
        self._live.visits([made.status])
        self._live.took("decisions", time.perf_counter() - began)
        return Answer(encode(made))

    async def decide_many(self, call: Call) -> Answer:
        """``POST /v1/decisions:batch``."""
        began = time.perf_counter()
        size = len(call.body)
        visits = read_many(call.taken(), Visit, self._limits.deepest, self._limits.largest_batch)
        self._guard.admit(call.holder, max(1, len(visits)))
        outcomes: list[Any] = list(visits)
        plain: list[int] = []
        keyed: list[int] = []
        needs = self._visit_needs
        for place, visit in enumerate(visits):
            if type(visit) is not Visit:
                continue
            if needs or visit.user is not None:
                try:
                    self._check_visit(visit)
                except RefusalError as refusal:
                    outcomes[place] = refusal
                    continue
            (plain if visit.key is None else keyed).append(place)
        own = self._plain if len(plain) < _LONG else self._lists
        if size > _SMALL * len(visits):
            self._clerk.read_visits([outcomes[place] for place in plain + keyed])
        await asyncio.gather(  # or a list of both kinds would wait twice
            *(
                _do(lane, places, outcomes, call.receive)
                for lane, places in ((own, plain), (self._keyed, keyed))
                if places
            )
        )
        statuses, body = _told(outcomes, [*plain, *keyed], Decided)
        self._live.visits(statuses)
        self._live.took("batches", time.perf_counter() - began)
        return Answer(body)

    def _check_visit(self, visit: Visit) -> None:
        if self._visit_needs:
            needed(self._visit_needs, visit)
        elif visit.user is not None:
            raise RefusalError(
                422, "is taken only by a policy that limits users: see [users] of its file", "user"
            )

    # -- rewards ----------------------------------------------------------------------------------

    async def reward(self, call: Call) -> Answer:
        """``POST /v1/rewards``: one, or a list."""
        began = time.perf_counter()
        if call.body.lstrip(_SPACES).startswith(_LIST):
            return await self._reward_many(call, began)
        item = read_one(call.taken(), RewardItem, self._limits.deepest)
        needed(self._reward_needs, item)
        self._clerk.read_rewards([item])
        outcomes: list[Any] = [item]
        await self._bring([0], outcomes, call)
        (outcome,) = outcomes
        if isinstance(outcome, BaseException):
            raise outcome
        self._live.rewards([outcome.status])
        self._live.took("rewards", time.perf_counter() - began)
        return Answer(encode(outcome))

    async def _reward_many(self, call: Call, began: float) -> Answer:
        size = len(call.body)
        items = read_many(
            call.taken(), RewardItem, self._limits.deepest, self._limits.largest_batch
        )
        outcomes: list[Any] = list(items)
        places = []
        needs = self._reward_needs
        for place, item in enumerate(items):
            if type(item) is not RewardItem:
                continue
            if needs:
                try:
                    needed(needs, item)
                except RefusalError as refusal:
                    outcomes[place] = refusal
                    continue
            places.append(place)
        if size > _SMALL * len(items):
            self._clerk.read_rewards([outcomes[place] for place in places])
        await self._bring(places, outcomes, call)
        statuses, body = _told(outcomes, places, Rewarded)
        self._live.rewards(statuses)
        self._live.took("reward batches", time.perf_counter() - began)
        return Answer(body)

    async def _bring(self, places: list[int], items: list[Any], call: Call) -> None:
        """Have the rewards at some places done; those beyond their decision's number are told so.

        They pass no lane, no transaction and no rate, all of which others share.
        """
        takes = self._tally.takes([items[place].id for place in places])
        more = places if all(takes) else list(compress(places, takes))
        named = [items[place] for place in more]
        for place in set(places).difference(more):
            items[place] = _BEYOND
        try:
            if counted := len(items) - len(places) + len(more):
                self._guard.admit(call.holder, counted)
        except RefusalError:
            self._tally.refund(item.id for item in named)
            raise
        if more:
            lane = self._rewards if len(more) < _LONG else self._reward_lists
            await _do(lane, more, items, call.receive)
        if set(map(type, items)) != {Rewarded}:
            both = zip(more, named, strict=True)
            self._tally.refund(
                item.id for place, item in both if isinstance(items[place], BaseException)
            )


async def _do(lane: Lane, places: list[int], items: list[Any], leave: Leave | None) -> None:
    """Have the items at some places done, and put what came of them there.

    A lane that takes none of them fails these alone: others may have been done.
    """
    try:
        made = await lane.do([items[place] for place in places], leave)
    except (RefusalError, CapriError) as problem:
        made = [problem] * len(places)
    if len(places) == len(items):
        items[:] = made
        return
    for place, outcome in zip(places, made, strict=True):
        items[place] = outcome


def _told(outcomes: list[Any], places: list[int], kind: type) -> tuple[list[str], bytes]:
    """The status of each item, and the answer.

    Where everything that was asked of the store failed alike, the whole request has.
    """
    if set(map(type, outcomes)) == {kind}:  # nearly always
        return [outcome.status for outcome in outcomes], encode(outcomes)
    made = [outcomes[place] for place in places]
    if made and all(isinstance(each, BaseException) for each in made):
        raise next((each for each in made if isinstance(each, InDoubtError)), made[0])
    return [_status(each) for each in outcomes], encode([_item(each) for each in outcomes])


def _item(outcome: Any) -> Any:
    if isinstance(outcome, RefusalError):
        return outcome.item()
    if isinstance(outcome, BaseException):
        _, said = refusal_of(outcome)
        known = isinstance(outcome, CapriError)
        return Refused(_status(outcome), Problem(said if known else "failed here"))
    return outcome


def _status(outcome: Any) -> str:
    if isinstance(outcome, InDoubtError):
        return "in doubt"
    return "refused" if isinstance(outcome, BaseException) else str(outcome.status)
