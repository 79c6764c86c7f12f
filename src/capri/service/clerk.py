"""The policy at work: many visits or rewards in one call, each with an outcome of its own.

Runs in the threads of lanes. What is large is read before it waits, into numbers and names, so that
all that waits has a bound that no value changes. Where one item meets a public boundary, the others
are done by themselves.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from msgspec import UNSET

from capri.arrays import FloatArray
from capri.cells import number_or_missing
from capri.epoch.decide import Decisions, RewardStatus, VisitStatus
from capri.errors import CapriError, ConfigurationError, HorizonError
from capri.joint.policy import Capri
from capri.service.alarms import Columns
from capri.service.contexts import ContextReader, Marks
from capri.service.messages import LONGEST_KEY, Decided, Rewarded, RewardItem, Visit
from capri.spaces import Actions
from capri.store.group import GivenUpError

# An id that was never given and a reward that is late meet the same answer.
_REWARDS = [str(status).replace("unknown", "late") for status in RewardStatus]
_VISITS = [str(status) for status in VisitStatus]
REWARD_STATUSES = tuple(dict.fromkeys(_REWARDS))
VISIT_STATUSES = tuple(_VISITS)
# Bytes of what is read of an item at most: keys, users, names; and of each number or name in it.
_ITEM_BYTES, _CELL_BYTES = 3 << 10, 40
_STRANGERS = 4  # names of a set that are kept though no action has them: the catalogue may change


class Clerk:
    """Serves visits and rewards of one policy."""

    def __init__(self, policy: Capri, columns: Columns) -> None:
        schema = policy.contexts.schema
        if schema is None or policy.actions.names is None:
            raise ConfigurationError(
                "a service needs a policy whose contexts have a schema and whose actions have names"
            )
        self._policy, self._reader = policy, ContextReader(schema, columns.note)
        self._catalogue: Actions | None = None
        self._names: dict[Any, str] = {}
        # Without a store work begins when it is asked for.
        self.stored = policy.stored
        self.item_bytes = _ITEM_BYTES + _CELL_BYTES * (schema.dimension + policy.actions.count)

    # -- reading ----------------------------------------------------------------------------------

    def read_visits(self, visits: Sequence[Visit]) -> None:
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
    def read_rewards(items: Sequence[RewardItem]) -> None:
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

    # -- deciding ---------------------------------------------------------------------------------

    def decide(self, visits: list[Visit]) -> list[Any]:
        """A decision for each: all of them with a key, or none."""
        rows, marks = self._rows(visits)
        users = None if visits[0].user is None else [visit.user for visit in visits]
        keys = None if visits[0].key is None else [visit.key for visit in visits]
        asked = {"users": users, "keys": keys, **self._more(visits)}
        return self._decided(visits, rows, asked, marks)

    def _rows(self, visits: list[Visit]) -> tuple[FloatArray, list[Marks]]:
        """Contexts as numbers, those among them that were read before."""
        if tuple not in set(map(type, [visit.context for visit in visits])):
            return self._reader.rows([visit.context for visit in visits])
        self.read_visits([visit for visit in visits if type(visit.context) is not tuple])
        numbers = bytearray().join([visit.context[0] for visit in visits])
        rows = np.frombuffer(numbers).reshape(len(visits), -1)
        return rows, [visit.context[1] for visit in visits]

    def _more(self, visits: list[Visit]) -> dict[str, list[Any]]:
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
        visits: Sequence[Visit],
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

    # -- rewards ----------------------------------------------------------------------------------

    def reward(self, items: list[RewardItem]) -> list[Any]:
        """What became of each reward."""
        keyed = self.keyed
        statuses = self._policy.update_many(
            [item.id for item in items],
            np.array([number_or_missing(item.reward) for item in items], dtype=np.float64),
            keys=[item.key or "" for item in items] if keyed else None,
        )
        return [_REWARDED[status] for status in statuses.tolist()]

    @property
    def keyed(self) -> bool:
        """Whether a decision may have several rewards, each with a key."""
        return self._policy.problem.rewards.rule.keyed

    @property
    def reward_needs(self) -> tuple[str, ...]:
        """Fields that every reward must have."""
        return ("key",) if self.keyed else ()

    @property
    def visit_needs(self) -> tuple[str, ...]:
        """Fields that every visit must have."""
        return () if self._policy.problem.limit is None else ("user",)


_REWARDED = [Rewarded(name) for name in _REWARDS]


def _is_short(cell: str | int) -> bool:
    """Whether a name may be kept, or a number."""
    return len(cell) <= LONGEST_KEY if isinstance(cell, str) else 0 <= cell < 2**31


def _answers(made: Decisions, visits: Sequence[Visit], marks: Sequence[Marks]) -> list[Decided]:
    """Decisions by names."""
    epochs = [made.epoch] * len(made) if made.epochs is None else made.epochs.tolist()
    names = made.names if made.called is None else None
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
        name = made.name_of(place) if names is None else names[index]
        answer = Decided(text, name or str(index), propensity, epoch, _VISITS[status], mark)
        if visit.detail:
            answer.index, answer.features = index, made.action[place].tolist()
        answers.append(answer)
    return answers


def is_expected(problem: BaseException) -> bool:
    """Whether a problem is one that this package tells of in its own words, without values."""
    return isinstance(problem, CapriError)
