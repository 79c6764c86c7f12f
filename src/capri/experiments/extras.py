"""Libraries that only some uses need."""

from importlib import import_module

from capri.errors import CapriError


class MissingExtraError(CapriError, ImportError):
    """An optional library is not installed."""


def need(what: str, *libraries: str) -> None:
    """Say what to install where a library is missing."""
    for library in libraries:
        try:
            import_module(library)
        except ImportError:
            raise MissingExtraError(
                f"{what} needs {library}: pip install 'capri-bandits[experiments]'"
            ) from None
