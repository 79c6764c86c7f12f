"""Leaks planted in a store, its clock, its overlapping epochs, sets, modes and limits.

Each is one bug in a few lines. None looks at how rewards are stored: what a bug wants to know of
them it notes down when they come.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capri
from capri.epoch.rewards import ACCEPTED, LATE
from capri.epoch.shadow import ShadowSum
from capri.errors import BudgetError, DataError
from capri.joint import decisions, release
from capri.joint.decisions import Decider
from capri.joint.rewards import Rewards
from capri.joint.state import PublicState
from capri.store import maintenance
from capri.store.sql import SqlRepository
from capri.store.sql_rows import SqlRows
from capri.store.view import WAITING, EpochRow, View
from oracle.clocked import CLOCKED, silent_world

Plant = Callable[[pytest.MonkeyPatch], None]
# How a walk goes in which the leak shows: its policy, and the public thing that gives it away.
MUTANTS: dict[str, tuple[Plant, str, str, dict[str, Any]]] = {}
SHADOW = {"modes": {1: ("shadow", None), 8: ("active", None)}}


def mutant(name: str, witness: str, **how: Any) -> Callable[[Plant], Plant]:
    """Register a leak: the policy that has it, what it is seen in first, and how that walks."""
    assert name in CLOCKED

    def register(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = (plant, name, witness, how)
        return plant

    return register


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, leak: Callable[..., Any]) -> None:
    """Replace a function by ``leak(honest, *arguments)``."""
    honest = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **named: leak(honest, *args, **named))


Leak = Callable[[PublicState, Any, View, Any], None]


def on_reward(patch: pytest.MonkeyPatch, leak: Leak) -> None:
    """Do something when rewards are in, in a transaction of its own: ``leak(state, transaction,
    view, numbers)`` is given the decisions whose rewards were accepted."""

    def rewarded(honest: Any, rewards: Rewards, numbers: Any, *rest: Any) -> Any:
        statuses, state = honest(rewards, numbers, *rest), rewards._state
        view, came = state.look(), numbers[statuses == ACCEPTED]
        state.repository.write(lambda transaction: leak(state, transaction, view, came))
        return statuses

    wrap(patch, Rewards, "reward", rewarded)


def fewer(counts: tuple[int, ...], lacking: int) -> tuple[int, ...]:
    """Counts of segments with so many less, one at least in all."""
    left = max(1, sum(counts) - lacking)
    return tuple(int(each) for each in np.diff(np.minimum(np.cumsum([0, *counts]), left)))


def leased(policy: capri.Capri) -> None:
    """Let a store with one writer lease its slots, as one with many does."""
    assert policy._engine is not None
    policy._engine.decider.slots.leased = True


def steady_leases(patch: pytest.MonkeyPatch) -> None:
    """Leases are as long as the last use, whatever the time is."""
    ticks = count()
    patch.setattr("capri.joint.slots.time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    patch.setattr("capri.joint.slots._LEASE_SECONDS", 1.0)
    patch.setattr("capri.joint.slots._LEASE_SHARE", 1)


# -- clocks, generations and waits ----------------------------------------------------------------


@mutant("last", "progress")
def reward_prolongs_the_wait(patch: pytest.MonkeyPatch) -> None:
    """A reward that counts pushes the deadline of its epoch, and raises the generation."""

    def leak(state: PublicState, transaction: Any, view: View, came: Any) -> None:
        for epoch in view.waiting:
            if ((came >= epoch.first) & (came < epoch.last)).any():
                sql = "UPDATE epochs SET closes_at = closes_at + 300 WHERE number = ?"
                transaction.run(sql, (epoch.number,))
                state.repository.publish(transaction, view.generation, b"longer")
                return

    on_reward(patch, leak)


@mutant("last", "counter")
def rewards_raise_the_generation(patch: pytest.MonkeyPatch) -> None:
    """Whoever caches a view is told that there are rewards."""

    def leak(state: PublicState, transaction: Any, view: View, came: Any) -> None:
        if len(came) > 3:
            state.repository.publish(transaction, view.generation, b"rewards")

    on_reward(patch, leak)


@mutant("last", "progress", against=silent_world())
def reward_begins_the_epoch_anew(patch: pytest.MonkeyPatch) -> None:
    """The clock of an epoch runs from its newest reward instead of its first decision."""

    def leak(state: PublicState, transaction: Any, view: View, came: Any) -> None:
        newest = view.newest
        if newest is not None and (came >= newest.first).any():
            sql = "UPDATE epochs SET began = ? WHERE number = ? AND began IS NOT NULL"
            transaction.run(sql, (state.now(), newest.number))

    on_reward(patch, leak)


def _answered(patch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of decisions whose reward has come."""
    noted: set[int] = set()
    on_reward(patch, lambda state, transaction, view, came: noted.update(came.tolist()))
    return noted


@mutant("last", "progress")
def wait_ends_with_the_last_reward(patch: pytest.MonkeyPatch) -> None:
    """An epoch that waits by the clock is closed when nothing is missing any more."""
    came = _answered(patch)

    def past(honest: Any, epoch: EpochRow, issued: int, now: float) -> bool:
        waited = epoch.state == WAITING and epoch.last is not None
        if waited and came.issuperset(range(epoch.first, epoch.last or 0)):
            return True
        return bool(honest(epoch, issued, now))

    wrap(patch, EpochRow, "is_past", past)


@mutant("slots, then the clock", "others' rewards", against=silent_world())
def older_epoch_waits_for_half_of_its_rewards(patch: pytest.MonkeyPatch) -> None:
    """While later epochs play, an epoch stays open until enough rewards are there to learn from."""
    came = _answered(patch)

    def past(honest: Any, epoch: EpochRow, issued: int, now: float) -> bool:
        own = range(epoch.first, epoch.last or epoch.first)
        return bool(honest(epoch, issued, now)) and 2 * len(came & set(own)) >= len(own)

    wrap(patch, EpochRow, "is_past", past)


@mutant("first, as estimated", "log")
def late_rewards_are_counted_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """An operator is told how many rewards came too late."""

    def leak(honest: Any, *given: Any) -> Any:
        statuses = honest(*given)
        if (late := int((statuses == LATE).sum())) > 1:
            logging.getLogger("capri.store").info("%d rewards came too late", late)
        return statuses

    wrap(patch, Rewards, "reward", leak)


# -- keys, leases, forgetting ---------------------------------------------------------------------


@mutant("last", "progress")
def known_key_takes_a_slot(patch: pytest.MonkeyPatch) -> None:
    """Who comes again with a key is counted again."""

    def leak(
        honest: Any, decider: Decider, transaction: Any, view: Any, visits: Any, *rest: Any
    ) -> Any:
        known = visits.keys is not None and decider.wanted(visits.keys) == 0
        found = honest(decider, transaction, view, visits, *rest)
        if known:
            transaction.run("UPDATE counter SET issued = issued + 1 WHERE id = 1")
        return found

    wrap(patch, Decider, "_decide", leak)


@mutant("last", "error")
def known_key_with_another_context_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A key stands for its request: with another context it must be a mistake."""
    contexts: dict[str, bytes] = {}

    def leak(honest: Any, decider: Decider, visits: Any) -> Any:
        for key, row in zip(visits.keys or (), visits.rows, strict=False):
            if contexts.setdefault(key, row.tobytes()) != row.tobytes():
                raise DataError("this key was used with another context")
        return honest(decider, visits)

    wrap(patch, Decider, "decide", leak)


@mutant("last", "ids", prepare=leased)
def unreadable_context_drops_the_lease(patch: pytest.MonkeyPatch) -> None:
    """What was leased is given up when a visit goes wrong."""
    steady_leases(patch)

    def leak(honest: Any, decider: Decider, visits: Any) -> Any:
        found = honest(decider, visits)
        if visits.valid is not None:
            decider.slots._lease = None
        return found

    wrap(patch, Decider, "decide", leak)


@mutant("sum, users", "epochs")
def forgetting_gives_the_slot_back(patch: pytest.MonkeyPatch) -> None:
    """A decision of who is forgotten goes with its row, and its epoch is smaller by one."""

    def leak(honest: Any, shelf: SqlRepository, transaction: Any, found: Any) -> Any:
        done = honest(shelf, transaction, found)
        for numbers in found.decisions.values():
            for number in numbers:
                transaction.run("DELETE FROM decisions WHERE number = ?", (number,))
        return done

    wrap(patch, maintenance, "_delete", leak)


@mutant("sum, users", "counter")
def forgetting_is_published(patch: pytest.MonkeyPatch) -> None:
    """That somebody asked to be forgotten is chained into the history."""

    def leak(honest: Any, shelf: SqlRepository, transaction: Any, found: Any) -> Any:
        done = honest(shelf, transaction, found)
        _, generation = transaction.lock()
        shelf.publish(transaction, generation, b"forgotten")
        return done

    wrap(patch, maintenance, "_delete", leak)


# -- limits, sets, missing rewards, shadow --------------------------------------------------------


@mutant("sum, users", "error")
def store_refuses_users_over_their_limit(patch: pytest.MonkeyPatch) -> None:
    """Who has contributed as often as allowed is sent away."""

    def leak(honest: Any, *given: Any) -> Any:
        within = honest(*given)
        if not within.all():
            raise BudgetError("a user has contributed as often as allowed")
        return within

    wrap(patch, SqlRows, "reserve", leak)


@mutant("sum, users", "epochs")
def visits_over_their_limit_leave_the_count(patch: pytest.MonkeyPatch) -> None:
    """An epoch is as large as the visits that count in it."""

    def leak(
        honest: Any, plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> Any:
        kept = list(parts)
        void = sum(int((part.played.status != 0).sum()) for part in kept)
        found = honest(plan, segments, starts, problem, kept, **how)
        return replace(found, counts=fewer(found.counts, void))

    wrap(patch, release, "settled_sum", leak)


@mutant("max, sets", "action of a shared visit")
def small_sets_are_served_last(patch: pytest.MonkeyPatch) -> None:
    """Who may get anything draws first: what others may get moves everybody's draw."""

    def leak(honest: Any, mode: Any, problem: Any, chooser: Any, rows: Any, *rest: Any) -> Any:
        valid, within, uniform, logged, available = rest
        if available is not None:
            order = np.argsort(-available.sum(axis=1), kind="stable")
            moved = np.empty_like(uniform)
            moved[order] = uniform
            uniform = moved
        return honest(mode, problem, chooser, rows, valid, within, uniform, logged, available)

    wrap(patch, decisions, "serve", leak)


@mutant("first, as estimated", "epochs")
def missing_rewards_leave_the_count(patch: pytest.MonkeyPatch) -> None:
    """An epoch has as many participants as it has rewards."""
    missing: list[int] = []

    def noted(honest: Any, rewards: Any, terms: Any) -> Any:
        missing.append(int(np.isnan(rewards).sum()))
        return honest(rewards, terms)

    def leak(honest: Any, *given: Any, **how: Any) -> Any:
        missing.clear()
        found = honest(*given, **how)
        return replace(found, counts=fewer(found.counts, sum(missing)))

    wrap(patch, release, "settled", noted)
    wrap(patch, release, "settled_sum", leak)


@mutant("last", "epochs", **SHADOW)
def shadow_divides_by_sound_visits(patch: pytest.MonkeyPatch) -> None:
    """What the policy is worth is a mean over the visits whose propensity could be used."""
    sound: dict[int, int] = {}

    def added(honest: Any, shadow: ShadowSum, weights: Any, rewards: Any) -> None:
        sound[id(shadow)] = sound.get(id(shadow), 0) + int(np.count_nonzero(weights))
        honest(shadow, weights, rewards)

    def leak(honest: Any, shadow: ShadowSum, gate: Any) -> Any:
        record, event = honest(shadow, gate)
        share = max(1, sound.get(id(shadow), 0)) / record.visits
        return replace(record, worth=record.worth / share), event

    wrap(patch, ShadowSum, "add", added)
    wrap(patch, ShadowSum, "release", leak)


@mutant("last", "operations", **SHADOW)
def shadow_ends_when_propensities_are_bad(patch: pytest.MonkeyPatch) -> None:
    """A safeguard: with too many weights that cannot be used the other system is alone again."""

    def leak(honest: Any, policy: capri.Capri, *given: Any, **named: Any) -> Any:
        found = honest(policy, *given, **named)
        chances = named.get("chosen_propensities")
        if isinstance(chances, list) and sum(chance != 0.5 for chance in chances) > 2:
            policy.set_mode("default", action=0)
        return found

    wrap(patch, capri.Capri, "act_many", leak)


# -- effect slots ---------------------------------------------------------------------------------


def effects_are_not_rounded(patch: pytest.MonkeyPatch) -> None:
    """A law takes effect at the slot, and at the moment, at which its computation was done."""
    patch.setattr(PublicState, "effect", lambda record, epoch, issued: issued)
    # The grid of moments, where there is one.
    patch.setattr(release, "moment_of", lambda first, ready: (ready, 0))
