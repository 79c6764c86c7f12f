"""Walk a store by a public clock with the planner's own thread on, and write down what is public.

Time passes in public ticks: the clock moves, the planner's thread does all that is due, some visits
come, rewards come, the thread does what is due then. Nothing private moves the clock, and the
thread never works while somebody decides: whatever differs between two worlds is a leak, and not
the luck of two threads. How long the thread takes is a world of its own, see :class:`Held`.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Condition, Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capri
from builders import CONTEXTS
from capri.joint import release
from capri.joint.pace import Worker
from capri.store import rollback
from capri.streams import Streams
from oracle.policies import POLICIES
from oracle.transcript import Transcript, account, certified, face, overheard
from oracle.worlds import SHARED, VISITS, Visit, World, quiet_world, wild_world

HOUR = timedelta(hours=1)
PATIENCE = 60.0  # seconds for a step of the thread on a busy machine
# Minutes that pass before each tick, and the visits that come then. Epochs of 8 and more end by
# their number and, within two hours, by the clock; some ticks bring nobody.
TICKS = (
    (0, 1),
    (20, 5),
    (5, 2),
    (30, 1),
    (29, 0),
    (1, 1),
    (40, 9),
    (70, 0),
    (1, 5),
    (130, 1),
    (1, 5),
    (65, 0),
)
assert sum(size for _, size in TICKS) == VISITS
# Visits that are the same in both worlds, rewards included: what becomes of those is compared.
OTHERS = frozenset({4, 16, 27})
# What another system says it chose, and how probable that was.
CHOSEN = (0, 1, "no such action", -7, None)
CHANCES = (0.5, 1.0, 0.0, 2.0, float("nan"), 1e-300, None)
# Tables of a store that hold nothing but what is public.
TABLES = ("epochs", "segments", "operations", "catalogues", "laws", "counter", "history")

_TIMED = {name: each for name, each in POLICIES["late, last, clock"].items() if name != "clock"}
_LIMITS = {"contributions_per_user": 3, "contributions_per_epoch": 2}
CLOCKED: dict[str, dict[str, Any]] = {
    "last": _TIMED,
    "sum, users": _TIMED | _LIMITS | {"reward_rule": "sum"},
    "first, as estimated": _TIMED | {"missing_reward": "as-estimated", "reward_rule": "first"},
    "max, sets": _TIMED | {"reward_rule": "max", "limits": POLICIES["limits"]["limits"]},
    "slots, then the clock": _TIMED | {"reward_wait": 6},
    "paper": POLICIES["late, paper"] | {"reward_wait": HOUR, "epoch_time": 2 * HOUR},
}


class Clock:
    """A public clock that moves when the walk says so."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class WatchedWorker(Worker):
    """The thread that serves people; one may wait here until it has done all that is due."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self._turn = Condition()
        self._begun = self._over = 0
        self.held = False

        def watched() -> Any:
            with self._turn:
                self._begun += 1
            try:
                return step()
            finally:
                with self._turn:
                    self._over += 1
                    self._turn.notify_all()

        super().__init__(watched)

    def hold(self, held: bool) -> None:
        """Say that a step waits for visits, or does so no more."""
        with self._turn:
            self.held = held
            self._turn.notify_all()

    def settle(self) -> None:
        """Wait for a step that begins from now on to end, or for one that is held."""
        with self._turn:
            wanted = self._begun + 1
            self.wake()
            assert self._turn.wait_for(lambda: self.held or self._over >= wanted, PATIENCE)


def threads_of(policy: capri.Capri) -> tuple[WatchedWorker, WatchedWorker]:
    """Those of a stored policy: one plans, the other adds epochs up."""
    assert policy._engine is not None
    planner, settler = policy._engine.pace.planner, policy._engine.pace.settler
    assert isinstance(planner, WatchedWorker)
    assert isinstance(settler, WatchedWorker)
    return planner, settler


def settle(policy: capri.Capri) -> None:
    """Let both threads do all that is due: until a step of theirs publishes nothing."""
    backing, threads, before = policy._engine, threads_of(policy), -1
    assert backing is not None
    while (now := backing.repository.database.read(lambda unit: unit.counter())[1]) != before:
        before = now
        for thread in threads:
            thread.settle()


def busy_world(seed: int) -> World:
    """A wild world in which some send a reward dozens of times, some come again with their key and
    another context, and some ask to be forgotten."""
    world = list(wild_world(seed))
    for place in range(0, VISITS, 4):
        if place not in SHARED:
            flood = tuple((delay, 0.0, True) for delay in (0, 1, 3) for _ in range(15))
            world[place] = replace(world[place], rewards=world[place].rewards + flood)
    for place in range(VISITS):
        if place not in SHARED:
            chosen, chance = CHOSEN[place % len(CHOSEN)], CHANCES[place % len(CHANCES)]
            world[place] = replace(world[place], chosen=chosen, chance=chance)
    for place in range(3, VISITS, 5):
        world[place] = replace(world[place], again=(float("nan"), 0.9), forgotten=place % 3)
    return tuple(world)


def silent_world() -> World:
    """Everybody comes once, from one context, and never answers."""
    return tuple(replace(visit, rewards=()) for visit in quiet_world())


def as_seen(world: World) -> World:
    """The world with the visits that are everybody's."""
    return tuple(
        Visit(0.6, f"other {place}", ((1, 0.25, True), (5, 0.5, False)), [0, 1])
        if place in OTHERS
        else visit
        for place, visit in enumerate(world)
    )


def walked(
    world: World,
    settings: dict[str, Any],
    url: str,
    *,
    prepare: Callable[[capri.Capri], None] = lambda policy: None,
    modes: dict[int, tuple[str, str | None]] | None = None,
) -> Transcript:
    """Everything public of a run in which time passes as :data:`TICKS` says.

    ``prepare`` is given the policy before anybody comes. ``modes``: who decides from a tick on.
    """
    transcript: Transcript = []
    clock, world = Clock(), as_seen(world)
    with overheard(transcript):
        policy = capri.Capri(**settings, clock=clock, store=url)
        try:
            prepare(policy)
            _walk(policy, clock, world, transcript, modes or {})
        finally:
            policy.close()
    return transcript


def _walk(
    policy: capri.Capri,
    clock: Clock,
    world: World,
    transcript: Transcript,
    modes: dict[int, tuple[str, str | None]],
) -> None:
    decisions: list[capri.Decision] = []
    came: list[int] = []  # the tick of each
    for tick, (minutes, size) in enumerate(TICKS):
        clock.now += timedelta(minutes=minutes)
        settle(policy)
        if tick in modes:
            policy.set_mode(modes[tick][0], action=modes[tick][1])
        start = len(decisions)
        if size:
            decisions += _decided(policy, world[start : start + size], start)
            came += [tick] * size
        settle(policy)
        new = decisions[start:]
        transcript.append(("ids", [(each.id, each.epoch) for each in new]))
        transcript += [
            ("action of a shared visit", (each.action_index, each.propensity, each.status))
            for place, each in enumerate(new, start)
            if place in SHARED | OTHERS
        ]
        transcript.append(("others' rewards", _answered(policy, world, decisions, came, tick)))
        _forgotten(policy, world, came, tick)
        settle(policy)
        transcript += shown(policy) + account(policy)[:2] + face(policy, CONTEXTS)
        transcript.append(("shadow", policy.shadow))
    policy.close_epoch(early=True)
    settle(policy)
    transcript.append(("certificate", certified(policy)))
    transcript += shown(policy) + account(policy)[:2] + face(policy, CONTEXTS)


def shown(policy: capri.Capri) -> Transcript:
    """How far the store has come, as anybody may ask, and the tables that hold only public rows."""
    assert policy._engine is not None
    database = policy._engine.repository.database
    found: Transcript = [("progress", json.dumps(policy.progress.to_dict()))]
    for table in TABLES:
        rows = database.read(lambda work, table=table: work.rows(f"SELECT * FROM {table}"))  # type: ignore[misc]
        found.append((table, sorted(map(repr, rows))))
    return found


def _decided(policy: capri.Capri, visits: World, start: int) -> list[capri.Decision]:
    """Some visits decide, all at once; in either world some come again with their own key."""
    counted = policy.problem.limit is not None
    limited = policy.problem.limits is not None
    more: dict[str, Any] = {}
    if not policy.mode.active:
        more = {
            "chosen": [visit.chosen for visit in visits],
            "chosen_propensities": [visit.chance for visit in visits],
        }
    found = policy.act_many(
        [[visit.context] for visit in visits],
        users=[visit.user for visit in visits] if counted else None,
        keys=[f"visit {place}" for place in range(start, start + len(visits))],
        available=[visit.available for visit in visits] if limited else None,
        **more,
    )
    for place, visit in enumerate(visits, start):
        for context in visit.again:
            again = policy.act(
                [context],
                key=f"visit {place}",
                **{"user": visit.user} if counted else {},
                **{"chosen": 0, "chosen_propensity": 0.5} if more else {},
            )
            assert again.id == found[place - start].id
    return list(found)


def _answered(
    policy: capri.Capri, world: World, decisions: list[capri.Decision], came: list[int], tick: int
) -> list[Any]:
    """Give the rewards that are due now in one call; what became of those that are everybody's."""
    due = [
        (place, decision.id if by_id else decision, value, f"{count}")
        for place, decision in enumerate(decisions)
        for count, (delay, value, by_id) in enumerate(world[place].rewards)
        if came[place] + delay == tick
    ]
    if not due:
        return []
    keyed = policy.problem.rewards.rule.keyed
    statuses = policy.update_many(
        [each for _, each, _, _ in due],
        [value for _, _, value, _ in due],
        keys=[key for _, _, _, key in due] if keyed else None,
    )
    return [
        int(status) for (place, *_), status in zip(due, statuses, strict=True) if place in OTHERS
    ]


def _forgotten(policy: capri.Capri, world: World, came: list[int], tick: int) -> None:
    """Some ask to be forgotten, where a store knows who they are."""
    if policy.problem.limit is not None:
        for place, when in enumerate(came):
            after = world[place].forgotten
            if after is not None and when + after == tick:
                policy.forget(world[place].user)


class Pace:
    """Settling an epoch takes some visits: they come while its thread is at it."""

    def __init__(self, patch: pytest.MonkeyPatch, visits: int) -> None:
        self._visits = self._left = visits
        self._go = Event()
        self.planner: WatchedWorker | None = None
        self.times = 0
        honest = release.settled_sum

        def slow(*given: Any, **how: Any) -> Any:
            found = honest(*given, **how)
            self.times += 1
            if self._visits and self.planner is not None:
                self._left = self._visits
                self._go.clear()
                self.planner.hold(True)
                assert self._go.wait(PATIENCE)
            return found

        patch.setattr(release, "settled_sum", slow)

    def visited(self) -> None:
        """One more visit has come."""
        assert self.planner is not None
        if self.planner.held:
            self._left -= 1
            if self._left <= 0:
                self.end()

    def end(self) -> None:
        """Settling is done."""
        assert self.planner is not None
        self.planner.hold(False)
        self._go.set()


LONG: dict[str, Any] = POLICIES["practical"] | {
    "first_epoch": 256,
    "horizon": None,
    "reward_wait": 8,
}


def paced(patch: pytest.MonkeyPatch, url: str, visits: int) -> Transcript:
    """A long epoch whose users come one by one; settling it takes so many ``visits``.

    Everything is written down after every visit: what its user sees, and what anybody may ask of
    another process, which does not wait for the one that settles.
    """
    transcript: Transcript = []
    clock, pace = Clock(), Pace(patch, visits)
    # Who is overtaken by a new law draws again: let no draw depend on how many there were.
    middle = SimpleNamespace(random=lambda count: np.full(count, 0.5))
    patch.setattr(Streams, "actions", property(lambda streams: middle))
    with overheard(transcript), ExitStack() as stack:
        policy = stack.enter_context(closing(capri.Capri(**LONG, clock=clock, store=url)))
        with pytest.MonkeyPatch.context() as asleep:  # it looks, and takes no step
            asleep.setattr(WatchedWorker, "start", lambda planner: None)
            page = stack.enter_context(closing(capri.Capri(**LONG, clock=clock, store=url)))
        stack.callback(pace.end)
        pace.planner = threads_of(policy)[1]
        settle(policy)
        first = policy.act_many(np.full((250, 1), 0.3))
        policy.update_many(first, np.full(250, 0.5))
        for _ in range(120):
            clock.now += timedelta(milliseconds=10)
            one = policy.act([0.6])
            transcript.append(("visit", (one.id, one.epoch, one.action_index, one.propensity)))
            pace.visited()
            settle(policy)
            records = [record.to_dict() for record in page.epochs]
            transcript.append(("records", json.dumps(records)))
            transcript.append(("ledger", repr(page.ledger.events)))
            transcript.append(("law", page.probabilities(CONTEXTS).tobytes()))
            transcript.append(("progress", json.dumps(page.progress.to_dict())))
        assert pace.times == len(page.epochs) == 1, "the epoch was never settled"
        transcript.append(("slots", slots(policy)))
    return transcript


def slots(policy: capri.Capri) -> list[Any]:
    """Where every epoch and every segment begins and ends."""
    assert policy._engine is not None
    return policy._engine.repository.database.read(
        lambda work: [
            work.rows("SELECT epoch, number, first FROM segments ORDER BY epoch, number"),
            work.rows("SELECT number, first, last, length FROM epochs ORDER BY number"),
        ]
    )


def watched(patch: pytest.MonkeyPatch) -> None:
    """The thread takes steps when it is woken, and no plan moves into a process of its own draws.

    Nor is there a memory of the other world, whose store has the same name here.
    """
    patch.setattr("capri.joint.planner.LONG", float("inf"))
    patch.setattr("capri.joint.pace._PERIOD", 3600.0)
    patch.setattr("capri.joint.pace.Worker", WatchedWorker)
    patch.setattr(rollback, "_SEEN", {})
