"""SquareCB: play in inverse proportion to the estimated gap."""

from math import sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri_lab.rivals.base import Positive, Width, chosen_width
from capri_lab.rivals.kernel.optimism import KernelRival, PosteriorPlay
from capri_lab.rivals.kernel.posterior import Posterior


@final
class SquareCB(KernelRival, PosteriorPlay):
    """SquareCB of Foster and Rakhlin (2020) with online kernel ridge regression as its oracle.

    Algorithm 1 of arXiv 2002.04926: line 5 is the mean of the posterior, line 6 the best action,
    lines 7-8 :meth:`_law`, lines 10-11 :meth:`_learn`. With ``A`` actions, best ``b``,

        p(x) = 1 / (A + gamma (mean(b) - mean(x))) for x != b,    p(b) = 1 - the rest

    ``gamma="theory"`` is Theorem 1, ``sqrt(A T / (regret + 2))``, the regret of kernel ridge being
    bounded by twice its realised information gain; "practical" lets gamma grow as
    ``60 sqrt(A t)``; a number multiplies ``sqrt(A t)``. Rewards are divided by the bound.

    Limits: exploration is blind to what is already known, so every action keeps a share of the
    plays; needs ``gamma`` large at the end, small at the start.
    """

    name = "squarecb"
    reference = "Foster & Rakhlin 2020, arXiv 2002.04926"

    gamma: Width = "practical"
    noise: Positive = 0.06  # the root of the ridge, in units of the reward bound

    def _prior(self) -> Posterior:
        self._ridge = self.noise**2
        self._gain = 0.0
        return self._ridged(self._ridge)

    def _learning_rate(self) -> float:
        if self.gamma == "theory":
            return sqrt(self._actions.count * self.horizon / (2 * self._gain + 2.0))
        scale = chosen_width(self.gamma, practical=60.0, theory=0.0)
        return scale * sqrt(self._actions.count * (self._decided + 1))

    def _law(self, mean: FloatArray) -> FloatArray:
        """Inverse gap weighting (Abe & Long 1999)."""
        best = int(mean.argmax())
        law = 1.0 / (len(mean) + self._learning_rate() * (mean[best] - mean))
        law[best] = 0.0
        law[best] = 1.0 - law.sum()
        return np.asarray(law)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        mean, _ = self._posterior.at(int(context[0]))
        law = self._law(mean)
        drawn = int(np.searchsorted(np.cumsum(law), self._draws.random(), side="right"))
        action = np.array([min(drawn, len(law) - 1)])
        return action, law[action]

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        variance = float(self._posterior.at(int(context[0]))[1][int(action[0])])
        self._gain += 0.5 * float(np.log1p(variance / self._ridge))
        return super()._learn(context, action, reward)
