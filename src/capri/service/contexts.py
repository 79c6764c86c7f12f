"""What requests say of a user, as rows of numbers: anything is served, nothing is refused or shown.

A context is private. One that is no record, lacks a column, has one that was not declared, or a
cell that its column cannot hold gets a row all the same; what was wrong is told to its own caller
as marks, which name kinds and never values.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from math import isfinite, nan
from operator import contains, itemgetter
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.schema.columns import Column

NO_RECORD = "no record"
ABSENT = "absent column"
UNREADABLE = "unreadable value"
UNKNOWN_LEVEL = "unknown level"
UNKNOWN_COLUMN = "unknown column"
MARKS = (NO_RECORD, ABSENT, UNREADABLE, UNKNOWN_LEVEL, UNKNOWN_COLUMN)
Marks = tuple[str, ...]
_LARGEST = sys.float_info.max
_FEW = 6  # below it a row at a time is faster


class ContextReader:
    """Reads contexts by the schema of a policy."""

    def __init__(self, schema: Schema, noted: Callable[[dict[Any, Any]], None]) -> None:
        """``noted``: is handed contexts whose columns are not those of the schema."""
        self._noted = noted
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
        if not known == len(context) == len(self._columns):
            self._noted(context)
        return numbers, tuple(dict.fromkeys(marks)) if marks else ()

    def rows(self, contexts: list[Any]) -> tuple[FloatArray, list[Marks]]:
        """The rows of several contexts: column by column, and odd ones by themselves.

        Others come in the same list or transaction: an odd context must not slow all of them down.
        """
        if len(contexts) < _FEW:
            return self._one_by_one(contexts)
        sound: Sequence[int] = range(len(contexts))
        if not self._all_declared(contexts):
            sound = [
                place
                for place, context in enumerate(contexts)
                if type(context) is dict and context.keys() == self._names
            ]
        whole = contexts if len(sound) == len(contexts) else [contexts[place] for place in sound]
        columns, odd = self._read(whole)
        if odd:
            sound = [place for rank, place in enumerate(sound) if rank not in odd]
            whole = [contexts[place] for place in sound]
            columns, _ = self._read(whole)
        if not whole:
            return self._one_by_one(contexts)
        parts = [
            column.encode(cells)
            for (_, column, _), cells in zip(self._columns, columns, strict=True)
        ]
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

    def _read(self, contexts: list[Any]) -> tuple[list[Any], set[int]]:
        """The cells of each column, numbers as an array; which contexts have an odd cell."""
        columns: list[Any] = []
        odd: set[int] = set()
        for name, column, _ in self._columns:
            cells = list(map(itemgetter(name), contexts))
            if isinstance(column, Numeric):
                numbers = _finite(cells)
                columns.append(numbers)
                if numbers is None:
                    odd.update(at for at, cell in enumerate(cells) if _finite([cell]) is None)
            else:
                check = self._checks[name]
                columns.append(cells)
                odd.update(at for at, cell in enumerate(cells) if check(cell) is not None)
        return columns, odd

    def _all_declared(self, contexts: list[Any]) -> bool:
        """Whether every context is a record with the declared columns and no others."""
        if set(map(type, contexts)) != {dict} or set(map(len, contexts)) != {len(self._names)}:
            return False
        return all(all(map(contains, contexts, repeat(name))) for name in self._names)

    def _one_by_one(self, contexts: list[Any]) -> tuple[FloatArray, list[Marks]]:
        rows, marks = np.empty((len(contexts), self._dimension)), []
        for place, context in enumerate(contexts):
            rows[place], mark = self.row(context)
            marks.append(mark)
        return rows, marks


def _finite(cells: list[Any]) -> FloatArray | None:
    """Cells as numbers; None where one is no number, or none that a double holds."""
    if not set(map(type, cells)) <= {float, int}:
        return None
    try:
        numbers = np.array(cells, dtype=np.float64)
    except OverflowError:
        return None
    return numbers if np.isfinite(numbers).all() else None


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
        return None if type(cell) is int and abs(cell) <= _LARGEST else UNREADABLE

    return number
