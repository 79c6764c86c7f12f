"""Read a table and check its cells.

A CSV or Parquet file, or a data frame; every column that is asked for must exist. Public rows are
reported by column and number, of private ones nothing is told.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import one_of
from capri.errors import ConfigurationError, DataError
from capri_lab.datasets.rewards import label_name

if TYPE_CHECKING:
    import pandas

Source: TypeAlias = "str | PathLike[str] | pandas.DataFrame"

MISSING = ("error", "drop")
_CSV = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")


def read_frame(source: Source, columns: Sequence[str]) -> "pandas.DataFrame":
    """The columns that are asked for, in that order, with rows numbered from 0.

    Cells of a CSV stay text here. Left to itself pandas guesses the type of a column from all of
    its rows, so that what a public row holds could depend on a private one.
    """
    try:
        import pandas
    except ImportError:
        raise _needed("pandas", "a table") from None
    twice = [name for place, name in enumerate(columns) if name in columns[:place]]
    if twice:
        raise ConfigurationError(f"column {twice[0]!r} cannot serve two ends: name it once")
    if isinstance(source, pandas.DataFrame):
        check_columns(columns, [str(name) for name in source.columns], "the data frame")
        frame = source.rename(columns=str)
        if frame.columns.has_duplicates:
            raise ConfigurationError("the data frame has several columns of the same name")
        return frame[list(columns)].reset_index(drop=True)
    if not isinstance(source, str | PathLike):
        raise ConfigurationError(
            f"data must be a path to a CSV or Parquet file or a pandas DataFrame, "
            f"got {type(source).__name__}"
        )
    path = Path(source)
    kind = next((each for each in reversed(path.suffixes) if each not in (".gz", ".zip")), "")
    if kind not in (*_CSV, *_PARQUET):
        raise ConfigurationError(
            f"data files end in {', '.join((*_CSV, *_PARQUET))} (or .csv.gz), got {path.name!r}"
        )
    if not path.is_file():
        raise ConfigurationError(f"there is no file {str(path)!r}")
    try:
        if kind in _PARQUET:
            return _read_parquet(path, columns)
        return _read_csv(path, _CSV[kind], columns)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError):
        # What the parser says may quote a line of somebody's data.
        raise DataError(
            f"{path.name} cannot be read as a table: every line needs the same number of cells, "
            "in UTF-8, below a line of column names"
        ) from None


def _read_csv(path: Path, separator: str, columns: Sequence[str]) -> Any:
    import pandas

    header = pandas.read_csv(path, sep=separator, nrows=0)
    check_columns(columns, list(header.columns), path.name)
    # Not usecols: with it, lines that have too many cells would pass unnoticed, shifted.
    frame = pandas.read_csv(path, sep=separator, dtype=str)
    if not isinstance(frame.index, pandas.RangeIndex):  # lines have a cell more than the header
        raise pandas.errors.ParserError
    return frame[list(columns)]


def _read_parquet(path: Path, columns: Sequence[str]) -> Any:
    import pandas

    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_schema
    except ImportError:
        raise _needed("pyarrow", "a Parquet file") from None
    try:
        check_columns(columns, read_schema(path).names, path.name)
        return pandas.read_parquet(path, columns=list(columns))[list(columns)]
    except (ArrowInvalid, OSError):
        raise DataError(f"{path.name} is not a Parquet file, or is damaged") from None


def column_names(name: str, given: object, least: int) -> list[str]:
    """A list of columns; one string is no list."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < least:
        count = "one" if least == 1 else "two"
        raise ConfigurationError(f"{name} must be a list of {count} or more columns, got {given!r}")
    return [str(each) for each in given]


def check_columns(wanted: Sequence[str], present: Sequence[str], where: str) -> None:
    """Refuse columns that do not exist, and say which ones were meant."""
    for name in wanted:
        if name not in present:
            near = get_close_matches(str(name), present, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            shown = ", ".join(repr(each) for each in present[:20])
            more = f" and {len(present) - 20} more" if len(present) > 20 else ""
            raise ConfigurationError(f"{where} has no column {name!r}{hint} It has {shown}{more}")


def _needed(package: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"reading {what} needs {package}: pip install 'capri-lab[data]'")


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
    one_of("missing", policy, MISSING)
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
