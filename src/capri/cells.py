"""Cells as people send them: of any type and size, or missing. Each is judged by itself.

A list of private cells never goes to NumPy as it is: NumPy chooses one type for all of them, so one
text would make texts of everybody's numbers. Here a cell that is no number is NaN and changes
nothing else. No cell is refused, warned of, or asked for more than the number that it is.

Columns of a table go by name: a data frame, mappings, or an array with named fields. Names and
shapes are public and may be refused; cells are not looked at. Data frames are known by what they
can do, so no library is imported for them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf, nan
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from capri.arrays import FloatArray
from capri.errors import DataError

Cells = Sequence[Any] | np.ndarray[Any, Any]

# What libraries call a value that is missing, by the name of its type: none is imported for it.
_MISSING = ("NAType", "NaTType", "MaskedConstant")
# Types of numbers that come in thousands: read without the care that others need.
_USUAL = frozenset({int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
_FLOAT = np.dtype(np.float64)
_TEXTS = (str, bytes, bytearray, memoryview)
_ABSENT = object()


def as_numbers(values: object) -> FloatArray:
    """A list of cells as floats ``(n,)``, NaN for what is no number; an array in its own shape.

    What is neither has the shape ``()``, for the caller to refuse: shapes are public.

    >>> as_numbers([0.5, "1", None, True, -(10**400)])
    array([ 0.5,  nan,  nan,  1. , -inf])
    """
    if type(values) is np.ndarray and values.dtype.char == "d":  # nearly always
        return values.copy()
    if is_list(values):
        return np.array(_numbers(values), dtype=np.float64)
    try:
        return _of_array(np.asanyarray(values))
    except (TypeError, ValueError):  # a container that NumPy cannot read
        return np.array(nan)


def as_number_rows(values: object, width: int | None = None) -> FloatArray:
    """A list of rows as floats ``(n, width)``, each row by itself; an array in its own shape.

    What is no row of ``width`` cells becomes a row of NaN; a number stands for a row of one. Where
    there are rows and none has the width, the shape is that of the first, for the caller to refuse.
    Without a ``width``: the one that most rows have.

    >>> as_number_rows([[0.5, 1], "ab", [2, "b"]], 2)
    array([[0.5, 1. ],
           [nan, nan],
           [2. , nan]])
    >>> as_number_rows([[1, 2, 3]], 2).shape
    (1, 3)
    """
    if not is_list(values):
        return as_numbers(values)
    shape = (width,)
    if all(
        type(row) is np.ndarray and row.shape == shape and row.dtype is _FLOAT for row in values
    ):  # rows of a matrix: in one piece
        return np.array(values, dtype=np.float64).reshape(len(values), width or 0)
    rows = [each if type(each) is list else _cells(each, width) for each in values]
    widths = [len(row) for row in rows if row is not None]
    if width is None:
        width = Counter(widths).most_common(1)[0][0] if widths else 1
    if widths and width not in widths:
        return np.full((len(rows), widths[0]), nan)
    gap = [nan] * width
    cells = chain.from_iterable(
        row if row is not None and len(row) == width else gap for row in rows
    )
    return np.array(_numbers(cells), dtype=np.float64).reshape(len(rows), width)


def is_list(values: object) -> TypeGuard[Sequence[Any]]:
    """Whether this is a list of cells: a sequence that is neither a text nor bytes."""
    return isinstance(values, list) or (
        isinstance(values, Sequence) and not isinstance(values, _TEXTS)
    )


def _numbers(cells: Iterable[Any]) -> list[float]:
    """The number of each cell: the time of an odd one is its own."""
    return [cell if type(cell) is float else number_or_missing(cell) for cell in cells]


def _cells(row: Any, width: int | None) -> Sequence[Any] | None:
    """The cells of one row, itself where it is a number; None for what is no row.

    Of a row of another length than ``width`` the length alone: it may be as long as it likes.
    """
    if type(row) is tuple:
        return row
    try:
        if is_list(row):
            return range(len(row)) if len(row) != (width or len(row)) else list(row)
        if hasattr(row, "__array__") and not isinstance(row, np.generic):
            array = np.asanyarray(row)
            if array.size != (width or array.size):
                return range(array.size)
            found: list[float] = _of_array(array).ravel().tolist()
            return found
    except Exception:  # whatever an object says of itself when it is asked for its cells
        return None
    number = number_or_missing(row)
    return [number] if number == number else None


def _of_array(array: np.ndarray[Any, Any]) -> FloatArray:
    """The numbers of an array of any type, in its shape: NaN for what is masked or no number."""
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), nan, _of_array(np.ma.getdata(array)))
    if array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):  # of numbers wider than a float
            return array.astype(np.float64)
    if array.dtype.kind == "O":
        return np.array(_numbers(array.ravel()), dtype=np.float64).reshape(array.shape)
    return np.full(array.shape, nan)  # texts, dates, complex numbers


def number_of(value: object) -> float:
    """A number of any size, NaN where it is missing; a TypeError for what is no number."""
    kind = type(value).__name__
    if value is None or kind in _MISSING:
        return nan
    if isinstance(value, np.timedelta64) or not (
        isinstance(value, Real | np.bool_) or kind == "Decimal"
    ):
        raise TypeError(kind)
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return inf if value > 0 else -inf  # type: ignore[operator]
    except ValueError:  # a signalling NaN of Decimal
        return nan


def number_or_missing(cell: object) -> float:
    """A number, NaN for any other cell: what one user sends is never refused for its type.

    >>> number_or_missing("41"), number_or_missing(True), number_or_missing(-(10**400))
    (nan, 1.0, -inf)
    """
    if type(cell) is float:  # nearly always
        return cell
    try:
        if type(cell) in _USUAL:
            return float(cell)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            if isinstance(cell, np.ndarray) and cell.size == 1:
                return float(_of_array(cell).ravel()[0])
            return number_of(cell)
    except OverflowError:  # a whole number beyond any float
        return inf if cell > 0 else -inf  # type: ignore[operator]
    except Exception:  # whatever an object says of itself when it is asked for its number
        return nan


def is_missing(cell: object) -> bool:
    """Whether a cell is empty: None, NaN, NA, masked.

    >>> is_missing(None), is_missing(float("nan")), is_missing(""), is_missing(0)
    (True, True, False, False)
    """
    if cell is None or type(cell).__name__ in _MISSING:
        return True
    return isinstance(cell, float | np.floating) and bool(cell != cell)


def plain(cell: object, other: object) -> object:
    """A text or a number as Python has them, None for a missing cell, ``other`` for all else.

    Whatever a subclass says of its value, hash or equality is not asked.

    >>> plain(np.str_("a"), ...), plain(np.int64(3), ...), plain(float("nan"), ...), plain([3], ...)
    ('a', 3, None, Ellipsis)
    """
    try:
        if isinstance(cell, np.generic):
            cell = None if is_missing(cell) else cell.item()
        if isinstance(cell, str):
            return str.__str__(cell)
        if isinstance(cell, bool | int):
            return cell if isinstance(cell, bool) else int.__index__(cell)
        if isinstance(cell, float):
            number = float.__float__(cell)
            return number if number == number else None
        return None if is_missing(cell) else other
    except Exception:  # whatever an object says of itself when it is asked what it is
        return other


def visit_rows(values: object, dimension: int, *, single: bool = False) -> FloatArray:
    """Contexts of users as ``(n, dimension)``, of any cells: only a shape is refused.

    A context that is none among others, or of another width, is a row of NaN.
    """
    if single:
        values = values.reshape(1, -1) if isinstance(values, np.ndarray) else [values]
    # An array is read as it is; of a list every row by itself.
    array = isinstance(values, np.ndarray)
    rows = as_numbers(values) if array else as_number_rows(values, dimension)
    if single and rows.shape[1] != dimension:
        raise DataError(f"a context must have {dimension} numbers, got {rows.shape[1]}")
    if rows.ndim == 1 and dimension == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise DataError(
            f"contexts must have shape (n, {dimension}), got {rows.shape}: one row per decision"
        )
    return rows


def is_row(values: object) -> bool:
    """Whether this is one row by name: a mapping, or a row of a data frame."""
    try:
        if isinstance(values, Mapping):
            return True
        return hasattr(values, "keys") and hasattr(values, "__getitem__") and not is_frame(values)
    except Exception:  # whatever an object says of itself when it is asked what it is
        return False


def is_frame(values: object) -> bool:
    """Whether this is a data frame: it lists its columns and gives each by name."""
    return hasattr(values, "columns") and hasattr(values, "__getitem__")


def is_table(values: object) -> bool:
    """Whether the columns of this have names; a matrix of numbers has none."""
    if isinstance(values, np.ndarray):
        return values.dtype.names is not None
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return any(is_row(row) for row in values)
    return is_row(values) or is_frame(values)


def names_of(table: Any) -> list[str]:
    """The names of the columns; those of the first row where rows are mappings."""
    if isinstance(table, np.ndarray):
        return [str(name) for name in table.dtype.names or ()]
    if is_frame(table):
        return [str(name) for name in table.columns]
    row = table if is_row(table) else next(filter(is_row, table))
    return [str(name) for name in row.keys()]  # noqa: SIM118 (a row of a frame gives its cells)


def cells_of(table: Any, names: Sequence[str]) -> list[Cells]:
    """The cells of each column, all of the same number; other columns are left alone."""
    if isinstance(table, Sequence):
        if not all(is_row(row) for row in table):
            raise DataError("rows must be mappings from column names to values, all of them")
        return of_rows(table, names)
    known = names_of(table)
    absent = [name for name in names if name not in known]
    if absent:
        raise _absent(absent[0])
    columns = [_listed(table[name], name) for name in names]
    if len({len(column) for column in columns}) > 1:
        raise DataError(
            "the columns of a table must have the same number of cells, got "
            + ", ".join(f"{name}: {len(each)}" for name, each in zip(names, columns, strict=True))
        )
    return columns


def of_rows(rows: Sequence[Any], names: Sequence[str], most: int = 0) -> list[Cells]:
    """The cells of each column, None in a row that lacks it.

    A column that more than ``most`` rows lack is refused.
    """
    columns: list[Cells] = []
    for name in names:
        cells = [_cell(row, name) for row in rows]
        if sum(cell is _ABSENT for cell in cells) > most:
            raise _absent(name)
        columns.append([None if cell is _ABSENT else cell for cell in cells])
    return columns


def _cell(row: Any, name: str) -> object:
    """One cell of a row, which is the row's own affair."""
    try:
        return row[name]
    except (KeyError, IndexError):
        return _ABSENT
    except Exception:  # what is no row, or cannot give its cells
        return None


def _absent(name: str) -> DataError:
    return DataError(
        f"column {name!r} is declared and not there: give it in every row, as None where it is "
        "missing"
    )


def _listed(column: Any, name: str) -> Cells:
    """The cells of a column: an array where they are numbers, else a list."""
    if isinstance(column, np.ndarray):
        cells: Any = column
    elif hasattr(column, "to_numpy"):  # of a data frame
        cells = column.to_numpy()
        if not isinstance(cells, np.ndarray) or cells.dtype.kind not in "biuf":
            cells = column.to_list()
    elif isinstance(column, Sequence) and not isinstance(column, str | bytes):
        cells = list(column)
    else:
        raise DataError(
            f"column {name!r} must be a list of cells, one per row: a single row is given to act, "
            "or in a list"
        )
    if isinstance(cells, np.ndarray) and cells.ndim != 1:
        raise DataError(f"column {name!r} must have one cell per row, got shape {cells.shape}")
    return cells  # type: ignore[no-any-return]
