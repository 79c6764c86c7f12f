"""Where a store is: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://...``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capri.errors import ConfigurationError, MissingExtraError
from capri.store.transaction import Database

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def look_into(url: object) -> Database:
    """Open a database to look at it: nothing is made, migrated or changed, and writing refused."""
    if _is_sqlite(url):
        from capri.store.sqlite_look import SqliteLook

        return SqliteLook(_path(url))
    if _is_postgres(url):
        with _psycopg():
            from capri.store.postgres_look import PostgresLook
        return PostgresLook(str(url))
    raise _no_address(url)


def open_database(url: object, *, create: bool = True) -> Database:
    """Open the database at an address, filling it with tables where there are none.

    Without ``create`` a database that has none is refused, and nothing is changed.
    """
    if _is_sqlite(url):
        from capri.store.sqlite import SqliteDatabase

        return SqliteDatabase(_path(url), create=create)
    if _is_postgres(url):
        with _psycopg():
            from capri.store.postgres import PostgresDatabase
        return PostgresDatabase(str(url), create=create)
    raise _no_address(url)


def _is_sqlite(url: object) -> bool:
    return isinstance(url, str) and url.startswith(_SQLITE) and len(url) > len(_SQLITE)


def _path(url: object) -> Path:
    return Path(str(url).removeprefix(_SQLITE))


def _is_postgres(url: object) -> bool:
    return isinstance(url, str) and url.startswith(_POSTGRES)


@contextmanager
def _psycopg() -> Iterator[None]:
    """Say what to install where it is missing."""
    try:
        yield
    except ModuleNotFoundError:
        raise MissingExtraError(
            "a store in Postgres needs psycopg: pip install 'capri-bandits[store]'"
        ) from None


def _no_address(url: object) -> ConfigurationError:
    return ConfigurationError(
        "store must be 'sqlite:///file.db', 'sqlite:////folder/file.db', 'postgresql://...' or "
        f"None for memory, got {_kind(url)}"
    )


def _kind(url: object) -> str:
    """What was given, without what may be a password."""
    if not isinstance(url, str):
        return type(url).__name__
    return f"an address that begins with {url.partition(':')[0][:20]!r}"
