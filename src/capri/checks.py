"""Checks of public settings: each says what was given and what is allowed, and returns the value.

For what is public alone: an error repeats the value.
"""

from importlib import import_module
from math import isfinite
from numbers import Integral, Real

from capri.errors import ConfigurationError, MissingExtraError


def is_number(value: object) -> bool:
    """Whether this is a real number. True and False are not.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether this is a whole number, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def positive(name: str, value: object) -> float:
    """A positive, finite number.

    >>> positive("norm", 2)
    2.0
    """
    if is_number(value) and isfinite(value) and value > 0:  # type: ignore[arg-type, operator]
        return float(value)  # type: ignore[arg-type]
    raise ConfigurationError(f"{name} must be positive and finite, got {value!r}")


def not_negative(name: str, value: object) -> float:
    """Zero or a positive, finite number."""
    if is_number(value) and isfinite(value) and value >= 0:  # type: ignore[arg-type, operator]
        return float(value)  # type: ignore[arg-type]
    raise ConfigurationError(f"{name} must be zero or more and finite, got {value!r}")


def between(name: str, value: object, low: float, high: float, *, open_ends: bool = False) -> float:
    """A number in an interval, with its ends or without."""
    if is_number(value):
        number = float(value)  # type: ignore[arg-type]
        if low < number < high if open_ends else low <= number <= high:
            return number
    where = "strictly between" if open_ends else "between"
    raise ConfigurationError(f"{name} must lie {where} {low:g} and {high:g}, got {value!r}")


def whole(name: str, value: object, least: int = 1) -> int:
    """A whole number of at least ``least``.

    >>> whole("seed", -1, least=0)
    Traceback (most recent call last):
    capri.errors.ConfigurationError: seed must be a whole number of 0 or more, got -1
    """
    if is_whole(value) and int(value) >= least:  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise ConfigurationError(f"{name} must be a whole number of {least} or more, got {value!r}")


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in allowed:
        return str(value)
    choices = ", ".join(repr(str(choice)) for choice in allowed)
    raise ConfigurationError(f"{name} must be one of {choices}, got {value!r}")


def truth(name: str, value: object) -> bool:
    """True or False, and nothing that merely behaves like it."""
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{name} must be True or False, got {value!r}")


def need(what: str, *libraries: str, extra: str) -> None:
    """Say what to install where an optional library is missing: a distribution with an extra."""
    for library in libraries:
        try:
            import_module(library)
        except ImportError:
            raise MissingExtraError(f"{what} needs {library}: pip install '{extra}'") from None
