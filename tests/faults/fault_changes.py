"""What operators changed, and whether it was made: once, in order, and from its time on.

Changes are sent one after the other. One that was not acknowledged may have been made or not, so
the history of a store is right if it is what was sent, without some that were not acknowledged.
Where several readings are possible, a change counts as made at any time that one of them allows.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

import capri
from capri.choices import successor
from capri.codec import unpacked
from capri.epoch.problem import Problem, with_actions
from capri.store.sql import GUARDED
from fault_journal import Change, Journal, Visit
from fault_worker import ACTIONS
from recount import rows_of

SERVED, OVER_LIMIT = int(capri.VisitStatus.SERVED), int(capri.VisitStatus.OVER_LIMIT)
DEFAULT, SHADOW = int(capri.VisitStatus.DEFAULT), int(capri.VisitStatus.SHADOW)
MODES = {SERVED: ("active",), SHADOW: ("shadow",), DEFAULT: ("default",)}
MODES[OVER_LIMIT] = ("active", "shadow")


@dataclass(frozen=True)
class Made:
    """A line of the history, and between which lines of the journal it may have been made."""

    generation: int
    kind: str
    record: dict[str, Any]
    earliest: float = -inf
    latest: float = inf


class History:
    """The operations of a store, explained by what was sent."""

    def __init__(self, url: str, problem: Problem, journal: Journal) -> None:
        self._problem, self._changes = problem, journal.changes
        self._first = Made(0, "mode", {"mode": "active"}, -inf, -inf)
        rows = rows_of(url, "SELECT generation, kind, record FROM operations ORDER BY generation")
        found = [
            Made(int(generation), str(kind), unpacked(bytes(record))[0])
            for generation, kind, record in rows
            if kind != GUARDED  # by who opened it first: see Verdict.check_guard
        ]
        self._growths = [change.call.get("growth") for change in self._changes]
        self._actions: dict[int, list[dict[str, Any]]] = {}
        self.made = self._explained(found)
        planned = rows_of(url, "SELECT epoch, min(law) FROM segments GROUP BY epoch")
        self._planned = {int(epoch): int(law) for epoch, law in planned}

    # -- what was made ----------------------------------------------------------------------------

    def _explained(self, found: list[Made]) -> list[Made]:
        """10 and 11: all that was acknowledged, nothing twice, and in order."""
        changes = self._changes
        same = [[self._is(made, number) for number in range(len(changes))] for made in found]
        forward = _reached(same, changes)
        backward = _reached([line[::-1] for line in same[::-1]], changes[::-1])
        count, sent = len(found), len(changes)
        assert forward[count, sent], (
            "the history of operations is not what was acknowledged: a change is lost, was made "
            f"twice, or in another order ({count} lines, {sent} sent)"
        )
        placed = []
        for line, made in enumerate(found):
            by = [
                changes[each]
                for each in range(sent)
                if same[line][each]
                and forward[line, each]
                and backward[count - line - 1, sent - each - 1]
            ]
            earliest, latest = min(each.sent for each in by), max(each.told for each in by)
            placed.append(Made(made.generation, made.kind, made.record, earliest, latest))
        return placed

    def _is(self, made: Made, number: int) -> bool:
        change = self._changes[number]
        if made.kind != change.call["op"]:
            return False
        if made.kind == "mode":
            asked = {name: change.call[name] for name in ("mode", "action") if name in change.call}
            return {name: made.record[name] for name in made.record if name != "by"} == asked
        return bool(made.record["changed"]["growth"] == self._growths[number])

    def _with(self, actions: list[dict[str, Any]]) -> Problem:
        return with_actions(self._problem, successor(self._problem.actions, actions))

    # -- what was played --------------------------------------------------------------------------

    def modes(self, visit: Visit) -> set[str]:
        """12: who may have decided, by the answer and by the time; never nobody."""
        modes = [self._first, *(made for made in self.made if made.kind == "mode")]
        ends = [*(made.latest for made in modes[1:]), inf]
        found = {
            made.record["mode"]
            for made, end in zip(modes, ends, strict=True)
            if made.earliest < visit.told
            and end > visit.asked
            and made.record["mode"] in MODES[visit.answer["status"]]
            and made.record.get("action", visit.answer["name"]) == visit.answer["name"]
        }
        assert found, "a decision by a mode that was over, or not yet asked for"
        return found

    def actions(self, epoch: int) -> list[dict[str, Any]]:
        """13: the actions of an epoch, those that were asked for last before it was planned."""
        if epoch not in self._actions:
            before = [
                made
                for made in self.made
                if made.kind == "settings" and made.generation < self._planned[epoch]
            ]
            growth = before[-1].record["changed"]["growth"] if before else None
            self._actions[epoch] = (
                ACTIONS
                if growth is None
                else self._changes[self._growths.index(growth)].call["actions"]
            )
        return self._actions[epoch]

    def problem(self, epoch: int) -> Problem:
        """The problem with the actions of an epoch."""
        return self._with(self.actions(epoch))

    def check_actions(self, visit: Visit) -> None:
        """13, for one decision."""
        names = dict(enumerate(each["name"] for each in self.actions(visit.answer["epoch"])))
        assert names.get(visit.answer["action"]) == visit.answer["name"], (
            "a decision by actions that its epoch does not have"
        )


def _reached(same: list[list[bool]], changes: list[Change]) -> np.ndarray:
    """``[i, j]``: whether the first i lines are the first j changes without some in doubt."""
    reached = np.zeros((len(same) + 1, len(changes) + 1), dtype=bool)
    reached[0, 0] = True
    for line in range(len(same) + 1):
        for sent, change in enumerate(changes):
            if reached[line, sent] and not change.acknowledged:
                reached[line, sent + 1] = True
            if line < len(same) and reached[line, sent] and same[line][sent]:
                reached[line + 1, sent + 1] = True
    return reached
