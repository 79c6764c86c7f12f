"""Public directions: uniform, independent, and the same for everybody to the bit."""

import itertools
from math import sqrt

import numpy as np
import pytest

from capri.privacy.directions import (
    DIRECTION_UNITS,
    direction_sum,
    directions,
    gaussians,
    hashed,
    mix,
    projections,
)


def seeds(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, size=(count, 2), dtype=np.uint64)


def test_mix_is_splitmix() -> None:
    """The published first outputs of SplitMix64 from seed 0."""
    states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [int(word) for word in mix(states)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_hash_depends_on_every_argument() -> None:
    one = np.array([1], dtype=np.uint64)
    two = np.array([2], dtype=np.uint64)
    zero, other = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    words = [
        int(hashed(*arguments)[0])
        for arguments in (
            (one, two, zero, zero),
            (two, one, zero, zero),
            (two, two, zero, zero),
            (one, two, other, zero),
            (one, two, zero, other),
        )
    ]
    assert len(set(words)) == 5


@pytest.mark.parametrize("dimension", [2, 3, 8, 51])
def test_gaussians_have_the_right_moments(dimension: int) -> None:
    """Within 5 standard errors, 6e-7 by chance each."""
    count = 200_000 // dimension
    values = gaussians(seeds(count), np.zeros((count, 1), dtype=np.int64), dimension)[:, 0]
    assert values.shape == (count, dimension)
    flat = values.astype(np.float64).ravel()
    n = flat.size
    assert abs(flat.mean()) <= 5 / sqrt(n)
    assert abs(np.mean(flat**2) - 1) <= 5 * sqrt(2 / n)
    assert abs(np.mean(flat**3)) <= 5 * sqrt(15 / n)
    assert abs(np.mean(flat**4) - 3) <= 5 * sqrt(96 / n)


def test_directions_are_uniform() -> None:
    """Mean 0, covariance I/m, and each coordinate's law: 5 standard errors or a DKW bound.

    100 moments at 6e-7 and ten coordinates at 2 exp(-2 * 16) each: below 1e-4 in all.
    """
    count, m = 40_000, 10
    rows = directions(seeds(count, 1), np.zeros(count, dtype=np.int64), m) / DIRECTION_UNITS
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-6)
    assert (np.abs(rows.mean(axis=0)) <= 5 / sqrt(m * count)).all()
    covariance = rows.T @ rows / count
    # Var(v_i v_j) = 1/(m(m+2)) off the diagonal, 2(m-1)/(m^2(m+2)) on it.
    off = covariance[~np.eye(m, dtype=bool)]
    assert (np.abs(off) <= 5 / sqrt(m * (m + 2) * count)).all()
    spread = sqrt(2 * (m - 1) / (m * m * (m + 2) * count))
    assert (np.abs(covariance.diagonal() - 1 / m) <= 5 * spread).all()
    from scipy.stats import beta

    for column in rows.T:
        ordered = np.sort(column**2)
        gap = np.abs(beta(0.5, (m - 1) / 2).cdf(ordered) - np.arange(count) / count).max()
        assert gap <= 4 / sqrt(count) + 1 / count


def test_rows_and_seeds_are_independent() -> None:
    """Products of directions of one seed, of seeds one bit apart, of swapped words: mean 0 and
    mean square 1/m. Within 5 standard errors, 6e-7 by chance each."""
    count, m = 40_000, 8
    keys = seeds(count, 2)
    zeros, ones = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    first = directions(keys, zeros, m) / DIRECTION_UNITS
    neighbours = {
        "row": directions(keys, ones, m),
        "far row": directions(keys, 127 * ones, m),
        "bit of the first word": directions(keys ^ np.array([1, 0], dtype=np.uint64), zeros, m),
        "bit of the second": directions(keys ^ np.array([0, 1 << 63], dtype=np.uint64), zeros, m),
        "swapped": directions(keys[:, ::-1], zeros, m),
        "next first word": directions(keys + np.array([1, 0], dtype=np.uint64), zeros, m),
    }
    for name, rows in neighbours.items():
        products = np.einsum("ij,ij->i", first, rows / DIRECTION_UNITS)
        assert abs(products.mean()) <= 5 / sqrt(m * count), name
        spread = sqrt(2 * (m - 1) / (m * m * (m + 2) * count))
        assert abs(np.mean(products**2) - 1 / m) <= 5 * spread, name


@pytest.mark.parametrize("dimension", [2, 5, 33, 200])
def test_one_seed_alone_and_among_many_agree_to_the_bit(dimension: int) -> None:
    count = 3000 // dimension + 300
    keys, rows = seeds(count, 3), np.random.default_rng(4).integers(0, 32, size=count)
    together = directions(keys, rows, dimension)
    for i in (*range(0, count, 37), count - 1):
        assert (directions(keys[i : i + 1], rows[i : i + 1], dimension) == together[i]).all()
    units = np.random.default_rng(5).standard_normal((count, dimension))
    products = projections(keys, 16, units)
    for i in (*range(0, count, 37), count - 1):
        assert (projections(keys[i : i + 1], 16, units[i : i + 1]) == products[i]).all()
    # Where the memory of a batch starts does not matter either.
    assert (projections(keys[1:], 16, units[1:]) == products[1:]).all()


def test_projections_are_products_with_the_directions() -> None:
    keys = seeds(20, 6)
    units = np.random.default_rng(7).standard_normal((20, 30))
    found = projections(keys, 8, units)
    for row in range(8):
        expanded = directions(keys, np.full(20, row), 30) / DIRECTION_UNITS
        assert found[:, row] == pytest.approx(np.einsum("ij,ij->i", expanded, units), abs=1e-5)


@pytest.mark.parametrize("dimension", [2, 7, 200])
def test_sum_is_exact_in_any_order_and_any_batches(dimension: int) -> None:
    count = 5000
    generator = np.random.default_rng(8)
    keys, rows = seeds(count, 9), generator.integers(0, 128, size=count)
    signs = generator.choice([-1, 1], size=count)
    total = direction_sum(keys, rows, signs, dimension)
    assert total.dtype == np.int64
    assert (total == (signs[:, None] * directions(keys, rows, dimension)).sum(axis=0)).all()
    order = generator.permutation(count)
    assert (direction_sum(keys[order], rows[order], signs[order], dimension) == total).all()
    cuts = [0, 1, 17, 2500, count]
    parts = [
        direction_sum(keys[a:b], rows[a:b], signs[a:b], dimension)
        for a, b in itertools.pairwise(cuts)
    ]
    assert (np.sum(parts, axis=0) == total).all()
    assert (direction_sum(keys, rows, -signs, dimension) == -total).all()
    nothing = direction_sum(keys[:0], rows[:0], signs[:0], dimension)
    assert (nothing == 0).all()


# Seeds found by inverting the hash: the logarithm's argument is as close to 1 as 64 bits allow in
# both pairs, so a careless square root gives the vector 0 and a direction that is not a number.
CROOKED = np.array([[0x1196F20, 0x1890D796264F1756]], dtype=np.uint64)


@pytest.mark.parametrize("dimension", [2, 3, 4])
def test_no_seed_names_anything_but_a_unit_vector(dimension: int) -> None:
    """A hostile device chooses its seed; it must not get more than one unit vector for it."""
    vector = directions(CROOKED, np.zeros(1, dtype=np.int64), dimension)[0]
    assert np.linalg.norm(vector / DIRECTION_UNITS) == pytest.approx(1, abs=1e-6)
    total = direction_sum(CROOKED, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), 4)
    assert np.linalg.norm(total / DIRECTION_UNITS) == pytest.approx(1, abs=1e-6)
    assert np.isfinite(projections(CROOKED, 1, np.eye(dimension)[:1])).all()


def test_extreme_words_give_finite_radii() -> None:
    """All 2^32 first halves lie between these, so every Gaussian is finite and no pair is zero."""
    from capri.privacy import directions as module

    words = np.array([0, 1 << 32, (1 << 64) - 1, 0xFFFFFF0000000000], dtype=np.uint64)
    original = module.hashed
    try:
        module.hashed = lambda *arguments: words[None, None, :]  # type: ignore[assignment]
        values = gaussians(seeds(1), np.zeros((1, 1), dtype=np.int64), 8)[0, 0]
    finally:
        module.hashed = original  # type: ignore[assignment]
    radius = np.hypot(values[:4], values[4:])
    assert np.isfinite(radius).all()
    assert (radius > 0).all()
    assert radius.max() < 8
