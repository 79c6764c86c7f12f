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
from capri.cells import number_or_missing
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.schema.columns import Column

NO_RECORD = "no record"
ABSENT = "absent column"
UNREADABLE = "unreadable value"
UNKNOWN_LEVEL = "unknown level"
UNKNOWN_COLUMN = "unknown column"
MARKS = (NO_RECORD, ABSENT, UNREADABLE, UNKNOWN_LEVEL, UNKNOWN_COLUMN)
Marks = tuple[str, ...]
_FEW = 6  # below it a row at a time is faster


class ContextReader:
    """Reads contexts by the schema of a policy."""

    def __init__(self, schema: Schema) -> None:
        self._columns = [(column.name, column, _check(column)) for column in schema.columns]
        self._checks = {name: check for name, _, check in self._columns}
        self._names = dict.fromkeys(schema.names).keys()
        self._dimension = schema.dimension

    def row(self, context: Any) -> tuple[list[float], Marks]:
        """The numbers of one context, NaN where nothing stands for a missing cell; its marks."""
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
        """The rows of several contexts: those that are as declared column by column."""
        if len(contexts) < _FEW:
            return self._one_by_one(contexts)
        sound = [
            place
            for place, context in enumerate(contexts)
            if type(context) is dict and context.keys() == self._names
        ]
        parts: list[FloatArray] = []
        for name, column, _ in self._columns:
            cells = [contexts[place][name] for place in sound]
            if isinstance(column, Numeric):
                if not set(map(type, cells)) <= {float, int}:
                    return self._one_by_one(contexts)
                numbers = np.array([number_or_missing(cell) for cell in cells], dtype=np.float64)
                if not np.isfinite(numbers).all():
                    return self._one_by_one(contexts)
                parts.append(column.encode(numbers))
            elif any(self._checks[name](cell) is not None for cell in cells):
                return self._one_by_one(contexts)
            else:
                parts.append(column.encode(cells))
        together = np.concatenate(parts, axis=1)
        if len(sound) == len(contexts):
            return together, [()] * len(contexts)
        others = sorted(set(range(len(contexts))) - set(sound))
        rows = np.empty((len(contexts), self._dimension))
        marks: list[Marks] = [()] * len(contexts)
        rows[sound] = together
        for place in others:
            rows[place], marks[place] = self.row(contexts[place])
        return rows, marks

    def _one_by_one(self, contexts: list[Any]) -> tuple[FloatArray, list[Marks]]:
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
