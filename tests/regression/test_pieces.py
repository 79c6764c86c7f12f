"""Columns by counts of their cells: ranks, pieces, and the functions that stand on them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capri.privacy.budget import Budget
from capri.privacy.pairs import CountLayout
from capri.regression.columns import CELLS, Levels, Numbers, TableColumns
from capri.regression.family import table_family

LOW, HIGH = np.array([0.0, -5.0, 0.0, 0.0, 0.0]), np.array([1.0, 5.0, 1.0, 1.0, 1.0])


def rows(count: int, seed: int = 0) -> np.ndarray:
    """A skewed number, an indicator on a wide range, and a category of three levels."""
    generator = np.random.default_rng(seed)
    levels = np.eye(3)[generator.choice(3, count, p=[0.7, 0.2, 0.1])]
    skewed, flag = generator.beta(0.5, 6, count), generator.random(count) < 0.3
    return np.column_stack([skewed, np.where(flag, 4.0, -4.0), levels])


def even() -> TableColumns:
    return TableColumns.even(LOW, HIGH, [(2, 3, 4)])


def counts(X: np.ndarray, deviation: float = 0.0) -> np.ndarray:
    table = even()
    layout = CountLayout(cells=table.sizes)
    exact = layout.numbers(layout.total(table.cells(X), X))
    return exact + deviation * np.random.default_rng(1).standard_normal(len(exact))


def test_ranks_spread_rows_evenly_and_cells_that_stand_out_have_one_each() -> None:
    X = rows(20_000)
    table = even().counted(counts(X, 40.0), 40.0, len(X))
    skewed, flag, level = table.columns
    assert isinstance(level, Levels)
    ranks = skewed.scores(X)[:, 0]
    assert np.abs(np.quantile(ranks, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.06
    assert len(np.unique(flag.scores(X))) == 2
    assert level.mass[:3] == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    before = np.quantile(even().columns[0].scores(X), 0.75)
    assert before < 0.2  # without counts three quarters are in a fifth of the range


def test_counts_that_are_noise_change_nothing() -> None:
    """JamesStein keeps nothing unless cells differ by more than noise: seeded."""
    table = even().counted(counts(rows(100), 400.0), 400.0, 100)
    for found, plain in zip(table.columns[:2], even().columns[:2], strict=True):
        assert np.abs(found.mass - plain.mass).max() < 1e-9


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=5, max_size=5))
def test_every_row_has_a_cell_of_every_column_or_none(cells: list[float]) -> None:
    row = np.array([cells])
    found = even().cells(row)[0]
    if not np.isfinite(row).all():
        assert (found == -1).all()
    else:
        assert ((found >= 0) & (found < even().sizes)).all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5))
def test_pieces_of_a_column_are_at_most_one_long(cells: list[float]) -> None:
    """In any row; those of a number add up to 1, which makes the constant a function of it."""
    table = even().counted(counts(rows(2_000), 5.0), 5.0, 2_000)
    for column in table.columns:
        found = column.pieces(np.array([cells]))
        assert ((found >= 0) & (found <= 1)).all()
        assert np.linalg.norm(found) <= 1 + 1e-12
        if isinstance(column, Numbers):
            assert found.sum() == pytest.approx(1.0)


def test_public_rows_are_counted_as_they_are() -> None:
    X = rows(500)
    table = even().seen(X)
    assert table.columns[2].mass[:3] == pytest.approx(X[:, 2:].mean(axis=0))
    assert sum(table.sizes) == 2 * CELLS + 4


def test_coordinates_are_orthonormal_under_the_law_and_hold_every_candidate() -> None:
    table = even().seen(rows(5_000))
    sample = table.draw(np.random.default_rng(2), 4_000)
    family = table_family(table, sample, max_rank=150)
    v = family.basis.coordinates(sample)
    assert np.abs(v.T @ v / len(v) - np.eye(v.shape[1])).max() < 1e-6
    shares = np.trace(family.covariances, axis1=1, axis2=2)
    assert (shares < 1 + 1e-9).all()
    named = dict(zip(family.names, shares, strict=True))
    assert min(named[name] for name in ("constant", "linear", "column 0", "category 2")) > 0.99
    few = family.cut(20)
    lost: Any = few.left_out(np.ones(len(shares)))
    assert 0 < lost < len(shares)
    assert family.left_out(np.ones(len(shares))) < lost


def test_rows_beyond_the_bounds_are_as_those_at_them() -> None:
    inside, beyond = np.array([[0.0, 5.0, 1, 0, 0]]), np.array([[-3.0, 50.0, 1, 0, 0]])
    assert np.array_equal(even().scores(inside), even().scores(beyond))


def test_counts_cost_their_share_and_no_more() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    whole = CountLayout(cells=(4, 4, 4)).told_in_stages(budget, 1.0, 1000)
    part = CountLayout(cells=(4, 4, 4)).told_in_stages(budget, 0.06, 1000)
    assert (whole.noise_units / part.noise_units) ** 2 == pytest.approx(0.06)
    assert part.deviation("counts") == pytest.approx(np.sqrt(6 / 0.06) * 3.7306, rel=1e-4)
