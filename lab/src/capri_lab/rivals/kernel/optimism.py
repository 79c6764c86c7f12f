"""Optimism under a posterior: GP-UCB, IGP-UCB and KernelUCB, which differ in how wide they look."""

from abc import ABC, abstractmethod
from math import log, pi, sqrt
from typing import final

from capri.arrays import FloatArray, IntArray
from capri.kernels import Kernel
from capri_lab.rivals.base import Chance, Positive, Rival, Width, chosen_width
from capri_lab.rivals.kernel.posterior import Posterior, kernel_posterior, optimistic


class KernelRival(Rival, ABC):
    """Sees the kernel of pairs."""

    needs = "kernel"
    reach = 100_000

    kernel: Kernel

    @final
    def _ridged(self, ridge: float) -> Posterior:
        return kernel_posterior(self.kernel, self._pairs, self._actions.count, ridge)


class PosteriorPlay(Rival, ABC):
    """Plays ``argmax_x mean(x) + width sd(x)``, one decision after the other."""

    @abstractmethod
    def _prior(self) -> Posterior:
        """The posterior before the first reward; may set the width, if it is always the same."""

    def _width(self) -> float:
        """The multiple of the standard deviation in this round."""
        return self._multiple

    @final
    def _start(self) -> int:
        self._multiple = 1.0
        self._posterior = self._prior()
        return 1

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width())

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._posterior.observe(int(context[0]), int(action[0]), float(reward[0]))
        return 1


class KernelOptimism(KernelRival, PosteriorPlay, ABC):
    """Optimism in the space of a kernel, which can also say what it holds for best."""

    @final
    def recommend(self, context: int) -> int:
        """The action of largest posterior mean in a context of the pool."""
        return int(self._posterior.at(context)[0].argmax())


@final
class GPUCB(KernelOptimism):
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

    name = "gp-ucb"
    reference = "Srinivas et al. 2010, arXiv 0912.3995"

    beta: Width = "practical"
    noise: Positive = 0.06
    failure: Chance = 0.1  # the delta of the theorem

    def _prior(self) -> Posterior:
        return self._ridged(self.noise**2)

    def _width(self) -> float:
        """``sqrt(beta_t)`` at round ``t``."""
        domain = self.contexts.size * self._actions.count
        theory = 2 * log(domain * (self._decided + 1) ** 2 * pi**2 / (6 * self.failure))
        return chosen_width(self.beta, practical=sqrt(theory / 60), theory=sqrt(theory))


@final
class IGPUCB(KernelOptimism):
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

    name = "igp-ucb"
    reference = "Chowdhury & Gopalan 2017, arXiv 1704.00445"

    # In units of the reward bound, as is norm_bound.
    noise: Positive = 0.06
    norm_bound: Positive = 1.0
    beta: Width = "practical"
    failure: Chance = 0.1

    def _prior(self) -> Posterior:
        self._ridge = 1.0 + 2.0 / self.horizon if self.beta == "theory" else self.noise**2
        self._gain = 0.0
        return self._ridged(self._ridge)

    def _width(self) -> float:
        scale = chosen_width(self.beta, practical=0.05, theory=1.0)
        spread = sqrt(2 * (self._gain + 1 + log(1.0 / self.failure)))
        return scale * (self.norm_bound + self.noise / sqrt(self._ridge) * spread)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        variance = float(self._posterior.at(int(context[0]))[1][int(action[0])])
        self._gain += 0.5 * log(1.0 + variance / self._ridge)
        return super()._learn(context, action, reward)


@final
class KernelUCB(KernelOptimism):
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

    name = "kernel-ucb"
    reference = "Valko et al. 2013, arXiv 1309.6869"

    eta: Width = "practical"
    regularisation: Positive = 0.0036
    norm_bound: Positive = 1.0  # in units of the reward bound
    failure: Chance = 0.1

    def _prior(self) -> Posterior:
        gamma = self.regularisation
        spread = sqrt(2 * log(2 * self.horizon * self._actions.count / self.failure))
        theory = spread + sqrt(gamma) * self.norm_bound
        self._multiple = chosen_width(self.eta, practical=0.06, theory=theory) / sqrt(gamma)
        return self._ridged(gamma)
