"""Tables become numbers: types and shapes may be refused, a value never is and is never shown."""

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
    ("table", "place"),
    [
        ([[1.0, SECRET], [1.0, 2.0]], "column 1 of X"),
        (np.array([["1", SECRET]]), "column 0 of X"),
        (np.array([[1.0, {SECRET: 1}]], dtype=object), "column 1 of X"),
        (np.array([[1.0, 4711 + 1j]]), "column 0 of X"),
        (np.array([[1.0, 4711 + 1j]], dtype=object), "column 1 of X"),
        (pd.DataFrame({"a": [1.0], "city": [SECRET]}), "column 'city' of X"),
        (pd.DataFrame({"a": [1.0], "city": [None]}, dtype="string"), "column 'a' of X"),
        (pd.DataFrame({"a": [1.0], "day": pd.to_datetime(["4711-01-01"])}), "column 'day' of X"),
        (pa.table({"a": [1.0], "city": [SECRET]}), "column 'city' of X"),
    ],
)
def test_other_types_are_refused_by_column(table: Any, place: str) -> None:
    with pytest.raises(CellTypeError, match=place) as caught:
        as_matrix(table, "X")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda ridge: ridge.fit([4711.0, 4711.0], [0.0, 0.0]),
        lambda ridge: ridge.fit(4711.0, [0.0]),
        lambda ridge: ridge.fit([[4711.0], [1.0, 2.0]], [0.0, 0.0]),
        lambda ridge: ridge.fit([[4711.0]], [SECRET]),
        lambda ridge: ridge.fit([[4711.0]], [4711 + 1j]),
        lambda ridge: ridge.fit([[4711.0]], [[[4711.0]]]),
        lambda ridge: ridge.fit([[4711.0]], [4711.0, 4711.0]),
        lambda ridge: ridge.fit([[4711.0]], None),
        lambda ridge: ridge.fit(csr_array([[4711.0]]), [4711.0]),
        lambda ridge: ridge.fit(pd.DataFrame({"a": [SECRET]}), [4711.0]),
        lambda ridge: ridge.partial_fit([[4711.0, SECRET]], [4711.0]),
        lambda ridge: ridge.fit([(np.array([["4711"]]), np.array([1.0]))]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([SECRET]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([[SECRET]]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([4711.0]),
        lambda ridge: ridge.fit([[0.5]], [0.0]).predict([[4711.0, 1.0]]),
        lambda ridge: ridge.report_plan(1, reports=9).reports([[SECRET]], [1.0], epsilon=1.0),
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


def test_cell_that_arrow_cannot_show_is_not_quoted(tmp_path: Path) -> None:
    """A time of day with nanoseconds: Arrow says which one it was."""
    table = pa.table({"a": [1.0], "time": pa.array([4711], type=pa.time64("ns"))})
    with pytest.raises(ValueError, match="4711"):
        table.to_pandas()
    parquet.write_table(table, tmp_path / "0.parquet")
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    for call in (lambda: as_matrix(table, "X"), lambda: ridge.fit(tmp_path, "a")):
        with pytest.raises(DataError, match="cannot be read as numbers") as caught:
            call()
        assert caught.value.__suppress_context__


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
