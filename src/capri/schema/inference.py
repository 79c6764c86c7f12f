"""Columns from public rows: every cell looked at here is published with the policy."""

from math import isfinite

import numpy as np

from capri.cells import is_missing, number_or_missing
from capri.errors import ConfigurationError
from capri.schema.columns import OWN, Boolean, Categorical, Cells, Column, Numeric

# More levels than this are rather names or free text, and each is a number of every row.
MOST_LEVELS = 100


def inferred(name: str, cells: Cells) -> Column:
    """The column that these public cells suggest, or what to declare instead."""
    listed = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    present = [cell for cell in listed if not is_missing(cell)]
    missing = OWN if len(present) < len(listed) else None
    if not present:
        raise ConfigurationError(f"column {name!r} holds no value: drop it, or declare it")
    if all(isinstance(cell, bool | np.bool_) for cell in present):
        return Boolean(name, missing=missing)
    if all(isinstance(cell, str) for cell in present):
        levels = sorted(set(present))
        if len(levels) > MOST_LEVELS:
            raise ConfigurationError(
                f"column {name!r} has {len(levels)} different texts, more than {MOST_LEVELS}: "
                "drop it, or declare a Categorical with the levels that matter"
            )
        return Categorical(name, tuple(levels), missing=missing)
    numbers = [number_or_missing(cell) for cell in present]
    if not all(isfinite(number) for number in numbers):
        raise ConfigurationError(
            f"column {name!r} must hold truth values, numbers or texts, one kind of them: "
            "declare the column, or drop it"
        )
    low, high = min(numbers), max(numbers)
    # A column that never changes still needs a range; its cells are at the lower end.
    return Numeric(name, low, high if high > low else low + max(1.0, abs(low)), missing=missing)
