"""Endpoints that decide and reward, singly and in lists."""

import time
from typing import Any

from capri.errors import CapriError
from capri.service.clerk import Clerk
from capri.service.door import Answer, Call, Guard, refusal_of
from capri.service.envelope import needed, read_many, read_one
from capri.service.lane import Lane
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

_LIST = b"["
_LONG = 32  # items of a list that goes its own way
_SPACES = b" \t\r\n"


class Desk:
    """Takes visits and rewards apart, sends them down their lanes, and answers."""

    def __init__(self, clerk: Clerk, guard: Guard, live: Live) -> None:
        self._guard, self._limits, self._live = guard, guard.limits, live
        self._visit_needs, self._reward_needs = clerk.visit_needs, clerk.reward_needs
        most = (guard.limits.waiting, guard.limits.answer_seconds)
        self._plain = Lane("decide", clerk.decide, *most)
        self._keyed = Lane("decide-keyed", clerk.decide, *most)
        self._rewards = Lane("reward", clerk.reward, *most)
        # Lists are worth computing while another one is on its way to the disk.
        self._lists = Lane("decide-lists", clerk.decide, *most, threads=2)
        self._reward_lists = Lane("reward-lists", clerk.reward, *most, threads=2)

    def stop(self) -> None:
        """End after what waits."""
        for lane in (
            self._plain,
            self._keyed,
            self._rewards,
            self._lists,
            self._reward_lists,
        ):
            lane.stop()

    # -- decisions --------------------------------------------------------------------------------

    async def decide(self, call: Call) -> Answer:
        """``POST /v1/decisions``."""
        began = time.perf_counter()
        visit = read_one(call.body, Visit, self._limits.deepest)
        self._check_visit(visit)
        self._guard.admit(call.holder, 1)
        lane = self._plain if visit.key is None else self._keyed
        (made,) = await lane.do([visit])
        if isinstance(made, BaseException):
            raise made
        self._live.visits([made.status])
        self._live.took("decisions", time.perf_counter() - began)
        return Answer(encode(made))

    async def decide_many(self, call: Call) -> Answer:
        """``POST /v1/decisions:batch``."""
        began = time.perf_counter()
        visits = read_many(call.body, Visit, self._limits.deepest, self._limits.largest_batch)
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
        for lane, places in ((own, plain), (self._keyed, keyed)):
            if places:
                await _do(lane, places, outcomes)
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
        item = read_one(call.body, RewardItem, self._limits.deepest)
        needed(self._reward_needs, item)
        self._guard.admit(call.holder, 1)
        (outcome,) = await self._rewards.do([item])
        if isinstance(outcome, BaseException):
            raise outcome
        self._live.rewards([outcome.status])
        self._live.took("rewards", time.perf_counter() - began)
        return Answer(encode(outcome))

    async def _reward_many(self, call: Call, began: float) -> Answer:
        items = read_many(call.body, RewardItem, self._limits.deepest, self._limits.largest_batch)
        self._guard.admit(call.holder, max(1, len(items)))
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
        if places:
            lane = self._rewards if len(places) < _LONG else self._reward_lists
            await _do(lane, places, outcomes)
        statuses, body = _told(outcomes, places, Rewarded)
        self._live.rewards(statuses)
        self._live.took("reward batches", time.perf_counter() - began)
        return Answer(body)


async def _do(lane: Lane, places: list[int], items: list[Any]) -> None:
    """Have the items at some places done, and put what came of them there."""
    if len(places) == len(items):
        items[:] = await lane.do(items.copy())
        return
    made = await lane.do([items[place] for place in places])
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
        raise made[0]
    return [_status(each) for each in outcomes], encode([_item(each) for each in outcomes])


def _item(outcome: Any) -> Any:
    if isinstance(outcome, RefusalError):
        return outcome.item()
    if isinstance(outcome, BaseException):
        _, said = refusal_of(outcome)
        return Refused(
            "refused", Problem(said if isinstance(outcome, CapriError) else "failed here")
        )
    return outcome


def _status(outcome: Any) -> str:
    return "refused" if isinstance(outcome, BaseException) else str(outcome.status)
