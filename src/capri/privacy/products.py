"""The message of exact products: everything a learner may want to know, most of it at no cost.

With ``|psi| <= 1``, ``|t| <= 1`` and ``e`` in ``[0, 1]`` a user sends one of three forms,

    answered   [m t psi,  0,      m psi psi^T / sqrt 2,  s (2 t^2 - 1),  q (2 e - 1),  0    ]
    missing    [0,        m psi,  m psi psi^T / sqrt 2,  0,              0,            kappa]
    bad        0

and any two of them are at most 2 apart: how large residuals are, who did not answer and where, and
the second moments of the features cost nothing beside ``t psi``. Only the tail does, by
``m^2 = 1 - q^2``. ``psi``, ``t`` and ``e`` are rounded to integers with bounds of their own,

    |psi|^2 <= L^2,    |t| <= L,    0 <= e <= L,

and what is sent are exact products: ``t psi``, ``L psi``, ``psi_i psi_j``, ``2 t^2 - L^2``,
``2 L e - L^2`` and ``L^2`` for a missing reward. They are the forms above times ``L^2`` but for the
shares, which enter as noise: any two messages are at most ``2 L^2`` apart, with nothing added for
rounding. A bound on the norm of the whole message would not do: it is the products that keep
messages close. docs/proofs/products.md has the proof.

All whole numbers here are below 2^53, so sums of products are exact in floating point whatever BLAS
does: any order and any chunking of the rows gives the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, inf, isqrt, nextafter, sqrt

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.checks import between, not_negative, truth, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.layout import LARGEST_SUM, MECHANISMS, Block, Layout, consecutive
from capri.privacy.projection import IntegerProjection, half_products

# L is at most 2^20: the products of 2^13 rows then add up below 2^53, exactly.
LARGEST_LEVEL = 1 << 20
_BLOCK_ROWS = 1 << 13
# Numbers rounded at once: a block of rows stays in the processor's cache.
_BLOCK_ELEMENTS = 1 << 17
_EXACT = 1 << 53
# Anything quieter drowns in its own noise, and that noise would need more than 64 bits.
_SMALLEST_SHARE = 1e-6


@dataclass(frozen=True)
class RoundedRows:
    """Rows as whole numbers within their bounds: all that a message is made of.

    ``features`` ``psi`` and ``values`` ``t`` are kept as floating-point numbers, whose products are
    exact. ``answered`` and ``missing`` are 1 or 0: a bad row is neither, and its numbers are 0.
    """

    features: FloatArray
    values: FloatArray
    excess: FloatArray
    answered: FloatArray
    missing: FloatArray


@dataclass(frozen=True, kw_only=True)
class ProductLayout(Layout):
    """The blocks of products and their shares, which are checked in exact fractions.

    ``rank``: length of ``psi``. ``missing``: those without a reward send ``psi`` in a block of
    their own. ``second_moments``: everybody sends ``psi psi^T``, or an orthonormal ``projection``
    of it. ``moment_share`` is ``s``, ``tail_share`` ``q`` and ``count_share`` ``kappa``; a share of
    0 leaves its coordinate out. With ``[.]`` 1 for a block that is there and 0 for one that is not,

        m^2 = 1 - q^2,
        s^2 <= m^2 / 2                           with second moments,
        s^2 <= m^2 (11 + 5 sqrt 5) / 32          without: s <= .8325 m,
        kappa^2 <= 4 - q^2 - s^2 - m^2 (1 + [missing] + [second moments]),

    the last being ``1 + 2 q^2 - s^2`` with all blocks. ``level``: the bound ``L``, by default the
    largest one for which squares of a row add up exactly.
    """

    rank: int
    missing: bool = False
    second_moments: bool = False
    projection: IntegerProjection | None = None
    moment_share: float = 0.0
    tail_share: float = 0.0
    count_share: float = 0.0
    level: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", whole("rank", self.rank))
        truth("missing", self.missing)
        truth("second_moments", self.second_moments)
        for name in ("moment_share", "tail_share", "count_share"):
            share = not_negative(name, getattr(self, name))
            if 0 < share < _SMALLEST_SHARE:
                raise ConfigurationError(
                    f"{name} must be 0, which leaves its coordinate out, or at least "
                    f"{_SMALLEST_SHARE}, got {share}"
                )
            object.__setattr__(self, name, share)
        if self.projection is not None:
            if not self.second_moments:
                raise ConfigurationError(
                    "a projection needs second_moments=True: there is nothing to project"
                )
            if self.projection.rank != self.rank:
                raise ConfigurationError(
                    f"the projection is of moments of rank {self.projection.rank}, the layout of "
                    f"rank {self.rank}: they must be equal"
                )
        if self.tail_share >= 1:
            raise ConfigurationError(
                f"tail_share must be below 1, got {self.tail_share}: it is taken from the main "
                "block"
            )
        if not self._moment_fits(self.moment_share):
            raise ConfigurationError(
                f"moment_share must be at most {self.largest_moment_share:.9g} beside these "
                f"blocks, got {self.moment_share}: lower it, or use largest_moment_share"
            )
        if not self._count_fits(self.count_share):
            raise ConfigurationError(
                f"count_share must be at most {self.largest_count_share:.9g} beside these blocks, "
                f"got {self.count_share}: lower it, or use largest_count_share"
            )
        self._check_level()

    def _check_level(self) -> None:
        # int(): squares of a NumPy integer would overflow without a word
        finest = min(LARGEST_LEVEL, isqrt(_EXACT // self.rank))
        object.__setattr__(self, "level", whole("level", self.level or finest))
        between("level", self.level, 1, LARGEST_LEVEL)
        between("noise_units", self.noise_units, 0.0, float(LARGEST_SUM))
        if self.rank * self.level**2 > _EXACT or self.feature_units < 1:
            raise ConfigurationError(
                f"rank {self.rank} and level {self.level} do not go together: the level "
                f"must be above {self._rounding} and the squares of a row must add up below 2^53"
            )

    @property
    def main_share_squared(self) -> Fraction:
        """``m^2 = 1 - q^2``."""
        return 1 - Fraction(self.tail_share) ** 2

    def _moment_fits(self, share: float) -> bool:
        """``s^2 <= m^2/2``, or without second moments ``32 s^2 - 11 m^2 <= 5 sqrt(5) m^2``."""
        squared, main = Fraction(share) ** 2, self.main_share_squared
        if self.second_moments:
            return 2 * squared <= main
        excess = 32 * squared - 11 * main
        return excess <= 0 or excess**2 <= 125 * main**2

    def _count_fits(self, share: float) -> bool:
        """``kappa^2 <= 4 - q^2 - s^2 - m^2 (1 + [missing] + [second moments])``."""
        return Fraction(share) ** 2 <= self._count_limit

    @property
    def _count_limit(self) -> Fraction:
        taken = Fraction(self.tail_share) ** 2 + Fraction(self.moment_share) ** 2
        return 4 - taken - self.main_share_squared * (1 + self.missing + self.second_moments)

    @property
    def largest_moment_share(self) -> float:
        """The largest number that may be ``moment_share`` beside this tail and these blocks."""
        limit = 0.5 if self.second_moments else (11 + 5 * sqrt(5)) / 32
        share = nextafter(sqrt(limit * self.main_share_squared), inf)
        while not self._moment_fits(share):
            share = nextafter(share, 0.0)
        return share

    @property
    def largest_count_share(self) -> float:
        """The largest number that may be ``count_share`` beside these shares and blocks."""
        share = nextafter(sqrt(self._count_limit), inf)
        while not self._count_fits(share):
            share = nextafter(share, 0.0)
        return share

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks that are there, in their order.

        ``|psi psi^T|_F^2 = sum_i (psi_i^2)^2 + 2 sum_{i<j} (psi_i psi_j)^2``: with the coefficient
        ``m / sqrt 2`` the diagonal has share ``m / sqrt 2`` and each product above it, which stands
        for two entries, has share ``m``. A feature counts ``feature_units``, all else ``L``.
        """
        main, rank, square = self.main_share_squared, self.rank, self.level**2
        once, twice = float(self.feature_units * self.level), float(self.feature_units**2)
        sizes = {"main": (rank, main, square, once)}
        if self.missing:
            sizes["missing"] = (rank, main, square, once)
        if (projection := self.projection) is not None:
            loss = projection.norm_squared
            sizes["projected"] = (
                projection.size,
                main / (2 * loss),
                projection.norm * square,
                twice,
            )
        elif self.second_moments:
            sizes["diagonal"] = (rank, main / 2, square, twice)
            if rank > 1:
                sizes["products"] = (rank * (rank - 1) // 2, main, square, twice)
        for name in ("moment", "tail", "count"):
            if share := getattr(self, f"{name}_share"):
                sizes[name] = (1, Fraction(share) ** 2, square, float(square))
        return consecutive(sizes)

    @property
    def diameter_squared(self) -> int:
        """``(2 L^2)^2``."""
        return 4 * self.level**4

    @property
    def _rounding(self) -> int:
        """``sqrt(rank)/2`` is how far rounding moves a vector; one more for floating point."""
        return ceil(sqrt(self.rank) / 2) + 1

    @property
    def feature_units(self) -> int:
        """What a feature of norm 1 is worth: a little below ``L``, so that rounding stays within.

        This is where rounding is paid: by resolution, and not by sensitivity.
        """
        return self.level - self._rounding

    def rounded(
        self,
        whitened: FloatArray,
        values: FloatArray,
        *,
        clip_norm: float = 1.0,
        value_bound: float = 1.0,
        tail_bound: float = 1.0,
    ) -> RoundedRows:
        """Each row as whole numbers within their bounds, whatever it holds.

        ``psi = whitened / max(|whitened|, C)``, ``t = clip(y / B, -1, 1)`` and ``e`` the excess
        ``|y| - B`` clipped to and divided by its bound. A feature that is not a number, or whose
        square overflows, makes a bad row; a value that is not a number or infinite is missing.
        Nothing here raises or branches on what rows hold, and each row is rounded by itself.
        """
        for name, bound in (
            ("clip_norm", clip_norm),
            ("value_bound", value_bound),
            ("tail_bound", tail_bound),
        ):
            between(name, bound, 1e-150, 1e150)
        rank = self.rank
        if whitened.shape != (len(values), rank) or values.ndim != 1:
            raise ConfigurationError(
                f"messages of rank {rank} need features of shape (rows, {rank}) and one value a "
                f"row, got {whitened.shape} and {values.shape}"
            )
        with np.errstate(all="ignore"):  # a warning would tell of a row
            features, good = self._rounded_features(whitened, clip_norm)
            given = np.isfinite(values)
            numbers = np.where(given, values, 0.0)
            scaled = np.minimum(np.maximum(numbers / value_bound, -1.0), 1.0)
            excess = np.maximum(np.abs(numbers) - value_bound, 0.0) / tail_bound
            answered = good * given
            return RoundedRows(
                features=features,
                values=np.rint(scaled * self.level) * answered,
                excess=np.rint(np.minimum(excess, 1.0) * self.level) * answered,
                answered=answered,
                missing=good * ~given,
            )

    def _rounded_features(
        self, whitened: FloatArray, clip_norm: float
    ) -> tuple[FloatArray, FloatArray]:
        """``rint(U whitened / max(|whitened|, C))``, bounded; and 1 for good rows, 0 for bad."""
        features, good = np.empty(whitened.shape), np.empty(len(whitened))
        step = max(1, _BLOCK_ELEMENTS // self.rank)
        for start in range(0, len(whitened), step):
            part = slice(start, start + step)
            rows = np.ascontiguousarray(whitened[part], dtype=np.float64)
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            scale = self.feature_units / np.maximum(norms, clip_norm)
            np.multiply(rows, scale[:, None], out=features[part])
            np.rint(features[part], out=features[part])
            good[part] = _bounded(features[part], np.isfinite(norms), self.level)
        return features, good

    def messages(self, whitened: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """Every row's message; bounds as for :meth:`rounded`."""
        return self.products(self.rounded(whitened, values, **bounds))

    def total(self, whitened: FloatArray, values: FloatArray, **bounds: float) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        return self.sum_of(self.rounded(whitened, values, **bounds))

    def products(self, rows: RoundedRows) -> IntArray:
        """Every row's message, product by product."""
        level, square = self.level, self.level**2
        features, values = rows.features.astype(np.int64), rows.values.astype(np.int64)
        answered, missing = rows.answered.astype(np.int64), rows.missing.astype(np.int64)
        entries = {"main": values[:, None] * features}
        if self.missing:
            entries["missing"] = (level * missing)[:, None] * features
        if self.second_moments:
            entries |= self._moment_entries(half_products(features[:, self._squared]))
        if self.moment_share:
            entries["moment"] = ((2 * values**2 - square) * answered)[:, None]
        if self.tail_share:
            excess = rows.excess.astype(np.int64)
            entries["tail"] = ((2 * level * excess - square) * answered)[:, None]
        if self.count_share:
            entries["count"] = (square * missing)[:, None]
        return np.concatenate([entries[name] for name in self.blocks], axis=1)

    @property
    def _squared(self) -> IntArray | slice:
        """The coordinates of features whose products are sent."""
        return slice(None) if self.projection is None else self.projection.coordinates

    def _moment_entries(self, half: IntArray) -> dict[str, IntArray]:
        """Second moments as the layout sends them; the last axis runs over the half-vector."""
        if self.projection is None:
            return {"diagonal": half[..., : self.rank], "products": half[..., self.rank :]}
        return {"projected": half @ self.projection.compact.T}

    def sum_of(self, rows: RoundedRows) -> IntArray:
        """The sum of :meth:`products`, block by block."""
        level, rank, squared = self.level, self.rank, self._squared
        main, missing = np.zeros(rank, dtype=np.int64), np.zeros(rank, dtype=np.int64)
        count = len(np.arange(rank)[squared])
        moments = np.zeros((count, count), dtype=np.int64)
        for start in range(0, len(rows.values), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            features = rows.features[part]
            main += (rows.values[part] @ features).astype(np.int64)
            if self.missing:
                missing += level * (rows.missing[part] @ features).astype(np.int64)
            if self.second_moments:
                own = features[:, squared]
                moments += (own.T @ own).astype(np.int64)
        answers = int(rows.answered.sum()) * level**2
        squares = int((rows.values.astype(np.int64) ** 2).sum())
        sums = {
            "main": main,
            "missing": missing,
            "moment": np.array([2 * squares - answers]),
            "tail": np.array([2 * level * int(rows.excess.sum()) - answers]),
            "count": np.array([level**2 * int(rows.missing.sum())]),
        }
        if self.second_moments:
            above = moments[np.triu_indices(len(moments), 1)]
            sums |= self._moment_entries(np.concatenate([np.diag(moments), above]))
        return np.concatenate([sums[name] for name in self.blocks])

    def noise_scale(self, bound: float) -> float:
        """Deviation of the noise on ``V t psi``, which is at most ``bound`` long."""
        return self.deviation("main") * bound

    def scale(self, name: str) -> float:
        """What a released 1 of a block stands for: itself, since shares enter as noise."""
        return 1.0

    def main(self, numbers: FloatArray, value_bound: float) -> FloatArray:
        """The sum of ``V t psi`` in a released vector."""
        return np.asarray(value_bound * numbers[: self.rank])

    def fitted(
        self, *, length: int, budget: Budget | None, composition: float = 1.0
    ) -> "ProductLayout":
        """At the finest level whose sums fit 64 bits, with the noise that a budget needs on it.

        With ``sigma = c L^2``, the sum of ``length`` messages and 64 standard deviations of as many
        noises fit if

            L^2 (length largest + 64 sqrt(length) c / share) < 2^62     for every block,

        ``largest`` in units of ``L^2``.
        """
        whole("length", length)
        multiplier = 0.0
        if budget is not None:
            scale = MECHANISMS[self.norm].scale
            multiplier = 2 * scale(1.0, budget, self.coordinates, composition)
        most = max(
            length * (block.largest // self.level**2)
            + 64 * sqrt(length) * multiplier / sqrt(block.share_squared)
            for block in self.blocks.values()
        )
        fitting = isqrt(int((LARGEST_SUM - 1) / most)) if most < LARGEST_SUM else 0
        level = min(LARGEST_LEVEL, isqrt(_EXACT // self.rank), fitting)
        promise = "no budget" if budget is None else str(budget)
        # A tenth of the resolution at least for what is not rounding.
        if level < 10 * ceil(sqrt(self.rank)):
            raise ConfigurationError(
                f"messages of an epoch of {length} rounds at {promise} do not fit 64-bit integers: "
                "shorten the epoch, raise epsilon or raise the smallest share"
            )
        layout = replace(self, level=level)
        if budget is None:
            return layout
        layout = layout.calibrated(budget, composition)
        layout.check_width(budget, "lower epsilon or shorten the epoch")
        return layout


def _bounded(features: FloatArray, finite: BoolArray, level: int) -> FloatArray:
    """Make ``|psi|^2 <= L^2`` true in place; which rows are good, as 1 and 0.

    Entries are cut to ``L`` first (what is not a number becomes ``L``), so the sum of squares is a
    whole number below 2^53: exact in floating point, in any order. A row that still is too long is
    emptied. Honest rows never are: they were scaled to leave room for their rounding.
    """
    np.fmin(features, level, out=features)
    np.fmax(features, -level, out=features)
    within = np.einsum("ij,ij->i", features, features) <= level * level
    good: FloatArray = (finite & within).astype(np.float64)
    features *= good[:, None]
    return good
