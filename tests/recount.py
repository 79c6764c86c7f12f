"""Count a release again from what was acknowledged, to the last bit.

Without a budget the gate lets the integer sum of an epoch pass as it is. So the sum over exactly
the decisions and rewards that callers know of must be the sum that was released: anything lost,
counted twice or counted in another epoch changes it.
"""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import nan
from typing import Any

import numpy as np

import capri
from capri.epoch.encode import Encoder
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardRule
from capri.epoch.storage import plan_from_state, segment_from_state
from capri.kernels import Kernel
from capri.privacy.ledger import ReleaseEvent
from capri.spaces import ContextPool
from capri.store.codec import unpacked

# Rewards of which nobody can know whether they were counted: more are not tried out. A million
# sums take half a minute, and so many are in doubt where all processes of a slow day end at once.
MOST_IN_DOUBT = 20


@dataclass(frozen=True)
class Released:
    """What an epoch released, with the slot at which each of its segments began."""

    release: Release
    starts: tuple[int, ...]

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.release.plan.epoch

    def is_sum(self, units: np.ndarray) -> bool:
        """Whether these integers were released, as numbers and to the last bit.

        Integers become numbers here and not the other way round: sums above 2^53 are rounded on
        their way, and of combinations of second moments they soon are.
        """
        plan, vector = self.release.plan, self.release.vector
        return np.array_equal(vector, plan.layout.numbers(units))


def released_in(url: str, kernel: Kernel) -> tuple[Released, ...]:
    """All releases of a store, in the order of their epochs, read by SQL of our own.

    An epoch of whose slots none was used by who teaches releases nothing, or a shadow alone.
    """
    plans = rows_of(url, "SELECT number, plan, release FROM epochs ORDER BY number")
    pieces = rows_of(url, "SELECT epoch, first, segment FROM segments ORDER BY epoch, number")
    found = []
    for epoch, plan, blob in plans:
        if blob is None:
            continue
        values, arrays = unpacked(bytes(blob))
        if "vector" not in arrays:
            continue
        event = values["event"]
        mine = [(first, unpacked(bytes(each))) for number, first, each in pieces if number == epoch]
        planned = plan_from_state(*unpacked(bytes(plan)), kernel)
        release = Release(
            plan=planned,
            vector=arrays["vector"],
            event=None if event is None else ReleaseEvent(**event),
            segments=tuple(segment_from_state(*state, planned) for _, state in mine),
            counts=tuple(values["counts"]),
        )
        found.append(Released(release, tuple(int(first) for first, _ in mine)))
    return tuple(found)


def rows_of(url: str, sql: str) -> list[Any]:
    """What a statement gives, on either kind of store."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return file.execute(sql).fetchall()
        finally:
            file.close()
    import psycopg

    with psycopg.connect(url) as server:
        return server.execute(sql).fetchall()


@dataclass
class Row:
    """A decision that was acknowledged; ``doubtful`` rewards may be counted or not."""

    id: str
    number: int
    epoch: int
    action: int
    context: np.ndarray
    counts: bool
    rewards: list[float] = field(default_factory=list)
    doubtful: list[float] = field(default_factory=list)

    def combined(self, rule: RewardRule, extra: Sequence[float] = ()) -> float:
        """What its rewards make together; NaN without any."""
        total = nan
        for value in (*self.rewards, *extra):
            total = rule.combined(total, value)
        return total


class Recount:
    """Sums of one epoch's rows, by its own plan and segments."""

    def __init__(self, problem: Problem, released: Released) -> None:
        self._problem, self._released = problem, released
        self._encoder = Encoder(released.release.plan, problem)

    def check(self, rows: Iterable[Row], perhaps: Sequence[Row] = ()) -> None:
        """The release is the sum of these rows, with some of what is in doubt or without.

        ``perhaps``: rows that add nothing, and of which nobody can know whether they were counted.
        """
        rows, released = list(rows), self._released
        numbers = [row.number for row in rows]
        assert len(set(numbers)) == len(numbers), "two decisions share a slot"
        counts = [0] * len(released.starts)
        for row in rows:
            counts[self._segment(row)] += 1
        most = list(counts)
        for row in perhaps:
            most[self._segment(row)] += 1
        bounds = zip(counts, released.release.counts, most, strict=True)
        assert all(least <= count <= many for least, count, many in bounds), (
            f"epoch {released.epoch} was released with {released.release.counts} decisions, "
            f"{counts} are known"
        )
        total = np.zeros(released.release.plan.dimension, dtype=np.int64)
        for row in rows:
            total += self._units(row, ())
        assert self._explained(total, [row for row in rows if row.doubtful]), (
            f"the sum of epoch {released.epoch} is not that of what was acknowledged"
        )

    def _segment(self, row: Row) -> int:
        found = int(np.searchsorted(self._released.starts, row.number, side="right")) - 1
        assert found >= 0, "a decision before the first slot of its epoch"
        return found

    def _units(self, row: Row, extra: Sequence[float]) -> np.ndarray:
        """The integers that one decision contributes."""
        problem, plan = self._problem, self._released.release.plan
        if not row.counts:
            return np.zeros(plan.dimension, dtype=np.int64)
        context, action = row.context[None, :], np.array([row.action])
        pool = problem.contexts
        place = pool.locate(context) if isinstance(pool, ContextPool) else np.array([-1])
        reward = row.combined(problem.rewards.rule, extra)
        if np.isnan(reward):
            reward = problem.rewards.stand_in
        segment = self._released.release.segments[self._segment(row)]
        pairs = problem.actions.chosen(context, action)
        return self._encoder.total(segment, pairs, place, action, np.array([reward]))

    def _explained(self, total: np.ndarray, doubtful: list[Row]) -> bool:
        """Whether the total and some choice of what is in doubt were released."""
        number = sum(len(row.doubtful) for row in doubtful)
        assert number <= MOST_IN_DOUBT, f"{number} rewards of one epoch are in doubt"
        choices = []
        for row in doubtful:
            without = self._units(row, ())
            subsets = product((False, True), repeat=len(row.doubtful))
            picked = (
                [value for value, taken in zip(row.doubtful, subset, strict=True) if taken]
                for subset in subsets
            )
            choices.append([self._units(row, extra) - without for extra in picked])
        return any(self._released.is_sum(sum(choice, start=total)) for choice in product(*choices))


class Account:
    """Calls of one process on a policy, kept for the recount."""

    def __init__(self, policy: capri.Capri) -> None:
        self.policy = policy
        self.rows: list[Row] = []
        self._by_id: dict[str, Row] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        """Decisions so far."""
        return len(self.rows)

    def act(
        self, policy: capri.Capri, context: np.ndarray, key: str | None = None
    ) -> capri.Decision:
        """Decide, and note what was answered."""
        decision = policy.act(context, key=key)
        row = Row(
            id=decision.id,
            number=decision.number,
            epoch=decision.epoch,
            action=decision.action_index,
            context=np.asarray(context, dtype=float),
            counts=decision.status is capri.VisitStatus.SERVED,
        )
        with self._lock:
            self.rows.append(row)
            self._by_id[row.id] = row
        return decision

    def reward(
        self, policy: capri.Capri, decision: str, value: float, key: str | None = None
    ) -> capri.RewardStatus:
        """Reward, and note the value if it was accepted."""
        status = policy.update(decision, value, key=key)
        if status is capri.RewardStatus.ACCEPTED:
            with self._lock:
                self._by_id[decision].rewards.append(value)
        return status

    def check(self, url: str) -> int:
        """Count every release of the store again; how many there are."""
        found = released_in(url, self.policy.problem.kernel)
        for each in found:
            mine = [row for row in self.rows if row.epoch == each.epoch]
            Recount(self.policy.problem, each).check(mine)
        return len(found)
