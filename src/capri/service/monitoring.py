"""Live counts of one process, and alarms that name what is wrong with how a service is used.

Whether and when rewards come is private, so counts of rewards and of contexts are for the role
``operator`` alone, and so are the alarms that are made of them: they stay in memory and inside the
trust boundary, and nothing depends on them. What was released may be told to everybody.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import sqrt
from threading import Lock
from typing import Any

from capri.epoch.plan import EpochRecord, Notice
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardScale, RewardTerms
from capri.schema import Schema
from capri.service.decisions import (
    ABSENT,
    NO_RECORD,
    UNKNOWN_COLUMN,
    UNKNOWN_LEVEL,
    UNREADABLE,
)
from capri.service.telemetry import HttpCounts

OUTSIDE = (
    "Made of live counts, which are private: a setting that is changed because of them depends on "
    "users' data, and lies outside of the theorem."
)
_ENOUGH = 50  # rewards or visits, below which a share says little
_SHARE = 0.05  # of rewards or visits, from which an alarm is raised
# Decisions without any reward, beyond those whose rewards are still awaited: where one in a hundred
# brings one, 99 of 100 services have met it by then.
_SILENT = 500
_NAMES, _LETTERS = 16, 40  # names of columns that are kept, and how much of each
# What an alarm calls each kind of mark.
_TOLD = {
    UNKNOWN_COLUMN: "unknown",
    ABSENT: "missing",
    UNREADABLE: "unreadable",
    UNKNOWN_LEVEL: "of no declared level",
    NO_RECORD: "no record",
}
_UNSETTLED = ("refused", "in doubt")  # items of which nothing is known to be done
_COUNTED = ("served", "shadow")  # visits whose rewards are of use
_MINUTES = 60


class ColumnCounts:
    """How often contexts had columns that were not declared, or cells that nobody can read.

    Names are as public as the schema; what stands under them is not looked at. A column that may
    be missing, by its declaration, may be left out.
    """

    def __init__(self, schema: Schema) -> None:
        self.declared = schema.names
        self._optional = {
            each.name for each in schema.columns if getattr(each, "missing", None) is not None
        }
        self.visits = 0
        self._names: dict[str, Counter[str]] = {kind: Counter() for kind in _TOLD}
        self._lock = Lock()

    def note(self, found: Iterable[tuple[str, str]]) -> None:
        """What is the matter with one context: kinds, with the columns that they are about."""
        told = [each for each in found if each[0] != ABSENT or each[1] not in self._optional]
        if not told:
            return
        with self._lock:
            self.visits += 1
            for kind, name in told:
                names, shown = self._names[kind], name[:_LETTERS]
                if shown in names or len(names) < _NAMES:
                    names[shown] += 1

    def said(self) -> str:
        """What was found with its counts, the most frequent names first."""
        with self._lock:
            return "; ".join(
                f"{_TOLD[kind]} {', '.join(_counted(*each) for each in names.most_common(_NAMES))}"
                for kind, names in self._names.items()
                if names
            )


def _counted(name: str, count: int) -> str:
    return f"{name!r} ({count:,})" if name else f"({count:,})"


def _clearly(count: int, of: int) -> bool:
    """Whether a count is more than a share of :data:`_SHARE` makes by chance.

    ``count >= s n + 3 sqrt(s (1 - s) n)``: where few of many rewards are late it stays quiet.
    """
    return of >= _ENOUGH and count >= _SHARE * of + 3 * sqrt(_SHARE * (1 - _SHARE) * of)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one process has counted: visits and rewards by status, and rewards beyond the range."""

    visits: Mapping[str, int]
    rewards: Mapping[str, int]
    columns: ColumnCounts
    outside: int = 0
    seconds: float = 0.0


def live_alarms(terms: RewardTerms, scale: RewardScale, seen: Seen) -> Iterator[Notice]:
    """Of the counts of one process, for operators: each names one mistake, and its cause."""
    judged, late = _settled(seen.rewards), seen.rewards.get("late", 0)
    if _clearly(late, judged):
        text = (
            f"{_percent(late / judged)} of {judged:,} rewards came after {_wait(terms)}, or under "
            "an id that was never given, and were discarded. A longer wait under [reward] of the "
            "policy file keeps them."
        )
        yield Notice(kind="late rewards", text=text)
    counted = sum(seen.visits.get(name, 0) for name in _COUNTED)
    if not judged and _is_over(terms.wait, counted, seen.seconds):
        text = (
            f"None of {counted:,} decisions has a reward, and {_wait(terms)} is over for the first "
            "of them: is POST /v1/rewards called, with the ids of the decisions?"
        )
        yield Notice(kind="no rewards", text=text)
    if _clearly(seen.outside, judged):
        text = (
            f"{_percent(seen.outside / judged)} of {judged:,} rewards lie outside of the range "
            f"from {scale.low:g} to {scale.high:g}, and were clipped to it: send them in the units "
            "of the policy file. The range itself is part of the promise and cannot be changed."
        )
        yield Notice(kind="reward range", text=text)
    visits, columns = _settled(seen.visits), seen.columns
    if _clearly(columns.visits, visits):
        text = (
            f"{_percent(columns.visits / visits)} of {visits:,} visits have other columns than "
            f"declared, or cells that cannot be read: {columns.said()}. Declared are "
            f"{', '.join(map(repr, columns.declared))}."
        )
        yield Notice(kind="columns", text=text)


def _is_over(wait: int | timedelta, counted: int, seconds: float) -> bool:
    """Whether so many decisions should have brought a reward by now."""
    if isinstance(wait, timedelta):
        return counted >= _SILENT and seconds > wait.total_seconds()
    return counted >= _SILENT + wait


def released_alarms(
    terms: RewardTerms, epochs: tuple[EpochRecord, ...], missed: int
) -> Iterator[Notice]:
    """Of what left the gate: for everybody, and a setting may be changed because of it.

    ``missed``: releases that were not ready at the moment that was fixed for them.
    """
    if missed > _SHARE * len(epochs):
        yield Notice(
            kind="late releases",
            text=f"{missed:,} of {len(epochs):,} releases were not ready at the moment that was "
            "fixed for them before their data were read. The guarantee assumes that this is due to "
            "a busy machine: give it more room (docs/howto/store.md).",
            numbers={"missed": float(missed)},
        )
    rate = epochs[-1].response_rate if epochs else None
    if rate is not None and rate < _SHARE:
        yield Notice(
            kind="silence",
            text=f"The last release measured a response rate of {_percent(rate)}: hardly any "
            f"reward came before {_wait(terms)} was over. Are rewards sent, and is the wait long "
            "enough?",
            numbers={"response_rate": rate},
        )


def _settled(counts: Mapping[str, int]) -> int:
    """Items that the store surely took: neither refused nor in doubt."""
    return sum(count for status, count in counts.items() if status not in _UNSETTLED)


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f} %"


def _wait(terms: RewardTerms) -> str:
    wait = terms.wait
    return f"the wait of {wait if isinstance(wait, timedelta) else f'{wait:,} decisions'}"


class LiveCounts:
    """Counts of one process since it started."""

    def __init__(
        self, problem: Callable[[], Problem], schema: Schema, http: HttpCounts | None = None
    ) -> None:
        """``problem``: what is served now; its terms may change. ``http``: of requests."""
        self._since, self._problem = time.time(), problem
        self._http = http or HttpCounts()
        self.columns = ColumnCounts(schema)
        self._outside = 0
        self._visits: Counter[str] = Counter()
        self._rewards: Counter[str] = Counter()
        self._minutes: deque[tuple[int, int]] = deque(maxlen=_MINUTES)

    def visits(self, statuses: list[str]) -> None:
        """Some visits were served."""
        self._visits.update(statuses)
        minute = int(time.time() // 60)
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1] = (minute, self._minutes[-1][1] + len(statuses))
        else:
            self._minutes.append((minute, len(statuses)))

    def rewards(self, statuses: list[str]) -> None:
        """Some rewards were judged."""
        self._rewards.update(statuses)

    def outside(self, count: int) -> None:
        """Some rewards lie beyond their range."""
        self._outside += count

    def seen(self) -> Seen:
        """All that alarms are made of."""
        return Seen(
            visits=self._visits,
            rewards=self._rewards,
            columns=self.columns,
            outside=self._outside,
            seconds=time.time() - self._since,
        )

    def alarms(self) -> list[Notice]:
        """What operators are told of these counts."""
        problem = self._problem()
        return [*live_alarms(problem.rewards, problem.scale, self.seen())]

    def to_dict(self) -> dict[str, Any]:
        """For an operator's eyes."""
        return {
            "trust": "inside the trust boundary: do not publish",
            "since": self._since,
            "visits": dict(self._visits),
            "rewards": dict(self._rewards),
            "alarms": [alarm.to_dict() for alarm in self.alarms()],
            "alarms_mean": OUTSIDE,
            "minutes": [{"minute": minute, "decisions": count} for minute, count in self._minutes],
            "milliseconds": self._http.milliseconds(),
        }
