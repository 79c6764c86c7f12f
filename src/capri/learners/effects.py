"""What a belief says of ``f`` itself: which effects it has, which columns matter.

Every number here is a mean square of ``d^T theta`` over public rows ``d``, under the belief
``theta ~ N(m, P)``:

    E[(d^T theta)^2] = (d^T m)^2 + d^T P d,

the first part from the estimate, the second from what is not known yet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.features import Span
from capri.schema import Schema
from capri.schema.columns import Numeric
from capri.spaces import Actions, Contexts

EFFECTS = ("constant", "action", "context", "interaction")

# Public contexts and actions on a grid for the effects, and draws of pairs for the columns.
_CONTEXTS, _ACTIONS, _PAIRS = 128, 64, 1024
# A derivative is a difference over this share of a column's deviation.
_STEP = 0.05


@dataclass(frozen=True)
class Size:
    """A mean square: of the estimate, and of what is unknown about it."""

    known: float
    unknown: float

    @property
    def expected(self) -> float:
        """Of ``f``, under the belief."""
        return self.known + self.unknown

    @classmethod
    def of(
        cls, rows: FloatArray, weights: FloatArray, mean: FloatArray, root: FloatArray
    ) -> "Size":
        """Over weighted rows ``d``, under ``N(mean, root root^T)``."""
        return cls(
            float(weights @ (rows @ mean) ** 2), float(weights @ ((rows @ root) ** 2).sum(axis=1))
        )


@dataclass(frozen=True)
class ColumnSize:
    """What the exchange of one column between public rows does to ``f``.

    ``lengthscale`` is in the column's own units; None where it has no more than two values.
    """

    name: str
    change: Size
    lengthscale: float | None


@dataclass(frozen=True, eq=False)
class PublicPairs:
    """Contexts with weights and rows of actions, apart from each other, all of them public."""

    own: FloatArray
    weights: FloatArray
    choices: FloatArray

    @classmethod
    def draw(
        cls, contexts: Contexts, actions: Actions, generator: np.random.Generator
    ) -> "PublicPairs":
        """Some contexts and some actions; all of them where they are few."""
        rows, weights = contexts.support(generator, _PAIRS)
        if len(rows) > _CONTEXTS:
            chosen = generator.choice(len(rows), size=_CONTEXTS, p=weights)
            rows, weights = rows[chosen], np.full(_CONTEXTS, 1 / _CONTEXTS)
        own, brought = actions.parts(rows)
        same = bool((brought == brought[:1]).all())
        choices = brought[0] if same else brought.reshape(-1, brought.shape[-1])
        if len(choices) > _ACTIONS:
            choices = choices[generator.choice(len(choices), size=_ACTIONS, replace=False)]
        return cls(own, weights, choices)

    def features(self, basis: Span) -> FloatArray:
        """``v(c, x)`` on the whole grid, ``(contexts, actions, rank)``."""
        count = len(self.choices)
        grid = [np.repeat(self.own, count, axis=0), np.tile(self.choices, (len(self.own), 1))]
        pairs = np.concatenate(grid, axis=1).reshape(len(self.own), count, -1)
        return basis.coordinates(pairs)


def effect_rows(
    features: FloatArray, weights: FloatArray
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Rows and weights of every effect: ``f`` is their sum, and they are uncorrelated.

        v(c, x) = v + (v(x) - v) + (v(c) - v) + rest

    with ``v(x)`` the mean over contexts, ``v(c)`` over actions and ``v`` over both.
    """
    _, actions, rank = features.shape
    each = np.full(actions, 1 / actions)
    by_action = np.einsum("c,car->ar", weights, features)
    by_context = features.mean(axis=1)
    mean = by_action.mean(axis=0)
    rest = features - by_action[None] - by_context[:, None] + mean
    rows = (mean[None], by_action - mean, by_context - mean, rest.reshape(-1, rank))
    masses = (np.ones(1), each, weights, np.repeat(weights, actions) / actions)
    return dict(zip(EFFECTS, zip(rows, masses, strict=True), strict=True))


def column_sizes(
    coordinates: Callable[[FloatArray], FloatArray],
    pairs: PublicPairs,
    schema: Schema | None,
    size: Callable[[FloatArray, FloatArray], Size],
    generator: np.random.Generator,
) -> Iterator[ColumnSize]:
    """How much each column matters, as ``E[(f(c, x) - f(c', x))^2] / 2``.

    ``c'`` is ``c`` with the column of another public row: the total effect of the column, alone and
    with all others. Its lengthscale is the root of that over ``E[(df/dc)^2]``: over so much the
    column changes ``f`` by as much as an exchange does, and a Gaussian kernel has its own. ``size``
    is what a belief makes of weighted rows of coordinates.
    """
    first, other = generator.choice(len(pairs.own), size=(2, _PAIRS), p=pairs.weights)
    action = pairs.choices[generator.integers(len(pairs.choices), size=_PAIRS)]
    own = pairs.own[first]
    before = coordinates(np.concatenate([own, action], axis=1))
    weights = np.full(_PAIRS, 1 / _PAIRS)

    def changed(rows: FloatArray, scale: float) -> Size:
        after = coordinates(np.concatenate([rows, action], axis=1))
        return size((after - before) * scale, weights)

    for name, places, unit in _columns(schema, own.shape[1]):
        swapped = own.copy()
        swapped[:, places] = pairs.own[other][:, places]
        change, lengthscale = changed(swapped, sqrt(0.5)), None
        values = own[:, places[0]]
        if len(places) == 1 and len(np.unique(values)) > 2:
            step = _STEP * float(values.std())
            if not step > 0:
                yield ColumnSize(name, change, None)
                continue
            moved = own.copy()
            moved[:, places] += step
            slope = changed(moved, 1 / step)
            if slope.expected > 0:
                lengthscale = unit * sqrt(change.expected / slope.expected)
        yield ColumnSize(name, change, lengthscale)


def _columns(schema: Schema | None, count: int) -> Iterator[tuple[str, list[int], float]]:
    """Name, numbers of a row, and width of a unit of every column of a context itself."""
    if schema is None:
        yield from ((f"column {number}", [number], 1.0) for number in range(count))
        return
    for column in schema.columns:
        places = [*schema.places(column.name)]
        if places[-1] < count:  # the rest are actions that contexts bring along
            unit = column.high - column.low if isinstance(column, Numeric) else 1.0
            yield column.name, places, unit
