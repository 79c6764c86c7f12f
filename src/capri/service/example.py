"""``capri init``: a commented policy file from a CSV of public rows."""

import json
from collections.abc import Sequence
from pathlib import Path

from capri.schema import Boolean, Categorical, Numeric
from capri.schema.columns import Column
from capri.schema.inference import inferred
from capri.service.sheets import guessed, read_sheet


def example_file(sheet: Path, actions: Sequence[str], folder: Path) -> str:
    """The text of a policy file in a folder, for contexts like the rows of a sheet."""
    columns = [
        inferred(name, guessed(cells))
        for name, cells in read_sheet(sheet).items()
        if name != "weight"
    ]
    try:
        where = sheet.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        where = sheet.resolve().as_posix()
    return _TEXT.format(
        name=_said(sheet.stem),
        sheet=_said(where),
        actions=_said(list(actions)),
        context="\n".join(_column(column) for column in columns),
    )


def _said(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _column(column: Column) -> str:
    lines = ["[[context]]", f"name = {_said(column.name)}", f'kind = "{column.kind}"']
    match column:
        case Numeric():
            lines.append(f"low = {column.low:g}  # what lies beyond the range is clipped to it")
            lines.append(f"high = {column.high:g}")
        case Categorical():
            lines.append(f"levels = {_said(list(column.levels))}  # any other is one more level")
        case Boolean():
            pass
    if getattr(column, "missing", None) == "own":
        lines.append('missing = "own"  # a missing value is a value of its own')
    elif isinstance(column, Categorical):
        lines.append('# missing = "own"  # else a missing value is like one of no level')
    else:
        lines.append('# missing = "own"  # else a visit without this column counts for nothing')
    return "\n".join(lines) + "\n"


_TEXT = """\
# A private contextual bandit behind HTTP: capri serve this-file.toml
# Everything in this file is public. Keys and passwords are kept elsewhere.

name = {name}

# What may be chosen: names, or tables with a name and feature columns, or the name of a CSV file.
actions = {actions}

# Rows like those who will come, that anybody may see; without them rows are spread over the ranges
# below. A column "weight" says how often each comes.
public = {sheet}

kernel = "auto"  # weighs what kinds of effects there are by the evidence of the releases
model = "joint"  # one trusted curator; "local": devices decide, and report in private
# horizon = 100000  # how many decisions there will be; left out: any number

[budget]  # what each user is promised
epsilon = 1.0
delta = 1e-6

[reward]
range = [0, 1]  # what lies beyond is clipped
wait = 0  # rewards count until so many decisions, or a time such as "2 hours", after their epoch
missing = 0.0  # what a reward that never comes counts as; or "as-estimated"
rule = "first"  # of several rewards for one decision: first, last, sum or max

# [users]  # with this, every request names its user; without, every user comes once
# contributions = 10
# contributions_per_epoch = 1

# [epoch]
# time = "1 day"  # an epoch also ends when this much time has passed

# [service]
# hosts = ["bandit.example.org"]  # names that requests may ask for, beside localhost

# What a context consists of. Read from the public rows: look at every range and level.
{context}"""
