"""Deciding: actions are drawn from a public law, in the mode of now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_numbers, plain
from capri.checks import is_whole
from capri.epoch.bounds import Bounds
from capri.epoch.decisions import DEFAULT, FROZEN, INVALID_CONTEXT, OVER_LIMIT, SHADOW
from capri.epoch.modes import Mode
from capri.epoch.problem import Problem
from capri.epoch.shadow import WEIGHT_BOUND
from capri.errors import ConfigurationError, ShapeError
from capri.spaces import CHUNK_PAIRS, Actions, ContextPool, context_chunks

# Up to so many contexts are looked at action by action; bisection takes more steps.
_FEW = 64


class LawTable:
    """Draws actions for contexts by number, from a table of their probabilities.

    >>> table = LawTable(np.array([[0.25, 0.75], [1.0, 0.0]]))
    >>> table.draw(np.array([0, 0, 1]), np.array([0.2, 0.3, 0.99]))
    (array([0, 1, 0]), array([0.25, 0.75, 1.  ]))
    """

    def __init__(self, law: FloatArray) -> None:
        self.law = law
        self._cumulative = law.cumsum(axis=1)
        self._cumulative /= self._cumulative[:, -1:]  # the last one of each row exactly 1

    def draw(self, rows: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """The first action with cumulative probability above the number, and its probability.

        Such an action never has probability 0.
        """
        if len(rows) < _FEW:
            below = self._cumulative[rows] <= uniform[:, None]
            chosen = np.add.reduce(below, axis=1, dtype=np.int64)
            return chosen, self.law[rows, chosen]
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


@dataclass(frozen=True, eq=False)
class Logged:
    """What another system chose, and how probable it was: private values, whatever they are."""

    chosen: Sequence[object]
    propensity: FloatArray

    def __getitem__(self, rows: IntArray) -> "Logged":
        return Logged([self.chosen[row] for row in rows.tolist()], self.propensity[rows])

    def actions(self, actions: Actions) -> IntArray:
        """The number of each action, -1 for what is none."""
        names = {} if actions.names is None else {name: at for at, name in enumerate(actions.names)}
        found = np.full(len(self.chosen), -1, dtype=np.int64)
        for place, each in enumerate(self.chosen):
            known = plain(each, None)
            if isinstance(known, str):
                found[place] = names.get(known, -1)
            elif is_whole(known) and 0 <= known < actions.count:  # type: ignore[operator]
                found[place] = known  # type: ignore[call-overload]
        return found

    def weights(self, law: FloatArray) -> FloatArray:
        """``min(pi / p, W)``, NaN where ``p`` is no probability above 0."""
        sound = (self.propensity > 0) & (self.propensity <= 1)
        with np.errstate(all="ignore"):
            ratio = np.minimum(law / np.where(sound, self.propensity, 1.0), WEIGHT_BOUND)
        return np.where(sound, ratio, np.nan)


def as_logged(chosen: object, propensities: object, count: int) -> Logged | None:
    """What a caller says of another system. Only shapes are checked: the rest is private."""
    if chosen is None and propensities is None:
        return None
    if chosen is None or propensities is None:
        raise ConfigurationError("chosen and its propensity come together, one of each a visit")
    values = as_numbers(propensities)
    if isinstance(chosen, str) or not hasattr(chosen, "__len__"):
        raise ShapeError(f"one chosen action per context is needed, {count} in all")
    listed = chosen.tolist() if isinstance(chosen, np.ndarray) else list(chosen)  # type: ignore[call-overload]
    if len(listed) != count or values.shape != (count,):
        raise ShapeError(f"one chosen action and one propensity per context: {count} in all")
    return Logged(listed, values)


@dataclass(frozen=True, eq=False)
class Served:
    """Decisions as they are drawn. ``weights``: in shadow mode, NaN where a visit is void."""

    status: IntArray
    place: IntArray
    action: IntArray
    propensity: FloatArray
    weights: FloatArray | None = None


def serve(
    mode: Mode,
    problem: Problem,
    chooser: Chooser,
    rows: FloatArray,
    valid: BoolArray | None,
    within: BoolArray | None,
    uniform: FloatArray,
    logged: Logged | None,
    available: BoolArray | None = None,
) -> Served:
    """Decide for some visits in a mode; ``within``: whose users are within their limit."""
    count = len(rows)
    if mode.name == "default":
        named = mode.place(problem.actions)
        action, propensity = chooser.named(named, rows, valid, uniform, available)
        return Served(np.full(count, DEFAULT), np.full(count, -1), action, propensity)
    if mode.name == "frozen":  # a status for all: how many contexts are sound is private
        _, action, propensity = chooser.draw(rows, valid, uniform, available)
        return Served(np.full(count, FROZEN), np.full(count, -1), action, propensity)
    status = np.zeros(count, dtype=np.int64)
    if within is not None:
        status[~within] = OVER_LIMIT
    if available is not None:
        status[chooser.unserved(rows, available)] = INVALID_CONTEXT
    if valid is not None:
        status[~valid] = INVALID_CONTEXT
    place, action, propensity = chooser.draw(rows, valid, uniform, available)
    if mode.name == "active":
        return Served(status, place, action, propensity)
    weights = np.full(count, np.nan)
    if logged is not None:
        chosen = logged.actions(problem.actions)
        weights = logged.weights(chooser.probability(rows, valid, place, chosen, available))
        weights[chosen < 0] = np.nan
    weights[status != 0] = np.nan
    status = np.where(status == 0, SHADOW, status)
    return Served(status, place, action, propensity, weights)
