"""From raw columns to contexts: scaling, projection and rounding, all learnt from public rows.

A user's row is mapped by a public function of that row alone, so what one user's context becomes
tells nothing about another.
"""

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import is_whole
from capri.errors import ConfigurationError
from capri_lab.streams import TABLE_PROTOTYPES

# Share of public rows that lie inside the unit ball; the rest, and far users, are pulled to its
# surface: an outlier does not set the scale for all.
_INSIDE = 0.95

# Rounds of Lloyd's iteration; prototypes need not be optimal, only sensible and reproducible.
_LLOYD = 30


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ContextEncoder:
    """``c = clip(P^T (z - centre) / scale / radius)``, then perhaps the nearest prototype.

    ``centre`` and ``scale`` are mean and standard deviation of each column over the public rows (1
    where a column is constant), ``P`` their leading principal directions, ``radius`` the 95 %
    quantile of their norms after projection, and the clip pulls a row back to norm 1. So
    ``|c| <= 1`` for everybody, which linear kernels need.
    """

    centre: FloatArray = field(repr=False)
    scale: FloatArray = field(repr=False)
    directions: FloatArray | None = field(repr=False)
    radius: float
    prototypes: FloatArray | None = field(default=None, repr=False)

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Contexts of raw rows, ``(n, dimension)``, each in the unit ball."""
        contexts = _in_ball(self._projected(rows) / self.radius)
        if self.prototypes is None:
            return contexts
        return np.asarray(self.prototypes[_assign(self.prototypes, contexts)])

    def _projected(self, rows: FloatArray) -> FloatArray:
        standard = (rows - self.centre) / self.scale
        if self.directions is None:
            return np.asarray(standard)
        projected = np.zeros((len(rows), self.directions.shape[1]))
        # One column after the other, not BLAS: its rounding of a row depends on the rows beside it.
        for column, direction in zip(standard.T, self.directions, strict=True):
            projected += column[:, None] * direction
        return projected


def fit_encoder(
    public_rows: FloatArray, *, dimensions: int | None = None, prototypes: int | None = None
) -> ContextEncoder:
    """Learn an encoder from public rows; nothing else may be handed in.

    ``dimensions`` keeps so many principal directions; ``prototypes`` rounds contexts to so many
    centres (k-means on the public rows), for policies that know a finite list of contexts only.
    """
    centre, scale = public_rows.mean(axis=0), public_rows.std(axis=0)
    scale = np.where(scale > 1e-12 * np.maximum(1.0, np.abs(centre)), scale, 1.0)
    directions = None
    if dimensions is not None:
        directions = _principal_directions((public_rows - centre) / scale, dimensions)
    bare = ContextEncoder(centre=centre, scale=scale, directions=directions, radius=1.0)
    radius = float(np.quantile(np.linalg.norm(bare._projected(public_rows), axis=1), _INSIDE))
    encoder = replace(bare, radius=radius if radius > 0.0 else 1.0)
    if prototypes is None:
        return encoder
    return replace(encoder, prototypes=_k_means(encoder(public_rows), prototypes))


def _principal_directions(standard: FloatArray, dimensions: int) -> FloatArray:
    """Leading right singular vectors, with the largest entry of each made positive."""
    most = min(standard.shape)
    _check_count("dimensions", dimensions, most, "the number of context columns and public rows")
    _, _, right = np.linalg.svd(standard, full_matrices=False)
    leading = right[:dimensions]
    largest = np.abs(leading).argmax(axis=1)
    signs = np.sign(leading[np.arange(dimensions), largest])
    return np.ascontiguousarray((leading * signs[:, None]).T)


def _in_ball(rows: FloatArray) -> FloatArray:
    """``c / max(1, |c|)``, a hair inside so that rounding cannot leave the ball."""
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.maximum(1.0, norms * (1.0 + 1e-12)))


def _assign(prototypes: FloatArray, rows: FloatArray) -> IntArray:
    distance = np.zeros((len(rows), len(prototypes)))
    for column, centre in zip(rows.T, prototypes.T, strict=True):
        distance += (column[:, None] - centre) ** 2
    return np.asarray(distance.argmin(axis=1))


def _k_means(rows: FloatArray, count: int) -> FloatArray:
    """Lloyd's iteration from distinct public rows; a centre that loses all rows is left out.

    The start is drawn with a fixed seed: the outcome is a function of the public rows.
    """
    distinct = np.unique(rows, axis=0)
    _check_count("prototypes", count, len(distinct), "the number of different public contexts")
    start = np.random.default_rng(TABLE_PROTOTYPES).choice(len(distinct), size=count, replace=False)
    centres = distinct[np.sort(start)]
    for _ in range(_LLOYD):
        nearest = _assign(centres, rows)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, column, minlength=count) for column in rows.T], 1)
        moved = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    # A centre that no public row is near would stand for users and not be in the public pool.
    held = np.unique(_assign(centres, rows))
    return np.unique(centres[held], axis=0)


def _check_count(name: str, value: int, most: int, limit: str) -> None:
    if not is_whole(value) or not 1 <= value <= most:
        raise ConfigurationError(
            f"{name} must be a whole number from 1 to {most} ({limit}), got {value!r}"
        )
