"""Columns of a table by name: a data frame, mappings, or an array with named fields.

Names and shapes are public and may be refused; cells are not looked at. Data frames are known by
what they can do, so no library is imported for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capri.errors import DataError
from capri.schema.columns import Cells


def is_row(values: object) -> bool:
    """Whether this is one row by name: a mapping, or a row of a data frame."""
    if isinstance(values, Mapping):
        return True
    return hasattr(values, "keys") and hasattr(values, "__getitem__") and not is_frame(values)


def is_frame(values: object) -> bool:
    """Whether this is a data frame: it lists its columns and gives each by name."""
    return hasattr(values, "columns") and hasattr(values, "__getitem__")


def is_table(values: object) -> bool:
    """Whether the columns of this have names; a matrix of numbers has none."""
    if isinstance(values, np.ndarray):
        return values.dtype.names is not None
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return len(values) > 0 and is_row(values[0])
    return is_row(values) or is_frame(values)


def names_of(table: Any) -> list[str]:
    """The names of the columns; those of the first row where rows are mappings."""
    if isinstance(table, np.ndarray):
        return [str(name) for name in table.dtype.names or ()]
    if is_frame(table):
        return [str(name) for name in table.columns]
    row = table if is_row(table) else table[0]
    return [str(name) for name in row.keys()]  # noqa: SIM118 (a row of a frame gives its cells)


def cells_of(table: Any, names: Sequence[str]) -> list[Cells]:
    """The cells of each column, all of the same number; other columns are left alone."""
    if isinstance(table, Sequence):
        return _of_rows(table, names)
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


def one_row(row: Any, names: Sequence[str]) -> list[Cells]:
    """The cell of each column of one row."""
    return _of_rows([row], names)


def _of_rows(rows: Sequence[Any], names: Sequence[str]) -> list[Cells]:
    if not all(is_row(row) for row in rows):
        raise DataError("rows must be mappings from column names to values, all of them")
    columns: list[Cells] = []
    for name in names:
        try:
            columns.append([row[name] for row in rows])
        except (KeyError, IndexError):
            raise _absent(name) from None
    return columns


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
