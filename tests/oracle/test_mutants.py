"""Leaks planted around the gate, each of which the oracle test must see."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.decide import ACCEPTED, DUPLICATE, Chooser, warn_of_ignored
from capri.errors import BudgetError, DataError
from capri.privacy.users import Participation
from oracle.blind import blind
from oracle.policies import POLICIES
from oracle.transcript import played, told_apart_by
from oracle.worlds import quiet_world, wild_world

Plant = Callable[[pytest.MonkeyPatch], None]


def _wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, leak: Callable[..., Any]) -> None:
    """Replace a method by ``leak(honest, *arguments)``."""
    honest = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: leak(honest, *args, **kwargs))


def _rewarded(epoch: OpenEpoch) -> int:
    return int(np.sum(epoch._status[: epoch.issued] == DUPLICATE))


def refuse_contexts(patch: pytest.MonkeyPatch) -> None:
    """A context that is no number raises, as it used to."""

    def leak(honest: Any, values: Any, dimension: int, **how: Any) -> Any:
        rows, valid = honest(values, dimension, **how)
        if valid is not None:
            raise DataError("a context must be finite")
        return rows, valid

    import capri.joint.policy as module

    _wrap(patch, module, "as_visits", leak)


def skip_slots(patch: pytest.MonkeyPatch) -> None:
    """A context that is no number is served and takes no slot."""

    def leak(honest: Any, epoch: OpenEpoch, *arguments: Any) -> Any:
        numbers = honest(epoch, *arguments)
        epoch.issued -= int(np.count_nonzero(arguments[-1]))
        return numbers

    _wrap(patch, OpenEpoch, "issue", leak)


def refuse_rewards(patch: pytest.MonkeyPatch) -> None:
    """One reward that is no number refuses its batch."""

    def leak(honest: Any, *arguments: Any) -> Any:
        numbers, values = honest(*arguments)
        if not np.isfinite(values).all():
            raise DataError("a reward must be a finite number")
        return numbers, values

    import capri.joint.policy as module

    _wrap(patch, module, "decision_rewards", leak)


def drop_batches(patch: pytest.MonkeyPatch) -> None:
    """One reward that is no number silently drops its batch, and the log says how many."""

    def leak(honest: Any, epoch: OpenEpoch, numbers: Any, rewards: Any, keys: Any) -> Any:
        if not np.isfinite(rewards).all():
            logging.getLogger("capri").debug("dropped %d rewards", len(rewards))
            return np.full(len(numbers), 4)
        return honest(epoch, numbers, rewards, keys)

    _wrap(patch, OpenEpoch, "reward", leak)


def close_on_last_reward(patch: pytest.MonkeyPatch) -> None:
    """An epoch closes when all its rewards are in."""

    def leak(honest: Any, policy: capri.Capri, *arguments: Any) -> Any:
        statuses = honest(policy, *arguments)
        epoch = policy._open
        if epoch is not None and epoch.remaining == 0 and not (epoch._status == ACCEPTED).any():
            policy.close_epoch()
        return statuses

    _wrap(patch, capri.Capri, "_reward", leak)


def warn_in_private(patch: pytest.MonkeyPatch) -> None:
    """Duplicate and late rewards raise a warning."""

    def leak(honest: Any, policy: capri.Capri, *arguments: Any) -> Any:
        statuses = honest(policy, *arguments)
        warn_of_ignored(statuses, stacklevel=3)
        return statuses

    _wrap(patch, capri.Capri, "_reward", leak)


def count_rewards_in_the_record(patch: pytest.MonkeyPatch) -> None:
    """The record says how many rewards came instead of how many decisions there were."""

    def leak(honest: Any, epoch: OpenEpoch) -> Any:
        release = honest(epoch)
        return replace(release, counts=(1 + _rewarded(epoch),))

    _wrap(patch, OpenEpoch, "release", leak)


def add_noise_for_rewards_only(patch: pytest.MonkeyPatch) -> None:
    """Textbook local model: a missing reward brings no noise."""

    def leak(honest: Any, epoch: OpenEpoch) -> Any:
        epoch._noised = epoch.plan.length - 1
        return honest(epoch)

    _wrap(patch, OpenEpoch, "release", leak)


def print_the_sum(patch: pytest.MonkeyPatch) -> None:
    """A debugging aid that stayed."""
    patch.setattr(
        capri.Capri,
        "__repr__",
        lambda policy: f"Capri({0 if policy._open is None else policy._open._accumulator})",
    )


def store_the_sum(patch: pytest.MonkeyPatch) -> None:
    """A private file keeps the open sum, so that a restart loses nothing."""

    def leak(honest: Any, policy: capri.Capri) -> Any:
        values, arrays = honest(policy)
        if policy._open is not None:
            arrays["open.accumulator"] = policy._open._accumulator
        return values, arrays

    _wrap(patch, capri.Capri, "_state", leak)


def pass_beside_the_gate(patch: pytest.MonkeyPatch) -> None:
    """The release is scaled by the sum that it hides."""

    def leak(honest: Any, epoch: OpenEpoch) -> Any:
        size = math.log1p(float(np.abs(epoch._accumulator).max()))
        release = honest(epoch)
        return replace(release, vector=release.vector * (1 + size))

    _wrap(patch, OpenEpoch, "release", leak)


def draw_for_valid_contexts_only(patch: pytest.MonkeyPatch) -> None:
    """A visit without a context draws no number, and everybody after it gets another action."""

    def leak(honest: Any, chooser: Chooser, rows: Any, valid: Any, uniform: Any, own: Any) -> Any:
        if valid is None:
            return honest(chooser, rows, valid, uniform, own)
        order = np.concatenate([np.flatnonzero(valid), np.flatnonzero(~valid)])
        moved = np.empty_like(uniform)
        moved[order] = uniform
        return honest(chooser, rows, valid, moved, own)

    _wrap(patch, Chooser, "draw", leak)


def refuse_users_over_their_limit(patch: pytest.MonkeyPatch) -> None:
    """As it used to be."""

    def leak(honest: Any, book: Participation, *arguments: Any) -> Any:
        within = honest(book, *arguments)
        if not within.all():
            raise BudgetError("a user has contributed as often as allowed")
        return within

    _wrap(patch, Participation, "take", leak)


def show_how_many_take_part(patch: pytest.MonkeyPatch) -> None:
    """The number of different people in the repr."""
    patch.setattr(Participation, "__repr__", lambda book: f"Participation({len(book._counts)})")


def refuse_empty_sets(patch: pytest.MonkeyPatch) -> None:
    """A set of available actions in which nothing is left raises."""

    def leak(honest: Any, *arguments: Any, **how: Any) -> Any:
        sets = honest(*arguments, **how)
        if not sets.any(axis=1).all():
            raise DataError("a set must hold an action")
        return sets

    import capri.epoch.available as module

    _wrap(patch, module, "as_sets", leak)


def plan_by_sets(patch: pytest.MonkeyPatch) -> None:
    """What users may get finds its way into what the policy expects of others."""

    def leak(honest: Any, chooser: Chooser, rows: Any, available: Any) -> Any:
        bounds = chooser._problem.bounds
        assert bounds is not None
        bounds.ceiling[:] = np.where(available.all(axis=0), bounds.ceiling, 0.9 * bounds.ceiling)
        return honest(chooser, rows, available)

    _wrap(patch, Chooser, "unserved", leak)


# The policy that has the leak, and the public thing that gives it away.
MUTANTS: list[tuple[Plant, str, str]] = [
    (refuse_contexts, "paper", "error"),
    (skip_slots, "paper", "remaining"),
    (refuse_rewards, "paper", "error"),
    (drop_batches, "paper", "log"),
    (close_on_last_reward, "paper", "ledger"),
    (warn_in_private, "paper", "warnings"),
    # A law read with another count moves an action that is near a tie: on some processors.
    (count_rewards_in_the_record, "practical", "estimate | action of a shared visit"),
    (add_noise_for_rewards_only, "paper, local", "estimate"),
    (print_the_sum, "paper", "shown"),
    (store_the_sum, "paper", "file"),
    (pass_beside_the_gate, "paper", "estimate"),
    (draw_for_valid_contexts_only, "paper", "action of a shared visit"),
    (refuse_users_over_their_limit, "paper, users", "error"),
    (show_how_many_take_part, "paper, users", "inside"),
    (refuse_empty_sets, "limits", "error"),
    (plan_by_sets, "limits", "law"),
]


@pytest.mark.parametrize(
    ("plant", "name", "witness"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS]
)
def test_planted_leak_is_seen(plant: Plant, name: str, witness: str, tmp_path: Path) -> None:
    transcripts = []
    for world in (quiet_world(), wild_world(3)):
        with pytest.MonkeyPatch.context() as patch:
            blind(patch)
            plant(patch)
            transcripts.append(played(world, POLICIES[name], tmp_path))
    told = told_apart_by(*transcripts)
    assert any(kind in told for kind in witness.split(" | "))
