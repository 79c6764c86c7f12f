"""Epochs under way, as the curator alone may see them: for tests that look at sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from capri import Capri
from capri.arrays import IntArray
from capri.epoch.plan import EpochPlan, Segment
from capri.joint.release import SettledSum, settled_sum
from capri.store.codec import Played
from capri.store.repository import EpochPart
from capri.store.view import EpochRow


@dataclass(frozen=True, eq=False)
class Inside:
    """An epoch that is not released yet, and the sum of its messages so far."""

    row: EpochRow
    plan: EpochPlan
    segments: tuple[Segment, ...]
    settled: SettledSum  # as if it closed now
    so_far: SettledSum  # of decisions that have a reward

    @property
    def total(self) -> IntArray:
        """What the rewards so far add up to."""
        return self.so_far.total

    @property
    def counts(self) -> tuple[int, ...]:
        """Decisions of each segment that count."""
        return self.settled.counts


def epochs_inside(policy: Capri) -> list[Inside]:
    """Every epoch that is not released yet, oldest first."""
    state = policy._engine.state
    issued, view = state.read()
    return [_inside(state, epoch, issued, view) for epoch in view.epochs]


def open_epoch(policy: Capri) -> Inside:
    """The newest of them."""
    return epochs_inside(policy)[-1]


def _inside(state: Any, epoch: EpochRow, issued: int, view: Any) -> Inside:
    plan, problem = state.plan(epoch.number), state.problem_of(view, epoch.number)
    segments = tuple(state.segment(epoch.number, each.number) for each in epoch.segments)
    starts = [each.first for each in epoch.segments]
    parts = list(state.repository.rows.parts(epoch.first, max(epoch.first, epoch.last or issued)))
    sums = [
        settled_sum(plan, segments, starts, problem, each) for each in (parts, _rewarded(parts))
    ]
    return Inside(epoch, plan, segments, *sums)


def _rewarded(parts: list[EpochPart]) -> list[EpochPart]:
    """Decisions that have a reward."""
    return [_among(part, np.isin(part.numbers, part.rewarded)) for part in parts]


def _among(part: EpochPart, kept: Any) -> EpochPart:
    each = part.played
    columns = (each.status, each.place, each.action, each.propensity, each.numbers)
    played = Played(*(column[kept] for column in columns))
    return EpochPart(part.numbers[kept], played, part.rewarded, part.rewards)
