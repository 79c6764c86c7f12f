"""From what a user did to an integer contribution (Alg. 1, line 13).

Contributions live on an integer grid, so sums are exact, independent of order and machine, and the
noise at the gate is integer too. A floating-point sum with floating-point noise is not private.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import isfinite, sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.scale import LARGEST_EXCESS, RewardScale
from capri.privacy.grid import Grid, within_norm
from capri.privacy.message import MessageGrid, RoundedRows
from capri.spaces import ContextPool, context_chunks

# Features of all pairs of a pool are kept up to this many pairs and numbers (128 MB), else computed
# when needed.
_TABLE_PAIRS, _TABLE_ELEMENTS = 1 << 16, 1 << 24
# Contributions encoded at once: bounds the temporary (rows x dimension) matrix.
_BATCH_ELEMENTS = 1 << 19


def encode(
    whitened: FloatArray,
    values: FloatArray,
    *,
    value_bound: float,
    clip_norm: float,
    grid: Grid,
    moment_share: float = 0.0,
    tail_share: float = 0.0,
    tail_bound: float = 1.0,
) -> IntArray:
    """Contributions ``q = rint(y psi / step)``, ``|y| <= B``, ``|psi| <= C`` (Alg. 1, line 13).

    Both bounds are enforced by clipping and the result is checked in integers, so the sensitivity
    holds for any input: a context outside the pool, a reward beyond its bound.

    With ``t = clip(y / B, -1, 1)``, ``e`` the excess ``|y| - B|t|`` clipped to and divided by its
    bound, and shares ``s`` (moment) and ``q`` (tail), the contribution is

        B C [ sqrt(1 - s^2 - q^2) t psi / C,  s (2 t^2 - 1),  q (2 e - 1) ]

    of norm at most ``B C``: ``(1 - s^2 - q^2) t^2 + s^2 (2 t^2 - 1)^2 + q^2 (2 e - 1)^2`` is convex
    in ``t^2`` and in ``e``, hence largest at the ends of ``[0, 1]``, where it is at most 1. A share
    of 0 leaves its coordinate out.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
    if not isfinite(norms.sum()):  # a feature that overflowed tells nothing: leave it out
        whitened = np.where(np.isfinite(norms)[:, None], whitened, 0.0)
        norms = np.sqrt(np.einsum("ij,ij->i", whitened, whitened))
    clipped = np.minimum(np.maximum(values, -value_bound), value_bound)
    main_share = sqrt(1 - moment_share**2 - tail_share**2)
    # y psi / step with psi shrunk to the clip norm where it is longer.
    factor = clipped * (main_share * clip_norm / grid.step) / np.maximum(norms, clip_norm)
    rank = whitened.shape[1]
    scaled = np.empty((len(values), rank + (moment_share > 0) + (tail_share > 0)))
    np.multiply(whitened, factor[:, None], out=scaled[:, :rank])
    unit = value_bound * clip_norm / grid.step
    if moment_share:
        scaled[:, rank] = moment_share * unit * (2 * (clipped / value_bound) ** 2 - 1)
    if tail_share:
        excess = np.minimum(np.abs(values) - np.abs(clipped), tail_bound) / tail_bound
        scaled[:, -1] = tail_share * unit * (2 * excess - 1)
    return within_norm(np.rint(scaled, out=scaled), grid.norm_limit)


def features_and_baseline(
    plan: EpochPlan, segment: Segment, pairs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """``psi(w)`` and what is subtracted from the reward, for each pair by itself."""
    with np.errstate(all="ignore"):  # a warning for some users only would tell of them
        values = np.zeros(len(pairs)) if segment.baseline is None else segment.baseline(pairs)
        return plan.features.whitened(pairs), values


def contributions(
    plan: EpochPlan,
    segment: Segment,
    whitened: FloatArray,
    baseline: FloatArray,
    rewards: FloatArray,
    *,
    scale: RewardScale,
) -> IntArray:
    """Each decision's contribution: reward clipped, last estimate subtracted, encoded.

    A segment with a bound ``B_s`` of its own sends ``t = z / B_s``: in units of the epoch's grid
    that is a step of ``B_s / V`` times its own.
    """
    if not scale.symmetric:
        rewards = scale.centred(rewards)
    residuals = np.minimum(np.maximum(rewards, -scale.bound), scale.bound) - baseline
    if plan.message is not None:
        return plan.message.messages(
            _rounded(plan.message, plan, segment, whitened, residuals, scale.bound)
        )
    return encode(
        whitened,
        residuals,
        value_bound=segment.value_bound,
        clip_norm=plan.clip_norm,
        grid=replace(plan.grid, step=plan.grid.step * (segment.value_bound / plan.value_bound)),
        moment_share=plan.moment_share,
        tail_share=plan.tail_share,
        tail_bound=min(scale.bound, LARGEST_EXCESS * segment.value_bound),
    )


def _rounded(
    message: MessageGrid,
    plan: EpochPlan,
    segment: Segment,
    whitened: FloatArray,
    residuals: FloatArray,
    reward_bound: float,
) -> RoundedRows:
    """Rows of the message with a form for missing rewards, whose residual is NaN."""
    return message.rounded(
        whitened,
        residuals,
        clip_norm=plan.clip_norm,
        value_bound=segment.value_bound,
        tail_bound=min(reward_bound, LARGEST_EXCESS * segment.value_bound),
    )


class Encoder:
    """Encodes the decisions of one epoch.

    A contribution depends on its own pair and reward only, to the last bit: features come either
    from a table over the public pool or from products made one row at a time.
    """

    def __init__(self, plan: EpochPlan, problem: Problem) -> None:
        self._plan = plan
        self._problem = problem
        self._dimension = plan.dimension
        self._baselines: dict[int, FloatArray] = {}

    def total(
        self,
        segment: Segment,
        pairs: FloatArray,
        pool_index: IntArray,
        action_index: IntArray,
        rewards: FloatArray,
    ) -> IntArray:
        """Sum of the contributions of these decisions of a segment; a missing reward is NaN.

        ``pairs`` are what was played, one row each; ``pool_index`` is -1 outside of a pool.
        """
        total = np.zeros(self._dimension, dtype=np.int64)
        step = max(1, _BATCH_ELEMENTS // self._dimension)
        for start in range(0, len(rewards), step):
            part = slice(start, start + step)
            with np.errstate(all="ignore"):  # whatever the caller set, no value may raise
                features = self._features(
                    segment, pairs[part], pool_index[part], action_index[part]
                )
                units = self._units(segment, *features, rewards[part])
            if len(rewards) == 1:  # the usual call of a service
                return units
            total += units
        return total

    def _units(
        self, segment: Segment, whitened: FloatArray, baseline: FloatArray, rewards: FloatArray
    ) -> IntArray:
        """The sum of some contributions."""
        plan, scale = self._plan, self._problem.scale
        if plan.message is not None:
            residuals = scale.learnt(rewards) - baseline
            rows = _rounded(plan.message, plan, segment, whitened, residuals, scale.bound)
            return plan.message.total(rows)
        units = contributions(plan, segment, whitened, baseline, rewards, scale=scale)
        return units[0] if len(units) == 1 else np.asarray(units.sum(axis=0))

    def _features(
        self, segment: Segment, pairs: FloatArray, pool_index: IntArray, action_index: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Whitened features and baseline of each decision."""
        table = self._table
        if len(pool_index) == 1 and (place := int(pool_index[0])) >= 0 and table is not None:
            row = place * self._problem.actions.count + int(action_index[0])
            return table[row : row + 1], self._baseline(segment)[row : row + 1]
        outside = pool_index < 0
        if outside.all() or table is None:
            return features_and_baseline(self._plan, segment, pairs)
        rows = pool_index * self._problem.actions.count + action_index
        whitened, baseline = table[rows], self._baseline(segment)[rows]
        if outside.any():
            whitened[outside], baseline[outside] = features_and_baseline(
                self._plan, segment, pairs[outside]
            )
        return whitened, baseline

    @cached_property
    def _table(self) -> FloatArray | None:
        """Features of all pairs of a small pool: public, hence free to keep."""
        pool, actions = self._problem.contexts, self._problem.actions
        if not isinstance(pool, ContextPool):
            return None
        rows = pool.size * actions.count
        if rows > _TABLE_PAIRS or rows * self._plan.features.rank > _TABLE_ELEMENTS:
            return None
        whitened = np.empty((rows, self._plan.features.rank))
        for block, flat in self._pool_pairs(pool):
            whitened[block] = self._plan.features.whitened_block(flat)
        return whitened

    def _baseline(self, segment: Segment) -> FloatArray:
        """What is subtracted at all pairs of a small pool, once a segment."""
        found = self._baselines.get(segment.number)
        if found is None:
            pool = self._problem.contexts
            assert isinstance(pool, ContextPool)
            found = np.zeros(pool.size * self._problem.actions.count)
            if segment.baseline is not None:
                for block, flat in self._pool_pairs(pool):
                    found[block] = segment.baseline(flat)
            self._baselines[segment.number] = found
        return found

    def _pool_pairs(self, pool: ContextPool) -> Iterator[tuple[slice, FloatArray]]:
        """All pairs of a pool in chunks, each with its place in a table."""
        count = self._problem.actions.count
        for part in context_chunks(pool.size, count):
            pairs = self._problem.actions.pairs(pool.rows[part])
            yield slice(part.start * count, part.stop * count), pairs.reshape(-1, pairs.shape[-1])
