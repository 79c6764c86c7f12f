"""What is wrong with how a service is used, in words that name the cause.

Counts of rewards and of contexts are private, so alarms made of them are for the role ``operator``
alone and nothing depends on them. What was released may be told to everybody.
"""

from collections import Counter
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


class Columns:
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
    columns: Columns,
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
