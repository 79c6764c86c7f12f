"""Sets of available actions that users come with: private values, so none is ever refused.

The kind and the shape of the argument are public and checked. What is in it is not: a name or a
number that no action has is left out, a cell that is neither True nor 1 says unavailable, and a set
in which nothing is left is served as if it had not been given, and counts for nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.cells import as_numbers, plain
from capri.errors import DataError
from capri.spaces import Actions


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets as they were given: which actions they name is known once their epoch is."""

    given: Any
    visits: int
    single: bool = False

    def __getitem__(self, rows: Sequence[int] | IntArray) -> "Sets":
        if self.single:
            return self
        some = [int(row) for row in rows]
        table = isinstance(self.given, np.ndarray)
        return Sets(self.given[some] if table else [self.given[row] for row in some], len(some))

    def among(self, actions: Actions) -> BoolArray:
        """One row of truth values a visit over these actions."""
        return as_sets(self.given, self.visits, actions, single=self.single)


def given_sets(available: object, visits: int, *, single: bool = False) -> Sets | None:
    """Sets to be read later; None where none were given."""
    if available is None:
        return None
    if not single and isinstance(available, Iterable) and not isinstance(available, str | bytes):
        available = available if isinstance(available, np.ndarray) else list(available)
        if len(available) != visits:
            raise DataError(f"one set of available actions per context is needed, {visits} in all")
    return Sets(available, visits, single)


def as_sets(available: object, visits: int, actions: Actions, *, single: bool = False) -> BoolArray:
    """One row of truth values a visit, from rows of them or from lists of names or numbers.

    >>> from capri.choices import as_actions
    >>> as_sets(["b", "nobody"], 1, as_actions(["a", "b"]), single=True)
    array([[False,  True]])
    """
    count = actions.count
    if isinstance(available, np.ndarray):
        return _table(available, visits, count, single=single)
    if isinstance(available, str | bytes) or not isinstance(available, Iterable):
        raise DataError(
            "available must be a list of actions or one truth value for each, got "
            f"{type(available).__name__}"
        )
    listed = [available] if single else list(available)
    if len(listed) != visits:
        raise DataError(f"one set of available actions per context is needed, {visits} in all")
    places: dict[Any, int] = {number: number for number in range(count)}
    places |= {name: number for number, name in enumerate(actions.names or ())}
    masks = np.zeros((visits, count), dtype=np.bool_)
    for row, given in zip(masks, listed, strict=True):
        row[:] = _one(given, count, places)
    return masks


def _table(values: np.ndarray[Any, Any], visits: int, count: int, *, single: bool) -> BoolArray:
    """Truth values, or numbers of actions where a single list has whole numbers."""
    if single and values.ndim == 1 and values.dtype.kind != "b":
        places = {number: number for number in range(count)}
        return _one(values.tolist(), count, places)[None]
    rows = values[None] if single and values.ndim == 1 else values
    if rows.shape != (visits, count):
        raise DataError(
            f"available must have shape ({visits}, {count}), a truth value for every action of "
            f"every visit, got {rows.shape}"
        )
    return np.asarray(as_numbers(rows) == 1.0)


def _one(given: Any, count: int, places: dict[Any, int]) -> BoolArray:
    """The set of one visit: everything for None, nothing for what cannot be read."""
    mask = np.zeros(count, dtype=np.bool_)
    if given is None:
        return ~mask
    try:
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            return mask
        cells = [plain(cell, None) for cell in given]
    except Exception:  # whatever it is, it belongs to one visit alone
        return mask
    if len(cells) == count and all(isinstance(cell, bool) for cell in cells):
        return np.array(cells, dtype=np.bool_)
    for cell in cells:
        known = isinstance(cell, str | int) and not isinstance(cell, bool)
        if known and (place := places.get(cell)) is not None:
            mask[place] = True
    return mask
