"""Domain shrinking: explore without looking at rewards, then drop what is surely worse."""

from abc import ABC, abstractmethod
from math import ceil, log, sqrt
from typing import final

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.errors import ConfigurationError
from capri_lab.rivals.base import Chance, Positive, Whole, Width, chosen_width
from capri_lab.rivals.kernel.optimism import KernelRival
from capri_lab.rivals.kernel.posterior import GRID_PAIRS, GridPosterior, batch_posterior


@final
class ActiveSet:
    """A table ``(contexts, actions)`` of what no test has ruled out; never empty in any context.

    >>> active = ActiveSet(1, 3)
    >>> active.eliminate(np.array([0.0, 0.9, 1.0]), np.full(3, 0.1))
    >>> active.table
    array([[False,  True,  True]])
    """

    def __init__(self, contexts: int, actions: int) -> None:
        self.table: BoolArray = np.ones((contexts, actions), dtype=np.bool_)

    def eliminate(self, mean: FloatArray, width: FloatArray) -> None:
        """Drop what lies surely below the largest ``mean - width`` of its context."""
        shape = self.table.shape
        mean, width = mean.reshape(shape), width.reshape(shape)
        lower = np.where(self.table, mean - width, -np.inf).max(axis=1, keepdims=True)
        self.table &= mean + width >= lower

    def draw(self, context: IntArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """One active action per context, each equally likely, and that probability."""
        order = np.argsort(~self.table, axis=1, kind="stable")
        count = self.table.sum(axis=1)[context]
        place = np.minimum((uniform * count).astype(np.int64), count - 1)
        return order[context, place], 1.0 / count


class Shrinking(KernelRival, ABC):
    """Plays actions that are left; after a batch, its posterior alone says which remain so.

    Points are chosen without looking at rewards, so the theory's multiple of the standard deviation
    is ``B + sqrt(2 ln(union))`` for noise ``R = sqrt(lambda)`` (Vakili et al. 2021, arXiv
    2108.09262, Theorem 1), ``union`` being the number of statements that must hold over the failure
    rate; 1 in practice.
    """

    beta: Width = "practical"
    # In units of the reward bound, as is norm_bound.
    noise: Positive = 0.06
    norm_bound: Positive = 1.0
    failure: Chance = 0.1

    @abstractmethod
    def _plan(self) -> tuple[int, int]:
        """Length of the first batch, and how many batches there are."""

    @abstractmethod
    def _next_length(self, played: int) -> int:
        """Length of the batch after one of this length."""

    def _start(self) -> int:
        first, batches = self._plan()
        self._ridge = self.noise**2
        contexts, actions = self.contexts.size, self._actions.count
        union = contexts * actions * batches / self.failure
        theory = self.norm_bound + sqrt(2 * log(union))
        self._width = chosen_width(self.beta, practical=1.0, theory=theory)
        self._active = ActiveSet(contexts, actions)
        return first

    @final
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        pair = context * self._actions.count + action
        pairs = self._pairs
        counts = np.bincount(pair, minlength=len(pairs)).astype(np.float64)
        sums = np.asarray(np.bincount(pair, reward, len(pairs)), np.float64)
        mean, variance = batch_posterior(self.kernel, pairs, counts, sums, self._ridge)
        self._active.eliminate(mean, self._width * np.sqrt(variance))
        return self._next_length(len(context))


@final
class BatchedExploration(Shrinking):
    """Batched pure exploration of Li and Scarlett (2022), with contexts.

    Algorithm 1 of arXiv 2110.07788. Batch ``i`` (line 4) has ``N_i = ceil(sqrt(T N_{i-1}))``
    rounds, ``N_0 = 1``; within it (lines 5-7) the point of largest posterior variance among those
    left is played, here among the actions left in the context that came; then (lines 8-9) the
    posterior of this batch's points alone drops

        every x with mean(x) + beta sd(x) < max_{x'} mean(x') - beta sd(x').

    ``beta="theory"`` is their ``Psi + sqrt(2 ln(|X| B / delta))`` with ``B`` batches, for
    ``lambda = R^2``; "practical" is 1; a number multiplies the standard deviation.

    Limits: the paper has no contexts: there the domain shrinks as one, here in each context. Needs
    a matrix over all pairs (at most 5,000), as variances change after every play.
    """

    name = "batched-exploration"
    reference = "Li & Scarlett 2022, arXiv 2110.07788"

    def _plan(self) -> tuple[int, int]:
        count = self.contexts.size * self._actions.count
        if count > GRID_PAIRS:
            raise ConfigurationError(
                f"{self.name} needs at most {GRID_PAIRS} pairs, got {count}: "
                "use reds, which draws at random"
            )
        lengths = batch_lengths(self.horizon)
        self._lengths = iter(lengths[1:])
        return lengths[0], len(lengths)

    def _start(self) -> int:
        first = super()._start()
        self._prior = self.kernel(self._pairs, self._pairs)
        self._design = self._fresh()
        return first

    def _fresh(self) -> GridPosterior:
        return GridPosterior(self._prior.copy(), self._actions.count, self._ridge)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        actions = np.empty(len(context), dtype=np.int64)
        for place, where in enumerate(context.tolist()):
            _, variance = self._design.at(where)
            actions[place] = best = int(
                np.where(self._active.table[where], variance, -1.0).argmax()
            )
            self._design.observe(where, best, 0.0)  # the variance does not depend on the reward
        return actions, np.ones(len(context))

    def _next_length(self, played: int) -> int:
        self._design = self._fresh()
        return next(self._lengths, 1)


def batch_lengths(horizon: int) -> list[int]:
    """``N_i = ceil(sqrt(T N_{i-1}))`` until the horizon is reached.

    >>> batch_lengths(10_000)
    [100, 1000, 3163, 5625, 112]
    """
    lengths, last, played = [], 1, 0
    while played < horizon:
        last = min(ceil(sqrt(horizon * last)), horizon - played)
        lengths.append(last)
        played += last
    return lengths


@final
class REDS(Shrinking):
    """Random exploration with domain shrinking (Salgia, Vakili & Zhao 2024), with contexts.

    Algorithm 1 of arXiv 2310.15351. In epoch ``r`` (lines 3-5) points are drawn uniformly from
    what is left of the domain, here from the actions left in the context that came; (line 6) the
    posterior of this epoch's points alone; (line 7) what is surely worse than another is dropped:

        X_{r+1} = {x in X_r : mean(x) + beta sd(x) >= max_{x'} mean(x') - beta sd(x')}

    and the next epoch is twice as long. ``beta="theory"`` is the bound for points that do not
    depend on rewards, ``B + (R / sqrt(lambda)) sqrt(2 ln(|D| epochs / delta))``; "practical" is 1;
    a number multiplies the standard deviation. ``lambda = noise^2``.

    Limits: the paper has no contexts (CAPRI's exploration is its contextual, private descendant);
    data of earlier epochs are not used again.
    """

    name = "reds"
    reference = "Salgia, Vakili & Zhao 2024, arXiv 2310.15351"
    reach = 1_000_000

    first_epoch: Whole = 100

    def _plan(self) -> tuple[int, int]:
        return self.first_epoch, max(1, (self.horizon // self.first_epoch + 1).bit_length())

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return self._active.draw(context, self._draws.random(len(context)))

    def _next_length(self, played: int) -> int:
        return 2 * played
