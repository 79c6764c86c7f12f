"""KernelUCB: LinUCB in the space of a kernel."""

from math import log, sqrt
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
class KernelUCB(Rival):
    """KernelUCB of Valko, Korda, Munos, Flaounas and Cristianini (2013).

    Algorithm 1 of arXiv 1309.6869: lines 8-9 are :meth:`_choose`, lines 10-15 :meth:`_learn`.

        x_t = argmax_x k_x^T (K + gamma I)^-1 y
                       + (eta / sqrt(gamma)) sqrt(k(x, x) - k_x^T (K + gamma I)^-1 k_x)

    ``eta="theory"`` is that of their Theorem 1, ``sqrt(2 ln(2 T N / delta))`` with ``N`` actions,
    which is for rewards in [0, 1], plus ``sqrt(gamma)`` times the norm; "practical" is 0.06, one
    standard deviation of uniform noise of a tenth of the bound; ``regularisation`` is ``gamma``.
    With a linear kernel this is LinUCB.

    Limits: the theorem is for SupKernelUCB, which splits rounds into levels to make rewards
    independent and is never used in practice; first play is action 0 rather than a random one.
    """

    name: ClassVar[str] = "kernel-ucb"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Valko et al. 2013, arXiv 1309.6869"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 100_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        eta: Width = "practical",
        regularisation: float = 0.0036,
        norm_bound: float = 1.0,
        failure: float = 0.1,
        **setting: Any,
    ) -> None:
        """``norm_bound`` is in units of the reward bound."""
        super().__init__(**setting)
        chosen = checked_width("eta", eta)
        gamma = positive("regularisation", regularisation)
        actions = self._actions.count
        spread = sqrt(2 * log(2 * self._horizon * actions / in_unit_interval("failure", failure)))
        theory = spread + sqrt(gamma) * positive("norm_bound", norm_bound)
        named = {"theory": theory, "practical": 0.06}.get(str(chosen))
        self._width = (named or float(chosen)) / sqrt(gamma)
        self._posterior = kernel_posterior(kernel, self._pairs, actions, gamma)

    def recommend(self, context: int) -> int:
        """The action of largest posterior mean in a context of the pool."""
        return int(self._posterior.at(context)[0].argmax())

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._posterior.observe(int(context[0]), int(action[0]), float(reward[0]) / self._bound)
        return 1
