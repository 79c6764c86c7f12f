"""Public rows in CSV files: cells become numbers, truth values or texts by their column."""

import csv
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from capri.errors import ConfigurationError
from capri.schema.columns import Boolean, Categorical, Column

_TRUTH = {"true": True, "false": False, "yes": True, "no": False}


def read_sheet(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a header, as texts."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else type(problem).__name__
        raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    if len(rows) < 2:
        raise ConfigurationError(f"{path} needs a header and at least one row")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigurationError(f"{path}: every column needs a name of its own, got {names}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise ConfigurationError(
                f"{path}, line {number}: {len(names)} cells are needed, got {len(row)}"
            )
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(names)}


def guessed(cells: Sequence[str]) -> list[object]:
    """Cells of a column of which nothing is declared: all numbers, all truth values, else texts.

    >>> guessed(["1", "2.5", ""]), guessed(["yes", "no"]), guessed(["1", "x"])
    ([1.0, 2.5, None], [True, False], ['1', 'x'])
    """
    present = [cell for cell in cells if cell]
    if present and all(cell.lower() in _TRUTH for cell in present):
        return [_TRUTH[cell.lower()] if cell else None for cell in cells]
    numbers = [number_of(cell) for cell in cells]
    if present and all(
        number is not None for cell, number in zip(cells, numbers, strict=True) if cell
    ):
        return list(numbers)
    return [cell or None for cell in cells]


def declared(column: Column, cells: Sequence[str]) -> list[object]:
    """Cells as their column means them; None where one is empty or means nothing to it."""
    if isinstance(column, Categorical):
        levels = {str(level): level for level in column.levels}
        return [levels.get(cell, cell) if cell else None for cell in cells]
    if isinstance(column, Boolean):
        return [_TRUTH.get(cell.lower(), number_of(cell)) for cell in cells]
    return [number_of(cell) for cell in cells]


def number_of(cell: str) -> float | None:
    """A finite number, None for any other text."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if isfinite(number) else None
