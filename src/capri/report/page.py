"""One HTML file with everything in it. Nothing on the page asks for another file."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any


def page(studies: Sequence[dict[str, Any]], *, title: str) -> str:
    """The page of some studies, each a :func:`~capri.report.document.document` with its texts.

    Data reach the page as JSON and its text as text nodes: a name that looks like HTML stays a
    name. The content policy allows this style and these scripts, and no request at all.
    """
    style, *scripts = (_asset(name) for name in ("report.css", "chart.js", "report.js"))
    script = "\n".join(scripts)
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
    first, *rest = _asset("report.html").split("{{")
    filled = [first]
    for piece in rest:
        name, _, after = piece.partition("}}")
        filled += [parts[name], after]
    return "".join(filled)


def _asset(name: str) -> str:
    return files("capri.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content policy calls an inline element: the hash of its text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
