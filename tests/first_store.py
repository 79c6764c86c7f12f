"""A store of the first schema, with people's data in it.

``store/fixtures/0001.sql.gz`` is a dump of a file that the first release with stores made: two
released epochs, one under way with seven decisions, three of whose rewards are still to come.
"""

import gzip
import sqlite3
from pathlib import Path

from capri.store.migrations import scripts
from capri.store.tables import TABLES

DUMP = Path(__file__).parent / "store" / "fixtures" / "0001.sql.gz"
NEW_TABLES = ("catalogues", "operations")


def first_schema(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file)
    connection.executescript(gzip.decompress(DUMP.read_bytes()).decode())
    assert connection.execute("SELECT version FROM capri_schema").fetchall() == [(1,)]
    return connection


def on_a_server(url: str, source: sqlite3.Connection) -> None:
    """The same rows under the first schema of the other kind."""
    import psycopg

    with psycopg.connect(url) as server:
        server.execute("CREATE TABLE capri_schema (version INTEGER NOT NULL)")
        server.execute("INSERT INTO capri_schema VALUES (1)")
        for statement in scripts("postgres")[0]:
            server.execute(statement)
        for name, table in TABLES.items():
            if name in NEW_TABLES:
                continue
            marks = ", ".join(["%s"] * len(table.columns))
            columns = ", ".join(table.columns)
            for row in source.execute(f"SELECT {columns} FROM {name}"):
                server.execute(f"INSERT INTO {name} ({columns}) VALUES ({marks})", row)
