"""What a fit has learnt of each column, and of the pairs that act together, with bands.

The effect of a column is the mean prediction at each of its values, over rows ``X`` of the law that
releases tell of, less the mean over all:

    f_j(x) = F(x) - E F(x_j) = g(x)^T theta,     F(x) = E f(x, X_-j),

so that its band is known, ``g^T cov(theta) g``. What two columns do beside their effects is what
``F(x, z) = E f(x, z, X_-jk)`` has beside its means over either,

    f_jk(x, z) = F(x, z) - E F(x_j, z) - E F(x, x_k) + E E F(x_j, x_k),

linear in ``theta`` as well. It is shown of the pairs for which

    E (f(x_j', x_k', .) - f(x_j', .) - f(x_k', .) + f(x))^2 / 4,     x' another row,

is largest. Nothing here looks at a row of the data: all of it is post-processing of releases.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import cdist

from capri.arrays import FloatArray, IntArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.files import Row, html_table, text_table
from capri.plots.style import COLOURS, REFERENCE, new_figure, prepare, to_bytes
from capri.schema import Boolean, Categorical, Schema

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from capri.regression.decode import Model

# Rows of the law that tell how frequent values are, that effects are means over, and that pairs
# are compared by.
_COUNTED, _ROWS, _COMPARED = 2000, 128, 48
# Values of a number at which effects are told; the same in the picture of a pair, and most levels.
_VALUES, _PAIR_VALUES, _MOST_LEVELS = 33, 9, 40
# Columns drawn, and panels in a row of the picture.
_DRAWN, _ACROSS = 12, 4


@dataclass(frozen=True, eq=False)
class _Part:
    """One column: its places among the numbers of a row, and values of it with what they say."""

    name: str
    places: list[int]
    cells: FloatArray
    values: tuple[Any, ...]

    def at(self, rows: FloatArray, cell: FloatArray) -> FloatArray:
        """The rows with this value in the column, one for all or one each."""
        found = rows.copy()
        found[:, self.places] = cell
        return found

    def shares(self, rows: FloatArray) -> FloatArray:
        """How many of the rows are nearest to each value."""
        nearest = cdist(rows[:, self.places], self.cells).argmin(axis=1)
        return np.bincount(nearest, minlength=len(self.cells)) / len(rows)

    def coarse(self) -> "_Part":
        """Fewer values, for a picture of two columns."""
        count = min(len(self.cells), _PAIR_VALUES)
        few = np.unique(np.linspace(0, len(self.cells) - 1, count).astype(np.int64))
        return _Part(self.name, self.places, self.cells[few], tuple(self.values[i] for i in few))


@dataclass(frozen=True, kw_only=True, eq=False)
class Effect:
    """What a column adds to the prediction at each of its values, with the ends of a band.

    Of a pair of columns: what both do beside their effects, at each pair of values.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    effect: FloatArray
    lower: FloatArray
    upper: FloatArray
    strength: float  # root mean square of the effect over rows

    @property
    def name(self) -> str:
        """The columns that it is of."""
        return " x ".join(self.columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class FitExplanation:
    """Effects of all columns and of the strongest pairs, the strongest first; shows itself."""

    columns: tuple[Effect, ...]
    pairs: tuple[Effect, ...]
    level: float

    def table(self) -> list[Row]:
        """One row a column and a pair: how strong, and between which ends."""
        return [
            {
                "of": each.name,
                "strength": each.strength,
                "lowest": float(each.effect.min()),
                "highest": float(each.effect.max()),
                "widest band": float((each.upper - each.lower).max()) / 2,
            }
            for each in (*self.columns, *self.pairs)
        ]

    def figure(self) -> "Figure":
        """A panel for each column, bands shaded; pairs are white where their band holds 0."""
        columns = self.columns[:_DRAWN]
        panels = len(columns) + len(self.pairs)
        down = -(-panels // _ACROSS)
        height = 3.1 * down + 1.6
        figure = new_figure(
            16.0,
            height,
            "What the fit has learnt of each column, and of pairs beside their columns",
            f"Change of the prediction, the mean over rows of the released law; bands of "
            f"{100 * self.level:g} %. Of what no part of the family can follow they do not know.",
        )
        figure.subplots_adjust(left=0.05, right=0.98, wspace=0.3, hspace=0.75)
        axes = [figure.add_subplot(down, _ACROSS, 1 + place) for place in range(panels)]
        for each, panel in zip(columns, axes, strict=False):
            _draw_column(panel, each)
        for pair, panel in zip(self.pairs, axes[len(columns) :], strict=True):
            panel.figure.colorbar(_draw_pair(panel, pair), ax=panel)
        return figure

    def save(self, path: str | Path) -> Path:
        """The picture as a file that ends in .png, .svg or .pdf."""
        place = Path(path)
        kind = place.suffix.removeprefix(".")
        if kind not in ("png", "svg", "pdf"):
            raise ConfigurationError(f"path must end in .png, .svg or .pdf, got {place.name!r}")
        place.write_bytes(to_bytes(self.figure(), kind))
        return place

    def __repr__(self) -> str:
        return text_table(self.table())

    def _repr_html_(self) -> str:
        return html_table(self.table())

    def _repr_png_(self) -> bytes:
        return to_bytes(self.figure(), "png")


def explained(
    model: "Model",
    rows: FloatArray,
    schema: Schema | None,
    names: Sequence[str] | None,
    *,
    output: int,
    pairs: int,
    level: float,
) -> FitExplanation:
    """Effects of one output; ``rows`` are some of the released law."""
    level = between("level", level, 0.0, 1.0, open_ends=True)
    if not 0 <= output < len(model.estimates):
        raise ConfigurationError(
            f"output must be from 0 to {len(model.estimates) - 1}, got {output!r}"
        )
    parts = [*_parts(rows, schema, names)]
    effects = _Effects(model, output, rows[:_COUNTED], NormalDist().inv_cdf(0.5 + level / 2))
    strongest = effects.strongest(parts, whole("pairs", pairs, least=0))
    return FitExplanation(
        columns=_by_strength(map(effects.column, parts)),
        pairs=_by_strength(effects.pair(*each) for each in strongest),
        level=level,
    )


def _by_strength(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    return tuple(sorted(effects, key=lambda each: -each.strength))


@dataclass(frozen=True, eq=False)
class _Effects:
    """Of one output of a model; ``reach`` deviations to either side. ``law``: rows of the law."""

    model: "Model"
    output: int
    law: FloatArray
    reach: float

    @property
    def rows(self) -> FloatArray:
        """Those that effects are means over."""
        return self.law[:_ROWS]

    def _coordinates(self, rows: FloatArray) -> FloatArray:
        return self.model.basis.coordinates(np.clip(rows, *self.model.box))

    def _mean(self, rows: FloatArray) -> FloatArray:
        """``E v``."""
        return np.asarray(self._coordinates(rows).mean(axis=0))

    def _band(self, g: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The effect of each row of ``g``, and the ends of its band, in units of y."""
        estimate, half = self.model.estimates[self.output], self.model.targets.half[self.output]
        effect = half * (g @ estimate.mean)
        width = half * np.sqrt(np.maximum(np.sum((g @ estimate.covariance) * g, axis=-1), 0.0))
        return effect, effect - self.reach * width, effect + self.reach * width

    def _shown(self, parts: Sequence[_Part], means: FloatArray) -> Effect:
        """``means``: ``E v`` at each value of the parts, which its means over either come off."""
        shares = [each.shares(self.law) for each in parts]
        for axis, own in enumerate(shares):
            means = means - np.expand_dims(np.tensordot(own, means, axes=(0, axis)), axis)
        effect, lower, upper = self._band(means)
        weights = shares[0] if len(shares) == 1 else np.outer(*shares)
        return Effect(
            columns=tuple(each.name for each in parts),
            values=tuple(each.values for each in parts),
            effect=effect,
            lower=lower,
            upper=upper,
            strength=sqrt(float(np.sum(weights * effect**2))),
        )

    def column(self, part: _Part) -> Effect:
        """``f_j``."""
        return self._shown(
            [part], np.stack([self._mean(part.at(self.rows, x)) for x in part.cells])
        )

    def pair(self, left: _Part, right: _Part) -> Effect:
        """``f_jk``."""
        left, right = left.coarse(), right.coarse()
        moved = [left.at(self.rows, x) for x in left.cells]
        means = [[self._mean(right.at(rows, z)) for z in right.cells] for rows in moved]
        return self._shown([left, right], np.array(means))

    def strongest(self, parts: Sequence[_Part], count: int) -> list[tuple[_Part, _Part]]:
        """The pairs that single rows show most of."""
        if count == 0:
            return []
        rows = self.rows[:_COMPARED]
        others = np.roll(rows, 1, axis=0)
        theta = self.model.estimates[self.output].mean
        start = self._coordinates(rows) @ theta
        moved = [each.at(rows, others[:, each.places]) for each in parts]
        alone = [self._coordinates(each) @ theta for each in moved]
        found: list[tuple[float, int, int]] = []
        for i, j in combinations(range(len(parts)), 2):
            both = parts[j].at(moved[i], others[:, parts[j].places])
            away = self._coordinates(both) @ theta - alone[i] - alone[j] + start
            found.append((float(np.mean(away**2)), i, j))
        return [(parts[i], parts[j]) for _, i, j in sorted(found, reverse=True)[:count]]


def _parts(rows: FloatArray, schema: Schema | None, names: Sequence[str] | None) -> Iterator[_Part]:
    """Columns as they were declared, or each number of a row, with values that rows have."""
    if schema is None:
        for place in range(rows.shape[1]):
            cells = _spread(rows[:, place])
            name = f"column {place}" if names is None else str(names[place])
            yield _Part(name, [place], cells[:, None], tuple(cells.tolist()))
        return
    for column in schema.columns:
        places = [*schema.places(column.name)]
        if isinstance(column, Categorical):
            levels = _frequent(rows[:, places], len(column.levels))
            cells = np.eye(len(places))[levels]
        else:
            yes_or_no = isinstance(column, Boolean)
            numbers = np.array([0.0, 1.0]) if yes_or_no else _spread(rows[:, places[0]])
            cells = np.zeros((len(numbers), len(places)))
            cells[:, 0] = numbers
        values = tuple(column.decode(each) for each in cells)
        yield _Part(column.name, places, cells, values)


def _spread(values: FloatArray) -> FloatArray:
    """Values between which equal shares of rows lie."""
    return np.unique(np.quantile(values, np.linspace(0.01, 0.99, _VALUES)))


def _frequent(indicators: FloatArray, levels: int) -> IntArray:
    """The most frequent levels, in the order in which they were declared."""
    order = np.argsort(-indicators[:, :levels].mean(axis=0), kind="stable")[:_MOST_LEVELS]
    return np.sort(order)


def _draw_column(axes: "Axes", each: Effect) -> None:
    prepare(axes, each.name, f"strength {each.strength:.3g}")
    axes.axhline(0.0, color=REFERENCE, linewidth=0.8)
    (values,) = each.values
    if all(isinstance(value, float) for value in values):
        axes.fill_between(values, each.lower, each.upper, color=COLOURS[0], alpha=0.2)
        axes.plot(values, each.effect, color=COLOURS[0], linewidth=2)
        return
    at = np.arange(len(values))
    reach = np.stack([each.effect - each.lower, each.upper - each.effect])
    axes.errorbar(at, each.effect, yerr=reach, fmt="o", color=COLOURS[0], capsize=3)
    axes.set_xticks(at, [str(value) for value in values], rotation=45, ha="right", size=8)


def _draw_pair(axes: "Axes", pair: Effect) -> Any:
    prepare(axes, pair.name, f"strength {pair.strength:.3g}")
    sure = np.where((pair.lower > 0) | (pair.upper < 0), pair.effect, np.nan)
    most = float(np.abs(pair.effect).max()) or 1.0
    shown = axes.imshow(sure.T, origin="lower", aspect="auto", cmap="PuOr", vmin=-most, vmax=most)
    for axis, values in zip((axes.xaxis, axes.yaxis), pair.values, strict=True):
        words = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
        axis.set_ticks(range(len(values)), words, size=8)
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=45)
    return shown
