"""Decisions: drawing them from a public law, and the numbers that rewards come back with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_numbers
from capri.epoch.bounds import Bounds
from capri.epoch.ids import NOBODY, SIMULATED, DecisionIds
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, ShapeError
from capri.spaces import CHUNK_PAIRS, ContextPool, context_chunks


class VisitStatus(IntEnum):
    """How a visit was served. Every visit takes a slot and gets a decision."""

    SERVED = 0
    INVALID = 1  # its context is no row of numbers: played by the default law, counts for nothing;
    # or nothing of its set of available actions can be offered
    OVER_LIMIT = 2  # its user has contributed as often as allowed: counts for nothing
    DEFAULT = 3  # mode "default": the named action was played, nothing is learnt
    SHADOW = 4  # mode "shadow": another system decided, and counts in the shadow estimate alone
    FROZEN = 5  # mode "frozen": played by what was learnt before, nothing is learnt from it

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Decision:
    """One decision. Only ``id`` and ``epoch`` are shown: the rest belongs to the user."""

    id: str
    epoch: int
    action_index: int = field(repr=False)
    action: FloatArray = field(repr=False, compare=False)
    propensity: float = field(repr=False)
    status: VisitStatus = field(repr=False, default=VisitStatus.SERVED)
    number: int = field(repr=False, compare=False, default=NOBODY)
    ids: DecisionIds | None = field(repr=False, compare=False, default=None)
    action_name: str | None = field(repr=False, compare=False, default=None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Outside of its process a decision is known by its id alone."""
        shown = (self.id, self.epoch, self.action_index, self.action, self.propensity, self.status)
        return Decision, (*shown, NOBODY, None, self.action_name)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of one epoch as arrays; ``decisions[i]`` and iteration give single ones.

    ``number`` counts the decisions of a policy; ``id`` is what may leave the process.
    """

    number: IntArray = field(repr=False)
    epoch: int
    action_index: IntArray = field(repr=False)
    action: FloatArray = field(repr=False)
    propensity: FloatArray = field(repr=False)
    status: IntArray = field(repr=False)
    ids: DecisionIds = field(repr=False)
    names: tuple[str, ...] | None = field(repr=False, default=None)
    # Where some were made in earlier epochs and are known by their key; else None.
    epochs: IntArray | None = field(repr=False, default=None)
    # What each is called, where some were made before the actions were replaced.
    called: tuple[str | None, ...] | None = field(repr=False, default=None)

    @property
    def action_name(self) -> NDArray[np.str_] | None:
        """What the actions are called; None where they have no names."""
        if self.called is not None:
            return np.array(self.called)
        return None if self.names is None else np.array(self.names)[self.action_index]

    def name_of(self, position: int) -> str | None:
        """What one of the actions is called."""
        if self.called is not None:
            return self.called[position]
        return None if self.names is None else self.names[int(self.action_index[position])]

    @classmethod
    def simulated(
        cls,
        number: IntArray,
        epoch: int,
        action_index: IntArray,
        action: FloatArray,
        propensity: FloatArray,
        names: tuple[str, ...] | None = None,
    ) -> "Decisions":
        """Decisions of a policy that serves nobody but simulated users, all alike."""
        served = np.zeros(len(number), dtype=np.int64)
        return cls(number, epoch, action_index, action, propensity, served, SIMULATED, names)

    @property
    def id(self) -> NDArray[np.str_]:
        """A short text for each."""
        return self.ids.texts(self.number)

    def __len__(self) -> int:
        return len(self.number)

    @overload
    def __getitem__(self, position: int) -> Decision: ...

    @overload
    def __getitem__(self, position: slice) -> "Decisions": ...

    def __getitem__(self, position: int | slice) -> "Decision | Decisions":
        if isinstance(position, slice):
            return Decisions(
                self.number[position],
                self.epoch,
                self.action_index[position],
                self.action[position],
                self.propensity[position],
                self.status[position],
                self.ids,
                self.names,
                None if self.epochs is None else self.epochs[position],
                None if self.called is None else self.called[position],
            )
        number = int(self.number[position])
        return Decision(
            self.ids.text(number),
            self.epoch if self.epochs is None else int(self.epochs[position]),
            int(self.action_index[position]),
            self.action[position],
            float(self.propensity[position]),
            _VISITS[self.status[position]],
            number,
            self.ids,
            self.name_of(position),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[position] for position in range(len(self)))


# Looking a member up by its value takes longer than encoding a reward.
_VISITS = tuple(VisitStatus)


def decision_numbers(decisions: Decisions | Sequence[Decision | str], ids: DecisionIds) -> IntArray:
    """The numbers of some decisions, given as such or by id; -1 for an id that is nobody's."""
    if isinstance(decisions, Decisions):
        if decisions.ids is ids:
            return decisions.number
        decisions = decisions.id.tolist()  # of another policy: its ids are nobody's here
    if isinstance(decisions, Decision):
        raise ConfigurationError("update_many takes a sequence of decisions: use update for one")
    if set(map(type, decisions)) == {str}:
        return np.array(ids.numbers(decisions), dtype=np.int64)  # type: ignore[arg-type]
    return np.array([_number(each, ids) for each in decisions], dtype=np.int64)


def _number(decision: Decision | str, ids: DecisionIds) -> int:
    if isinstance(decision, Decision):
        return decision.number if decision.ids is ids else ids.number(decision.id)
    if isinstance(decision, str):
        return ids.number(decision)
    raise ConfigurationError(
        "a reward needs the decision that policy.act gave, or its id, which is a text: "
        f"got {type(decision).__name__}"
    )


def decision_rewards(
    decisions: Decisions | Sequence[Decision | str], rewards: object, ids: DecisionIds
) -> tuple[IntArray, FloatArray]:
    """Numbers of some decisions and the reward of each, NaN where it is none."""
    numbers = decision_numbers(decisions, ids)
    values = as_numbers(rewards)
    if values.shape != numbers.shape:
        raise ShapeError(f"one reward per decision is needed: {len(numbers)}, got {values.shape}")
    return numbers, values


# Up to so many contexts are looked at action by action; bisection takes more steps.
_FEW = 64


def _cumulative(law: FloatArray) -> FloatArray:
    """Cumulative probabilities of each row, the last one exactly 1."""
    found = law.cumsum(axis=1)
    found /= found[:, -1:]
    return found


def _first_above(
    law: FloatArray, cumulative: FloatArray, uniform: FloatArray
) -> tuple[IntArray, FloatArray]:
    """The first action of each row whose cumulative probability is above the number."""
    chosen = np.add.reduce(cumulative <= uniform[:, None], axis=1, dtype=np.int64)
    return chosen, law[np.arange(len(law)), chosen]


class LawTable:
    """Draws actions for contexts by number, from a table of their probabilities.

    >>> table = LawTable(np.array([[0.25, 0.75], [1.0, 0.0]]))
    >>> table.draw(np.array([0, 0, 1]), np.array([0.2, 0.3, 0.99]))
    (array([0, 1, 0]), array([0.25, 0.75, 1.  ]))
    """

    def __init__(self, law: FloatArray) -> None:
        self.law = law
        self._cumulative = _cumulative(law)

    def draw(self, rows: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """The first action with cumulative probability above the number, and its probability.

        Such an action never has probability 0.
        """
        if len(rows) < _FEW:
            return _first_above(self.law[rows], self._cumulative[rows], uniform)
        low = np.zeros(len(rows), dtype=np.int64)
        high = np.full(len(rows), self.law.shape[1] - 1)
        # Bisection of all rows at once, without a (rows x actions) matrix.
        while (low < high).any():
            middle = (low + high) // 2
            above = self._cumulative[rows, middle] > uniform
            high = np.where(above, middle, high)
            low = np.where(above, low, middle + 1)
        return low, self.law[rows, low]


# The sampling law of a pool is kept as a table up to this many pairs, else computed when needed.
_TABLE_PAIRS = 1 << 20
# A law whose probabilities do not add up to 1, or are not numbers, comes from an overflow.
_ROUNDING = 1e-6


class Chooser:
    """Draws actions for users of an epoch from its public law.

    The law of pool contexts is tabulated: only public rows, so a look-up tells nothing.
    ``pool_law`` is that of the whole pool where the learner has it already.
    """

    def __init__(
        self,
        problem: Problem,
        probabilities: Callable[..., FloatArray],
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

    def draw(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        uniform: FloatArray,
        available: BoolArray | None = None,
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Place in the pool (-1 outside), action and propensity of each context (Alg. 1, line 12).

        One uniform number decides for one context. Where the context is not valid, or the law at it
        overflows, the default law is played: every action alike, within limits. Visits that come
        with sets of available actions all go the same way, whatever is in them.
        """
        contexts, count = self._problem.contexts, self._problem.actions.count
        if isinstance(contexts, ContextPool):
            place = contexts.locate(rows)
        else:
            place = np.full(len(rows), -1)
        if valid is not None:
            place[~valid] = -1
        table = None if available is not None else self._table
        if table is None or np.maximum.reduce(place, initial=-1) < 0:  # nobody is in the table
            if len(rows) * count <= CHUNK_PAIRS:
                return place, *self._drawn(rows, valid, uniform, available)
            inside = np.zeros(len(rows), dtype=np.bool_)
        else:
            inside = place >= 0
            if inside.all():  # nearly always
                return place, *table.draw(place, uniform)
        actions, propensity = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
        if table is not None and inside.any():
            actions[inside], propensity[inside] = table.draw(place[inside], uniform[inside])
        others = np.flatnonzero(~inside)
        for part in context_chunks(len(others), count):
            which = others[part]
            actions[which], propensity[which] = self._drawn(
                rows[which],
                None if valid is None else valid[which],
                uniform[which],
                None if available is None else available[which],
            )
        return place, actions, propensity

    def _drawn(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        uniform: FloatArray,
        available: BoolArray | None,
    ) -> tuple[IntArray, FloatArray]:
        """Actions of contexts that are in no table, and their propensities."""
        with np.errstate(all="ignore"):  # a warning for some contexts only would tell of them
            law = self._law(rows, valid, available)
        if len(law) < _FEW:
            return _first_above(law, _cumulative(law), uniform)
        return LawTable(law).draw(np.arange(len(law)), uniform)

    def _law(
        self, rows: FloatArray, valid: BoolArray | None, available: BoolArray | None
    ) -> FloatArray:
        """The law, or the default one where a context is none or the law at it overflows."""
        own = () if available is None else (available,)
        law = self._probabilities(rows, *own)
        off = np.add.reduce(law, axis=1)
        off -= 1
        sound = np.abs(off, out=off) < _ROUNDING
        if valid is not None:
            sound &= valid
        if self._problem.bounds is None and available is None:
            law[~sound] = 1 / law.shape[1]
        else:
            law[~sound] = self._default(available, len(rows))[~sound]
        return law

    def _default(self, available: BoolArray | None, visits: int) -> FloatArray:
        """The default law of some visits."""
        bounds, count = self._problem.bounds, self._problem.actions.count
        if bounds is None and available is None:
            return np.full((visits, count), 1 / count)
        with np.errstate(all="ignore"):
            return (bounds or Bounds.none(count)).default(available, visits)

    def named(
        self,
        action: int,
        rows: FloatArray,
        valid: BoolArray | None,
        uniform: FloatArray,
        available: BoolArray | None,
    ) -> tuple[IntArray, FloatArray]:
        """One action for everybody whom rules and their own sets offer it, else the default law."""
        bounds, count = self._problem.bounds, self._problem.actions.count
        chosen, propensity = np.full(len(rows), action), np.ones(len(rows))
        if bounds is None and available is None:
            return chosen, propensity
        bounds = bounds or Bounds.none(count)
        with np.errstate(all="ignore"):
            offered = bounds.offered(rows, available)[:, action]
        if valid is not None:
            offered &= valid | bounds.always[action]
        table = LawTable(self._default(available, len(rows)))
        others, chance = table.draw(np.arange(len(rows)), uniform)
        return np.where(offered, chosen, others), np.where(offered, propensity, chance)

    def unserved(self, rows: FloatArray, available: BoolArray) -> BoolArray:
        """Whose set cannot be kept to: such visits count for nothing."""
        bounds = self._problem.bounds or Bounds.none(self._problem.actions.count)
        with np.errstate(all="ignore"):
            return ~bounds.served(rows, available)

    def probability(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        place: IntArray,
        actions: IntArray,
        available: BoolArray | None = None,
    ) -> FloatArray:
        """How probable given actions were under the law, 0 for an action that is none (-1)."""
        count = self._problem.actions.count
        law = np.empty((len(rows), count))
        for part in context_chunks(len(rows), count):
            with np.errstate(all="ignore"):
                law[part] = self._law(
                    rows[part],
                    None if valid is None else valid[part],
                    None if available is None else available[part],
                )
        if self._table is not None and available is None:
            inside = place >= 0
            law[inside] = self._table.law[place[inside]]
        chosen = law[np.arange(len(rows)), np.maximum(actions, 0)]
        return np.asarray(np.where(actions >= 0, chosen, 0.0))
