"""Public directions: uniform, independent, and the same for everybody to the bit."""

import itertools
import os
import subprocess
import sys
from math import sqrt

import numpy as np
import pytest

from capri.privacy.sphere import (
    DIRECTION_UNITS,
    direction_sum,
    directions,
    hashed,
    mix,
    positive_cells,
    projections,
    raw_vectors,
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


CELLS = positive_cells()


def test_table_holds_the_means_of_normal_cells() -> None:
    """Recomputed: off by less than half a unit, so that every rounding was right."""
    from scipy.stats import norm

    edges = norm.pdf(norm.ppf(0.5 + np.arange(2049) / 4096))
    means = 2.0**13 * 4096 * (edges[:-1] - edges[1:])
    assert np.abs(CELLS - means).max() < 0.5
    assert (np.diff(CELLS) > 0).all()
    assert CELLS[0] > 0  # no entry is 0, hence no vector
    assert CELLS[-1] < 1 << 15


@pytest.mark.parametrize("dimension", [2, 3, 8, 51])
def test_entries_have_the_moments_of_the_table(dimension: int) -> None:
    """Every cell and sign as often as any other. Within 5 standard errors, 6e-7 by chance each."""
    count = 200_000 // dimension
    values = raw_vectors(seeds(count), np.zeros((count, 1), dtype=np.int64), dimension)[:, 0]
    assert values.shape == (count, dimension)
    flat = values.ravel()
    assert np.isin(np.abs(flat), CELLS).all()
    for power in (1, 2, 3, 4):
        entries = np.concatenate([CELLS, -CELLS]).astype(np.float64) ** power
        error = entries.std() / sqrt(flat.size)
        assert abs(np.mean(flat**power) - entries.mean()) <= 5 * error


def plain_direction(first: int, second: int, row: int, dimension: int) -> list[int]:
    """The definition in Python's whole numbers: only the last line is floating point."""
    limit = (1 << 64) - 1

    def mixed(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & limit
        word = (word ^ word >> 27) * 0x94D049BB133111EB & limit
        return word ^ word >> 31

    entries: list[int] = []
    for counter in range((dimension + 3) // 4):
        inner = mixed(first + counter * 0x9E3779B97F4A7C15 & limit)
        word = mixed(inner ^ (second + (row + 1) * 0xD1342543DE82EF95 & limit))
        for lane in range(4):
            cell = word >> (16 * lane + 4) & 0xFFF
            entries.append(int(CELLS[cell % 2048]) * (-1 if cell >= 2048 else 1))
    entries = entries[:dimension]
    scale = (1 << 24) / sqrt(sum(entry * entry for entry in entries))
    return [round(entry * scale) for entry in entries]


@pytest.mark.parametrize("dimension", [2, 3, 4, 5, 50, 203])
def test_directions_by_their_definition(dimension: int) -> None:
    keys, rows = seeds(40, 21), np.random.default_rng(22).integers(0, 2048, size=40)
    found = directions(keys, rows, dimension)
    for (first, second), row, vector in zip(keys.tolist(), rows.tolist(), found, strict=True):
        assert plain_direction(first, second, row, dimension) == vector.tolist()


def test_same_bits_without_vector_instructions() -> None:
    """In a process whose NumPy may use none beyond the oldest ones: sums and rankings."""
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    baseline = set(np._core._multiarray_umath.__cpu_baseline__)  # type: ignore[attr-defined]
    chosen = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    extra = [name for name in chosen if features.get(name) and name not in baseline]
    code = """
import hashlib, numpy as np
from capri.privacy.sphere import direction_sum, directions, projections
g = np.random.default_rng(0)
digest = hashlib.sha256()
for m in (2, 7, 50, 200):
    keys = g.integers(0, 2**64, size=(2000, 2), dtype=np.uint64)
    rows, signs = g.integers(0, 128, 2000), g.choice([-1, 1], 2000)
    digest.update(direction_sum(keys, rows, signs, m).tobytes())
    digest.update(directions(keys, rows, m).tobytes())
    vectors = g.integers(-(2**25), 2**25, (200, m))
    digest.update(projections(keys[:200], 16, vectors).tobytes())
print(digest.hexdigest())
"""
    found = set()
    for disabled in ([], extra):
        environment = dict(os.environ, NPY_DISABLE_CPU_FEATURES=" ".join(disabled))
        told = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(told.stdout)
    assert len(found) == 1


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
    units = np.random.default_rng(5).integers(-(2**20), 2**20, (count, dimension))
    products = projections(keys, 16, units)
    for i in (*range(0, count, 37), count - 1):
        assert (projections(keys[i : i + 1], 16, units[i : i + 1]) == products[i]).all()
    # Where the memory of a batch starts does not matter either.
    assert (projections(keys[1:], 16, units[1:]) == products[1:]).all()


def test_projections_are_products_with_the_directions() -> None:
    keys = seeds(20, 6)
    units = np.random.default_rng(7).integers(-(2**20), 2**20, (20, 30))
    found = projections(keys, 8, units)
    for row in range(8):
        expanded = directions(keys, np.full(20, row), 30) / DIRECTION_UNITS
        assert found[:, row] == pytest.approx(np.einsum("ij,ij->i", expanded, units), abs=10)


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


@pytest.mark.parametrize("dimension", [2, 3, 4, 1 << 16])
def test_no_seed_names_anything_but_a_unit_vector(dimension: int) -> None:
    """A hostile device chooses its seed; it must not get more than one unit vector for it.

    The smallest and the largest entries in every coordinate, whatever the hash: squared norms stay
    exact, and rounding moves a vector of ``m`` coordinates by at most ``sqrt(m) / 2`` units.
    """
    for entry in (CELLS[0], CELLS[-1]):
        squares = dimension * int(entry) ** 2
        assert squares < 1 << 53
        assert int(np.full(dimension, float(entry)) @ np.full(dimension, float(entry))) == squares
        scaled = np.rint(np.full(dimension, float(entry)) * (DIRECTION_UNITS / sqrt(squares)))
        off = abs(np.linalg.norm(scaled) - DIRECTION_UNITS)
        assert off <= sqrt(dimension) / 2 + 1


def test_rankings_are_exact() -> None:
    """Products with the largest vectors that a bundle allows stay below 2^53."""
    assert sqrt(4098) * int(CELLS[-1]) * 2.0**31 < 2**53
    keys = seeds(6, 23)
    vectors = np.random.default_rng(24).integers(-(2**24), 2**24, size=(6, 4098))
    found = projections(keys, 4, vectors)
    for user in range(6):
        for row in range(4):
            raw = raw_vectors(keys[user : user + 1], np.array([[row]]), 4098)[0, 0]
            exact = sum(int(a) * int(b) for a, b in zip(raw, vectors[user], strict=True))
            assert found[user, row] == exact / sqrt(sum(int(a) ** 2 for a in raw))
