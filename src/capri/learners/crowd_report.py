"""What is said of those who come: shares, middles and dependence, each with its error; notices.

Functions of what was released of contexts alone (:mod:`capri.learners.crowd`).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.crowd import POINTS, CrowdColumn
from capri.epoch.plan import Notice
from capri.files import html_table, text_table
from capri.learners.copula import quantiles
from capri.learners.crowd import Crowd

_ASKED = np.array([0.1, 0.5, 0.9])
# Pairs of columns that are listed.
_PAIRS = 20
# A notice: the declared range is so many times as wide as where nearly everybody is; so many more
# are of levels that were not declared, or lie at an end.
_WIDER, _HELD = 8.0, 0.96
_UNKNOWN, _AT_AN_END = 0.1, 0.97
# Where fewer visits could be read, that is said.
_READ = 0.9
# Shares with a larger error say nothing of a range.
_VAGUE = 0.15
# Levels that are rather names, and the largest share of one of them.
_MANY, _RARE = 50, 0.05


@dataclass(frozen=True, kw_only=True)
class ColumnShares:
    """A column: of numbers where a tenth, half and nine tenths of those lie who have one; of levels
    the share of each, the most frequent first. ``error``: the deviation of a share.

    ``steady``: it hardly varies, so nothing depends on it.
    """

    name: str
    error: float
    missing: float | None
    low: float | None = None
    middle: float | None = None
    high: float | None = None
    levels: tuple[tuple[str, float], ...] = ()
    steady: bool = False


@dataclass(frozen=True, kw_only=True)
class Together:
    """How two columns go together: the correlation of the normal variables behind them."""

    one: str
    other: str
    correlation: float


@dataclass(frozen=True, kw_only=True, repr=False)
class CrowdReport:
    """Who comes, as far as it was learnt in private; ``print(report)`` shows it.

    ``step``: what is asked next, "over" once the pool was made up, or where nothing is asked.
    ``users``: visits that told of their context. ``together``: the strongest correlations, whose
    error is ``correlation_error``.
    """

    step: str
    users: int
    columns: tuple[ColumnShares, ...]
    together: tuple[Together, ...]
    correlation_error: float

    @property
    def headline(self) -> str:
        """In one sentence, what is known."""
        if not self.columns:
            return "Who comes is said by public rows: nothing was asked of visits."
        if not self.users:
            return "Who comes is not known yet: the first visits tell of their contexts alone."
        return f"{self.users:,} visits told of their contexts alone, in private."

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"headline": self.headline}

    def _tables(self) -> list[list[dict[str, Any]]]:
        columns = [
            {
                "column": each.name,
                "10 %": each.low,
                "50 %": each.middle,
                "90 %": each.high,
                "levels": ", ".join(f"{name} {share:.0%}" for name, share in each.levels[:4]),
                "missing": None if each.missing is None else f"{each.missing:.0%}",
                "+-": f"{each.error:.1%}",
            }
            for each in self.columns
        ]
        together = [
            {"column": each.one, "and": each.other, "correlation": each.correlation}
            for each in self.together
        ]
        return [each for each in (columns if self.users else [], together) if each]

    def __repr__(self) -> str:
        return "\n\n".join([self.headline, *map(text_table, self._tables())])

    def _repr_html_(self) -> str:
        return f"<p>{self.headline}</p>" + "".join(map(html_table, self._tables()))


def crowd_report(crowd: Crowd) -> CrowdReport:
    """What a learner knows of those who come."""
    asked = len(crowd.shares) > 0
    told = crowd.columns if asked else ()
    known = zip(told, crowd.windows, crowd.shares, crowd.errors, strict=True)
    return CrowdReport(
        step=crowd.step,
        users=crowd.users,
        columns=tuple(_column(*each) for each in known),
        together=tuple(_together(crowd)),
        correlation_error=crowd.correlation_error,
    )


def _column(
    column: CrowdColumn, window: FloatArray, shares: FloatArray, error: float
) -> ColumnShares:
    own = shares[: column.levels or POINTS]
    missing = float(shares[column.cells - 1]) if column.missing >= 0 else None
    common: dict[str, Any] = {"name": column.name, "error": float(error), "missing": missing}
    common["steady"] = bool(own.max() > _HELD)
    if column.levels:
        order = np.argsort(-own, kind="stable")
        levels = tuple((column.labels[place], float(own[place])) for place in order)
        return ColumnShares(**common, levels=levels)
    bottom, top = column.unit
    low, middle, high = bottom + (top - bottom) * quantiles(own, window, _ASKED)
    return ColumnShares(**common, low=float(low), middle=float(middle), high=float(high))


def _together(crowd: Crowd) -> Iterator[Together]:
    """The strongest correlations between numbers of different columns."""
    if crowd.correlations is None:
        return
    names = {}
    for column in crowd.columns:
        names[column.missing] = f"{column.name} is missing"
        for level in range(max(1, column.levels)):
            label = f" = {column.labels[level]}" if column.levels else ""
            names[column.start + level] = column.name + label
    owner = {
        number: column.name
        for column in crowd.columns
        for number in (*range(column.start, column.start + max(1, column.levels)), column.missing)
    }
    numbers = [int(number) for number in crowd.scores.numbers]
    one, other = np.triu_indices(len(numbers), 1)
    found = crowd.correlations[one, other]
    order = [
        place
        for place in np.argsort(-np.abs(found), kind="stable")
        if owner[numbers[one[place]]] != owner[numbers[other[place]]]
    ]
    for place in order[:_PAIRS]:
        first, second = names[numbers[one[place]]], names[numbers[other[place]]]
        yield Together(one=first, other=second, correlation=float(found[place]))


def notices_of(crowd: Crowd) -> tuple[Notice, ...]:
    """What does not fit between what was declared and those who come, each kind once."""
    if crowd.step != "over" or not crowd.users:
        return ()
    ranges, levels = [], []
    for column, window, shares, error in zip(
        crowd.columns, crowd.windows, crowd.shares, crowd.errors, strict=True
    ):
        if column.levels:
            unknown = float(shares[column.levels - 1])
            if unknown > _UNKNOWN + 3 * error:
                levels.append(
                    f"{unknown:.0%} of the cells of {column.name!r} are of no level declared"
                )
            elif column.levels > _MANY and float(shares[: column.levels - 1].max()) < _RARE:
                levels.append(f"{column.name!r} has {column.levels - 1} levels, all of them rare")
            continue
        if error > _VAGUE:
            continue
        own = shares[:POINTS]
        wide, narrow = column.high - column.low, float(window[1] - window[0])
        ends = quantiles(own, window, np.array([0.02, 0.98]))
        low, high = column.unit
        for end, share in ((0, own[0]), (-1, own[-1])):
            at = (column.low, column.high)[end]
            if share > _AT_AN_END and window[0 if end == 0 else 1] == at:
                value = low + (high - low) * at
                ranges.append(f"{share:.0%} of {column.name!r} are at {value:g}, an end, or beyond")
        held = max(float(ends[1] - ends[0]), narrow / (POINTS - 1))
        if narrow < wide and wide > _WIDER * held:
            about = " to ".join(f"{low + (high - low) * each:.3g}" for each in ends)
            ranges.append(f"nearly all of {column.name!r} lie at {about}")
    found = []
    if crowd.readable < _READ:
        text = (
            f"about {crowd.readable:.0%} of the first visits, or fewer, could be read: the others "
            "had a cell that is no number, or were of users who came too often. They are played "
            'and teach nothing: declare missing="own" where cells may be missing'
        )
        share = {"readable": crowd.readable}
        found.append(Notice(kind="unreadable", text=text, numbers=share))
    if ranges:
        text = (
            f"declared ranges are not where those who come are: {'; '.join(ranges)}. Numbers are "
            "told apart by steps of the range, and what lies beyond it is at its end: declare "
            "ranges that fit, in a new policy"
        )
        found.append(Notice(kind="ranges", text=text, numbers={"columns": float(len(ranges))}))
    if levels:
        text = (
            f"{'; '.join(levels)}. What is not declared cannot be told apart, and of a rare level "
            "next to nothing is learnt: declare the levels that matter, and leave names out"
        )
        found.append(Notice(kind="levels", text=text, numbers={"columns": float(len(levels))}))
    return tuple(found)
