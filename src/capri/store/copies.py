"""Copies of a store: all tables at one point in time, row by row, into an empty one.

The same tables are on either kind of database, so a copy of a server's is a file, and a file goes
back to a server. Rows that were deleted are in no page of a copy. Secret columns are copied as they
are: sealed where there is a store key, and else as readable as the store.

The source is only read.
"""

from capri.errors import StorageError
from capri.store.lineage import Seen
from capri.store.tables import TABLES
from capri.store.transaction import Database, Row, Transaction
from capri.store.view import read_counter, read_digest

Rows = dict[str, list[Row]]


def copy_store(source: Database, target: Database) -> Seen:
    """Copy a store into an empty one; how far its line has come."""
    line, rows, generation, digest = source.read(_everything)

    def fill(transaction: Transaction) -> None:
        transaction.hold_policy()
        if transaction.row("SELECT id FROM policy") is not None:
            raise StorageError(
                f"{target!r} holds a policy already: copy into an empty place. Nothing was changed"
            )
        for table, content in rows.items():
            if content:
                transaction.insert(table, content)

    target.write(fill)
    return Seen(line, generation, digest)


def _everything(transaction: Transaction) -> tuple[str, Rows, int, str]:
    rows = {
        name: transaction.rows(f"SELECT {', '.join(table.columns)} FROM {name}")
        for name, table in TABLES.items()
    }
    if not rows["policy"]:
        raise StorageError("there is no policy in this store: nothing was copied")
    generation = read_counter(transaction)[1]
    return str(rows["policy"][0][1]), rows, generation, read_digest(transaction, generation) or ""
