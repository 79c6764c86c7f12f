"""The version of this package, and of those beside it."""

from functools import cache

VERSION = "0.1.0"


@cache
def version_of(package: str) -> str:
    """Of an installed package. It is read from files, and stays what it was while we run."""
    from importlib.metadata import version

    return version(package)
