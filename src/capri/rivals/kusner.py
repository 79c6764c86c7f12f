"""Private release of the best parameters found: Kusner et al. (2015)."""

from math import log, pi, sqrt
from typing import Any, ClassVar, Literal, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.kernels import Kernel
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, Rival, positive, whole
from capri.rivals.exponential import draw_rows, exponential_law
from capri.rivals.posterior import kernel_posterior, optimistic


def published_sensitivity(points: int, rounds: int, delta: float, similarity: float) -> float:
    """``2 sqrt(beta_{T+1}) + c``, ``beta_t = 2 ln(|L| t^2 pi^2 / (3 delta))`` and
    ``c = 2 sqrt((1 - k(V, V')) ln(3 |L| / delta))``: how far the posterior mean of neighbouring
    data sets may lie apart, with probability ``1 - delta`` under their Gaussian-process model.
    """
    beta = 2 * log(points * (rounds + 1) ** 2 * pi**2 / (3 * delta))
    return 2 * sqrt(beta) + 2 * sqrt((1 - similarity) * log(3 * points / delta))


@final
class Kusner(Rival):
    """GP-UCB without noise; then one action is released by the exponential mechanism and played.

    Reference: M. Kusner, J. Gardner, R. Garnett, K. Weinberger, "Differentially Private Bayesian
    Optimization", ICML 2015, arXiv 1501.04080, Algorithm 1 (noisy observations): GP-UCB, then
    ``P(x) ~ exp(eps mean(x) / (2 (2 sqrt(beta) + c)))``. Their second output, the best value with
    Laplace noise, is not used here.

    The promise is unlike the others'. What is protected is one record of a data set (a validation
    set) on which all rewards are computed, against those who see the released parameters; the
    rounds played while learning are the curator's own and not released. That the sensitivity
    bounds neighbours' posterior means is proved under a Gaussian-process model of the two data
    sets' functions with correlation ``similarity`` and cannot be checked on data: the mechanism can
    be audited at that sensitivity, the claim itself cannot. No calibration is recomputed.

    One action is released for all contexts, by the mean over the pool. ``explore`` rounds (a tenth
    of the horizon unless said) come first. ``sensitivity`` replaces the published bound.

    Limits: at epsilon 1 the released action is close to uniform for rewards in [-1, 1], as the
    published sensitivity exceeds 10. ``budget=None`` releases the best posterior mean.
    """

    name: ClassVar[str] = "kusner"
    promise: ClassVar[Promise] = Promise(
        model="central",
        kind="approximate",
        protects="the data set behind the rewards (released parameters only)",
        unit="one record of that data set",
    )
    reference: ClassVar[str] = "Kusner et al. 2015"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 100_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        budget: Budget | None = None,
        explore: int | None = None,
        beta: float = 1.0,
        noise: float = 0.06,
        similarity: float = 0.99,
        sensitivity: float | None = None,
        **setting: Any,
    ) -> None:
        """``beta`` is the multiple of the standard deviation while exploring."""
        super().__init__(budget=budget, **setting)
        tenth = max(1, self._horizon // 10)
        self._explore = min(tenth if explore is None else whole("explore", explore), self._horizon)
        self._width = positive("beta", beta)
        self._posterior = kernel_posterior(
            kernel, self._pairs, self._actions.count, positive("noise", noise) ** 2
        )
        delta = 0.5 if budget is None else budget.delta
        self.sensitivity = published_sensitivity(
            self._actions.count, self._explore, delta, min(positive("similarity", similarity), 1.0)
        )
        if sensitivity is not None:
            self.sensitivity = positive("sensitivity", sensitivity)
        self._released: int | None = None

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._released is not None:
            return np.full(len(context), self._released), np.ones(len(context))
        return optimistic(self._posterior, context, self._width)

    def scores(self) -> FloatArray:
        """Posterior mean of each action over the pool."""
        means = np.array([self._posterior.at(context)[0] for context in range(self._pool.size)])
        return np.asarray(self._pool.weights @ means)

    def recommend(self, context: int) -> int:
        """The released action, the same for every context."""
        if self._released is None:
            raise ConfigurationError(
                f"nothing is released before round {self._explore}: play these rounds first"
            )
        return self._released

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        if self._released is None:
            self._posterior.observe(int(context[0]), int(action[0]), float(reward[0]) / self._bound)
            if self._decided < self._explore:
                return 1
            epsilon = None if self._budget is None else self._budget.epsilon
            law = exponential_law(self.scores(), self.sensitivity, epsilon)
            self._released = int(draw_rows(law, self._noise))
        return self._horizon
