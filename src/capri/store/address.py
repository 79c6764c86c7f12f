"""Where a store is: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://...``."""

from pathlib import Path

from capri.errors import ConfigurationError, MissingExtraError
from capri.store.transaction import Database

SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")


def open_database(url: object, *, create: bool = True, read_only: bool = False) -> Database:
    """Open the database at an address, filling it with tables where there are none.

    Without ``create`` a database that has none is refused, and nothing is changed. One that is
    ``read_only`` is looked at: nothing is made or changed, and writing is refused.
    """
    if isinstance(url, str) and url.startswith(SQLITE) and len(url) > len(SQLITE):
        from capri.store.sqlite import SqliteDatabase

        return SqliteDatabase(Path(url.removeprefix(SQLITE)), create=create, read_only=read_only)
    if isinstance(url, str) and url.startswith(POSTGRES):
        try:
            from capri.store.postgres import PostgresDatabase
        except ModuleNotFoundError:
            raise MissingExtraError(
                "a store in Postgres needs psycopg: pip install 'capri-bandits[store]'"
            ) from None
        return PostgresDatabase(url, create=create, read_only=read_only)
    # What was given, without what may be a password.
    given = type(url).__name__
    if isinstance(url, str):
        given = f"an address that begins with {url.partition(':')[0][:20]!r}"
    raise ConfigurationError(
        "store must be 'sqlite:///file.db', 'sqlite:////folder/file.db', 'postgresql://...' or "
        f"None for memory, got {given}"
    )
