"""Columns of a table by name: a data frame, mappings, or an array with named fields.

Names and shapes are public and may be refused; cells are not looked at. Data frames are known by
what they can do, so no library is imported for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capri.errors import DataError
from capri.schema.columns import Cells

_ABSENT = object()


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
