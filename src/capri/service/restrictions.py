"""``[limits]`` of a policy file: what every decision keeps to, whoever comes. All of it is public.

[limits]
floor = { control = 0.05 }
ceiling = { loan = 0.3 }
share = { gift = 0.1 }
availability = { loan = 0.8 }

[limits.allowed]
loan = { age = [18, inf], country = ["at", "de"], member = true }
"""

from collections.abc import Callable
from math import isinf
from pathlib import Path
from typing import Any

from capri.checks import is_number
from capri.epoch.limits import Limits
from capri.errors import ConfigurationError
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.schema.columns import Column
from capri.service.sheets import guessed, read_sheet
from capri.spaces import ContextPool, FixedActions
from capri.toml import Given

_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "floor": (lambda value: 0 <= value <= 1, "a probability, from 0 to 1"),
    "ceiling": (lambda value: 0 < value <= 1, "a probability above 0 and up to 1"),
    "share": (lambda value: 0 < value <= 1, "a share of all decisions above 0 and up to 1"),
    "availability": (lambda value: 0 <= value <= 1, "a probability, from 0 to 1"),
}


def read_limits(
    given: Given, actions: FixedActions, contexts: ContextPool, folder: Path
) -> Limits | None:
    """The limits of a file; None where there are none. What does not go together is refused."""
    if not given.has("limits"):
        return None
    inner = given.inner(given.take("limits"), "limits")
    inner.only((*_NUMBERS, "allowed"))
    names, schema = actions.names or (), contexts.schema
    assert schema is not None
    floor, ceiling, share = (_numbers(inner, kind, names) for kind in ("floor", "ceiling", "share"))
    for kind, most in (("ceiling", ceiling), ("share", share)):
        for name, value in floor.items():
            if name in most and value > most[name]:
                raise inner.error(
                    f"the floor of {name!r} is above its {kind}: {value:g} and {most[name]:g}",
                    "floor",
                    name,
                )
    limits = Limits(
        floor=floor,
        ceiling=ceiling,
        share=share,
        allowed=_allowed(inner, names, schema),
        availability=_availability(inner, names, folder),
    )
    # Said of all of them together: floors that add up to more than 1, ceilings that leave nothing.
    with inner.at(next(iter(inner.keys), ""), *_NUMBERS, "allowed"):
        limits.of(actions, contexts)
    return limits


def _numbers(inner: Given, kind: str, names: tuple[str, ...]) -> dict[str | int, float]:
    """One number for each of some actions."""
    table = inner.inner(inner.take(kind, {}), kind)
    table.only(names, "action")
    return {name: table.number(name, None, *_NUMBERS[kind]) for name in table.keys}


def _availability(inner: Given, names: tuple[str, ...], folder: Path) -> Any:
    """How often actions are available: numbers by name, or a CSV of sets, a column an action."""
    file = inner.take("availability")
    if not isinstance(file, str):
        return _numbers(inner, "availability", names) if inner.has("availability") else None
    with inner.at("availability"):
        sheet = read_sheet(folder / file)
        for name in names:
            if name not in sheet:
                raise ConfigurationError(f"{file} has no column {name!r}: every action needs one")
        columns = [guessed(sheet[name]) for name in names]
        rows = [list(row) for row in zip(*columns, strict=True)]
        if not all(cell in (0, 1) for row in rows for cell in row):
            raise ConfigurationError(f"{file}: every cell must be true or false")
        return [[bool(cell) for cell in row] for row in rows]


def _allowed(inner: Given, names: tuple[str, ...], schema: Schema) -> dict[str | int, Any]:
    """To whom actions are offered at all, by columns of the context."""
    table = inner.inner(inner.take("allowed", {}), "allowed")
    table.only(names, "action")
    columns = {column.name: column for column in schema.columns}
    found: dict[str | int, Any] = {}
    for action in table.keys:
        rules = table.inner(table.take(action), action)
        rules.only(columns, "column")
        if not rules.keys:
            raise table.error("needs columns and what they must hold: {} says nothing", action)
        found[action] = {name: _wanted(rules, columns[name]) for name in rules.keys}
    return found


def _wanted(rules: Given, column: Column) -> Any:
    """What a column must hold, as :class:`capri.Limits` takes it."""
    value = rules.take(column.name)
    match column:
        case Boolean():
            sound, allowed = isinstance(value, bool), "true or false"
        case Categorical():
            levels = value if isinstance(value, list) else [value]
            sound = bool(levels) and all(level in column.levels for level in levels)
            allowed = f"a list of levels, of {', '.join(map(str, column.levels))}"
            value = levels
        case Numeric():
            sound = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
            sound = sound and value[0] <= value[1] and not all(map(isinf, value))
            sound = sound and all(isinf(end) or column.low <= end <= column.high for end in value)
            allowed = (
                f"a lowest and a highest number from {column.low:g} to {column.high:g}, either of "
                "which may be -inf or inf"
            )
            value = [None if isinf(end) else end for end in value] if sound else value
        case _:  # pragma: no cover
            raise AssertionError(column)
    if not sound:
        raise rules.error(f"{column.name} must be {allowed}, got {value!r}", column.name)
    return value
