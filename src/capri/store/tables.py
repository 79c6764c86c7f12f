"""The tables of a store, by its one schema for both kinds of databases, and a unit of work on them.

The table ``capri_schema`` holds one row, the number. A database of another number is refused: this
release does not know what its columns mean.
"""

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from capri.store.memory import MemoryUnit
    from capri.store.transaction import Transaction

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
# One unit of work: public rows of these tables, and what is held until its end.
Unit: TypeAlias = "MemoryUnit | Transaction"
