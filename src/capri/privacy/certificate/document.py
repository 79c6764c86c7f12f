"""The certificate itself: its content, who declares it, its forms, and the digest over all."""

import datetime
import tomllib
from dataclasses import asdict, dataclass, fields
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from capri.errors import ConfigurationError
from capri.files import digest_of, json_values, to_json, write_atomically

SCHEMA = "urn:capri:certificate:1"
_LONGEST = 300  # characters of a declaration: a certificate has two pages
# The guarantee itself, without what was done so far and what is attached to one run.
_TERMS = (
    "model", "statement", "privacy_unit", "neighbouring_relation", "epsilon", "delta", "protects",
    "assumptions", "mechanism", "calibration", "noise_multiplier", "composition", "versions",
)  # fmt: skip


@cache
def words() -> dict[str, dict[str, Any]]:
    """What certificates say, by kind and part; names in braces are to be filled in."""
    file = files("capri.privacy.certificate").joinpath("words.toml")
    return tomllib.loads(file.read_text("utf-8"))


def filled(text: str, values: dict[str, Any]) -> str:
    """One line, with values for names."""
    return " ".join(text.split()).format(**values)


def worded(*kinds: str) -> dict[str, Any]:
    """The parts of these kinds, unfilled: each kind says more than those before, or otherwise."""
    parts: dict[str, Any] = {}
    for kind in kinds:
        for name, part in words()[kind].items():
            parts[name] = parts.get(name, {}) | part if isinstance(part, dict) else part
    return parts


def assumed(parts: dict[str, Any], values: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Take the assumptions out of some parts: their texts, and who keeps each."""
    kept = [(filled(text, values), keeper) for text, keeper in parts.pop("assumptions").values()]
    said = [each for each in kept if each[0]]
    return tuple(text for text, _ in said), tuple(keeper for _, keeper in said)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Who makes the promise, and what for: what no program can know and somebody has to declare.

    What is left out is said to be not declared.

    ``date`` is a ``datetime.date`` or a text such as "2026-11-16": no clock is asked, so that the
    same run has the same certificate.

    >>> Declaration(organisation="Ada's Clinic", date="2026-11-16").to_dict()["date"]
    '2026-11-16'
    >>> Declaration(date="16/11/2026")
    Traceback (most recent call last):
    capri.errors.ConfigurationError: date must be a date such as 2026-11-16, got '16/11/2026'
    """

    organisation: str | None = None
    contact: str | None = None
    purpose: str | None = None
    date: datetime.date | str | None = None

    def __post_init__(self) -> None:
        for name in ("organisation", "contact", "purpose"):
            object.__setattr__(self, name, checked_line(name, getattr(self, name)))
        object.__setattr__(self, "date", _date(self.date))

    def to_dict(self) -> dict[str, str | None]:
        """Plain values; None for what was not declared."""
        values = asdict(self)
        return {name: values[name] for name in ("date", "organisation", "contact", "purpose")}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is promised, to whom, under which assumptions, and what was done to keep it.

    ``kept_by`` names who must keep each of the ``assumptions``, in the same order. ``presence``
    says whether it is protected that a unit takes part at all. ``beliefs`` is the table of
    :func:`~capri.privacy.certificate.beliefs.belief_table`. ``digests`` identify the configuration
    and the plan of every release; None where one was not kept. ``locally``: what a report promises
    by itself where the promise above is that of mixed reports. ``in_total``: what its population
    was promised over all sources of an organisation's ledger, and what is reserved of it.
    """

    model: str
    statement: str
    privacy_unit: str
    neighbouring_relation: str
    epsilon: float
    delta: float
    protects: str
    protects_from: str
    presence: str
    not_protected: tuple[str, ...]
    assumptions: tuple[str, ...]
    kept_by: tuple[str, ...]
    beliefs: tuple[dict[str, Any], ...]
    mechanism: str
    calibration: str
    noise_multiplier: float | None
    composition: str
    independent_account: dict[str, Any] | None
    audit: dict[str, Any] | None
    releases: tuple[dict[str, Any], ...]
    spent: dict[str, float | None]
    spent_means: str
    declaration: dict[str, str | None]
    digests: dict[str, Any]
    versions: dict[str, str]
    locally: dict[str, Any] | None = None
    in_total: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Certificate":
        """The inverse of :meth:`to_dict`; the digest is not looked at, see :mod:`.verify`."""
        known = {field.name for field in fields(cls)}
        content = {name: value for name, value in values.items() if name in known}
        tuples = ("assumptions", "kept_by", "not_protected", "beliefs", "releases")
        return cls(**(content | {name: tuple(content[name]) for name in tuples}))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form of everything that :meth:`to_dict` says besides it."""
        return digest_of(self._content())

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json_values({"schema": SCHEMA, **asdict(self)})
        for name in ("locally", "in_total"):  # certificates of others say nothing of them
            if content[name] is None:
                del content[name]
        return content

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the digest over all of them."""
        content = self._content()
        return {**content, "digest": digest_of(content)}

    def terms(self) -> dict[str, Any]:
        """The guarantee alone, as a simulation of the same settings may quote it."""
        values = asdict(self)
        return {name: values[name] for name in _TERMS}

    def to_json(self) -> str:
        """The certificate for a machine; certificate.schema.json says what stands where."""
        return to_json(self.to_dict())

    def to_text(self) -> str:
        """The certificate for a reader, as Markdown, with every release."""
        from capri.privacy.certificate.pages import markdown

        return markdown(self)

    def to_html(self) -> str:
        """Two printed pages that open anywhere; the JSON is inside."""
        from capri.privacy.certificate.pages import page

        return page(self)

    def __repr__(self) -> str:
        from capri.privacy.certificate.pages import promise

        spent = f"epsilon at most {self.spent['epsilon']:.6g} of each user's own"
        return (
            f"Certificate({promise(vars(self))}, {self.model} "
            f"model; {self.privacy_unit}; {len(self.releases)} releases, {spent}; "
            ".to_text() says all)"
        )

    def _repr_html_(self) -> str:
        from capri.privacy.certificate.pages import body

        # Folded, and without the style of the page, which would spread to the whole notebook.
        return f"<details><summary>{escape(repr(self))}</summary>{body(self)}</details>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write ``.json``, ``.html`` or Markdown, by the ending of the path."""
        target = Path(path)
        forms = {".json": self.to_json, ".html": self.to_html}
        write_atomically(target, forms.get(target.suffix, self.to_text)().encode())


def checked_line(name: str, value: object) -> str | None:
    """One line of text without blank ends, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a text, got {type(value).__name__}")
    text = " ".join(value.split())
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise ConfigurationError(
            f"{name} must be 1 to {_LONGEST} printable characters, got {len(text)}: leave it out "
            "where there is nothing to declare"
        )
    return text


def _date(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        value = value.date()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value).isoformat()
        except ValueError:
            pass
    raise ConfigurationError(f"date must be a date such as 2026-11-16, got {value!r}")
