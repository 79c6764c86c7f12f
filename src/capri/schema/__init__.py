"""Named columns: what contexts and actions are called, and the rows of numbers they become.

>>> schema = Schema([Numeric("age", 18, 98), Categorical("plan", ["free", "pro"])])
>>> schema.row({"age": 58, "plan": "pro"})
array([0.5, 0. , 1. , 0. ])
>>> schema.describe(schema.row({"age": 58, "plan": "gold"}))
{'age': 58.0, 'plan': UNKNOWN}

Ranges alone serve too: rows that fill public ranges are contexts for those who have no public rows.
They fill them evenly, by the additive recurrence ``u_n = (1/2 + n a) mod 1`` with ``a_j = g^-j``
and ``g`` the positive root of ``g^(d+1) = g + 1``: the same rows for everybody, without a draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Final, Self, final

import numpy as np

from capri.arrays import FloatArray
from capri.cells import (
    Cells,
    as_number_rows,
    as_numbers,
    cells_of,
    is_list,
    is_row,
    is_table,
    names_of,
    of_rows,
)
from capri.checks import is_number
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.schema.columns import (
    KINDS,
    OWN,
    UNKNOWN,
    Boolean,
    Categorical,
    Column,
    Numeric,
    inferred,
)

__all__ = ["UNKNOWN", "Boolean", "Categorical", "Column", "Numeric", "Schema"]

FORMAT: Final = "capri-schema"
VERSION: Final = 1


@final
@dataclass(frozen=True)
class Schema:
    """Columns by name, in order. Public, like all that is declared before the first user.

    ``row`` and ``rows`` turn what users bring into numbers. Names and shapes are public: a column
    that is declared and not there is refused, by its name. Cells are private: none is refused, or
    shown, or moves another's.

    >>> from capri.schema import Boolean, Numeric
    >>> schema = Schema([Numeric("age", 0, 100), Boolean("member")])
    >>> schema.rows([{"age": 25, "member": True}, {"age": 1e9, "member": False}])
    array([[0.25, 1.  ],
           [1.  , 0.  ]])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        given = self.columns
        if not isinstance(given, Sequence) or not all(isinstance(each, Column) for each in given):
            raise ConfigurationError(
                "a schema is a list of columns: Numeric, Categorical or Boolean"
            )
        names = [column.name for column in given]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(
                f"a schema needs at least one column, each name once, got {names}"
            )
        object.__setattr__(self, "columns", tuple(given))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """A name for every number of a row."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        return sum(column.width for column in self.columns)

    def places(self, name: str) -> tuple[int, ...]:
        """Which numbers of a row belong to a column.

        >>> from capri.schema import Categorical, Numeric
        >>> Schema([Numeric("age", 0, 100), Categorical("plan", ["free"])]).places("plan")
        (1, 2)
        """
        start = 0
        for column in self.columns:
            if column.name == name:
                return tuple(range(start, start + column.width))
            start += column.width
        raise ConfigurationError(f"no column {name!r}: there are {', '.join(self.names)}")

    def row(self, values: object) -> FloatArray:
        """One row by name as numbers, ``(dimension,)``; a level is compared with every other."""
        if not is_row(values):
            raise DataError(
                f"a row must be a mapping with {', '.join(self.names)}, got {type(values).__name__}"
            )
        cells = of_rows([values], self.names)
        numbers: list[float] = []
        for column, (cell,) in zip(self.columns, cells, strict=True):
            numbers += column.encode_one(cell)
        return np.array(numbers)

    def rows(self, table: object) -> FloatArray:
        """A table as rows of numbers, ``(n, dimension)``.

        A data frame, a list of mappings, a mapping of columns, an array with named fields; or a
        matrix of numbers that are rows already. NaN where a missing value was not expected, and in
        all of a row that is none among others. A mapping that lacks what others have misses it.
        """
        if not is_list(table):
            if is_table(table):
                return self._encoded(cells_of(table, self.names))
            return self._as_made(as_numbers(table))
        named = np.array([is_row(row) for row in table], dtype=np.bool_)
        unnamed = [None if own else row for own, row in zip(named, table, strict=True)]
        rows = as_number_rows(unnamed, self.dimension)
        if not named.any():
            return self._as_made(rows)
        if rows.shape[1] != self.dimension:
            rows = np.full((len(rows), self.dimension), np.nan)
        mappings = [row for own, row in zip(named, table, strict=True) if own]
        # A column that nobody has is refused, unless rows of numbers are there that fit.
        most = len(mappings) - bool(np.isnan(rows).all())
        rows[named] = self._encoded(of_rows(mappings, self.names, most))
        return rows

    def _encoded(self, cells: list[Cells]) -> FloatArray:
        """The numbers of columns by their cells."""
        parts = [column.encode(each) for column, each in zip(self.columns, cells, strict=True)]
        return np.concatenate(parts, axis=1)

    def _as_made(self, rows: FloatArray) -> FloatArray:
        """Rows of numbers that this schema could have made, by their shape."""
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise ShapeError(
                "rows must be a table with named columns, or numbers of shape "
                f"(n, {self.dimension}), as this schema makes them, got {rows.shape}"
            )
        return rows

    def encoded(self, values: object, *, single: bool = False) -> object:
        """A table by name, or a ``single`` row, as numbers; what has no names as it is."""
        if single and is_row(values):
            return self.row(values)
        if single and is_list(values):  # of numbers, whatever is in it
            return values
        return self.rows(values) if is_table(values) else values

    def describe(self, row: object) -> dict[str, object]:
        """What a row of numbers says, by name: the inverse of :meth:`row` up to rounding.

        None where a value is missing, ``UNKNOWN`` for a level that was not declared; a number
        beyond the range comes back as its end.
        """
        numbers = as_numbers(row).ravel()
        if len(numbers) != self.dimension:
            raise ShapeError(f"a row must have {self.dimension} numbers, got {len(numbers)}")
        found: dict[str, object] = {}
        start = 0
        for column in self.columns:
            part = numbers[start : start + column.width]
            found[column.name] = None if np.isnan(part).any() else column.decode(part)
            start += column.width
        return found

    def to_dict(self) -> dict[str, Any]:
        """A description that JSON can hold; ``from_dict`` reads it back."""
        columns = [column.to_dict() for column in self.columns]
        return {"format": FORMAT, "version": VERSION, "columns": columns}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """The schema that :meth:`to_dict` described."""
        if not isinstance(description, Mapping) or description.get("format") != FORMAT:
            raise ConfigurationError("this is not the description of a schema")
        version = description.get("version")
        if isinstance(version, bool) or version != VERSION:
            raise ConfigurationError(
                f"the schema has format version {version!r}, this release reads version {VERSION}: "
                "install a newer release to read it"
            )
        listed = description.get("columns")
        if not isinstance(listed, list):
            raise ConfigurationError("the description of a schema lists its columns")
        return cls(tuple(_column(each) for each in listed))

    @classmethod
    def from_frame(cls, public_rows: object) -> Self:
        """Columns inferred from **public** rows: what is inferred is published with the policy.

        Truth values become :class:`Boolean`, numbers :class:`Numeric` with their range, texts
        :class:`Categorical` with their levels; where a cell is missing, that is a value of its own.

        >>> Schema.from_frame({"plan": ["pro", "free", "pro"], "age": [20, 70, None]}).columns
        (Categorical(name='plan', levels=('free', 'pro'), missing=None), \
Numeric(name='age', low=20.0, high=70.0, missing='own'))
        """
        if not is_table(public_rows):
            raise ConfigurationError(
                "a schema is inferred from a table with named columns: a data frame, mappings or "
                f"an array with named fields, got {type(public_rows).__name__}"
            )
        names = names_of(public_rows)
        cells = cells_of(public_rows, names)
        return cls(tuple(inferred(name, each) for name, each in zip(names, cells, strict=True)))


def _column(description: Any) -> Column:
    """One column from its description, with every field known and none left out."""
    kind = KINDS.get(str(description.get("kind"))) if isinstance(description, Mapping) else None
    if kind is None:
        raise ConfigurationError(f"the kind of a column must be one of {', '.join(KINDS)}")
    values = {key: value for key, value in description.items() if key != "kind"}
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    lacking = [key for key in known if key not in values and known[key].default is MISSING]
    if lacking or not set(values) <= set(known):
        raise ConfigurationError(
            f"a {kind.kind} column has the fields {', '.join(known)}: "
            "the description may come from a newer version"
        )
    return kind(**values)


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


# Of the cells of a column in which a missing one is a value of its own, those that are missing.
_GAPS = 0.1


def _cells(column: Column, shares: FloatArray) -> list[Any]:
    """What a column holds at these shares: levels take turns, numbers fill their range."""
    assert isinstance(column, Numeric | Boolean | Categorical)
    if column.missing == OWN:
        present = (shares[shares >= _GAPS] - _GAPS) / (1 - _GAPS)
        known = iter(_cells(replace(column, missing=None), present))
        return [None if share < _GAPS else next(known) for share in shares]
    if isinstance(column, Numeric):
        return [float(each) for each in column.low + (column.high - column.low) * shares]
    if isinstance(column, Categorical):
        return [column.levels[int(share * len(column.levels))] for share in shares]
    return [bool(share >= 0.5) for share in shares]
