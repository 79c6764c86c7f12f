"""What a policy is worth and who gets what, and the page with its figures as one file.

Functions of releases and public data alone.
"""

import base64
import hashlib
import json
import time
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import CapriError, ConfigurationError
from capri.files import json_values
from capri.schema import Boolean, Categorical, Numeric
from capri.schema.columns import Column
from capri.spaces import ContextPool

# What the page asks for; whoever serves none of the later ones leaves it out.
NEEDED = ("policy", "epochs", "estimate", "ledger")
FURTHER = ("explanation", "certificate", "forecast", "operations", "shadow", "worth")
_BINS = 4  # of a numeric column on the map
_LEVELS = 6
_PARTS = ("page.css", "chart.js", "charts.js", "page.js")


def worth(policy: Any, control: str | None) -> dict[str, Any]:
    """Lift of the law of now over others, and a map of what it plays."""
    try:
        found = [lift.to_dict() for lift in policy.lifts(control)]
    except CapriError:  # the preset of the paper believes in one kernel
        return {"worth": None, "lifts": [], "control": control, "map": who_gets_what(policy)}
    first = found[0]
    now = first["worth"] + first["lift"]
    return {"worth": now, "lifts": found, "control": control, "map": who_gets_what(policy)}


def who_gets_what(policy: Any) -> dict[str, Any] | None:
    """The action that is played most, by the two columns that matter most, over public contexts.

    ``share``: how often that action is played in its cell; ``weight``: how many of the public
    contexts are there.
    """
    contexts, schema = policy.contexts, policy.contexts.schema
    if not isinstance(contexts, ContextPool) or schema is None:
        return None
    rows, weights, names = contexts.rows, contexts.weights, policy.actions.names
    columns = {column.name: column for column in schema.columns}
    axes = [
        (name, *_cells(columns[name], rows[:, schema.places(name)]))
        for name in _two_columns(policy)
    ]
    law = policy.probabilities(rows)
    down = axes[1] if len(axes) > 1 else ("", [""], np.zeros(len(rows), dtype=np.int64))
    table = []
    for row in range(len(down[1])):
        here = [(axes[0][2] == place) & (down[2] == row) for place in range(len(axes[0][1]))]
        table.append([_most(weights[mine], law[mine], names) for mine in here])
    across = {"name": axes[0][0], "values": axes[0][1]}
    return {"across": across, "down": {"name": down[0], "values": down[1]}, "cells": table}


def _most(weights: FloatArray, law: FloatArray, names: Any) -> dict[str, Any] | None:
    """What is played most in a cell; None where nobody is expected."""
    total = float(weights.sum())
    if total == 0:
        return None
    played = weights @ law / total
    place = int(played.argmax())
    return {"action": names[place], "share": float(played[place]), "weight": total}


def _two_columns(policy: Any) -> list[str]:
    """Those whose effect is largest; the first ones while nothing is known."""
    try:
        known = [(-each.effect, each.name) for each in policy.explain().columns]
    except CapriError:
        known = []
    listed = [name for _, name in sorted(known, key=lambda each: each[0])]
    return [*dict.fromkeys([*listed, *policy.contexts.schema.names])][:2]


def _cells(column: Column, numbers: FloatArray) -> tuple[list[str], IntArray]:
    """Values of a column for a person, and which of them each row has."""
    if isinstance(column, Numeric):
        inner = np.quantile(numbers[:, 0], np.arange(1, _BINS) / _BINS)
        edges = np.unique(inner[(inner > numbers[:, 0].min()) & (inner <= numbers[:, 0].max())])
        told = [f"{column.low + edge * (column.high - column.low):.3g}" for edge in edges]
        names = [f"below {told[0]}"] if told else ["any"]
        names += [f"{low} to {high}" for low, high in pairwise(told)]
        names += [f"from {told[-1]}"] if told else []
        return names, np.searchsorted(edges, numbers[:, 0], side="right")
    if isinstance(column, Boolean):
        return ["no", "yes"], (numbers[:, 0] > 1 / 2).astype(np.int64)
    assert isinstance(column, Categorical)
    found, most = numbers.argmax(axis=1), min(len(column.levels), _LEVELS)
    names = [*map(str, column.levels[:most]), "other"]
    return names[: int(found.max()) + 1], np.minimum(found, most)


# -- one page --------------------------------------------------------------------------------------


def one_page(ask: Callable[[str], Any]) -> bytes:
    """The page of a service with its figures inside: opens anywhere, and asks nobody.

    ``ask`` gives what is read at ``/v1/`` and a name, or raises where that is not served.
    """
    found = {f"/v1/{name}": ask(name) for name in NEEDED}
    for name in FURTHER:
        try:
            found[f"/v1/{name}"] = ask(name)
        except CapriError:
            continue
    if not found["/v1/policy"].get("name"):
        raise ConfigurationError("what answers there is no service of a policy")
    kept = json.dumps(json_values(found | {"made": time.time()})).replace("<", "\\u003c")
    folder = files("capri").joinpath("service", "page")
    parts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _PARTS}
    scripts = [_inline(parts[name]) for name in _PARTS[1:]]
    style, digest = _inline(parts["page.css"])
    policy = f"default-src 'none'; style-src {digest}; script-src "
    policy += " ".join(own for _, own in scripts)
    lines = []
    for line in folder.joinpath("index.html").read_text(encoding="utf-8").splitlines():
        if 'rel="stylesheet"' in line:
            lines.append(f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
            lines.append(f"<style>{style}</style>")
        elif "<script" not in line and 'rel="icon"' not in line:
            if line == "</body>":
                lines.append(f'<script type="application/json" id="kept">{kept}</script>')
                lines += [f"<script>{script}</script>" for script, _ in scripts]
            lines.append(line)
    return "\n".join(lines).encode()


def _inline(text: str) -> tuple[str, str]:
    """A text between its tags, and the digest by which a policy allows it."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"
