"""Actions as people write them: rows, names, a number, a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from capri.arrays import IntArray
from capri.cells import cells_of, is_frame, is_table, names_of
from capri.checks import is_whole, whole
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.schema import Schema
from capri.spaces import Actions, FixedActions, VaryingActions


def as_actions(given: object) -> Actions:
    """Actions from what people write: rows, names, a number, a table, or actions as they are.

    Names or a number make unrelated actions: their features are indicators. A table says what the
    actions are: its column ``name``, if there is one, names them, and a schema of the other columns
    is inferred, as all of this is public.

    >>> as_actions(["red", "green"]).names
    ('red', 'green')
    >>> as_actions(3).rows
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    >>> as_actions([{"name": "red", "price": 1}, {"name": "green", "price": 3}]).rows.ravel()
    array([0., 1.])
    """
    if isinstance(given, Actions):
        return given
    if hasattr(given, "to_list") and not is_frame(given):  # a column of a data frame
        given = given.to_list()
    if is_whole(given):
        count = whole("actions", given)
        return FixedActions(np.eye(count), codes=tuple(str(number) for number in range(count)))
    if is_table(given):
        names, table = _apart(given)
        if not table:
            return FixedActions(np.eye(len(names or ())), names, codes=names)
        return FixedActions(table, names, Schema.from_frame(table))  # type: ignore[arg-type]
    if isinstance(given, str):
        raise ConfigurationError("actions must be rows, names, a number or a table, got one text")
    if isinstance(given, Sequence | np.ndarray) and len(given) and isinstance(given[0], str):
        names = tuple(given)
        return FixedActions(np.eye(len(names)), names, codes=names)
    return FixedActions(given)  # type: ignore[arg-type]


def _apart(table: object) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """The column ``name`` of a table, and the other ones."""
    columns = names_of(table)
    names = None
    if "name" in columns:
        columns.remove("name")
        names = tuple(str(name) for name in cells_of(table, ["name"])[0])
    return names, dict(zip(columns, cells_of(table, columns), strict=True))


def successor(old: Actions, given: object) -> FixedActions:
    """Actions to take the place of others, with features that mean the same as theirs.

    Indicators keep their column by name (or by number), and names that were not there before take
    new ones; a table is read by the schema that the old one was read by; rows of numbers need
    as many columns as before.

    >>> successor(as_actions(["red", "green"]), ["green", "blue"]).rows
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    if not isinstance(old, FixedActions) or isinstance(given, VaryingActions):
        raise ConfigurationError(
            "only a fixed list of actions can be replaced: with VaryingActions every context "
            "brings its own"
        )
    if old.schema is not None and is_table(given):
        names, table = _apart(given)
        return FixedActions(table, names, old.schema)  # type: ignore[arg-type]
    new = as_actions(given)
    assert isinstance(new, FixedActions)
    if old.codes is not None and new.codes is not None:
        known = dict.fromkeys((*old.codes, *new.codes))
        place = {code: number for number, code in enumerate(known)}
        chosen = [place[new.codes[number]] for number in new.rows.argmax(axis=1)]
        return FixedActions(np.eye(len(known))[chosen], new.names, codes=tuple(known))
    if new.dimension != old.dimension:
        raise ShapeError(
            f"the actions of this policy have {old.dimension} features, the new ones "
            f"{new.dimension}: give rows that mean the same, or names in the place of names"
        )
    return new


def as_wanted(action_index: object, count: int, actions: int) -> IntArray:
    """Numbers of logged actions, one per context. Errors never show one."""
    wanted = np.asarray(action_index)
    if wanted.dtype.kind not in "iu" or wanted.shape != (count,):
        raise DataError(f"one whole number per context is needed as its action, {count} in all")
    if ((wanted < 0) | (wanted >= actions)).any():
        raise DataError(f"the number of an action must lie in 0 to {actions - 1}")
    return wanted.astype(np.int64)
