"""The one secret of a regression: the second moments of its rows, as exact integers.

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

from dataclasses import dataclass, replace
from math import isqrt, sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, noise_multiplier, paper_noise_scale
from capri.privacy.grid import LARGEST_SUM, within_norm

# Bits of one limb of a number, with privacy (its noise is 2^32 units wide) and without.
_PRIVATE_BITS, _EXACT_BITS = 15, 18
# Rows multiplied at once: 2^15 products below 2^36 stay exact in float64, and few enough rows stay
# in the processor's cache.
BLOCK_ROWS = 1 << 11


@dataclass(frozen=True, kw_only=True)
class MomentGrid:
    """The integers in which second moments are summed.

    ``limbs`` numbers of ``bits`` bits stand for one entry: one with privacy, two without, where no
    noise hides the rounding. ``noise_units`` is the standard deviation of the noise on a diagonal
    entry in units; off the diagonal, where a difference counts twice, it is ``sqrt(2)`` smaller.
    """

    features: int
    targets: int
    bits: int
    limbs: int
    noise_units: float
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

    @property
    def coordinates(self) -> int:
        """Numbers released: the upper triangle."""
        return self.size * (self.size + 1) // 2

    @property
    def sensitivity(self) -> float:
        """Replace-one distance ``sqrt(2) |s|^2_max`` in the Frobenius norm, in units."""
        return sqrt(2) * 2 * float(self.level) ** 2

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
        return np.zeros((self.size * self.limbs,) * 2, dtype=np.int64)

    def total(self, features: FloatArray, targets: FloatArray) -> IntArray:
        """``sum s s^T`` over a block of rows."""
        limbs = self.rounded(features, targets)
        return np.asarray((limbs.T @ limbs).astype(np.int64))

    def exact(self, total: IntArray) -> FloatArray:
        """The moment matrix of ``s`` as numbers, from the two limbs of a run without privacy."""
        size, base = self.size, float(1 << self.bits)
        cross = total[:size, size:] + total[size:, :size]
        matrix = total[:size, :size] * base**2 + cross * base + total[size:, size:]
        return np.asarray(matrix / float(self.level) ** 2)


def make_moment_grid(
    *,
    features: int,
    targets: int,
    rows: int,
    budget: Budget | None,
    calibration: str = "analytic",
    tails: bool = False,
) -> MomentGrid:
    """The grid and the noise that a budget needs.

    ``noise_units = multiplier * sensitivity`` with the exact Gaussian mechanism, or with the
    paper's formula where that is larger.
    """
    if budget is None:
        if rows >= 1 << (62 - 2 * _EXACT_BITS):
            raise ConfigurationError(f"{rows} rows without privacy would overflow 64-bit integers")
        return MomentGrid(
            features=features,
            targets=targets,
            bits=_EXACT_BITS,
            limbs=2,
            noise_units=0.0,
            tails=tails,
        )
    plain = MomentGrid(
        features=features,
        targets=targets,
        bits=_PRIVATE_BITS,
        limbs=1,
        noise_units=0.0,
        tails=tails,
    )
    multiplier = noise_multiplier(budget, plain.coordinates) / 2
    if calibration == "paper":
        # sigma_0 at sigma~_max = B = 1 hides a sensitivity of 2.
        paper = paper_noise_scale(budget, sigma_max=1.0, reward_bound=1.0, horizon=max(rows, 3))
        multiplier = max(multiplier, paper / 2)
    scale = multiplier * plain.sensitivity
    if rows * 2 * plain.level**2 + 64 * scale >= LARGEST_SUM:
        raise ConfigurationError(
            f"{rows} rows at {budget} would overflow 64-bit integers: raise epsilon"
        )
    if scale / sqrt(2) < NOISE_UNITS:
        raise ConfigurationError(f"{budget} is out of reach of the integer noise: lower epsilon")
    return replace(plain, noise_units=scale)
