"""GP-UCB: optimism under a Gaussian process."""

from math import log, pi, sqrt
from typing import Any, ClassVar, Literal, final

from capri.arrays import FloatArray, IntArray
from capri.kernels import Kernel
from capri.rivals.base import (
    NOTHING,
    Promise,
    Rival,
    Width,
    checked_width,
    in_unit_interval,
    positive,
)
from capri.rivals.posterior import kernel_posterior, optimistic


@final
class GPUCB(Rival):
    """GP-UCB of Srinivas, Krause, Kakade and Seeger; contexts as in Krause and Ong (2011).

    Algorithm 1 of arXiv 0912.3995: line 2 is :meth:`_choose`, lines 3-4 :meth:`_learn`.

        x_t = argmax_x mean_{t-1}(x) + sqrt(beta_t) sd_{t-1}(x)

    ``beta="theory"`` is Theorem 1 for a finite domain ``D``,
    ``beta_t = 2 ln(|D| t^2 pi^2 / (6 delta))``; "practical" divides it by 60 (their Section 6
    divides by 5, which loses three times as much on the functions here); a number is
    ``sqrt(beta)`` at all times. The posterior is exact up to 5,000 pairs. Rewards
    are divided by the bound, so ``noise``, the standard deviation the posterior assumes, is in
    units of it.

    Limits: the theorem holds for draws from the process and Gaussian noise, not for a fixed
    function of the kernel's space (that is IGP-UCB); the kernel is assumed known.
    """

    name: ClassVar[str] = "gp-ucb"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Srinivas et al. 2010, arXiv 0912.3995"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 100_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        beta: Width = "practical",
        noise: float = 0.06,
        failure: float = 0.1,
        **setting: Any,
    ) -> None:
        """``failure`` is the delta of the theorem."""
        super().__init__(**setting)
        self._beta = checked_width("beta", beta)
        self._failure = in_unit_interval("failure", failure)
        ridge = positive("noise", noise) ** 2
        self._posterior = kernel_posterior(kernel, self._pairs, self._actions.count, ridge)
        self._domain = self._pool.size * self._actions.count

    def _width(self) -> float:
        """``sqrt(beta_t)`` at round ``t``."""
        if isinstance(self._beta, float):
            return self._beta
        theory = 2 * log(self._domain * (self._decided + 1) ** 2 * pi**2 / (6 * self._failure))
        return sqrt(theory if self._beta == "theory" else theory / 60)

    def recommend(self, context: int) -> int:
        """The action of largest posterior mean in a context of the pool."""
        return int(self._posterior.at(context)[0].argmax())

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width())

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._posterior.observe(int(context[0]), int(action[0]), float(reward[0]) / self._bound)
        return 1
