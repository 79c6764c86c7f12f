"""What is read and written: files, JSON, CSV, TOML with its lines, tables for a reader."""

import csv
import errno
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from html import escape
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from capri.checks import is_number
from capri.errors import AwayError, CapriError, ConfigurationError, StorageError

Keys = tuple[str | int, ...]
Row = Mapping[str, float | str | None]
# What passes: no room, or a disk that fails.
_PASSING = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def secret(name: str) -> str | None:
    """A value of the environment, or of the file that ``NAME_FILE`` names; None where neither is.

    Orchestrators hand secrets out as files, which no listing of processes shows.
    """
    if name in os.environ:
        return os.environ[name] or None
    try:
        where = os.environ.get(f"{name}_FILE") or os.devnull
        return Path(where).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as problem:
        said = f"{name}_FILE names a file that cannot be read: {type(problem).__name__}"
        raise ConfigurationError(said) from None


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's; for ``json.dumps(..., default=plain)``."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot store a {type(value).__name__}")


def to_json(document: Mapping[str, Any]) -> str:
    """JSON text for a person; numbers that JSON does not know (infinity, NaN) become null.

    >>> print(to_json({"ratio": float("nan")}), end="")
    {
      "ratio": null
    }
    """
    return json.dumps(json_values(document), indent=2, allow_nan=False, default=plain) + "\n"


def json_values(value: Any) -> Any:
    """The same with lists for tuples, Python's numbers, and None for what JSON cannot hold.

    >>> json_values({"pair": (1, float("inf"))})
    {'pair': [1, None]}
    """
    match value:
        case Mapping():
            return {key: json_values(item) for key, item in value.items()}
        case list() | tuple():
            return [json_values(item) for item in value]
        case np.generic():
            return json_values(value.item())
        case float() if not math.isfinite(value):
            return None
    return value


def canonical(content: Any) -> str:
    """JSON in one form only: sorted keys, no blanks, ASCII, shortest digits of every number.

    >>> canonical({"b": (1, 2.50), "a": "é"})
    '{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=plain)


def digest_of(content: Any, arrays: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of canonical JSON, in hexadecimals; an array enters by type, shape and digest.

    The same content has the same digest, on any machine.
    """
    whole = content
    if arrays is not None:
        named = {name: _array(np.asarray(array)) for name, array in arrays.items()}
        whole = {"values": content, "arrays": named}
    return hashlib.sha256(canonical(whole).encode("ascii")).hexdigest()


def _array(array: Any) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": little.dtype.str,
        "shape": list(array.shape),
        "sha256": hashlib.sha256(little.tobytes()).hexdigest(),
    }


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written when a long run is over."""
    folder = path.resolve().parent
    if path.is_dir():
        raise ConfigurationError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise ConfigurationError(f"cannot write {path}: the directory {folder} does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: permission denied")
    if _replaceable(path):
        try:
            # Only trying tells: access rights say nothing of read-only or full disks.
            _partial(path, 0o600).unlink()
        except OSError as problem:
            raise ConfigurationError(f"cannot write {path}: {problem.strerror}") from None


def write_atomically(path: Path, content: bytes, *, confidential: bool = False) -> None:
    """Write to a temporary neighbour that takes the name when it is complete.

    A crash leaves the old file or the new one, never half of one. A confidential file can be read
    by its owner only.
    """
    try:
        if not _replaceable(path):
            path.write_bytes(content)
            return
        partial = _partial(path, 0o600 if confidential else 0o666)
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # or a power cut could leave the new name without content
            partial.replace(path.resolve())
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        kind = AwayError if problem.errno in _PASSING else StorageError
        raise kind(f"cannot write {path}: {problem.strerror}") from problem


def _replaceable(path: Path) -> bool:
    """Devices and pipes are written to; replacing them would destroy them."""
    return path.is_file() or not path.exists()


def _partial(path: Path, mode: int) -> Path:
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
    partial.touch(mode=mode)
    return partial


# -- CSV files with a header -----------------------------------------------------------------------


def read_csv(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a header, as texts; errors name the line."""
    names, lines = _lines(path)
    return {name: [row[place] for _, row in lines] for place, name in enumerate(names)}


def read_numbers(path: Path) -> list[list[float]]:
    """The rows of a CSV file of numbers under a header."""
    names, lines = _lines(path)
    if all(finite_number(name) is not None for name in names):
        raise ConfigurationError(f"{path} needs a header that names its columns, got numbers")
    for number, row in lines:
        for name, cell in zip(names, row, strict=True):
            if finite_number(cell) is None:
                raise ConfigurationError(
                    f"{path}, line {number}, column {name!r}: a finite number is needed, "
                    f"got {cell!r}"
                )
    return [[float(cell) for cell in row] for _, row in lines]


def _lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the rows below it with their lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no CSV text"
        raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    lines = [(number, row) for number, row in enumerate(rows, start=1) if row]
    if len(lines) < 2:
        raise ConfigurationError(f"{path} needs a header and at least one row")
    names = lines[0][1]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigurationError(f"{path}: every column needs a name of its own, got {names}")
    for number, row in lines[1:]:
        if len(row) != len(names):
            raise ConfigurationError(
                f"{path}, line {number}: {len(names)} cells are needed, got {len(row)}"
            )
    return names, lines[1:]


def finite_number(cell: str) -> float | None:
    """A finite number, None for any other text.

    >>> finite_number("1e3"), finite_number("inf"), finite_number("x")
    (1000.0, None, None)
    """
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# -- TOML: each value is checked where it is taken -------------------------------------------------


@dataclass(frozen=True)
class Source:
    """What a file of settings was read from, to point at.

    ``thorough``: also build what the file describes, to find out whether that works.
    """

    name: str
    text: str | None
    thorough: bool = True

    def error(self, path: Keys, problem: str) -> ConfigurationError:
        """An error that says where."""
        if self.text is not None:
            return ConfigurationError(f"{self.name}, line {line_of(self.text, path)}: {problem}")
        where = ".".join(str(step) for step in path)
        return ConfigurationError(f"{self.name}, {where}: {problem}" if where else problem)


class Given:
    """A table of such a file; what nobody takes out of it is refused by :meth:`rest`."""

    def __init__(self, table: object, source: Source, path: Keys = ()) -> None:
        self.source = source
        self.path = path
        if not isinstance(table, dict):
            raise source.error(path, f"must be a table of keys and values, got {table!r}")
        self._table: dict[str, Any] = dict(table)
        self._known: list[str] = []

    def error(self, problem: str, *path: str | int) -> ConfigurationError:
        """An error in this table, at a key of it or further inside."""
        return self.source.error((*self.path, *path), problem)

    @contextmanager
    def at(self, key: str, *others: str) -> Iterator[None]:
        """Errors raised inside are those of this key, or of another that they name."""
        try:
            yield
        except (CapriError, TypeError, ValueError) as problem:
            blamed = next((each for each in others if each in str(problem)), key)
            raise self.error(str(problem), blamed) from None

    def inner(self, table: object, *path: str | int) -> "Given":
        """A table inside this one."""
        return Given(table, self.source, (*self.path, *path))

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._table

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, as it is."""
        self._known.append(key)
        return self._table.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self.take(key, default)
        if value is None:
            raise self.error(f"{key} is missing: give it a text")
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{key} must be a text, got {value!r}", key)
        return value

    def word(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of a few words."""
        value = self.take(key, default)
        if value is None:
            raise self.error(f"{key} is missing: one of {', '.join(allowed)}")
        if value not in allowed:
            raise self.error(_refusal(key, value, allowed), key)
        return str(value)

    def number(
        self, key: str, default: float | None, check: Callable[[float], bool], allowed: str
    ) -> float:
        """A number that passes a check; ``allowed`` says it in words."""
        value = self.take(key, default)
        if not _is_number(value) or not check(value):
            raise self.error(f"{key} must be {allowed}, got {value!r}", key)
        return float(value)

    def tables(self, key: str) -> "list[Given]":
        """The tables of an array, at least one."""
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.error(f"{key} is missing: give at least one [[{key}]] table")
        return [self.inner(each, key, number) for number, each in enumerate(value)]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are there."""
        return tuple(self._table)

    def only(self, allowed: Iterable[str], what: str = "key") -> None:
        """Refuse keys that are not allowed, before any value is read; ``what`` they are."""
        names = sorted(set(allowed))
        for key in self._table:
            if key not in names:
                raise self.error(_refusal(what, key, names), key)

    def rest(self, allowed: Sequence[str] = ()) -> dict[str, Any]:
        """All that was not taken; its keys must be allowed."""
        left = {key: value for key, value in self._table.items() if key not in self._known}
        for key in left:
            if key not in allowed:
                raise self.error(_refusal("key", key, [*self._known, *allowed]), key)
        self._known += left
        return left


def _refusal(what: str, value: object, allowed: Sequence[str]) -> str:
    near = get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {what} {value!r}{guess}; allowed: {', '.join(sorted(allowed))}"


def _is_number(value: Any) -> bool:
    return is_number(value) and value == value


def whole_from(least: int) -> Callable[[float], bool]:
    """Whether a number is whole and at least so large; 1e5 is whole."""
    return lambda value: math.isfinite(value) and value == int(value) and value >= least


def line_of(text: str, path: Keys) -> int:
    """The line, from 1, of the key or table that a path leads to; of the nearest one above it.

    A path has keys and, after the name of an array, positions from 0. The parser of the standard
    library does not say, so it is given ever more lines until the path is there.

    >>> text = 'name = "a"\\n[[policies]]\\nname = "uniform"\\n[[policies]]\\nname = "capri"\\n'
    >>> line_of(text, ("policies", 1, "name"))
    5
    >>> line_of(text, ("policies", 1, "model"))
    4
    """
    lines = text.replace("\r\n", "\n").split("\n")
    reached, found, start = 0, 1, 1
    for number in range(1, len(lines) + 1):
        for rest in ("", "\n]"):  # arrays may go on over several lines
            with suppress(tomllib.TOMLDecodeError):
                depth = _depth(tomllib.loads("\n".join(lines[:number]) + rest), path)
                if depth > reached:
                    reached, found = depth, start
                start = number + 1
                break
    return found


def _depth(table: Any, path: Keys) -> int:
    """How many steps of a path are there."""
    for number, step in enumerate(path):
        try:
            table = table[step]
        except (LookupError, TypeError):
            return number
    return len(path)


# -- tables, for a notebook or a terminal ----------------------------------------------------------


def text_table(rows: Sequence[Row]) -> str:
    """Columns of one width each, under their names.

    >>> print(text_table([{"epoch": 1, "noise": 0.25}, {"epoch": 10, "noise": None}]))
    epoch  noise
        1   0.25
       10      -
    """
    columns = [[name, *cells] for name, cells in _columns(rows).items()]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def html_table(rows: Sequence[Row]) -> str:
    """The same as an element, without a style of its own: a notebook brings one."""
    columns = _columns(rows)
    head, body = _html_row("th", columns), zip(*columns.values(), strict=True)
    return f"<table>{head}{''.join(_html_row('td', cells) for cells in body)}</table>"


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Cells by column; a column in which nothing is known is left out."""
    return {
        name: [in_short(row[name]) for row in rows]
        for name in rows[0]
        if any(row[name] is not None for row in rows)
    }


def in_short(value: float | str | None) -> str:
    """A number as a reader wants it: three digits, or all of a whole number."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3g}"
        case int():
            return f"{value:,}"
    return value
