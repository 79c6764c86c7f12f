"""The messages of a regression: counts of columns, and all second moments of a row.

A row is a vector ``s = [psi / C, t / sqrt(k)]``: whitened features capped to the unit ball and
``k`` targets in ``[-1, 1]``, so ``|s|^2 <= 2``. What is released is the matrix ``sum s s^T``: the
vector ``sum t psi`` that the paper releases, and beside it the realised covariance
``sum psi psi^T`` and the size ``sum t t^T`` of the targets. They cost nothing:

    |s s^T - z z^T|_F^2 = |s|^4 + |z|^4 - 2 (s.z)^2 <= 2 (|s|^2_max)^2 = 8,

while the two off-diagonal blocks alone, ``2 |t psi - t' psi'|^2``, already reach 8 (the same
features, opposite targets). The noise on the vector is the same with and without the rest.

A target may have a tail: a pair ``(t, u)`` in the unit disc instead of ``t`` in ``[-1, 1]``. What
exceeds the range of ``t`` is told by ``u``, and ``|s|^2 <= 2`` as before: tails are free as well.

Rows are rounded to integers before anything is multiplied, and products of integers below 2^53 are
exact in floating point whatever BLAS does: any order, any chunking and any number of workers give
the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import paper_noise_scale
from capri.privacy.layout import LARGEST_SUM, Block, Layout, consecutive
from capri.privacy.vector import within_norm

# Bits of one limb of a number, with privacy (its noise is 2^32 units wide) and without.
_PRIVATE_BITS, _EXACT_BITS = 15, 18
# Rows multiplied at once: 2^15 products below 2^36 stay exact in float64, and few enough rows stay
# in the processor's cache.
BLOCK_ROWS = 1 << 11


@dataclass(frozen=True, kw_only=True)
class MomentLayout(Layout):
    """Products above the diagonal of ``s s^T``, then the diagonal.

    ``limbs`` numbers of ``bits`` bits stand for one entry: one with privacy, two without, where no
    noise hides the rounding. ``noise_units`` is the standard deviation of the noise on a diagonal
    entry; above the diagonal, where a difference counts twice, it is ``sqrt(2)`` smaller.
    """

    features: int
    targets: int
    bits: int
    limbs: int
    tails: bool = False

    @property
    def level(self) -> int:
        """Norm limit of the features and of the targets of one row."""
        return 1 << (self.bits * self.limbs)

    @property
    def largest_target(self) -> int:
        """Integer of a target of size 1: ``|t|^2 <= k largest^2 <= level^2``."""
        return isqrt(self.level**2 // self.targets)

    @property
    def size(self) -> int:
        """Rows of the moment matrix."""
        return self.features + self.targets * (1 + self.tails)

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """One share squared is 1 and the other 2, as the Frobenius norm counts.

        Two limbs ``s = b h + l`` have ``s s^T = b^2 h h^T + b (h l^T + l h^T) + l l^T``.
        """
        square, base = self.level**2, 1 << self.bits
        above = (self.size * (self.size - 1) // 2, Fraction(2))
        diagonal = (self.size, Fraction(1))
        worths = {"": square}
        if self.limbs == 2:
            worths = {"high ": square // base**2, "cross ": square // base, "low ": square}
        sizes = {}
        for name, worth in worths.items():
            sizes[f"{name}products"] = (*above, square, float(worth))
            sizes[f"{name}diagonal"] = (*diagonal, square, float(worth))
        return consecutive(sizes)

    @property
    def diameter_squared(self) -> int:
        """``2 (|s|^2_max)^2 = 8 L^4`` in the Frobenius norm."""
        return 8 * self.level**4

    @property
    def unit(self) -> float:
        """Of the products of numbers."""
        return float(self.level) ** -2

    def rounded(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """Rows ``[q, t]`` in limbs, for features of norm and targets of size at most 1.

        With tails, targets are ``[t_1, ..., t_k, u_1, ..., u_k]``, each pair in the unit disc. All
        limits are enforced here in exact integers, whatever is given.
        """
        whole = np.empty((len(features), self.size))
        scaled = np.where(np.isfinite(features), features, 0.0)
        scaled *= self.level
        np.rint(scaled, out=scaled)
        whole[:, : self.features] = within_norm(scaled, self.level)
        clipped = np.clip(np.nan_to_num(targets), -1.0, 1.0)
        units = np.rint(clipped * self.largest_target)
        if self.tails:
            for output in range(self.targets):
                pair = [output, self.targets + output]
                units[:, pair] = within_norm(units[:, pair], self.largest_target)
        whole[:, self.features :] = units
        if self.limbs == 1:
            return whole
        high = np.rint(whole / (1 << self.bits))
        return np.concatenate([high, whole - high * (1 << self.bits)], axis=1)

    def empty(self) -> IntArray:
        """The sum over no rows."""
        return np.zeros(self.coordinates, dtype=np.int64)

    def total(self, features: FloatArray, targets: FloatArray) -> IntArray:
        """``sum s s^T`` over a block of rows, in the order of the blocks."""
        limbs, size = self.rounded(features, targets), self.size
        moments = (limbs.T @ limbs).astype(np.int64)
        parts = [moments]
        if self.limbs == 2:
            cross = moments[:size, size:] + moments[size:, :size]
            parts = [moments[:size, :size], cross, moments[size:, size:]]
        return np.concatenate(
            [each for part in parts for each in (part[self._above], np.diag(part))]
        )

    @cached_property
    def _above(self) -> tuple[IntArray, IntArray]:
        """The places above the diagonal."""
        return np.triu_indices(self.size, 1)

    def messages(self, features: FloatArray, values: FloatArray) -> IntArray:
        """The message of each row; ``values`` are its targets."""
        rows = zip(features[:, None], values[:, None], strict=True)
        return np.stack([self.total(*row) for row in rows])

    def matrix(self, numbers: FloatArray) -> FloatArray:
        """The moment matrix of ``s`` from released numbers."""
        entries = numbers.reshape(-1, self.size * (self.size + 1) // 2).sum(axis=0)
        matrix = np.zeros((self.size, self.size))
        matrix[self._above] = entries[: -self.size]
        matrix += matrix.T
        np.fill_diagonal(matrix, entries[-self.size :])
        return matrix


def moment_layout(
    *,
    features: int,
    targets: int,
    rows: int,
    budget: Budget | None,
    calibration: str = "analytic",
    tails: bool = False,
    share: float = 1.0,
    coordinates: int = 0,
) -> MomentLayout:
    """The integers for so many rows, and the noise that a budget needs.

    That of the exact Gaussian mechanism, or of the paper's formula where that is larger. ``share``:
    of ``mu^2``, where the rows are told in stages of so many ``coordinates`` together.
    """
    private = budget is not None
    layout = MomentLayout(
        features=features,
        targets=targets,
        bits=_PRIVATE_BITS if private else _EXACT_BITS,
        limbs=1 if private else 2,
        tails=tails,
        calibration=calibration,
    )
    if budget is None:
        if rows >= 1 << (62 - 2 * _EXACT_BITS):
            raise ConfigurationError(f"{rows} rows without privacy would overflow 64-bit integers")
        return layout
    paper = 0.0
    if calibration == "paper":
        # sigma_0 at sigma~_max = B = 1 hides a sensitivity of 2.
        paper = paper_noise_scale(budget, sigma_max=1.0, reward_bound=1.0, horizon=max(rows, 3))
    layout = layout.told_in_stages(
        budget,
        share,
        max(coordinates, layout.coordinates),
        at_least=paper / 2 * layout.diameter,
    )
    if rows * 2 * layout.level**2 + 64 * layout.noise_units >= LARGEST_SUM:
        raise ConfigurationError(
            f"{rows} rows at {budget} would overflow 64-bit integers: raise epsilon"
        )
    layout.check_width(budget)
    return layout
