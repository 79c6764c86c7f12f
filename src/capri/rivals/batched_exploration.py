"""Batched pure exploration: look where the variance is largest, drop what is surely worse."""

from math import ceil, log, sqrt
from typing import Any, ClassVar, Literal, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.kernels import Kernel
from capri.rivals.active_set import ActiveSet
from capri.rivals.base import (
    NOTHING,
    Promise,
    Rival,
    Width,
    checked_width,
    in_unit_interval,
    positive,
    whole,
)
from capri.rivals.posterior import GRID_PAIRS, GridPosterior, batch_posterior


def nonadaptive_width(beta: Width, norm: float, union: float) -> float:
    """Multiple of the standard deviation, for points that were chosen without looking at rewards.

    ``B + sqrt(2 ln(union))`` for noise ``R = sqrt(lambda)`` (Vakili et al. 2021, arXiv 2108.09262,
    Theorem 1), ``union`` being the number of statements that must hold over the failure rate;
    1 in practice.
    """
    if isinstance(beta, float):
        return beta
    return norm + sqrt(2 * log(union)) if beta == "theory" else 1.0


@final
class BatchedExploration(Rival):
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

    name: ClassVar[str] = "batched-exploration"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Li & Scarlett 2022, arXiv 2110.07788"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 100_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        beta: Width = "practical",
        noise: float = 0.06,
        norm_bound: float = 1.0,
        failure: float = 0.1,
        **setting: Any,
    ) -> None:
        """``noise`` and ``norm_bound`` are in units of the reward bound."""
        lengths = batch_lengths(whole("horizon", setting["horizon"]))
        super().__init__(first_batch=lengths[0], **setting)
        self._lengths = lengths
        self._kernel = kernel
        self._ridge = positive("noise", noise) ** 2
        shape = self._pool.size, self._actions.count
        if shape[0] * shape[1] > GRID_PAIRS:
            raise ConfigurationError(
                f"{self.name} needs at most {GRID_PAIRS} pairs, got {shape[0] * shape[1]}: "
                "use reds, which draws at random"
            )
        self._width = nonadaptive_width(
            checked_width("beta", beta),
            positive("norm_bound", norm_bound),
            shape[0] * shape[1] * len(lengths) / in_unit_interval("failure", failure),
        )
        self._active = ActiveSet(*shape)
        pairs = self._pairs
        self._prior = kernel(pairs, pairs)
        self._design = GridPosterior(self._prior.copy(), shape[1], self._ridge)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        actions = np.empty(len(context), dtype=np.int64)
        for place, where in enumerate(context.tolist()):
            _, variance = self._design.at(where)
            actions[place] = best = int(
                np.where(self._active.table[where], variance, -1.0).argmax()
            )
            self._design.observe(where, best, 0.0)  # the variance does not depend on the reward
        return actions, np.ones(len(context))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        pair = context * self._actions.count + action
        pairs = self._pairs
        counts = np.bincount(pair, minlength=len(pairs)).astype(np.float64)
        sums = np.asarray(np.bincount(pair, reward / self._bound, len(pairs)), np.float64)
        mean, variance = batch_posterior(self._kernel, pairs, counts, sums, self._ridge)
        self._active.eliminate(mean, self._width * np.sqrt(variance))
        self._design = GridPosterior(self._prior.copy(), self._actions.count, self._ridge)
        return self._lengths[min(self._batches, len(self._lengths) - 1)]


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
