"""How many people a pool of contexts and rewards really stands for, by the evidence.

A plan expects everybody to be drawn afresh from the public contexts, so that errors of ``n``
decisions average out as ``1/n``. They do not where the pool is a sample of the people, where the
same people come again, or where the basis leaves something out that is the same for all who are
alike. All three act as if ``N`` people took turns: the covariance ``C`` of a release that comes
from who came and what they said grows by ``1 + n/N``,

    R_N = noise^2 I + (1 + n/N) C

and information ends where that of ``N`` people ends. Without it the belief is too sure of itself,
and play settles on wrong actions the longer it lasts. Which ``N`` it is, releases tell: each is
predicted under every ``N`` before it is read, and the likelihoods add up. Post-processing.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Observation

# People: infinitely many, then fewer. Fewer than the last cannot teach anything.
SIZES = (np.inf, 10_000.0, 3_000.0, 1_000.0, 300.0, 100.0, 30.0)
# Logarithm of what speaks for infinitely many before any release, against each of the others.
_TRUST = 6.0


@dataclass(frozen=True, eq=False)
class Crowds:
    """Information and vector under every size, and the log likelihood of each."""

    informations: FloatArray
    vectors: FloatArray
    scores: FloatArray

    @classmethod
    def empty(cls, rank: int) -> "Crowds":
        """Before any release."""
        count = len(SIZES)
        scores = np.full(count, -_TRUST)
        scores[0] = 0.0
        return cls(np.zeros((count, rank, rank)), np.zeros((count, rank)), scores)

    @classmethod
    def of(cls, belief: Belief) -> "Crowds":
        """All sizes alike, with what is believed already."""
        empty = cls.empty(len(belief.vector))
        return replace(
            empty,
            informations=empty.informations + belief.information,
            vectors=empty.vectors + belief.vector,
        )

    def observe(self, observation: Observation, released: FloatArray, root: FloatArray) -> "Crowds":
        """Predict a release, score the prediction, and take it in; ``root``: of the prior.

        ``P = L (I + L^T J L)^-1 L^T``, ``m = P h``; the release has mean ``H (m - baseline)`` and
        covariance ``H P H^T + R_N``.
        """
        if observation.sampling is None:
            return self
        design = observation.design
        target = released + design @ observation.baseline
        image = design @ root
        # The first release mostly tells how wrong the prior is, which is then put right.
        informed = bool(self.vectors.any())
        informations, vectors = self.informations.copy(), self.vectors.copy()
        scores = self.scores.copy()
        for number, size in enumerate(SIZES):
            repeated = observation.participants / size
            covariance = observation.covariance + repeated * observation.sampling
            lower = np.linalg.cholesky(np.eye(len(root)) + root.T @ informations[number] @ root)
            mean = solve_triangular(lower, root.T @ vectors[number], lower=True)
            spread = solve_triangular(lower, image.T, lower=True)
            predicted = covariance + spread.T @ spread
            error = target - spread.T @ mean
            factor = np.linalg.cholesky(predicted)
            white = solve_triangular(factor, error, lower=True)
            if informed:
                scores[number] -= 0.5 * float(white @ white) + float(np.log(np.diag(factor)).sum())
            weighted = cho_solve(cho_factor(covariance), design)
            informations[number] += design.T @ weighted
            vectors[number] += weighted.T @ target
        return replace(
            self, informations=informations, vectors=vectors, scores=scores - scores.max()
        )

    def seen(self, observation: Observation) -> Observation:
        """An observation as the likeliest size sees it."""
        if self.likeliest == 0 or observation.sampling is None:
            return observation
        repeated = observation.participants / SIZES[self.likeliest]
        covariance = observation.covariance + repeated * observation.sampling
        return replace(observation, covariance=covariance)

    @property
    def likeliest(self) -> int:
        """Number of the size that predicted best."""
        return int(self.scores.argmax())

    def told_to(self, belief: Belief) -> Belief:
        """The belief with the information that the likeliest size leaves."""
        if self.likeliest == 0:
            return belief
        return replace(
            belief,
            information=self.informations[self.likeliest],
            vector=self.vectors[self.likeliest],
        )
