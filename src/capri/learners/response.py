"""Who answers: the share of decisions whose reward came, overall and by pair.

A user without a reward sends a form of its own (:mod:`capri.privacy.layout`): a count and the
pair's ``psi``. Both are released with the epoch, so that a missing reward does not pass for a
reward of 0. All of this is post-processing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import (
    PRIOR_SCALES,
    Belief,
    Block,
    Observation,
    Told,
    posterior,
    scale_penalty,
)

# The rate may move by so much between epochs: waits cut off less of longer epochs.
_DRIFT = 0.05
# No rate is believed below this: what is read is divided by it.
_SMALLEST = 0.02


@dataclass(frozen=True, eq=False)
class ResponseRate:
    """A scalar Kalman filter of the overall rate, and a regression of silence on pairs.

    ``deviating``: coefficients ``s`` of ``1 - rate(w) = 1 - mean + v(w)^T s``; None before any.
    """

    silence: Belief
    mean: float = 1.0
    variance: float = 1.0
    deviating: FloatArray | None = None

    @classmethod
    def unknown(cls, *shape: int) -> "ResponseRate":
        """Before any release: everybody is expected to answer; ``shape``: that of coefficients."""
        return cls(Belief.empty(*shape))

    @property
    def rate(self) -> float:
        """The overall rate, as a divisor."""
        return float(np.clip(self.mean, _SMALLEST, 1.0))

    def rates(self, features: FloatArray, block: Block = ...) -> FloatArray:
        """The rate at each pair of a block, given by its basis coordinates."""
        if self.deviating is None:
            return np.full(len(features), self.rate)
        return np.clip(self.rate - features @ self.deviating[block], _SMALLEST, 1.0)

    def counted(self, missing: float, total: int, deviation: float) -> "ResponseRate":
        """Take in a noisy count of missing rewards: the gain weighs it by its noise."""
        variance = self.variance + _DRIFT**2
        gain = variance / (variance + (deviation / total) ** 2)
        mean = self.mean + gain * (1 - missing / total - self.mean)
        return replace(self, mean=mean, variance=variance * (1 - gain))

    def regressed(
        self, silences: Iterable["Silence"], variance: Callable[[float], FloatArray]
    ) -> "ResponseRate":
        """Take in noisy sums of ``psi`` over those who did not answer, block by block.

        ``variance``: what is expected of ``s`` at a prior scale.
        """
        silence = self.silence.observe([each.told(self.rate) for each in silences])
        return replace(self, silence=silence, deviating=_deviating(silence, variance))


@dataclass(frozen=True, eq=False)
class Silence:
    """What an epoch says of who did not answer, in one block.

    ``silent - (1 - mean) n E[psi] = n E[psi v^T] s + error``, with the privacy noise and the
    binomial noise ``mean (1 - mean) n E[psi psi^T]`` in the error.
    """

    block: Block
    silent: FloatArray
    deviation: float
    design: FloatArray
    expected: FloatArray
    second_moment: FloatArray

    @classmethod
    def empty(cls, block: Block, silent: FloatArray, deviation: float, width: int) -> "Silence":
        """What was released of a block, before anything is expected of it."""
        size = len(silent)
        return cls(
            block,
            silent,
            deviation,
            np.zeros((size, width)),
            np.zeros(size),
            np.zeros((size, size)),
        )

    def with_pairs(self, features: FloatArray, psi: FloatArray, decisions: FloatArray) -> "Silence":
        """With pairs that were played so often."""
        weighted = psi * decisions[:, None]
        return replace(
            self,
            design=self.design + weighted.T @ features,
            expected=self.expected + weighted.sum(axis=0),
            second_moment=self.second_moment + weighted.T @ psi,
        )

    def told(self, rate: float) -> Told:
        """As an observation of ``s`` under an overall rate."""
        covariance = self.deviation**2 * np.eye(len(self.silent))
        covariance += max(rate * (1 - rate), 0.01) * self.second_moment
        observation = Observation(
            design=self.design, covariance=covariance, baseline=np.zeros(self.design.shape[1])
        )
        return self.block, observation, self.silent - (1 - rate) * self.expected


def _deviating(silence: Belief, variance: Callable[[float], FloatArray]) -> FloatArray:
    """The posterior mean under the scale of largest evidence, one for all blocks."""
    if silence.vector.ndim == 1:
        return posterior(silence, variance).mean
    parts = [
        replace(silence, information=information, vector=vector)
        for information, vector in zip(silence.information, silence.vector, strict=True)
    ]
    best, means = -np.inf, silence.vector
    for scale in PRIOR_SCALES:
        found = [posterior(each, variance, scale=scale) for each in parts]
        # The hyper-prior counts once, not once for every block.
        total = sum(each.evidence for each in found) + (len(parts) - 1) * scale_penalty(scale)
        if total > best:
            best, means = total, np.array([each.mean for each in found])
    return means
