"""Read a CSV or Parquet file, or take a data frame; every column that is asked for must exist."""

from collections.abc import Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from capri.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pandas

Source: TypeAlias = "str | PathLike[str] | pandas.DataFrame"

_CSV = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")


def read_frame(source: Source, columns: Sequence[str]) -> "pandas.DataFrame":
    """The columns that are asked for, in that order, with rows numbered from 0.

    Cells of a CSV stay text here. Left to itself pandas guesses the type of a column from all of
    its rows, so that what a public row holds could depend on a private one.
    """
    pandas = _pandas()
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
            return _read_parquet(pandas, path, columns)
        return _read_csv(pandas, path, _CSV[kind], columns)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError):
        # What the parser says may quote a line of somebody's data.
        raise DataError(
            f"{path.name} cannot be read as a table: every line needs the same number of cells, "
            "in UTF-8, below a line of column names"
        ) from None


def _read_csv(pandas: Any, path: Path, separator: str, columns: Sequence[str]) -> Any:
    header = pandas.read_csv(path, sep=separator, nrows=0)
    check_columns(columns, list(header.columns), path.name)
    # Not usecols: with it, lines that have too many cells would pass unnoticed, shifted.
    frame = pandas.read_csv(path, sep=separator, dtype=str)
    if not isinstance(frame.index, pandas.RangeIndex):  # lines have a cell more than the header
        raise pandas.errors.ParserError
    return frame[list(columns)]


def _read_parquet(pandas: Any, path: Path, columns: Sequence[str]) -> Any:
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


def check_columns(wanted: Sequence[str], present: Sequence[str], where: str) -> None:
    """Refuse columns that do not exist, and say which ones were meant."""
    for name in wanted:
        if name not in present:
            near = get_close_matches(str(name), present, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            shown = ", ".join(repr(each) for each in present[:20])
            more = f" and {len(present) - 20} more" if len(present) > 20 else ""
            raise ConfigurationError(f"{where} has no column {name!r}{hint} It has {shown}{more}")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise _needed("pandas", "a table") from None
    return pandas


def _needed(package: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"reading {what} needs {package}: pip install 'capri-bandits[data]'")
