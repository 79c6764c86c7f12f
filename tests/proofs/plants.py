"""What is planted to show that the test of a lemma would fail without it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import inf, log, sqrt
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest

from capri.epoch import shadow as shadow_sums
from capri.errors import BudgetError, ConfigurationError
from capri.joint import release
from capri.joint import rewards as joint_rewards
from capri.joint.state import PublicState
from capri.privacy import calibration, filters, gate, layout, products, shuffle, vector
from capri.privacy import ledger as ledgers
from capri.privacy import sphere as spheres
from capri.privacy.budget import Budget, UserLimit
from capri.privacy.histogram import CornerLayout, HistogramLayout
from capri.privacy.ledger import Ledger
from capri.privacy.moments import MomentLayout
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.projection import IntegerProjection
from capri.privacy.shuffle import Shuffle
from capri.privacy.sphere import COIN, Sphere
from capri.privacy.vector import VectorLayout
from capri.store.reservation import Reservation
from capri_lab import clones

Patch = pytest.MonkeyPatch
Change = Callable[..., None]
FAILURES = (AssertionError, BudgetError, ConfigurationError, pytest.fail.Exception)


@dataclass(frozen=True)
class Plant:
    """A change of the product, and the arguments of the test that has to see it.

    ``before``: planted before the module of the test is read; else the module is given, too, for
    lemmas whose constants stand in the test.
    """

    change: Change
    given: dict[str, Any] | Callable[[ModuleType], dict[str, Any]] = field(default_factory=dict)
    before: bool = True


def method(owner: Any, name: str, made: Callable[[Any], Any]) -> Change:
    """Replace an attribute by what is made of it."""

    def change(patch: Patch) -> None:
        patch.setattr(owner, name, made(owner.__dict__[name]))

    return change


def constant(owner: Any, name: str, value: Any) -> Change:
    return lambda patch: patch.setattr(owner, name, value)


def scaled(owner: Any, name: str, factor: float) -> Change:
    """A function, or a cached one, whose result is so many times as large."""

    def made(honest: Any) -> Any:
        return lambda *args, **kwargs: honest(*args, **kwargs) * factor

    return method(owner, name, made)


def louder(**factors: Fraction) -> Change:
    """Wrong squared shares in the table of blocks, past all checks."""

    def made(honest: Any) -> Any:
        def blocks(self: ProductLayout) -> dict[str, Any]:
            return {
                name: replace(block, share_squared=block.share_squared * factors.get(name, 1))
                for name, block in honest.func(self).items()
            }

        found = cached_property(blocks)
        found.__set_name__(ProductLayout, "blocks")
        return found

    return method(ProductLayout, "blocks", made)


def squared_diameter(owner: Any, factor: Fraction) -> Change:
    return method(
        owner,
        "diameter_squared",
        lambda honest: property(lambda self: int(honest.fget(self) * factor)),
    )


# -- one gate --------------------------------------------------------------------------------------


def float_sums(patch: Patch) -> None:
    def total(self: Any, features: Any, values: Any, **bounds: float) -> Any:
        units = self.messages(features, values, **bounds).astype(np.float32)
        return units.sum(axis=0).astype(np.int64)

    patch.setattr(ProductLayout, "total", total)


def count_beside_noise(patch: Patch) -> None:
    honest = gate.noised

    def noised(total: Any, *args: Any) -> Any:
        public = honest(total, *args)
        public[-1] = total[-1]
        return public

    patch.setattr(gate, "noised", noised)


GATE = {
    ("gate", 1, "sums in floating point"): Plant(float_sums, {"name": "products"}),
    ("gate", 2, "shares left out of the noise"): Plant(
        constant(layout, "_quotient", lambda scale, share_squared: scale)
    ),
    ("gate", 3, "a scale rounded to the nearest number"): Plant(
        constant(calibration, "_from_above", float), {"epsilon": 1 / 3, "contributions": 7}
    ),
    ("gate", 4, "an exact count beside the noise"): Plant(count_beside_noise, {"name": "products"}),
    ("gate", 5, "a ledger that admits everything"): Plant(
        constant(Ledger, "check", lambda self, event: None), {"name": "products"}
    ),
}

# -- calibration -----------------------------------------------------------------------------------

USUAL = Budget(1.0, 1e-5)


def rounded_down(patch: Patch, module: ModuleType) -> None:
    def pairs(scale: int, reach: int) -> list[Any]:
        s = mpmath.mpf(scale)
        honest = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s * s)) for k in range(40 * scale)]
        total = honest[0] + 2 * mpmath.fsum(honest[1:])
        return [
            (honest[k] / total, mpmath.ncdf(-k / s) - mpmath.ncdf(-(k + 1) / s))
            for k in range(reach)
        ]

    patch.setattr(module, "discrete_and_rounded", pairs)


def classical(budget: Budget) -> float:
    return sqrt(2 * log(1.25 / budget.delta)) / budget.epsilon


CALIBRATION = {
    ("calibration", 1, "the classical formula"): Plant(
        constant(calibration, "analytic_multiplier", classical), {"budget": Budget(20.0, 1e-5)}
    ),
    ("calibration", 1, "a search that ends on the other side"): Plant(
        scaled(calibration, "analytic_multiplier", 1 - 1e-9), {"budget": USUAL}
    ),
    ("calibration", 1, "an epsilon from below"): Plant(
        scaled(calibration, "delivered_epsilon", 1 - 1e-9), {"mu": 1.0, "delta": 1e-5}
    ),
    ("calibration", 2, "noise that is rounded down instead of to the nearest integer"): Plant(
        rounded_down, {"scale": 1}, before=False
    ),
    ("calibration", 3, "no epsilon set aside"): Plant(
        method(
            calibration,
            "_integer_slack",
            lambda honest: lambda budget, rank: (0.0, honest(budget, rank)[1]),
        ),
        {"budget": USUAL, "rank": 100_000},
    ),
    ("calibration", 3, "no delta set aside"): Plant(
        method(
            calibration,
            "_integer_slack",
            lambda honest: lambda budget, rank: (honest(budget, rank)[0], budget.delta),
        ),
        {"budget": USUAL, "rank": 100_000},
    ),
    ("calibration", 4, "two thirds of the noise"): Plant(
        scaled(calibration, "analytic_multiplier", 2 / 3), {"direction": (1,), "epsilon": 1.0}
    ),
}

# -- one vector ------------------------------------------------------------------------------------


def full_length(honest: Any) -> Any:
    return property(lambda self: 1.0)


VECTOR = {
    ("vector", 1, "the main block at its full length beside a moment"): Plant(
        method(VectorLayout, "main_share", full_length)
    ),
    ("vector", 2, "no check in integers"): Plant(
        constant(vector, "within_norm", lambda rounded, limit: rounded.astype(np.int64))
    ),
    ("vector", 2, "squares that wrap"): Plant(
        constant(
            vector,
            "within_norm",
            lambda rounded, limit: np.where(
                ((units := rounded.astype(np.int64)) ** 2).sum(axis=1, keepdims=True) > limit**2,
                0,
                units,
            ),
        ),
        {"reward": 4.0},
    ),
}

# -- exact products --------------------------------------------------------------------------------

EVERY = {"missing": True, "second_moments": True, "tail_share": 0.1}
PLAIN = {"missing": False, "second_moments": True, "tail_share": 0.0}


def loud_moment(patch: Patch) -> None:
    """A check, and a largest share, that let too much through."""
    patch.setattr(ProductLayout, "_moment_fits", lambda self, share: share <= 0.84)
    patch.setattr(ProductLayout, "largest_moment_share", property(lambda self: 0.84))


def loud_count(patch: Patch) -> None:
    patch.setattr(ProductLayout, "_count_fits", lambda self, share: True)
    patch.setattr(ProductLayout, "largest_count_share", property(lambda self: 3.0))


def never_emptied(features: Any, finite: Any, level: int) -> Any:
    np.clip(np.nan_to_num(features), -level, level, out=features)
    return finite.astype(np.float64)


def moment_of_the_sign(honest: Any) -> Any:
    """The moment of ``|t|``, and the main block of ``t``."""

    def made(self: ProductLayout, rows: Any) -> Any:
        units = honest(self, rows)
        square = self.level**2
        units[:, self.blocks["moment"].start] = (
            2 * self.level * np.abs(rows.values) - square * rows.answered
        ).astype(np.int64)
        return units

    return made


def scaled_by_the_batch(honest: Any) -> Any:
    def made(self: ProductLayout, whitened: Any, clip_norm: float) -> Any:
        norms = np.sqrt(np.nan_to_num((whitened**2).sum(axis=1)))
        return honest(self, whitened, max(clip_norm, float(norms.max(initial=0.0))))

    return made


PRODUCTS = {
    ("products", 1, "the tail without m"): Plant(
        louder(main=Fraction(100, 99)), {"blocks": EVERY, "rank": 1, "level": 3}
    ),
    ("products", 1, "a moment too loud beside second moments"): Plant(
        louder(moment=Fraction(101, 100)), {"blocks": EVERY, "rank": 2, "level": 3}
    ),
    ("products", 1, "second moments at .75"): Plant(
        louder(diagonal=Fraction(9, 8), products=Fraction(9, 8)),
        {"blocks": PLAIN, "rank": 2, "level": 5},
    ),
    ("products", 1, "a moment too loud without second moments"): Plant(
        loud_moment, {"blocks": {"missing": False, "second_moments": False, "tail_share": 0.0}}
    ),
    ("products", 2, "features of the missing at half as much again"): Plant(
        louder(missing=Fraction(9, 4)), {"blocks": EVERY, "rank": 1, "level": 3}
    ),
    ("products", 3, "a count louder by a hundredth"): Plant(
        louder(count=Fraction(101, 100)), {"blocks": EVERY, "rank": 2, "level": 3}
    ),
    ("products", 4, "a count of three"): Plant(loud_count, {"blocks": EVERY}),
    ("products", 5, "rows that are too long and stay"): Plant(
        constant(products, "_bounded", never_emptied)
    ),
    ("products", 5, "no room for rounding"): Plant(
        constant(ProductLayout, "_rounding", property(lambda self: 0))
    ),
    ("products", 6, "a moment of another value"): Plant(
        method(ProductLayout, "products", moment_of_the_sign)
    ),
    ("products", 6, "both triangles at the noise of one"): Plant(louder(products=Fraction(2))),
    ("products", 7, "a length that is underrated"): Plant(
        method(
            IntegerProjection,
            "norm_squared",
            lambda honest: property(lambda self: honest.__get__(self) * Fraction(9, 10)),
        )
    ),
    ("products", 8, "features scaled by the longest of their batch"): Plant(
        method(ProductLayout, "_rounded_features", scaled_by_the_batch), {"rank": 3}
    ),
}

# -- one cell --------------------------------------------------------------------------------------

SMALL = {"level": 8, "tail_level": 4, "missing": True}


def squares(formula: Callable[[HistogramLayout, Any], Any]) -> Change:
    """Rounded rows with other moments."""

    def made(honest: Any) -> Any:
        def rounded(self: HistogramLayout, *args: Any, **bounds: float) -> Any:
            rows = honest(self, *args, **bounds)
            return replace(rows, square=formula(self, rows))

        return rounded

    return method(HistogramLayout, "rounded", made)


def beyond_its_level(honest: Any) -> Any:
    def rounded(self: HistogramLayout, *args: Any, **bounds: float) -> Any:
        rows = honest(self, *args, **bounds)
        return replace(rows, value=rows.value + np.sign(rows.value))

    return rounded


def bad_in_the_first(honest: Any) -> Any:
    return lambda self, whitened: (honest(self, whitened)[0], np.full(len(whitened), True))


def next_cell(honest: Any) -> Any:
    def cells(self: HistogramLayout, whitened: Any) -> Any:
        cell, good = honest(self, whitened)
        return np.roll(cell, 1), good

    return cells


CELLS = {
    ("cells", 1, "a missing user without a moment"): Plant(
        squares(lambda self, rows: rows.square * (1 - rows.missing)), SMALL
    ),
    ("cells", 2, "a moment twice as loud"): Plant(
        squares(lambda self, rows: 2 * rows.square), SMALL
    ),
    ("cells", 2, "a value beyond its level"): Plant(
        method(HistogramLayout, "rounded", beyond_its_level), SMALL
    ),
    ("cells", 3, "a bad row in the first cell"): Plant(
        method(HistogramLayout, "_cells", bad_in_the_first)
    ),
    ("cells", 4, "a diameter without the tail"): Plant(
        constant(HistogramLayout, "diameter_squared", property(lambda self: (2 * self.level) ** 2)),
        SMALL,
    ),
    ("cells", 5, "the diameter of one cell alone"): Plant(
        constant(HistogramLayout, "diameter_squared", property(lambda self: self.level**2))
    ),
    ("cells", 6, "the cell of the next row where a batch has one"): Plant(
        method(HistogramLayout, "_cells", next_cell)
    ),
}

# -- rows of a regression --------------------------------------------------------------------------


def targets_twice_as_long(honest: Any) -> Any:
    def rounded(self: MomentLayout, features: Any, targets: Any) -> Any:
        whole = honest(self, features, targets)
        whole[:, self.features :] *= 2
        return whole

    return rounded


ROWS = {
    ("rows", 1, "the diameter of one column"): Plant(
        squared_diameter(CountLayout, Fraction(1, 3)), {"name": "counts"}
    ),
    ("rows", 2, "a diameter a tenth too small"): Plant(
        squared_diameter(MomentLayout, Fraction(81, 100)), {"targets": 1}
    ),
    ("rows", 3, "targets beyond their range"): Plant(
        method(MomentLayout, "rounded", targets_twice_as_long)
    ),
}


def scores_twice_as_long(honest: Any) -> Any:
    return lambda self, scores, clip_norm: 2 * honest(self, scores, clip_norm)


CROWD = {
    ("crowd", 1, "the diameter in L1 of one column"): Plant(
        squared_diameter(CountLayout, Fraction(1, 9)), {"name": "counts, pure"}
    ),
    ("crowd", 2, "a diameter of pairs a tenth too small"): Plant(
        squared_diameter(PairLayout, Fraction(81, 100)), {"name": "pairs"}
    ),
    ("crowd", 3, "scores twice as long"): Plant(
        method(PairLayout, "rounded", scores_twice_as_long), {"name": "pairs"}
    ),
}

# -- shadow visits ---------------------------------------------------------------------------------


def clips_nothing(patch: Patch) -> None:
    def corners(self: CornerLayout, weights: Any, values: Any) -> Any:
        inside, up = np.rint(self.level * weights), (1 + np.clip(np.nan_to_num(values), -1, 1)) / 2
        first, third = np.rint(inside * up), np.rint((self.level - inside) * up)
        found = [first, inside - first, third, self.level - inside - third]
        return np.stack(found, axis=1).astype(np.int64)

    def messages(self: shadow_sums.ShadowSum, weights: Any, rewards: Any) -> Any:
        share = np.nan_to_num(weights, posinf=1e3) / shadow_sums.WEIGHT_BOUND
        return self.layout.messages(np.minimum(share, 1e3), np.nan_to_num(rewards))

    patch.setattr(CornerLayout, "messages", corners)
    patch.setattr(shadow_sums.ShadowSum, "messages", messages)


ONCE = {"budget": USUAL, "limit": None}
OFTEN = {"budget": USUAL, "limit": UserLimit(total=40)}


def unchecked_vector(patch: Patch) -> None:
    patch.setattr(shadow_sums, "_SHARE", 1.0)
    patch.setattr(
        VectorLayout, "bounded", lambda self, rows: np.rint(rows / self.step).astype(np.int64)
    )


SHADOW = {
    ("shadow", 1, "weights that are not clipped"): Plant(clips_nothing, ONCE),
    ("shadow", 1, "the diameter of one corner"): Plant(
        squared_diameter(CornerLayout, Fraction(1, 4)), ONCE
    ),
    ("shadow", 2, "a vector at full length that nobody checks"): Plant(unchecked_vector, OFTEN),
    ("shadow", 3, "one of two visits counted"): Plant(
        method(
            Ledger,
            "_composed",
            lambda honest: lambda self, came: honest(self, dict.fromkeys(came, 1)),
        )
    ),
    ("shadow", 4, "kinds that mix in an epoch"): Plant(
        constant(Ledger, "_check_kinds", lambda self, event: None)
    ),
}

# -- the sphere ------------------------------------------------------------------------------------


def one_unit_more(honest: Any) -> Any:
    def with_coin(*args: Any) -> Sphere:
        found: Sphere = honest(*args)
        return replace(found, chance=found.chance + 1)

    return with_coin


def far_ones_from_all(honest: Any) -> Any:
    return lambda self, nearest, coin, pick: np.where(coin, honest(self, nearest, coin, pick), pick)


def named_twice(honest: Any) -> Any:
    def nearest(self: Sphere, seeds: Any, vectors: Any) -> Any:
        found = honest(self, seeds, vectors)
        found[:, -1] = found[:, 0]
        return found

    return nearest


def far_forgotten(honest: Any) -> Any:
    return property(
        lambda self: (
            self.chance
            / COIN
            * spheres._mean_of_nearest(self.dimension, self.candidates // 2, self.near)
        )
    )


def coarse(honest: Any) -> Any:
    return lambda: np.repeat(honest().reshape(64, -1).mean(axis=1).round().astype(np.int64), 32)


SPHERE = {
    ("sphere", 1, "one unit of the coin more"): Plant(
        method(spheres, "_with_coin", one_unit_more), {"epsilon": 2.0}
    ),
    ("sphere", 1, "an exponential from above"): Plant(
        scaled(spheres, "_exponential_from_below", Fraction(10**9 + 1, 10**9)), {"epsilon": 2.0}
    ),
    ("sphere", 2, "near numbers that may be far ones, too"): Plant(
        method(Sphere, "choose", far_ones_from_all), {"candidates": 4, "near": 1}
    ),
    ("sphere", 2, "one near number too few"): Plant(
        method(Sphere, "nearest", named_twice), {"candidates": 4, "near": 2}
    ),
    ("sphere", 3, "the far ones forgotten"): Plant(
        method(Sphere, "shrinkage", far_forgotten), {"epsilon": 2.0, "dimension": 10}
    ),
    ("sphere", 4, "a hash that forgets its row"): Plant(
        method(
            spheres,
            "hashed",
            lambda honest: (
                lambda first, second, row, counter: honest(
                    first, second, np.zeros_like(row), counter
                )
            ),
        ),
        {"dimension": 5},
    ),
    ("sphere", 4, "a unit lost in rounding"): Plant(
        constant(spheres, "DIRECTION_UNITS", (1 << 24) - 1), {"dimension": 50}
    ),
    ("sphere", 5, "a table of 64 cells"): Plant(
        method(spheres, "positive_cells", coarse),
        {"epsilon": 4.0, "dimension": 50, "limit": 3e-5},
    ),
}

# -- shuffling -------------------------------------------------------------------------------------


def first_small(module: ModuleType) -> dict[str, Any]:
    return {"mechanism": module.SMALL[0]}


SHUFFLING = {
    ("shuffling", 1, "a report more than there are"): Plant(
        method(
            shuffle,
            "blanket_delta",
            lambda honest: (
                lambda mechanism, reports, epsilon: honest(mechanism, reports + 1, epsilon)
            ),
        ),
        first_small,
    ),
    ("shuffling", 1, "half of the sum"): Plant(scaled(shuffle, "blanket_delta", 0.5), first_small),
    ("shuffling", 2, "rounding forgotten"): Plant(
        constant(shuffle, "_ROUNDING", -1e-4), lambda module: first_small(module) | {"reports": 7}
    ),
    ("shuffling", 3, "twice as many reports"): Plant(
        method(
            clones,
            "clones_delta",
            lambda honest: lambda local, reports, epsilon: honest(local, 2 * reports, epsilon),
        )
    ),
    ("shuffling", 4, "all of a batch counted as honest"): Plant(
        constant(Shuffle, "counted", lambda self, reports: reports)
    ),
}

# -- composition -----------------------------------------------------------------------------------


def contributions(change: Callable[[dict[int, float]], dict[int, float]]) -> Change:
    """Another number of contributions to each epoch than a user has made."""
    return method(
        Ledger, "_composed", lambda honest: lambda self, came: honest(self, change(dict(came)))
    )


def dearest(patch: Patch) -> None:
    def total(self: filters.Filter, charges: Any) -> Any:
        parts = [self.cost(charge, coordinates) for charge, coordinates in charges]
        return tuple(max(column) for column in zip(*parts, strict=True))

    patch.setattr(filters.Filter, "total", total)


def cheaper(*args: Any, **options: Any) -> Any:
    """The less of two costs, where there are two."""
    two = len(args) == 2 and 0.0 not in args
    return min(*args) if two else max(*args, **options)


def held_once(honest: Any) -> Any:
    return lambda self: honest(self) if self._until == -inf else None


COMPOSITION = {
    ("composition", 1, "the newest epoch counted alone"): Plant(
        method(
            Ledger, "_by_epoch", lambda honest: lambda self: dict(list(honest(self).items())[-1:])
        ),
        {"epsilon": 1.0},
    ),
    (
        "composition",
        2,
        "visits of one epoch composed as if they had noise of their own",
    ): Plant(contributions(lambda came: {epoch: sqrt(often) for epoch, often in came.items()})),
    ("composition", 3, "the root of the number of contributions"): Plant(
        constant(UserLimit, "composition", lambda self, local=False: sqrt(self.total)),
        {"total": 4},
    ),
    ("composition", 4, "the dearest of a user's epochs alone"): Plant(
        contributions(lambda came: dict(list(came.items())[:1])), {"total": 2, "epsilon": 1.0}
    ),
    ("composition", 5, "kinds that mix"): Plant(
        constant(Ledger, "_check_kinds", lambda self, event: None)
    ),
    ("composition", 6, "stages that do not add up"): Plant(
        constant(ledgers, "_together", lambda stages: stages[-1])
    ),
    ("composition", 7, "the cheaper kind"): Plant(
        lambda patch: patch.setattr(filters, "max", cheaper, raising=False)
    ),
    ("composition", 8, "the dearest source instead of the sum"): Plant(
        dearest, {"account": "basic"}
    ),
    ("composition", 9, "the dearest source instead of the sum"): Plant(dearest),
    ("composition", 10, "half of a pure divergence"): Plant(
        scaled(filters, "pure_divergence", 0.5)
    ),
    ("composition", 10, "a conversion without delta"): Plant(
        constant(filters, "_conversion", lambda delta, alpha: 0.0)
    ),
    ("composition", 11, "a tolerance of a thousandth"): Plant(
        constant(filters, "TOLERANCE", Fraction(1, 1000))
    ),
    ("composition", 12, "the period of the plan alone"): Plant(
        method(Reservation, "hold", held_once)
    ),
}

# -- slots -----------------------------------------------------------------------------------------


def at_once(patch: Patch) -> None:
    patch.setattr(release, "moment_of", lambda first, ready: (ready, 0))
    patch.setattr(release, "first_moment", lambda due, slots: due)


def as_they_come(patch: Patch) -> None:
    at_once(patch)
    patch.setattr(PublicState, "effect", lambda self, epoch, issued: issued)


def drawn_anew(honest: Any) -> Any:
    def noisy(self: Any, epoch: int) -> Any:
        honest(self, epoch)
        return self._draw(epoch)

    return noisy


SLOTS = {
    ("slots", 1, "a moment counted from the end of reading"): Plant(
        constant(release, "moment_of", lambda first, ready: (ready + 0.35, 0))
    ),
    ("slots", 1, "published when it is ready"): Plant(at_once, {"visits": 2}),
    ("slots", 2, "misses that nobody counts"): Plant(
        method(
            release,
            "moment_of",
            lambda honest: lambda first, ready: (honest(first, ready)[0], 0),
        )
    ),
    ("slots", 3, "slots as they come"): Plant(as_they_come),
    ("slots", 4, "no cap on the rewards of a decision"): Plant(
        constant(joint_rewards, "MOST_REWARDS", 10**6), {"sealed": False}
    ),
    ("slots", 5, "noise drawn anew"): Plant(
        method(release.Releases, "_noisy", drawn_anew), {"sealed": False, "dies": False}
    ),
}

PLANTS: dict[tuple[str, int, str], Plant] = {
    **GATE, **CALIBRATION, **VECTOR, **PRODUCTS, **CELLS, **ROWS,
    **CROWD, **SHADOW, **SPHERE,
    **SHUFFLING, **COMPOSITION, **SLOTS,
}  # fmt: skip
# Their tests take seconds.
SLOW = {
    ("composition", 6), ("composition", 12), ("rows", 3), ("shuffling", 3), ("slots", 1),
    ("slots", 3), ("sphere", 3), ("sphere", 5), ("vector", 1),
}  # fmt: skip
