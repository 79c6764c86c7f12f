"""Tables become numbers: shapes may be refused, a cell never is and is never shown."""

import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_array

from capri import PrivateKernelRidge
from capri.errors import DataError
from capri.regression.tables import CellTypeError, as_matrix, as_targets

NA = pd.NA
SECRET = "4711"


@pytest.mark.parametrize(
    "table",
    [
        [[1.0, None], [np.nan, 2]],
        [[1, NA], [None, 2.0]],
        [[Decimal(1), pd.NaT], [Decimal("sNaN"), Fraction(2)]],
        [[1.0, 10**400], [-(10**400), 2]],
        np.array([[1, np.inf], [-np.inf, 2]], dtype=np.longdouble),
        np.array([[1, "4e4000"], ["-4e4000", 2]], dtype=np.longdouble),
        pd.DataFrame({"a": [1, None], "b": [None, 2]}, dtype="Int64"),
        pd.DataFrame({"a": [1.0, NA], "b": [NA, np.float32(2)]}, dtype=object),
        pd.DataFrame({"a": pd.Categorical([1, None]), "b": pd.array([None, 2], dtype="Float64")}),
        pd.DataFrame({"a": [1.0, None], "b": [None, 2.0]}).astype(pd.SparseDtype("float")),
        pa.table({"a": [1, None], "b": [None, 2]}),
    ],
)
def test_every_number_is_taken_and_what_is_none_is_not_finite(table: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning about one cell would tell of it
        found = as_matrix(table, "X")
    assert found.dtype == np.float64
    assert found[0, 0] == 1
    assert found[1, 1] == 2
    assert not np.isfinite([found[0, 1], found[1, 0]]).any()


@pytest.mark.parametrize(
    "table",
    [
        [[1.0, SECRET], [None, 2.0]],
        np.array([[1.0, {SECRET: 1}], [SECRET, 2.0]], dtype=object),
        np.array([[1.0, 4711 + 1j], [4711j, 2.0]], dtype=object),
        pd.DataFrame({"a": [1.0, SECRET], "b": [SECRET, 2.0]}),
        pd.DataFrame({"a": [1.0, 4711j], "b": [4711j, 2.0]}),
        pd.DataFrame({"a": [1.0, pd.Timestamp("2001-01-01")], "b": [pd.Timedelta(1), 2.0]}),
        [(1.0, SECRET), np.array([np.nan, 2.0])],
    ],
)
def test_cell_of_another_type_is_missing_and_no_other_is(table: Any) -> None:
    test_every_number_is_taken_and_what_is_none_is_not_finite(table)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": [1.0], "city": [SECRET]}),
        pd.DataFrame({"a": [1.0], "city": [None]}, dtype=None).astype({"city": "string"}),
        pd.DataFrame({"a": [1.0], "day": pd.to_datetime(["2001-01-01"])}),
        pa.table({"a": [1.0], "city": [SECRET]}),
        pa.table({"a": [1.0], "city": pa.array([SECRET]).dictionary_encode()}),
        pa.table({"a": [1.0], "time": pa.array([4711], type=pa.time64("ns"))}),
        pa.table({"a": [1.0], "day": pa.array([10**18], type=pa.timestamp("s"))}),
        pa.table({"a": [1.0], "list": pa.array([[1.0]])}),
    ],
)
def test_column_of_another_type_holds_nothing(table: Any) -> None:
    """A column of one row takes its type from one cell: none is refused, or quoted by Arrow."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = as_matrix(table, "X")
    assert found[0, 0] == 1
    assert np.isnan(found[0, 1])


@pytest.mark.parametrize("table", [np.array([["1", SECRET]]), np.array([[1.0, 4711 + 1j]])])
def test_array_of_another_type_is_refused_by_its_type(table: Any) -> None:
    """NumPy made all cells alike: whoever called it has lost what each of them was."""
    with pytest.raises(CellTypeError, match="number") as caught:
        as_matrix(table, "X")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda ridge: ridge.fit([4711.0, 4711.0], [0.0, 0.0]),
        lambda ridge: ridge.fit(4711.0, [0.0]),
        lambda ridge: ridge.fit([[4711.0]], np.full((1, 1, 1), 4711.0)),
        lambda ridge: ridge.fit([[4711.0]], [4711.0, 4711.0]),
        lambda ridge: ridge.fit([[4711.0]], None),
        lambda ridge: ridge.fit(np.array([[SECRET]]), [4711.0]),
        lambda ridge: ridge.fit([[0.5]], np.array([SECRET])),
        lambda ridge: ridge.fit(csr_array([[4711.0]]), [4711.0]),
        lambda ridge: ridge.fit([(np.array([["4711"]]), np.array([1.0]))]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([SECRET]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([4711.0]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([[4711.0, 1.0]]),
        lambda ridge: ridge.report_plan(1, reports=9).messages([4711.0], [1.0]),
    ],
)
def test_no_message_shows_a_cell(call: Any) -> None:
    """Nor any error that it came from: a traceback prints those too."""
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    with pytest.raises((ValueError, TypeError)) as caught:
        call(ridge)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_file_with_a_cell_that_arrow_cannot_show_is_read(tmp_path: Path) -> None:
    """A time of day with nanoseconds: Arrow would say which one it was."""
    table = pa.table({"a": [1.0], "time": pa.array([4711], type=pa.time64("ns")), "y": [0.5]})
    with pytest.raises(ValueError, match="4711"):
        table.to_pandas()
    parquet.write_table(table, tmp_path / "0.parquet")
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    assert ridge.fit(tmp_path, "y").n_rows_ == 1


def test_targets_keep_their_shape() -> None:
    assert as_targets([1, None]).shape == (2,)
    assert as_targets(pd.Series([1, 2], name="y")).shape == (2,)
    assert as_targets(pd.DataFrame({"y": [1, 2]})).shape == (2, 1)
    with pytest.raises(DataError, match="one number per row of X"):
        as_targets(np.zeros((2, 1, 1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_prediction_is_nan_for_the_bad_row_alone(bad: float) -> None:
    generator = np.random.default_rng(0)
    X = generator.random((50, 2))
    for y in (X[:, 0], X):
        ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, y)
        broken = X.copy()
        broken[7, 1] = bad
        mean, width = ridge.predict(X, return_std=True)
        found, found_width = ridge.predict(broken, return_std=True)
        others = np.arange(50) != 7
        assert np.isnan(found[7]).all()
        assert np.isnan(found_width[7]).all()
        assert np.isnan(found_width.privacy[7]).all()
        assert np.array_equal(found[others], mean[others])
        assert np.array_equal(found_width[others], width[others])
