"""Reading a study: each value is checked where it is taken, and errors name its line."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from capri.errors import CapriError, ConfigurationError
from capri.experiments.lines import Path, line_of

Table = dict[str, Any]


class Source:
    """What a study was read from, to point at."""

    def __init__(self, name: str, text: str | None, *, thorough: bool = True) -> None:
        """``thorough``: also build what the study describes, to find out whether that works."""
        self.name = name
        self.text = text
        self.thorough = thorough

    def error(self, path: Path, problem: str) -> ConfigurationError:
        """An error that says where."""
        if self.text is not None:
            return ConfigurationError(f"{self.name}, line {line_of(self.text, path)}: {problem}")
        where = ".".join(str(step) for step in path)
        return ConfigurationError(f"{self.name}, {where}: {problem}" if where else problem)


class Given:
    """A table of a study; what nobody takes out of it is refused by :meth:`done`."""

    def __init__(self, table: object, source: Source, path: Path = ()) -> None:
        self._source = source
        self.path = path
        if not isinstance(table, dict):
            raise source.error(path, f"must be a table of keys and values, got {table!r}")
        self._table: Table = dict(table)
        self._known: list[str] = []

    def error(self, key: str, problem: str) -> ConfigurationError:
        """An error at a key of this table."""
        return self._source.error((*self.path, key), problem)

    def error_at(self, path: Path, problem: str) -> ConfigurationError:
        """An error further inside."""
        return self._source.error((*self.path, *path), problem)

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        """Errors of the package, raised inside, are those of this key."""
        try:
            yield
        except CapriError as problem:
            raise self.error(key, str(problem)) from None

    @property
    def thorough(self) -> bool:
        """Whether values are tried out, not just looked at."""
        return self._source.thorough

    def inner(self, key: str, table: object) -> "Given":
        """A table inside this one."""
        return Given(table, self._source, (*self.path, key))

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._table

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, as it is."""
        self._known.append(key)
        return self._table.get(key, default)

    def give_back(self, key: str) -> None:
        """Let somebody else take the key."""
        self._known = [each for each in self._known if each != key]

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self.take(key, default)
        if value is None:
            raise self._source.error(self.path, f"{key} is missing: give it a text")
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"{key} must be a text, got {value!r}")
        return value

    def word(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of a few words."""
        value = self.take(key, default)
        if value is None:
            raise self._source.error(self.path, f"{key} is missing: one of {', '.join(allowed)}")
        if value not in allowed:
            raise self.error(key, _refusal(key, value, allowed))
        return str(value)

    def number(
        self, key: str, default: float | None, check: Callable[[float], bool], allowed: str
    ) -> float:
        """A number that passes a check; ``allowed`` says it in words."""
        value = self.take(key, default)
        if not _is_number(value) or not check(value):
            raise self.error(key, f"{key} must be {allowed}, got {value!r}")
        return float(value)

    def several(
        self, key: str, default: Any, check: Callable[[Any], bool], allowed: str
    ) -> list[Any]:
        """One value or a list of different ones, each of which passes a check."""
        value = self.take(key, default)
        values = list(value) if isinstance(value, list | tuple | range) else [value]
        for each in values:
            if not _is_number(each) or not check(each):
                raise self.error(key, f"{key} must be {allowed}, got {each!r}")
        if not values or len(set(values)) < len(values):
            raise self.error(key, f"{key} must be different numbers, at least one, got {value!r}")
        return values

    def tables(self, key: str) -> "list[Given]":
        """The tables of an array, at least one."""
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self._source.error(
                self.path, f"{key} is missing: give at least one [[{key}]] table"
            )
        return [
            Given(each, self._source, (*self.path, key, number))
            for number, each in enumerate(value)
        ]

    def only(self, allowed: Iterable[str]) -> None:
        """Refuse keys that are not allowed, before any value is read."""
        names = sorted(set(allowed))
        for key in self._table:
            if key not in names:
                raise self.error(key, _refusal("key", key, names))

    def rest(self, allowed: Sequence[str]) -> Table:
        """All that was not taken; its keys must be allowed."""
        left = {key: value for key, value in self._table.items() if key not in self._known}
        for key in left:
            if key not in allowed:
                raise self.error(key, _refusal("key", key, [*self._known, *allowed]))
        self._known += left
        return left

    def done(self) -> None:
        """Refuse what nobody asked for."""
        self.rest(())


def _refusal(what: str, value: object, allowed: Sequence[str]) -> str:
    near = get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {what} {value!r}{guess}; allowed: {', '.join(sorted(allowed))}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_whole(least: int) -> Callable[[float], bool]:
    """Whether a number is whole and at least so large; 1e5 is whole."""
    return lambda value: math.isfinite(value) and value == int(value) and value >= least
