"""From what a user did to an integer contribution (Alg. 1, line 13).

Contributions live on an integer grid, so sums are exact, independent of order and machine, and the
noise at the gate is integer too. A floating-point sum with floating-point noise is not private.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardScale, tail_bound
from capri.spaces import ContextPool, context_chunks

# Features of all pairs of a pool are kept up to this many pairs and numbers (128 MB), else computed
# when needed.
_TABLE_PAIRS, _TABLE_ELEMENTS = 1 << 16, 1 << 24
# Contributions encoded at once: bounds the temporary (rows x dimension) matrix.
_BATCH_ELEMENTS = 1 << 19


def features_and_baseline(
    plan: EpochPlan, segment: Segment, pairs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What messages are made of and what is subtracted from the reward, each pair by itself."""
    with np.errstate(all="ignore"):  # a warning for some users only would tell of them
        values = np.zeros(len(pairs)) if segment.baseline is None else segment.baseline(pairs)
        return plan.features.sent(pairs), values


def contributions(
    plan: EpochPlan,
    segment: Segment,
    whitened: FloatArray,
    baseline: FloatArray,
    rewards: FloatArray,
    *,
    scale: RewardScale,
) -> IntArray:
    """Each decision's contribution: reward clipped, last estimate subtracted, encoded."""
    residuals = _residuals(rewards, baseline, scale)
    return plan.layout.messages(whitened, residuals, **_bounds(plan, segment, scale))


def _residuals(rewards: FloatArray, baseline: FloatArray, scale: RewardScale) -> FloatArray:
    """What is encoded: ``y - baseline``, with ``y`` within ``[-B, B]``; a missing one is NaN."""
    if not scale.symmetric:
        rewards = scale.centred(rewards)
    return np.asarray(np.minimum(np.maximum(rewards, -scale.bound), scale.bound) - baseline)


def _bounds(plan: EpochPlan, segment: Segment, scale: RewardScale) -> dict[str, float]:
    """What features and residuals of a segment are clipped at."""
    return {
        "clip_norm": plan.clip_norm,
        "value_bound": segment.value_bound,
        "tail_bound": tail_bound(scale.bound, segment.value_bound),
    }


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
        self._bounds: dict[int, dict[str, float]] = {}

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
        scale, bounds = self._problem.scale, self._bounds.get(segment.number)
        if bounds is None:
            bounds = self._bounds[segment.number] = _bounds(self._plan, segment, scale)
        total = np.zeros(self._dimension, dtype=np.int64)
        step = max(1, _BATCH_ELEMENTS // self._dimension)
        for start in range(0, len(rewards), step):
            part = slice(start, start + step)
            with np.errstate(all="ignore"):  # whatever the caller set, no value may raise
                whitened, baseline = self._features(
                    segment, pairs[part], pool_index[part], action_index[part]
                )
                residuals = _residuals(rewards[part], baseline, scale)
                units = self._plan.layout.total(whitened, residuals, **bounds)
            if len(rewards) == 1:  # the usual call of a service
                return units
            total += units
        return total

    def _features(
        self, segment: Segment, pairs: FloatArray, pool_index: IntArray, action_index: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Whitened features, or cells, and the baseline of each decision."""
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
        """Features or cells of all pairs of a small pool: public, hence free to keep."""
        pool, actions = self._problem.contexts, self._problem.actions
        if not isinstance(pool, ContextPool):
            return None
        rows = pool.size * actions.count
        if rows > _TABLE_PAIRS or rows * self._plan.features.rank > _TABLE_ELEMENTS:
            return None
        parts = [self._plan.features.sent_block(flat) for _, flat in self._pool_pairs(pool)]
        return np.concatenate(parts)

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
