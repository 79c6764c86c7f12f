"""Tables of private rows as matrices of numbers: shapes and types are checked, values never are.

A refusal is an output. What may refuse a table is public: its shape, the names and the types of its
columns. What a cell holds is private, so every number is taken, however large, and whatever is
missing (None, NaN, NA) is NaN here; :meth:`capri.regression.stage.StagePlan.contributions` makes
nothing of its row. Errors never repeat a cell, which is why scikit-learn, whose messages do, sees
tables only after they have become numbers.
"""

from math import nan
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import number_of
from capri.errors import DataError
from capri.schema import Schema
from capri.schema.tables import is_table

_NUMERIC = "biuf"


class CellTypeError(DataError, TypeError):
    """A column holds something else than numbers. It names the column and the type, no value."""


def checked_rows(
    estimator: Any, X: Any, y: Any, *, reset: bool, schema: Schema | None = None
) -> tuple[FloatArray, FloatArray]:
    """Rows of a fit; ``reset`` makes their columns those that the estimator knows."""
    features = encoded(X, schema, estimator)
    validate_data(estimator, X, y, skip_check_array=True, reset=reset)  # names; y is not None
    targets = as_targets(y)
    check_consistent_length(features, targets)
    return features, targets


def checked_features(estimator: Any, X: Any, schema: Schema | None = None) -> FloatArray:
    """Rows of a prediction, with the columns of the fit."""
    features = encoded(X, schema, estimator)
    validate_data(estimator, X, skip_check_array=True, reset=False)
    return features


def checked_block(X: Any, y: Any, schema: Schema | None = None) -> tuple[FloatArray, FloatArray]:
    """A block of rows, maybe an empty one, as two matrices."""
    features, targets = encoded(X, schema, fewest=0), as_targets(y)
    check_consistent_length(features, targets)
    return features, targets.reshape(len(features), -1)


def rows_at(table: Any, name: str, places: IntArray) -> Any:
    """Some rows of a table, which stays of its kind, for whoever checks it later."""
    if issparse(table):
        return _as_numbers(table, name)  # refuses
    if hasattr(table, "column_names") and hasattr(table, "to_pandas"):  # Arrow
        table = frame_of(table)
    return _safe_indexing(table if hasattr(table, "__getitem__") else np.asarray(table), places)


def finite_rows(*tables: FloatArray) -> BoolArray:
    """Which rows are finite numbers in every column of all tables."""
    return np.asarray(np.logical_and.reduce([np.isfinite(each).all(axis=1) for each in tables]))


def encoded(X: Any, schema: Schema | None, estimator: Any = None, *, fewest: int = 1) -> FloatArray:
    """Rows of numbers for the estimator: by name where columns have names, else in their order."""
    if schema is None:
        return as_matrix(X, "X", estimator, fewest=fewest)
    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):  # Arrow
        X = frame_of(X)
    if not is_table(X):
        X = _named(schema, X)
    rows = schema.rows(X)
    if len(rows) < fewest:
        raise DataError(f"X has {len(rows)} rows, at least {fewest} are needed")
    return rows


def _named(schema: Schema, X: Any) -> dict[str, Any]:
    """A table without names, in the order of the schema."""
    array = np.asarray(X, dtype=object) if not hasattr(X, "shape") else np.asarray(X)
    if array.ndim != 2 or array.shape[1] != len(schema.columns):
        raise DataError(
            f"X must have the {len(schema.columns)} columns {', '.join(schema.names)}, "
            f"got shape {array.shape}"
        )
    return {name: array[:, place] for place, name in enumerate(schema.names)}


def as_matrix(table: Any, name: str, estimator: Any = None, *, fewest: int = 1) -> FloatArray:
    """One row per person, one column per feature; at least ``fewest`` rows."""
    numbers = _as_numbers(table, name)
    if numbers.ndim != 2:
        raise DataError(
            f"{name} must be a table with one row per person and one column per feature, got shape "
            f"{numbers.shape}. Reshape your data: reshape(-1, 1) makes it one feature, "
            "reshape(1, -1) one row"
        )
    # Of a matrix of numbers only shapes are left to refuse, and only they are in the message.
    return np.asarray(
        check_array(
            numbers, ensure_all_finite=False, ensure_min_samples=fewest, estimator=estimator
        )
    )


def as_weights(weights: Any, bound: float, count: int) -> FloatArray:
    """Weights in [0, 1], one column: shares of the bound, 0 for what is no number."""
    numbers = _as_numbers(weights, "sample_weight")
    if numbers.shape != (count,):
        raise DataError(
            f"sample_weight must be one number per row of X ({count}), got shape {numbers.shape}"
        )
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(numbers / bound, nan=0.0), 0.0, 1.0)[:, None]


def as_targets(y: Any) -> FloatArray:
    """One number per row, or one row of numbers with a column per output."""
    numbers = _as_numbers(y, "y")
    if numbers.ndim not in (1, 2):
        raise DataError(
            "y must be one number per row of X, or a table with one column per output, got shape "
            f"{numbers.shape}"
        )
    return numbers


def _as_numbers(table: Any, name: str) -> FloatArray:
    """Anything that NumPy, pandas or Arrow can show as cells, as float64."""
    if isinstance(table, np.ma.MaskedArray):
        table = np.ma.filled(table.astype(np.float64), nan)  # what is masked is missing
    if issparse(table):
        raise DataError(f"{name} is sparse, but dense data is required: call {name}.toarray()")
    if hasattr(table, "column_names") and hasattr(table, "to_pandas"):  # Arrow
        table = frame_of(table)
    with np.errstate(all="ignore"):  # a warning about a cell that overflows would tell of it
        if hasattr(table, "iloc"):
            return _of_pandas(table, name)
        try:
            array = np.asarray(table)
            if array.dtype.kind in "US":  # a list with one text in it: find the column
                array = np.asarray(table, dtype=object)
        except (TypeError, ValueError):
            raise DataError(
                f"{name} must be a table of numbers whose rows are all of the same length"
            ) from None
        if array.ndim != 2:
            return _column(array, name, None)
        if array.dtype.kind in _NUMERIC:
            return array.astype(np.float64, copy=False)
        labels = getattr(table, "columns", range(array.shape[1]))
        columns = [_column(array[:, i], name, label) for i, label in enumerate(labels)]
        return np.column_stack(columns) if columns else np.empty(array.shape)


def frame_of(table: Any) -> Any:
    """A table of Arrow as a data frame; Arrow's own errors quote the cell that does not fit."""
    try:
        return table.to_pandas()
    except (ArithmeticError, TypeError, ValueError):
        raise DataError(
            "a column cannot be read as numbers: give columns of integers, floats or booleans"
        ) from None


def _of_pandas(table: Any, name: str) -> FloatArray:
    """A data frame column by column, each by its own type; or a series."""
    if table.ndim == 1:
        return _column(_cells(table), name, table.name)
    labels = list(table.columns)
    columns = [_column(_cells(table.iloc[:, i]), name, label) for i, label in enumerate(labels)]
    return np.column_stack(columns) if columns else np.empty(table.shape)


def _cells(series: Any) -> Any:
    """The cells of a series, NaN for what is missing in a column of numbers."""
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    if getattr(series.dtype, "kind", "O") in _NUMERIC:  # with a mask, sparse, or of Arrow
        return series.to_numpy(dtype=np.float64, na_value=nan)
    if "str" in str(series.dtype):  # text by its declared type, whatever the cells hold
        return np.empty(len(series), dtype="U1")
    return series.to_numpy(dtype=object)


def _column(cells: Any, name: str, label: object) -> FloatArray:
    """Cells as float64; refuses by their type alone."""
    if cells.dtype.kind in _NUMERIC:
        return np.asarray(cells.astype(np.float64, copy=False))
    if cells.dtype.kind == "c":
        raise CellTypeError(f"Complex data not supported: {_place(name, label)} must hold numbers")
    if cells.dtype.kind != "O":
        raise _refused(name, label, cells.dtype.type.__name__)
    numbers = [_number(cell, name, label) for cell in cells.ravel()]
    return np.array(numbers, dtype=np.float64).reshape(cells.shape)


def _number(cell: Any, name: str, label: object) -> float:
    """A number of any size, NaN for one that is missing; refuses by its type alone."""
    try:
        return number_of(cell)
    except TypeError:
        raise _refused(name, label, type(cell).__name__) from None


def _refused(name: str, label: object, kind: str) -> CellTypeError:
    return CellTypeError(
        f"{_place(name, label)} holds values of type {kind}: every argument must be a number, not "
        "a string that shows a number. Declare its levels, known without looking at the data, as "
        "in X_bounds={'age': (0, 120), 'plan': ['free', 'pro']}"
    )


def _place(name: str, label: object) -> str:
    return name if label is None else f"column {label!r} of {name}"
