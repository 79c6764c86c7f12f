"""Studies declared in Python as the TOML that is kept beside their results."""

import json
import math
from typing import Any


def to_toml(table: dict[str, Any]) -> str:
    """The TOML of a table whose arrays of tables are one level deep.

    >>> print(to_toml({"name": "a", "policies": [{"name": "capri", "options": {"draws": 8}}]}))
    name = "a"
    <BLANKLINE>
    [[policies]]
    name = "capri"
    options = { draws = 8 }
    <BLANKLINE>
    """
    lines, after = [], []
    for key, value in table.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for each in value:
                after += ["", f"[[{key}]]", *(f"{name} = {_value(v)}" for name, v in each.items())]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *after, ""])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple | range):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)
