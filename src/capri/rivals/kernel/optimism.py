"""Optimism under a posterior: GP-UCB, IGP-UCB and KernelUCB, which differ in how wide they look."""

from abc import ABC, abstractmethod
from math import log, pi, sqrt
from typing import final

from capri.arrays import FloatArray, IntArray
from capri.checks import between, positive
from capri.kernels import Kernel
from capri.rivals.base import Rival, Width, checked_width, chosen_width
from capri.rivals.kernel.posterior import Posterior, kernel_posterior, optimistic


class KernelRival(Rival, ABC):
    """Sees the kernel of pairs."""

    needs = "kernel"
    reach = 100_000

    kernel: Kernel

    @final
    def _ridged(self, ridge: float) -> Posterior:
        return kernel_posterior(self.kernel, self._pairs, self._actions.count, ridge)


class PosteriorPlay(Rival, ABC):
    """Plays ``argmax_x mean(x) + width sd(x)``, one decision after the other.

    Rewards are divided by their bound before the posterior sees them.
    """

    @abstractmethod
    def _prior(self) -> Posterior:
        """Check the settings; the posterior before the first reward."""

    @abstractmethod
    def _width(self) -> float:
        """The multiple of the standard deviation in this round."""

    @final
    def _start(self) -> int:
        self._posterior = self._prior()
        return 1

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width())

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        value = float(reward[0]) / self.reward_bound
        self._posterior.observe(int(context[0]), int(action[0]), value)
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
    noise: float = 0.06
    failure: float = 0.1  # the delta of the theorem

    def _prior(self) -> Posterior:
        self.beta = checked_width("beta", self.beta)
        self.failure = between("failure", self.failure, 0, 1, open_ends=True)
        return self._ridged(positive("noise", self.noise) ** 2)

    def _width(self) -> float:
        """``sqrt(beta_t)`` at round ``t``."""
        if isinstance(self.beta, float):
            return self.beta
        domain = self.contexts.size * self._actions.count
        theory = 2 * log(domain * (self._decided + 1) ** 2 * pi**2 / (6 * self.failure))
        return sqrt(theory if self.beta == "theory" else theory / 60)


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
    noise: float = 0.06
    norm_bound: float = 1.0
    beta: Width = "practical"
    failure: float = 0.1

    def _prior(self) -> Posterior:
        self._scale = chosen_width("beta", self.beta, practical=0.05, theory=1.0)
        self._norm = positive("norm_bound", self.norm_bound)
        self._log = log(1.0 / between("failure", self.failure, 0, 1, open_ends=True))
        self._sd = positive("noise", self.noise)
        self._ridge = 1.0 + 2.0 / self.horizon if self.beta == "theory" else self._sd**2
        self._gain = 0.0
        return self._ridged(self._ridge)

    def _width(self) -> float:
        spread = self._sd / sqrt(self._ridge) * sqrt(2 * (self._gain + 1 + self._log))
        return self._scale * (self._norm + spread)

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
    regularisation: float = 0.0036
    norm_bound: float = 1.0  # in units of the reward bound
    failure: float = 0.1

    def _prior(self) -> Posterior:
        gamma = positive("regularisation", self.regularisation)
        failure = between("failure", self.failure, 0, 1, open_ends=True)
        spread = sqrt(2 * log(2 * self.horizon * self._actions.count / failure))
        theory = spread + sqrt(gamma) * positive("norm_bound", self.norm_bound)
        eta = chosen_width("eta", self.eta, practical=0.06, theory=theory)
        self._multiple = eta / sqrt(gamma)
        return self._ridged(gamma)

    def _width(self) -> float:
        return self._multiple
