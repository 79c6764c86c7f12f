"""From what a user did to an integer contribution (Alg. 1, line 13)."""

from functools import cached_property

import numpy as np

from capri.encoding import encode
from capri.plan import EpochPlan
from capri.problem import Problem
from capri.spaces import ContextPool, context_chunks
from capri.typing import FloatArray, IntArray

# Features of all pairs of a pool are kept up to this many pairs and numbers (128 MB), else computed
# when needed.
_TABLE_PAIRS, _TABLE_ELEMENTS = 1 << 16, 1 << 24
# Contributions encoded at once: bounds the temporary (rows x dimension) matrix.
_BATCH_ELEMENTS = 1 << 19


def features_and_baseline(plan: EpochPlan, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``psi(w)`` and what is subtracted from the reward, for each pair by itself."""
    baseline = plan.baseline
    values = np.zeros(len(pairs)) if baseline is None else baseline(pairs)
    return plan.features.whitened(pairs), values


def contributions(
    plan: EpochPlan,
    whitened: FloatArray,
    baseline: FloatArray,
    rewards: FloatArray,
    *,
    reward_bound: float,
) -> IntArray:
    """Each decision's contribution: reward clipped, last estimate subtracted, encoded."""
    return encode(
        whitened,
        np.minimum(np.maximum(rewards, -reward_bound), reward_bound) - baseline,
        value_bound=plan.value_bound,
        clip_norm=plan.clip_norm,
        grid=plan.grid,
        moment_share=plan.moment_share,
        tail_share=plan.tail_share,
        tail_bound=reward_bound,
    )


class Encoder:
    """Encodes the decisions of one epoch.

    A contribution depends on its own pair and reward only, to the last bit: features come either
    from a table over the public pool or from products made one row at a time.
    """

    def __init__(self, plan: EpochPlan, problem: Problem) -> None:
        self._plan = plan
        self._problem = problem

    def total(
        self,
        contexts: FloatArray,
        pool_index: IntArray,
        action_index: IntArray,
        rewards: FloatArray,
    ) -> IntArray:
        """Sum of the contributions of these decisions."""
        if len(rewards) == 1:  # the usual call of a service
            return np.asarray(self._units(contexts, pool_index, action_index, rewards)[0])
        total = np.zeros(self._plan.dimension, dtype=np.int64)
        step = max(1, _BATCH_ELEMENTS // self._plan.dimension)
        for start in range(0, len(rewards), step):
            part = slice(start, start + step)
            units = self._units(contexts[part], pool_index[part], action_index[part], rewards[part])
            total += units.sum(axis=0)
        return total

    def _units(
        self,
        contexts: FloatArray,
        pool_index: IntArray,
        action_index: IntArray,
        rewards: FloatArray,
    ) -> IntArray:
        """Each decision's contribution."""
        whitened, baseline = self._features(contexts, pool_index, action_index)
        return contributions(
            self._plan, whitened, baseline, rewards, reward_bound=self._problem.reward_bound
        )

    def _features(
        self, contexts: FloatArray, pool_index: IntArray, action_index: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Whitened features and baseline of each decision."""
        if len(pool_index) == 1 and (place := int(pool_index[0])) >= 0 and self._table is not None:
            row = place * self._problem.actions.count + int(action_index[0])
            return self._table[0][row : row + 1], self._table[1][row : row + 1]
        outside = pool_index < 0
        if outside.all() or self._table is None:
            return self._compute(self._problem.actions.chosen(contexts, action_index))
        rows = pool_index * self._problem.actions.count + action_index
        whitened, baseline = self._table[0][rows], self._table[1][rows]
        if outside.any():
            pairs = self._problem.actions.chosen(contexts[outside], action_index[outside])
            whitened[outside], baseline[outside] = self._compute(pairs)
        return whitened, baseline

    def _compute(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        return features_and_baseline(self._plan, pairs)

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray] | None:
        """Features and baselines of all pairs of a small pool: public, hence free to keep."""
        pool, actions = self._problem.contexts, self._problem.actions
        if not isinstance(pool, ContextPool):
            return None
        rows = pool.size * actions.count
        if rows > _TABLE_PAIRS or rows * self._plan.features.rank > _TABLE_ELEMENTS:
            return None
        whitened, baseline = np.empty((rows, self._plan.features.rank)), np.zeros(rows)
        for part in context_chunks(pool.size, actions.count):
            pairs = actions.pairs(pool.rows[part])
            block = slice(part.start * actions.count, part.stop * actions.count)
            flat = pairs.reshape(-1, pairs.shape[-1])
            whitened[block] = self._plan.features.whitened_block(flat)
            if self._plan.baseline is not None:
                baseline[block] = self._plan.baseline(flat)
        return whitened, baseline
