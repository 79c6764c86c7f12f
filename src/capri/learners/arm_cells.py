"""Cells of contexts, for every arm as many as its plays can tell apart.

A message of one cell needs far less noise than one of a whole block: in L1 it has one coordinate.
So an arm of few plays has one cell, all contexts together, and its sums are those of a private
context-free bandit. Where the coming plays rise above their noise it has 2, 4, 8, ... cells.

Cells are those of the nearest centre, in coordinates in which what is unknown of the arm is white:
with ``F F^T`` the covariance of its coefficients and ``T`` the directions of most variance under
the law of play, ``z(c) = T^T F^T u(c)``. Centres are doubled and moved to the means of their cells
(Linde, Buzo & Gray 1980): no draw is needed. Of a number of cells the predicted error is

    tr((I + H^T R^-1 H)^-1 E[z z^T]),   H_q = n E[1_q z^T],   R_q = noise^2 + n v E[1_q]

and the number with the smallest is taken. All of it is made of laws, plans and earlier releases.
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray, IntArray

# Cells of an arm at most, and directions in which they are apart.
_MOST, _DIRECTIONS = 32, 8
# Directions with less than this share of the largest variance are left out.
_NEGLIGIBLE = 1e-6
# Moves of the centres after each doubling.
_MOVES = 3


@dataclass(frozen=True, eq=False)
class ArmShape:
    """A shape and offsets, as in ArmFeatures, and the variance that they are predicted to leave."""

    shape: FloatArray
    offset: FloatArray
    left: float


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What sums of cells will be made of: plays, noise, and variance of a residual."""

    length: float
    noise: float
    variance: float

    def left(self, z: FloatArray, weights: FloatArray, label: IntArray, count: int) -> float:
        """What the sums of these cells leave of ``E[z z^T]``, by its trace.

        With ``K = R + H H^T`` the trace is that of before less ``tr(K^-1 H E[z z^T] H^T)``.
        """
        mass, means = _sums(z, weights, label, count)
        design = self.length * means
        seen = design @ design.T
        seen[np.diag_indices(count)] += self.noise**2 + self.length * self.variance * mass
        second = (z * weights[:, None]).T @ z
        gain = np.linalg.solve(seen, design @ second) * design
        return float(np.trace(second) - gain.sum())


def cells_of(u: FloatArray, weights: FloatArray, factor: FloatArray, sums: Sums) -> ArmShape:
    """The cells of an arm: at contexts ``u`` it is played with these weights.

    More cells are tried as long as they help.
    """
    white = u @ factor
    spread, vectors = np.linalg.eigh((white * weights[:, None]).T @ white)
    kept = np.flatnonzero(spread > _NEGLIGIBLE * spread[-1])[::-1][:_DIRECTIONS]
    project = factor @ vectors[:, kept]
    z = u @ project
    centres = (weights @ z / weights.sum())[None]
    label = np.zeros(len(z), dtype=np.int64)
    best = ArmShape(project @ centres.T, _offset(centres), sums.left(z, weights, label, 1))
    while 2 * len(centres) <= min(_MOST, len(z)):
        centres, label = _doubled(z, weights, centres, label)
        found = sums.left(z, weights, label, len(centres))
        if found >= best.left:
            break
        best = ArmShape(project @ centres.T, _offset(centres), found)
    return best


def _offset(centres: FloatArray) -> FloatArray:
    """``|c|^2 / 2``: the nearest centre has the largest ``z^T c`` less this."""
    return np.asarray(0.5 * np.einsum("ij,ij->i", centres, centres))


def _doubled(
    z: FloatArray, weights: FloatArray, centres: FloatArray, label: IntArray
) -> tuple[FloatArray, IntArray]:
    """Every centre as two, apart in the direction in which its cell is widest; then the moves."""
    mass, squares = _sums(z**2, weights, label, len(centres))
    variance = squares / np.maximum(mass, 1e-300)[:, None] - centres**2
    apart = np.zeros_like(centres)
    widest = variance.argmax(axis=1)
    rows = np.arange(len(centres))
    apart[rows, widest] = np.sqrt(np.maximum(variance[rows, widest], 0.0))
    centres = np.concatenate([centres - apart, centres + apart])
    for move in range(_MOVES + 1):
        label = (z @ centres.T - _offset(centres)).argmax(axis=1)
        if move == _MOVES:
            break
        mass, means = _sums(z, weights, label, len(centres))
        full = mass > 0
        centres = means[full] / mass[full, None]
    return centres, label


def _sums(
    values: FloatArray, weights: FloatArray, label: IntArray, count: int
) -> tuple[FloatArray, FloatArray]:
    """The weight of every cell, and the weighted sum of the values in it."""
    member = (label[:, None] == np.arange(count)) * weights[:, None]
    return np.asarray(member.sum(axis=0)), np.asarray(member.T @ values)
