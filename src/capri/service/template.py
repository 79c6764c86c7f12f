"""``capri init``: a commented policy file from a CSV of public rows."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from capri.epoch.rewards import AS_ESTIMATED
from capri.errors import ConfigurationError
from capri.schema import Boolean, Categorical, Numeric
from capri.schema.columns import Column, inferred
from capri.service.tables import guessed_cells, number_of, read_csv

# The wait where nobody says how late rewards come. In decisions, so that what it costs is known:
# about 2,000 rounds of uniform play, once (docs/rewards.md). What a shorter one loses is lost for
# good, at every decision.
USUAL_WAIT = 2000
_UNITS = {unit[0]: unit for unit in ("seconds", "minutes", "hours", "days", "weeks")}
_WAIT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w|(?:second|minute|hour|day|week)s?)")


def wait_of(text: str) -> int | str:
    """What the file says of how late rewards come: a number of decisions, or a time.

    >>> wait_of("1000"), wait_of("2d"), wait_of("1.5 hours")
    (1000, '2 days', '1.5 hours')
    """
    text = text.strip()
    if text.isdecimal():
        return int(text)
    if (found := _WAIT.fullmatch(text)) is None:
        raise ConfigurationError(
            "--reward-wait must be a number of decisions or a time such as 90m, 2h, '2 days', got "
            f"{text!r}"
        )
    return f"{found[1]} {_UNITS[found[2][0]]}"


def missing_of(text: str) -> float | str:
    """What the file says of a reward that never comes: a number of the range, or "as-estimated".

    >>> missing_of("0"), missing_of("as-estimated")
    (0.0, 'as-estimated')
    """
    text = text.strip()
    number = number_of(text)
    if text == AS_ESTIMATED:
        return text
    if number is None or not 0 <= number <= 1:
        raise ConfigurationError(
            f"--missing must be a number from 0 to 1 or {AS_ESTIMATED!r}, got {text!r}"
        )
    return number


def example_file(
    sheet: Path,
    actions: Sequence[str],
    folder: Path,
    *,
    wait: int | str = USUAL_WAIT,
    missing: float | str = 0.0,
) -> str:
    """The text of a policy file in a folder, for contexts like the rows of a sheet."""
    if len(actions) < 2:
        raise ConfigurationError("actions must be at least two names, with commas between them")
    columns = [
        inferred(name, guessed_cells(cells))
        for name, cells in read_csv(sheet).items()
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
        first=_said(actions[0]),
        last=_said(actions[-1]),
        rule=_rule(columns[0]),
        wait=_said(wait),
        missing=_said(missing),
        context="\n".join(_column(column) for column in columns),
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
# anchor = "/elsewhere/anchor.json"  # knows how far the store has come: an old copy is refused

[budget]  # what each user is promised
epsilon = 1.0
delta = 1e-6

[reward]
range = [0, 1]  # what lies beyond is clipped
# Rewards count until so many decisions, or a time such as "2 hours", after their epoch. What comes
# later is discarded for good; a longer wait costs regret at the start alone.
wait = {wait}  # about as long as rewards take
missing = {missing}  # what a reward that never comes counts as: 0 for "no click", or "as-estimated"
rule = "first"  # of several rewards for one decision: first, last, sum or max

# [users]  # with this, every request names its user; without, every user comes once
# contributions = 10
# contributions_per_epoch = 1

# [limits]  # what every decision keeps to, whoever comes
# floor = {{ {first} = 0.05 }}  # least probability
# ceiling = {{ {last} = 0.5 }}  # most in any decision; share: most of all decisions together
# allowed = {{ {last} = {{ {rule} }} }}  # to whom it is offered at all

# [epoch]
# time = "1 day"  # an epoch also ends when this much time has passed

# [service]
# hosts = ["bandit.example.org"]  # names that requests may ask for, beside localhost

# What a context consists of. Read from the public rows: look at every range and level.
{context}"""
