"""Public rows where nobody gave any: spread evenly over the declared ranges and levels."""

import numpy as np

from capri.schema import Boolean, Categorical, Numeric, Schema


def spread_rows(schema: Schema, count: int) -> list[dict[str, object]]:
    """Rows of a fixed low-discrepancy sequence, the same at every start.

    Row ``i`` has the fractional parts of ``i a_j`` in column ``j``, with ``a_j`` the powers of the
    inverse of the generalised golden ratio of that many columns (Roberts 2018).
    """
    width = len(schema.columns)
    golden = 2.0
    for _ in range(64):  # the root of x^(d+1) = x + 1
        golden = (1 + golden) ** (1 / (width + 1))
    steps = golden ** -np.arange(1, width + 1)
    places = (0.5 + np.outer(np.arange(count), steps)) % 1.0
    rows: list[dict[str, object]] = []
    for place in places:
        row: dict[str, object] = {}
        for column, share in zip(schema.columns, place, strict=True):
            match column:
                case Numeric():
                    row[column.name] = column.low + float(share) * (column.high - column.low)
                case Boolean():
                    row[column.name] = bool(share >= 0.5)
                case Categorical():
                    row[column.name] = column.levels[int(share * len(column.levels))]
        rows.append(row)
    return rows
