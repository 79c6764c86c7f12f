"""Who answers: the share of decisions whose reward came, overall and by pair.

A user without a reward sends a form of its own (:mod:`capri.privacy.layout`): a count and the
pair's ``psi``. Both are released with the epoch, so that a missing reward does not pass for a
reward of 0. All of this is post-processing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Observation, posterior

# The rate may move by so much between epochs: waits cut off less of longer epochs.
_DRIFT = 0.05
# No rate is believed below this: what is read is divided by it.
_SMALLEST = 0.02


@dataclass(frozen=True, eq=False)
class Response:
    """A scalar Kalman filter of the overall rate, and a regression of silence on pairs.

    ``deviating``: coefficients ``s`` of ``1 - rate(w) = 1 - mean + v(w)^T s``; None before any.
    """

    silence: Belief
    mean: float = 1.0
    variance: float = 1.0
    deviating: FloatArray | None = None

    @classmethod
    def unknown(cls, rank: int) -> "Response":
        """Before any release: everybody is expected to answer."""
        return cls(Belief.empty(rank))

    @property
    def rate(self) -> float:
        """The overall rate, as a divisor."""
        return float(np.clip(self.mean, _SMALLEST, 1.0))

    def rates(self, features: FloatArray) -> FloatArray:
        """The rate at each pair, given by its basis coordinates."""
        if self.deviating is None:
            return np.full(len(features), self.rate)
        return np.clip(self.rate - features @ self.deviating, _SMALLEST, 1.0)

    def counted(self, missing: float, total: int, deviation: float) -> "Response":
        """Take in a noisy count of missing rewards: the gain weighs it by its noise."""
        variance = self.variance + _DRIFT**2
        gain = variance / (variance + (deviation / total) ** 2)
        mean = self.mean + gain * (1 - missing / total - self.mean)
        return replace(self, mean=mean, variance=variance * (1 - gain))

    def regressed(
        self,
        silent: FloatArray,
        deviation: float,
        *,
        design: FloatArray,
        expected: FloatArray,
        second_moment: FloatArray,
        variance: Callable[[float], FloatArray],
    ) -> "Response":
        """Take in the noisy sum of ``psi`` over those who did not answer.

        ``silent - (1 - mean) n E[psi] = n E[psi v^T] s + error``, with the privacy noise and the
        binomial noise ``mean (1 - mean) n E[psi psi^T]`` in the error. ``variance``: what is
        expected of ``s`` at a prior scale.
        """
        rate = self.rate
        covariance = deviation**2 * np.eye(len(silent))
        covariance += max(rate * (1 - rate), 0.01) * second_moment
        observation = Observation(
            design=design, covariance=covariance, baseline=np.zeros(design.shape[1])
        )
        silence = self.silence.observe([(..., observation, silent - (1 - rate) * expected)])
        found = posterior(silence, variance)
        return replace(self, silence=silence, deviating=found.mean)
