"""Where a store is: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://...``."""

from pathlib import Path

from capri.errors import ConfigurationError, MissingExtraError
from capri.store.transaction import Database

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_database(url: object, *, create: bool = True) -> Database:
    """Open the database at an address, filling it with tables where there are none.

    Without ``create`` a database that has none is refused, and nothing is changed.
    """
    if isinstance(url, str) and url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        from capri.store.sqlite import SqliteDatabase

        return SqliteDatabase(Path(url.removeprefix(_SQLITE)), create=create)
    if isinstance(url, str) and url.startswith(_POSTGRES):
        try:
            from capri.store.postgres import PostgresDatabase
        except ModuleNotFoundError:
            raise MissingExtraError(
                "a store in Postgres needs psycopg: pip install 'capri-bandits[store]'"
            ) from None
        return PostgresDatabase(url, create=create)
    raise ConfigurationError(
        "store must be 'sqlite:///file.db', 'sqlite:////folder/file.db', 'postgresql://...' or "
        f"None for memory, got {_kind(url)}"
    )


def _kind(url: object) -> str:
    """What was given, without what may be a password."""
    if not isinstance(url, str):
        return type(url).__name__
    return f"an address that begins with {url.partition(':')[0][:20]!r}"
