"""Files in TOML: each value is checked where it is taken, and errors name its line."""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from capri.checks import is_number
from capri.errors import CapriError, ConfigurationError

Path = tuple[str | int, ...]
Table = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """What a study was read from, to point at.

    ``thorough``: also build what the study describes, to find out whether that works.
    """

    name: str
    text: str | None
    thorough: bool = True

    def error(self, path: Path, problem: str) -> ConfigurationError:
        """An error that says where."""
        if self.text is not None:
            return ConfigurationError(f"{self.name}, line {line_of(self.text, path)}: {problem}")
        where = ".".join(str(step) for step in path)
        return ConfigurationError(f"{self.name}, {where}: {problem}" if where else problem)


class Given:
    """A table of a study; what nobody takes out of it is refused by :meth:`rest`."""

    def __init__(self, table: object, source: Source, path: Path = ()) -> None:
        self.source = source
        self.path = path
        if not isinstance(table, dict):
            raise source.error(path, f"must be a table of keys and values, got {table!r}")
        self._table: Table = dict(table)
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

    def several(
        self, key: str, default: Any, check: Callable[[Any], bool], allowed: str
    ) -> list[Any]:
        """One value or a list of different ones, each of which passes a check."""
        value = self.take(key, default)
        values = list(value) if isinstance(value, list | tuple | range) else [value]
        for each in values:
            if not _is_number(each) or not check(each):
                raise self.error(f"{key} must be {allowed}, got {each!r}", key)
        if not values or len(set(values)) < len(values):
            raise self.error(f"{key} must be different numbers, at least one, got {value!r}", key)
        return values

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

    def rest(self, allowed: Sequence[str] = ()) -> Table:
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


def is_whole(least: int) -> Callable[[float], bool]:
    """Whether a number is whole and at least so large; 1e5 is whole."""
    return lambda value: math.isfinite(value) and value == int(value) and value >= least


def line_of(text: str, path: Path) -> int:
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


def _depth(table: Any, path: Path) -> int:
    """How many steps of a path are there."""
    for number, step in enumerate(path):
        try:
            table = table[step]
        except (LookupError, TypeError):
            return number
    return len(path)
