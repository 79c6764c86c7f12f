"""The certificate for readers: one list of sections, as Markdown and as a page.

The page is two sheets of paper, three where it states a total, or one column on a phone, and asks
for no file.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from capri.privacy.certificate.beliefs import cases, percent
from capri.privacy.certificate.document import Certificate, filled, words

OPENING, CLOSING = '<script type="application/json" id="certificate">', "</script>"
NOT_DECLARED = "not declared"
# A page has room for so many releases; the JSON and the text list all.
_MOST_ROWS = 12

Terms = list[tuple[str, str]]
Table = list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part under a heading: a paragraph, terms, points and a table, whichever there are.

    ``kind`` is what the style knows its terms or its table by.
    """

    title: str
    text: str = ""
    terms: Terms | None = None
    points: tuple[str, ...] = ()
    table: Table | None = None
    kind: str = ""


def sections(told: Certificate, releases: Table) -> list[Section]:
    """What every form shows, in this order."""
    return [
        Section(title="What is protected", terms=_covered(told)),
        Section(
            title="What an attacker may learn",
            text=_said("attacker"),
            table=_beliefs(told),
            kind="beliefs",
        ),
        Section(title="What is not protected", points=(told.presence, *told.not_protected)),
        Section(
            title="Assumptions, and who must keep them",
            table=_assumed(told.assumptions, told.kept_by),
            kind="assumptions",
        ),
        Section(title="How it is kept", terms=_kept(told)),
        Section(
            title="Releases",
            text="" if releases else "None yet.",
            table=releases or None,
            kind="releases",
        ),
        *([] if told.in_total is None else [_total(told.in_total)]),
        Section(title="Digests", terms=_digests(told), kind="digests"),
    ]


# -- the two forms --------------------------------------------------------------------------------


def markdown(told: Certificate) -> str:
    """Everything that the page shows, and every release."""
    lines = [f"# {_said('title')}", "", f"**{_claim(told)}.** {told.statement}", ""]
    lines += [f"- {name}: {text}" for name, text in _declared(told)]
    for section in sections(told, _every_release(told)):
        lines += ["", f"## {section.title}", ""]
        if section.text:
            lines += [section.text, *([""] if section.table else [])]
        lines += [f"- {name}: {text}" for name, text in section.terms or ()]
        lines += [f"- {point}" for point in section.points]
        lines += [""] if section.terms and section.table else []
        lines += _rows(section.table or [])
    return "\n".join([*lines, "", _said("no_signature"), ""])


def _rows(table: Table) -> list[str]:
    # A bar would end the cell.
    cells = [[text.replace("|", "\\|") for text in row] for row in table]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return lines[:1] + ["|" + " --- |" * len(row) for row in table[:1]] + lines[1:]


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
        f"<title>{_said('title')}</title>\n<style>{style}</style>\n</head>\n"
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
    return (
        f"<main>\n<header>\n<h1>{_said('title')}</h1>\n"
        f'<p class="claim">{escape(_claim(told))}</p>\n'
        f"{_dl(_declared(told), 'declared')}</header>\n"
        f'<p class="promise">{escape(told.statement)}</p>\n'
        + "".join(_html(section) for section in sections(told, _folded_releases(told)))
        + f'<p class="note">{escape(_said("no_signature"))} <code>capri certificate verify</code> '
        "checks this file.</p>\n</main>\n"
    )


def _html(section: Section) -> str:
    points = "".join(f"<li>{escape(point)}</li>\n" for point in section.points)
    return (
        f"<h2>{escape(section.title)}</h2>\n"
        + (f"<p>{escape(section.text)}</p>\n" if section.text else "")
        + (_dl(section.terms, section.kind) if section.terms else "")
        + (f"<ul>\n{points}</ul>\n" if points else "")
        + (_table(section.table, section.kind) if section.table else "")
    )


def _dl(terms: Terms, kind: str) -> str:
    filled = "".join(
        f"<div><dt>{escape(name)}</dt><dd{_class('absent' if text == NOT_DECLARED else '')}>"
        f"{escape(text)}</dd></div>\n"
        for name, text in terms
    )
    return f"<dl{_class(kind)}>\n{filled}</dl>\n"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _table(rows: Table, kind: str) -> str:
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
        f"<table{_class(kind)}>\n<thead><tr>{names}</tr></thead>\n<tbody>\n{filled}</tbody>\n"
        "</table>\n"
    )


# -- what the sections say ------------------------------------------------------------------------


def _said(name: str, **values: Any) -> str:
    return filled(words()["page"][name], values)


def promise(values: dict[str, Any]) -> str:
    """In numbers; a pure promise has one."""
    if not values["delta"]:
        return f"pure {values['epsilon']:g}-differential privacy"
    return f"({values['epsilon']:g}, {values['delta']:g})-differential privacy"


def _claim(told: Certificate) -> str:
    """The guarantee in one line."""
    return f"{promise(vars(told))} in the {told.model} model"


def _declared(told: Certificate) -> Terms:
    """Who, what for and when; what nobody declared is said to be so."""
    return [(name.capitalize(), text or NOT_DECLARED) for name, text in told.declaration.items()]


def _covered(told: Certificate) -> Terms:
    """What is protected, from whom, and what of it was spent."""
    alone = []
    if (by_itself := told.locally) is not None:
        promised = f"{promise(by_itself)}, from {by_itself['protects_from']}"
        alone = [("Without a shuffler", promised)]
    return [
        ("Privacy unit", told.privacy_unit),
        ("Protected", told.protects),
        ("Protected from", told.protects_from),
        *alone,
        ("Neighbouring data", told.neighbouring_relation),
        ("Spent", told.spent_means),
    ]


def _kept(told: Certificate) -> Terms:
    """How the promise is kept, and who else looked at it."""
    noise, account, audit = told.calibration, _said("no_account"), _said("no_audit")
    if told.noise_multiplier is not None:
        noise = _said("noise", **vars(told))
    if told.independent_account is not None:
        account = _said("account" if told.delta else "pure_account", **told.independent_account)
    if told.audit is not None:
        audit = _said("audit", **told.audit, percent=100 * told.audit["confidence"])
    return [
        ("Mechanism", told.mechanism),
        ("Noise", noise),
        ("Composition", told.composition),
        ("Independent account", account),
        ("Audit", audit),
    ]


def _beliefs(told: Certificate) -> Table:
    """Belief before, and after at most: one column for each chance of being exceeded."""
    chances = list(dict.fromkeys(row["exceeded_with_chance_at_most"] for row in told.beliefs))
    names = [f"After: at most, {cases(c)}" if c else "After: always at most" for c in chances]
    table = [["Belief before", *names]]
    for before in dict.fromkeys(row["before"] for row in told.beliefs):
        after = [row["after_at_most"] for row in told.beliefs if row["before"] == before]
        table.append([f"{100 * before:g} %", *(percent(each) for each in after)])
    return table


def _digests(told: Certificate) -> Terms:
    """What identifies configuration, plans and this document."""
    plans = [digest[:12] if digest else "not kept" for digest in told.digests["plans"]]
    prior, store = told.digests.get("prior"), told.digests.get("store")
    stored = []
    if store is not None:
        rollback_guard = (
            "with a rollback guard"
            if store.get("guarded")
            else "without a rollback guard outside of it"
        )
        said = (
            f"store id {store['store_id'][:12]}, generation {store['generation']}, {rollback_guard}"
        )
        stored = [("Store", said)]
    return [
        ("Configuration", told.digests["configuration"] or "not kept"),
        *([] if prior is None else [("Told beforehand", prior)]),
        ("Plans", _in_short(plans) if plans else "none yet"),
        *stored,
        ("This certificate", told.digest),
        ("Software", ", ".join(f"{name} {number}" for name, number in told.versions.items())),
    ]


def _total(told: dict[str, Any]) -> Section:
    """What the population was promised, over all that the organisation does with it."""
    when = "" if told["period"] is None else f" in {told['period']}"
    held = f"{promise(told['reserved'])} by {told['sources']} of its policies, fits and fleets"
    terms = [
        ("Population", f"{told['population']}, of {told['organisation']}"),
        ("Promised" + when, f"{promise(told['promised'])} over everything that is done with it"),
        ("In words", told["statement"]),
        ("Unit", told["unit"]),
        ("For how long", told["lasts"]),
        ("Reserved" + when, f"{held}, together ({told['account']} composition)"),
        ("Ledger", _ledger(told)),
    ]
    table = _assumed(told["assumptions"], told["kept_by"])
    return Section(title="In total", terms=terms, table=table, kind="assumptions")


def _ledger(told: dict[str, Any]) -> str:
    guard = f"{'with' if told['guarded'] else 'without'} a rollback guard outside of it"
    return f"{told['ledger'][:12]}, entry {told['generation']}, {told['digest'][:12]}, {guard}"


def _assumed(assumptions: Iterable[str], kept_by: Iterable[str]) -> Table:
    rows = [list(each) for each in zip(assumptions, kept_by, strict=True)]
    return [["The promise holds as long as", "Kept by"], *rows]


def _in_short(plans: list[str]) -> str:
    """The first digits of each, which are enough to find the whole one in the JSON."""
    if len(plans) > _MOST_ROWS:
        return f"{plans[0]} to {plans[-1]}, {len(plans)} in all; the JSON lists them"
    return ", ".join(plans)


def _every_release(told: Certificate) -> Table:
    """One row for each release under the names of its columns; nothing before the first."""
    if not told.releases:
        return []
    return [list(told.releases[0]), *([_cell(v) for v in each.values()] for each in told.releases)]


def _folded_releases(told: Certificate) -> Table:
    """The same where it fits on the page, else one row for releases in a row that are alike.

    Alike means the same mechanism and calibration, the same epsilon and the same ratio of noise to
    sensitivity to six digits: what the promise depends on. Of everything else the range is shown.
    """
    if len(told.releases) <= _MOST_ROWS:
        return _every_release(told)
    groups: list[list[dict[str, Any]]] = []
    for release in told.releases:
        if not groups or _parameters(groups[-1][-1]) != _parameters(release):
            groups.append([])
        groups[-1].append(release)
    if len(groups) > _MOST_ROWS:
        groups = [list(told.releases)]
    names = list(told.releases[0])
    return [names, *([_range(each[name] for each in group) for name in names] for group in groups)]


def _parameters(release: dict[str, Any]) -> tuple[str, ...]:
    ratio = release["noise"] / release["sensitivity"] if "sensitivity" in release else 0.0
    noise = release["mechanism"], release["norm"], release.get("calibration", "")
    return *noise, _cell(release["epsilon"]), _cell(ratio)


def _cell(value: object) -> str:
    """A number of a release."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _range(cells: Iterable[Any]) -> str:
    values = list(cells)
    if isinstance(values[0], str):
        return ", ".join(dict.fromkeys(values))
    ends = f"{min(values):.4g}", f"{max(values):.4g}"
    if isinstance(values[0], int):
        ends = str(min(values)), str(max(values))
    return " to ".join(dict.fromkeys(ends))
