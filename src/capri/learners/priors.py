"""What is believed of ``f`` before any release, and what all releases make of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Posterior, posterior, prior_variance
from capri.learners.room import Level, size_reach


class Prior(ABC):
    """A prior on the coefficients of ``f`` with something left for the evidence to choose."""

    @abstractmethod
    def infer(self, belief: Belief, near: Posterior | None = None) -> Posterior:
        """The posterior under what the evidence prefers; ``near``: the one before, to start at."""

    @abstractmethod
    def again(self, belief: Belief, weights: FloatArray | None) -> Posterior:
        """The posterior of :meth:`infer`, given what the evidence had preferred."""

    @abstractmethod
    def variance(self, state: Posterior) -> FloatArray:
        """Prior variance of every coefficient under what the evidence preferred."""

    @abstractmethod
    def root(self, state: Posterior) -> FloatArray:
        """``L`` with ``L L^T`` the prior covariance under what the evidence preferred."""

    @abstractmethod
    def of_shares(self, scale: float) -> FloatArray:
        """The same for a function with values between 0 and 1, such as a rate."""


@dataclass(frozen=True, eq=False)
class ToldPrior(Prior):
    """Of a told kernel: the evidence chooses its scale."""

    spectrum: FloatArray
    smoothness: float
    norm_bound: float
    level: Level | None = None

    def infer(self, belief: Belief, near: Posterior | None = None) -> Posterior:
        """Under the prior scale of largest evidence, within what the releases leave room for."""
        reach = size_reach(belief, self.norm_bound)
        level = None if self.level is None else self.level.covariance
        if self.level is not None and belief.ends:
            found = posterior(belief, lambda scale: self.of_scale(reach * scale), level=level)
            reach = min(reach, self.level.room(found.mean, found.factor))
        found = posterior(belief, lambda scale: self.of_scale(reach * scale), level=level)
        return found if reach == 1.0 else replace(found, reach=reach)

    def again(self, belief: Belief, weights: FloatArray | None) -> Posterior:
        """The scale is found again."""
        return self.infer(belief)

    def variance(self, state: Posterior) -> FloatArray:
        """At the scale of the posterior."""
        variance = self.of_scale(state.scale * state.reach)
        return variance if self.level is None else variance + np.diag(self.level.covariance)

    def root(self, state: Posterior) -> FloatArray:
        """Diagonal, as coefficients are independent, but for a common level."""
        variance = self.of_scale(state.scale * state.reach)
        if self.level is None:
            return np.diag(np.sqrt(variance))
        total = np.diag(variance) + self.level.covariance
        return np.asarray(np.linalg.cholesky(total), dtype=np.float64)

    def of_shares(self, scale: float) -> FloatArray:
        """At norm 1."""
        return prior_variance(self.spectrum, scale, self.smoothness, 1.0)

    def of_scale(self, scale: float) -> FloatArray:
        """Prior variances at a scale."""
        return prior_variance(self.spectrum, scale, self.smoothness, self.norm_bound)
