"""The schema of a store: tables and code agree, and a store of another number is refused."""

import sqlite3
from pathlib import Path

import pytest

from capri import Capri, StorageError
from capri.store.tables import TABLES, VERSION, statements
from capri.store.transaction import Transaction, open_database
from stored_policies import policy


def test_every_table_of_the_code_is_in_the_schema_and_the_other_way_round(tmp_path: Path) -> None:
    for kind in ("sqlite", "postgres"):
        made = {line.split()[2] for line in statements(kind) if line.startswith("CREATE TABLE")}
        assert made - {"writers"} == set(TABLES)
    database = open_database(f"sqlite:///{tmp_path}/new.db")

    def columns(transaction: Transaction) -> dict[str, list[str]]:
        return {
            name: [row[1] for row in transaction.rows(f"PRAGMA table_info({name})")]
            for name in TABLES
        }

    found = database.read(columns)
    database.close()
    assert found == {name: list(table.columns) for name, table in TABLES.items()}


@pytest.mark.parametrize("version", [1, 2, VERSION + 1])
def test_a_store_of_another_schema_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    file = tmp_path / "store.db"
    policy(f"sqlite:///{file}").close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE capri_schema SET version = ?", (version,))
    connection.close()
    before = file.read_bytes()
    for opened in (lambda: Capri.open(f"sqlite:///{file}"), lambda: policy(f"sqlite:///{file}")):
        with pytest.raises(StorageError, match=f"schema version {version}, this release knows"):
            opened()
    assert file.read_bytes() == before
