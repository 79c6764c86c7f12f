"""Actions, context pools and samplers: laws, look-ups, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import capri
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.spaces import (
    CHUNK_PAIRS,
    ContextPool,
    ContextSampler,
    FixedActions,
    as_contexts,
    as_rows,
    context_chunks,
)

# A statistical test below fails by chance with this probability; seeds are fixed besides.
FALSE_ALARM = 1e-5


def brute_locate(pool: np.ndarray, rows: np.ndarray) -> list[int]:
    """Position of the first equal row, -1 if none."""
    result = []
    for row in rows:
        hits = [i for i, candidate in enumerate(pool) if (candidate == row).all()]
        result.append(hits[0] if hits else -1)
    return result


class TestLookup:
    def test_finds_every_row_and_no_other(self) -> None:
        rows = np.random.default_rng(0).random((5000, 4))
        pool = ContextPool(rows)
        np.testing.assert_array_equal(pool.locate(rows[::-1]), np.arange(5000)[::-1])
        nearly = np.nextafter(rows, 2.0)
        assert (pool.locate(nearly) == -1).all()
        assert (pool.locate(rows[:, [1, 0, 3, 2]]) == -1).all()

    @settings(max_examples=200)
    @given(st.data())
    def test_agrees_with_a_plain_search(self, data: st.DataObject) -> None:
        """Integers and halves collide easily in a bad hash; repeats must give the first."""
        dimension = data.draw(st.integers(1, 3))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        rows = rng.integers(-3, 4, size=(data.draw(st.integers(1, 40)), dimension)) / 2
        asked = rng.integers(-4, 5, size=(20, dimension)) / 2 + 0.0
        assert ContextPool(rows).locate(asked).tolist() == brute_locate(rows, asked)

    def test_repeated_rows_give_the_first(self) -> None:
        pool = ContextPool([[1.0], [2.0], [1.0], [2.0]])
        assert pool.locate(np.array([[2.0], [1.0]])).tolist() == [1, 0]

    def test_negative_zero_in_the_pool_is_zero(self) -> None:
        pool = ContextPool([[-0.0, 1.0], [2.0, -0.0]])
        asked = as_contexts([[0.0, 1.0], [-0.0, 1.0], [2.0, -0.0]], 2)
        assert pool.locate(asked).tolist() == [0, 0, 1]

    def test_negative_zero_asked_for_directly_is_zero(self) -> None:
        assert ContextPool([[0.0], [1.0]]).locate(np.array([[-0.0]])).tolist() == [0]

    def test_extreme_values(self) -> None:
        rows = np.array([[5e-324], [1.7e308], [-1.7e308], [0.0], [2.0**-1022]])
        assert ContextPool(rows).locate(rows).tolist() == [0, 1, 2, 3, 4]


class TestPool:
    def test_draws_follow_the_weights(self) -> None:
        """Chi-square, 40,000 draws: a weight off by 0.01 is seen with probability > 0.99."""
        weights = np.array([0.1, 0.2, 0.3, 0.4])
        pool = ContextPool(np.arange(4.0)[:, None], weights=weights)
        rows, index = pool.draw(np.random.default_rng(0), 40_000)
        counts = np.bincount(index, minlength=4)
        assert stats.chisquare(counts, 40_000 * weights).pvalue > FALSE_ALARM
        np.testing.assert_array_equal(rows, pool.rows)

    def test_contexts_without_weight_are_never_drawn_nor_in_the_support(self) -> None:
        pool = ContextPool([[0.0], [1.0], [2.0]], weights=[0.5, 0.0, 0.5])
        generator = np.random.default_rng(0)
        assert 1 not in pool.draw(generator, 1000)[1]
        rows, weights = pool.support(generator, 10)
        assert rows.tolist() == [[0.0], [2.0]]
        assert weights.tolist() == [0.5, 0.5]

    def test_default_law_is_uniform(self) -> None:
        assert ContextPool(np.zeros((8, 1))).weights.tolist() == [0.125] * 8

    def test_weights_are_normalised_to_the_last_digits(self) -> None:
        pool = ContextPool(np.zeros((3, 1)), weights=[1 / 3, 1 / 3, 1 / 3 + 5e-7])
        assert pool.weights.sum() == pytest.approx(1.0, abs=1e-15)

    def test_rows_are_a_private_copy_and_cannot_be_written(self) -> None:
        rows = np.zeros((2, 1))
        pool = ContextPool(rows)
        rows[0] = 7.0
        assert pool.rows[0, 0] == 0.0
        with pytest.raises(ValueError, match="read-only"):
            pool.rows[0] = 7.0

    def test_weights_cannot_be_written(self) -> None:
        with pytest.raises(ValueError, match="read-only"):
            ContextPool([[0.0], [1.0]]).weights[0] = 0.9

    def test_numbers_become_rows_of_one_feature(self) -> None:
        pool = ContextPool([0.0, 0.5, 1.0])
        assert (pool.size, pool.dimension) == (3, 1)

    @pytest.mark.parametrize(
        ("weights", "error", "message"),
        [
            ([0.5, 0.6], ConfigurationError, r"sum to 1, got sum 1\.1"),
            ([0.2, 0.2], ConfigurationError, r"sum to 1, got sum 0\.4"),
            ([1.5, -0.5], ConfigurationError, "non-negative"),
            ([np.nan, 1.0], ConfigurationError, "finite"),
            ([np.inf, 0.0], ConfigurationError, "finite"),
            ([1.0], ShapeError, r"shape \(2,\), got \(1,\)"),
            ([[0.5, 0.5]], ShapeError, r"shape \(2,\), got \(1, 2\)"),
            (["a", "b"], ConfigurationError, "must be numbers"),
        ],
    )
    def test_bad_weights_are_refused(
        self, weights: object, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            ContextPool([[0.0], [1.0]], weights=weights)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("rows", "error", "message"),
        [
            ([], ShapeError, "at least one row"),
            (np.zeros((0, 3)), ShapeError, "at least one row"),
            (np.zeros((3, 0)), ShapeError, "at least one row and one column"),
            (np.zeros((2, 2, 2)), ShapeError, r"got shape \(2, 2, 2\)"),
            (0.5, ShapeError, r"got shape \(\)"),
            ([[1.0], [1.0, 2.0]], ShapeError, "matrix of numbers"),
            ([["a"]], ShapeError, "matrix of numbers"),
            ([[np.nan]], ConfigurationError, "finite"),
            ([[np.inf]], ConfigurationError, "finite"),
            (None, (ShapeError, ConfigurationError), "contexts must be"),
        ],
    )
    def test_bad_rows_are_refused(self, rows: object, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            ContextPool(rows)  # type: ignore[arg-type]


class TestSampler:
    @staticmethod
    def uniform(generator: np.random.Generator, count: int) -> Any:
        return generator.random((count, 2))

    def test_draws_come_from_the_given_generator_alone(self) -> None:
        sampler = ContextSampler(self.uniform, 2)
        rows, index = sampler.draw(np.random.default_rng(5), 7)
        np.testing.assert_array_equal(rows, np.random.default_rng(5).random((7, 2)))
        np.testing.assert_array_equal(index, np.arange(7))

    def test_support_is_an_equally_weighted_sample(self) -> None:
        rows, weights = ContextSampler(self.uniform, 2).support(np.random.default_rng(5), 8)
        assert rows.shape == (8, 2)
        assert weights.tolist() == [0.125] * 8

    def test_has_no_size(self) -> None:
        assert ContextSampler(self.uniform, 2).size is None

    def test_bad_samplers_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="must be a function"):
            ContextSampler("uniform", 2)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="1 or more, got 0"):
            ContextSampler(self.uniform, 0)

    @pytest.mark.parametrize(
        ("sample", "error", "message"),
        [
            (lambda g, n: g.random((n, 3)), ShapeError, "2 columns, got 3"),
            (lambda g, n: g.random((n + 1, 2)), ShapeError, "gave 5 rows, 4 were asked for"),
            (lambda g, n: np.full((n, 2), np.nan), ConfigurationError, "finite"),
        ],
    )
    def test_bad_samples_are_refused(
        self, sample: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            ContextSampler(sample, 2).draw(np.random.default_rng(0), 4)


class TestActions:
    def test_pairs_are_context_then_action(self) -> None:
        actions = FixedActions([[1.0, 2.0], [3.0, 4.0]])
        pairs = actions.pairs(np.array([[7.0], [8.0]]))
        assert pairs.tolist() == [
            [[7.0, 1.0, 2.0], [7.0, 3.0, 4.0]],
            [[8.0, 1.0, 2.0], [8.0, 3.0, 4.0]],
        ]

    def test_chosen_pairs_are_rows_of_all_pairs(self) -> None:
        rng = np.random.default_rng(0)
        actions, contexts = FixedActions(rng.random((5, 2))), rng.random((9, 3))
        index = rng.integers(5, size=9)
        expected = actions.pairs(contexts)[np.arange(9), index]
        np.testing.assert_array_equal(actions.chosen(contexts, index), expected)
        np.testing.assert_array_equal(actions.features_of(contexts, index), expected[:, 3:])

    @pytest.mark.parametrize("rows", [[], np.zeros((0, 2)), [[np.nan]], [["x"]]])
    def test_empty_or_broken_actions_are_refused(self, rows: object) -> None:
        with pytest.raises(ConfigurationError, match="actions must be"):
            FixedActions(rows)  # type: ignore[arg-type]


class TestPrivateContexts:
    """Errors about a user's context must not repeat it."""

    @pytest.mark.parametrize(
        "values",
        [
            [[0.1234567, np.nan]],
            [[0.1234567, np.inf]],
            [[0.1234567]],
            [[0.1234567, 0.2, 0.3]],
            [0.1234567, 0.2],
            0.1234567,
            "0.1234567",
            [["0.1234567", "0.2"]],
            [[0.1234567, None]],
            [[0.1234567 + 1j, 0.0]],
            [[0.1234567, 0.2], [0.3]],
        ],
    )
    def test_bad_contexts_are_refused_without_being_shown(self, values: object) -> None:
        with pytest.raises(DataError) as caught:
            as_contexts(values, 2)
        assert "1234567" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None

    def test_rows_are_copied(self) -> None:
        given = np.zeros((2, 1))
        rows = as_contexts(given, 1)
        given[0] = 5.0
        assert rows[0, 0] == 0.0

    def test_numbers_are_contexts_of_one_feature(self) -> None:
        assert as_contexts([1, 2, 3], 1).tolist() == [[1.0], [2.0], [3.0]]


def test_rows_of_the_wrong_dimension_are_refused() -> None:
    with pytest.raises(ShapeError, match="must have 3 columns, got 2"):
        as_rows([[1.0, 2.0]], "points", 3)


@pytest.mark.parametrize(("count", "actions"), [(1, 1), (10, 3), (50_000, 7), (5, 10**6)])
def test_chunks_cover_every_context_once_and_stay_small(count: int, actions: int) -> None:
    covered = [i for part in context_chunks(count, actions) for i in range(part.start, part.stop)]
    assert covered == list(range(count))
    for part in context_chunks(count, actions):
        assert (part.stop - part.start) * actions <= max(CHUNK_PAIRS, actions)


class TestRanges:
    def test_pool_fills_its_ranges_evenly(self) -> None:
        rows = ContextPool.from_ranges([(0, 1), (-5, 5)], size=400).rows
        counts, *_ = np.histogram2d(*rows.T, bins=4, range=[(0, 1), (-5, 5)])
        assert counts.sum() == 400
        assert counts.min() >= 20  # 25 in each of 16 cells, if they were exactly even

    def test_schema_gives_records(self) -> None:
        schema = capri.Schema([capri.Numeric("age", 18, 98), capri.Categorical("plan", ["a", "b"])])
        pool = ContextPool.from_ranges(schema, size=100)
        assert pool.schema == schema
        np.testing.assert_allclose(pool.rows[:, 1:].sum(axis=0), [50, 50, 0], atol=3)
        rows, _ = ContextSampler.from_ranges(schema).draw(np.random.default_rng(0), 7)
        assert rows.shape == (7, 4)

    def test_cells_whose_absence_is_a_value_are_sometimes_missing(self) -> None:
        columns = (
            capri.Numeric("age", 18, 98, missing="own"),
            capri.Boolean("member", missing="own"),
            capri.Categorical("plan", ["a", "b"], missing="own"),
            capri.Numeric("income", 0, 9),
        )
        pool = ContextPool.from_ranges(capri.Schema(columns), size=400)
        cells = [pool.schema.describe(row) for row in pool.rows]  # type: ignore[union-attr]
        gaps = [sum(each[column.name] is None for each in cells) for column in columns]
        np.testing.assert_allclose(gaps, [40, 40, 40, 0], atol=4)
        ages = [each["age"] for each in cells if each["age"] is not None]
        counts, _ = np.histogram(ages, bins=4, range=(18, 98))
        np.testing.assert_allclose(counts, 90, atol=6)

    @pytest.mark.parametrize("ranges", [[], [(1, 0)], [(0, float("nan"))], [(0,)], 3, "ab"])
    def test_ranges_that_are_none_are_refused(self, ranges: object) -> None:
        with pytest.raises(ConfigurationError, match="range"):
            ContextPool.from_ranges(ranges)
