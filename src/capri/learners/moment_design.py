"""Which second moments an epoch's messages carry, and what a law of contexts expects of them.

Of ``psi psi^T`` those combinations are sent that a change of the law would move most: the first
right singular vectors of the designs of :mod:`capri.learners.context_law`. They are chosen with the
plan, hence public, and are free whatever they are (:mod:`capri.privacy.projection`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.learners.context_law import ContextLaw, Moments
from capri.learners.segments import PlannedSegment, SegmentPlay
from capri.privacy.products import ProductLayout
from capri.privacy.projection import IntegerProjection, half_products, integer_projection

# Combinations of second moments that are sent at most, and coordinates of psi that enter them.
_COMBINATIONS, _COORDINATES = 24, 24
# Combinations that a law could move by less than this share of the first are left out.
_NEGLIGIBLE = 1e-6
# Beside second moments, measuring the size of residuals costs nothing up to 0.7.
_FREE_MOMENT_SHARE = 0.7
# Pairs whose products are held at once.
_PAIRS_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Some coordinates of ``psi`` at pairs, by rows of contexts, and the chance of each there."""

    psi: FloatArray
    row: IntArray
    chance: FloatArray


def loudest(sizes: FloatArray) -> IntArray:
    """Coordinates of largest mean square, in their order."""
    return np.sort(np.argsort(-sizes, kind="stable")[:_COORDINATES])


def projection_for(
    played: SegmentPlay, own: Coordinates, chosen: IntArray, rank: int, law: ContextLaw
) -> IntegerProjection | None:
    """The combinations to send of ``rank`` coordinates, those that were chosen among them.

    None where no law would move any.
    """
    count = len(played.contexts) + len(law.elsewhere)
    weights = np.full(len(chosen) * (len(chosen) + 1) // 2, sqrt(2))
    weights[: len(chosen)] = 1.0  # in terms of half-vectors, whose norm is Frobenius'
    within, beside = law.directions(played.contexts, played.weights)
    slopes = beside if beside.size else within
    designs = slopes.T @ (_combined(own, played.weights, None, count)[0] * weights)
    if not designs.size:
        return None
    _, sizes, rows = np.linalg.svd(designs, full_matrices=False)
    rows = rows[: int((sizes > max(_NEGLIGIBLE * sizes[0], 1e-12)).sum())][:_COMBINATIONS]
    return integer_projection(rows, rank, among=chosen) if len(rows) else None


def _combined(
    own: Coordinates, weights: FloatArray, combine: FloatArray | None, count: int
) -> tuple[FloatArray, FloatArray]:
    """``sum_x p(x|c) q`` for each row, and ``E[q q^T]`` under the pool: some pairs at a time.

    ``q`` are the products of ``psi``, or combinations of them; only of these is the second made.
    """
    psi = own.psi
    width = psi.shape[1] * (psi.shape[1] + 1) // 2 if combine is None else len(combine)
    pool = np.append(weights, np.zeros(count - len(weights)))
    rows, square = np.zeros((count, width)), np.zeros((width, width) if combine is not None else 0)
    for start in range(0, len(psi), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        q, row = half_products(psi[part]), own.row[part]
        if combine is not None:
            q = q @ combine.T
        played = q * own.chance[part, None]
        first = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
        rows[row[first]] += np.add.reduceat(played, first, axis=0)
        if combine is not None:
            square += (played * pool[row][:, None]).T @ q
    return rows, square


def layout_for(
    problem: Problem,
    rank: int,
    length: int,
    tail_share: float,
    projection: IntegerProjection | None,
) -> ProductLayout:
    """The message of products, with a form for missing rewards where they are measured."""
    layout = ProductLayout(
        rank=rank,
        missing=problem.rewards.measured,
        second_moments=projection is not None,
        projection=projection,
        tail_share=tail_share,
        moment_share=_FREE_MOMENT_SHARE,
    )
    if layout.missing:
        layout = replace(layout, count_share=layout.largest_count_share)
    return layout.fitted(length=4 * length, budget=problem.budget, composition=problem.composition)


def moments_of(
    release: Release,
    segments: Sequence[PlannedSegment],
    played: Sequence[SegmentPlay],
    law: ContextLaw,
    coordinates: Callable[[SegmentPlay, IntArray], Coordinates],
) -> Moments | None:
    """What the moments of a release say of the law; None where it carries none.

    ``coordinates``: those of ``psi`` at what a segment played. The sampling noise is that of
    independent users of the pool: ``n (E[q q^T] - E[q] E[q]^T)``. Once actions were replaced, what
    was played beside the pool is not known any more, and nothing is said.
    """
    layout = release.plan.asked
    if "projected" not in layout.blocks or any(each.moved for each in segments):
        return None
    assert isinstance(layout, ProductLayout)
    projection, seen = layout.projection, layout.part(release.vector, "projected")
    assert projection is not None
    combine = projection.compact.astype(np.float64)
    size = len(combine)
    base, covariance = np.zeros(size), layout.deviation("projected") ** 2 * np.eye(size)
    designs = [np.zeros((len(score), size)) for score in law.scores]
    for pairs, decisions in zip(played, release.counts, strict=True):
        if decisions == 0:
            continue
        own, weights = coordinates(pairs, projection.coordinates), pairs.weights
        pool = len(weights)
        rows, square = _combined(own, weights, combine, pool + len(law.elsewhere))
        mean = weights @ rows[:pool]
        base += decisions * mean
        covariance += decisions * (square - np.outer(mean, mean))
        if pairs.sampled:  # rows that stand for more: their mean is off by that of a sample
            away = rows[:pool] - mean
            covariance += decisions**2 / pool * (away * weights[:, None]).T @ away
        for place, slopes in enumerate(law.directions(pairs.contexts, weights)):
            designs[place] += decisions * (slopes.T @ rows)
    # Without a budget there is no noise, and what nobody plays has no variance.
    covariance += 1e-9 * float(np.trace(covariance)) / size * np.eye(size)
    return Moments(seen, base, tuple(designs), covariance)
