"""Contexts of a table by a schema: cells of a file are text, and a schema knows what they mean."""

from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.errors import ConfigurationError
from capri.schema import Boolean, Categorical, Column, Numeric, Schema
from capri_lab.datasets.tables import label_cells, numeric_cells

if TYPE_CHECKING:
    import pandas

_WORDS = {"true": True, "1": True, "false": False, "0": False}


def schema_rows(frame: "pandas.DataFrame", schema: Schema) -> tuple[FloatArray, BoolArray]:
    """Rows of numbers, and for each column where a cell is missing that should be there.

    What users send is never refused; of a table that somebody prepared, a gap in a column whose
    schema expects none is worth a word.
    """
    rows = schema.rows({column.name: _cells(frame, column) for column in schema.columns})
    gaps = [np.isnan(rows[:, schema.places(name)]).any(axis=1) for name in schema.names]
    return rows, np.stack(gaps, axis=1)


def check_no_encoder(dimensions: int | None, prototypes: int | None, *, raw: bool = False) -> None:
    """A schema says what contexts are, and raw ones stay: nothing is left to project or round."""
    if dimensions is None and prototypes is None:
        return
    if raw:
        raise ConfigurationError(
            "dimensions and prototypes change columns, and raw=True leaves them as they are: give "
            "one or the other"
        )
    raise ConfigurationError(
        "dimensions and prototypes belong to columns of numbers: with a schema as context, "
        "records become rows by the schema alone"
    )


def _cells(frame: "pandas.DataFrame", column: Column) -> Any:
    """The cells of a column as their kind has them; None for a missing one."""
    if isinstance(column, Numeric) or _coded_by_numbers(column):
        return numeric_cells(frame, [column.name])[0][:, 0]
    texts, absent = label_cells(frame[column.name])
    known = zip(texts.tolist(), absent.tolist(), strict=True)
    if isinstance(column, Boolean):
        return [None if gone else _WORDS.get(text.lower()) for text, gone in known]
    return [None if gone else text for text, gone in known]


def _coded_by_numbers(column: Column) -> bool:
    if not isinstance(column, Categorical):
        return False
    kinds = {isinstance(level, int) for level in column.levels}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"column {column.name!r}: levels of a table must be texts or whole numbers, not both"
        )
    return kinds.pop()
