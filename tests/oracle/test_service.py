"""The oracle test over HTTP: one user's values change, and nobody else sees another byte.

The application is the real one on a real store. One user comes again and again, alone, in lists
with others and in one transaction with others. Her contexts and rewards are as they should be in
one world, and whatever bytes can hold in the other. What all others are answered, and every public
page, is compared to the byte, with all headers.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import capri
from capri.errors import DataError
from capri.service import decisions, endpoint, handlers, messages
from capri.service.auth import RewardQuota, ServiceLimits
from capri.service.decisions import BulkPolicy
from capri.service.settings import load_settings
from inside import Inside, Reply, inside
from oracle.blind import blind
from oracle.test_store import unwatched
from oracle.transcript import Transcript, assert_same, overheard, told_apart_by
from service_process import POLICY

OTHER, QUIET = b'{"age": 30, "plan": "free"}', b'{"age": 41, "plan": "pro"}'
# What may stand in the place of a context: each a cell, or none at all, that nobody can read.
ODD = (
    b"null", b'"\xff\xfe"', b"{}", b'{"age": "\xc3\x28", "plan": "pro"}', b'{"age": 1e999}',
    b'{"age": ' + b"9" * 5000 + b', "plan": "pro"}', b'{"age": NaN, "plan": "\\ud800"}',
    b'{"age": -Infinity, "plan": "a\nb"}', b'{"a\xff": ' + b"[" * 90 + b"]" * 90 + b"}",
    b'{"age": 41, "plan": "' + b"x" * 50_000 + b'"}',
)  # fmt: skip
# The rewards of her decisions: one that is sound, or these.
NO_REWARDS: tuple[tuple[bytes, ...], ...] = (
    (), (b'"\xff"', b"1"), (b"1",) * 300, (b"null", b"[[1]]", b"0.5"), (b"NaN",),
    (b"9" * 5000, b"0"), (b'"1"',), (b"true", b"false"), (b"{}",) * 9, (b"-1e999",),
)  # fmt: skip
World = list[tuple[bytes, tuple[bytes, ...]]]
QUIET_WORLD: World = [(QUIET, (b"1",)) for _ in ODD]
WILD_WORLD: World = list(zip(ODD, NO_REWARDS, strict=True))
PAGES = ("policy", "epochs", "estimate", "explanation", "ledger", "certificate", "operations")
# As many items as the world needs: the clock stands, so a rate is a number in all.
LIMITS = ServiceLimits(rewards_each=4, rate=600.0)


def item(context: bytes, key: str = "") -> bytes:
    keyed = b', "key": "%s"' % key.encode() if key else b""
    return b'{"context": %s%s}' % (context, keyed)


def listed(items: list[bytes]) -> bytes:
    return b"[" + b", ".join(items) + b"]"


def reward(decision: str, value: bytes) -> bytes:
    return b'{"id": "%s", "reward": %s}' % (decision.encode(), value)


class Scene:
    """One world, as everybody but the user sees it."""

    def __init__(
        self, shop: Inside, policy: capri.Capri, transcript: Transcript, now: list[float]
    ) -> None:
        self._shop, self._policy, self._seen, self._now = shop, policy, transcript, now

    def _note(self, what: str, reply: Reply) -> Reply:
        self._seen.append((what, (reply.status, reply.headers, reply.body)))
        return reply

    def _note_others(self, what: str, reply: Reply, own: set[int]) -> list[Any]:
        """Of a list: the answers to others, and all headers but the length, which is hers, too."""
        headers = [each for each in reply.headers if each[0] != b"content-length"]
        found = msgspec.json.decode(reply.body, type=list[msgspec.Raw])
        others = [bytes(each) for place, each in enumerate(found) if place not in own]
        self._seen.append((what, (reply.status, headers, others)))
        return [json.loads(bytes(each)) for each in found]

    async def play(self, world: World) -> None:
        for turn, (context, rewards) in enumerate(world):
            await self._turn(turn, context, rewards)
            assert self._policy._engine is not None
            for _ in range(3):  # due, ready, and at a moment of the grid public
                await asyncio.to_thread(self._policy._engine.pace.step)
                self._now[0] += 3.0
            for page in PAGES:
                self._note(page, await self._shop.ask(f"/v1/{page}"))
            self._note("metrics", await self._shop.ask("/metrics"))

    async def _turn(self, turn: int, context: bytes, rewards: tuple[bytes, ...]) -> None:
        ask = self._shop.ask
        many = [OTHER, context, OTHER, context, OTHER, OTHER, OTHER]
        made = self._note_others(
            "list",
            await ask("/v1/decisions:batch", listed([item(each) for each in many])),
            {1, 3},
        )
        keyed = [item(each, f"{turn} {place}") for place, each in enumerate(many)]
        self._note_others("keyed list", await ask("/v1/decisions:batch", listed(keyed)), {1, 3})
        own = await ask("/v1/decisions", item(context))
        self._note("single", await ask("/v1/decisions", item(OTHER)))
        self._note_many("together", await self._together(context))
        mine = [reward(made[place]["id"], value) for place in (1, 3) for value in rewards]
        for value in rewards:  # however often: alone, and among others
            await ask("/v1/rewards", reward(own.said["id"], value))
        theirs = [reward(made[place]["id"], b"0.25") for place in (0, 2, 4)]
        sent = listed([theirs[0], *mine, *theirs[1:]])
        between = set(range(1, 1 + len(mine)))
        self._note_others("rewards", await ask("/v1/rewards", sent), between)
        single = reward(made[5]["id"], b"0.75")
        self._note("reward", await ask("/v1/rewards", single))

    def _note_many(self, what: str, replies: list[Reply]) -> None:
        for reply in replies:
            self._note(what, reply)

    async def _together(self, context: bytes) -> list[Reply]:
        """Requests that share a transaction: another one holds the store until all are there."""
        group = self._policy._engine.repository.database._group
        plain, ask = self._shop.handlers.plain, self._shop.ask
        group._leading.acquire()
        try:
            tasks = [asyncio.create_task(ask("/v1/decisions", item(OTHER)))]
            while not group._waiting:
                await asyncio.sleep(0)
            for each in (OTHER, context, OTHER, OTHER):
                tasks.append(asyncio.create_task(ask("/v1/decisions", item(each))))
            while plain.waiting < len(tasks):
                await asyncio.sleep(0)
        finally:
            group._leading.release()
        replies = await asyncio.gather(*tasks)
        return [reply for place, reply in enumerate(replies) if place != 2]


def public(
    world: World, folder: Path, plant: Callable[[pytest.MonkeyPatch], None], *, pure: bool = False
) -> Transcript:
    """What a world shows under blind noise, a clock that moves at public times, and a defect."""
    folder.mkdir()
    text = POLICY.format(top="", reward="wait = 20", more="growth = 1.5\ndraws = 8", first=40)
    if pure:
        text = text.replace("delta = 1e-6\n", "")
    (folder / "policy.toml").write_text(text)
    transcript: Transcript = []
    now = [1.8e9]

    async def played() -> None:
        settings = load_settings(folder / "policy.toml")
        policy = settings.policy(store=settings.default_store)
        with overheard(transcript):
            async with inside(policy, LIMITS) as shop:
                await Scene(shop, policy, transcript, now).play(world)

    with pytest.MonkeyPatch.context() as patch:
        blind(patch)
        unwatched(patch)
        patch.setattr("capri.joint.engine.time", SimpleNamespace(time=lambda: now[0]))
        patch.setattr("capri.service.auth.time", SimpleNamespace(monotonic=lambda: 0.0))
        patch.setattr("capri.service.figures._BRIEF", 1e-9)
        plant(patch)
        asyncio.run(played())
    return transcript


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No defect."""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return public(QUIET_WORLD, tmp_path_factory.mktemp("quiet") / "world", nothing)


def test_nobody_else_sees_another_byte(quiet: Transcript, tmp_path: Path) -> None:
    assert_same(quiet, public(WILD_WORLD, tmp_path / "wild", nothing))
    names = [kind for kind, _ in quiet]
    assert names.count("single") == len(ODD)
    replies = [seen for kind, seen in quiet if kind not in ("warnings", "log", "printed")]
    assert {status for status, *_ in replies} == {200}
    epochs = [json.loads(seen[2]) for kind, seen in quiet if kind == "epochs"]
    assert len(epochs[-1]) >= 2  # it has learnt on the way


def test_nobody_else_sees_another_byte_of_cells(tmp_path: Path) -> None:
    """Without a delta: every release is of cells, under Laplace noise."""
    quiet, wild = (
        public(world, tmp_path / name, nothing, pure=True)
        for name, world in (("quiet", QUIET_WORLD), ("wild", WILD_WORLD))
    )
    assert_same(quiet, wild)
    ledger = json.loads([seen[2] for kind, seen in quiet if kind == "ledger"][-1])
    assert len(ledger["releases"]) >= 2
    assert {each["mechanism"] for each in ledger["releases"]} == {"laplace"}


# -- mutants ---------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def _read(of: BulkPolicy, visits: list[Any]) -> None:
    """Have a row and marks in the place of every context."""
    of.read_visits([visit for visit in visits if type(visit.context) is not tuple])


def unreadable_last(patch: Patch) -> None:
    """Contexts that nobody can read are decided after the others."""
    honest = BulkPolicy.decide

    def decide(self: BulkPolicy, visits: list[Any]) -> list[Any]:
        _read(self, visits)
        order = sorted(range(len(visits)), key=lambda place: bool(visits[place].context[1]))
        made = honest(self, [visits[place] for place in order])
        return [made[order.index(place)] for place in range(len(visits))]

    patch.setattr(BulkPolicy, "decide", decide)


def unreadable_take_no_slot(patch: Patch) -> None:
    """A context that is no record is answered without a decision of its own."""
    honest = BulkPolicy.decide

    def decide(self: BulkPolicy, visits: list[Any]) -> list[Any]:
        _read(self, visits)
        kept = [visit for visit in visits if not visit.context[1]] or visits[:1]
        made = iter(honest(self, kept))
        first = next(made)
        answers = [first if visit is kept[0] or visit.context[1] else None for visit in visits]
        return [next(made) if answer is None else answer for answer in answers]

    patch.setattr(BulkPolicy, "decide", decide)


def answers_by_status(patch: Patch) -> None:
    """Marked answers of a list come last."""
    honest = handlers._told

    def told(outcomes: list[Any], places: list[int], kind: type) -> Any:
        marked = sorted(outcomes, key=lambda each: len(getattr(each, "marks", ())))
        return honest(marked, places, kind)

    patch.setattr(handlers, "_told", told)


def one_reward_refuses_its_batch(patch: Patch) -> None:
    """A reward that is no number refuses whoever shares its transaction."""
    honest = BulkPolicy.reward

    def rewarded(self: BulkPolicy, items: list[Any]) -> list[Any]:
        if any(each.reward != each.reward for each in items):
            raise DataError("a reward must be a number")
        return honest(self, items)

    patch.setattr(BulkPolicy, "reward", rewarded)


def lengths_tell(patch: Patch) -> None:
    """Every answer says how many values could not be read so far."""
    counted = threading.local()
    honest, respond = BulkPolicy.read_visits, endpoint.respond

    def read(self: BulkPolicy, visits: Any) -> None:
        honest(self, visits)
        counted.marks = getattr(counted, "marks", 0) + sum(len(each.context[1]) for each in visits)

    def responded(response: Any, send: Any, asked: Any, *, close: bool = False) -> Awaitable[None]:
        told = (*response.headers, (b"x-unread", str(getattr(counted, "marks", 0)).encode()))
        return respond(msgspec.structs.replace(response, headers=told), send, asked, close=close)

    patch.setattr(BulkPolicy, "read_visits", read)
    patch.setattr(endpoint, "respond", responded)


def bytes_refuse_a_list(patch: Patch) -> None:
    """Bytes that are no UTF-8 refuse the whole request, as they used to."""
    honest = messages._parsed

    def parsed(body: bytes) -> Any:
        try:
            body.decode()
        except UnicodeDecodeError:
            raise messages.RefusalError(400, "must be JSON in UTF-8", "body") from None
        return honest(body)

    patch.setattr(messages, "_parsed", parsed)


def every_reward_counts_for_the_rate(patch: Patch) -> None:
    """However often a reward comes, it goes on to what others share: first the rate of a key."""
    patch.setattr(RewardQuota, "takes", lambda quota, decisions: [True for _ in decisions])


def marks_of_a_list_are_shared(patch: Patch) -> None:
    """One context that cannot be read has the whole list read another way, and marked."""
    honest = decisions._answers

    def answers(made: Any, visits: Any, marks: Any) -> Any:
        return honest(made, visits, [max(marks, key=len)] * len(marks))

    patch.setattr(decisions, "_answers", answers)


# The defect, and the answer that gives it away.
MUTANTS: list[tuple[Plant, str]] = [
    (unreadable_last, "list"),
    (unreadable_take_no_slot, "list"),
    (answers_by_status, "list"),
    (one_reward_refuses_its_batch, "rewards"),
    (lengths_tell, "list"),
    (bytes_refuse_a_list, "list"),
    (every_reward_counts_for_the_rate, "reward"),
    (marks_of_a_list_are_shared, "list"),
]


@pytest.mark.parametrize(("plant", "witness"), MUTANTS, ids=[each.__name__ for each, _ in MUTANTS])
def test_planted_leak_is_seen(plant: Plant, witness: str, tmp_path: Path) -> None:
    first, second = (
        public(world, tmp_path / name, plant)
        for name, world in (("quiet", QUIET_WORLD), ("wild", WILD_WORLD))
    )
    assert witness in told_apart_by(first, second)
