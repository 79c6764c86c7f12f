"""Columns as people have them: names, categories and bounds, by the one schema of the package.

``X_bounds`` may be a :class:`~capri.schema.Schema`, or a mapping from names to what a column holds:

    {"age": (18, 98), "plan": ["free", "pro"], "member": bool,
     "height": Numeric("height", 1, 2, missing="own")}

Without bounds, public rows with named columns that are not all numbers say the same
(:meth:`Schema.from_frame`). Names and declarations are public and may refuse; cells never do.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.schema import Boolean, Categorical, Column, Numeric, Schema


def schema_of(X_bounds: Any, public_X: Any) -> Schema | None:
    """What bounds or public rows declare of named columns; None where columns are plain numbers."""
    if isinstance(X_bounds, Schema):
        return X_bounds
    if isinstance(X_bounds, Mapping):
        return Schema(tuple(_declared(str(name), given) for name, given in X_bounds.items()))
    if X_bounds is None and hasattr(public_X, "columns") and _has_words(public_X):
        return Schema.from_frame(public_X)
    return None


def _declared(name: str, given: Any) -> Column:
    """A column from what was said of it in short."""
    if isinstance(given, Column):
        if given.name != name:
            raise ConfigurationError(f"column {name!r} was declared under the name {given.name!r}")
        return given
    if given is bool:
        return Boolean(name)
    if isinstance(given, tuple) and len(given) == 2:
        return Numeric(name, *given)
    if isinstance(given, list):
        return Categorical(name, given)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"column {name!r}: X_bounds must say (low, high), a list of levels, bool, or a column such "
        f"as capri.schema.Numeric, got {type(given).__name__}"
    )


def _has_words(frame: Any) -> bool:
    """Whether a public frame has a column that is not of numbers."""
    kinds = [getattr(dtype, "kind", "O") for dtype in getattr(frame, "dtypes", ())]
    return any(kind not in "iuf" for kind in kinds)


def categories_of(schema: Schema | None) -> tuple[tuple[int, ...], ...]:
    """Places of indicators that belong together."""
    if schema is None:
        return ()
    return tuple(
        schema.places(each.name) for each in schema.columns if not isinstance(each, Numeric)
    )


def schema_rows(schema: Schema, generator: np.random.Generator, count: int) -> FloatArray:
    """Rows that fill the declared columns: numbers in their range, every level as likely."""
    parts = []
    for column in schema.columns:
        if isinstance(column, Categorical):
            levels = column.encode([*column.levels])
            parts.append(levels[generator.integers(len(levels), size=count)])
            continue
        draws = generator.random(count)
        if isinstance(column, Boolean):
            draws = np.rint(draws)
        rows = np.zeros((count, column.width))
        rows[:, 0] = draws
        if column.width == 2:  # a tenth is missing: in the middle, and one step aside
            missing = generator.random(count) < 0.1
            rows[missing] = (0.5, 1.0)
        parts.append(rows)
    return np.concatenate(parts, axis=1)
