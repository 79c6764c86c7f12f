"""Public tables of a policy file: contexts, actions and limits, some of them in CSV files.

``capri init`` writes a file with such tables from public columns or rows.

[limits]
floor = { control = 0.05 }
ceiling = { loan = 0.3 }
share = { gift = 0.1 }
availability = { loan = 0.8 }

[limits.allowed]
loan = { age = [18, inf], country = ["at", "de"], member = true }
"""

import json
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np

from capri.checks import is_number
from capri.choices import as_actions
from capri.epoch.limits import Limits
from capri.epoch.rewards import AS_ESTIMATED
from capri.errors import ConfigurationError
from capri.files import Given, finite_number, read_csv
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.schema.columns import Column, inferred
from capri.spaces import ContextPool, FixedActions

# Every key of a policy file by its table, and what it takes: the reference is written from it.
KEYS: dict[str, dict[str, str]] = {
    "": {
        "name": "Shown on the page; the file's name where it is left out.",
        "mode": '"active", "shadow" or "default": who decides at first.',
        "action": 'The action that everybody gets in mode "default".',
        "model": '"joint": one trusted curator. "local": devices decide and report in private.',
        "kernel": '"auto", a name, or a table with a `type`.',
        "lengthscale": "Of a named kernel: a number, or one for each column.",
        "horizon": "How many decisions (model local: reports) there will be; left out: any number.",
        "public": "A CSV of public rows like those who come; a column `weight` is optional. "
        "Without it rows are spread over the ranges.",
        "actions": "A list of names, tables with a `name` and feature columns, or a CSV of these.",
        "rollback_guard": "A file or database outside of the store that knows how far it has come; "
        "no password. From the folder of this file.",
        "tickets": "Of model local: true where reports need a ticket, whose key is in "
        "`CAPRI_TICKET_KEY`.",
        "population": "Of the organisation's ledger at the address in `CAPRI_LEDGER`: what the "
        "policy may cost is counted there.",
    },
    "context": {
        "name": "The name of the column.",
        "kind": '"numeric", "categorical" or "boolean".',
        "low": "Of a numeric column: the lower end of its range.",
        "high": "Of a numeric column: the upper end of its range.",
        "levels": "Of a categorical column: the list of its values.",
        "missing": 'What stands for a missing cell: a value, or "own" for a level of its own.',
    },
    "budget": {
        "epsilon": "What each privacy unit is promised: a positive number.",
        "delta": "The chance that the promise fails; left out or 0: never.",
    },
    "reward": {
        "range": "The lower and the upper end; what lies beyond is clipped.",
        "wait": 'How long rewards count after their epoch: decisions, or a time such as "2 hours".',
        "missing": 'What a reward that never comes counts as: a number, or "as-estimated".',
        "rule": 'Of several rewards of a decision: "first", "last", "sum" or "max".',
    },
    "users": {
        "contributions": "Visits of one user that count, for life; every request names its user.",
        "contributions_per_epoch": "Of these, how many in one epoch.",
    },
    "epoch": {"time": 'An epoch also ends after this time, such as "1 day".'},
    "limits": {
        "floor": "By action: the least probability wherever the action is offered.",
        "ceiling": "By action: the largest probability in any decision.",
        "share": "By action: the largest share of all decisions.",
        "availability": "By action: how often visits offer it; or a CSV of sets.",
        "allowed": "By action and column: a range, a list of levels, or true or false.",
    },
    "options": {},  # those of the preset
    "service": {  # and the limits
        "hosts": "Names that requests may ask for, beside localhost.",
        "control": "The action that was played before, for the lift over it; give it a floor.",
    },
}
_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
# The wait where nobody says how late rewards come. In decisions, so that what it costs is known:
# about 2,000 rounds of uniform play, once (docs/howto/contexts.md). What a shorter one loses is
# lost for good, at every decision.
USUAL_WAIT = 2000
UNITS = {unit[0]: unit for unit in ("seconds", "minutes", "hours", "days", "weeks")}
# A time such as "90m" or "1.5 days".
TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w|(?:second|minute|hour|day|week)s?)\s*")
_PUBLIC_ROWS = 200  # where no file of public rows is given
_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "floor": (lambda value: 0 <= value <= 1, "a probability, from 0 to 1"),
    "ceiling": (lambda value: 0 < value <= 1, "a probability above 0 and up to 1"),
    "share": (lambda value: 0 < value <= 1, "a share of all decisions above 0 and up to 1"),
    "availability": (lambda value: 0 <= value <= 1, "a probability, from 0 to 1"),
}


# -- contexts -----------------------------------------------------------------------------------


def read_column(given: Given) -> Column:
    """A column of the contexts."""
    name = given.text("name")
    kind = given.word("kind", ("numeric", "categorical", "boolean"))
    missing = given.take("missing")
    own = {"numeric": ("low", "high"), "categorical": ("levels",), "boolean": ()}[kind]
    given.only(("name", "kind", "missing", *own))
    for key in own:
        if not given.has(key):
            raise given.error(f"{key} is missing: a {kind} column needs {' and '.join(own)}")
    values = [given.take(key) for key in own]
    with given.at("missing" if missing is not None else "name", "levels", "low", "high"):
        if kind == "numeric":
            return Numeric(name, values[0], values[1], missing)
        if kind == "boolean":
            return Boolean(name, missing)
        return Categorical(name, values[0], missing)


def read_contexts(given: Given, schema: Schema, folder: Path) -> ContextPool:
    """The public law of who comes: rows of a file, or rows spread over the declared ranges."""
    file = given.take("public")
    if file is None:
        return ContextPool.from_ranges(schema, _PUBLIC_ROWS)
    with given.at("public"):
        if not isinstance(file, str):
            raise ConfigurationError(f"public must name a CSV file, got {file!r}")
        sheet = read_csv(folder / file)
        absent = [name for name in schema.names if name not in sheet]
        if absent:
            raise ConfigurationError(
                f"{file} has no column {absent[0]!r}; its columns: {', '.join(sheet)}"
            )
        table = {each.name: declared_cells(each, sheet[each.name]) for each in schema.columns}
        weights = None
        if "weight" in sheet and "weight" not in schema.names:
            weights = np.array([float(cell) for cell in sheet["weight"]])
            weights = weights / weights.sum()
        return ContextPool(table, weights, schema)  # type: ignore[arg-type]


# -- actions ------------------------------------------------------------------------------------


def actions_from(rows: object, folder: Path) -> object:
    """What a list of names, a list of tables with a name each, or a CSV file says of actions."""
    if isinstance(rows, str):
        sheet = read_csv(folder / rows)
        if "name" not in sheet:
            raise ConfigurationError(f"{rows} needs a column 'name': what each action is called")
        cells = {key: guessed_cells(column) for key, column in sheet.items() if key != "name"}
        rows = [
            {"name": name, **{key: column[place] for key, column in cells.items()}}
            for place, name in enumerate(sheet["name"])
        ]
    if not isinstance(rows, list) or len(rows) < 2:
        raise ConfigurationError(
            "actions must be at least two: a list of names, a list of tables that have a name and "
            "the same feature columns, or the name of a CSV file"
        )
    if all(isinstance(row, str) and row for row in rows):
        return rows
    if not all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows):
        raise ConfigurationError("every action needs a name, which is a text")
    columns = set(rows[0])
    if any(set(row) != columns for row in rows):
        raise ConfigurationError(
            f"every action needs the same columns as the first: {', '.join(rows[0])}"
        )
    return rows


def read_actions(given: Given, folder: Path) -> tuple[object, FixedActions]:
    """What may be chosen, as it is written and as it is read."""
    if not given.has("actions"):
        raise given.error("actions is missing: give a list of names, or the name of a CSV file")
    with given.at("actions"):
        offered = actions_from(given.take("actions"), folder)
        actions = as_actions(offered)
        assert isinstance(actions, FixedActions)
        return offered, actions


# -- limits -------------------------------------------------------------------------------------


def read_limits(
    given: Given, actions: FixedActions, contexts: ContextPool, folder: Path
) -> Limits | None:
    """The limits of a file; None where there are none. What does not go together is refused."""
    if not given.has("limits"):
        return None
    inner = given.inner(given.take("limits"), "limits")
    inner.only(KEYS["limits"])
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
        sheet = read_csv(folder / file)
        for name in names:
            if name not in sheet:
                raise ConfigurationError(f"{file} has no column {name!r}: every action needs one")
        columns = [guessed_cells(sheet[name]) for name in names]
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


# -- cells of CSV files -------------------------------------------------------------------------


def guessed_cells(cells: Sequence[str]) -> list[object]:
    """Cells of a column of which nothing is declared: all numbers, all truth values, else texts.

    >>> guessed_cells(["1", "2.5", ""]), guessed_cells(["yes", "no"]), guessed_cells(["1", "x"])
    ([1.0, 2.5, None], [True, False], ['1', 'x'])
    """
    present = [cell for cell in cells if cell]
    if present and all(cell.lower() in _TRUTH for cell in present):
        return [_TRUTH[cell.lower()] if cell else None for cell in cells]
    numbers = [finite_number(cell) for cell in cells]
    if present and all(
        number is not None for cell, number in zip(cells, numbers, strict=True) if cell
    ):
        return list(numbers)
    return [cell or None for cell in cells]


def declared_cells(column: Column, cells: Sequence[str]) -> list[object]:
    """Cells as their column means them; None where one is empty or means nothing to it."""
    if isinstance(column, Categorical):
        levels = {str(level): level for level in column.levels}
        return [levels.get(cell, cell) if cell else None for cell in cells]
    if isinstance(column, Boolean):
        return [_TRUTH.get(cell.lower(), finite_number(cell)) for cell in cells]
    return [finite_number(cell) for cell in cells]


# -- ``capri init``: a commented file from public columns or rows ----------------------------------


def wait_of(text: str) -> int | str:
    """What the file says of how late rewards come: a number of decisions, or a time.

    >>> wait_of("1000"), wait_of("2d"), wait_of("1.5 hours")
    (1000, '2 days', '1.5 hours')
    """
    text = text.strip()
    if text.isdecimal():
        return int(text)
    if (found := TIME.fullmatch(text)) is None:
        raise ConfigurationError(
            "--reward-wait must be a number of decisions or a time such as 90m, 2h, '2 days', got "
            f"{text!r}"
        )
    return f"{found[1]} {UNITS[found[2][0]]}"


def missing_of(text: str) -> float | str:
    """What the file says of a reward that never comes: a number of the range, or "as-estimated".

    >>> missing_of("0"), missing_of("as-estimated")
    (0.0, 'as-estimated')
    """
    text = text.strip()
    number = finite_number(text)
    if text == AS_ESTIMATED:
        return text
    if number is None or not 0 <= number <= 1:
        raise ConfigurationError(
            f"--missing must be a number from 0 to 1 or {AS_ESTIMATED!r}, got {text!r}"
        )
    return number


def columns_of(text: str) -> list[Column]:
    """Columns by what anybody may know of them: ranges, levels, or yes and no.

    >>> [each.kind for each in columns_of("age = 18:98, plan = free|pro, member")]
    ['numeric', 'categorical', 'boolean']
    """
    found: list[Column] = []
    for part in text.split(","):
        name, _, told = (each.strip() for each in part.partition("="))
        low, high = (finite_number(each.strip()) for each in told.partition(":")[::2])
        if low is not None and high is not None:
            found.append(Numeric(name, low, high))
        elif "|" in told:
            found.append(Categorical(name, tuple(level.strip() for level in told.split("|"))))
        elif told:
            raise ConfigurationError(f"--columns: {name!r} takes low:high or a|b, got {told!r}")
        else:
            found.append(Boolean(name))
    return list(Schema(tuple(found)).columns)


def example_file(
    sheet: Path | None,
    actions: Sequence[str],
    folder: Path,
    *,
    columns: str = "",
    wait: int | str = USUAL_WAIT,
    missing: float | str = 0.0,
) -> str:
    """The text of a policy file in a folder, for contexts of these columns or like a sheet's."""
    if len(actions) < 2:
        raise ConfigurationError("actions must be at least two names, with commas between them")
    if (sheet is None) == (not columns):
        raise ConfigurationError("give --columns, or a CSV of public rows: one of the two")
    if sheet is None:
        told, where = columns_of(columns), "rows.csv"
    else:
        table = read_csv(sheet).items()
        told = [inferred(name, guessed_cells(cells)) for name, cells in table if name != "weight"]
        try:
            where = sheet.resolve().relative_to(folder.resolve()).as_posix()
        except ValueError:
            where = sheet.resolve().as_posix()
    template = files("capri").joinpath("service", "policy.template.toml").read_text("utf-8")
    return template.format(
        name=_said("policy" if sheet is None else sheet.stem),
        public=("# " if sheet is None else "") + f"public = {_said(where)}",
        actions=_said(list(actions)),
        first=_said(actions[0]),
        last=_said(actions[-1]),
        rule=_rule(told[0]),
        wait=_said(wait),
        missing=_said(missing),
        context="\n".join(_column(column) for column in told),
    )


def _said(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rule(column: Column) -> str:
    """What a column may be asked to hold, as an example."""
    match column:
        case Numeric():
            wanted = f"[{(column.low + column.high) / 2:g}, inf]"
        case Categorical():
            wanted = _said(list(column.levels[:1]))
        case _:
            wanted = "true"
    return f"{_said(column.name)} = {wanted}"


def _column(column: Column) -> str:
    lines = ["[[context]]", f"name = {_said(column.name)}", f'kind = "{column.kind}"']
    match column:
        case Numeric():
            lines.append(f"low = {column.low:.12g}  # what lies beyond the range is clipped to it")
            lines.append(f"high = {column.high:.12g}")
        case Categorical():
            lines.append(f"levels = {_said(list(column.levels))}  # any other is one more level")
    if getattr(column, "missing", None) == "own":
        lines.append('missing = "own"  # a missing value is a value of its own')
    elif isinstance(column, Categorical):
        lines.append('# missing = "own"  # else a missing value is like one of no level')
    else:
        lines.append('# missing = "own"  # else a visit without this column counts for nothing')
    return "\n".join(lines) + "\n"
