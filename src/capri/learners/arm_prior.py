"""What releases say of unrelated arms: ``theta_a = s + d_a``, something common and an own part.

With ``s ~ N(0, S)``, ``d_a ~ N(0, D)`` and information ``J_a``, ``h_a`` of every arm, all sums run
over arms and nothing is larger than one block:

    P_a = (D^-1 + J_a)^-1                      covariance of d_a where s is known
    M_a = J_a - J_a P_a J_a                    what arm a says of s
    F F^T = (S^-1 + sum_a M_a)^-1              covariance of s
    C_a = (I - P_a J_a) F                      how theta_a goes with s
    theta_a ~ N(E[s] + P_a (h_a - J_a E[s]),  P_a + C_a C_a^T)

The kernel of arms by evidence: weights for what is common and for what is an arm's own.

``S = sum_k t_k P_k`` and ``D = sum_k t'_k P_k`` with ``P_k`` the constant and each candidate kernel
of contexts. The weights maximise the log evidence of all releases plus the log of a normal prior on
their logarithms. Context-free play is the corner where only the constants are left.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log, sqrt
from typing import Self

import numpy as np
from scipy.linalg import solve_triangular

from capri.arrays import FloatArray
from capri.family import Candidates
from capri.family.evidence import doubt_of, least
from capri.family.family import ACTION, CONSTANT, CONTEXT, INTERACTION
from capri.learners.belief import PRIOR_SECOND_MOMENT, Belief, Believed
from capri.learners.boundary import INTERCEPT_DEVIATION, room_of, size_reach


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmPosterior:
    """``theta_a`` of all arms, and the logarithms of the weights of the candidates behind it.

    ``evidence``: that of the releases under these weights, and of the weights under their prior.
    """

    mean: FloatArray
    own: FloatArray
    carried: FloatArray
    weights: FloatArray
    evidence: float = 0.0
    doubt: int = 0  # as in Posterior
    scale: float = 1.0  # the evidence weighs candidates instead
    reach: float = 1.0

    def squares(
        self, spread: FloatArray, image: FloatArray, constant: float
    ) -> tuple[float, float]:
        """As in Posterior, summed over arms."""
        unknown = float(np.einsum("aij,aij->", spread, self.covariance))
        known = np.einsum("ai,aij,aj->", self.mean, spread, self.mean, optimize=True)
        return unknown, float(known) + (constant - 2 * float((image * self.mean).sum()))

    def error(self, spread: FloatArray) -> float:
        """As in Posterior, over all arms."""
        return sqrt(float(np.einsum("aij,aij->", spread, self.covariance)))

    @property
    def parts(self) -> dict[str, FloatArray]:
        """What a mixture is restored from."""
        return {"mean": self.mean, "own": self.own, "carried": self.carried}

    def mixed(self, mean: FloatArray, apart: FloatArray) -> Self:
        """With another mean, and columns ``apart`` that all arms carry together."""
        carried = np.concatenate([self.carried, apart], axis=2)
        return replace(self, mean=mean, carried=carried)

    @cached_property
    def covariance(self) -> FloatArray:
        """``P_a + C_a C_a^T``."""
        return np.asarray(self.own + self.carried @ self.carried.transpose(0, 2, 1))

    @cached_property
    def factor(self) -> FloatArray:
        """A root of the covariance of every arm."""
        found = self.covariance
        level = np.trace(found, axis1=1, axis2=2)[:, None, None]
        eye = np.eye(found.shape[1])
        return np.asarray(np.linalg.cholesky(found + (1e-12 * level + 1e-300) * eye))


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """All that one pass over the arms gives."""

    evidence: float
    mean: FloatArray
    own: FloatArray
    carried: FloatArray
    root: FloatArray
    said: FloatArray
    score: FloatArray

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """Twice the derivative of the evidence by ``S`` and by ``D``, as symmetric matrices.

        With ``r_a = h_a - J_a E[theta_a]``: for ``S`` it is ``r r^T - (M - M F F^T M)`` of the sums
        over arms, for ``D`` the sum over arms of ``r_a r_a^T - (M_a - M_a F F^T M_a)``.
        """
        said = self.said.sum(axis=0)
        image = said @ self.root
        total = self.score.sum(axis=0)
        common = np.outer(total, total) - said + image @ image.T
        images = self.said @ self.root
        own = self.score.T @ self.score - said
        own = own + np.tensordot(images, images, axes=([0, 2], [0, 2]))
        return np.asarray(common), np.asarray(own)


def solve(
    information: FloatArray, vector: FloatArray, common: FloatArray, own: FloatArray
) -> Solution:
    """The posterior and the log evidence under ``S = common`` and ``D = own``."""
    eye = np.eye(len(common))
    root, lower = np.linalg.cholesky(common), np.linalg.cholesky(own)
    inner = eye + lower.T @ information @ lower
    inverse = np.linalg.inv(inner)
    seen = vector @ lower
    evidence = 0.5 * float(np.einsum("ai,aij,aj->", seen, inverse, seen, optimize=True))
    evidence -= 0.5 * float(np.linalg.slogdet(inner)[1].sum())
    given = lower @ inverse @ lower.T
    image = information @ given
    said = information - image @ information
    told = (vector - np.einsum("aij,aj->ai", image, vector)).sum(axis=0)
    factor = _root_from_one(eye + root.T @ said.sum(axis=0) @ root)
    white = solve_triangular(factor, root.T @ told, lower=True)
    evidence += 0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
    spread = root @ solve_triangular(factor, eye, lower=True).T
    shared = spread @ white
    mean = shared + np.einsum("aij,aj->ai", given, vector - information @ shared)
    return Solution(
        evidence=evidence,
        mean=mean,
        own=given,
        carried=spread - given @ (information @ spread),
        root=spread,
        said=said,
        score=vector - np.einsum("aij,aj->ai", information, mean),
    )


def _root_from_one(matrix: FloatArray) -> FloatArray:
    """The Cholesky root of a matrix whose eigenvalues are 1 or more but for rounding.

    Where an arm is known far better than others, differences of large numbers round below.
    """
    try:
        return np.asarray(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return np.asarray(np.linalg.cholesky((vectors * np.maximum(values, 1.0)) @ vectors.T))


_STEPS = 25
# Added to every prior variance, as a share of the mean one, so that there is a root.
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class ArmPrior:
    """Candidates for the common part and for the own part of every arm."""

    candidates: Candidates
    norm_bound: float
    intercept_bound: float | None = None  # B, where rewards have a range and hence a level
    reach: float = 1.0

    @cached_property
    def parts(self) -> FloatArray:
        """``P_k``: the constant, then the kernels."""
        return np.roll(self.candidates.and_constant, 1, axis=0)

    @cached_property
    def expected(self) -> FloatArray:
        """Logarithms of the expected weights, common ones first."""
        shares = self.candidates.shares
        both = [CONSTANT, *(CONTEXT * shares), ACTION, *(INTERACTION * shares)]
        expected = np.log(
            np.array(both) * PRIOR_SECOND_MOMENT * (self.reach * self.norm_bound) ** 2
        )
        if self.intercept_bound is not None:
            expected[0] = 2 * log(INTERCEPT_DEVIATION * self.intercept_bound)
        return np.asarray(expected)

    def covariances(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``S`` and ``D`` under these log weights."""
        count, eye = len(self.parts), np.eye(self.parts.shape[1])
        t = np.exp(np.clip(x, -30.0, 10.0)).reshape(2, count)
        # Of the expected size, not of this one: it must not move with the weights.
        least = _LEAST * float(np.exp(self.expected).sum()) / len(eye)
        found = np.tensordot(t, self.parts, 1) + least * eye
        return found[0], found[1]

    def root(self, state: Believed) -> FloatArray:
        """Of the prior of every arm, under the weights of the posterior."""
        assert state.weights is not None
        root = np.linalg.cholesky(sum(self.covariances(state.weights)))
        return np.broadcast_to(root, (len(state.mean), *root.shape))

    def of_shares(self, scale: float) -> FloatArray:
        """Variances of a function with values between 0 and 1, such as a rate."""
        expected = np.diag(sum(self.covariances(self.expected)))
        return np.asarray(PRIOR_SECOND_MOMENT * scale**2 * expected / expected.sum())

    def variance(self, state: Believed) -> FloatArray:
        """Of an arm's coefficients, under the weights of the posterior."""
        assert state.weights is not None
        return np.diag(sum(self.covariances(state.weights)))

    def level(self, state: Believed) -> float:
        """Of the own part of an arm's level, its first coefficient."""
        assert state.weights is not None
        return float(self.covariances(state.weights)[1][0, 0])

    def again(self, belief: Belief, weights: FloatArray | None) -> ArmPosterior:
        """The posterior under these log weights."""
        x = self.expected if weights is None else weights
        found = solve(belief.information, belief.vector, *self.covariances(x))
        return ArmPosterior(mean=found.mean, own=found.own, carried=found.carried, weights=x)

    def infer(self, belief: Belief, near: "Believed | None" = None) -> ArmPosterior:
        """Under the weights of largest evidence; ``near``: the posterior before, to start at.

        Within what the releases leave room for (learners/boundary.py).
        """
        reach = size_reach(belief, self.norm_bound)
        if self.intercept_bound is not None and belief.ends:
            found = replace(self, reach=reach)._found(belief, near)
            # The constant is the first coordinate of every arm.
            level = found.mean[:, 0]
            deviation = float(np.sqrt(found.covariance[:, 0, 0]).mean())
            reach = min(reach, room_of(float(level.mean()), deviation, self.intercept_bound))
        return (self if reach == self.reach else replace(self, reach=reach))._found(belief, near)

    def _found(self, belief: Belief, near: "Believed | None") -> ArmPosterior:
        weights, evidence = self.expected, 0.0
        if belief.epochs and belief.information.any():
            start = weights if near is None or near.weights is None else near.weights
            weights, evidence = self._preferred(belief, start)
        return replace(self.again(belief, weights), evidence=evidence)

    def loss(
        self, x: FloatArray, information: FloatArray, vector: FloatArray
    ) -> tuple[float, FloatArray]:
        """Minus log evidence and log prior of the weights, and its gradient."""
        found = solve(information, vector, *self.covariances(x))
        away = x - self.expected
        pull = self._precision @ away
        return 0.5 * float(away @ pull) - found.evidence, pull - self._slope(x, found)

    def _slope(self, x: FloatArray, found: Solution) -> FloatArray:
        """``t_k / 2 <P_k, slope>`` for every weight."""
        common, own = found.slopes()
        inner = np.concatenate(
            [np.tensordot(self.parts, common, 2), np.tensordot(self.parts, own, 2)]
        )
        return np.asarray(0.5 * np.exp(np.clip(x, -30.0, 10.0)) * inner)

    @cached_property
    def _precision(self) -> FloatArray:
        return np.asarray(np.linalg.inv(doubt_of(len(self.expected))))

    def _preferred(self, belief: Belief, start: FloatArray) -> tuple[FloatArray, float]:
        """Of largest evidence. Arms that were never played say nothing of weights."""
        seen = belief.information.any(axis=(1, 2))
        loss = partial(self.loss, information=belief.information[seen], vector=belief.vector[seen])
        return least(loss, start, self.expected, _STEPS)
