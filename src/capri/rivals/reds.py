"""REDS: random exploration with domain shrinking."""

from typing import Any, ClassVar, Literal, final

import numpy as np

from capri.arrays import FloatArray, IntArray
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
from capri.rivals.batched_exploration import nonadaptive_width
from capri.rivals.posterior import batch_posterior


@final
class REDS(Rival):
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

    name: ClassVar[str] = "reds"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Salgia, Vakili & Zhao 2024, arXiv 2310.15351"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 1_000_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        beta: Width = "practical",
        noise: float = 0.06,
        norm_bound: float = 1.0,
        failure: float = 0.1,
        first_epoch: int = 100,
        **setting: Any,
    ) -> None:
        """``noise`` and ``norm_bound`` are in units of the reward bound."""
        super().__init__(first_batch=whole("first_epoch", first_epoch), **setting)
        self._kernel = kernel
        self._ridge = positive("noise", noise) ** 2
        shape = self._pool.size, self._actions.count
        epochs = max(1, (self._horizon // first_epoch + 1).bit_length())
        self._width = nonadaptive_width(
            checked_width("beta", beta),
            positive("norm_bound", norm_bound),
            shape[0] * shape[1] * epochs / in_unit_interval("failure", failure),
        )
        self._active = ActiveSet(*shape)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return self._active.draw(context, self._draws.random(len(context)))

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        pair = context * self._actions.count + action
        pairs = self._pairs
        counts = np.bincount(pair, minlength=len(pairs)).astype(np.float64)
        sums = np.asarray(np.bincount(pair, reward / self._bound, len(pairs)), np.float64)
        mean, variance = batch_posterior(self._kernel, pairs, counts, sums, self._ridge)
        self._active.eliminate(mean, self._width * np.sqrt(variance))
        return 2 * len(context)
