"""The tables of the store by name: their columns in order, and which of these is the key."""

from typing import NamedTuple


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


_NUMBER, _TEXT, _BYTES, _TIME = "bigint", "text", "bytea", "double precision"

# Kinds are named as Postgres does: it wants to know them for arrays of rows.
TABLES = {
    "policy": Table(
        {
            "id": _NUMBER,
            "line": _TEXT,
            "configuration": _BYTES,
            "secret": _BYTES,
        },
        ("id",),
    ),
    "streams": Table({"id": _NUMBER, "state": _BYTES}, ("id",)),
    "counter": Table({"id": _NUMBER, "issued": _NUMBER, "generation": _NUMBER}, ("id",)),
    "history": Table({"generation": _NUMBER, "digest": _TEXT}, ("generation",)),
    "laws": Table({"generation": _NUMBER, "state": _BYTES}, ("generation",)),
    "catalogues": Table({"version": _NUMBER, "epoch": _NUMBER, "actions": _BYTES}, ("version",)),
    "operations": Table(
        {"generation": _NUMBER, "made": _TIME, "kind": _TEXT, "record": _BYTES}, ("generation",)
    ),
    "epochs": Table(
        {
            "number": _NUMBER,
            "first": _NUMBER,
            "length": _NUMBER,
            "state": _TEXT,
            "last": _NUMBER,
            "began": _TIME,
            "filled": _TIME,
            "closes": _NUMBER,
            "closes_at": _TIME,
            "due": _TIME,
            "plan": _BYTES,
            "released": _NUMBER,
            "release": _BYTES,
            "missed": _NUMBER,
        },
        ("number",),
    ),
    "segments": Table(
        {
            "epoch": _NUMBER,
            "number": _NUMBER,
            "first": _NUMBER,
            "law": _NUMBER,
            "segment": _BYTES,
        },
        ("epoch", "number"),
    ),
    "decisions": Table({"number": _NUMBER, "secret": _BYTES}, ("number",)),
    "rewards": Table({"number": _NUMBER, "secret": _BYTES}, ("number",)),
    "draws": Table({"number": _NUMBER, "secret": _BYTES}, ("number",)),
    "keys": Table(
        {
            "digest": _TEXT,
            "number": _NUMBER,
            "epoch": _NUMBER,
            "expires": _TIME,
            "secret": _BYTES,
        },
        ("digest",),
    ),
    "users": Table({"digest": _TEXT, "total": _NUMBER}, ("digest",)),
    "visits": Table({"digest": _TEXT, "epoch": _NUMBER, "visits": _NUMBER}, ("digest", "epoch")),
}
