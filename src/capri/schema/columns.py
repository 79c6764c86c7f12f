"""What a column may hold, and the numbers its cells become. No cell is ever refused.

    numeric       (x - low) / (high - low), clipped to [0, 1]
    boolean       0 or 1
    categorical   an indicator for each level, and one for all levels that were not declared

What a missing cell means is declared with its column, by ``missing=``:

    None          numeric and boolean: not expected. The row is no row of numbers, so the visit is
                  played by the default law and counts for nothing. Categorical: a level that was
                  not declared, as any other
    "own"         a value of its own: one more indicator
    a value       stands for it

A number or a truth value of its own lies in the middle, 1/2, and one step aside: as far from either
end. Infinity is beyond the range, hence at its end; anything that is no number is a missing one.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite, isnan, nan
from typing import Any, ClassVar, Final, final

import numpy as np

from capri.arrays import FloatArray
from capri.cells import Cells, as_numbers, is_missing, number_or_missing, plain
from capri.checks import is_number, is_whole
from capri.errors import ConfigurationError

Level = str | int

OWN: Final = "own"
# Longer names make headers that devices refuse; numbers beyond are not exact as floats.
LONGEST_NAME = 200
_LARGEST_LEVEL = 1 << 53
# More levels than this are rather names or free text, and each is a number of every row.
MOST_LEVELS = 100


@final
class _Unknown:
    """A level that was not declared."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


class Column(ABC):
    """One column by its name. Frozen, and a few numbers wide in a row."""

    name: str
    kind: ClassVar[str]

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """A name for each of its numbers in a row."""

    @abstractmethod
    def encode(self, cells: Cells) -> FloatArray:
        """The numbers of each cell, ``(n, width)``."""

    @abstractmethod
    def encode_one(self, cell: object) -> list[float]:
        """The numbers of a single cell, the same to the last bit."""

    @abstractmethod
    def decode(self, numbers: FloatArray) -> object:
        """The value that these numbers stand for; None for a missing one."""

    @property
    def width(self) -> int:
        """How many numbers of a row it takes."""
        return len(self.features)

    def to_dict(self) -> dict[str, Any]:
        """A description that JSON can hold."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        listed = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return {"kind": self.kind, **listed}


def _checked_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        shown = name[:40] + "..." if isinstance(name, str) and len(name) > 40 else name
        raise ConfigurationError(
            f"a column needs a name of 1 to {LONGEST_NAME} characters, got {shown!r}"
        )


def _bad_missing(column: Column, allowed: str, given: object) -> ConfigurationError:
    return ConfigurationError(
        f"column {column.name!r}: missing must be None, 'own' or {allowed}, got {given!r}"
    )


class _OnALine(ABC):
    """A column of one number in [0, 1], and perhaps an indicator of what is missing."""

    name: str
    missing: Any

    @property
    def features(self) -> tuple[str, ...]:
        """Its name, and that of what is missing."""
        own = (f"{self.name} is missing",) if self.missing == OWN else ()
        return (self.name, *own)

    @property
    @abstractmethod
    def _default(self) -> float:
        """The number in [0, 1] that stands for a missing one; NaN where none does."""

    @abstractmethod
    def _scaled(self, cells: Cells) -> FloatArray:
        """A number in [0, 1] for each cell, NaN where it is missing."""

    @abstractmethod
    def _scaled_one(self, number: float) -> float:
        """The same for one number."""

    def encode(self, cells: Cells) -> FloatArray:
        """A number in [0, 1] and, where it is declared, whether it is missing."""
        values = self._scaled(cells)
        missing = np.isnan(values)
        values = np.where(missing, self._default, values)
        return np.stack([values, missing], axis=1) if self.missing == OWN else values[:, None]

    def encode_one(self, cell: object) -> list[float]:
        """The same for one cell."""
        value = self._scaled_one(number_or_missing(cell))
        missing = isnan(value)
        number = self._default if missing else value
        return [number, float(missing)] if self.missing == OWN else [number]


@final
@dataclass(frozen=True)
class Numeric(_OnALine, Column):
    """A number with a public range: ``low`` becomes 0 and ``high`` 1.

    What lies beyond is clipped. The kernel, its lengthscale and the basis are chosen for the range;
    far outside of it a kernel is 0, and nothing that was learnt would apply. At the end of the
    range a row shares what its nearest neighbours taught.

    >>> Numeric("age", 0, 100, missing=40).encode([25, 250, None]).ravel()
    array([0.25, 1.  , 0.4 ])
    """

    name: str
    low: float
    high: float
    missing: float | str | None = None
    kind: ClassVar[str] = "numeric"

    def __post_init__(self) -> None:
        _checked_name(self.name)
        for end in ("low", "high"):
            value = getattr(self, end)
            if not is_number(value) or not isfinite(value):
                raise ConfigurationError(
                    f"column {self.name!r}: {end} must be a finite number, got {value!r}"
                )
            object.__setattr__(self, end, float(value))
        if not 0 < self.high - self.low < float("inf"):
            raise ConfigurationError(
                f"column {self.name!r}: low must be below high, got {self.low:g} and {self.high:g}"
            )
        if self.missing is None or self.missing == OWN:
            return
        if not is_number(self.missing) or not self.low <= float(self.missing) <= self.high:
            raise _bad_missing(self, "a number of its range", self.missing)
        object.__setattr__(self, "missing", float(self.missing))

    @property
    def _default(self) -> float:
        if self.missing is None:
            return nan
        return 0.5 if self.missing == OWN else self._scaled_one(float(self.missing))

    def _scaled(self, cells: Cells) -> FloatArray:
        with np.errstate(all="ignore"):
            scaled = (as_numbers(cells) - self.low) / (self.high - self.low)
            return np.asarray(np.clip(scaled, 0.0, 1.0))

    def _scaled_one(self, number: float) -> float:
        scaled = (number - self.low) / (self.high - self.low)
        return scaled if isnan(scaled) else min(max(scaled, 0.0), 1.0)

    def decode(self, numbers: FloatArray) -> float | None:
        """The number in its range."""
        if len(numbers) == 2 and numbers[1] > 0.5:
            return None
        return self.low + float(numbers[0]) * (self.high - self.low)


@final
@dataclass(frozen=True)
class Boolean(_OnALine, Column):
    """True or False, also written 1 or 0. Any other cell is a missing one.

    >>> Boolean("member", missing="own").encode([True, 0, None]).tolist()
    [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
    """

    name: str
    missing: bool | str | None = None
    kind: ClassVar[str] = "boolean"

    def __post_init__(self) -> None:
        _checked_name(self.name)
        if not (self.missing is None or self.missing == OWN or isinstance(self.missing, bool)):
            raise _bad_missing(self, "True or False", self.missing)

    @property
    def _default(self) -> float:
        if self.missing is None:
            return nan
        return 0.5 if self.missing == OWN else float(self.missing)

    def _scaled(self, cells: Cells) -> FloatArray:
        numbers = as_numbers(cells)
        return np.where((numbers == 0.0) | (numbers == 1.0), numbers, nan)

    def _scaled_one(self, number: float) -> float:
        return number if number in (0.0, 1.0) else nan

    def decode(self, numbers: FloatArray) -> bool | None:
        """True or False."""
        return None if len(numbers) == 2 and numbers[1] > 0.5 else bool(numbers[0] > 0.5)


@final
@dataclass(frozen=True)
class Categorical(Column):
    """One of a few public levels, texts or whole numbers; any other is a value of its own.

    >>> Categorical("plan", ["free", "pro"]).encode(["pro", "gold", None]).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """

    name: str
    levels: tuple[Level, ...]
    missing: Level | None = None
    kind: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        _checked_name(self.name)
        if isinstance(self.levels, str) or not isinstance(self.levels, Sequence):
            raise ConfigurationError(
                f"column {self.name!r}: levels must be a list of texts or whole numbers, "
                f"got {type(self.levels).__name__}"
            )
        levels = tuple(int(each) if is_whole(each) else each for each in self.levels)
        for level in levels:
            fits = isinstance(level, str) and len(level) <= LONGEST_NAME
            if not fits and not (is_whole(level) and abs(level) <= _LARGEST_LEVEL):  # type: ignore[arg-type]
                raise ConfigurationError(
                    f"column {self.name!r}: a level must be a text of at most {LONGEST_NAME} "
                    f"characters or a whole number up to 2^53, got {type(level).__name__}"
                )
        if not levels or len(set(levels)) < len(levels):
            raise ConfigurationError(
                f"column {self.name!r}: levels must be at least one, each once, got {len(levels)}"
            )
        object.__setattr__(self, "levels", levels)
        if (
            self.missing is not None
            and self.missing != OWN
            and (isinstance(self.missing, bool) or self.missing not in levels)
        ):
            raise _bad_missing(self, "one of the levels", self.missing)
        if self.missing == OWN and OWN in levels:
            raise ConfigurationError(
                f"column {self.name!r}: the level 'own' cannot be told from missing='own': "
                "call the level something else"
            )

    @property
    def features(self) -> tuple[str, ...]:
        """One for each level, then what is unknown, and perhaps what is missing."""
        own = (f"{self.name} is missing",) if self.missing == OWN else ()
        return (
            *(f"{self.name} = {level}" for level in self.levels),
            f"{self.name} is unknown",
            *own,
        )

    def encode(self, cells: Cells) -> FloatArray:
        """Indicators: a single 1 in each row."""
        listed = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
        place: dict[object, int] = {level: number for number, level in enumerate(self.levels)}
        unknown = len(self.levels)
        place[None] = self._missing_place
        places = [place.get(plain(cell, UNKNOWN), unknown) for cell in listed]
        return np.eye(self._width)[np.array(places, dtype=np.int64)]

    def encode_one(self, cell: object) -> list[float]:
        """The same for one cell, which is compared with every level, found or not.

        A dictionary takes longer for levels whose hashes collide, and whoever writes the levels
        could choose some that do and read a level off the time.
        """
        known = plain(cell, UNKNOWN)
        if known is None and self.missing not in (None, OWN):
            known = self.missing
        row = [float(level == known) for level in self.levels]
        missing = float(known is None and self.missing == OWN)
        row.append(1.0 - sum(row) - missing)
        return [*row, missing] if self.missing == OWN else row

    @property
    def _width(self) -> int:
        return len(self.levels) + 1 + (self.missing == OWN)

    @property
    def _missing_place(self) -> int:
        if self.missing is None:
            return len(self.levels)
        return len(self.levels) + 1 if self.missing == OWN else self.levels.index(self.missing)

    def decode(self, numbers: FloatArray) -> object:
        """The level, None for a missing one, ``UNKNOWN`` for one that was not declared."""
        place = int(np.argmax(numbers))
        if place < len(self.levels):
            return self.levels[place]
        return UNKNOWN if place == len(self.levels) else None


KINDS: Final[dict[str, type[Column]]] = {
    kind.kind: kind for kind in (Numeric, Categorical, Boolean)
}


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
