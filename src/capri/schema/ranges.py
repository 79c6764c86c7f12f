"""Rows that fill public ranges: contexts for those who have no public rows.

Evenly, by the additive recurrence ``u_n = (1/2 + n a) mod 1`` with ``a_j = g^-j`` and ``g`` the
positive root of ``g^(d+1) = g + 1``: the same rows for everybody, without a draw.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.checks import is_number
from capri.errors import ConfigurationError
from capri.schema.columns import Boolean, Categorical, Column, Numeric
from capri.schema.schema import Schema

Ranges = Schema | Sequence[tuple[float, float]]


def checked_ranges(ranges: object) -> Ranges:
    """A schema, or a low and a high for each column; or say what is wrong."""
    if isinstance(ranges, Schema):
        return ranges
    found = []
    try:
        pairs = [(low, high) for low, high in ranges]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigurationError(
            "ranges must be a capri.Schema or a list of (low, high), one pair for each column"
        ) from None
    for place, (low, high) in enumerate(pairs):
        fine = is_number(low) and is_number(high) and np.isfinite([low, high]).all()
        if not (fine and low < high):
            raise ConfigurationError(
                f"range {place} must be two finite numbers, the lower first, got {(low, high)!r}"
            )
        found.append((float(low), float(high)))
    if not found:
        raise ConfigurationError("ranges must name at least one column, got none")
    return found


def columns_of(ranges: Ranges) -> int:
    """How many columns there are, before they become numbers."""
    return len(ranges.columns) if isinstance(ranges, Schema) else len(ranges)


def even_shares(count: int, columns: int) -> FloatArray:
    """``count`` points that fill the unit cube evenly.

    >>> even_shares(4, 1).ravel().round(3).tolist()
    [0.118, 0.736, 0.354, 0.972]
    """
    golden = 2.0
    for _ in range(64):  # a contraction: 64 steps reach the last bit
        golden = (1 + golden) ** (1 / (columns + 1))
    steps = golden ** -np.arange(1.0, columns + 1)
    return np.asarray((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0)


def within(ranges: Ranges, shares: FloatArray) -> Any:
    """Rows of numbers, or records of a schema, at these shares of each range."""
    if isinstance(ranges, Schema):
        named = zip(ranges.columns, shares.T, strict=True)
        cells = {column.name: _cells(column, own) for column, own in named}
        return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    low, high = np.array(ranges).T
    return low + (high - low) * shares


def _cells(column: Column, shares: FloatArray) -> list[Any]:
    """What a column holds at these shares: levels take turns, numbers fill their range."""
    if isinstance(column, Numeric):
        return [float(each) for each in column.low + (column.high - column.low) * shares]
    if isinstance(column, Categorical):
        return [column.levels[int(share * len(column.levels))] for share in shares]
    assert isinstance(column, Boolean)
    return [bool(share >= 0.5) for share in shares]
