"""A few combinations of the second moments instead of all of them, in exact integers.

The half-vector of a symmetric ``M`` is its diagonal and ``sqrt 2`` times the entries above it, so
that its Euclidean norm is the Frobenius norm of ``M``. A projection of it onto orthonormal rows
never lengthens a difference, hence is free as well, and 20 numbers need less noise drawn than the
11,475 of rank 150.

Orthonormal rows are not integers. So the rows are rounded to integers first and are public as
rounded: what is released is an exact integer combination, and the factor by which it may lengthen
is bounded in exact integers too.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import isqrt, sqrt
from typing import TypeVar

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import whole
from capri.errors import ConfigurationError

Rows = TypeVar("Rows", FloatArray, IntArray)

# A projection is scaled by 2^bits before it is rounded.
_BITS = 10
# Bounds that keep the exact check of a projection within 64 bits.
_LARGEST_ENTRY, _MOST_COLUMNS = 1 << 20, 1 << 21


def half_vector(matrix: FloatArray) -> FloatArray:
    """Diagonal, then ``sqrt 2`` times the entries above it: the Frobenius norm is kept.

    >>> half_vector(np.array([[1.0, 2.0], [2.0, 3.0]])).round(3).tolist()
    [1.0, 3.0, 2.828]
    """
    return np.concatenate([np.diag(matrix), sqrt(2) * matrix[np.triu_indices(len(matrix), 1)]])


def half_products(rows: Rows) -> Rows:
    """The squares of each row's numbers, then the products of any two, row by row.

    >>> half_products(np.array([[1, 2, 3]])).tolist()
    [[1, 4, 9, 2, 3, 6]]
    """
    first, second = np.triu_indices(rows.shape[1], 1)
    return np.concatenate([rows**2, rows[:, first] * rows[:, second]], axis=1)


def half_places(coordinates: IntArray, rank: int) -> IntArray:
    """Where the products of some coordinates stand among those of all.

    >>> half_places(np.array([0, 2]), 3).tolist()
    [0, 2, 4]
    """
    place = np.zeros((rank, rank), dtype=np.int64)
    place[np.triu_indices(rank, 1)] = rank + np.arange(rank * (rank - 1) // 2)
    own = place[np.ix_(coordinates, coordinates)]
    return np.concatenate([coordinates, own[np.triu_indices(len(coordinates), 1)]])


@dataclass(frozen=True)
class IntegerProjection:
    """Integer combinations ``R`` (a tuple for each row) of the diagonal and the products above it.

    Column order: ``psi_i^2`` for each ``i``, then ``psi_i psi_j`` for ``i < j`` row by row.
    """

    rank: int
    rows: tuple[tuple[int, ...], ...] = field(repr=False)

    def __post_init__(self) -> None:
        whole("rank", self.rank)
        columns = self.rank * (self.rank + 1) // 2
        if not self.rows or any(len(row) != columns for row in self.rows):
            raise ConfigurationError(
                f"a projection of moments of rank {self.rank} needs rows of {columns} numbers, "
                f"got {len(self.rows)} rows of {sorted({len(row) for row in self.rows})}"
            )
        if columns > _MOST_COLUMNS:
            raise ConfigurationError(
                f"a projection is of at most {_MOST_COLUMNS} second moments, got {columns}: lower "
                "the rank"
            )
        entries = np.array(self.rows)
        # Kind i or u: all of them are whole numbers that fit 64 bits.
        integers = entries.dtype.kind in "iu"
        if not integers or max(-int(entries.min()), int(entries.max())) > _LARGEST_ENTRY:
            raise ConfigurationError(
                f"the entries of a projection are whole numbers of at most {_LARGEST_ENTRY}: "
                "make them by integer_projection"
            )
        if not entries.any():
            raise ConfigurationError("a projection onto zero tells nothing: give it other rows")

    @classmethod
    def compacted(
        cls, rank: int, coordinates: IntArray | list[int], rows: IntArray | list[list[int]]
    ) -> "IntegerProjection":
        """From combinations of the products of some coordinates: the inverse of `compact`."""
        placed = np.zeros((len(rows), rank * (rank + 1) // 2), dtype=np.int64)
        placed[:, half_places(np.asarray(coordinates, dtype=np.int64), rank)] = rows
        return cls(rank, tuple(tuple(row) for row in placed.tolist()))

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return len(self.rows)

    @cached_property
    def norm_squared(self) -> Fraction:
        """``N^2`` with ``|R x|^2 <= N^2 |x|^2`` for half-vectors ``x``, proved in exact integers.

        ``R`` acts on entries above the diagonal without their ``sqrt 2``, so in terms of ``x`` it
        is ``R W^-1``, and ``N^2 >= lambda_max(R W^-2 R^T)``. By Gershgorin no eigenvalue exceeds
        the largest sum of absolute values in a row of that matrix.
        """
        square, above = self.matrix[:, : self.rank], self.matrix[:, self.rank :]
        # At most 2^21 columns of products below 2^41: exact in 64 bits. Sums of rows need not be.
        twice = 2 * (square @ square.T) + above @ above.T
        largest = max(sum(abs(number) for number in row) for row in twice.tolist())
        return Fraction(largest, 2)

    @property
    def norm(self) -> int:
        """``N`` rounded up: no number of one message exceeds ``N L^2``."""
        return isqrt(int(self.norm_squared)) + 1

    @cached_property
    def matrix(self) -> IntArray:
        """``R`` as an array."""
        return np.array(self.rows, dtype=np.int64)

    @cached_property
    def coordinates(self) -> IntArray:
        """The coordinates of ``psi`` whose products enter some combination."""
        first, second = np.triu_indices(self.rank, 1)
        entering = np.asarray(self.matrix.any(axis=0))
        above = entering[self.rank :]
        used = entering[: self.rank].copy()
        used[first[above]] = used[second[above]] = True
        return np.flatnonzero(used)

    @cached_property
    def compact(self) -> IntArray:
        """``R`` for the products of these :attr:`coordinates` alone; the others count for 0."""
        return np.ascontiguousarray(self.matrix[:, half_places(self.coordinates, self.rank)])

    @property
    def directions(self) -> FloatArray:
        """``R W^-1``: what the combinations are in terms of :func:`half_vector`."""
        directions = self.matrix.astype(float)
        directions[:, self.rank :] /= sqrt(2)
        return directions


def integer_projection(
    rows: FloatArray, rank: int, bits: int = _BITS, *, among: IntArray | None = None
) -> IntegerProjection:
    """Orthonormal rows, in terms of :func:`half_vector`, rounded to integers.

    ``among``: the coordinates of ``psi`` that the rows speak of, None for all of them. More
    ``bits`` waste less noise on directions that are not quite orthogonal any more (20 rows and 10
    bits: below one in a hundred), and leave fewer to the sums.
    """
    rows = np.asarray(rows, dtype=float)
    own = whole("rank", rank) if among is None else len(among)
    columns = own * (own + 1) // 2
    if rows.ndim != 2 or rows.shape[1] != columns or not 1 <= len(rows) <= columns:
        raise ConfigurationError(
            f"orthonormal rows of moments of rank {own} have shape (1 to {columns}, {columns}), "
            f"got {rows.shape}"
        )
    if not np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-6):
        raise ConfigurationError(
            "the rows of a projection must be orthonormal: take Q from numpy.linalg.qr(rows.T)"
        )
    weighted = rows * float(1 << whole("bits", bits))
    weighted[:, own:] *= sqrt(2)
    whole_rows = np.rint(weighted).astype(np.int64)
    if among is not None:
        return IntegerProjection.compacted(rank, among, whole_rows)
    return IntegerProjection(rank, tuple(tuple(row) for row in whole_rows.tolist()))
