"""Projected features: the coordinates in which a reward is encoded and an estimate is decoded.

The paper projects the feature map ``phi`` onto the span of public draws ``S`` and whitens it with
the covariance of public draws ``R``:

    psi(w) = (K_SR K_RS + tau K_SS)^-1/2 k_S(w)                     Alg. 1, line 13

Everything downstream needs only two functions of a pair ``w``: ``psi(w)`` and
``sigma~^2(w) = phi(w)^T (P_S Phi_R Phi_R^T P_S + tau Id)^-1 phi(w)``. Two implementations share
this interface and agree: ``DenseFeatures`` of :mod:`capri.dense_features` is the textbook form, a
reference that needs ``|S| x |S|`` matrices; :class:`LowRankFeatures` is the product, with matrices
of the size of the numerical rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.kernels import Kernel
from capri.spaces import Actions, context_chunks

# Below this residual a new pivot would be made of rounding errors only.
NUMERICAL_RANK = 1e-12
# Below this ridge rounding errors of kernel values count; policies take none so small.
_TINY_RIDGE = 1e-9
_FEW_POINTS = 256


class ProjectedFeatures(ABC):
    """Whitened features of an epoch, fixed before its first decision.

    ``psi(w) = W^T k_points(w)`` with the points and the matrix ``W`` of the implementation.
    """

    tau: float

    @property
    @abstractmethod
    def points(self) -> FloatArray:
        """Rows whose kernels span the features."""

    @property
    @abstractmethod
    def to_whitened(self) -> FloatArray:
        """``W``: from kernel values at the points to ``psi``."""

    @abstractmethod
    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """``k_points(w)``, one row per pair."""

    @abstractmethod
    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """``sigma~^2(w)`` (Eqn projected_variance divided by tau), one value per pair."""

    @property
    def rank(self) -> int:
        """Dimension of the whitened feature, hence of the released vector."""
        return int(self.to_whitened.shape[1])

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)``, one row per pair. A row does not depend on the rows beside it, to the bit."""
        return row_by_row(self.kernel_rows(pairs), self.to_whitened)

    def whitened_block(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)`` of many public pairs at once: faster, rounded differently in each batch."""
        return np.asarray(self.kernel_rows(pairs) @ self.to_whitened)

    def sent(self, pairs: FloatArray) -> FloatArray:
        """What the layout makes messages of: ``psi(w)``, or the number of its cell."""
        return self.whitened(pairs)

    def sent_block(self, pairs: FloatArray) -> FloatArray:
        """The same of many public pairs at once."""
        return self.whitened_block(pairs)

    def decoder(self, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points and weights with ``psi(w)^T vector = k_points(w)^T weights`` for every ``w``."""
        return self.points, np.asarray(self.to_whitened @ vector)


def row_by_row(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """``rows @ matrix`` with one small product per row instead of one large one.

    BLAS rounds a row differently in batches of different sizes, and a contribution must not depend
    on who else is in the batch.
    """
    return np.asarray(np.matmul(rows[:, None, :], matrix)[:, 0, :])


# What is made of numbers before they are multiplied once more: a device settles those near 0.
Settle = Callable[[FloatArray], FloatArray]


def as_they_are(values: FloatArray) -> FloatArray:
    """The same numbers."""
    return values


class Function(ABC):
    """A public function of pairs, as a row map times weights."""

    weights: FloatArray

    @abstractmethod
    def __call__(self, pairs: FloatArray) -> FloatArray:
        """Evaluate on pairs of any leading shape; a value does not depend on its neighbours."""


class Span(ABC):
    """Finitely many functions of pairs: ``v(w) = T^T rows(w)``, with ``T`` the identity or not."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of coordinates."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Numbers of a pair."""

    def on_rows(self, shape: FloatArray) -> FloatArray:
        """``T A``: what is to be multiplied by coordinates, for rows."""
        return np.ascontiguousarray(shape)

    @abstractmethod
    def rows(self, pairs: FloatArray) -> FloatArray:
        """The rows that coordinates are made of, for pairs of any leading shape."""

    def coordinates(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape.

        Pairs given as ``(contexts, actions, d)`` are multiplied one context at a time: BLAS rounds
        a product by its size, and what one context gets must not depend on those beside it.
        """
        return self.rows(pairs)

    @abstractmethod
    def values(self, pairs: FloatArray, coefficients: FloatArray) -> FloatArray:
        """``v(w)^T coefficients`` of ``(contexts, actions, d)`` pairs, for several columns."""

    def values_at(
        self, actions: Actions, contexts: FloatArray, coefficients: FloatArray
    ) -> FloatArray:
        """The same for all actions of some contexts; pairs are not made where nobody needs them."""
        return self.values(actions.pairs(contexts), coefficients)

    @abstractmethod
    def played(
        self, actions: Actions, contexts: FloatArray, row: IntArray, action: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Public pairs ``(contexts[row], action)`` and their coordinates."""

    def residual(self, pairs: FloatArray, coordinates: FloatArray) -> FloatArray:
        """What the coordinates leave out of each pair, as a variance.

        0 where that is part of what rewards do not tell, and measured as noise.
        """
        return np.zeros(coordinates.shape[:-1])

    def evaluated(self, pairs: FloatArray, weights: FloatArray) -> FloatArray:
        """``rows(w)^T weights`` of pairs of any leading shape, each by itself."""
        flat = self.rows(pairs)
        # einsum instead of BLAS, which rounds a row differently in batches of different sizes.
        values = np.einsum("ij,j->i", flat.reshape(-1, flat.shape[-1]), weights)
        return np.asarray(values.reshape(pairs.shape[:-1]))

    def weighted(self, weights: FloatArray) -> "SpanFunction":
        """``rows(w)^T weights``."""
        return SpanFunction(self, weights)

    def function(self, coefficients: FloatArray) -> "SpanFunction":
        """``v(w)^T coefficients``."""
        return self.weighted(self.on_rows(coefficients))


@dataclass(frozen=True, eq=False)
class SpanFunction(Function):
    """``rows(w)^T weights``."""

    basis: Span
    weights: FloatArray

    def __call__(self, pairs: FloatArray) -> FloatArray:
        """Evaluate on pairs of any leading shape; a value does not depend on its neighbours."""
        return self.basis.evaluated(pairs, self.weights)


@dataclass(frozen=True, eq=False)
class Basis(Span):
    """Orthonormal coordinates of ``P_S phi(w)``, spanned by a few pivot points.

    ``v(w) = T^T k_pivots(w)`` with ``T`` of shape (pivots, rank) such that the rank columns are
    orthonormal in the RKHS, so ``<v(w), v(w')> = phi(w)^T P phi(w')``.
    """

    kernel: Kernel
    pivots: FloatArray
    transform: FloatArray
    settle: Settle = as_they_are

    @property
    def rank(self) -> int:
        """Number of coordinates."""
        return int(self.transform.shape[1])

    @property
    def columns(self) -> int:
        """Those of the pivots."""
        return int(self.pivots.shape[1])

    def on_rows(self, shape: FloatArray) -> FloatArray:
        """``T A``."""
        return np.ascontiguousarray(self.transform @ shape)

    def rows(self, pairs: FloatArray) -> FloatArray:
        """``k_pivots(w)`` for pairs of any leading shape."""
        rows = self.kernel(pairs.reshape(-1, pairs.shape[-1]), self.pivots)
        return np.asarray(rows.reshape(*pairs.shape[:-1], len(self.pivots)))

    def coordinates(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape."""
        return self.settle(np.asarray(self.rows(pairs) @ self.transform))

    def values(self, pairs: FloatArray, coefficients: FloatArray) -> FloatArray:
        """``v(w)^T coefficients``: one product per context."""
        return np.asarray(self.rows(pairs) @ (self.transform @ coefficients))

    def played(
        self, actions: Actions, contexts: FloatArray, row: IntArray, action: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Pairs and their coordinates, some at a time."""
        pairs = actions.chosen(contexts[row], action)
        features = np.empty((len(pairs), self.rank))
        for part in context_chunks(len(pairs), 1):
            features[part] = self.coordinates(pairs[part])
        return pairs, features

    def residual(self, pairs: FloatArray, coordinates: FloatArray) -> FloatArray:
        """``k(w, w) - |v(w)|^2 >= 0``: the part of ``phi(w)`` outside the span."""
        inside = np.einsum("...j,...j->...", coordinates, coordinates)
        diagonal = self.kernel.diagonal(pairs.reshape(-1, pairs.shape[-1]))
        return np.asarray(np.maximum(diagonal.reshape(inside.shape) - inside, 0.0))


def greedy_basis(kernel: Kernel, points: FloatArray, *, tolerance: float, max_rank: int) -> Basis:
    """Pivoted Cholesky on the points: ``v = L^-1 k_pivots``, never an inverse of ``K_SS``.

    Takes the point of largest residual until every residual is at most ``tolerance`` or
    ``max_rank`` pivots are chosen. Duplicates have residual zero and are never chosen twice.
    """
    from scipy.linalg import solve_triangular

    limit = min(max_rank, len(points))
    floor = max(tolerance, NUMERICAL_RANK)
    rows = np.empty((min(limit, 64), len(points)))  # row j: coordinate j of every point
    residual = kernel.diagonal(points).copy()
    # Of a few points one matrix takes less time than its columns one by one.
    whole = kernel(points, points) if len(points) <= _FEW_POINTS else None
    pivots: list[int] = []
    while len(pivots) < limit:
        pivot = int(residual.argmax())
        # A kernel may vanish everywhere (Linear at the origin); one pivot keeps shapes valid.
        if residual[pivot] <= floor and pivots:
            break
        j = len(pivots)
        if j == len(rows):  # grown as needed: the rank is rarely near its limit
            rows = np.concatenate([rows, np.empty((min(j, limit - j), len(points)))])
        if whole is None:
            column = kernel(points, points[pivot : pivot + 1])[:, 0]
        else:
            column = whole[:, pivot].copy()
        if j:
            column -= rows[:j, pivot] @ rows[:j]
        rows[j] = column / np.sqrt(max(residual[pivot], NUMERICAL_RANK))
        residual -= rows[j] ** 2
        pivots.append(pivot)
        residual[pivots] = 0.0
    lower = np.tril(rows[: len(pivots), pivots].T)
    np.fill_diagonal(lower, np.maximum(lower.diagonal(), np.sqrt(NUMERICAL_RANK)))
    transform = solve_triangular(lower, np.eye(len(pivots)), lower=True).T
    return Basis(kernel, np.ascontiguousarray(points[pivots]), np.ascontiguousarray(transform))


def spectral_basis(
    kernel: Kernel, sample: FloatArray, *, tolerance: float, max_rank: int
) -> tuple[Basis, FloatArray]:
    """A basis ordered by importance, and its spectrum ``lambda_j = E[v_j^2]`` over the sample.

    Pivoted Cholesky, rotated to the eigenvectors of ``E[v v^T]`` and cut where the share of
    ``E[k(w,w)]`` left out falls below the tolerance.
    """
    from scipy.linalg import eigh

    mean = float(kernel.diagonal(sample).mean())
    greedy = greedy_basis(kernel, sample, tolerance=0.1 * tolerance * mean, max_rank=max_rank)
    v = greedy.coordinates(sample)
    spectrum, vectors = eigh(v.T @ v / len(sample))
    spectrum, vectors = np.maximum(spectrum[::-1], NUMERICAL_RANK), vectors[:, ::-1]
    covered = np.cumsum(spectrum) / max(mean, NUMERICAL_RANK)
    rank = min(len(spectrum), int((covered <= 1 - tolerance).sum()) + 1)
    transform = np.ascontiguousarray(greedy.transform @ vectors[:, :rank])
    return Basis(kernel, greedy.pivots, transform), spectrum[:rank]


def distinct(points: FloatArray) -> tuple[FloatArray, IntArray]:
    """Distinct rows in order, and how often each occurs: draws from finite sets repeat.

    As ``np.unique(axis=0)``, which compares rows as records and takes several times as long.
    """
    rows = points[np.lexsort(points.T[::-1])]
    first = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return rows[first], np.diff(first, append=len(rows)).astype(np.int64)


def whitening_of(gram: FloatArray, tau: float) -> FloatArray:
    """A triangular ``A`` with ``A A^T = (gram + tau I)^-1``."""
    from scipy.linalg import cholesky, solve_triangular

    rank = len(gram)
    # A ridge lost in rounding would leave the matrix singular.
    ridge = max(tau, rank * np.finfo(np.float64).eps * float(np.trace(gram)))
    upper = cholesky(gram + ridge * np.eye(rank))
    return np.asarray(solve_triangular(upper, np.eye(rank)))


@dataclass(frozen=True, eq=False)
class LowRankFeatures(ProjectedFeatures):
    """``psi(w) = G^-1/2 v(w)`` with ``G = V_R^T V_R + tau I`` (rank x rank).

    ``whitening`` is any ``A`` with ``A A^T = G^-1``: the Gaussian is rotation invariant, so a
    Cholesky factor serves. ``sigma~^2(w) = |psi(w)|^2 + residual(w) / tau`` because ``phi(w)``
    splits into ``v(w)`` inside the span, where the operator is ``G``, and the residual outside,
    where it is ``tau``.
    """

    basis: Span
    whitening: FloatArray
    tau: float
    settle: Settle = as_they_are

    @classmethod
    def from_copies(
        cls,
        kernel: Kernel,
        basis_copy: FloatArray,
        covariance_copy: FloatArray,
        tau: float,
        *,
        tolerance: float,
        max_rank: int,
    ) -> "LowRankFeatures":
        """Build from the paper's draws ``S`` (basis copy) and ``R`` (covariance copy)."""
        points, _ = distinct(basis_copy)
        basis = greedy_basis(kernel, points, tolerance=tolerance, max_rank=max_rank)
        rows, counts = distinct(covariance_copy)
        gram = np.zeros((basis.rank, basis.rank))
        for start in range(0, len(rows), 4096):
            v = basis.coordinates(rows[start : start + 4096])
            gram += (v * counts[start : start + 4096, None]).T @ v
        return cls.from_covariance(basis, gram, tau)

    @classmethod
    def from_covariance(cls, basis: Span, gram: FloatArray, tau: float) -> "LowRankFeatures":
        """Build from ``V_R^T V_R`` or from its expectation ``n E[v v^T]``."""
        return cls(basis, whitening_of(gram, tau), tau)

    @property
    def rank(self) -> int:
        """Number of whitened coordinates, at most the rank of the basis."""
        return int(self.whitening.shape[1])

    @property
    def kernel_basis(self) -> Basis:
        """The basis, where it is one of pivots of a kernel."""
        if not isinstance(self.basis, Basis):
            raise ConfigurationError("these features are not made of one kernel")
        return self.basis

    @property
    def points(self) -> FloatArray:
        """The pivots."""
        return self.kernel_basis.pivots

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``T A``: public, like both factors."""
        return self.settle(self.basis.on_rows(self.whitening))

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)``, one row per pair. A row does not depend on the rows beside it, to the bit."""
        return self.settle(super().whitened(pairs))

    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """``k_pivots(w)``."""
        return self.basis.rows(pairs)

    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """``sigma~^2(w) = |psi(w)|^2 + residual(w) / tau``."""
        v = self.basis.coordinates(pairs)
        psi = v @ self.whitening
        residual = self.basis.residual(pairs, v)
        if self.tau < _TINY_RIDGE:
            # A residual made of rounding errors is none: so small a tau would blow it up.
            residual[residual <= np.finfo(np.float64).eps * self.basis.rank] = 0.0
        return np.asarray(np.einsum("ij,ij->i", psi, psi) + residual / self.tau)


@dataclass(frozen=True, eq=False)
class Predictor(Function):
    """``mu(w) = k_points(w)^T weights``."""

    kernel: Kernel
    points: FloatArray
    weights: FloatArray

    def __call__(self, pairs: FloatArray) -> FloatArray:
        """Evaluate on pairs of any leading shape; a value does not depend on its neighbours."""
        flat = pairs.reshape(-1, pairs.shape[-1])
        # einsum instead of BLAS, which rounds a row differently in batches of different sizes.
        values = np.einsum("ij,j->i", self.kernel(flat, self.points), self.weights)
        return np.asarray(values.reshape(pairs.shape[:-1]))
