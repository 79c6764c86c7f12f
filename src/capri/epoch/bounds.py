"""Limits and sets of available actions as arrays, and the law that keeps them.

With ``l`` the floors and ``u`` the ceilings of the actions that are offered, a law ``p`` becomes

    p' = l + (1 - sum l) q,     q <= (u - l) / (1 - sum l)

where ``q`` is ``p`` with what is above its ceiling handed on: to what the law would play without
the actions that are full, and so on until nothing is left over. Both ends hold for every decision
by itself, so they hold whoever comes. Everything here but the sets of users is public.

Users may come with a set of available actions, which is private. The kind and the shape of the
argument are public and checked. What is in it is not: a name or a
number that no action has is left out, a cell that is neither True nor 1 says unavailable, and a set
in which nothing is left is served as if it had not been given, and counts for nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_numbers, plain
from capri.checks import is_number, is_whole
from capri.errors import ConfigurationError, DataError
from capri.spaces import Actions

# Beyond rounding: floors that add up to 1 are allowed.
_ROUNDING = 1e-9
_MOST_RULES = 4096
# Numbers of limits that come from elsewhere are 0 or at least this.
_SETTLED = 1e-60


@dataclass(frozen=True)
class Rule:
    """An action is offered only where ``low <= sum of these columns of the context <= high``."""

    action: int
    columns: tuple[int, ...]
    low: float | None
    high: float | None

    def holds(self, contexts: FloatArray) -> BoolArray:
        """Where it is; nowhere for contexts that are no numbers."""
        total = contexts[:, self.columns].sum(axis=1)
        held = np.asarray(np.isfinite(total), dtype=np.bool_)
        if self.low is not None:
            held &= total >= self.low
        if self.high is not None:
            held &= total <= self.high
        return np.asarray(held)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """``floor`` and ``ceiling`` of every action, the rules of some, and who is available.

    ``masks``: a public sample of the sets that users come with, for expectations; ``shares``: most
    of all decisions that an action may take under the public law of contexts.
    """

    floor: FloatArray
    ceiling: FloatArray
    rules: tuple[Rule, ...] = ()
    masks: BoolArray | None = None
    shares: FloatArray | None = None

    def __post_init__(self) -> None:
        floor, ceiling, count = self.floor, self.ceiling, len(self.floor)
        if ceiling.shape != (count,) or not (floor >= 0).all() or not (ceiling <= 1).all():
            raise ConfigurationError("floors and ceilings are one number from 0 to 1 an action")
        if floor.sum() > 1 + _ROUNDING:
            raise ConfigurationError(
                f"floors must add up to at most 1, got {floor.sum():g}: lower some of them"
            )
        if (floor > ceiling).any():
            raise ConfigurationError(
                f"action {int((floor > ceiling).argmax())} has a floor above its ceiling"
            )
        if len(self.rules) > _MOST_RULES:
            raise ConfigurationError(f"at most {_MOST_RULES} rules, got {len(self.rules)}")
        if self.shares is not None and (self.shares < floor).any():
            raise ConfigurationError(
                f"action {int((self.shares < floor).argmax())} has a floor above its share"
            )
        if self.strict[self.always].sum() < 1 - _ROUNDING:
            raise ConfigurationError(
                "where rules offer no other action, ceilings leave nothing to play: the actions "
                "without a rule need ceilings and shares that add up to at least 1"
            )

    @classmethod
    def none(cls, count: int) -> "Bounds":
        """No limits."""
        return cls(floor=np.zeros(count), ceiling=np.ones(count))

    @property
    def count(self) -> int:
        """Number of actions."""
        return len(self.floor)

    @property
    def strict(self) -> FloatArray:
        """Ceilings that keep shares in every decision by itself."""
        return self.ceiling if self.shares is None else np.minimum(self.ceiling, self.shares)

    @property
    def always(self) -> BoolArray:
        """Actions that no rule takes away."""
        free = np.ones(len(self.floor), dtype=np.bool_)
        for rule in self.rules:
            free[rule.action] = False
        return free

    @property
    def columns(self) -> int:
        """How many columns a context needs for its rules."""
        return max((1 + max(rule.columns) for rule in self.rules), default=0)

    # -- what is offered --------------------------------------------------------------------------

    def by_rules(self, contexts: FloatArray) -> BoolArray:
        """What the public rules offer at each context, ``(n, actions)``: something, always."""
        offered = np.ones((len(contexts), self.count), dtype=np.bool_)
        for rule in self.rules:
            offered[:, rule.action] &= rule.holds(contexts)
        return offered

    def offered(self, contexts: FloatArray, available: BoolArray | None) -> BoolArray:
        """What may be played: rules and the user's own set; the rules alone where that is empty."""
        return self._both(self.by_rules(contexts), available)

    @staticmethod
    def _both(ruled: BoolArray, available: BoolArray | None) -> BoolArray:
        if available is None:
            return ruled
        both = ruled & available
        # By logic rather than by choosing rows: the same steps for every set.
        return np.asarray(both | (ruled & ~both.any(axis=1, keepdims=True)))

    def served(self, contexts: FloatArray, available: BoolArray) -> BoolArray:
        """Whose set can be kept to: something of it is offered, below its ceilings."""
        both = self.by_rules(contexts) & available
        return np.asarray(both.any(axis=1) & self._fits(both))

    def _fits(self, offered: BoolArray) -> BoolArray:
        """Whether the ceilings of what is offered leave room for a decision."""
        return np.asarray((offered * self.ceiling).sum(axis=1) >= 1 - _ROUNDING)

    # -- the law ----------------------------------------------------------------------------------

    @property
    def binding(self) -> bool:
        """Whether there are floors or ceilings."""
        return bool(self.floor.any() or (self.ceiling < 1).any())

    @property
    def rounds(self) -> int:
        """How often a law is asked: each time at least one more action is full."""
        return int((self.ceiling < 1).sum()) + 2 if self.binding else 1

    def kept(self, offered: BoolArray, law: Callable[[BoolArray], FloatArray]) -> FloatArray:
        """The law on actions that are ``offered``, within their floors and ceilings.

        ``law`` gives probabilities on a set of actions of each context, and is asked for smaller
        and smaller ones, as often for everybody. Where ceilings leave no room, actions share in
        proportion to theirs.
        """
        if not self.binding:
            return law(offered)
        floor, ceiling = offered * self.floor, offered * self.ceiling
        left = np.maximum(1 - floor.sum(axis=1, keepdims=True), 0.0)
        # No ceiling is room for more than everything; a law that is all floors needs none.
        room = np.where(self.ceiling >= 1, 2.0, (ceiling - floor) / np.maximum(left, 1e-300))
        room = np.minimum(room, 2.0) * offered
        found, mass = np.zeros(offered.shape), np.ones((len(offered), 1))
        still = offered
        for _ in range(self.rounds):
            asked = still | (offered & ~still.any(axis=1, keepdims=True))
            part = found + mass * law(asked)
            found = np.minimum(part, room)
            mass = (part - found).sum(axis=1, keepdims=True)
            still = offered & (found < room)
        found = found + mass * offered / offered.sum(axis=1, keepdims=True)  # rounding
        found = np.minimum(np.maximum(floor + left * found, floor), ceiling)
        total = ceiling.sum(axis=1, keepdims=True)
        return np.asarray(np.where(self._fits(offered)[:, None], found, ceiling / total))

    def default(self, available: BoolArray | None, count: int) -> FloatArray:
        """The law where a context is no row of numbers: every action without a rule alike."""
        ruled = np.broadcast_to(self.always, (count, self.count))
        offered = self._both(ruled, available)
        return self.kept(offered, lambda some: some / some.sum(axis=1, keepdims=True))

    # -- storage ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """JSON values; of what only planning needs, nothing."""
        return {
            "floor": self.floor.tolist(),
            "ceiling": self.ceiling.tolist(),
            "rules": [[r.action, list(r.columns), r.low, r.high] for r in self.rules],
        }

    @classmethod
    def from_state(cls, values: dict[str, Any], count: int) -> "Bounds":
        """The inverse of :meth:`state`, checked: it may come from somebody who is not trusted."""
        floor, ceiling = (numbers_of(values[name], count) for name in ("floor", "ceiling"))
        if not (ceiling > 0).all():
            raise ConfigurationError("a ceiling of 0 would take an action away")
        rules = []
        if not isinstance(values["rules"], list):
            raise ConfigurationError("rules are a list")
        for action, columns, low, high in values["rules"]:
            ends = [end for end in (low, high) if end is not None]
            numbers = [action, *columns]
            whole = isinstance(columns, list) and all(is_whole(each) for each in numbers)
            known = whole and 0 <= action < count and len(columns) > 0
            if not known or min(columns) < 0:
                raise ConfigurationError("a rule is about an action or a column that is not there")
            if not all(is_number(end) and abs(end) <= 1e100 for end in ends):
                raise ConfigurationError("the ends of a rule must be finite numbers")
            rules.append(Rule(action, tuple(columns), low, high))
        return cls(floor=floor, ceiling=ceiling, rules=tuple(rules))


def numbers_of(values: object, count: int) -> FloatArray:
    """One number an action, as a device's other numbers: 0, or far from subnormal."""
    if not isinstance(values, list) or len(values) != count or not all(map(is_number, values)):
        raise ConfigurationError("limits are lists of one number an action")
    found = np.array(values, dtype=np.float64)
    found[np.abs(found) < _SETTLED] = 0.0
    return found


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets as they were given: which actions they name is known once their epoch is."""

    given: Any
    visits: int
    single: bool = False

    def __getitem__(self, rows: Sequence[int] | IntArray) -> "Sets":
        if self.single:
            return self
        some = [int(row) for row in rows]
        table = isinstance(self.given, np.ndarray)
        return Sets(self.given[some] if table else [self.given[row] for row in some], len(some))

    def among(self, actions: Actions) -> BoolArray:
        """One row of truth values a visit over these actions."""
        return as_sets(self.given, self.visits, actions, single=self.single)


def given_sets(available: object, visits: int, *, single: bool = False) -> Sets | None:
    """Sets to be read later; None where none were given."""
    if available is None:
        return None
    if not single and isinstance(available, Iterable) and not isinstance(available, str | bytes):
        available = available if isinstance(available, np.ndarray) else list(available)
        if len(available) != visits:
            raise DataError(f"one set of available actions per context is needed, {visits} in all")
    return Sets(available, visits, single)


def as_sets(available: object, visits: int, actions: Actions, *, single: bool = False) -> BoolArray:
    """One row of truth values a visit, from rows of them or from lists of names or numbers.

    >>> from capri.choices import as_actions
    >>> as_sets(["b", "nobody"], 1, as_actions(["a", "b"]), single=True)
    array([[False,  True]])
    """
    count = actions.count
    if isinstance(available, np.ndarray):
        return _table(available, visits, count, single=single)
    if isinstance(available, str | bytes) or not isinstance(available, Iterable):
        raise DataError(
            "available must be a list of actions or one truth value for each, got "
            f"{type(available).__name__}"
        )
    listed = [available] if single else list(available)
    if len(listed) != visits:
        raise DataError(f"one set of available actions per context is needed, {visits} in all")
    places: dict[Any, int] = {number: number for number in range(count)}
    places |= {name: number for number, name in enumerate(actions.names or ())}
    masks = np.zeros((visits, count), dtype=np.bool_)
    for row, given in zip(masks, listed, strict=True):
        row[:] = _one(given, count, places)
    return masks


def _table(values: np.ndarray[Any, Any], visits: int, count: int, *, single: bool) -> BoolArray:
    """Truth values, or numbers of actions where a single list has whole numbers."""
    if single and values.ndim == 1 and values.dtype.kind != "b":
        places = {number: number for number in range(count)}
        return _one(values.tolist(), count, places)[None]
    rows = values[None] if single and values.ndim == 1 else values
    if rows.shape != (visits, count):
        raise DataError(
            f"available must have shape ({visits}, {count}), a truth value for every action of "
            f"every visit, got {rows.shape}"
        )
    return np.asarray(as_numbers(rows) == 1.0)


def _one(given: Any, count: int, places: dict[Any, int]) -> BoolArray:
    """The set of one visit: everything for None, nothing for what cannot be read."""
    mask = np.zeros(count, dtype=np.bool_)
    if given is None:
        return ~mask
    try:
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            return mask
        cells = [plain(cell, None) for cell in given]
    except Exception:  # whatever it is, it belongs to one visit alone
        return mask
    if len(cells) == count and all(isinstance(cell, bool) for cell in cells):
        return np.array(cells, dtype=np.bool_)
    for cell in cells:
        known = isinstance(cell, str | int) and not isinstance(cell, bool)
        if known and (place := places.get(cell)) is not None:
            mask[place] = True
    return mask
