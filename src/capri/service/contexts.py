"""What requests say of a user, as rows of numbers: anything is served, nothing is refused or shown.

A context is private. One that is no record, lacks a column, has one that was not declared, or a
cell that its column cannot hold gets a row all the same; what was wrong is told to its own caller
as marks, which name kinds and never values.
"""

from collections.abc import Callable
from math import isfinite, nan
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.schema import Boolean, Categorical, Schema
from capri.schema.columns import Column

NO_RECORD = "no record"
ABSENT = "absent column"
UNREADABLE = "unreadable value"
UNKNOWN_LEVEL = "unknown level"
UNKNOWN_COLUMN = "unknown column"
MARKS = (NO_RECORD, ABSENT, UNREADABLE, UNKNOWN_LEVEL, UNKNOWN_COLUMN)
Marks = tuple[str, ...]


class ContextReader:
    """Reads contexts by the schema of a policy."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [(column.name, column, _check(column)) for column in schema.columns]
        self._dimension = schema.dimension

    def row(self, context: Any) -> tuple[list[float], Marks]:
        """The numbers of one context, NaN where nothing stands for a missing cell, and its marks."""
        if not isinstance(context, dict):
            return [nan] * self._dimension, (NO_RECORD,)
        numbers: list[float] = []
        marks: list[str] = []
        known = 0
        for name, column, check in self._columns:
            cell = context.get(name)
            if name in context:
                known += 1
            if (mark := ABSENT if cell is None else check(cell)) is not None:
                marks.append(mark)
                if mark is UNREADABLE:
                    cell = None
            numbers += column.encode_one(cell)
        if known < len(context):
            marks.append(UNKNOWN_COLUMN)
        return numbers, tuple(dict.fromkeys(marks)) if marks else ()

    def rows(self, contexts: list[Any]) -> tuple[FloatArray, list[Marks]]:
        """The rows of several contexts."""
        rows, marks = np.empty((len(contexts), self._dimension)), []
        for place, context in enumerate(contexts):
            rows[place], mark = self.row(context)
            marks.append(mark)
        return rows, marks


def _check(column: Column) -> Callable[[Any], str | None]:
    """What is the matter with a cell of a column that is not missing; None where it is sound."""
    if isinstance(column, Categorical):
        levels = column.levels

        def level(cell: Any) -> str | None:
            if not isinstance(cell, str | int | float):
                return UNREADABLE
            return None if cell in levels else UNKNOWN_LEVEL

        return level
    if isinstance(column, Boolean):
        return lambda cell: (
            None if isinstance(cell, bool | int | float) and cell in (0, 1) else UNREADABLE
        )

    def number(cell: Any) -> str | None:
        if type(cell) is float:
            return None if isfinite(cell) else UNREADABLE
        return None if type(cell) is int else UNREADABLE

    return number
