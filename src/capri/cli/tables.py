"""Feature rows from a CSV file: a header and numbers below it."""

import csv
import math
from pathlib import Path

from capri.errors import ConfigurationError


def read_rows(path: Path) -> list[list[float]]:
    """The rows of a numeric CSV file with a header line, or an error that names the place."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except OSError as problem:
        raise ConfigurationError(f"cannot read {path}: {problem.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigurationError(f"cannot read {path}: it is not a CSV text file") from None
    if len(lines) < 2:
        raise ConfigurationError(f"{path} must have a header line and at least one row of numbers")
    header = lines[0][1]
    if all(_is_number(cell) for cell in header):
        raise ConfigurationError(
            f"{path} must start with a header line that names its columns, got numbers"
        )
    rows = []
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise ConfigurationError(
                f"{path}, line {number}: {len(header)} columns are named in the header, "
                f"got {len(cells)}"
            )
        for name, cell in zip(header, cells, strict=True):
            if not (_is_number(cell) and math.isfinite(float(cell))):
                raise ConfigurationError(
                    f"{path}, line {number}, column {name!r}: a finite number is needed, "
                    f"got {cell!r}"
                )
        rows.append([float(cell) for cell in cells])
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
