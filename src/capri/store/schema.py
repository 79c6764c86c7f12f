"""The schema of a store: one SQL file a kind of database, and the number by which it is known.

The table ``capri_schema`` holds one row, the number. A database of another number is refused: this
release does not know what its columns mean.
"""

from importlib.resources import files

from capri.errors import StorageError
from capri.store.transaction import Transaction

VERSION = 3
VERSION_TABLE = "capri_schema"


def statements(kind: str) -> list[str]:
    """All that makes an empty database of this kind a store.

    Statements end with a semicolon at the end of a line; comments are for readers.
    """
    text = (files("capri.store") / "sql" / f"{kind}.sql").read_text()
    lines = (line.split("--")[0].rstrip() for line in text.splitlines())
    parts = "\n".join(line for line in lines if line).split(";\n")
    return [part.strip().removesuffix(";") for part in parts if part.strip()]


def check_version(version: int, name: str) -> None:
    """Refuse a database of another release; 0 is an empty one."""
    if version not in (0, VERSION):
        raise StorageError(
            f"{name} has schema version {version}, this release knows version {VERSION}: open it "
            "with the release that wrote it, or build the policy in a new store. Nothing was "
            "changed"
        )


def create_schema(transaction: Transaction, kind: str, version: int, name: str) -> None:
    """Make the tables where there are none yet."""
    check_version(version, name)
    if version == 0:
        transaction.run(f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)")
        transaction.run(f"INSERT INTO {VERSION_TABLE} (version) VALUES ({VERSION})")
        for statement in statements(kind):
            transaction.run(statement)
