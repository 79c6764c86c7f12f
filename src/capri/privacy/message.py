"""Messages in exact integers: what a user did becomes whole numbers before anything is multiplied.

``psi``, ``t`` and ``e`` are rounded to integers with bounds of their own,

    |psi|^2 <= L^2,    |t| <= L,    0 <= e <= L,

and a message is made of exact products: ``t psi``, ``L psi``, ``psi_i psi_j``, ``2 t^2 - L^2``,
``2 L e - L^2`` and ``L^2`` for a missing reward. So messages of integers are messages of
:class:`~capri.privacy.layout.MessageLayout` times ``L^2``, to the last bit: two of them are at most
``2 L^2`` apart, with nothing added for rounding. A bound on the norm of the whole message would not
do: it is the products that keep messages close.

All whole numbers here are below 2^53, so sums of products are exact in floating point whatever BLAS
does: any order and any chunking of the rows gives the same bits.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, inf, isqrt, nextafter, sqrt

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, noise_multiplier
from capri.privacy.grid import LARGEST_SUM
from capri.privacy.layout import MessageLayout
from capri.privacy.projection import half_products

# L is at most 2^20: the products of 2^13 rows then add up below 2^53, exactly.
LARGEST_LEVEL = 1 << 20
_BLOCK_ROWS = 1 << 13
# Numbers rounded at once: a block of rows stays in the processor's cache.
_BLOCK_ELEMENTS = 1 << 17
_EXACT = 1 << 53


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


@dataclass(frozen=True)
class MessageSums:
    """Sums of the numbers behind messages; ``None`` for a block that the layout leaves out.

    ``main``: sum of ``t psi``. ``missing``: sum of ``psi`` over those who did not answer.
    ``second_moments``: sum of ``psi psi^T``; ``projected``: its integer combinations. ``moment``:
    sum of ``2 t^2 - 1`` and ``tail`` of ``2 e - 1`` over those who did. ``count``: how many did
    not. Features are in units of the clip norm.
    """

    main: FloatArray
    missing: FloatArray | None = None
    second_moments: FloatArray | None = None
    projected: FloatArray | None = None
    moment: float | None = None
    tail: float | None = None
    count: float | None = None

    def answers(self, participants: int) -> float:
        """How many answered, of a public number of participants with a feature."""
        return participants - (self.count or 0.0)

    def squares(self, participants: int) -> float:
        """Sum of ``t^2 = ((2 t^2 - 1) + 1) / 2`` over those who answered."""
        if self.moment is None:
            raise ConfigurationError("the layout has no moment: give it a moment_share")
        return (self.moment + self.answers(participants)) / 2

    def excesses(self, participants: int) -> float:
        """Sum of ``e = ((2 e - 1) + 1) / 2`` over those who answered."""
        if self.tail is None:
            raise ConfigurationError("the layout has no tail: give it a tail_share")
        return (self.tail + self.answers(participants)) / 2


@dataclass(frozen=True, kw_only=True)
class MessageGrid:
    """The integers of a layout: their bound ``L`` (``level``) and the noise ``sigma`` on them.

    ``noise_units`` is ``sigma`` in units; a block of share ``a`` carries ``sigma / a``.
    """

    layout: MessageLayout
    level: int
    noise_units: float

    def __post_init__(self) -> None:
        # int(): squares of a NumPy integer would overflow without a word
        object.__setattr__(self, "level", whole("level", self.level))
        between("level", self.level, 1, LARGEST_LEVEL)
        between("noise_units", self.noise_units, 0.0, float(LARGEST_SUM))
        if self.layout.rank * self.level**2 > _EXACT or self.feature_units < 1:
            raise ConfigurationError(
                f"rank {self.layout.rank} and level {self.level} do not go together: the level "
                f"must be above {self._rounding} and the squares of a row must add up below 2^53"
            )

    @property
    def _rounding(self) -> int:
        """``sqrt(rank)/2`` is how far rounding moves a vector; one more for floating point."""
        return ceil(sqrt(self.layout.rank) / 2) + 1

    @property
    def feature_units(self) -> int:
        """What a feature of norm 1 is worth: a little below ``L``, so that rounding stays within.

        This is where rounding is paid: by resolution, and not by sensitivity.
        """
        return self.level - self._rounding

    @property
    def sensitivity(self) -> int:
        """Replace-one distance ``2 L^2`` of messages, their blocks multiplied by their shares."""
        return 2 * self.level**2

    @cached_property
    def noise_scales(self) -> dict[str, float]:
        """Standard deviation ``sigma / share`` of each block's noise, in units and rounded up."""
        return {
            name: _quotient(self.noise_units, block.share_squared)
            for name, block in self.layout.blocks.items()
        }

    def deviation(self, name: str) -> float:
        """Standard deviation of the noise on a number of :class:`MessageSums` in this block."""
        return self.noise_scales[name] / self._units(name)

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
        rank = self.layout.rank
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
        step = max(1, _BLOCK_ELEMENTS // self.layout.rank)
        for start in range(0, len(whitened), step):
            part = slice(start, start + step)
            rows = np.ascontiguousarray(whitened[part], dtype=np.float64)
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            scale = self.feature_units / np.maximum(norms, clip_norm)
            np.multiply(rows, scale[:, None], out=features[part])
            np.rint(features[part], out=features[part])
            good[part] = _bounded(features[part], np.isfinite(norms), self.level)
        return features, good

    def messages(self, rows: RoundedRows) -> IntArray:
        """Every row's message, product by product."""
        level, layout = self.level, self.layout
        features, values = rows.features.astype(np.int64), rows.values.astype(np.int64)
        answered, missing = rows.answered.astype(np.int64), rows.missing.astype(np.int64)
        entries = {"main": values[:, None] * features}
        if layout.missing:
            entries["missing"] = (level * missing)[:, None] * features
        if layout.second_moments:
            entries |= self._moment_entries(half_products(features[:, self._squared]))
        if layout.moment_share:
            entries["moment"] = ((2 * values**2 - level**2) * answered)[:, None]
        if layout.tail_share:
            excess = rows.excess.astype(np.int64)
            entries["tail"] = ((2 * level * excess - level**2) * answered)[:, None]
        if layout.count_share:
            entries["count"] = (level**2 * missing)[:, None]
        return np.concatenate([entries[name] for name in layout.blocks], axis=1)

    @property
    def _squared(self) -> IntArray | slice:
        """The coordinates of features whose products are sent."""
        projection = self.layout.projection
        return slice(None) if projection is None else projection.coordinates

    def _moment_entries(self, half: IntArray) -> dict[str, IntArray]:
        """Second moments as the layout sends them; the last axis runs over the half-vector."""
        projection, rank = self.layout.projection, self.layout.rank
        if projection is None:
            return {"diagonal": half[..., :rank], "products": half[..., rank:]}
        return {"projected": half @ projection.compact.T}

    def total(self, rows: RoundedRows) -> IntArray:
        """The sum of :meth:`messages`, without making them one by one."""
        level, layout, rank = self.level, self.layout, self.layout.rank
        main, missing = np.zeros(rank, dtype=np.int64), np.zeros(rank, dtype=np.int64)
        squared = self._squared
        count = len(np.arange(rank)[squared])
        moments = np.zeros((count, count), dtype=np.int64)
        for start in range(0, len(rows.values), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            features = rows.features[part]
            main += (rows.values[part] @ features).astype(np.int64)
            if layout.missing:
                missing += level * (rows.missing[part] @ features).astype(np.int64)
            if layout.second_moments:
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
        if layout.second_moments:
            above = moments[np.triu_indices(len(moments), 1)]
            sums |= self._moment_entries(np.concatenate([np.diag(moments), above]))
        return np.concatenate([sums[name] for name in layout.blocks])

    def _units(self, name: str) -> float:
        """What 1 is worth in this block: a feature counts ``feature_units``, all else ``L``."""
        own = {"main": 1, "missing": 1, "diagonal": 2, "products": 2, "projected": 2}.get(name, 0)
        return float(self.feature_units**own * self.level ** (2 - own))

    def numbers(self, units: IntArray) -> FloatArray:
        """Sums of messages, with noise or without, as numbers in the order of the layout."""
        return np.asarray(units / self._worth)

    @cached_property
    def _worth(self) -> FloatArray:
        """What 1 is worth in each coordinate."""
        blocks = self.layout.blocks.items()
        return np.concatenate([np.full(block.size, self._units(name)) for name, block in blocks])

    def read(self, units: IntArray) -> MessageSums:
        """Sums of messages, with noise or without, by block. Noise of mean 0 leaves no bias."""
        return self.sums(self.numbers(units))

    def sums(self, numbers_in_order: FloatArray) -> MessageSums:
        """The numbers of :meth:`numbers` by block."""
        found = {name: numbers_in_order[block.part] for name, block in self.layout.blocks.items()}
        numbers = {name: float(found[name][0]) for name in _NUMBERS if name in found}
        matrix = None
        if "diagonal" in found:
            matrix = np.diag(found["diagonal"])
            if "products" in found:
                matrix[np.triu_indices(self.layout.rank, 1)] = found["products"]
                matrix = matrix + np.triu(matrix, 1).T
        return MessageSums(
            main=found["main"],
            missing=found.get("missing"),
            second_moments=matrix,
            projected=found.get("projected"),
            **numbers,
        )


_NUMBERS = ("moment", "tail", "count")


def make_message_grid(
    layout: MessageLayout, *, length: int, budget: Budget | None, composition: float = 1.0
) -> MessageGrid:
    """The finest grid whose sums fit 64 bits, and the noise that a budget needs on it.

    With ``sigma = c L^2`` (``c`` the exact Gaussian mechanism's multiplier), the sum of ``length``
    messages and 64 standard deviations of as many noises fit if

        L^2 (length largest + 64 sqrt(length) c / share) < 2^62     for every block.
    """
    whole("length", length)
    multiplier = (
        0.0 if budget is None else noise_multiplier(budget, layout.coordinates, composition)
    )
    most = max(
        length * block.largest + 64 * sqrt(length) * multiplier / sqrt(block.share_squared)
        for block in layout.blocks.values()
    )
    fitting = isqrt(int((LARGEST_SUM - 1) / most)) if most < LARGEST_SUM else 0
    level = min(LARGEST_LEVEL, isqrt(_EXACT // layout.rank), fitting)
    promise = "no budget" if budget is None else str(budget)
    # A tenth of the resolution at least for what is not rounding.
    if level < 10 * ceil(sqrt(layout.rank)):
        raise ConfigurationError(
            f"messages of an epoch of {length} rounds at {promise} do not fit 64-bit integers: "
            "shorten the epoch, raise epsilon or raise the smallest share"
        )
    grid = MessageGrid(layout=layout, level=level, noise_units=0.0)
    if budget is None:
        return grid
    grid = replace(grid, noise_units=level**2 * multiplier)
    if min(grid.noise_scales.values()) < NOISE_UNITS:
        raise ConfigurationError(
            f"{promise} and an epoch of {length} rounds are out of reach of the integer noise: "
            "lower epsilon or shorten the epoch"
        )
    return grid


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


def _quotient(scale: float, share_squared: Fraction) -> float:
    """``scale / share``, rounded up: its square times ``share^2`` is at least ``scale^2``."""
    squared = Fraction(scale) ** 2
    quotient = scale / sqrt(share_squared)
    while Fraction(quotient) ** 2 * share_squared < squared:
        quotient = nextafter(quotient, inf)
    return quotient
