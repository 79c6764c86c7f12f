"""Candidates for a function of the columns of a table, all on one basis.

    f = constant + linear + a function of each column + smooth functions of all columns

Functions of a column are made of its pieces, those of all columns of a kernel of their ranks at
some pivots. Each candidate is scaled to mean square 1 under the law of the rows: its weight is a
share of ``E f^2``. With ``v`` the pieces and the coordinates of the kernel, ``C = E[v v^T]`` and
``P`` the covariance of their coefficients that is expected, the basis are the functions

    u = v^T L E D^-1/2,    P = L L^T,    L^T C L = E D E^T:

orthonormal under the law, and in the order of the variance ``D`` that is expected of each. In it,
candidate ``k`` is the prior covariance ``E[u v^T] S_k E[v u^T]``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import inf, sqrt
from operator import mul

import numpy as np
from scipy.linalg import block_diag

from capri.arrays import FloatArray, IntArray
from capri.features import Basis, spectral_basis
from capri.kernels import Categories, Columns, Kernel, Matern
from capri.regression.columns import Levels, Numbers, TableColumns

# Expected shares of E f^2: targets are seldom in the middle of their bounds.
_CONSTANT, _LINEAR, _TOGETHER = 2.0, 0.2, 0.2
# Smooth functions of all columns: nu, lengthscale in halves of sqrt(columns) widths, share.
_JOINT = ((inf, 1.0, 0.2), (2.5, 0.5, 0.15), (1.5, 0.25, 0.1))
# Functions that jump: how often columns are cut, share.
_CUTS = ((4, 0.1), (12, 0.1))
# More columns than this share their candidates.
_MOST_COLUMNS = 16
# Levels of a category share this much of what is learnt in the basis.
_SIMILARITY = 0.5
# Coordinates of the kernel, and rows that they and their candidates are found on.
_COORDINATES, _ROWS, _COMPARED = 120, 2000, 1500
# Coordinates below this share of the expected variance are left out.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class TableBasis:
    """``v(x) = T^T [k(z(x), z(pivots)), pieces(x)]``: entries of the rows lie in [0, 1]."""

    kernel: Kernel
    pivots: FloatArray
    transform: FloatArray
    table: TableColumns

    @property
    def rank(self) -> int:
        """Number of coordinates."""
        return int(self.transform.shape[1])

    def rows(self, rows: FloatArray) -> FloatArray:
        """What coordinates are made of."""
        table = self.table
        values = self.kernel(table.scores(rows), table.scores(self.pivots))
        return np.concatenate([values, table.pieces(rows)], axis=1)

    def coordinates(self, rows: FloatArray) -> FloatArray:
        """``v(x)``."""
        return np.asarray(self.rows(rows) @ self.transform)


# What stages are encoded in: that of a kernel that was told, or of a table.
RowBasis = Basis | TableBasis


def cells_of(basis: RowBasis) -> FloatArray:
    """How frequent cells are that a basis was made for, one column after the other."""
    if isinstance(basis, Basis):
        return np.empty(0)
    return np.concatenate([column.mass for column in basis.table.columns])


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFamily:
    """A basis, and the prior covariance of its coefficients under each candidate."""

    basis: TableBasis
    names: tuple[str, ...]
    shares: FloatArray
    covariances: FloatArray

    def cut(self, rank: int) -> "TableFamily":
        """The first coordinates only."""
        transform = np.ascontiguousarray(self.basis.transform[:, :rank])
        basis = replace(self.basis, transform=transform)
        return replace(self, basis=basis, covariances=self.covariances[:, :rank, :rank])

    def left_out(self, weights: FloatArray) -> float:
        """Mean square, under the law, of what functions of these weights have outside the basis."""
        inside = np.trace(self.covariances, axis1=1, axis2=2)
        return float(weights @ np.maximum(1 - inside, 0.0))


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Functions of some of the coordinates ``v``, with this covariance of their coefficients."""

    name: str
    share: float
    places: IntArray
    covariance: FloatArray
    outside: float = 0.0  # mean square of what no coordinate can follow

    def scaled(self, second: FloatArray) -> "_Candidate":
        """With mean square 1, outside of the coordinates too; ``second`` is ``E[v v^T]``."""
        size = float(np.sum(self.covariance * second[np.ix_(self.places, self.places)]))
        size = max(size + self.outside, 1e-300)
        return replace(self, covariance=self.covariance / size, outside=self.outside / size)


def table_family(table: TableColumns, sample: FloatArray, *, max_rank: int) -> TableFamily:
    """Candidates for rows with the law of a sample."""
    scores, pieces = table.scores(sample), table.pieces(sample)
    kernel = _on(table, Matern(nu=2.5, lengthscale=_reach(table)), _SIMILARITY)
    joint, _ = spectral_basis(kernel, scores[:_ROWS], tolerance=1e-7, max_rank=_COORDINATES)
    v = np.concatenate([joint.coordinates(scores), pieces], axis=1)
    second = v.T @ v / len(v)
    together = _of_all(table, scores[:_COMPARED], v[:_COMPARED, : joint.rank])
    found = [*_of_columns(table, v), *together]
    found = [each.scaled(second) for each in found]
    axes = _axes(found, second, max_rank)
    # Rows of a basis are values at pivots, which become the coordinates of the kernel, and pieces.
    transform = np.concatenate([joint.transform @ axes[: joint.rank], axes[joint.rank :]])
    chosen = _places_of(scores, joint.pivots)
    onto = second @ axes
    return TableFamily(
        basis=TableBasis(kernel, sample[chosen], np.ascontiguousarray(transform), table),
        names=tuple(each.name for each in found),
        shares=np.array([each.share for each in found]),
        covariances=np.array(
            [onto[each.places].T @ each.covariance @ onto[each.places] for each in found]
        ),
    )


def _places_of(rows: FloatArray, chosen: FloatArray) -> IntArray:
    """Where chosen rows stand among all."""
    known = {row.tobytes(): place for place, row in reversed([*enumerate(rows)])}
    return np.array([known[row.tobytes()] for row in chosen], dtype=np.int64)


def _axes(found: Sequence[_Candidate], second: FloatArray, max_rank: int) -> FloatArray:
    """``L E D^-1/2``: coefficients of orthonormal functions, the most expected ones first."""
    total = np.zeros_like(second)
    for each in found:
        total[np.ix_(each.places, each.places)] += each.share * each.covariance
    total[np.diag_indices_from(total)] += 1e-10 * float(np.trace(total)) / len(total)
    lower = np.linalg.cholesky(total)
    values, vectors = np.linalg.eigh(lower.T @ second @ lower)
    kept = np.flatnonzero(values > _NEGLIGIBLE * values[-1])[::-1][:max_rank]
    return np.asarray(lower @ vectors[:, kept] / np.sqrt(values[kept]))


def _of_columns(table: TableColumns, v: FloatArray) -> Iterator[_Candidate]:
    """The constant, what is linear in ranks, and functions of each column.

    ``v``: coordinates of rows of the law, under which a function of a column has mean 0. Between
    knots with pieces ``h`` it has the variance ``k(z, z) - h^T k(knots, knots) h`` of its own.
    """
    mean = v.mean(axis=0)
    sizes = [len(column.shapes()[0][2]) for column in table.columns]
    ends = len(mean) - sum(sizes) + np.cumsum([0, *sizes])
    places = [np.arange(*pair) for pair in pairwise(ends)]
    yield _Candidate("constant", _CONSTANT, places[0], np.ones((sizes[0], sizes[0])))
    pairs = [*zip(table.columns, places, strict=True)]
    numbers = [(column, own) for column, own in pairs if isinstance(column, Numbers)]
    if numbers:
        lines = [np.outer(column.knots - 0.5, column.knots - 0.5) for column, _ in numbers]
        yield _joined("linear", _LINEAR, [own for _, own in numbers], lines)
    several = len(numbers) > _MOST_COLUMNS
    shared: dict[str, list[tuple[IntArray, FloatArray, float]]] = {}
    for column, own in pairs:
        chances = mean[own] / float(mean[own].sum())
        centred = np.eye(len(own)) - chances
        for kind, share, covariance in column.shapes():
            values = centred @ covariance @ centred.T
            told = np.einsum("ij,ij->i", v[:, own] @ covariance, v[:, own])
            between = float(np.maximum(covariance.diagonal().max() - told, 0.0).mean())
            if several and isinstance(column, Numbers):
                shared.setdefault(kind, []).append((own, values, between))
                continue
            part = share / len(pairs)
            yield _Candidate(f"{kind} {column.places[0]}", part, own, values, between)
    for kind, parts in shared.items():
        share = sum(each[1] for each in numbers[0][0].shapes() if each[0] == kind)
        part = share * len(parts) / len(pairs)
        joined = _joined(
            f"each {kind} by itself", part, [own for own, _, _ in parts], [b for _, b, _ in parts]
        )
        yield replace(joined, outside=sum(between for _, _, between in parts))


def _joined(
    name: str, share: float, places: Sequence[IntArray], blocks: Sequence[FloatArray]
) -> _Candidate:
    """Unrelated functions of several columns as one candidate."""
    return _Candidate(name, share, np.concatenate(places), np.asarray(block_diag(*blocks)))


def _of_all(table: TableColumns, scores: FloatArray, u: FloatArray) -> Iterator[_Candidate]:
    """Functions of all columns, where ``u`` are coordinates of the kernel at rows of the law.

    ``S = Q E[u k u^T] Q``, ``Q = E[u u^T]^-1``: the coefficients that come nearest to a function.
    """
    places, count = np.arange(u.shape[1]), len(u)
    onto = np.linalg.pinv(u.T @ u / count) @ u.T / count
    smooth = ((name, share, each(scores, scores)) for name, share, each in _joint_kernels(table))
    for name, share, values in (*smooth, *_cut(table, scores)):
        found = onto @ values @ onto.T
        inside = float(np.sum(found * (u.T @ u))) / count
        outside = max(float(values.trace()) / count - inside, 0.0)
        yield _Candidate(name, share, places, (found + found.T) / 2, outside)


def _joint_kernels(table: TableColumns) -> Iterator[tuple[str, float, Kernel]]:
    """Name, expected share and kernel of scores of each."""
    levels = any(isinstance(column, Levels) for column in table.columns)
    if all(isinstance(column, Levels) for column in table.columns):
        yield "all columns, levels alike", _TOGETHER, _on(table, None, _SIMILARITY)
        return
    for kind, scale, share in _JOINT:
        name = f"all columns, {'endlessly' if kind == inf else f'{kind - 0.5:g} times'} smooth"
        kernel, part = Matern(kind, scale * _reach(table)), share / (1 + levels)
        yield name, part, _on(table, kernel, 1.0)
        if levels:
            yield f"{name}, each level its own", part, _on(table, kernel, 0.0)


def _cut(table: TableColumns, scores: FloatArray) -> Iterator[tuple[str, float, FloatArray]]:
    """Name, share and kernel values of functions that are constant where nothing cuts.

    Each cut halves a column anywhere, a number between two ranks or the levels of a category by
    lot, and separates two rows with the mean of their distances ``|z - z'|`` or ``1{differ} / 2``.
    After ``t`` cuts on the average, they are still together with probability ``exp(-t distance)``.
    """
    distance = np.zeros((len(scores), len(scores)))
    for column in table.columns:
        own = scores[:, list(column.places)]
        for place in range(own.shape[1]):
            distance += np.abs(own[:, None, place] - own[None, :, place]) / (
                4.0 if isinstance(column, Levels) else 1.0
            )
    distance /= len(table.columns)
    for times, share in _CUTS:
        yield f"all columns, cut {times} times", share, np.exp(-times * distance)


def _reach(table: TableColumns) -> float:
    """``sqrt(d) / 2``: a usual distance of the ranks of two rows."""
    return sqrt(max(1, sum(isinstance(column, Numbers) for column in table.columns))) / 2


def _on(table: TableColumns, kernel: Kernel | None, similarity: float) -> Kernel:
    """The kernel of the ranks, times one of equality for every category where levels differ."""
    numbers = [each.places[0] for each in table.columns if isinstance(each, Numbers)]
    parts: list[Kernel] = []
    if numbers and kernel is not None:
        parts.append(Columns(kernel, tuple(numbers)))
    if similarity < 1:
        levels = [each.places for each in table.columns if isinstance(each, Levels)]
        parts += [Columns(Categories(similarity), own) for own in levels]
    return reduce(mul, parts)
