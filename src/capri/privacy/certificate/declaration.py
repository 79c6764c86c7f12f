"""Who makes the promise, and what for: what no program can know and somebody has to declare."""

import datetime
from dataclasses import dataclass

from capri.errors import ConfigurationError

_LONGEST = 300  # characters: a certificate has two pages


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What stands at the head of a certificate. What is left out is said to be not declared.

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
            object.__setattr__(self, name, _line(name, getattr(self, name)))
        object.__setattr__(self, "date", _date(self.date))

    def to_dict(self) -> dict[str, str | None]:
        """Plain values; None for what was not declared."""
        date = None if self.date is None else str(self.date)
        return {
            "date": date,
            "organisation": self.organisation,
            "contact": self.contact,
            "purpose": self.purpose,
        }


def _line(name: str, value: object) -> str | None:
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
