"""A stage: how the rows of the data are encoded, and what their release tells.

Every row is in every stage, and the shares of ``mu^2`` of all stages sum to what was fixed before
the first (:mod:`capri.privacy.ledger`). A later stage encodes what the estimate of the earlier ones
missed: its targets are smaller, and with them the noise.

The bits of a row do not depend on who else is in its batch. BLAS adds up in an order that depends
on the size of a batch, but whole numbers are not rounded: with kernel values ``|k| <= 2^a`` and a
matrix ``W`` of whole numbers with

    2^a sum_i |W_ij| <= 2^53    for every column j,

every partial sum of a product is a whole number below 2^53, exact in any order. That costs a
rounding of the features by about ``(|W_j| 2^-a + sqrt(points) 2^-b) / sqrt(12)``, ``2^-b`` the unit
of the matrix: the same whenever a row comes. Where it is not small beside the units that features
are rounded to anyway, rows are multiplied one by one. Which of both is decided by public numbers.
"""

from dataclasses import dataclass
from functools import cached_property
from math import floor, log2, sqrt
from typing import Any, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.features import row_by_row
from capri.kernels import Constant, Sum
from capri.privacy.moments import BLOCK_ROWS, MomentLayout
from capri.regression.family import RowBasis, TableBasis
from capri.regression.tables import finite_rows

_EXACT = 53
# Bits of a kernel value that are tried.
_BITS = range(16, 30)
# Rows further out than this many box widths are moved to the edge, in fit and in predict.
MARGIN = 10.0
# The largest residual there is, in scaled targets: from one end of the range to the other; and the
# largest that a tail tells, in reaches: less noise than for the whole range.
_WHOLE, _FARTHEST = 2.0, 6.0
# Features may be rounded this many units of their grid before they come to it.
_UNITS = 4.0


@dataclass(frozen=True, eq=False)
class WholeProduct:
    """``rows -> rows @ matrix`` for kernel values near a centre, in whole numbers."""

    numbers: FloatArray  # the matrix in units, whole
    units: FloatArray  # what a unit of the product is, column by column
    fine: float  # units of one kernel value: a power of two
    centre: float
    of_centre: FloatArray  # what the centre adds to the product

    @classmethod
    def of(
        cls, matrix: FloatArray, bound: float, *, centre: float = 0.0, tolerance: float
    ) -> Self | None:
        """None where the features would be off by more than the tolerance, in any column."""
        heights = np.abs(matrix).sum(axis=0) + 1e-300
        best: tuple[float, float, FloatArray] | None = None
        for bits in _BITS:
            # Powers of two: scaling rounds nothing. Half a unit for each rounded number.
            fine = 2.0 ** floor(bits - log2(bound))
            room = 2.0 ** (_EXACT - bits) - len(matrix)
            scale = 2.0 ** np.floor(np.log2(room / heights))
            lost = np.sqrt(np.square(matrix).sum(axis=0) / 12) / fine
            found = float((lost + sqrt(len(matrix) / 12) * bound / scale).max())
            if best is None or found < best[0]:
                best = found, fine, scale
        assert best is not None
        lost_most, fine, scale = best
        if not (np.isfinite(scale).all() and lost_most <= tolerance):
            return None
        of_centre = centre * matrix.sum(axis=0)
        return cls(np.rint(matrix * scale), 1 / (fine * scale), fine, centre, of_centre)

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Rows of kernel values times the matrix."""
        units = rows - self.centre
        units *= self.fine
        found = np.rint(units, out=units) @ self.numbers
        found *= self.units
        found += self.of_centre
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class StageFeatures:
    """``psi(x) = A^T v(x)``: coordinates of a basis, whitened."""

    basis: RowBasis
    whitening: FloatArray

    @cached_property
    def to_whitened(self) -> FloatArray:
        """``T A``: from the rows of the basis to ``psi``."""
        return np.ascontiguousarray(self.basis.transform @ self.whitening)

    @cached_property
    def bound(self) -> tuple[float, float] | None:
        """``c`` and ``b`` such that rows of the basis lie within ``c +- b``; None if not known."""
        if isinstance(self.basis, TableBasis):
            return 0.0, 1.0
        diagonal = self.basis.kernel.constant_diagonal
        if diagonal is None:
            return None
        # |k - c| <= k(x, x) - c where a constant c is part of the kernel.
        kernel = self.basis.kernel
        level = kernel.left if isinstance(kernel, Sum) else None
        centre = level.variance if isinstance(level, Constant) else 0.0
        return centre, diagonal - centre

    def whitened_block(self, rows: FloatArray) -> FloatArray:
        """``psi`` of many public rows at once."""
        return np.asarray(self.basis.rows(rows) @ self.to_whitened)


@dataclass(frozen=True, kw_only=True, eq=False)
class Targets:
    """Targets of several outputs, clipped and scaled: ``t = (clip(y, low, high) - middle) / half``.

    In these units targets lie in ``[-1, 1]``. Values outside the bounds are clipped, not counted.
    """

    low: FloatArray
    high: FloatArray

    @property
    def middle(self) -> FloatArray:
        """What is predicted where nothing is known."""
        return np.asarray(self.low / 2 + self.high / 2)

    @property
    def half(self) -> FloatArray:
        """Half the range; 1 for an output whose bounds coincide."""
        half = self.high / 2 - self.low / 2
        return np.asarray(np.where(half > 0, half, 1.0))

    def scaled(self, y: FloatArray) -> FloatArray:
        """Into ``[-1, 1]``."""
        inside = np.minimum(np.maximum(y, self.low), self.high)
        return np.asarray((inside - self.middle) / self.half)


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePlan:
    """Everything about a stage that is decided before its rows are read.

    A row with leverage ``|psi| > C`` counts with weight ``w = C / |psi|`` in features and target
    alike: it stays a row of a weighted least-squares problem, so capping costs a little efficiency
    and no bias. ``baseline`` are coefficients on the pivots, one column per output; ``reach`` is
    the largest residual ``r`` that the target tells alone. A larger one turns the pair
    ``(t, u)`` on the unit circle so that still ``reach t + tail u = r``, up to ``farthest``.
    Stages of one ``table`` are over the same rows, and ``share`` is theirs of ``mu^2``.
    """

    number: int
    rows: int
    features: StageFeatures
    clip_norm: float
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    baseline: FloatArray
    reach: FloatArray
    layout: MomentLayout
    table: int = 1
    share: float = 1.0

    @property
    def stage(self) -> int:
        """Its number among the releases of the same rows: counts of columns are 0."""
        return self.number if self.share < 1 else 0

    @property
    def unit(self) -> FloatArray:
        """What a target of 1 on the grid is in scaled targets."""
        return np.asarray(self.reach * self.layout.level / self.layout.largest_target)

    @property
    def farthest(self) -> FloatArray:
        """The largest residual that is told at all."""
        return np.minimum(_WHOLE, _FARTHEST * self.reach)

    @property
    def tail(self) -> FloatArray:
        """What a tail of 1 is in scaled targets: ``reach^2 + tail^2 = farthest^2``."""
        return np.asarray(np.sqrt(self.farthest**2 - self.reach**2))

    @property
    def tail_unit(self) -> FloatArray:
        """What a tail of 1 on the grid is in scaled targets."""
        return np.asarray(self.tail * self.layout.level / self.layout.largest_target)

    def contributions(self, X: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``(w psi / C, w t)``, row by row: none depends on the rows beside it.

        Total: every row gives a bounded contribution. One with a NaN or an infinity in it gives
        zeros and still has its number and its lot; to refuse it, or to leave it out, would show.
        Where y has a column more than there are targets, it is a weight in [0, 1]: features and
        target are multiplied with its root.
        """
        y, weights = y[:, : self.layout.targets], y[:, self.layout.targets :]
        sensible = finite_rows(X, y)[:, None]
        with np.errstate(all="ignore"):  # a warning would tell of the row that overflows
            features, target = self._encoded(
                np.where(sensible, X, 0.0), np.where(sensible, y, self.targets.middle)
            )
        roots = np.sqrt(weights) if weights.shape[1] else np.ones_like(sensible, dtype=np.float64)
        roots = np.where(sensible, roots, 0.0)
        features *= roots  # what a row of other numbers gave is finite, and goes
        return features, target * roots

    @cached_property
    def _whole(self) -> WholeProduct | None:
        """The product in whole numbers where noise hides what it rounds."""
        within = self.features.bound
        if within is None or self.layout.noise_units == 0:
            return None
        centre, bound = within
        tolerance = _UNITS * self.clip_norm / self.layout.level
        return WholeProduct.of(self.features.to_whitened, bound, centre=centre, tolerance=tolerance)

    def _encoded(self, X: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The contributions of rows of finite numbers."""
        kernel = self.features.basis.rows(np.clip(X, *self.box))
        whole = self._whole
        psi = row_by_row(kernel, self.features.to_whitened) if whole is None else whole(kernel)
        residual = self.targets.scaled(y)
        if self.baseline.any():
            residual = residual - row_by_row(kernel, self.baseline)
        norms = np.sqrt(np.einsum("ij,ij->i", psi, psi))
        weight = (self.clip_norm / np.maximum(norms, self.clip_norm))[:, None]
        target = np.clip(residual / self.reach, -1.0, 1.0)
        if self.layout.tails:
            target = self._with_tails(residual)
        psi *= weight / self.clip_norm
        return psi, target * weight

    def _with_tails(self, residual: FloatArray) -> FloatArray:
        """``t`` and ``u`` of each output."""
        pairs = turned(np.abs(residual), self.reach, self.farthest)
        return np.asarray(np.concatenate(pairs, axis=1) * np.tile(np.sign(residual), 2))

    def total(self, X: FloatArray, y: FloatArray) -> IntArray:
        """Sum over these rows."""
        total = self.layout.empty()
        for first in range(0, len(X), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            total += self.layout.total(*self.contributions(X[rows], y[rows]))
        return total


def turned(size: FloatArray, reach: Any, farthest: Any) -> tuple[FloatArray, FloatArray]:
    """``t`` and ``u`` of residuals: ``reach cos(a) + tail sin(a) = size`` beyond the reach."""
    size = np.minimum(size, farthest)
    angle = np.arccos(reach / farthest) - np.arccos(size / farthest)
    beyond = size > reach
    return (
        np.asarray(np.where(beyond, np.cos(angle), size / reach)),
        np.asarray(np.where(beyond, np.sin(angle), 0.0)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class StageResult:
    """What a stage released, in the units of its plan."""

    plan: StagePlan
    covariance: FloatArray  # sum w^2 psi psi^T, noisy
    vector: FloatArray  # sum w^2 psi t, in scaled targets, noisy; one column per output
    squares: FloatArray  # sum w^2 t^2, in scaled targets, noisy; one per output
    tail_vector: FloatArray | None = None  # sum w^2 psi u, likewise, where tails are told
    tail_squares: FloatArray | None = None
    tail_products: FloatArray | None = None  # sum w^2 t u, likewise
    measured: bool = True  # whether the covariance was released, or is only the expected one

    @classmethod
    def read(cls, plan: StagePlan, moments: FloatArray) -> "StageResult":
        """Undo the scaling of the rows."""
        rank, outputs, unit = plan.layout.features, plan.layout.targets, plan.unit
        vectors, squares = moments[:rank, rank:], np.diag(moments)[rank:]
        products = np.diag(moments, outputs)[rank:]
        tails = plan.layout.tails
        return cls(
            plan=plan,
            covariance=moments[:rank, :rank] * plan.clip_norm**2,
            vector=vectors[:, :outputs] * (plan.clip_norm * unit),
            squares=squares[:outputs] * unit**2,
            tail_vector=vectors[:, outputs:] * (plan.clip_norm * plan.tail_unit) if tails else None,
            tail_squares=squares[outputs:] * plan.tail_unit**2 if tails else None,
            tail_products=products * unit * plan.tail_unit if tails else None,
        )

    @property
    def noise(self) -> tuple[float, FloatArray, FloatArray]:
        """Standard deviation of the noise on covariance entries, the vector and the squares.

        Of the covariance it is that beside the diagonal; on the diagonal it is ``sqrt(2)`` larger.
        """
        return self._noise(self.plan.unit)

    @property
    def tail_noise(self) -> tuple[float, FloatArray, FloatArray]:
        """The same for tails."""
        return self._noise(self.plan.tail_unit)

    def _noise(self, unit: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        plan = self.plan
        scale = plan.layout.noise_units / float(plan.layout.level) ** 2
        off = scale / np.sqrt(2)
        return off * plan.clip_norm**2, off * plan.clip_norm * unit, scale * unit**2
