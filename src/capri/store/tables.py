"""The tables of a store, by its one schema for both kinds of databases, and a unit of work on them.

The table ``capri_schema`` holds one row, the number. A database of another number is refused: this
release does not know what its columns mean.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

VERSION = 5
VERSION_TABLE = "capri_schema"
_TEXT = (files("capri.store") / "sql" / "schema.sql").read_text()
_WRITERS = "writers"  # SQLite has one writer and needs no such table
# What SQLite calls the kinds of columns; tables that are found by a text have no other number.
_SQLITE = {"BIGINT": "INTEGER", "BYTEA": "BLOB", "DOUBLE PRECISION": "REAL"}
_BY_TEXT = ("keys", "users", "visits")


class Table(NamedTuple):
    """Columns of a table with their kinds, and the columns of its primary key."""

    columns: dict[str, str]
    key: tuple[str, ...]

    def insert(self, name: str, rows: int = 1) -> str:
        """The statement that adds one row, or so many."""
        marks = f"({', '.join('?' * len(self.columns))})"
        return f"INSERT INTO {name} ({', '.join(self.columns)}) VALUES {', '.join([marks] * rows)}"

    def on_conflict(self) -> str:
        """What leaves out rows whose key is there."""
        return f" ON CONFLICT ({', '.join(self.key)}) DO NOTHING"


def statements(kind: str) -> list[str]:
    """All that makes an empty database of this kind a store.

    Statements end with a semicolon at the end of a line; comments are for readers.
    """
    lines = (line.split("--")[0].rstrip() for line in _TEXT.splitlines())
    parts = "\n".join(line for line in lines if line).split(";\n")
    found = [part.strip().removesuffix(";") for part in parts if part.strip()]
    return found if kind == "postgres" else [_for_sqlite(each) for each in found if _kept(each)]


def _kept(statement: str) -> bool:
    return _name(statement) != _WRITERS


def _name(statement: str) -> str:
    return statement.split()[2]


def _for_sqlite(statement: str) -> str:
    for ours, theirs in _SQLITE.items():
        statement = statement.replace(ours, theirs)
    if not statement.startswith("CREATE TABLE"):
        return statement
    return f"{statement} STRICT{', WITHOUT ROWID' if _name(statement) in _BY_TEXT else ''}"


def _table(statement: str) -> Table:
    """Columns by the lines that declare them, each indented by four."""
    declared = re.findall(r"^ {4}(\w+) (BIGINT|TEXT|BYTEA|DOUBLE PRECISION)\b", statement, re.M)
    one = re.search(r"(\w+) \w+ PRIMARY KEY", statement)
    several = re.search(r"PRIMARY KEY \((.*)\)", statement)
    key = [one[1]] if one else several[1].split(", ") if several else []
    return Table({name: kind.lower() for name, kind in declared}, tuple(key))


# The tables by name, in an order in which they can be filled.
TABLES = {
    _name(each): _table(each)
    for each in statements("postgres")
    if each.startswith("CREATE TABLE") and _kept(each)
}

Row = tuple[Any, ...]


class Unit(Protocol):
    """One unit of work: public rows of :data:`~capri.store.tables.TABLES`, and what is held.

    ``where``: columns that have this value, or one of a tuple.
    """

    def select(self, table: str, columns: Sequence[str], **where: Any) -> list[Row]:
        """These columns of some rows, in the order of their keys."""

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """New rows, with a value for every column in the order of the table."""

    def update(self, table: str, values: Mapping[str, Any], **where: Any) -> int:
        """Give some rows these values; how many there were."""

    def delete(self, table: str, **where: Any) -> None:
        """Delete rows that anybody may read: there is nothing to overwrite."""

    def counter(self) -> tuple[int, int]:
        """Slots handed out, and the generation."""

    def set_counter(self, name: str, value: int) -> None:
        """So many are ``issued``, or this is the ``generation``."""

    def lock(self) -> tuple[int, int]:
        """The counter, which stays so until the end of the unit."""

    def join_epochs(self, epochs: Sequence[int]) -> tuple[int, int]:
        """Hold epochs as they are until the end of the unit, together with others.

        Returns the counter, as it is once that is so. Give epochs in order.
        """

    def hold_epoch(self, epoch: int) -> None:
        """Hold an epoch alone until the end of the unit, after all who joined it."""
