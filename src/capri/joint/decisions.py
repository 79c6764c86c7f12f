"""Where a policy decides: on a store every decision is durable before it is answered.

A decision is a row under the number of its slot. Where the database has one writer, slots are taken
in the transaction that fills them. Where many write at once, a process leases some slots of one
segment beforehand and fills them without a lock that others wait for; slots that nobody fills were
simply not realised, and what is read is scaled by the rows that exist.

Every transaction compares the store's generation with that of the view it works by, after it has
joined the epoch it writes to: nothing is ever written to an epoch that another process has closed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.bounds import Sets
from capri.epoch.decide import Logged, serve
from capri.epoch.decisions import DecisionIds, Decisions
from capri.errors import StorageError
from capri.joint.slots import FullError, SlotBook, Slots
from capri.joint.state import PublicState
from capri.store.codec import VOID, Played, owned
from capri.store.repository import TURNS, OvertakenError, Remembered, never_current
from capri.store.tables import Unit
from capri.store.view import View
from capri.streams import Streams


@dataclass(eq=False, slots=True)
class Visits:
    """Some visits of one call, checked."""

    rows: FloatArray
    valid: BoolArray | None
    users: Sequence[str] | None  # digests
    keys: Sequence[str] | None  # digests
    logged: Logged | None = None
    wanted: IntArray | None = None
    available: Sets | None = None


@dataclass(eq=False, slots=True)
class _Drawn:
    """Decisions that lack nothing but their numbers, and what is stored of them."""

    law: int
    epoch: int
    played: Played
    kept: BoolArray
    prepared: Any


class _Filled(NamedTuple):
    """What was played for new visits, in which slots; and leased slots that are left."""

    played: Played | None
    numbers: IntArray
    epoch: int
    kept: BoolArray
    rest: Slots | None


class Decider:
    """Serves the visits of one process."""

    def __init__(
        self,
        state: PublicState,
        plan_now: Callable[[], None],
        streams: Streams,
        ids: DecisionIds,
        *,
        retention: float,
        now: Callable[[], float],
    ) -> None:
        """``plan_now``: asked for where nothing can be decided before the next epoch is planned."""
        self._state, self._plan, self._streams = state, plan_now, streams
        self._repository, self._rows, self._ids = state.repository, state.repository.rows, ids
        self._problem = state.problem
        self._retention, self._now = retention, now
        self.slots = SlotBook(state, streams)
        self._last: Slots | None = None  # what was played last, most likely the next one, too

    # -- deciding ---------------------------------------------------------------------------------

    def decide(self, visits: Visits) -> tuple[Decisions, BoolArray]:
        """One transaction for all visits; which of them were kept."""
        for _ in range(TURNS):
            view, slots = self._state.view, None
            try:
                with self._state.drawing:
                    if self.slots.leased:
                        count = len(visits.rows)
                        wanted = count if visits.keys is None else self.wanted(visits.keys)
                        slots = self.slots.take(view, wanted) if wanted else None
                    ahead = None if self._state.synchronous else self._ahead(view, visits, slots)
                    decisions, kept, rest = self._repository.write(
                        lambda unit, view=view, slots=slots, ahead=ahead: self._decide(  # type: ignore[misc]
                            unit, view, visits, slots, ahead
                        )
                    )
                if rest is not None:
                    self.slots.give_back(rest)
                return decisions, kept
            except OvertakenError:
                self._state.look()
            except FullError:
                self._plan_now()
            except _NotLoadedError as missing:
                self._load(missing.law)
            except BaseException as problem:
                # What a store has failed at may have been filled.
                if slots is not None and not isinstance(problem, StorageError):
                    self.slots.give_back(slots)
                raise
            if slots is not None:
                self.slots.give_back(slots)
        raise never_current(self._state.repository)

    def wanted(self, keys: Sequence[str]) -> int:
        """How many visits with keys need a slot: a key that is known has its decision."""
        different = sorted(set(keys))
        return len(different) - self._rows.count_known(different, self._now())

    def _decide(
        self,
        unit: Unit,
        view: View,
        visits: Visits,
        leased: Slots | None,
        ahead: _Drawn | None,
    ) -> tuple[Decisions, BoolArray, Slots | None]:
        """Decisions, which visits were kept, and leased slots that were not filled."""
        if ahead is not None and leased is not None and len(leased.numbers) >= len(ahead.kept):
            return self._fill(unit, view, leased, ahead)
        joined = self.slots.expected(view, leased) if self.slots.leased else []
        issued, generation = unit.join_epochs(joined)
        if generation != view.generation:
            raise OvertakenError
        known: dict[str, Remembered] = {}
        fresh = np.arange(len(visits.rows))
        if visits.keys is not None:
            known = self._rows.known_keys(unit, sorted(set(visits.keys)), self._now())
            seen: set[str] = set(known)
            fresh = np.array(_first_of_each(visits.keys, seen), dtype=np.int64)
        played, numbers, epoch, kept, rest = self._play(
            unit, view, visits, fresh, issued, leased, ahead
        )
        if visits.keys is None:
            assert played is not None
            return self._decisions(view, numbers, epoch, played), kept, rest
        fresh_keys = [visits.keys[place] for place in fresh.tolist()]
        if played is not None:
            owners = None if visits.users is None else _at(visits.users, fresh)
            blobs = self._keyed(view, epoch, played).blobs()
            blobs = blobs if owners is None else owned(blobs, owners)
            expires = self._now() + self._retention
            if not self._rows.write_keys(unit, fresh_keys, numbers, epoch, blobs, expires):
                raise OvertakenError  # another process was first: its decision is returned
            for key, number, blob in zip(fresh_keys, numbers.tolist(), blobs, strict=True):
                known[key] = Remembered(number, epoch, blob)
        return self._remembered(view, [known[key] for key in visits.keys]), kept, rest

    def _fill(
        self, unit: Unit, view: View, slots: Slots, drawn: _Drawn
    ) -> tuple[Decisions, BoolArray, Slots]:
        """The same where everything is known before: nothing is left but to write it."""
        count, epoch = len(drawn.kept), slots.epoch.number
        numbers = np.array(slots.numbers[:count], dtype=np.int64)
        if not self._rows.fill(unit, epoch, view.generation, numbers, drawn.prepared):
            raise OvertakenError
        self._last = slots
        rest = Slots(slots.epoch, slots.segment, slots.law, slots.numbers[count:])
        return self._decisions(view, numbers, epoch, drawn.played), drawn.kept, rest

    def _play(
        self,
        unit: Unit,
        view: View,
        visits: Visits,
        fresh: IntArray,
        issued: int,
        leased: Slots | None,
        ahead: _Drawn | None,
    ) -> _Filled:
        """Store decisions for visits that have none yet; drawn now where that was not done."""
        if len(fresh) == 0:
            nothing = np.empty(0, dtype=np.int64)
            return _Filled(None, nothing, 0, np.ones(len(visits.rows), dtype=np.bool_), leased)
        if not self.slots.leased:
            slots = self.slots.at(view, issued, len(fresh))
        elif leased is not None and len(leased.numbers) >= len(fresh):
            slots = leased
        else:
            slots = self.slots.extend(unit, view, len(fresh), leased)
        self._last = slots
        drawn = ahead
        if drawn is None or (drawn.law, drawn.epoch) != (slots.law, slots.epoch.number):
            limit, within = self._problem.limit, None
            users = None if visits.users is None else _at(visits.users, fresh)
            if limit is not None and users is not None and view.mode.contributes:
                within = self._rows.reserve(unit, users, slots.epoch.number, limit)
            drawn = self._draw(view, visits, fresh, slots, within)
        count = len(drawn.played.status)
        numbers, rest = np.array(slots.numbers[:count], dtype=np.int64), None
        self._rows.write_decisions(unit, numbers, drawn.prepared)
        if self.slots.leased:
            rest = Slots(slots.epoch, slots.segment, slots.law, slots.numbers[count:])
        else:
            self.slots.count(unit, view, slots, count)
        return _Filled(drawn.played, numbers, slots.epoch.number, drawn.kept, rest)

    def _ahead(self, view: View, visits: Visits, leased: Slots | None) -> _Drawn | None:
        """Decisions drawn before their transaction, by the law that the last one played.

        Whoever else writes waits for a transaction, so it had better be short. Where the slots turn
        out to be of another law, which is a public event, these are thrown away. Whose visit counts
        and which keys are new is known inside only.
        """
        slots = leased or self._last
        inside = visits.keys is not None or visits.users is not None or visits.wanted is not None
        if slots is None or inside:
            return None
        try:
            return self._draw(view, visits, np.arange(len(visits.rows)), slots, None)
        except _NotLoadedError:
            return None

    def _draw(
        self,
        view: View,
        visits: Visits,
        fresh: IntArray,
        slots: Slots,
        within: BoolArray | None,
    ) -> _Drawn:
        """Decisions for some of the visits, by the law of these slots."""
        chooser = self._state.choosers.get(slots.law)
        if chooser is None:
            raise _NotLoadedError(slots.law)
        everybody = len(fresh) == len(visits.rows)
        rows = visits.rows if everybody else visits.rows[fresh]
        valid = visits.valid if everybody or visits.valid is None else visits.valid[fresh]
        users = None if visits.users is None else _at(visits.users, fresh)
        mode = view.mode
        problem = self._state.problem_of(view, slots.epoch.number)
        logged = visits.logged if everybody or visits.logged is None else visits.logged[fresh]
        uniform = self._streams.actions.random(len(rows))
        sets = (
            visits.available if everybody or visits.available is None else visits.available[fresh]
        )
        available = None if sets is None else sets.among(problem.actions)
        served = serve(mode, problem, chooser, rows, valid, within, uniform, logged, available)
        place, actions, propensity = served.place, served.action, served.propensity
        status, kept = served.status, np.ones(len(visits.rows), dtype=np.bool_)
        if visits.wanted is not None:
            kept = actions == visits.wanted
            rows, place, actions = rows[kept], place[kept], actions[kept]
            propensity, status = propensity[kept], status[kept]
        pairs = problem.actions.chosen(rows, actions)
        played = Played(status, place, actions, propensity, pairs)
        stored = played if mode.name == "active" else _apart(played, served.weights)
        prepared = self._rows.prepared(stored, users)
        return _Drawn(slots.law, slots.epoch.number, played, kept, prepared)

    def _load(self, law: int) -> None:
        """Read a law; one that is gone belongs to a view that is over."""
        try:
            self._state.chooser(law)
        except OvertakenError:
            self._state.look()

    def _plan_now(self) -> None:
        """Nothing can be decided before the next epoch is planned."""
        try:
            self._plan()
        except OvertakenError:
            return
        if self._state.at_the_horizon():
            self.slots.refuse(1, 0)

    # -- keys -------------------------------------------------------------------------------------

    def _keyed(self, view: View, epoch: int, played: Played) -> Played:
        """What is kept for a key: without the context."""
        dimension = self._state.problem_of(view, epoch).actions.dimension
        rows = played.numbers[:, played.numbers.shape[1] - dimension :]
        place = np.full(len(played), -1)
        return Played(played.status, place, played.action, played.propensity, rows)

    def _remembered(self, view: View, found: Sequence[Remembered]) -> Decisions:
        """Decisions as their keys have them: each with the actions of its own epoch."""
        numbers = np.array([number for number, _, _ in found], dtype=np.int64)
        epochs = np.array([epoch for _, epoch, _ in found], dtype=np.int64)
        played = Played.read([blob for _, _, blob in found])
        names = [self._state.problem_of(view, epoch).actions.names for _, epoch, _ in found]
        called = None
        if any(each is not names[0] for each in names):
            called = tuple(
                None if own is None else own[action]
                for own, action in zip(names, played.action.tolist(), strict=True)
            )
        return Decisions(
            numbers,
            int(epochs.max()),
            played.action,
            played.numbers,
            played.propensity,
            played.status,
            self._ids,
            names[0],
            epochs,
            called,
        )

    def _decisions(self, view: View, numbers: IntArray, epoch: int, played: Played) -> Decisions:
        actions = self._state.problem_of(view, epoch).actions
        features = played.numbers[:, played.numbers.shape[1] - actions.dimension :]
        return Decisions(
            numbers,
            epoch,
            played.action,
            features,
            played.propensity,
            played.status,
            self._ids,
            actions.names,
        )


def _at(values: Sequence[str], places: IntArray) -> list[str]:
    """Some of the values."""
    return [values[place] for place in places.tolist()]


def _apart(played: Played, weights: FloatArray | None) -> Played:
    """What is kept of visits that teach nothing: no pair; in shadow mode a weight, or "void"."""
    nothing, nowhere = np.zeros((len(played), 0)), np.full(len(played), -1)
    if weights is None:
        return Played(played.status, nowhere, played.action, played.propensity, nothing)
    void = np.isnan(weights)
    status = np.where(void, VOID | played.status, played.status)
    return Played(status, nowhere, played.action, np.where(void, 0.0, weights), nothing)


def _first_of_each(keys: Sequence[str], seen: set[str]) -> list[int]:
    """Places of keys that come for the first time."""
    places = []
    for place, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            places.append(place)
    return places


class _NotLoadedError(Exception):
    """A law has to be read first, outside of the transaction."""

    def __init__(self, law: int) -> None:
        super().__init__(law)
        self.law = law
