"""Numbered SQL files that bring a database to the version of this release, each in one transaction.

The table ``capri_schema`` holds one row, the number of the last file that was run. A database of a
newer release is refused: this one does not know what its columns mean.
"""

from importlib.resources import files

from capri.errors import StorageError
from capri.store.transaction import Transaction

VERSION_TABLE = "capri_schema"


def scripts(kind: str) -> list[list[str]]:
    """Statements of each file for this kind of database, in order."""
    folder = files("capri.store") / "sql" / kind
    texts = sorted(
        (entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")
    )
    return [_statements(text) for _, text in texts]


def _statements(text: str) -> list[str]:
    """Statements end with a semicolon at the end of a line; comments are for readers."""
    lines = (line.split("--")[0].rstrip() for line in text.splitlines())
    parts = "\n".join(line for line in lines if line).split(";\n")
    return [part.strip().removesuffix(";") for part in parts if part.strip()]


def tables_of(kind: str, version: int) -> set[str]:
    """The tables that a database of this version has. So far no file has dropped or changed one."""
    statements = (statement for script in scripts(kind)[:version] for statement in script)
    return {each.split()[2] for each in statements if each.startswith("CREATE TABLE")}


def check_version(version: int, kind: str, name: str) -> None:
    """Refuse a database of a newer release."""
    known = len(scripts(kind))
    if version > known:
        raise StorageError(
            f"{name} has schema version {version}, this release knows up to {known}: "
            "install a newer release to open it. Nothing was changed"
        )


def migrate(transaction: Transaction, kind: str, version: int, name: str) -> None:
    """Run what is missing since ``version`` (0: an empty database)."""
    check_version(version, kind, name)
    known = scripts(kind)
    if version == len(known):
        return
    if version == 0:
        transaction.run(f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)")
        transaction.run(f"INSERT INTO {VERSION_TABLE} (version) VALUES (0)")
    for script in known[version:]:
        for statement in script:
            transaction.run(statement)
    transaction.run(f"UPDATE {VERSION_TABLE} SET version = {len(known)}")
