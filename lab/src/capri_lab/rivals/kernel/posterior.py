"""Kernel ridge regression, one observation at a time, on finitely many pairs.

With ``k_t(x, x')`` the posterior covariance of a Gaussian process of prior covariance ``k`` after
observations with noise variance ``ridge``:

    mean_t(x)     = k_D(x)^T (K_DD + ridge I)^-1 y_D
    variance_t(x) = k(x, x) - k_D(x)^T (K_DD + ridge I)^-1 k_D(x)

(Rasmussen & Williams 2006, Eqns 2.25 and 2.26). Two forms: :class:`GridPosterior` is exact for any
kernel and holds a matrix over all pairs; :class:`WeightPosterior` works in the space of features
and is exact when those span the kernel. The tests compare both with scikit-learn.
"""

from typing import Protocol, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.blas import dsyrk

from capri.arrays import FloatArray, IntArray, one_blas_thread
from capri.features import greedy_basis
from capri.kernels import Kernel

# Distinct pairs gathered before the matrix over all pairs is brought up to date.
_BLOCK = 128
# Updates of an inverse before it is computed anew, which keeps rounding errors at their first size.
_REFRESH = 512
# Pairs up to which a matrix over all of them (200 MB) is held.
GRID_PAIRS = 5000
# Beyond: features that leave out at most this of k(x, x), at most so many.
_TOLERANCE, _MAX_RANK = 1e-6, 1000


class Posterior(Protocol):
    """Means and variances of the pairs of one context, as observations come in."""

    def at(self, context: int) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of every action in a context."""

    def observe(self, context: int, action: int, reward: float) -> None:
        """Take in one reward."""


def kernel_posterior(kernel: Kernel, pairs: FloatArray, actions: int, ridge: float) -> Posterior:
    """The exact posterior where a matrix over all pairs fits, else one on spanning features."""
    if len(pairs) <= GRID_PAIRS:
        return GridPosterior(kernel(pairs, pairs), actions, ridge)
    basis = greedy_basis(kernel, pairs, tolerance=_TOLERANCE, max_rank=_MAX_RANK)
    rows = basis.coordinates(pairs)
    return WeightPosterior(rows, actions, ridge, residual=basis.residual(pairs, rows))


@final
class GridPosterior:
    """Exact, over all pairs at once.

    Means and variances of all pairs are kept up to date by the rank-one formulas, with
    ``c = k_t(., x)`` the column of the pair observed,

        mean += c (y - mean(x)) / (ridge + c(x)),    variance -= c^2 / (ridge + c(x)).

    The covariance itself is brought up to date once for many distinct pairs ``D``, however often
    each was observed: with counts ``n`` and ``B = (K_DD + ridge diag(1 / n))^-1``, the new
    covariance is ``K - K_D B K_D^T``, and a column of it costs ``pairs x |D|`` operations until
    then. Play settles on few pairs, so the large product is rare.
    """

    def __init__(self, covariance: FloatArray, actions: int, ridge: float) -> None:
        """``covariance`` is the prior's, over all pairs; it is taken over and changed."""
        # Only the upper triangle is kept up to date: a symmetric update costs half.
        self._covariance = np.ascontiguousarray(covariance)
        self._actions = actions
        self._ridge = ridge
        self.mean: FloatArray = np.zeros(len(covariance))
        self.variance: FloatArray = covariance.diagonal().copy()
        block = min(_BLOCK, len(covariance))
        self._columns = np.empty((block, len(covariance)))
        self._inverse = np.zeros((block, block))
        self._place: dict[int, int] = {}
        self._counts: list[int] = []
        self._updates = 0

    def at(self, context: int) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of every action in a context."""
        place = slice(context * self._actions, (context + 1) * self._actions)
        return self.mean[place], np.maximum(self.variance[place], 0.0)

    def observe(self, context: int, action: int, reward: float) -> None:
        """Take in one reward."""
        pair = context * self._actions + action
        column = self._column(pair)
        total = self._ridge + float(column[pair])
        self.mean += column * ((reward - float(self.mean[pair])) / total)
        np.square(column, out=column)
        column /= total
        self.variance -= column
        self._updates += 1
        if self._updates % _REFRESH == 0:
            self._refresh()

    def _column(self, pair: int) -> FloatArray:
        """``k_t(., x)`` before the observation, which is then counted."""
        size = len(self._counts)
        known = self._place.get(pair)
        if known is not None:
            # K_D (I - B K_DD) e_j = K_D B e_j ridge / n_j.
            inverse, count = self._inverse[:size, :size], self._counts[known]
            row = inverse[known].copy()
            column = (row * (self._ridge / count)) @ self._columns[:size]
            # The diagonal entry ridge / n falls to ridge / (n + 1): Sherman and Morrison.
            change = -self._ridge / (count * (count + 1))
            inverse -= np.outer(row * (change / (1.0 + change * float(row[known]))), row)
            self._counts[known] += 1
            return np.asarray(column)
        if size == len(self._columns):
            self._flush()
            size = 0
        fresh = self._columns[size]
        fresh[:pair] = self._covariance[:pair, pair]
        fresh[pair:] = self._covariance[pair, pair:]
        cross = self._columns[:size, pair]
        weights = self._inverse[:size, :size] @ cross
        column = fresh - weights @ self._columns[:size]
        # A row and a column more: the inverse of a bordered matrix.
        schur = float(column[pair]) + self._ridge
        self._inverse[:size, :size] += np.outer(weights / schur, weights)
        self._inverse[size, :size] = self._inverse[:size, size] = -weights / schur
        self._inverse[size, size] = 1.0 / schur
        self._place[pair] = size
        self._counts.append(1)
        return np.asarray(column)

    def _refresh(self) -> None:
        """Compute ``B`` anew."""
        size = len(self._counts)
        pairs = list(self._place)
        matrix = self._columns[:size, pairs].copy()
        matrix[np.diag_indices(size)] += self._ridge / np.array(self._counts)
        self._inverse[:size, :size] = cho_solve(cho_factor(matrix), np.eye(size))

    def _flush(self) -> None:
        """``K <- K - K_D B K_D^T`` in the upper triangle."""
        size = len(self._counts)
        self._refresh()
        root = np.linalg.cholesky(self._inverse[:size, :size])
        halves = root.T @ self._columns[:size]
        # In Fortran's eyes the matrix is transposed: its lower triangle is our upper one.
        dsyrk(-1.0, halves.T, beta=1.0, c=self._covariance.T, trans=0, lower=1, overwrite_c=1)
        self._place.clear()
        self._counts.clear()


@final
class WeightPosterior:
    """The posterior of a linear function of features ``z``, with an optional rest outside them.

        mean(x) = z(x)^T V^-1 sum_s z_s y_s,    V = sum_s z_s z_s^T + ridge I
        variance(x) = ridge z(x)^T V^-1 z(x) + residual(x)

    ``residual(x) = k(x, x) - |z(x)|^2`` keeps what the features do not span uncertain for ever, as
    in BKB; it is 0 for a linear model.
    """

    def __init__(
        self, rows: FloatArray, actions: int, ridge: float, residual: FloatArray | None = None
    ) -> None:
        """One row of features per pair."""
        self.rows: FloatArray = np.ascontiguousarray(rows)
        self._actions = actions
        self._ridge = ridge
        self.residual: FloatArray = np.zeros(len(rows)) if residual is None else residual
        rank = rows.shape[1]
        self.gram: FloatArray = np.zeros((rank, rank))
        self.target: FloatArray = np.zeros(rank)
        self._inverse = np.eye(rank) / ridge
        self._weights = np.zeros(rank)
        self._updates = 0

    def at(self, context: int) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of every action in a context."""
        return self.of(slice(context * self._actions, (context + 1) * self._actions))

    def of(self, pairs: slice | IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of some pairs."""
        rows = self.rows[pairs]
        variance = self._ridge * np.einsum("ij,ij->i", rows @ self._inverse, rows)
        return rows @ self._weights, variance + self.residual[pairs]

    def observe(self, context: int, action: int, reward: float) -> None:
        """Take in one reward: Sherman and Morrison."""
        row = self.rows[context * self._actions + action]
        self.gram += np.outer(row, row)
        self.target += reward * row
        self._updates += 1
        if self._updates % _REFRESH == 0:
            self._solve()
            return
        towards = self._inverse @ row
        self._inverse -= np.outer(towards / (1.0 + float(row @ towards)), towards)
        self._weights = self._inverse @ self.target

    def set(self, counts: FloatArray, sums: FloatArray) -> None:
        """Start from the number and the sum of rewards of every pair."""
        seen = np.flatnonzero(counts)
        rows = self.rows[seen]
        self.gram = (rows * counts[seen, None]).T @ rows
        self.target = rows.T @ sums[seen]
        self._solve()

    def extend(self, column: FloatArray, counts: FloatArray, sums: FloatArray) -> None:
        """One feature more, for all pairs and all that was observed: the bordered inverse."""
        seen = np.flatnonzero(counts)
        weighted = counts[seen] * column[seen]
        cross = self.rows[seen].T @ weighted
        square = float(weighted @ column[seen])
        self.rows = np.column_stack([self.rows, column])
        self.residual = np.maximum(self.residual - column**2, 0.0)
        self.gram = np.block([[self.gram, cross[:, None]], [cross, square]])
        self.target = np.append(self.target, column[seen] @ sums[seen])
        towards = self._inverse @ cross
        schur = square + self._ridge - float(cross @ towards)
        corner = np.outer(towards / schur, towards)
        side = -towards[:, None] / schur
        self._inverse = np.block([[self._inverse + corner, side], [side.T, 1.0 / schur]])
        self._weights = self._inverse @ self.target

    def _solve(self) -> None:
        rank = len(self.gram)
        factor = cho_factor(self.gram + self._ridge * np.eye(rank))
        self._inverse = cho_solve(factor, np.eye(rank))
        self._weights = self._inverse @ self.target


def batch_posterior(
    kernel: Kernel, pairs: FloatArray, counts: FloatArray, sums: FloatArray, ridge: float
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of all pairs from the number and the sum of rewards of each.

    Repeated pairs count once with less noise: with means ``m_D`` of ``n_D`` rewards,
    ``mean(x) = k_D(x)^T (K_DD + ridge diag(1 / n_D))^-1 m_D``.
    """
    seen = np.flatnonzero(counts)
    cross = kernel(pairs, pairs[seen])
    matrix = cross[seen].copy()
    matrix[np.diag_indices(len(seen))] += ridge / counts[seen]
    with one_blas_thread():
        factor = cho_factor(matrix, lower=True)
        mean = cross @ cho_solve(factor, sums[seen] / counts[seen])
        explained = np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    return np.asarray(mean), np.asarray(np.maximum(kernel.diagonal(pairs) - explained, 0.0))


def optimistic(
    posterior: Posterior, context: IntArray, width: float
) -> tuple[IntArray, FloatArray]:
    """``argmax_x mean(x) + width sqrt(variance(x))`` for the one context, always played."""
    mean, variance = posterior.at(int(context[0]))
    best = int((mean + width * np.sqrt(variance)).argmax())
    return np.array([best]), np.ones(1)
