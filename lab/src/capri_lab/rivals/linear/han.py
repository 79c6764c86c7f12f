"""Greedy play on locally private estimates: Han et al. (2021), OLS and SGD."""

from math import exp, lgamma, pi, sqrt, tanh
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import whole
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Positive, Rival
from capri_lab.rivals.linear.least_squares import feature_table, first_best, optimistic
from capri_lab.rivals.linear.moments import FeatureBlocks, SummedMoments


@final
class HanOLS(FeatureBlocks, SummedMoments):
    """Uniform warm-up, then greedy play on least squares from locally private moments.

    Reference: Y. Han, Z. Liang, Y. Wang, J. Zhang, "Generalized Linear Bandits with Local
    Differential Privacy", NeurIPS 2021, arXiv 2106.03365, the ordinary-least-squares algorithm:
    stochastic contexts explore by themselves, so after a warm-up the greedy action is played and no
    bonus is needed.

    What differs. Both moments are one Gaussian vector at replace-one sensitivity ``sqrt(4.5)``,
    calibrated exactly; a ridge of ``shift`` times the size of the noise keeps the noisy matrix
    positive; updates come in ``blocks``. The shared parameter of all arms is the weight vector of
    the features chosen.

    Limits: greedy play is right only where contexts are diverse enough; ``d^2 / 2`` noisy numbers.
    ``budget=None`` is greedy ridge regression after the same warm-up.
    """

    name = "han-ols"
    promise = Promise(model="local", kind="approximate")
    reference = "Han et al. 2021"

    warm_up: int | None = None

    def _believe(self, batches: int) -> None:
        self._warm_up = _warm_up(self.warm_up, self.horizon)
        super()._believe(batches)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._batch.first_id < self._warm_up:
            return self._uniformly(context)
        action = optimistic(self._features, context, self._solution, 0.0)
        return action, np.ones(len(context))


def sphere_scale(dimension: int, epsilon: float) -> float:
    """Length of an unbiased report of a unit vector: ``coth(eps/2) / c_d``.

    ``c_d = E|V_1| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))`` over the unit sphere.
    """
    mean = exp(lgamma(dimension / 2) - lgamma((dimension + 1) / 2)) / sqrt(pi)
    return 1 / (tanh(epsilon / 2) * mean)


def sphere_report(
    vector: FloatArray, radius: float, epsilon: float, generator: np.random.Generator
) -> FloatArray:
    """An unbiased, pure eps-LDP report of a vector of norm at most ``radius``.

    Duchi, Jordan & Wainwright (2018): the vector is rounded at random to a unit vector ``u`` or its
    opposite, keeping the mean; a uniform direction is sent from the half-space of ``u`` with
    chance ``e^eps / (1 + e^eps)`` and from the other half otherwise.
    """
    length = float(np.linalg.norm(vector))
    direction = generator.standard_normal(len(vector))
    direction /= np.linalg.norm(direction)
    unit = vector / length if length > 0 else np.eye(len(vector))[0]
    keep = generator.random() < (1 + min(length / radius, 1.0)) / 2
    agree = generator.random() < 1 / (1 + exp(-epsilon))
    wanted = 1.0 if keep == agree else -1.0
    if (direction @ unit) * wanted < 0:
        direction = -direction
    return np.asarray(radius * sphere_scale(len(vector), epsilon) * direction)


@final
class HanSGD(Rival):
    """Uniform warm-up, then greedy play on private stochastic gradient descent.

    Reference: as :class:`HanOLS`, the stochastic-gradient algorithm: a user sends the private
    gradient of the squared loss, ``(x^T theta - y) x``, and the server takes a projected step. Only
    ``d`` numbers are noisy instead of ``d^2 / 2``.

    What differs. The report is that of Duchi et al., pure, for gradients of norm at most 2 (as
    ``|prediction|, |x|, |y| <= 1``). Steps ``step radius / (G sqrt(t))``, with ``G`` the length of
    a report, and playing by the mean of the iterates so far are ours. ``theta`` is projected to the
    ball of this ``radius``, and predictions are clipped to [-1, 1].

    Limits: as greedy play; one step per user, strictly in order. ``budget=None`` sends the
    gradient itself.
    """

    name = "han-sgd"
    promise = Promise(model="local", kind="pure")
    reference = "Han et al. 2021"
    needs = "features"
    reach = 100_000

    features: FloatArray
    warm_up: int | None = None
    step: Positive = 3.0
    radius: Positive = 2.0

    def _start(self) -> int:
        self._features = feature_table(self.features, self.contexts.size, self._actions.count)
        self._warm_up = _warm_up(self.warm_up, self.horizon)
        dimension = self._features.shape[2]
        # A gradient's length is at most 2; a report's length is known.
        self._longest = 2.0
        if self._epsilon is not None:
            self._longest *= sphere_scale(dimension, self._epsilon)
        self._seen = 0
        self._theta = np.zeros(dimension)
        self._mean = np.zeros(dimension)
        return 1

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._seen < self._warm_up:
            return self._uniformly(context)
        return first_best(self._features[context] @ self._mean), np.ones(len(context))

    def report(self, features: FloatArray, target: float) -> FloatArray:
        """What a user sends: the gradient at the public ``theta``, made private."""
        prediction = float(np.clip(features @ self._theta, -1.0, 1.0))
        gradient = (prediction - target) * features
        if self._epsilon is None:
            return np.asarray(gradient)
        return sphere_report(gradient, 2.0, self._epsilon, self._noise)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._seen += 1
        row = self._features[context[0], action[0]]
        step = self.step * self.radius / (self._longest * sqrt(self._seen))
        theta = self._theta - step * self.report(row, float(reward[0]))
        theta *= min(1.0, self.radius / max(float(np.linalg.norm(theta)), 1e-300))
        self._theta = theta
        self._mean += (theta - self._mean) / self._seen
        return 1


def _warm_up(rounds: int | None, horizon: int) -> int:
    """Rounds of uniform play: a tenth of the horizon unless said."""
    return max(1, horizon // 10) if rounds is None else whole("warm_up", rounds, least=0)
