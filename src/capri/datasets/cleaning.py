"""Check cells: public rows are reported by column and number, of private ones nothing is told."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.datasets.rewards import label_name
from capri.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pandas

MISSING = ("error", "drop")


def numeric_cells(
    frame: "pandas.DataFrame", columns: Sequence[str]
) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Cells as numbers, which of them are missing (or not finite), and which are no numbers."""
    values = np.full((len(frame), len(columns)), np.nan)
    wrong = np.zeros(values.shape, dtype=np.bool_)
    for place, name in enumerate(columns):
        values[:, place], wrong[:, place] = _numbers(frame[name])
    return values, ~np.isfinite(values) & ~wrong, wrong


def _numbers(column: Any) -> tuple[FloatArray, BoolArray]:
    """One column as numbers (NaN where it has none), and where it holds something else."""
    import pandas

    absent = column.isna().to_numpy()
    if pandas.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "c":
        return column.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(column), np.bool_)
    if not (pandas.api.types.is_object_dtype(column) or pandas.api.types.is_string_dtype(column)):
        return np.full(len(column), np.nan), ~absent
    # Cell by cell through text, so that a cell means the same whatever stands beside it.
    parsed = pandas.to_numeric(column.map(str, na_action="ignore"), errors="coerce")
    numbers = parsed.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers, np.isnan(numbers) & ~absent


def label_cells(column: Any) -> tuple[np.ndarray, BoolArray]:
    """Labels as text, and which are missing."""
    absent = column.isna().to_numpy()
    names = np.empty(len(column), dtype=object)
    names[:] = [
        "" if gone else label_name(value)
        for value, gone in zip(column.tolist(), absent, strict=True)
    ]
    return names, absent | (names == "")


def complete_rows(
    columns: Sequence[str],
    missing: BoolArray,
    wrong: BoolArray,
    public: BoolArray,
    policy: str,
    *,
    least_public: int = 2,
) -> BoolArray:
    """Rows that can be used; refuses what must not be passed over.

    Text where numbers belong is always refused. Missing cells and infinities are refused or, under
    "drop", their rows are left out. Errors count public rows only.
    """
    if policy not in MISSING:
        raise ConfigurationError(f"missing must be 'error' or 'drop', got {policy!r}")
    refused = wrong if policy == "drop" else wrong | missing
    found = []
    for place, name in enumerate(columns):
        for cells, what in ((wrong, "text"), (missing, "NaN, infinity or nothing")):
            rows = int((cells[:, place] & public & refused[:, place]).sum())
            if rows:
                found.append(f"column {name!r} has {what} in {rows} public rows")
    if found:
        raise DataError(f"{'; '.join(found)}: {_advice(bool(wrong[public].any()))}")
    if refused[~public].any():
        raise DataError(
            "a private row has a cell that is no finite number where one is needed; no more is "
            f"told of private rows: {_advice(bool(wrong[~public].any()))}"
        )
    keep = np.asarray(~(missing | wrong).any(axis=1))
    for side, mask, least in (("public", public, least_public), ("private", ~public, 1)):
        if (keep & mask).sum() < least:
            raise DataError(f"too few complete {side} rows are left: at least {least} are needed")
    return keep


def _advice(text: bool) -> str:
    if text:
        return "write numbers, encode categories as numbers, or leave the column out"
    return "fill these cells, or leave their rows out with missing='drop'"
