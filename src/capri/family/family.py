"""The candidates as priors on one set of coefficients.

The family for a problem, from public rows alone: median distances, ranges, correlations.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.family.arms import ArmBasis
from capri.family.basis import ProductBasis
from capri.family.factor import (
    Candidates,
    Factor,
    Scores,
    make_factor,
    range_scores,
    standard_scores,
)
from capri.features import spectral_basis
from capri.kernels import Columns, Kernel, Linear, Matern
from capri.spaces import Actions, Contexts, FixedActions

# Shares of E f^2 that are expected of the four kinds of effects.
CONSTANT, ACTION, CONTEXT, INTERACTION = 0.3, 0.25, 0.15, 0.6


@dataclass(frozen=True)
class Part:
    """One candidate: which kernel on contexts and on actions, -1 for the constant."""

    context: int
    action: int
    share: float
    name: str


@dataclass(frozen=True, eq=False)
class Family:
    """A basis of products, and candidates for both of its sides.

    ``theta ~ N(0, sum_k t_k C_k (x) A_k)``: the prior that the evidence weighs.
    """

    basis: ProductBasis
    contexts: Candidates
    actions: Candidates

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Constant, main effects of actions and of contexts, and every interaction."""
        contexts, actions = _numbered(self.contexts), _numbered(self.actions)
        found = [Part(-1, -1, CONSTANT, "constant")]
        found += [Part(-1, j, ACTION * s, f"action: {n}") for j, s, n in actions]
        found += [Part(i, -1, CONTEXT * s, f"context: {n}") for i, s, n in contexts]
        found += [
            Part(i, j, INTERACTION * s * t, f"interaction: {n}, {m}")
            for i, s, n in contexts
            for j, t, m in actions
        ]
        return tuple(found)

    def covariances(self) -> FloatArray:
        """``C_k (x) A_k`` on the chosen products, ``(parts, rank, rank)``."""
        contexts, actions = self.contexts.and_constant, self.actions.and_constant
        left, right = self.basis.left, self.basis.right
        return np.array(
            [
                contexts[part.context][np.ix_(left, left)]
                * actions[part.action][np.ix_(right, right)]
                for part in self.parts
            ]
        )


def _numbered(candidates: Candidates) -> list[tuple[int, float, str]]:
    pairs = zip(candidates.shares, candidates.names, strict=True)
    return [(number, float(share), name) for number, (share, name) in enumerate(pairs)]


# Public rows that features are built on, and principal directions that are kept of more columns.
_SAMPLE, _ROWS, _DIRECTIONS = 1500, 700, 12
# Lengthscales: of contexts in median distances, of actions in shares of their range.
_CONTEXT_SCALES, _ACTION_SCALES = (0.3, 0.6, 1.2), (0.15, 0.3, 0.6)
# Prior shares of the candidates of contexts: linear, then each scale.
_CONTEXT_SHARES = (0.4, 0.2, 0.25, 0.15)
# The spectrum of a candidate is raised to this: functions are smoother than sample paths.
_POWER = 1.5
_CONTEXT_RANK = 120
# Products that stand for less than this share of the prior variance are left out.
_NEGLIGIBLE = 1e-6

_Side = tuple[Factor, Candidates]


def family_of(
    contexts: Contexts, actions: Actions, *, max_rank: int, generator: np.random.Generator
) -> Family:
    """Features, products and candidates for these public contexts and actions."""
    rows, weights = _public_rows(contexts, generator)
    own, brought = actions.parts(rows)
    context, smooth = _context_factor(own, weights, generator, _CONTEXT_RANK)
    if not isinstance(actions, FixedActions):
        action, candidates = _action_factor(_some(brought, generator), max_rank)
        table = None
    else:
        make = _unrelated_factor if actions.unrelated else _action_factor
        action, candidates = make(actions.rows, max_rank)
        table = action(actions.rows)
    left, right = _most_variance(smooth, candidates, max_rank)
    return Family(ProductBasis(context, action, left, right, table), smooth, candidates)


def arms_of(
    contexts: Contexts, actions: FixedActions, *, width: int, generator: np.random.Generator
) -> tuple[ArmBasis, Candidates]:
    """Features for unrelated arms, ``width`` an arm, and the candidates for each of them."""
    rows, weights = _public_rows(contexts, generator)
    context, smooth = _context_factor(rows, weights, generator, width - 1)
    offered = actions.rows.argmax(axis=1).astype(np.int64)
    return ArmBasis(context, offered, actions.dimension), smooth


def _public_rows(
    contexts: Contexts, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Rows that stand for the law of the contexts, and their weights: all of a pool."""
    return contexts.support(generator, _SAMPLE)


def _sampled(rows: FloatArray, weights: FloatArray, generator: np.random.Generator) -> FloatArray:
    """At most so many equally likely rows."""
    if len(rows) > _SAMPLE or np.ptp(weights) > 1e-12:
        return rows[generator.choice(len(rows), size=_SAMPLE, p=weights)]
    return rows


def _some(rows: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Some of the actions that contexts bring along."""
    flat = rows.reshape(-1, rows.shape[-1])
    if len(flat) <= _ROWS:
        return flat
    return flat[generator.choice(len(flat), size=_ROWS, replace=False)]


def _context_factor(
    rows: FloatArray, weights: FloatArray, generator: np.random.Generator, most: int
) -> _Side:
    if rows.shape[1] == 0:
        return _constant_factor(0)
    scores = standard_scores(rows, weights, _DIRECTIONS)
    # Scales are those of all public rows: a rare category must not be lost.
    rows = _sampled(rows, weights, generator)
    sample = rows[generator.permutation(len(rows))[:_ROWS]]
    mapped = scores(sample)
    if np.ptp(mapped, axis=0).max() == 0:
        return _constant_factor(rows.shape[1])
    near, all_columns = _parts_of(rows.shape[1], mapped.shape[1])
    unit = median_distance(mapped[:, list(near)])
    own = mapped[:, list(all_columns)]
    radius = max(float(((own - own.mean(axis=0)) ** 2).sum(axis=1).mean()), 1e-12)
    linear = Linear(variance=1 / radius, bias=1.0)
    smooth = [Matern(nu=2.5, lengthscale=share * unit) for share in _CONTEXT_SCALES]
    candidates: list[Kernel] = [linear, *smooth]
    if near != all_columns:
        candidates = [Columns(linear, all_columns), *(Columns(each, near) for each in smooth)]
    total = candidates[0]
    for kernel in candidates[1:]:
        total = total + kernel
    rank = min(most, len(sample))
    basis, _ = spectral_basis(total, mapped, tolerance=1e-3, max_rank=rank)
    return make_factor(
        scores,
        total,
        sample,
        (basis.pivots, basis.transform),
        candidates,
        shares=_CONTEXT_SHARES,
        names=(
            "linear",
            *(f"smooth over {share:g} of a typical distance" for share in _CONTEXT_SCALES),
        ),
        power=_POWER,
    )


def _parts_of(columns: int, scores: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which scores distances are taken in, and which are the columns themselves."""
    directions = scores - columns
    every = tuple(range(directions, scores))
    return (tuple(range(directions)) if directions else every), every


def _action_factor(rows: FloatArray, max_rank: int) -> _Side:
    """At most half of all products for main effects: in many columns every action is by itself,
    and the best fixed one must be among what can be believed.
    """
    scores = range_scores(rows)
    mapped = scores(rows)
    extent = float(np.linalg.norm(np.ptp(mapped, axis=0)))
    if extent == 0:
        return _constant_factor(rows.shape[1])
    candidates = [Matern(nu=2.5, lengthscale=share * extent) for share in _ACTION_SCALES]
    total = candidates[0] + candidates[-1]
    rank = min(max(max_rank // 2, 1), len(rows))
    basis, _ = spectral_basis(total, mapped, tolerance=1e-4, max_rank=rank)
    return make_factor(
        scores,
        total,
        rows,
        (basis.pivots, basis.transform),
        candidates,
        shares=(1.0,) * len(candidates),
        names=[f"smooth over {share:g} of the range" for share in _ACTION_SCALES],
        power=_POWER,
    )


def _unrelated_factor(rows: FloatArray, _: int) -> _Side:
    """Orthonormal contrasts of indicators."""
    columns = rows.shape[1]
    scores = Scores(np.zeros(columns), np.ones(columns))
    return make_factor(
        scores,
        Linear(),
        rows,
        (np.eye(columns), np.eye(columns)),
        [Linear()],
        shares=(1.0,),
        names=("unrelated",),
        power=_POWER,
    )


def _constant_factor(columns: int) -> _Side:
    """Rows that are all alike say nothing."""
    scores = Scores(np.zeros(columns), np.zeros(columns))
    nothing = np.zeros((0, 0))
    factor = Factor(scores, Linear(), np.zeros((0, columns)), nothing, np.zeros(0))
    return factor, Candidates(np.zeros((0, 1, 1)), np.zeros(0), ())


def _most_variance(context: Candidates, action: Candidates, most: int) -> tuple[IntArray, IntArray]:
    """Of all products, those of largest variance under the prior."""
    contexts = np.einsum("kii->ki", context.and_constant)
    actions = np.einsum("kii->ki", action.and_constant)
    smooth, shape = context.shares @ contexts[:-1], action.shares @ actions[:-1]
    variance = (
        CONSTANT * np.outer(contexts[-1], actions[-1])
        + ACTION * np.outer(contexts[-1], shape)
        + CONTEXT * np.outer(smooth, actions[-1])
        + INTERACTION * np.outer(smooth, shape)
    ).ravel()
    chosen = np.argsort(-variance, kind="stable")[:most]
    chosen = chosen[variance[chosen] > _NEGLIGIBLE * variance.sum()]
    left, right = np.divmod(chosen, actions.shape[1])
    return left.astype(np.int64), right.astype(np.int64)


def median_distance(rows: FloatArray) -> float:
    """Median Euclidean distance of different rows; 1 where there are none.

    >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
    2.0
    """
    sample = rows[:: -(-len(rows) // 500)]
    squares = ((sample[:, None, :] - sample[None, :, :]) ** 2).sum(axis=2)
    distances = np.sqrt(squares[np.triu_indices(len(sample), 1)])
    distances = distances[distances > 0]
    return float(np.median(distances)) if len(distances) else 1.0
