"""The certificate as a page: two sheets of paper, or one column on a phone. Asks for no file."""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files

from capri.privacy.certificate import reading
from capri.privacy.certificate.document import Certificate

OPENING, CLOSING = '<script type="application/json" id="certificate">', "</script>"


def page(told: Certificate) -> str:
    """The whole file. Its JSON is inside, as data that no browser runs."""
    style, allowed = _style()
    # In JSON "<" occurs within strings only; written as an escape it cannot end the element.
    data = json.dumps(told.to_dict(), separators=(",", ":"), allow_nan=False)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
        '">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Certificate of differential privacy</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body(told)}"
        f"{OPENING}{data.replace('<', chr(92) + 'u003c')}{CLOSING}\n</body>\n</html>\n"
    )


@cache
def _style() -> tuple[str, str]:
    """The style, and what a content policy calls it: the hash of its text."""
    style = files("capri.privacy.certificate").joinpath("certificate.css").read_text("utf-8")
    return style, base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def body(told: Certificate) -> str:
    """What a reader sees, without a style."""
    assumptions = "".join(
        f"<tr><td>{escape(text)}</td><td>{escape(keeper)}</td></tr>\n"
        for text, keeper in zip(told.assumptions, told.kept_by, strict=True)
    )
    releases = reading.folded_releases(told)
    return (
        "<main>\n<header>\n<h1>Certificate of differential privacy</h1>\n"
        f'<p class="claim">{escape(reading.claim(told))}</p>\n'
        f'<dl class="declared">\n{_terms(reading.declared(told))}</dl>\n</header>\n'
        f'<p class="promise">{escape(told.statement)}</p>\n'
        f"<h2>What is protected</h2>\n<dl>\n{_terms(reading.covered(told))}</dl>\n"
        f"<h2>What an attacker may learn</h2>\n<p>{escape(reading.ATTACKER)}</p>\n"
        f"{_table(reading.beliefs(told), 'beliefs')}"
        "<h2>What is not protected</h2>\n<ul>\n"
        + "".join(f"<li>{escape(text)}</li>\n" for text in reading.uncovered(told))
        + "</ul>\n"
        "<h2>Assumptions, and who must keep them</h2>\n"
        '<table class="assumptions">\n<thead><tr><th>The promise holds as long as</th>'
        f"<th>Kept by</th></tr></thead>\n<tbody>\n{assumptions}</tbody>\n</table>\n"
        f"<h2>How it is kept</h2>\n<dl>\n{_terms(reading.kept(told))}</dl>\n"
        "<h2>Releases</h2>\n"
        + (_table(releases, "releases") if releases else "<p>None yet.</p>\n")
        + f'<h2>Digests</h2>\n<dl class="digests">\n{_terms(reading.digests(told))}</dl>\n'
        f'<p class="note">{escape(reading.NOT_A_SIGNATURE)} <code>capri certificate verify</code> '
        "checks this file.</p>\n</main>\n"
    )


def _terms(rows: reading.Rows) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd{_quiet(text)}>{escape(text)}</dd></div>\n"
        for name, text in rows
    )


def _quiet(text: str) -> str:
    return ' class="absent"' if text == reading.NOT_DECLARED else ""


def _table(rows: list[list[str]], kind: str) -> str:
    """A table whose cells know the name of their column: on a phone each row is a small list."""
    head, *lines = rows
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    filled = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}">{escape(text)}</td>'
            for name, text in zip(head, line, strict=True)
        )
        + "</tr>\n"
        for line in lines
    )
    return (
        f'<table class="{kind}">\n<thead><tr>{names}</tr></thead>\n<tbody>\n{filled}</tbody>\n'
        "</table>\n"
    )
