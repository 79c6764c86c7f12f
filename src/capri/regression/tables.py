"""Tables of private rows as matrices of numbers: shapes are checked, cells never are.

A refusal is an output. What may refuse a table is public: its shape, the names of its columns, and
the type of an array. What a cell holds, and of what type it is, is private: every cell of a list,
a data frame or an array of objects is judged by itself (:mod:`capri.cells`). A number is taken
however large, anything else is NaN, and
:meth:`capri.regression.stage.StagePlan.contributions` makes nothing of its row. Errors never repeat
a cell, which is why scikit-learn, whose messages do, sees tables only after they have become
numbers.

``X_bounds`` may declare columns: a :class:`~capri.schema.Schema`, or a mapping from names to what a
column holds,

    {"age": (18, 98), "plan": ["free", "pro"], "member": bool,
     "height": Numeric("height", 1, 2, missing="own")}

Without bounds, public rows with named columns that are not all numbers say the same
(:meth:`Schema.from_frame`). Names and declarations are public and may refuse; cells never do.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_number_rows, as_numbers, is_list, is_row, is_table, names_of, of_rows
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.schema import Boolean, Categorical, Column, Numeric, Schema

_NUMERIC = "biuf"


class CellTypeError(DataError, TypeError):
    """An array is of another type than numbers. It names the type, no value."""


def checked_rows(
    estimator: Any, X: Any, y: Any, *, reset: bool, schema: Schema | None = None
) -> tuple[FloatArray, FloatArray]:
    """Rows of a fit; ``reset`` makes their columns those that the estimator knows."""
    known = None if reset else getattr(estimator, "n_features_in_", None)
    features = encoded(X, schema, estimator, width=known)
    validate_data(estimator, _shown(X, features, schema), y, skip_check_array=True, reset=reset)
    targets = as_targets(y)
    check_consistent_length(features, targets)
    return features, targets


def checked_features(estimator: Any, X: Any, schema: Schema | None = None) -> FloatArray:
    """Rows of a prediction, with the columns of the fit."""
    known = getattr(estimator, "n_features_in_", None)
    features = encoded(X, schema, estimator, width=known)
    shown = _shown(X, features, schema)
    names = [*getattr(estimator, "feature_names_in_", ())]
    if schema is not None and names and sorted(names) == sorted(map(str, names_in(X) or ())):
        shown = selected(X, names)  # declared columns go by their names, whatever their order
    validate_data(estimator, shown, skip_check_array=True, reset=False)
    return features


def _shown(X: Any, features: FloatArray, schema: Schema | None) -> Any:
    """What scikit-learn is shown of a table: names and shape. Of a list it would read the cells."""
    if hasattr(X, "columns"):
        return X
    return features if schema is None else np.empty((len(features), len(schema.columns)))


def checked_block(X: Any, y: Any, schema: Schema | None = None) -> tuple[FloatArray, FloatArray]:
    """A block of rows, maybe an empty one, as two matrices."""
    features, targets = encoded(X, schema, fewest=0), as_targets(y)
    check_consistent_length(features, targets)
    return features, targets.reshape(len(features), -1)


def rows_at(table: Any, name: str, places: IntArray) -> Any:
    """Some rows of a table, which stays of its kind, for whoever checks it later."""
    if issparse(table):
        return _as_numbers(table, name)  # refuses
    table = columns_of(table)
    if isinstance(table, Mapping):
        return {name: [cells[place] for place in places] for name, cells in table.items()}
    return _safe_indexing(table if hasattr(table, "__getitem__") else np.asarray(table), places)


def finite_rows(*tables: FloatArray) -> BoolArray:
    """Which rows are finite numbers in every column of all tables."""
    return np.asarray(np.logical_and.reduce([np.isfinite(each).all(axis=1) for each in tables]))


def encoded(
    X: Any,
    schema: Schema | None,
    estimator: Any = None,
    *,
    fewest: int = 1,
    width: int | None = None,
) -> FloatArray:
    """Rows of numbers for the estimator: by name where columns have names, else in their order.

    ``width``: how many columns there are, where that is known before the rows.
    """
    if schema is None:
        return as_matrix(X, "X", estimator, fewest=fewest, width=width)
    X = columns_of(X)
    if is_list(X):
        X = _listed(schema, X)
    elif is_table(X):
        _refuse_undeclared(names_of(X), schema)
    else:
        X = _named(schema, np.asanyarray(X))
    rows = schema.rows(X)
    if len(rows) < fewest:
        raise DataError(f"X has {len(rows)} rows, at least {fewest} are needed")
    return rows


def _refuse_undeclared(names: Sequence[str], schema: Schema) -> None:
    """A table with columns that nothing was said of: they would be left out without a word."""
    further = [name for name in names if name not in schema.names]
    if further:
        raise DataError(
            f"X_bounds or public_X say nothing of column{'s' * (len(further) > 1)} "
            f"{', '.join(further)} of X: they declare {', '.join(schema.names)}. Declare all "
            "columns of X, or give X without the others"
        )


def _named(schema: Schema, array: Any) -> dict[str, Any]:
    """An array without names, in the order of the schema."""
    if array.ndim != 2 or array.shape[1] != len(schema.columns):
        raise _other_shape(schema, array.shape)
    return {name: array[:, place] for place, name in enumerate(schema.names)}


def _listed(schema: Schema, X: Sequence[Any]) -> dict[str, Any]:
    """A list of rows, each by itself: mappings, or cells in the order of the schema.

    What is neither has no cell that is known. Refused is what no row has.
    """
    rows = [_by_name(row, schema) for row in X]
    known = [row for row in rows if row is not None]
    if not known:
        raise _other_shape(schema, as_number_rows(X).shape)
    columns = of_rows([{} if row is None else row for row in rows], schema.names, len(rows) - 1)
    return dict(zip(schema.names, columns, strict=True))


def _by_name(row: Any, schema: Schema) -> Any:
    """A row whose cells go by the names of the schema; None for what is no row of it."""
    try:
        if is_row(row):
            return row
        cells = row.tolist() if isinstance(row, np.ndarray) else row
        fits = is_list(cells) and len(cells) == len(schema.names)
        return dict(zip(schema.names, cells, strict=True)) if fits else None
    except Exception:  # whatever an object says of itself when it is asked for its cells
        return None


def _other_shape(schema: Schema, shape: tuple[int, ...]) -> DataError:
    return DataError(
        f"X must have the {len(schema.columns)} columns {', '.join(schema.names)}, "
        f"got shape {shape}"
    )


def as_matrix(
    table: Any, name: str, estimator: Any = None, *, fewest: int = 1, width: int | None = None
) -> FloatArray:
    """One row per person, one column per feature; at least ``fewest`` rows.

    A row of a list that has another length than ``width``, or than most, is NaN.
    """
    if is_list(table) and any(map(_is_row, table)):
        numbers = as_number_rows(table, width)
    else:
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
    # Of most cells: one that is a row among numbers, or a number among rows, is an odd cell.
    if is_list(y) and 2 * sum(map(_is_row, y)) > len(y):
        numbers = as_number_rows(y)
    else:
        numbers = _as_numbers(y, "y")
    if numbers.ndim not in (1, 2):
        raise DataError(
            "y must be one number per row of X, or a table with one column per output, got shape "
            f"{numbers.shape}"
        )
    return numbers


def _is_row(cell: Any) -> bool:
    """Whether this may be a row of cells: a list, or anything like an array that has a length."""
    try:
        return is_list(cell) or (hasattr(cell, "__array__") and cell.ndim > 0)
    except Exception:  # whatever an object says of itself when it is asked what it is
        return False


def _as_numbers(table: Any, name: str) -> FloatArray:
    """Cells as float64, in the shape of what holds them; refuses by the type of an array alone."""
    if issparse(table):
        raise DataError(f"{name} is sparse, but dense data is required: call {name}.toarray()")
    table = columns_of(table)
    if hasattr(table, "iloc"):
        return _of_pandas(table)
    if isinstance(table, Mapping):
        return np.column_stack([as_numbers(cells) for cells in table.values()])
    if not is_list(table):
        table = np.asanyarray(table)
        if table.dtype.kind == "c":
            raise CellTypeError(f"Complex data not supported: {name} must hold numbers")
        if table.dtype.kind not in f"{_NUMERIC}O":
            # NumPy made all cells alike: where one of them was a text, the numbers are lost.
            raise CellTypeError(
                f"{name} is an array of type {table.dtype.type.__name__}: every argument must be a "
                "number, not a string that shows a number. Give a list, an array of objects or a "
                "data frame, or declare levels, as in X_bounds={'plan': ['free', 'pro']}"
            )
    return as_numbers(table)


def columns_of(table: Any) -> Any:
    """A table of polars, Arrow and their like as its columns: numbers, texts, nothing in others.

    Of dates and times some libraries refuse some, and their errors quote them. Data frames of
    pandas, whose cells may be of any type, and what is no table stay as they are.
    """
    if hasattr(table, "iloc") or isinstance(table, np.ndarray | Mapping):
        return table
    frame = nw.from_native(table, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        raise DataError("a lazy frame has no rows yet: call collect() first")
    if not isinstance(frame, nw.DataFrame):
        return table
    return {column.name: _cells_of_column(column) for column in frame.iter_columns()}


def _cells_of_column(column: Any) -> Any:
    kind = column.dtype
    if kind.is_float() or kind.is_integer():
        return column.to_numpy()
    shown = kind.is_decimal() or kind in (nw.Boolean, nw.String, nw.Categorical, nw.Enum, nw.Object)
    return column.to_list() if shown else [None] * len(column)


def names_in(table: Any) -> list[Any] | None:
    """The names of the columns of a table; None where it has none."""
    if isinstance(table, Mapping):
        return list(table)
    names = getattr(table, "column_names", getattr(table, "columns", None))  # Arrow, or frames
    return None if names is None else list(names)


def selected(table: Any, names: Sequence[Any]) -> Any:
    """These columns of a table, in this order."""
    if isinstance(table, Mapping):
        return {name: table[name] for name in names}
    return table.select(names) if hasattr(table, "column_names") else table[names]


def _of_pandas(table: Any) -> FloatArray:
    """A data frame column by column, each by its own type; or a series."""
    if table.ndim == 1:
        return _of_series(table)
    columns = [_of_series(table.iloc[:, place]) for place in range(table.shape[1])]
    return np.column_stack(columns) if columns else np.empty(table.shape)


def _of_series(series: Any) -> FloatArray:
    """The cells of a column, which its type is made of: one odd cell makes objects of all."""
    kind = getattr(series.dtype, "kind", "O")
    if isinstance(series.dtype, np.dtype) and kind in _NUMERIC:
        return as_numbers(series.to_numpy())
    if kind in _NUMERIC:  # with a mask, sparse, or of Arrow
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=nan))
    if kind == "c":  # a single complex cell makes complex numbers of all
        cells = series.to_numpy()
        return np.where(cells.imag == 0, cells.real, nan)
    if kind in "mM":
        return np.full(len(series), nan)
    return as_numbers(series.to_numpy(dtype=object))


def checked_bounds(name: str, bounds: Any, columns: int) -> tuple[FloatArray, FloatArray]:
    """``(low, high)``, numbers for all columns or one each; or a list of pairs, one per column."""
    try:
        if isinstance(bounds, list | np.ndarray) and np.shape(bounds) == (columns, 2):
            bounds = np.asarray(bounds, dtype=np.float64).T
        low, high = (
            np.broadcast_to(np.asarray(bound, dtype=np.float64), (columns,)).copy()
            for bound in bounds
        )
    except (TypeError, ValueError):
        raise ShapeError(
            f"{name} must be (low, high), numbers or one per column ({columns}), or a list of "
            f"{columns} pairs"
        ) from None
    wrong = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
    if wrong.any():
        raise ConfigurationError(
            f"{name} must be finite with low < high in every column, which column "
            f"{int(np.flatnonzero(wrong)[0])} has not"
        )
    return low, high


def schema_of(X_bounds: Any, public_X: Any) -> Schema | None:
    """What bounds or public rows declare of named columns; None where columns are plain numbers."""
    if isinstance(X_bounds, Schema):
        return X_bounds
    if isinstance(X_bounds, Mapping):
        return Schema(tuple(_declared(str(name), given) for name, given in X_bounds.items()))
    if X_bounds is None and hasattr(public_X, "columns") and _has_words(public_X):
        return Schema.from_frame(public_X)
    return None


def _declared(name: str, given: Any) -> Column:
    """A column from what was said of it in short."""
    if isinstance(given, Column):
        if given.name != name:
            raise ConfigurationError(f"column {name!r} was declared under the name {given.name!r}")
        return given
    if given is bool:
        return Boolean(name)
    if isinstance(given, tuple) and len(given) == 2:
        return Numeric(name, *given)
    if isinstance(given, list):
        return Categorical(name, given)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"column {name!r}: X_bounds must say (low, high), a list of levels, bool, or a column such "
        f"as capri.schema.Numeric, got {type(given).__name__}"
    )


def _has_words(frame: Any) -> bool:
    """Whether a public frame has a column that is not of numbers."""
    kinds = [getattr(dtype, "kind", "O") for dtype in getattr(frame, "dtypes", ())]
    return any(kind not in "iuf" for kind in kinds)


def categories_of(schema: Schema | None) -> tuple[tuple[int, ...], ...]:
    """Places of indicators that belong together."""
    if schema is None:
        return ()
    return tuple(
        schema.places(each.name) for each in schema.columns if not isinstance(each, Numeric)
    )


def schema_rows(schema: Schema, generator: np.random.Generator, count: int) -> FloatArray:
    """Rows that fill the declared columns: numbers in their range, every level as likely."""
    parts = []
    for column in schema.columns:
        if isinstance(column, Categorical):
            levels = column.encode([*column.levels])
            parts.append(levels[generator.integers(len(levels), size=count)])
            continue
        draws = generator.random(count)
        if isinstance(column, Boolean):
            draws = np.rint(draws)
        rows = np.zeros((count, column.width))
        rows[:, 0] = draws
        if column.width == 2:  # a tenth is missing: in the middle, and one step aside
            missing = generator.random(count) < 0.1
            rows[missing] = (0.5, 1.0)
        parts.append(rows)
    return np.concatenate(parts, axis=1)
