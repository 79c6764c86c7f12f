"""What is believed of the function before a release: candidates whose weights the evidence finds.

``theta ~ N(0, sum_k t_k S_k)``. A kernel that was told is a single candidate, the identity in the
orthonormal coordinates of its own space; ``kernel="auto"`` has those of a
:class:`~capri.family.TableFamily`. Both choose ``log t`` by the same evidence.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.family import TableFamily
from capri.family.evidence import best_weights, log_evidence
from capri.features import Basis

# Directions of which a release tells less than this share of what is expected do not vote.
_NEGLIGIBLE = 1e-3
# Deviation of a log weight from its expectation: many rows must be able to rule roughness out.
_SPREAD = 6.0
# Shifts of all log weights that are weighed against each other.
_SHIFTS = (-2.0, -1.0, 0.0, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionPrior:
    """Candidates for one function, and their expected weights.

    Without a family the one candidate is the identity.
    """

    rank: int
    expected: FloatArray  # log weights
    family: TableFamily | None = None

    @cached_property
    def covariances(self) -> FloatArray:
        """``S_k``, ``(candidates, rank, rank)``."""
        return np.eye(self.rank)[None] if self.family is None else self.family.covariances

    def covariance(self, weights: FloatArray) -> FloatArray:
        """``sum_k t_k S_k``, and a little more so that it has a root."""
        total = np.einsum("k,kij->ij", np.exp(weights), self.covariances)
        total[np.diag_indices(self.rank)] += 1e-9 * np.trace(total) / self.rank
        return np.asarray(total)

    def preferred(self, information: FloatArray, vector: FloatArray) -> FloatArray:
        """Log weights of largest evidence."""
        e, b = self._voices(information, vector)
        if not len(b):
            return self.expected
        grams = np.array([e.T @ each @ e for each in self.covariances])
        return best_weights(b, grams, self.expected, self.expected, _SPREAD)[0]

    def plausible(
        self, information: FloatArray, vector: FloatArray, best: FloatArray
    ) -> list[tuple[FloatArray, float]]:
        """Log weights around the best and the expected ones, with their posterior chances.

        Few rows do not tell how large a function is, and widths must say so.
        """
        e, b = self._voices(information, vector)
        if not len(b):
            return [(self.expected, 1.0)]
        grams = np.array([e.T @ each @ e for each in self.covariances])
        found = [best + shift for shift in _SHIFTS]
        found += [
            self.expected + shift for shift in _SHIFTS if not np.array_equal(best, self.expected)
        ]
        logs = np.array([log_evidence(b, grams, each, self.expected, _SPREAD) for each in found])
        chances = np.exp(logs - logs.max())
        chances /= chances.sum()
        return [
            (each, float(chance))
            for each, chance in zip(found, chances, strict=True)
            if chance > _NEGLIGIBLE
        ]

    def _voices(self, information: FloatArray, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``E`` and ``b`` with information ``E E^T`` and vector ``E b``, up to the negligible.

        ``J = L^-T V D V^T L^-1`` with ``L L^T`` the expected prior, so ``E = L^-T V D^1/2``.
        """
        lower = np.linalg.cholesky(self.covariance(self.expected))
        values, vectors = np.linalg.eigh(lower.T @ information @ lower)
        kept = values > _NEGLIGIBLE
        root, axes = np.sqrt(values[kept]), vectors[:, kept]
        return np.linalg.solve(lower.T, axes * root), axes.T @ (lower.T @ vector) / root

    def left_out(
        self, basis: Basis, rows: FloatArray, v: FloatArray, weights: FloatArray
    ) -> FloatArray:
        """Variance at each row of what the basis cannot express."""
        if self.family is None:
            return np.asarray(np.exp(weights[0]) * basis.residual(rows, v))
        return self.family.left_out(rows, np.exp(weights))

    def shares(self, weights: FloatArray) -> dict[str, float]:
        """The share of ``E f^2`` of each candidate, by name."""
        names = ("kernel",) if self.family is None else self.family.names
        total = np.exp(weights)
        return dict(zip(names, (total / total.sum()).tolist(), strict=True))

    def cut(self, rank: int) -> "FunctionPrior":
        """For the first coordinates only."""
        family = None if self.family is None else self.family.cut(rank)
        return replace(self, rank=rank, family=family)


def told_prior(rank: int, scale: float) -> FunctionPrior:
    """Of a kernel that was told, with the expected variance of a coefficient."""
    return FunctionPrior(rank=rank, expected=np.log(np.array([scale])))


def family_prior(family: TableFamily, second_moment: float) -> FunctionPrior:
    """Of a family, where ``E f^2`` is expected to be this."""
    shares = family.shares / family.shares.sum()
    return FunctionPrior(
        rank=family.basis.rank, expected=np.log(shares * second_moment), family=family
    )
