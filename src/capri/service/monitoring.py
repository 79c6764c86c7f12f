"""Live counts of one process, and alarms that name what is wrong with how a service is used.

Whether and when rewards come is private, so counts of rewards and of contexts are for the role
``operator`` alone, and so are the alarms that are made of them: they stay in memory and inside the
trust boundary, and nothing depends on them. What was released may be told to everybody.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import timedelta
from threading import Lock
from typing import Any

from capri.epoch.notice import Notice
from capri.epoch.plan import EpochRecord
from capri.epoch.rewards import RewardTerms

OUTSIDE = (
    "Made of live counts, which are private: a setting that is changed because of them depends on "
    "users' data, and lies outside of the theorem."
)
_ENOUGH = 50  # rewards or visits, below which a share says little
_SHARE = 0.05  # of rewards or visits, from which an alarm is raised
_SILENT = 200  # decisions without any reward, beyond those whose rewards are still awaited
_NAMES, _LETTERS = 16, 40  # names of columns that are kept, and how much of each
_UNSETTLED = ("refused", "in doubt")  # items of which nothing is known to be done
_COUNTED = ("served", "shadow")  # visits whose rewards are of use
_KEPT = 2000  # latencies that quantiles are of
_MINUTES = 60


class ColumnCounts:
    """How often requests had columns that were not declared, or lacked some that were.

    Names are as public as the schema; what stands under them is not looked at.
    """

    def __init__(self, declared: tuple[str, ...]) -> None:
        self.declared = declared
        self.visits = 0
        self.unknown: Counter[str] = Counter()
        self.absent: Counter[str] = Counter()
        self._lock = Lock()

    def note(self, context: Mapping[Any, Any]) -> None:
        """One context whose columns are not those that were declared."""
        with self._lock:
            self.visits += 1
            self.absent.update(name for name in self.declared if name not in context)
            for name in context:
                if name not in self.declared:
                    shown = str(name)[:_LETTERS]
                    if shown in self.unknown or len(self.unknown) < _NAMES:
                        self.unknown[shown] += 1

    def said(self) -> str:
        """Unknown and missing names with their counts, the most frequent first."""
        with self._lock:
            return "; ".join(
                f"{kind} {', '.join(f'{name!r} ({count:,})' for name, count in found)}"
                for kind, names in (("unknown", self.unknown), ("missing", self.absent))
                if (found := names.most_common(_NAMES))
            )


def live_alarms(
    terms: RewardTerms,
    visits: Mapping[str, int],
    rewards: Mapping[str, int],
    columns: ColumnCounts,
    seconds: float,
) -> Iterator[Notice]:
    """Of the counts of one process, which it has kept for so many seconds: for operators."""
    judged = _settled(rewards)
    late = rewards.get("late", 0)
    if judged >= _ENOUGH and late >= _SHARE * judged:
        text = (
            f"{_percent(late / judged)} of {judged:,} rewards came after {_wait(terms)}, or under "
            "an id that was never given, and were discarded. A longer wait under [reward] of the "
            "policy file keeps them."
        )
        yield Notice(kind="late rewards", text=text)
    counted = sum(visits.get(name, 0) for name in _COUNTED)
    wait = terms.wait
    over = (
        counted >= _SILENT and seconds > wait.total_seconds()
        if isinstance(wait, timedelta)
        else counted >= _SILENT + wait
    )
    if over and not judged:
        text = (
            f"None of {counted:,} decisions has a reward, and {_wait(terms)} is over for the first "
            "of them: is POST /v1/rewards called, with the ids of the decisions?"
        )
        yield Notice(kind="no rewards", text=text)
    seen = _settled(visits)
    if seen >= _ENOUGH and columns.visits >= _SHARE * seen:
        text = (
            f"{_percent(columns.visits / seen)} of {seen:,} visits have other columns than "
            f"declared: {columns.said()}. Declared are {', '.join(map(repr, columns.declared))}."
        )
        yield Notice(kind="columns", text=text)


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
            "a busy machine: give it more room (docs/store.md).",
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

    def __init__(self, terms: RewardTerms, columns: tuple[str, ...]) -> None:
        """``columns``: the names that contexts were declared with."""
        self._since, self._terms = time.time(), terms
        self.columns = ColumnCounts(columns)
        self._visits: Counter[str] = Counter()
        self._rewards: Counter[str] = Counter()
        self._seconds: dict[str, deque[float]] = {}
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

    def took(self, what: str, seconds: float) -> None:
        """How long a request took."""
        kept = self._seconds.get(what)
        if kept is None:
            kept = self._seconds[what] = deque(maxlen=_KEPT)
        kept.append(seconds)

    def to_dict(self) -> dict[str, Any]:
        """For an operator's eyes."""
        return {
            "trust": "inside the trust boundary: do not publish",
            "since": self._since,
            "visits": dict(self._visits),
            "rewards": dict(self._rewards),
            "alarms": [
                alarm.to_dict()
                for alarm in live_alarms(
                    self._terms,
                    self._visits,
                    self._rewards,
                    self.columns,
                    time.time() - self._since,
                )
            ],
            "alarms_mean": OUTSIDE,
            "minutes": [{"minute": minute, "decisions": count} for minute, count in self._minutes],
            "milliseconds": {
                what: dict(zip(("p50", "p90", "p99"), _quantiles(kept), strict=True))
                for what, kept in self._seconds.items()
            },
        }


def _quantiles(seconds: deque[float]) -> list[float]:
    ordered = sorted(seconds)
    return [
        round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
        for share in (0.5, 0.9, 0.99)
    ]
