"""Decisions: drawing them from a public law, and the numbers that rewards come back with."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import overload

import numpy as np
from numpy.typing import NDArray

from capri.arrays import FloatArray, IntArray
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, DataError, RewardIgnoredWarning, ShapeError
from capri.spaces import ContextPool, as_numbers, context_chunks


@dataclass(frozen=True)
class Decision:
    """One decision. Only ``id`` and ``epoch`` are shown: the rest belongs to the user."""

    id: int
    epoch: int
    action_index: int = field(repr=False)
    action: FloatArray = field(repr=False, compare=False)
    propensity: float = field(repr=False)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of one epoch as arrays; ``decisions[i]`` and iteration give single ones."""

    id: IntArray
    epoch: int
    action_index: IntArray = field(repr=False)
    action: FloatArray = field(repr=False)
    propensity: FloatArray = field(repr=False)

    def __len__(self) -> int:
        return len(self.id)

    @overload
    def __getitem__(self, position: int) -> Decision: ...

    @overload
    def __getitem__(self, position: slice) -> "Decisions": ...

    def __getitem__(self, position: int | slice) -> "Decision | Decisions":
        if isinstance(position, slice):
            return Decisions(
                self.id[position],
                self.epoch,
                self.action_index[position],
                self.action[position],
                self.propensity[position],
            )
        return Decision(
            int(self.id[position]),
            self.epoch,
            int(self.action_index[position]),
            self.action[position],
            float(self.propensity[position]),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[position] for position in range(len(self)))


def decision_ids(decisions: Decisions | Sequence[Decision | int]) -> IntArray:
    """The numbers of some decisions, given as such or by number."""
    if isinstance(decisions, Decisions):
        return decisions.id
    if isinstance(decisions, Decision):
        raise ConfigurationError("update_many takes a sequence of decisions: use update for one")
    ids = [each.id if isinstance(each, Decision) else each for each in decisions]
    if not all(isinstance(each, int | np.integer) and abs(int(each)) < 2**63 for each in ids):
        raise ConfigurationError("a reward needs the decision that policy.act gave, or its id")
    return np.array(ids, dtype=np.int64)


class RewardStatus(IntEnum):
    """What became of a reward."""

    ACCEPTED = 0
    LATE = 1
    DUPLICATE = 2
    UNKNOWN = 3

    def __str__(self) -> str:
        return self.name.lower()


# Plain numbers: looking up a member of an enumeration costs as much as encoding a reward.
ACCEPTED, LATE, DUPLICATE, UNKNOWN = (int(status) for status in RewardStatus)


def decision_rewards(
    decisions: Decisions | Sequence[Decision | int], rewards: object
) -> tuple[IntArray, FloatArray]:
    """Numbers of some decisions and the finite reward of each. Errors never show a reward."""
    ids = decision_ids(decisions)
    values = as_numbers(rewards, "a reward must be a finite number")
    if values.shape != ids.shape:
        raise ShapeError(f"one reward per decision is needed: {len(ids)}, got {values.shape}")
    if not np.isfinite(values).all():
        raise DataError("a reward must be a finite number, got NaN or infinity")
    return ids, values


def reward_statuses(
    ids: IntArray, awaited: NDArray[np.int8], first_id: int, origin: int = 0
) -> IntArray:
    """What each reward meets; of several for one decision the first counts.

    ``awaited[i]`` is what a reward for decision ``first_id + i`` would meet; those for decisions
    before it, from number ``origin`` on, come late.

    >>> reward_statuses(np.array([7, 8, 8, 5, 9]), np.array([2, 0], dtype=np.int8), 7).tolist()
    [2, 0, 2, 1, 3]
    """
    if len(ids) == 1 and 0 <= (first := int(ids[0]) - first_id) < len(awaited):
        return awaited[first : first + 1].astype(np.int64)
    place = ids - first_id
    known = (place >= 0) & (place < len(awaited))
    result = np.full(len(ids), UNKNOWN, dtype=np.int64)
    result[known] = awaited[place[known]]
    result[(ids >= origin) & (ids < first_id)] = LATE
    if len(ids) > 1:
        _, earliest = np.unique(ids, return_index=True)
        repeated = np.ones(len(ids), dtype=np.bool_)
        repeated[earliest] = False
        result[repeated & (result == ACCEPTED)] = DUPLICATE
    return result


def warn_of_ignored(statuses: IntArray, stacklevel: int) -> None:
    """A :class:`RewardIgnoredWarning` if a reward was late, repeated or for nobody."""
    if statuses.any():
        ignored = sorted({str(RewardStatus(code)) for code in np.unique(statuses) if code})
        warnings.warn(
            f"ignored {' and '.join(ignored)} rewards: they changed nothing",
            RewardIgnoredWarning,
            stacklevel=stacklevel + 1,
        )


class LawTable:
    """Draws actions for contexts by number, from a table of their probabilities.

    >>> table = LawTable(np.array([[0.25, 0.75], [1.0, 0.0]]))
    >>> table.draw(np.array([0, 0, 1]), np.array([0.2, 0.3, 0.99]))
    (array([0, 1, 0]), array([0.25, 0.75, 1.  ]))
    """

    def __init__(self, law: FloatArray) -> None:
        self._law = law
        cumulative = np.cumsum(law, axis=1)
        cumulative /= cumulative[:, -1:]
        self._cumulative = cumulative

    def draw(self, rows: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """The first action with cumulative probability above the number, and its probability.

        Such an action never has probability 0.
        """
        if len(rows) < 64:
            chosen = (self._cumulative[rows] <= uniform[:, None]).sum(axis=1)
            return chosen, self._law[rows, chosen]
        low = np.zeros(len(rows), dtype=np.int64)
        high = np.full(len(rows), self._law.shape[1] - 1)
        # Bisection of all rows at once, without a (rows x actions) matrix.
        while (low < high).any():
            middle = (low + high) // 2
            above = self._cumulative[rows, middle] > uniform
            high = np.where(above, middle, high)
            low = np.where(above, low, middle + 1)
        return low, self._law[rows, low]


# The sampling law of a pool is kept as a table up to this many pairs, else computed when needed.
_TABLE_PAIRS = 1 << 20


class Chooser:
    """Draws actions for users of an epoch from its public law.

    The law of pool contexts is tabulated: only public rows, so a look-up tells nothing.
    ``pool_law`` is that of the whole pool where the learner has it already.
    """

    def __init__(
        self,
        problem: Problem,
        probabilities: Callable[[FloatArray], FloatArray],
        pool_law: FloatArray | None,
    ) -> None:
        self._problem, self._probabilities = problem, probabilities
        contexts, count = problem.contexts, problem.actions.count
        small = isinstance(contexts, ContextPool) and contexts.size * count <= _TABLE_PAIRS
        if pool_law is None and isinstance(contexts, ContextPool) and small:
            pool_law = np.empty((contexts.size, count))
            for part in context_chunks(contexts.size, count):
                pool_law[part] = probabilities(contexts.rows[part])
        self._table = None if pool_law is None else LawTable(pool_law)

    def draw(self, rows: FloatArray, uniform: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Place in the pool (-1 outside), action and propensity of each context (Alg. 1, line 12).

        One uniform number decides for one context.
        """
        contexts = self._problem.contexts
        outside = np.full(len(rows), -1)
        place = contexts.locate(rows) if isinstance(contexts, ContextPool) else outside
        actions, propensity = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
        inside = place >= 0 if self._table is not None else np.zeros(len(rows), dtype=np.bool_)
        if self._table is not None and inside.any():
            pool = place if inside.all() else place[inside]
            actions[inside], propensity[inside] = self._table.draw(pool, uniform[inside])
        others = np.flatnonzero(~inside)
        for part in context_chunks(len(others), self._problem.actions.count):
            which = others[part]
            law = LawTable(self._probabilities(rows[which]))
            actions[which], propensity[which] = law.draw(np.arange(len(which)), uniform[which])
        return place, actions, propensity
