"""One HTML file with everything in it: the numbers as JSON, with as many digits as one can see.

Nothing on the page asks for another file.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from capri_lab.report.marks import DASHES, SHAPES, marks
from capri_lab.report.summary import Mean, Series, Summary

# More than a screen or a reader can tell apart.
_DIGITS = 5


def page(studies: Sequence[dict[str, Any]], *, title: str) -> str:
    """The page of some studies, each a :func:`document` with its texts.

    Data reach the page as JSON and its text as text nodes: a name that looks like HTML stays a
    name. The content policy allows this style and these scripts, and no request at all.
    """
    style = _asset("report.css")
    # Elements and ticks of charts are those of the service's page.
    charts = files("capri").joinpath("service", "page", "chart.js").read_text(encoding="utf-8")
    script = f"{charts}\n{_asset('report.js')}"
    # In JSON "<" occurs within strings only; written as an escape it cannot end the element.
    data = json.dumps(list(studies), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "POLICY": (
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        "TITLE": escape(title),
        "STYLE": style,
        "DATA": data,
        "SCRIPT": script,
    }
    # In one pass over the template: what is filled in is never searched again.
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], _asset("report.html"))


def _asset(name: str) -> str:
    return files("capri_lab.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content policy calls an inline element: the hash of its text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def document(summary: Summary) -> dict[str, Any]:
    """A summary in values that JSON can hold. Rounds and certificates are stored once."""
    grids: list[list[float]] = []
    certificates: list[Any] = []
    return {
        "cells": summary.cells,
        "seconds": _short(summary.seconds),
        "versions": list(summary.versions),
        "dashes": DASHES,
        "players": [
            asdict(player) | asdict(mark) | {"shape": SHAPES[mark.shape]}
            for player, mark in zip(summary.players, marks(summary.players), strict=True)
        ],
        "series": [_series(one, grids, certificates) for one in summary.series],
        "grids": grids,
        "certificates": certificates,
        "pairs": [
            [pair.first, pair.second, *_plain(list(asdict(pair.comparison).values()))]
            for pair in summary.pairs
        ],
        "failures": _failures(summary.failures),
    }


def _series(one: Series, grids: list[list[float]], certificates: list[Any]) -> dict[str, Any]:
    rounds, mean, error = one.curve
    told = ("environment", "rounds", "epsilon", "delta", "player", "note")
    return {name: getattr(one, name) for name in told} | {
        "seeds": list(one.finals),
        "regret": _mean(one.regret),
        "ratio": _mean(one.ratio),
        "simple": _mean(one.simple_regret),
        "seconds": None if one.seconds is None else _short(one.seconds.mean),
        "memory": one.peak_memory_bytes,
        "grid": _place(grids, [int(each) for each in rounds]),
        "curve": _plain([*mean]),
        "error": None if error is None else _plain([*error]),
        "epochs": [_plain(dict(epoch)) for epoch in one.epochs],
        "notices": [dict(notice) for notice in one.notices],
        "active": _plain(one.active),
        "certificate": (
            None if one.certificate is None else _place(certificates, _plain(one.certificate))
        ),
    }


def _failures(failures: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for all cells of a policy and a problem that failed alike."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for failure in failures:
        same = {name: failure[name] for name in ("policy", "environment", "error")}
        lists: dict[str, Any] = {"rounds": [], "epsilon": [], "seed": []}
        row = rows.setdefault(tuple(same.values()), same | lists | {"cells": 0})
        row["cells"] += 1
        for name in lists:
            _place(row[name], failure[name])
    return [_plain(row) for row in rows.values()]


def _mean(mean: Mean | None) -> Any:
    """Mean, standard error, smallest and largest."""
    return None if mean is None else _plain([*asdict(mean).values()])


def _place(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _short(value: float) -> float | None:
    if not isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case str():
            return value
        case Sequence():
            return [_plain(item) for item in value]
        case float():
            return _short(value)
    return value
