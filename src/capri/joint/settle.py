"""The sum of a closed epoch from its rows: decisions and rewards, encoded by segment, added up.

Sums are integers, so neither the order of the rows nor who wrote them changes the result.
"""

from collections.abc import Iterable, Sequence
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
from capri.spaces import FixedActions
from capri.store.codec import DEFAULT, SHADOW, VOID
from capri.store.repository import EpochPart


@dataclass(frozen=True, eq=False)
class SettledSum:
    """A secret sum on its way to the gate, and how many decisions each segment really had."""

    plan: EpochPlan
    model: PrivacyModel
    total: IntArray
    counts: tuple[int, ...]
    shadow: ShadowSum
    # In the textbook local model: one report a visit, each to get noise of its own.
    reports: tuple[IntArray, ...] | None = None

    def released(self, gate: Gate) -> tuple[dict[str, Any], dict[str, FloatArray]] | None:
        """What the epoch publishes; None where nobody came who is in a release."""
        values: dict[str, Any] = {"counts": list(self.counts), "event": None}
        arrays: dict[str, FloatArray] = {}
        if self.shadow.visits:
            record, event = self.shadow.release(gate)
            values["shadow"] = record.to_dict()
            values["shadow_event"] = None if event is None else event.to_dict()
        if sum(self.counts):
            arrays["vector"], event = self.release(gate)
            values["event"] = None if event is None else event.to_dict()
        return (values, arrays) if sum(self.counts) or self.shadow.visits else None

    def release(self, gate: Gate) -> tuple[FloatArray, ReleaseEvent | None]:
        """Pass the gate."""
        plan, participants = self.plan, sum(self.counts)
        total, alone = self.total, 0
        if self.reports is not None:  # Alg. 1, lines 14 and 15
            noisy = [gate.add_noise(units, plan.layout, 1) for units in self.reports]
            total, alone = np.sum([np.zeros_like(total), *noisy], axis=0), len(noisy)
        return gate.release(
            total,
            plan.layout,
            epoch=plan.epoch,
            participants=participants,
            model=self.model,
            noised_alone=alone,
        )


def settled_sum(
    plan: EpochPlan,
    segments: Sequence[Segment],
    starts: Sequence[int],
    problem: Problem,
    parts: Iterable[EpochPart],
    *,
    reported: bool = False,
) -> SettledSum:
    """Add up an epoch whose segments begin at these slots, part by part.

    ``reported``: in the local model, keep the report of each visit, to get noise of its own.
    A visit that does not count contributes the zero vector and is a decision like any other.
    """
    total = np.zeros(plan.dimension, dtype=np.int64)
    counts = np.zeros(len(segments), dtype=np.int64)
    encoder = Encoder(plan, problem)
    shadow = ShadowSum(problem, plan.epoch, plan.capacity)
    reported = reported and problem.model is PrivacyModel.LOCAL
    reports: list[IntArray] = []
    for numbers, played, rewarded, rewards in parts:
        if len(numbers) == 0:
            continue
        # Of segments that begin at the same slot only the last one has decisions.
        which = np.searchsorted(np.asarray(starts), numbers, side="right") - 1
        # By the mode, which is public. A visit that is void for another reason is counted.
        apart = (played.status == SHADOW) | (played.status >= VOID)
        teaching = ~apart & (played.status != DEFAULT)
        counts += np.bincount(which[teaching], minlength=len(segments))
        combined = np.full(len(numbers), np.nan)
        combined[np.searchsorted(numbers, rewarded)] = rewards
        values = settled(combined, problem.rewards)
        shadow.visits += int(np.count_nonzero(apart))
        chosen = played.status == SHADOW
        shadow.add(played.propensity[chosen], values[chosen])
        for place, segment in enumerate(segments):
            mine = np.flatnonzero((which == place) & (played.status == 0))
            pairs = _pairs(problem, played.numbers[mine], played.action[mine])
            places, actions, rewards_of = played.place[mine], played.action[mine], values[mine]
            total += encoder.total(segment, pairs, places, actions, rewards_of)
            for row in range(len(mine) if reported else 0):
                one = slice(row, row + 1)
                visit = pairs[one], places[one], actions[one], rewards_of[one]
                reports.append(encoder.total(segment, *visit))
    alone = tuple(reports) if reported else None
    return SettledSum(plan, problem.model, total, tuple(counts.tolist()), shadow, alone)


def stored_columns(problem: Problem) -> int:
    """Numbers that are stored of a visit: its context, or its pair where contexts bring actions.

    The number of the action tells the rest. Names as indicators make a row of every action as long
    as there are actions: megabytes that are written with every list.
    """
    dimension = problem.contexts.dimension
    fixed = isinstance(problem.actions, FixedActions)
    return dimension if fixed else problem.actions.pair_dimension(dimension)


def _pairs(problem: Problem, numbers: FloatArray, action: IntArray) -> FloatArray:
    """The pairs of some decisions."""
    if not isinstance(problem.actions, FixedActions) or len(action) == 0:
        return numbers
    return problem.actions.chosen(numbers, action)
