"""Messages in integers: bounded for any input, exact in any order, and readable under noise."""

from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from builders import dp_event
from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS, delivered_by_integers
from capri.privacy.gate import Gate, noised
from capri.privacy.ledger import Ledger
from capri.privacy.noise import SecureNoise, SimulatedNoise
from capri.privacy.products import LARGEST_LEVEL, ProductLayout, RoundedRows, _bounded
from capri.privacy.projection import half_vector, integer_projection

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def full_layout(rank: int, *, projected: bool = False) -> ProductLayout:
    """All blocks, as loud as they may be."""
    columns = rank * (rank + 1) // 2
    plain = ProductLayout(
        rank=rank,
        missing=True,
        second_moments=True,
        tail_share=0.1,
        projection=integer_projection(np.eye(columns)[:2], rank) if projected else None,
    )
    loud = replace(plain, moment_share=plain.largest_moment_share)
    return replace(loud, count_share=loud.largest_count_share)


LAYOUTS = {
    "main": ProductLayout(rank=4),
    "as today": ProductLayout(rank=4, moment_share=0.1, tail_share=0.1),
    "missing": ProductLayout(rank=4, missing=True, count_share=1.0),
    "all": full_layout(4),
    "projected": full_layout(4, projected=True),
}


def fitted(layout: ProductLayout, length: int = 1000) -> ProductLayout:
    return layout.fitted(length=length, budget=BUDGET)


def part_of(rows: RoundedRows, place: slice | IntArray) -> RoundedRows:
    return RoundedRows(**{name: numbers[place] for name, numbers in vars(rows).items()})


def some_rows(count: int, rank: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Features within and beyond norm 1; values within and beyond 1; a fifth missing, some bad."""
    generator = np.random.default_rng(seed)
    whitened = generator.normal(size=(count, rank)) / sqrt(rank)
    values = generator.uniform(-1.5, 1.5, size=count)
    values[generator.random(count) < 0.2] = np.nan
    whitened[generator.random(count) < 0.05, 0] = np.nan
    return whitened, values


# --- bounds ---------------------------------------------------------------------------------------

anything = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True, width=64)
edges = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-160, 1e154, 1.8e308, np.inf, -np.inf, np.nan, 0.5]
)
bound = st.floats(1e-150, 1e150)


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.float64, (3, 4), elements=anything | edges),
    arrays(np.float64, 3, elements=anything | edges),
    bound,
    bound,
    bound,
    st.sampled_from([4, 1000, 2**15 + 1, LARGEST_LEVEL]),
)
def test_bounds_hold_in_exact_integers_for_any_floats(
    whitened: FloatArray, values: FloatArray, clip: float, size: float, tail: float, level: int
) -> None:
    """Each bound by itself, in Python's integers; forms as they should be; sums are of messages."""
    grid = replace(LAYOUTS["all"], level=level)
    rows = grid.rounded(whitened, values, clip_norm=clip, value_bound=size, tail_bound=tail)
    for i in range(3):
        psi = [int(number) for number in rows.features[i]]
        assert psi == rows.features[i].tolist()
        assert sum(number * number for number in psi) <= level**2
        assert float(rows.values[i]).is_integer()
        assert abs(int(rows.values[i])) <= level
        assert float(rows.excess[i]).is_integer()
        assert 0 <= int(rows.excess[i]) <= level
        with np.errstate(over="ignore"):
            good = bool(np.isfinite(np.sum(whitened[i] ** 2)))
        given_value = bool(np.isfinite(values[i]))
        assert (rows.answered[i], rows.missing[i]) == (good & given_value, good & ~given_value)
        if not good:
            assert not grid.products(part_of(rows, slice(i, i + 1))).any()
    units = grid.products(rows)
    assert np.array_equal(grid.sum_of(rows), units.sum(axis=0))
    largest = [b.largest for b in grid.blocks.values() for _ in range(b.size)]
    assert (np.abs(units) <= largest).all()


def test_bound_is_enforced_whatever_came_before() -> None:
    """Rows that no scaling has shortened are cut, and emptied where they are still too long."""
    rows = np.array([[3.0, 4.0], [4.0, 4.0], [np.nan, 0.0], [np.inf, 0.0], [1e300, 1.0]])
    good = _bounded(rows, np.array([True, True, False, False, True]), level=5)
    assert good.tolist() == [1, 0, 0, 0, 0]
    assert rows.tolist() == [[3, 4], [0, 0], [0, 0], [0, 0], [0, 0]]


def test_rows_at_their_bounds_lose_nothing_but_resolution() -> None:
    """Every feature of norm 1 or more comes out good, at the edge of its bound."""
    generator = np.random.default_rng(5)
    for rank in (1, 2, 7, 50):
        grid = fitted(ProductLayout(rank=rank))
        whitened = generator.normal(size=(2000, rank))
        lengths = generator.choice([1.0, 1.5, 1e9], size=2000) * (1 + 1e-12)
        whitened *= (lengths / np.linalg.norm(whitened, axis=1))[:, None]
        rows = grid.rounded(whitened, np.full(2000, 9.0))
        assert rows.answered.all()
        assert (rows.values == grid.level).all()
        norms = np.linalg.norm(rows.features, axis=1)
        assert norms.max() <= grid.level
        assert norms.min() >= grid.level - sqrt(rank) - 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_forms_are_those_of_the_layout(name: str) -> None:
    """Answered, missing and bad, number by number, against the formula written out."""
    layout = LAYOUTS[name]
    grid = replace(layout, level=1003, noise_units=0.0)
    scale = grid.feature_units
    whitened = np.array([[0.6, 0.0, -0.2, 0.1]] * 2 + [[np.nan, 0.0, 0.0, 0.0]])
    psi = np.rint(whitened[0] * scale).astype(int).tolist()
    rows = grid.rounded(whitened, np.array([1.25, np.nan, 0.5]), tail_bound=0.5)
    moments = [a * a for a in psi] + [psi[i] * psi[j] for i in range(4) for j in range(i + 1, 4)]
    square = 1003**2
    wanted = {
        "main": ([1003 * number for number in psi], [0] * 4),
        "missing": ([0] * 4, [1003 * number for number in psi]),
        "diagonal": (moments[:4], moments[:4]),
        "products": (moments[4:], moments[4:]),
        "projected": ([1024 * moment for moment in moments[:2]],) * 2,
        "moment": ([square], [0]),
        "tail": ([2 * 1003 * round(1003 / 2) - square], [0]),
        "count": ([0], [square]),
    }
    units = grid.products(rows)
    for block_name, block in layout.blocks.items():
        assert units[0, block.part].tolist() == wanted[block_name][0], block_name
        assert units[1, block.part].tolist() == wanted[block_name][1], block_name
    assert not units[2].any()


def test_shapes_are_public_and_checked() -> None:
    grid = fitted(LAYOUTS["main"])
    with pytest.raises(ConfigurationError, match=r"need features of shape \(rows, 4\)"):
        grid.rounded(np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(ConfigurationError, match="clip_norm must lie between"):
        grid.rounded(np.zeros((2, 4)), np.zeros(2), clip_norm=0.0)


# --- exact, by itself, in any order --------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 3, 8, 33])
def test_row_does_not_depend_on_its_neighbours(rank: int) -> None:
    """Alone, in a batch, in a strided view or beside hostile rows: the same bits."""
    grid = fitted(full_layout(rank))
    whitened, values = some_rows(5000, rank)
    together = grid.rounded(whitened, values)
    hostile, silent = whitened.copy(), values.copy()
    hostile[1::2], silent[1::2] = np.inf, np.nan
    beside = grid.rounded(np.asfortranarray(hostile), silent)
    for place in range(0, 5000, 500):
        alone = grid.rounded(whitened[place : place + 1], values[place : place + 1])
        one = grid.products(alone)
        assert np.array_equal(one, grid.products(part_of(together, slice(place, place + 1))))
        assert np.array_equal(one, grid.products(part_of(beside, slice(place, place + 1))))


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_order_and_any_chunking_give_the_same_sum(name: str) -> None:
    """More rows than BLAS is given at once, at the largest level, against one-by-one products."""
    grid = replace(LAYOUTS[name], level=LARGEST_LEVEL)
    rows = grid.rounded(*some_rows(20_000, 4))
    total = grid.sum_of(rows)
    assert np.array_equal(total, grid.products(rows).sum(axis=0))
    order = np.random.default_rng(1).permutation(20_000)
    assert np.array_equal(grid.sum_of(part_of(rows, order)), total)
    for cuts in ([7], [1, 2, 8192, 8193], list(range(0, 20_000, 999))):
        parts = [part_of(rows, piece) for piece in np.split(np.arange(20_000), cuts)]
        assert np.array_equal(sum(grid.sum_of(part) for part in parts), total)


def test_largest_sums_stay_exact() -> None:
    """Every product at its largest for as many rows as one block holds: 2^53 and not beyond."""
    grid = ProductLayout(rank=1, second_moments=True, level=2**20)
    ones = np.full(2**13 + 1, float(2**20))
    flags, none = np.ones_like(ones), np.zeros_like(ones)
    rows = RoundedRows(ones[:, None], ones, none, flags, none)
    assert grid.sum_of(rows).tolist() == [(2**13 + 1) * 2**40] * 2


# --- grid and noise ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("length", [1, 1000, 10**8])
@pytest.mark.parametrize("epsilon", [0.01, 8.0])
def test_grid_fits_64_bits_and_hides_as_promised(name: str, length: int, epsilon: float) -> None:
    budget = Budget(epsilon=epsilon, delta=1e-6)
    grid = LAYOUTS[name].fitted(length=length, budget=budget)
    for block_name, block in grid.blocks.items():
        scale = grid.noise_scales[block_name]
        assert length * block.largest + 64 * scale * sqrt(length) < 2**62 * 1.001
        # The share enters as noise, rounded to the private side: within three bits, never below.
        squared = Fraction(scale) ** 2 * block.share_squared / Fraction(grid.noise_units) ** 2
        assert 1 <= squared < 1 + Fraction(1, 2**50)
        assert scale >= NOISE_UNITS
    mu = grid.diameter / grid.noise_units
    spent = delivered_by_integers(mu, budget, grid.coordinates)
    assert epsilon * (1 - 1e-6) < spent <= epsilon


def test_diagonal_has_the_noise_of_the_weighted_half_vector() -> None:
    """``sigma / m`` above the diagonal, ``sqrt 2`` more on it; the rest by their shares."""
    grid = fitted(full_layout(3))
    scales, layout = grid.noise_scales, grid
    main = grid.noise_units / sqrt(1 - layout.tail_share**2)
    wanted = {
        "main": main,
        "missing": main,
        "diagonal": sqrt(2) * main,
        "products": main,
        "moment": grid.noise_units / layout.moment_share,
        "tail": grid.noise_units / layout.tail_share,
        "count": grid.noise_units / layout.count_share,
    }
    assert scales == pytest.approx(wanted, rel=1e-14)


def test_impossible_grids_say_why() -> None:
    with pytest.raises(ConfigurationError, match="do not fit 64-bit integers"):
        LAYOUTS["all"].fitted(length=2**60, budget=BUDGET)
    with pytest.raises(ConfigurationError, match="out of reach of the integer noise"):
        LAYOUTS["all"].fitted(length=2**39, budget=Budget(epsilon=50.0, delta=1e-5))
    with pytest.raises(ConfigurationError, match="do not go together"):
        ProductLayout(rank=100, level=6)
    with pytest.raises(ConfigurationError, match="level must lie between"):
        ProductLayout(rank=1, level=2**21)


def test_gate_states_the_exact_cost_and_refuses_less_noise() -> None:
    grid = fitted(LAYOUTS["all"])
    ledger = Ledger(BUDGET)
    gate = Gate(SecureNoise(), ledger)
    secret = grid.total(*some_rows(1000, 4))
    vector, event = gate.release(secret, grid, epoch=0, participants=1000)
    assert event.mu == 2 * grid.level**2 / grid.noise_units
    assert event.rank == grid.coordinates == 4 + 4 + 10 + 3
    assert ledger.spent.epsilon <= BUDGET.epsilon
    assert ledger.spent.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-6)
    assert dp_event(event).noise_multiplier == pytest.approx(1 / event.mu)
    # 20 standard deviations: chance of a false alarm below 1e-80.
    apart = vector - grid.numbers(secret)
    assert (np.abs(apart) < 20 * grid.deviations).all()
    assert apart.all()
    quiet = replace(grid, noise_units=grid.noise_units * 0.999)
    with pytest.raises(BudgetError, match="nothing was released"):
        gate.release(secret, quiet, epoch=1, participants=1000)


def test_narrowest_noise_is_that_of_the_loudest_block() -> None:
    """A count louder than the main block is what the gate checks the width of."""
    layout = ProductLayout(rank=2, count_share=1.5)
    grid = replace(layout, level=2000, noise_units=1.4 * NOISE_UNITS)
    assert grid.narrowest == pytest.approx(1.4 / 1.5 * NOISE_UNITS)
    with pytest.raises(BudgetError, match="grid units wide"):
        Gate(SecureNoise(), Ledger(Budget(epsilon=8.0, delta=1e-5))).check(
            grid, epoch=0, participants=10
        )


# --- reading back --------------------------------------------------------------------------------


def test_noisy_sums_are_unbiased_and_as_wide_as_stated() -> None:
    """400 releases of one epoch. Fixed seed; bounds of 5 standard errors, so that another seed
    would fail with a chance below 1e-4 over the 27 numbers looked at.
    """
    grid = fitted(full_layout(3))
    whitened, values = some_rows(4000, 3, seed=7)
    good = np.isfinite(whitened).all(axis=1)
    answered = good & np.isfinite(values)
    psi = np.where(good[:, None], whitened, 0.0)
    psi /= np.maximum(np.linalg.norm(psi, axis=1), 1.0)[:, None]
    t = np.where(answered, np.clip(values, -1, 1), 0.0)
    e = np.where(answered, np.clip(np.abs(values) - 1, 0, 1), 0.0)
    truth = np.concatenate(
        [
            t @ psi,
            psi[good & ~answered].sum(axis=0),
            half_vector(psi.T @ psi),
            [(t**2).sum(), e.sum(), (good & ~answered).sum()],
        ]
    )
    secret = grid.total(whitened, values)
    source = SimulatedNoise(np.random.default_rng(8))
    present = int(good.sum())

    def numbers() -> FloatArray:
        found = grid.numbers(noised(secret, grid, source))
        found[grid.blocks["products"].part] *= sqrt(2)
        moment, tail, count = found[-3:]
        answers = present - count
        return np.concatenate([found[:-3], [(moment + answers) / 2, (tail + answers) / 2, count]])

    draws = np.array([numbers() for _ in range(400)])
    name = ["main"] * 3 + ["missing"] * 3 + ["diagonal"] * 3 + ["products"] * 3
    wide = [grid.deviation(n) for n in name]
    wide[9:] = [sqrt(2) * deviation for deviation in wide[9:]]
    count = grid.deviation("count")
    wide += [sqrt(grid.deviation(n) ** 2 + count**2) / 2 for n in ("moment", "tail")] + [count]
    errors = (draws.mean(axis=0) - truth) / (np.array(wide) / 20)
    assert np.abs(errors).max() < 5
    # The sample deviation of 400 draws has a relative error of 1/sqrt(800).
    assert np.abs(draws.std(axis=0) / wide - 1).max() < 5 / sqrt(800)


def test_projected_moments_are_read_by_their_directions() -> None:
    generator = np.random.default_rng(9)
    directions = np.linalg.qr(generator.normal(size=(10, 3)))[0].T
    layout = ProductLayout(
        rank=4, second_moments=True, projection=integer_projection(directions, 4)
    )
    grid = layout.fitted(length=2000, budget=None)
    psi = generator.normal(size=(2000, 4))
    psi /= np.linalg.norm(psi, axis=1)[:, None]
    released = grid.numbers(grid.total(psi, np.zeros(2000)))
    assert layout.projection is not None
    assert list(layout.blocks) == ["main", "projected"]
    wanted = layout.projection.directions @ half_vector(psi.T @ psi)
    assert grid.part(released, "projected") == pytest.approx(wanted, rel=1e-5, abs=1.0)
