"""What is believed of ``f`` before any release, and what all releases make of it.

The kernel by evidence: weights of all candidates, from what left the gate.

With the prior ``theta ~ N(0, sum_k t_k S_k)``, ``J`` the information of all releases and ``h`` its
vector, ``J = E E^T`` and ``h = E b``, the weights maximise

    log N(b; 0, I + sum_k t_k E^T S_k E) - (x - x0)^T (s^2 I + s^2 1 1^T)^-1 (x - x0) / 2

with ``x = log t``.

No kernel is chosen: every candidate keeps its weight, and the posterior is one Gaussian. All of it
is post-processing of releases.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from capri.arrays import FloatArray
from capri.family.evidence import best_weights
from capri.family.family import Family
from capri.learners.belief import (
    PRIOR_SECOND_MOMENT,
    Belief,
    Believed,
    Posterior,
    posterior,
    prior_variance,
)
from capri.learners.boundary import INTERCEPT_DEVIATION, Intercept, size_reach


@dataclass(frozen=True, eq=False)
class KnownKernelPrior:
    """Of a known kernel: the evidence chooses its scale."""

    spectrum: FloatArray
    smoothness: float
    norm_bound: float
    intercept: Intercept | None = None

    def infer(self, belief: Belief, near: "Believed | None" = None) -> Posterior:
        """Under the prior scale of largest evidence, within what the releases leave room for."""
        reach = size_reach(belief, self.norm_bound)
        level = None if self.intercept is None else self.intercept.covariance
        if self.intercept is not None and belief.ends:
            found = posterior(belief, lambda scale: self.of_scale(reach * scale), level=level)
            reach = min(reach, self.intercept.room(found.mean, found.factor))
        found = posterior(belief, lambda scale: self.of_scale(reach * scale), level=level)
        return found if reach == 1.0 else replace(found, reach=reach)

    def again(self, belief: Belief, weights: FloatArray | None) -> Posterior:
        """The scale is found again."""
        return self.infer(belief)

    def variance(self, state: Believed) -> FloatArray:
        """At the scale of the posterior."""
        variance = self.of_scale(state.scale * state.reach)
        return variance if self.intercept is None else variance + np.diag(self.intercept.covariance)

    def root(self, state: Believed) -> FloatArray:
        """Diagonal, as coefficients are independent, but for a common level."""
        variance = self.of_scale(state.scale * state.reach)
        if self.intercept is None:
            return np.diag(np.sqrt(variance))
        total = np.diag(variance) + self.intercept.covariance
        return np.asarray(np.linalg.cholesky(total), dtype=np.float64)

    def of_shares(self, scale: float) -> FloatArray:
        """At norm 1."""
        return prior_variance(self.spectrum, scale, self.smoothness, 1.0)

    def of_scale(self, scale: float) -> FloatArray:
        """Prior variances at a scale."""
        return prior_variance(self.spectrum, scale, self.smoothness, self.norm_bound)


# Directions with less information than this share of the largest are left out of the evidence.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class EvidencePrior:
    """The candidates of a family, each a covariance of trace 1 on the same coefficients."""

    family: Family
    norm_bound: float
    intercept: Intercept | None = None
    reach: float = 1.0

    @cached_property
    def covariances(self) -> FloatArray:
        """``S_k``."""
        return self.family.covariances()

    @cached_property
    def expected(self) -> FloatArray:
        """``x0``: log of the expected weights."""
        shares = np.array([part.share for part in self.family.parts])
        expected = np.log(shares * PRIOR_SECOND_MOMENT * (self.reach * self.norm_bound) ** 2)
        if self.intercept is not None:  # the constant comes first
            expected[0] = 2 * log(INTERCEPT_DEVIATION * self.intercept.bound)
        return np.asarray(expected)

    @cached_property
    def left_out(self) -> float:
        """Share of the expected ``E f^2`` that the chosen products cannot express."""
        weights = np.exp(self.expected)
        kept = float(weights @ np.trace(self.covariances, axis1=1, axis2=2))
        return max(0.0, 1 - kept / float(weights.sum()))

    def infer(self, belief: Belief, near: "Believed | None" = None) -> Posterior:
        """Under the weights of largest evidence, within what the releases leave room for."""
        reach = size_reach(belief, self.norm_bound)
        if self.intercept is not None and belief.ends:
            found = replace(self, reach=reach)._found(belief, near)
            reach = min(reach, self.intercept.room(found.mean, found.factor))
        if reach == self.reach:
            return self._found(belief, near)
        return replace(replace(self, reach=reach)._found(belief, near), reach=reach)

    def _found(self, belief: Belief, near: "Believed | None") -> Posterior:
        weights, evidence = self.expected, 0.0
        if belief.epochs and belief.information.any():
            start = weights
            # Other actions may have other candidates: then nothing is near.
            if near is not None and near.weights is not None and len(near.weights) == len(start):
                start = near.weights
            weights, evidence = self._preferred(belief, start)
        return replace(self.again(belief, weights), evidence=evidence)

    def again(self, belief: Belief, weights: FloatArray | None) -> Posterior:
        """``P = L V (1 + D)^-1 V^T L^T`` with ``L L^T`` the prior and ``L^T J L = V D V^T``."""
        x = self.expected if weights is None else weights
        prior = self.covariance(x)
        lower = np.linalg.cholesky(prior)
        values, vectors = np.linalg.eigh(lower.T @ belief.information @ lower)
        factor = (lower @ vectors) / np.sqrt(1 + np.maximum(values, 0.0))
        return Posterior(
            mean=factor @ (factor.T @ belief.vector), factor=factor, scale=1.0, weights=x
        )

    def covariance(self, x: FloatArray) -> FloatArray:
        """``sum_k t_k S_k``, and a little more so that it has a root."""
        prior = np.einsum("k,kij->ij", np.exp(x), self.covariances)
        prior[np.diag_indices_from(prior)] += 1e-9 * np.trace(prior) / len(prior)
        return np.asarray(prior)

    def variance(self, state: Believed) -> FloatArray:
        """The diagonal of the prior under the weights of the posterior."""
        assert state.weights is not None
        return np.asarray(np.einsum("k,kii->i", np.exp(state.weights), self.covariances))

    def root(self, state: Believed) -> FloatArray:
        """Of the prior under the weights of the posterior."""
        assert state.weights is not None
        return np.asarray(np.linalg.cholesky(self.covariance(state.weights)), dtype=np.float64)

    def of_shares(self, scale: float) -> FloatArray:
        """As expected before any release, of mean square ``0.1 scale^2``."""
        expected = np.einsum("k,kii->i", np.exp(self.expected), self.covariances)
        return np.asarray(PRIOR_SECOND_MOMENT * scale**2 * expected / expected.sum())

    def _preferred(self, belief: Belief, start: FloatArray) -> tuple[FloatArray, float]:
        values, vectors = np.linalg.eigh(belief.information)
        kept = values > max(
            _NEGLIGIBLE * values[-1], 3e-3 * len(values) / float(np.exp(self.expected).sum())
        )
        if not kept.any():
            return self.expected, 0.0
        root = np.sqrt(values[kept])
        e, b = vectors[:, kept] * root, vectors[:, kept].T @ belief.vector / root
        grams = np.array([e.T @ each @ e for each in self.covariances])
        weights, likelihood = best_weights(b, grams, start, self.expected)
        return weights, likelihood + 0.5 * float(b @ b)
