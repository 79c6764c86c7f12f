"""IGP-UCB: optimism for a fixed function of the kernel's space."""

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
class IGPUCB(Rival):
    """IGP-UCB of Chowdhury and Gopalan (2017), with the information gain that was realised.

    Algorithm 1 of arXiv 1704.00445: line 3 is the width, line 4 :meth:`_choose`, lines 5-6
    :meth:`_learn`. With norm bound ``B`` and noise ``R``, posterior with ridge ``lambda``,

        x_t = argmax_x mean_{t-1}(x) + beta_t sd_{t-1}(x)
        beta_t = B + (R / sqrt(lambda)) sqrt(2 (gain_{t-1} + 1 + ln(1 / delta)))

    ``gain_t = 1/2 sum_s ln(1 + variance_{s-1}(x_s) / lambda)`` is what their maximal information
    gain bounds, and all the proof of Theorem 2 uses. ``beta="theory"`` is this formula with their
    ``lambda = 1 + 2 / T``; "practical" has ``lambda = R^2``, the noise there really is, and a
    twentieth of the width; a number multiplies the width with ``lambda = R^2``.

    Limits: the width grows with the realised gain, so play stays more curious than GP-UCB's; the
    kernel and ``B`` are assumed known.
    """

    name: ClassVar[str] = "igp-ucb"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Chowdhury & Gopalan 2017, arXiv 1704.00445"
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
        super().__init__(**setting)
        chosen = checked_width("beta", beta)
        self._scale = {"theory": 1.0, "practical": 0.05}.get(str(chosen)) or float(chosen)
        self._noise_level = positive("noise", noise)
        self._norm = positive("norm_bound", norm_bound)
        self._log = log(1.0 / in_unit_interval("failure", failure))
        self._ridge = 1.0 + 2.0 / self._horizon if chosen == "theory" else self._noise_level**2
        self._posterior = kernel_posterior(kernel, self._pairs, self._actions.count, self._ridge)
        self._gain = 0.0

    def _width(self) -> float:
        spread = self._noise_level / sqrt(self._ridge) * sqrt(2 * (self._gain + 1 + self._log))
        return self._scale * (self._norm + spread)

    def recommend(self, context: int) -> int:
        """The action of largest posterior mean in a context of the pool."""
        return int(self._posterior.at(context)[0].argmax())

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width())

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        place, chosen = int(context[0]), int(action[0])
        variance = float(self._posterior.at(place)[1][chosen])
        self._gain += 0.5 * log(1.0 + variance / self._ridge)
        self._posterior.observe(place, chosen, float(reward[0]) / self._bound)
        return 1
