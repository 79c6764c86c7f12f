"""The policy at work: many visits or rewards in one call, each with an outcome of its own.

Runs in the threads of lanes. What is asked of the policy here was checked before; where one item
meets a public boundary, the others are done by themselves.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from capri.cells import number_or_missing
from capri.epoch.decide import Decisions, RewardStatus, VisitStatus
from capri.errors import CapriError, ConfigurationError, HorizonError
from capri.joint.policy import Capri
from capri.service.contexts import ContextReader, Marks
from capri.service.messages import Decided, Rewarded, RewardItem, Visit

# An id that was never given and a reward that is late meet the same answer.
_REWARDS = [str(status).replace("unknown", "late") for status in RewardStatus]
_VISITS = [str(status) for status in VisitStatus]
REWARD_STATUSES = tuple(dict.fromkeys(_REWARDS))
VISIT_STATUSES = tuple(_VISITS)


class Clerk:
    """Serves visits and rewards of one policy."""

    def __init__(self, policy: Capri) -> None:
        schema = policy.contexts.schema
        if schema is None or policy.actions.names is None:
            raise ConfigurationError(
                "a service needs a policy whose contexts have a schema and whose actions have names"
            )
        self._policy, self._reader = policy, ContextReader(schema)

    # -- deciding ---------------------------------------------------------------------------------

    def decide(self, visits: list[Visit]) -> list[Any]:
        """A decision for each: all of them with a key, or none."""
        rows, marks = self._reader.rows([visit.context for visit in visits])
        users = None if visits[0].user is None else [visit.user for visit in visits]
        keys = None if visits[0].key is None else [visit.key for visit in visits]
        asked = {"users": users, "keys": keys, **self._more(visits)}
        return self._decided(visits, rows, asked, marks)

    def _more(self, visits: list[Visit]) -> dict[str, list[Any]]:
        """Sets of available actions, and what another system chose: private, whatever they are."""
        found: dict[str, list[Any]] = {}
        if any(visit.actions is not UNSET for visit in visits):
            found["available"] = [
                None
                if visit.actions is UNSET or visit.actions is None  # as many write "not given"
                else visit.actions if isinstance(visit.actions, list) else []
                for visit in visits
            ]  # fmt: skip
        if any(visit.chosen is not UNSET for visit in visits):
            found["chosen"] = [
                visit.chosen if isinstance(visit.chosen, str) else None for visit in visits
            ]
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
        return _answers(made, visits, marks)

    # -- rewards ----------------------------------------------------------------------------------

    def reward(self, items: list[RewardItem]) -> list[Any]:
        """What became of each reward."""
        keyed = self._policy.problem.rewards.rule.keyed
        statuses = self._policy.update_many(
            [item.id for item in items],
            np.array([number_or_missing(item.reward) for item in items], dtype=np.float64),
            keys=[item.key or "" for item in items] if keyed else None,
        )
        return [_REWARDED[status] for status in statuses.tolist()]

    @property
    def reward_needs(self) -> tuple[str, ...]:
        """Fields that every reward must have."""
        return ("key",) if self._policy.problem.rewards.rule.keyed else ()

    @property
    def visit_needs(self) -> tuple[str, ...]:
        """Fields that every visit must have."""
        return () if self._policy.problem.limit is None else ("user",)


_REWARDED = [Rewarded(name) for name in _REWARDS]


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
