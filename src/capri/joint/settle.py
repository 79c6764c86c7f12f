"""The sum of a closed epoch from its rows: decisions and rewards, encoded by segment, added up.

Sums are integers, so neither the order of the rows nor who wrote them changes the result.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import settled
from capri.epoch.shadow import ShadowSum
from capri.privacy.gate import Gate
from capri.privacy.ledger import ReleaseEvent
from capri.privacy.promise import PrivacyModel
from capri.spaces import Actions, FixedActions
from capri.store.blobs import packed
from capri.store.records import DEFAULT, SHADOW, VOID, Played, reward_values
from capri.store.shelf import Shelf

# Slots whose data are read at once: bounds the memory.
_CHUNK = 1 << 15
EpochData = tuple[IntArray, list[bytes], IntArray, list[bytes]]


@dataclass(frozen=True, eq=False)
class SettledSum:
    """A secret sum on its way to the gate, and how many decisions each segment really had."""

    plan: EpochPlan
    model: PrivacyModel
    total: IntArray
    counts: tuple[int, ...]
    shadow: ShadowSum

    def released(self, gate: Gate) -> bytes | None:
        """What the epoch publishes, in bytes; None where nobody came who is in a release."""
        values: dict[str, Any] = {"counts": list(self.counts), "event": None}
        arrays: dict[str, FloatArray] = {}
        if self.shadow.visits:
            record, event = self.shadow.release(gate)
            values["shadow"] = record.to_dict()
            values["shadow_event"] = None if event is None else event.to_dict()
        if sum(self.counts):
            arrays["vector"], event = self.release(gate)
            values["event"] = None if event is None else event.to_dict()
        return packed(values, arrays) if sum(self.counts) or self.shadow.visits else None

    def release(self, gate: Gate) -> tuple[FloatArray, ReleaseEvent | None]:
        """Pass the gate."""
        plan, participants = self.plan, sum(self.counts)
        return gate.release(
            self.total, plan.layout, epoch=plan.epoch, participants=participants, model=self.model
        )


def epoch_parts(shelf: Shelf, first: int, last: int) -> Iterator[EpochData]:
    """The data of some slots, part by part."""
    for start in range(first, last, _CHUNK):
        yield shelf.database.read(
            lambda transaction, start=start: shelf.epoch_data(  # type: ignore[misc]
                transaction, start, min(start + _CHUNK, last)
            )
        )


def settled_sum(
    plan: EpochPlan,
    segments: Sequence[Segment],
    starts: Sequence[int],
    problem: Problem,
    parts: Iterable[EpochData],
) -> SettledSum:
    """Add up an epoch whose segments begin at these slots, part by part.

    A visit that does not count contributes the zero vector and is a decision like any other.
    """
    total = np.zeros(plan.dimension, dtype=np.int64)
    counts = np.zeros(len(segments), dtype=np.int64)
    encoder = Encoder(plan, problem)
    shadow = ShadowSum(problem, plan.epoch, plan.capacity)
    for numbers, decisions, rewarded, rewards in parts:
        if len(numbers) == 0:
            continue
        # Of segments that begin at the same slot only the last one has decisions.
        which = np.searchsorted(np.asarray(starts), numbers, side="right") - 1
        played = Played.read(decisions)
        # By the mode, which is public. A visit that is void for another reason is counted.
        apart = (played.status == SHADOW) | (played.status >= VOID)
        teaching = ~apart & (played.status != DEFAULT)
        counts += np.bincount(which[teaching], minlength=len(segments))
        combined = np.full(len(numbers), np.nan)
        combined[np.searchsorted(numbers, rewarded)] = reward_values(rewards)
        values = settled(combined, problem.rewards)
        shadow.visits += int(np.count_nonzero(apart))
        chosen = played.status == SHADOW
        shadow.add(played.propensity[chosen], values[chosen])
        for place, segment in enumerate(segments):
            mine = np.flatnonzero((which == place) & (played.status == 0))
            pairs = _pairs(problem, played.numbers[mine], played.action[mine])
            total += encoder.total(
                segment, pairs, played.place[mine], played.action[mine], values[mine]
            )
    return SettledSum(plan, problem.model, total, tuple(counts.tolist()), shadow)


def stored_part(actions: Actions, contexts: FloatArray, pairs: FloatArray) -> FloatArray:
    """What is stored of pairs: the context alone where the number of the action tells the rest.

    Names as indicators make a row of every action as long as there are actions: megabytes that are
    written with every list, and overwritten when the epoch is released.
    """
    return contexts if isinstance(actions, FixedActions) else pairs


def _pairs(problem: Problem, numbers: FloatArray, action: IntArray) -> FloatArray:
    """The pairs of some decisions; a store that is older holds all of each."""
    if not isinstance(problem.actions, FixedActions) or len(action) == 0:
        return numbers
    return problem.actions.chosen(numbers[:, : problem.contexts.dimension], action)
