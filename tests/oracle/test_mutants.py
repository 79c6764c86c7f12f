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
from capri.epoch.decide import Chooser
from capri.epoch.rewards import warn_of_ignored
from capri.errors import BudgetError, DataError
from capri.joint import release
from capri.joint.decisions import Decider
from capri.joint.release import SettledSum
from capri.joint.rewards import Rewards
from capri.learners.crowd import Crowd
from capri.privacy import gate
from capri.privacy.gate import Gate
from capri.privacy.pairs import CountLayout
from capri.store.memory import MemoryRepository
from capri.store.memory_rows import MemoryRows
from epochs_inside import epochs_inside
from oracle.blind import blind
from oracle.policies import POLICIES
from oracle.transcript import played, told_apart_by
from oracle.worlds import quiet_world, wild_world

Plant = Callable[[pytest.MonkeyPatch], None]


def _wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, leak: Callable[..., Any]) -> None:
    """Replace a method by ``leak(honest, *arguments)``."""
    honest = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: leak(honest, *args, **kwargs))


def _note_rewards(patch: pytest.MonkeyPatch) -> list[int]:
    """How many rewards came for the epoch that was added up last."""
    noted = [0]

    def leak(
        honest: Any, plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> Any:
        kept = list(parts)
        noted[0] = sum(len(part.rewarded) for part in kept)
        return honest(plan, segments, starts, problem, kept, **how)

    _wrap(patch, release, "settled_sum", leak)
    return noted


def refuse_contexts(patch: pytest.MonkeyPatch) -> None:
    """A context that is no number raises, as it used to."""

    def leak(honest: Any, values: Any, dimension: int, **how: Any) -> Any:
        rows, valid = honest(values, dimension, **how)
        if valid is not None:
            raise DataError("a context must be finite")
        return rows, valid

    import capri.joint.serving as module

    _wrap(patch, module, "as_visits", leak)


def skip_slots(patch: pytest.MonkeyPatch) -> None:
    """A context that is no number is served and takes no slot."""

    def leak(honest: Any, decider: Decider, unit: Any, *arguments: Any) -> Any:
        found = honest(decider, unit, *arguments)
        if found[0] is not None:
            void = int(np.count_nonzero(found[0].status))
            unit.set_counter("issued", unit.counter()[0] - void)
        return found

    _wrap(patch, Decider, "_play", leak)


def refuse_rewards(patch: pytest.MonkeyPatch) -> None:
    """One reward that is no number refuses its batch."""

    def leak(honest: Any, *arguments: Any) -> Any:
        numbers, values = honest(*arguments)
        if not np.isfinite(values).all():
            raise DataError("a reward must be a finite number")
        return numbers, values

    import capri.joint.serving as module

    _wrap(patch, module, "decision_rewards", leak)


def drop_batches(patch: pytest.MonkeyPatch) -> None:
    """One reward that is no number silently drops its batch, and the log says how many."""

    def leak(honest: Any, book: Rewards, numbers: Any, rewards: Any, keys: Any) -> Any:
        if not np.isfinite(rewards).all():
            logging.getLogger("capri").debug("dropped %d rewards", len(rewards))
            return np.full(len(numbers), 4)
        return honest(book, numbers, rewards, keys)

    _wrap(patch, Rewards, "reward", leak)


def close_on_last_reward(patch: pytest.MonkeyPatch) -> None:
    """An epoch closes when all its rewards are in."""

    def leak(honest: Any, policy: capri.Capri, *arguments: Any) -> Any:
        statuses = honest(policy, *arguments)
        newest = policy._engine.state.look().newest
        if newest is not None:
            end = newest.first + newest.length
            parts = policy._engine.repository.rows.parts(newest.first, end)
            if sum(len(part.rewarded) for part in parts) == newest.length:
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
    noted = _note_rewards(patch)

    def leak(honest: Any, settled: SettledSum, gate: Gate) -> Any:
        values, arrays = honest(settled, gate)
        return values | {"counts": [1 + noted[0]]}, arrays

    _wrap(patch, SettledSum, "released", leak)


def add_noise_for_rewards_only(patch: pytest.MonkeyPatch) -> None:
    """Textbook local model: a missing reward brings no noise."""
    noted = _note_rewards(patch)

    def leak(honest: Any, settled: SettledSum, gate: Gate) -> Any:
        assert settled.reports is not None
        return honest(replace(settled, reports=settled.reports[: 1 + noted[0]]), gate)

    def without(honest: Any, *given: Any, participants: int, **named: Any) -> Any:
        named["noised_alone"] = participants
        return honest(*given, participants=participants, **named)

    _wrap(patch, SettledSum, "release", leak)
    _wrap(patch, Gate, "release", without)


def print_the_sum(patch: pytest.MonkeyPatch) -> None:
    """A debugging aid that stayed."""

    def shown(policy: capri.Capri) -> str:
        return f"Capri({[each.total for each in epochs_inside(policy)]})"

    patch.setattr(capri.Capri, "__repr__", shown)


def store_the_rows(patch: pytest.MonkeyPatch) -> None:
    """A private file keeps what users did, so that a restart loses nothing."""

    def leak(honest: Any, repository: MemoryRepository, *, secret: bool) -> Any:
        return honest(repository, secret=True)

    _wrap(patch, MemoryRepository, "snapshot", leak)


def pass_beside_the_gate(patch: pytest.MonkeyPatch) -> None:
    """The release is scaled by the sum that it hides."""

    def leak(honest: Any, settled: SettledSum, gate: Gate) -> Any:
        vector, event = honest(settled, gate)
        return vector * (1 + math.log1p(float(np.abs(settled.total).max()))), event

    _wrap(patch, SettledSum, "release", leak)


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

    def leak(honest: Any, rows: MemoryRows, *arguments: Any) -> Any:
        within = honest(rows, *arguments)
        if not within.all():
            raise BudgetError("a user has contributed as often as allowed")
        return within

    _wrap(patch, MemoryRows, "reserve", leak)


def show_how_many_take_part(patch: pytest.MonkeyPatch) -> None:
    """The number of different people in the repr."""
    patch.setattr(MemoryRows, "__repr__", lambda rows: f"MemoryRows({len(rows._counts)})")


def refuse_empty_sets(patch: pytest.MonkeyPatch) -> None:
    """A set of available actions in which nothing is left raises."""

    def leak(honest: Any, *arguments: Any, **how: Any) -> Any:
        sets = honest(*arguments, **how)
        if not sets.any(axis=1).all():
            raise DataError("a set must hold an action")
        return sets

    import capri.epoch.bounds as module

    _wrap(patch, module, "as_sets", leak)


def plan_by_sets(patch: pytest.MonkeyPatch) -> None:
    """What users may get finds its way into what the policy expects of others."""

    def leak(honest: Any, chooser: Chooser, rows: Any, available: Any) -> Any:
        bounds = chooser._problem.bounds
        assert bounds is not None
        bounds.ceiling[:] = np.where(available.all(axis=0), bounds.ceiling, 0.9 * bounds.ceiling)
        return honest(chooser, rows, available)

    _wrap(patch, Chooser, "unserved", leak)


def _note_contexts(patch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The rows of the epoch that was added up last."""
    noted = [np.zeros((1, 2))]

    def leak(
        honest: Any, plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> Any:
        kept = list(parts)
        noted[0] = np.concatenate([part.played.numbers for part in kept])
        return honest(plan, segments, starts, problem, kept, **how)

    _wrap(patch, release, "settled_sum", leak)
    return noted


def make_up_rows_from_real_ones(patch: pytest.MonkeyPatch) -> None:
    """The pool is moved to where those of its last epoch are."""
    noted = _note_contexts(patch)

    def leak(honest: Any, crowd: Crowd, generator: Any) -> Any:
        return np.clip(honest(crowd, generator) + np.nanmedian(noted[0]), -1, 2)

    _wrap(patch, Crowd, "_rows", leak)


def count_cells_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Marginals leave as they are."""
    blind_noise = gate.noised

    def leak(total: Any, layout: Any, *how: Any) -> Any:
        return total if isinstance(layout, CountLayout) else blind_noise(total, layout, *how)

    patch.setattr(gate, "noised", leak)


def take_quantiles_of_real_rows(patch: pytest.MonkeyPatch) -> None:
    """Columns are told apart between quantiles of those who came."""
    noted = _note_contexts(patch)

    def leak(honest: Any, crowd: Crowd, release: Any) -> Any:
        found = honest(crowd, release)
        low = float(np.nanquantile(noted[0][:, 0], 0.4))
        windows = found.windows.copy()
        windows[0] = low - 0.1, low + 0.1
        return replace(found, windows=windows)

    _wrap(patch, Crowd, "_with_shares", leak)


def score_by_ranks_of_real_rows(patch: pytest.MonkeyPatch) -> None:
    """Normal scores are those of the ranks of those who came."""
    noted = _note_contexts(patch)

    def leak(honest: Any, crowd: Crowd) -> Any:
        scores = honest.func(crowd)
        share = (np.nan_to_num(noted[0][:, :1], posinf=0, neginf=0) < np.linspace(-1, 2, 17)).mean(
            axis=0
        )
        return replace(scores, tables=scores.tables + share)

    honest = vars(Crowd)["scores"]
    patch.setattr(Crowd, "scores", property(lambda crowd: leak(honest, crowd)))


def read_the_pool_before_its_release(patch: pytest.MonkeyPatch) -> None:
    """What makes up the pool is the sum, and the noise is for others alone."""
    sums: list[Any] = []

    def note(honest: Any, settled: SettledSum, gate: Gate) -> Any:
        sums.append(settled.plan.layout.numbers(settled.total))
        return honest(settled, gate)

    def leak(honest: Any, crowd: Crowd, release: Any, generator: Any) -> Any:
        return honest(crowd, replace(release, vector=sums[-1]), generator)

    _wrap(patch, SettledSum, "release", note)
    _wrap(patch, Crowd, "after", leak)


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
    (store_the_rows, "paper", "file"),
    (pass_beside_the_gate, "paper", "estimate"),
    (draw_for_valid_contexts_only, "paper", "action of a shared visit"),
    (refuse_users_over_their_limit, "paper, users", "error"),
    (show_how_many_take_part, "paper, users", "inside"),
    (refuse_empty_sets, "limits", "error"),
    (plan_by_sets, "limits", "law"),
    (make_up_rows_from_real_ones, "crowd", "explained | ledger"),
    (count_cells_without_noise, "crowd", "explained | ledger"),
    (take_quantiles_of_real_rows, "crowd", "explained | ledger"),
    (score_by_ranks_of_real_rows, "crowd, pairs", "plan"),
    (read_the_pool_before_its_release, "crowd", "explained | ledger"),
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
