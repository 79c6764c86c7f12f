"""Numbers as people send them: of any type and size, or missing."""

from math import inf, nan
from numbers import Real
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.errors import DataError

# What libraries call a value that is missing, by the name of its type: none is imported for it.
_MISSING = ("NAType", "NaTType", "MaskedConstant")


def as_numbers(values: object, problem: str) -> FloatArray:
    """Private numbers as a float array, NaN for a value that is missing: None, NA, masked.

    Their type is public: text is refused even where NumPy would parse it. Their values are not:
    anything that is a number, however large, is taken, without a word.
    """
    if type(values) is np.ndarray and values.dtype.char == "d":  # nearly always
        return values.copy()
    if isinstance(values, list | tuple):
        values = _unmasked(values)
    try:
        with np.errstate(all="ignore"):  # of numbers wider than a float
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(np.float64), nan)
            array = np.asarray(values)
            if array.dtype.kind == "O":
                numbers = [number_of(each) for each in array.ravel()]
                array = np.array(numbers, dtype=np.float64).reshape(array.shape)
            if array.dtype.kind not in "biuf":
                raise DataError(problem)
            return array.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(problem) from None


def _unmasked(values: list[Any] | tuple[Any, ...]) -> list[Any]:
    """None for what is masked, which NumPy would warn of: the warning would tell of it."""
    return [
        None if each is np.ma.masked
        else _unmasked(each) if isinstance(each, list | tuple)
        else each
        for each in values
    ]  # fmt: skip


def number_of(value: object) -> float:
    """A number of any size, NaN where it is missing; a TypeError for what is no number."""
    kind = type(value).__name__
    if value is None or kind in _MISSING:
        return nan
    if isinstance(value, np.timedelta64) or not (
        isinstance(value, Real | np.bool_) or kind == "Decimal"
    ):
        raise TypeError(kind)
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return inf if value > 0 else -inf  # type: ignore[operator]
    except ValueError:  # a signalling NaN of Decimal
        return nan


def number_or_missing(cell: object) -> float:
    """A number, NaN for any other cell: what one user sends is never refused for its type.

    >>> number_or_missing("41"), number_or_missing(True), number_or_missing(-(10**400))
    (nan, 1.0, -inf)
    """
    if type(cell) is float:  # nearly always
        return cell
    try:
        with np.errstate(all="ignore"):
            return number_of(cell)
    except Exception:  # whatever an object says of itself when it is asked for its number
        return nan


def is_missing(cell: object) -> bool:
    """Whether a cell is empty: None, NaN, NA, masked.

    >>> is_missing(None), is_missing(float("nan")), is_missing(""), is_missing(0)
    (True, True, False, False)
    """
    if cell is None or type(cell).__name__ in _MISSING:
        return True
    return isinstance(cell, float | np.floating) and bool(cell != cell)
