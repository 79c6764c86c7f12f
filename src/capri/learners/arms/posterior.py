"""What releases say of unrelated arms: ``theta_a = s + d_a``, something common and an own part.

With ``s ~ N(0, S)``, ``d_a ~ N(0, D)`` and information ``J_a``, ``h_a`` of every arm, all sums run
over arms and nothing is larger than one block:

    P_a = (D^-1 + J_a)^-1                      covariance of d_a where s is known
    M_a = J_a - J_a P_a J_a                    what arm a says of s
    F F^T = (S^-1 + sum_a M_a)^-1              covariance of s
    C_a = (I - P_a J_a) F                      how theta_a goes with s
    theta_a ~ N(E[s] + P_a (h_a - J_a E[s]),  P_a + C_a C_a^T)
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
from scipy.linalg import solve_triangular

from capri.arrays import FloatArray


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

    def mixed(self, mean: FloatArray, apart: FloatArray) -> "ArmPosterior":
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


def remaining(factor: FloatArray, awaited: FloatArray | None) -> FloatArray:
    """Roots of the covariances that will be left when awaited information is in.

    ``F (I + F^T J F)^-1/2`` for every arm: what data under way will settle need be neither
    explored nor asked about again.
    """
    if awaited is None:
        return factor
    values, vectors = np.linalg.eigh(factor.transpose(0, 2, 1) @ awaited @ factor)
    return np.asarray(factor @ (vectors / np.sqrt(1 + np.maximum(values, 0.0))[:, None, :]))


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
    factor = np.linalg.cholesky(eye + root.T @ said.sum(axis=0) @ root)
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
