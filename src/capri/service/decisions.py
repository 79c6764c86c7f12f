"""Decisions and rewards of a policy in bulk: requests in, answers out, each with its own outcome.

A context is private. One that is no record, lacks a column, has one that was not declared, or a
cell that its column cannot hold gets a row all the same; what was wrong is told to its own caller
as marks, which name kinds and never values.

Runs in the threads of micro-batchers. What is large is read before it waits, into numbers and
names, so that all that waits has a bound that no value changes. Where one item meets a public
boundary, the others are done by themselves.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from capri.arrays import FloatArray
from capri.cells import number_or_missing
from capri.epoch.decisions import Decisions, VisitStatus
from capri.epoch.rewards import RewardRule, RewardStatus
from capri.errors import ConfigurationError, HorizonError
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.schema.columns import Column
from capri.service.messages import (
    LONGEST_KEY,
    DecisionAnswer,
    DecisionRequest,
    RewardAnswer,
    RewardRequest,
)
from capri.spaces import Actions
from capri.store.transaction import GivenUpError

if TYPE_CHECKING:
    from capri.joint.policy import Capri

NO_RECORD = "no record"
ABSENT = "absent column"
UNREADABLE = "unreadable value"
UNKNOWN_LEVEL = "unknown level"
UNKNOWN_COLUMN = "unknown column"
MARKS = (NO_RECORD, ABSENT, UNREADABLE, UNKNOWN_LEVEL, UNKNOWN_COLUMN)
Marks = tuple[str, ...]
# Kinds of marks with the columns that they are about.
Findings = list[tuple[str, str]]
Noted = Callable[[Findings], None]
_LARGEST = sys.float_info.max
_NAMED = 8  # columns of one context that were not declared and are told to operators
_FEW = 6  # below it a row at a time is faster
# An id that was never given and a reward that is late meet the same answer.
VISIT_STATUSES = [str(status) for status in VisitStatus]
REWARD_STATUSES = [str(status).replace("unknown", "late") for status in RewardStatus]
# Bytes of what is read of an item at most: keys, users, names; and of each number or name in it.
_ITEM_BYTES, _CELL_BYTES = 3 << 10, 40
_STRANGERS = 4  # names of a set that are kept though no action has them: the catalogue may change


# -- contexts as rows ------------------------------------------------------------------------------


class ContextReader:
    """Reads contexts by the schema of a policy."""

    def __init__(self, schema: Schema, noted: Noted) -> None:
        """``noted``: is told of each context that is marked, by kinds and names of columns."""
        self._noted = noted
        self._columns = [(column.name, column, _check(column)) for column in schema.columns]
        self._names = dict.fromkeys(schema.names).keys()
        self._dimension = schema.dimension

    def row(self, context: Any) -> tuple[list[float], Marks]:
        """The numbers of one context, NaN where nothing stands for a missing cell; its marks."""
        if not isinstance(context, dict):
            return [nan] * self._dimension, self._marks([(NO_RECORD, "")])
        numbers: list[float] = []
        found: Findings = []
        known = 0
        for name, column, check in self._columns:
            cell = context.get(name)
            if name in context:
                known += 1
            if (mark := ABSENT if cell is None else check(cell)) is not None:
                found.append((mark, name))
                if mark is UNREADABLE:
                    cell = None
            numbers += column.encode_one(cell)
        if known < len(context):
            found += self._strangers(context)
        return numbers, self._marks(found) if found else ()

    def rows(self, contexts: list[Any]) -> tuple[FloatArray, list[Marks]]:
        """The same of several contexts, column by column; what is odd costs its own cell's time."""
        if len(contexts) < _FEW:
            alone = [self.row(context) for context in contexts]
            rows = np.array([numbers for numbers, _ in alone]).reshape(len(alone), self._dimension)
            return rows, [marks for _, marks in alone]
        records = [context if type(context) is dict else {} for context in contexts]
        found: dict[int, Findings] = {}
        parts = []
        for name, column, check in self._columns:
            cells: Any = [record.get(name) for record in records]
            numbers = _finite(cells) if isinstance(column, Numeric) else None
            if numbers is None:
                self._judge(name, cells, check, found)
            parts.append(column.encode(cells if numbers is None else numbers))
        rows = np.concatenate(parts, axis=1)
        marks: list[Marks] = [()] * len(contexts)
        for place, context in enumerate(contexts):
            if type(context) is not dict:
                rows[place], found[place] = nan, [(NO_RECORD, "")]
            elif context.keys() != self._names and context.keys() - self._names:
                found.setdefault(place, []).extend(self._strangers(context))
        for place, each in found.items():
            marks[place] = self._marks(each)
        return rows, marks

    def _strangers(self, context: dict[Any, Any]) -> Findings:
        """Names that were not declared, the first few: a context may have any number."""
        strange = (name for name in context if name not in self._names)
        return [(UNKNOWN_COLUMN, str(name)) for name in islice(strange, _NAMED)]

    def _marks(self, found: Findings) -> Marks:
        """What a caller is told: each kind once, no name."""
        self._noted(found)
        return tuple(dict.fromkeys(mark for mark, _ in found))

    @staticmethod
    def _judge(
        name: str,
        cells: list[Any],
        check: Callable[[Any], str | None],
        found: dict[int, Findings],
    ) -> None:
        """Note what is the matter with each cell; what cannot be read is missing."""
        for place, cell in enumerate(cells):
            if (mark := ABSENT if cell is None else check(cell)) is not None:
                found.setdefault(place, []).append((mark, name))
                if mark is UNREADABLE:
                    cells[place] = None


def _finite(cells: list[Any]) -> FloatArray | None:
    """Cells as numbers; None where one is no number, or none that a double holds."""
    if not set(map(type, cells)) <= {float, int}:
        return None
    try:
        numbers = np.array(cells, dtype=np.float64)
    except OverflowError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _check(column: Column) -> Callable[[Any], str | None]:
    """What is the matter with a cell of a column that is not missing; None where it is sound."""
    if isinstance(column, Categorical):
        levels = column.levels

        def level(cell: Any) -> str | None:
            if not isinstance(cell, str | int | float):
                return UNREADABLE
            return None if cell in levels else UNKNOWN_LEVEL

        return level
    if isinstance(column, Boolean):
        return lambda cell: (
            None if isinstance(cell, bool | int | float) and cell in (0, 1) else UNREADABLE
        )

    def number(cell: Any) -> str | None:
        if type(cell) is float:
            return None if isfinite(cell) else UNREADABLE
        return None if type(cell) is int and abs(cell) <= _LARGEST else UNREADABLE

    return number


# -- the policy ------------------------------------------------------------------------------------


class BulkPolicy:
    """Serves visits and rewards of one policy, many in a call."""

    def __init__(
        self, policy: "Capri", noted: Noted, outside: Callable[[int], None] = lambda _: None
    ) -> None:
        """``noted``: as of a :class:`ContextReader`. ``outside``: of rewards beyond their range."""
        schema = policy.contexts.schema
        if schema is None or policy.actions.names is None:
            raise ConfigurationError(
                "a service needs a policy whose contexts have a schema and whose actions have names"
            )
        self._policy, self._reader = policy, ContextReader(schema, noted)
        self._catalogue: Actions | None = None
        self._names: dict[Any, str] = {}
        # Without a store work begins when it is asked for.
        self.stored = policy.stored
        self.item_bytes = _ITEM_BYTES + _CELL_BYTES * (schema.dimension + policy.actions.count)
        rule, self._outside = policy.problem.rewards.rule, outside
        # Whether a decision may have several rewards, each with a key.
        self._keyed = rule.keyed
        scale = policy.problem.scale
        # One of several rewards that are added up may lie anywhere: their sum has the range.
        summed = rule is RewardRule.SUM
        self._low, self._high = (-inf, inf) if summed else (scale.low, scale.high)
        # Fields that every visit and every reward must have.
        self.visit_needs = () if policy.problem.limit is None else ("user",)
        self.reward_needs = ("key",) if self._keyed else ()

    def read_visits(self, visits: Sequence[DecisionRequest]) -> None:
        """Put what was read in the place of what came: a row as bytes, marks, names of actions.

        No context is a tuple before, and each is one afterwards.
        """
        if not visits:
            return
        rows, marks = self._reader.rows([visit.context for visit in visits])
        numbers, size = rows.tobytes(), rows.strides[0]
        for place, (visit, mark) in enumerate(zip(visits, marks, strict=True)):
            visit.context = numbers[place * size : (place + 1) * size], mark
            if visit.actions is not UNSET:
                visit.actions = self._set(visit.actions)
            if visit.chosen is not UNSET:
                visit.chosen_propensity = number_or_missing(visit.chosen_propensity)
                visit.chosen = self._name(visit.chosen)

    @staticmethod
    def read_rewards(items: Sequence[RewardRequest]) -> None:
        """The same: a number, NaN for what is none."""
        for item in items:
            item.reward = number_or_missing(item.reward)

    def _known(self) -> dict[Any, str]:
        """Our own names of actions, which are there once."""
        actions = self._policy.actions
        if actions is not self._catalogue:
            self._catalogue, self._names = actions, {name: name for name in actions.names or ()}
        return self._names

    def _name(self, given: Any) -> str | None:
        if not isinstance(given, str):
            return None
        return self._known().get(given, given if len(given) <= LONGEST_KEY else None)

    def _set(self, given: Any) -> list[Any] | None:
        """The available actions of a visit, none for what is no list; ``null``: not given."""
        if given is None:
            return None
        if not isinstance(given, list):
            return []
        names = self._known()
        if len(given) == len(names) and all(type(cell) is bool for cell in given):
            return given
        cells = [cell for cell in given if type(cell) is str or type(cell) is int]
        own = dict.fromkeys(
            names.get(cell, cell) for cell in cells if cell in names or cell in range(len(names))
        )
        others = (cell for cell in cells if cell not in own and _is_short(cell))
        return [*own, *islice(others, _STRANGERS)]

    def decide(self, visits: list[DecisionRequest]) -> list[Any]:
        """A decision for each: all of them with a key, or none."""
        rows, marks = self._rows(visits)
        users = None if visits[0].user is None else [visit.user for visit in visits]
        keys = None if visits[0].key is None else [visit.key for visit in visits]
        asked = {"users": users, "keys": keys, **self._more(visits)}
        return self._decided(visits, rows, asked, marks)

    def _rows(self, visits: list[DecisionRequest]) -> tuple[FloatArray, list[Marks]]:
        """Contexts as numbers, those among them that were read before."""
        if tuple not in set(map(type, [visit.context for visit in visits])):
            return self._reader.rows([visit.context for visit in visits])
        self.read_visits([visit for visit in visits if type(visit.context) is not tuple])
        numbers = bytearray().join([visit.context[0] for visit in visits])
        rows = np.frombuffer(numbers).reshape(len(visits), -1)
        return rows, [visit.context[1] for visit in visits]

    def _more(self, visits: list[DecisionRequest]) -> dict[str, list[Any]]:
        """Sets of available actions, and what another system chose: private, whatever they are."""
        found: dict[str, list[Any]] = {}
        if any(visit.actions is not UNSET for visit in visits):
            found["available"] = [
                None if visit.actions is UNSET else self._set(visit.actions) for visit in visits
            ]
        if any(visit.chosen is not UNSET for visit in visits):
            found["chosen"] = [self._name(visit.chosen) for visit in visits]
            found["chosen_propensities"] = [
                number_or_missing(None if visit.chosen is UNSET else visit.chosen_propensity)
                for visit in visits
            ]
        return found

    def _decided(
        self,
        visits: Sequence[DecisionRequest],
        rows: Any,
        asked: dict[str, list[Any] | None],
        marks: Sequence[Marks],
    ) -> list[Any]:
        """In one transaction where that is possible, else in halves.

        Only so many fit before a public boundary such as the end of an epoch.
        """
        try:
            made = self._policy.act_many(rows, **asked)
        except (HorizonError, ConfigurationError) as problem:
            if isinstance(problem, HorizonError) and self._freezes():
                return self._decided(visits, rows, asked, marks)
            if len(visits) == 1:
                return [problem]
            middle = len(visits) // 2
            return [
                outcome
                for part in (slice(None, middle), slice(middle, None))
                for outcome in self._decided(
                    visits[part],
                    rows[part],
                    {name: None if each is None else each[part] for name, each in asked.items()},
                    marks[part],
                )
            ]
        except GivenUpError:
            raise
        except Exception as problem:  # of this half alone: the other may have been done
            return [problem] * len(visits)
        return _answers(made, visits, marks)

    def _freezes(self) -> bool:
        """Whether the horizon is reached, and it goes on by what was learnt, from now on.

        A policy that only watches does not begin to decide at its horizon.
        """
        if self._policy.remaining or self._policy.mode.name != "active":
            return False
        why = f"the horizon of {self._policy.horizon:,} decisions is reached"
        self._policy.freeze(by="capri", why=why)
        return True

    def reward(self, items: list[RewardRequest]) -> list[Any]:
        """What became of each reward."""
        values = [number_or_missing(item.reward) for item in items]
        statuses = self._policy.update_many(
            [item.id for item in items],
            np.array(values, dtype=np.float64),
            keys=[item.key or "" for item in items] if self._keyed else None,
        )
        if beyond := sum(value < self._low or value > self._high for value in values):
            self._outside(beyond)
        return [_REWARDED[status] for status in statuses.tolist()]


_REWARDED = [RewardAnswer(name) for name in REWARD_STATUSES]


def _is_short(cell: str | int) -> bool:
    """Whether a name may be kept, or a number."""
    return len(cell) <= LONGEST_KEY if isinstance(cell, str) else 0 <= cell < 2**31


def _answers(
    made: Decisions, visits: Sequence[DecisionRequest], marks: Sequence[Marks]
) -> list[DecisionAnswer]:
    """Decisions by names."""
    epochs = [made.epoch] * len(made) if made.epochs is None else made.epochs.tolist()
    names, called = made.names or (), made.called
    answers = []
    for place, (text, index, propensity, status, epoch, visit, mark) in enumerate(
        zip(
            made.ids.listed(made.number.tolist()),
            made.action_index.tolist(),
            made.propensity.tolist(),
            made.status.tolist(),
            epochs,
            visits,
            marks,
            strict=True,
        )
    ):
        name = (names[index] if names else None) if called is None else called[place]
        answer = DecisionAnswer(
            text, name or str(index), propensity, epoch, VISIT_STATUSES[status], mark
        )
        if visit.detail:
            answer.index, answer.features = index, made.action[place].tolist()
        answers.append(answer)
    return answers
