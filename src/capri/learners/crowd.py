"""Who comes, learnt in private where nothing is public but ranges.

The first visits of such a policy are played evenly, and tell of their context alone: first a cell
of every column (:class:`~capri.privacy.moments.CountLayout`), then how columns go together
(:class:`~capri.privacy.pairs.PairLayout`). The shares of the cells of a column are those nearest to
the noisy ones that are not negative and 1 in all. Products of normal scores are correlations, whose
noise has eigenvalues up to ``e = 2 nu sqrt m``; an eigenvalue ``1 + y`` of theirs stands
for ``(y + sqrt(y^2 - e^2))/2``, and for 0 below ``e``. A Gaussian copula of both draws a pool of
made-up rows by public randomness, which takes the place of the rows that filled the ranges.

Everything here is a function of releases and of public draws.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, sqrt
from typing import TypeVar

import numpy as np
from scipy.special import ndtr, ndtri

from capri.arrays import FloatArray
from capri.crowd import POINTS, ColumnCells, ColumnScores, CrowdColumn, crowd_columns
from capri.epoch.plan import EpochPlan, Release, Schedule
from capri.epoch.problem import Problem
from capri.learners.copula import cut_share, denoised, levels_of, on_simplex, quantiles
from capri.privacy.layout import Norm
from capri.privacy.pairs import MOST_SCORES, CountLayout, PairLayout
from capri.spaces import ContextPool, Contexts, FixedActions

_AnyLayout = TypeVar("_AnyLayout", CountLayout, PairLayout)
# Visits for each unit of noise on a count, and at least.
_EACH, _LEAST = 20.0, 200
# Visits that tell of some columns more closely, at least.
_FEW = 100
# Noise of correlations, as the largest eigenvalue that it makes, that a step is long enough for.
_EDGE = 1.3
# The steps take at most this share of a horizon. A step that would be shorter than this share of
# what it should be is not taken.
_SHARE, _ENOUGH = 0.06, 0.4
# Where the horizon is long, or there is none, steps are up to so many times as long.
_LONGER = 2.0
# Rows of the pool that is made up, and what share of them fills the ranges all the same.
_ROWS, _EVEN = 1000, 0.1
# A row's scores are cut to this many times their expected squared norm.
_ROOM = 1.2
# A column is told again more finely where so few points hold so much of it, and so often.
_NARROW, _HELD, _ZOOMS = 3, 0.9, 3
# A column with more than this in one cell does not vary.
_CONSTANT = 0.97
_READABLE = 0.3  # of visits, at least: with fewer, noise would be blown up
# Levels of a column whose dependence is asked for.
_LEVELS = 6


@dataclass(frozen=True, eq=False)
class Crowd:
    """What is known of those who come, and what is asked next.

    ``step``: "marginals", "zoom", "dependence", or "over". ``waiting``: the epoch that asks just
    now, 0 for none. ``users`` and ``epochs``: that told of their contexts. ``shares``: of the cells
    of every column, in a window of its own; ``errors``: the deviation of one. ``readable``: the
    share of visits that had a cell in every column. ``lived``: whether plans go by the ``pool``.
    """

    declared: Contexts
    step: str
    lengths: tuple[int, int]
    windows: FloatArray
    shares: FloatArray
    errors: FloatArray
    waiting: int = 0
    users: int = 0
    epochs: int = 0
    zooms: int = 0
    readable: float = 1.0
    correlations: FloatArray | None = None
    correlation_error: float = 0.0
    pool: ContextPool | None = None
    lived: bool = False

    @classmethod
    def of(
        cls, problem: Problem, horizon: int | None, *, asked: bool, first: int | None = None
    ) -> "Crowd":
        """Before any visit: nothing is asked where rows are public, or where it would not pay.

        ``first``: the length of each step where first epochs have one that was told.
        """
        pool, nothing = problem.contexts, np.zeros((0, 2))
        over = cls(pool, "over", (0, 0), nothing, nothing, np.zeros(0))
        if not (
            asked
            and isinstance(pool, ContextPool)
            and pool.ranges is not None
            and problem.sends_products
            and isinstance(problem.actions, FixedActions)
        ):
            return over
        columns = crowd_columns(pool)
        lengths = _lengths(problem, columns, horizon) if first is None else (first, first)
        if not lengths[0]:
            return over
        windows = np.array([(each.low, each.high) for each in columns])
        shares = np.zeros((len(columns), max(each.cells for each in columns)))
        return cls(pool, "marginals", lengths, windows, shares, np.zeros(len(columns)))

    def imagined(self, generator: np.random.Generator) -> ContextPool:
        """People as they might be, for a rehearsal.

        A bump in each column of numbers, uneven levels, and correlations by three factors.
        """
        shares, place = np.zeros_like(self.shares), np.arange(POINTS)
        for own, column in zip(shares, self.columns, strict=True):
            middle, width = generator.uniform([4.0, 1.0], [12.0, 4.0])
            bump = np.exp(-(((place - middle) / width) ** 2) / 2)
            own[: column.levels or POINTS] = (
                generator.dirichlet(np.ones(column.levels)) if column.levels else bump / bump.sum()
            )
            if column.missing >= 0:
                own[: column.cells] = *(0.9 * own[: column.cells - 1]), 0.1
        known = replace(self, shares=shares)
        loads = generator.standard_normal((known.scores.rank, 3))
        loads /= np.sqrt((loads**2).sum(axis=1, keepdims=True) + 1)
        pool = (
            replace(known, correlations=loads @ loads.T + np.diag(1 - (loads**2).sum(axis=1)))
            ._settled(generator)
            .pool
        )
        assert pool is not None
        return pool

    @cached_property
    def columns(self) -> tuple[CrowdColumn, ...]:
        """The columns that are asked about."""
        assert isinstance(self.declared, ContextPool)
        return crowd_columns(self.declared)

    @property
    def asks(self) -> bool:
        """Whether the next epoch is about contexts alone."""
        return self.step != "over" and not self.waiting

    @property
    def arrives(self) -> bool:
        """Whether the next plan is the first to go by the pool."""
        return self.pool is not None and not self.lived

    def inhabited(self, problem: Problem) -> Problem:
        """A problem with the learnt pool in the place of the declared one."""
        if self.pool is None or not self.lived:
            return problem
        return replace(problem, contexts=self.pool)

    def told_by(self, problem: Problem) -> Problem:
        """The inverse: the problem as it was declared."""
        return replace(problem, contexts=self.declared) if self.lived else problem

    # -- asking -----------------------------------------------------------------------------------

    def length(self, problem: Problem) -> int:
        """Decisions of the epoch that asks next."""
        if self.step != "zoom":
            return self.lengths[self.step == "dependence"]
        return min(self.lengths[0], max(_FEW, _users_for_counts(problem, len(self._narrow)) // 2))

    def scheduled(
        self, problem: Problem, schedule: Schedule, epoch: int, decided: int, longest: float
    ) -> int:
        """Decisions of an epoch: by a schedule that begins when it is known who comes."""
        left = inf if schedule.horizon is None else max(0, schedule.horizon - decided)
        if self.asks:
            return int(min(self.length(problem), left))
        began = max(0, decided - self.users), max(1, epoch - self.epochs)
        return int(min(schedule.after(*began), longest, left))

    def shortest(self, first: int) -> float:
        """Decisions of the next epoch at least, whatever a release that is due says."""
        if self.step == "over":
            return inf
        return min(max(1, first // 3), _FEW, *(each for each in self.lengths if each))

    def plan(self, problem: Problem, epoch: int, length: int) -> tuple["Crowd", EpochPlan]:
        """The epoch that asks next."""
        features: ColumnCells | ColumnScores
        layout: CountLayout | PairLayout
        clip = 1.0
        if self.step == "dependence":
            features = self.scores
            layout, clip = _pair_layout(problem, features.rank), sqrt(_ROOM * features.rank)
        else:
            told, windows = list(range(len(self.columns))), self.windows
            if self.step == "zoom":
                told = self._narrow
                windows = np.array([self._aim(place) for place in told])
            places = [self.columns[place] for place in told]
            asked = np.array([(each.start, each.levels, each.missing) for each in places])
            features = ColumnCells(asked, windows)
            layout = _count_layout(problem, tuple(each.cells for each in places))
        plan = EpochPlan(
            epoch=epoch,
            length=length,
            features=features,
            tau=1.0,
            sigma_max=1.0,
            value_bound=problem.reward_bound,
            clip_norm=clip,
            layout=layout,
        )
        return replace(self, waiting=epoch), plan

    @property
    def _narrow(self) -> list[int]:
        """Columns of numbers that a few of their points hold nearly all of."""
        return [place for place, _ in enumerate(self.columns) if self._aim(place) is not None]

    def _aim(self, place: int) -> tuple[float, float] | None:
        """The window that holds nearly all of a column; None where that is most of it."""
        column = self.columns[place]
        if column.levels:
            return None
        sums = np.convolve(self.shares[place, :POINTS], np.ones(_NARROW), "valid")
        first = int(sums.argmax())
        if sums[first] < _HELD * self.shares[place, :POINTS].sum():
            return None
        low, high = self.windows[place]
        step = (high - low) / (POINTS - 1)
        ends = low + step * (first - 0.5), low + step * (first + _NARROW - 0.5)
        return max(ends[0], column.low), min(ends[1], column.high)

    @cached_property
    def scores(self) -> ColumnScores:
        """Normal scores of what varies, by the shares that are known: mean 0 and variance 1."""
        numbers, windows, tables = [], [], []
        columns = zip(self.columns, self.windows, self.shares, self.errors, strict=True)
        for column, window, shares, error in columns:
            steady = np.clip(1 - 4 * error, 0.8, _CONSTANT)
            if not column.levels and shares[:POINTS].max() < steady:
                own = shares[:POINTS] / shares[:POINTS].sum()
                table = ndtri(np.clip(np.cumsum(own) - own / 2, 0.005, 0.995))
                table -= own @ table
                numbers.append(column.start)
                windows.append(tuple(window))
                tables.append(table / sqrt(own @ table**2))
            for number, share in _indicators(column, shares):
                numbers.append(number)
                windows.append((0.0, 1.0))
                tables.append((np.linspace(0, 1, POINTS) - share) / sqrt(share * (1 - share)))
        kept = slice(0, MOST_SCORES)
        return ColumnScores(
            np.array(numbers[kept], dtype=np.int64),
            np.array(windows[kept]).reshape(-1, 2),
            np.array(tables[kept]).reshape(-1, POINTS),
        )

    # -- learning ---------------------------------------------------------------------------------

    def unheard(self) -> "Crowd":
        """With nothing under way: what asked will never be released."""
        return replace(self, waiting=0)

    def after(self, release: Release, generator: np.random.Generator) -> "Crowd":
        """With what an epoch told of its contexts; with a pool where that was the last step."""
        users = self.users + release.participants
        told = replace(self, waiting=0, users=users, epochs=self.epochs + 1)
        if isinstance(release.plan.features, ColumnScores):
            return told._with_dependence(release)._settled(generator)
        told = told._with_shares(release)
        if told.zooms < _ZOOMS and told._narrow:
            return replace(told, step="zoom", zooms=told.zooms + 1)
        if told.lengths[1] and told.scores.rank > 1:
            return replace(told, step="dependence")
        return told._settled(generator)

    def _with_shares(self, release: Release) -> "Crowd":
        """The shares of cells by noisy counts, in the windows that were asked about."""
        features, layout = release.plan.features, release.plan.layout
        assert isinstance(features, ColumnCells)
        windows, shares, errors = self.windows.copy(), self.shares.copy(), self.errors.copy()
        places = {column.start: place for place, column in enumerate(self.columns)}
        count, begin = release.participants, 0
        noise = layout.deviation("counts") / count
        readable = float(release.vector.sum()) / (count * features.rank)
        least = 1 - 4 * noise * sqrt(len(release.vector)) / features.rank
        readable = 1.0 if readable > least else max(readable, _READABLE)
        for (start, _, _), window in zip(features.places, features.windows, strict=True):
            place = places[int(start)]
            cells = self.columns[place].cells
            seen = release.vector[begin : begin + cells] / (readable * count)
            windows[place], shares[place] = window, 0.0
            shares[place, :cells], begin = on_simplex(seen), begin + cells
            errors[place] = sqrt((noise / readable) ** 2 + 1 / (cells * readable * count))
        known = min(readable, self.readable)
        return replace(self, windows=windows, shares=shares, errors=errors, readable=known)

    def _with_dependence(self, release: Release) -> "Crowd":
        """Correlations of what is behind the scores, as far as they rise above the noise."""
        features, layout = release.plan.features, release.plan.layout
        assert isinstance(features, ColumnScores)
        size, count = features.rank, self.readable * release.participants
        radius = _ROOM * size
        told = np.eye(size)
        upper = np.triu_indices(size, 1)
        told[upper] = release.vector * radius / count
        noise = sqrt((layout.deviation("products") * radius / count) ** 2 + 1 / count)
        kept = np.outer(*[self._kept(features)] * 2)
        shrunk = 1.0
        for _ in range(3):  # scores of long rows were cut: by how much, the correlations say
            scale = shrunk * kept[upper]
            found = np.eye(size)
            found[upper] = told[upper] / scale
            found = np.where(found == 0, found.T, found)
            error = noise / float(np.mean(scale)) if len(scale) else 0.0
            found = denoised(found, error)
            shrunk = cut_share(found, radius)
        return replace(self, correlations=found, correlation_error=error)

    def _kept(self, features: ColumnScores) -> FloatArray:
        """How much of a normal variable its score keeps: ``E[g score(value(g))]``."""
        normal = ndtri((np.arange(512) + 0.5) / 512)
        values = self._numbers(np.tile(normal[:, None], features.rank), features)
        scores = replace(features, numbers=np.arange(features.rank)).whitened(values)
        return np.asarray(np.maximum(normal @ scores / 512, 0.2))

    def _numbers(self, normal: FloatArray, features: ColumnScores) -> FloatArray:
        """The numbers of a row by the normal variables behind them, each by itself."""
        found = np.empty(normal.shape)
        columns = {column.start: place for place, column in enumerate(self.columns)}
        for place, number in enumerate(features.numbers):
            table = features.tables[place]
            own = columns.get(int(number))
            if own is not None and not self.columns[own].levels:
                shares = self.shares[own, :POINTS]
                found[:, place] = quantiles(shares, self.windows[own], ndtr(normal[:, place]))
            else:  # an indicator, whose share is where its table is 0
                share = -table[0] / (table[-1] - table[0])
                found[:, place] = normal[:, place] > ndtri(1 - share)
        return found

    def _settled(self, generator: np.random.Generator) -> "Crowd":
        """With the pool: rows of the copula, and some that fill the ranges."""
        assert isinstance(self.declared, ContextPool)
        rows, even = self._rows(generator), self.declared.rows
        shares = np.array([(1 - _EVEN) / len(rows), _EVEN / len(even)])
        weights = np.repeat(shares, [len(rows), len(even)])
        pool = ContextPool(np.concatenate([rows, even]), weights, self.declared.schema)
        return replace(self, step="over", pool=pool)

    def _rows(self, generator: np.random.Generator) -> FloatArray:
        """Made-up rows that follow the shares and the correlations."""
        features = self.scores
        known = np.eye(features.rank) if self.correlations is None else self.correlations
        values, vectors = np.linalg.eigh(known)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = generator.standard_normal((_ROWS, len(known))) @ root.T
        spare = generator.random((_ROWS, len(self.columns), 2))
        numbers = self._numbers(normal, features)
        place_of = {int(number): place for place, number in enumerate(features.numbers)}
        rows = np.zeros((_ROWS, self.declared.dimension))
        for place, column in enumerate(self.columns):
            shares, window = self.shares[place, : column.cells], self.windows[place]
            gone = np.zeros(_ROWS, dtype=np.bool_)
            if column.missing >= 0:
                own = place_of.get(column.missing)
                share = shares[-1]
                gone = (
                    spare[:, place, 0] < share if own is None else numbers[:, own].astype(np.bool_)
                )
                rows[gone, column.missing] = 1.0
            if column.levels:
                # Levels without a score of their own: draws that no other column knows of.
                heights = generator.standard_normal((_ROWS, column.levels))
                for level in range(column.levels):
                    if (scored := place_of.get(column.start + level)) is not None:
                        heights[:, level] = normal[:, scored]
                chosen = levels_of(shares[: column.levels], heights)
                rows[np.flatnonzero(~gone), column.start + chosen[~gone]] = 1.0
                continue
            own = place_of.get(column.start)
            value = (
                quantiles(shares[:POINTS], window, spare[:, place, 1])
                if own is None
                else numbers[:, own]
            )
            rows[:, column.start] = np.where(gone, 0.5, value)
        return rows


# -- how much to ask ------------------------------------------------------------------------------


def _norm(problem: Problem) -> Norm:
    """Gaussian noise where it may be: less of it for many columns."""
    return Norm.L2 if Norm.L2 in problem.norms else Norm.L1


def _count_layout(problem: Problem, cells: tuple[int, ...]) -> CountLayout:
    return _private(problem, CountLayout(cells=cells, norm=_norm(problem)))


def _pair_layout(problem: Problem, scores: int) -> PairLayout:
    return _private(problem, PairLayout(scores=scores, norm=_norm(problem)))


def _private(problem: Problem, layout: _AnyLayout) -> _AnyLayout:
    if problem.budget is None:
        return layout
    pure = layout.norm is Norm.L1
    return layout.calibrated(problem.budget, problem.contributions if pure else problem.composition)


def _users_for_counts(problem: Problem, columns: int) -> int:
    """So many that the noise on a share is a twentieth."""
    layout = _count_layout(problem, (POINTS,) * columns)
    return max(_LEAST, ceil(_EACH * layout.deviation("counts")))


def _users_for_pairs(problem: Problem, scores: int) -> int:
    """So many that noise makes no eigenvalue of correlations above a bound."""
    layout = _pair_layout(problem, scores)
    noise = layout.deviation("products") * _ROOM * scores
    return max(_LEAST, ceil(2 * noise * sqrt(scores) / _EDGE))


def _lengths(
    problem: Problem, columns: tuple[CrowdColumn, ...], horizon: int | None
) -> tuple[int, int]:
    """Decisions of both steps by what is public: columns, budget and horizon; 0 for no step."""
    scores = sum(min(each.levels, _LEVELS) or 1 for each in columns)
    counts, pairs = _users_for_counts(problem, len(columns)), 0
    if 1 < scores <= MOST_SCORES:
        pairs = _users_for_pairs(problem, scores)
    room = inf if horizon is None else _SHARE * horizon
    for lengths in ((counts, pairs), (counts, 0)):
        factor = min(_LONGER, room / sum(lengths))
        if factor >= _ENOUGH:
            return round(factor * lengths[0]), round(factor * lengths[1])
    return 0, 0


def _indicators(column: CrowdColumn, shares: FloatArray) -> list[tuple[int, float]]:
    """Indicators of a column that vary, with their shares: the most even ones."""
    found = [(column.start + level, float(shares[level])) for level in range(column.levels)]
    found = [each for each in found if 1 - _CONSTANT < each[1] < _CONSTANT]
    found = sorted(found, key=lambda each: -each[1] * (1 - each[1]))[:_LEVELS]
    if column.missing >= 0:
        share = float(shares[column.cells - 1])
        if 1 - _CONSTANT < share < _CONSTANT:
            found.append((column.missing, share))
    return found
