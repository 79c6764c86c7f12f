"""What is believed of ``f`` before any release, and what all releases make of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Posterior, posterior, prior_variance


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
    def of_shares(self, scale: float) -> FloatArray:
        """The same for a function with values between 0 and 1, such as a rate."""


@dataclass(frozen=True, eq=False)
class ToldPrior(Prior):
    """Of a told kernel: the evidence chooses its scale."""

    spectrum: FloatArray
    smoothness: float
    norm_bound: float

    def infer(self, belief: Belief, near: Posterior | None = None) -> Posterior:
        """Under the prior scale of largest evidence."""
        return posterior(belief, self.of_scale)

    def again(self, belief: Belief, weights: FloatArray | None) -> Posterior:
        """The scale is found again."""
        return self.infer(belief)

    def variance(self, state: Posterior) -> FloatArray:
        """At the scale of the posterior."""
        return self.of_scale(state.scale)

    def of_shares(self, scale: float) -> FloatArray:
        """At norm 1."""
        return prior_variance(self.spectrum, scale, self.smoothness, 1.0)

    def of_scale(self, scale: float) -> FloatArray:
        """Prior variances at a scale."""
        return prior_variance(self.spectrum, scale, self.smoothness, self.norm_bound)
