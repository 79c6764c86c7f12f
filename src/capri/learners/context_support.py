"""Where users may be, in public: the pool's rows, rows around them, and smooth functions of both.

A law of contexts is learnt as ``pool (1 + sum_k beta_k phi_k)``. The ``phi_k`` are eigenfunctions
of a Matern kernel on standard scores under a public law ``nu``, centred there: with ``k~`` the
kernel less its means,

    phi_k(c) = sum_j k~(c, x_j) nu_j phi_k(x_j) / lambda_k,    E_nu phi_k = 0,  E_nu phi_k^2 = 1,

so that no ``beta`` changes how many users there are. Everything here is a function of public rows.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from capri.arrays import FloatArray
from capri.kernels import Matern
from capri.kernels.stationary import squared_distances
from capri.spaces import ContextPool, FixedActions

if TYPE_CHECKING:
    from capri.epoch.problem import Problem

# Functions of contexts, and public rows that they are made from.
_INSIDE, _OUTSIDE = 16, 12
_LANDMARKS = 256
# Public rows that stand for the pool where its law is held against the learnt one.
_ROWS = 1024
# Functions of a smaller share of the largest eigenvalue are made of rounding errors.
_SMALLEST = 1e-6
# Rows around the pool, and how far from its centre they lie, relative to the pool's own.
_ELSEWHERE = 48
_STRETCHES = tuple(np.arange(1.5, 3.6, 0.25))
# Rows of the pool that are moved.
_MOVED = 64
# Such a row is at least so many times as far from the pool as its rows are from each other, and as
# many deviations of a column.
_APART, _LEAST_APART = 1.5, 0.25
# A row of a pool that weighs less than this share of the mean one counts as elsewhere, too.
_LIGHT = 0.1
_KERNEL = Matern(nu=2.5, lengthscale=1.0)


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions above: ``phi(c) = k(scores(c), landmarks) matrix + offset``.

    ``decay``: eigenvalues relative to the largest, which is how much each is expected to matter.
    """

    centre: FloatArray
    rate: FloatArray
    landmarks: FloatArray
    matrix: FloatArray
    offset: FloatArray
    decay: FloatArray

    def __call__(self, contexts: FloatArray) -> FloatArray:
        """One row of values for each context."""
        scores = (contexts - self.centre) * self.rate
        return np.asarray(_KERNEL(scores, self.landmarks) @ self.matrix + self.offset)

    @classmethod
    def of(
        cls, rows: FloatArray, nu: FloatArray, count: int, *, centred: bool
    ) -> "Functions | None":
        """Eigenfunctions under ``nu`` on these rows; None where all rows are alike."""
        centre = nu @ rows
        deviation = np.sqrt(nu @ (rows - centre) ** 2)
        changing = deviation > 1e-9 * np.maximum(np.abs(centre), 1e-300)
        if not changing.any():
            return None
        rate = np.where(changing, 1.0 / np.where(changing, deviation, 1.0), 0.0)
        scores = (rows - centre) * rate
        # Squared distances of independent rows have the mean 2 per changing column.
        rate = rate / np.sqrt(2 * np.count_nonzero(changing)) * _SHARPNESS
        scores = (rows - centre) * rate
        kernel = _KERNEL(scores, scores)
        mean = kernel @ nu if centred else np.zeros(len(rows))
        operator = kernel - mean[:, None] - mean[None, :] + nu @ mean
        root = np.sqrt(nu)
        values, vectors = np.linalg.eigh(root[:, None] * operator * root)
        values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
        kept = values > _SMALLEST * values[0]
        if not (values[0] > 0 and kept.any()):
            return None
        values, vectors = values[kept], vectors[:, kept]
        weights = root[:, None] * vectors / values
        return cls(
            centre=centre,
            rate=rate,
            landmarks=scores,
            matrix=weights - centred * np.outer(nu, weights.sum(axis=0)),
            offset=-(mean - nu @ mean) @ weights,
            decay=values / values[0],
        )


# Lengthscales are a typical distance divided by this.
_SHARPNESS = 1.4


@dataclass(frozen=True, eq=False)
class ContextSupport:
    """Rows that stand for the pool with its weights, rows elsewhere, and functions of both.

    ``inside`` is centred and orthonormal under the pool's law; ``outside``, with a level of its
    own, on the rows elsewhere. None where there are none.
    """

    rows: FloatArray
    weights: FloatArray
    elsewhere: FloatArray
    inside: Functions | None
    outside: Functions | None

    @classmethod
    def of(cls, problem: "Problem") -> "ContextSupport":
        """From the public rows of a problem, by draws of its own that move no others.

        A message that is private by itself has no room for what the law is learnt from: nowhere.
        """
        if not problem.sends_products:
            nobody = np.empty((0, problem.contexts.dimension))
            return cls(nobody, np.empty(0), nobody, None, None)
        generator, contexts = np.random.default_rng(0), problem.contexts
        every = _fewer(*contexts.support(generator, _ROWS), _ROWS, generator)
        rows, weights = _fewer(*every, _LANDMARKS, generator)
        elsewhere = np.empty((0, contexts.dimension))
        if isinstance(problem.actions, FixedActions):
            elsewhere = _rows_elsewhere(problem, rows, weights, generator)
        inside, outside = Functions.of(rows, weights, _INSIDE, centred=True), None
        if len(elsewhere):
            even = np.full(len(elsewhere), 1 / len(elsewhere))
            outside = Functions.of(elsewhere, even, _OUTSIDE, centred=False)
        return cls(*every, elsewhere if outside is not None else elsewhere[:0], inside, outside)

    @cached_property
    def decays(self) -> tuple[FloatArray, FloatArray]:
        """How much each function is expected to matter: within the pool, and with elsewhere."""
        inside = np.zeros(0) if self.inside is None else self.inside.decay
        if self.outside is None:
            return inside, np.zeros(0)
        return inside, np.concatenate([inside, self.outside.decay])


def _fewer(
    rows: FloatArray, weights: FloatArray, count: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """At most so many rows with their weights, drawn by them where there are more."""
    if len(rows) <= count:
        return rows, weights
    return rows[generator.choice(len(rows), size=count, p=weights)], np.full(count, 1 / count)


def _rows_elsewhere(
    problem: "Problem", rows: FloatArray, weights: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """Rows that the pool gives hardly any weight, then rows of it moved away from its centre.

    ``centre + s (row - centre)`` with ``s`` up to 3.5 keeps what columns have to do with each
    other, which a box of their ranges would not. A column of two values, such as an indicator, is
    left as it is, and a declared range is kept to. Rows as near to the pool as its own rows are to
    each other are left out: the pool speaks for them.
    """
    pool = problem.contexts
    light = rows[:0]
    if isinstance(pool, ContextPool):
        light = pool.rows[pool.weights < _LIGHT / pool.size]
        if len(light) > _ELSEWHERE // 2:
            light = light[generator.choice(len(light), size=_ELSEWHERE // 2, replace=False)]
    numeric = np.array([len(np.unique(column)) > 2 for column in rows.T])
    if not numeric.any():
        return light
    some = rows
    if len(rows) > _MOVED:
        some = rows[generator.choice(len(rows), size=_MOVED, p=weights, replace=False)]
    centre = weights @ rows
    moved = np.concatenate(
        [np.where(numeric, centre + stretch * (some - centre), some) for stretch in _STRETCHES]
    )
    if pool.schema is not None:
        moved = np.clip(moved, 0.0, 1.0)
    deviation = rows.std(axis=0)  # 0 for numbers whose squares are none
    scale = np.where(numeric & (deviation > 0), deviation, 1e300)  # what does not move says nothing
    near = squared_distances(rows / scale, rows / scale)
    np.fill_diagonal(near, np.inf)
    away = squared_distances(moved / scale, rows / scale).min(axis=1)
    apart = _APART * float(np.quantile(np.sqrt(near.min(axis=1)), 0.9))
    apart = max(apart, _LEAST_APART * float(np.sqrt(numeric.sum())))
    moved = moved[np.sqrt(away) > apart]
    return np.concatenate([light, _far_apart(moved, scale, _ELSEWHERE - len(light))])


def _far_apart(rows: FloatArray, scale: FloatArray, count: int) -> FloatArray:
    """So many of the rows, each as far from those before it as there is one."""
    if len(rows) <= count:
        return rows
    scaled, chosen = rows / scale, [0]
    distance = squared_distances(scaled, scaled[:1])[:, 0]
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        newest = squared_distances(scaled, scaled[chosen[-1] :][:1])[:, 0]
        distance = np.minimum(distance, newest)
    return np.asarray(rows[chosen])
