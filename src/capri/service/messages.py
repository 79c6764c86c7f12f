"""What goes over the wire: types of requests and answers, and how bodies are read.

Only the envelope may be refused, field by field, and never by a private value. The usual body is
read in one pass by its type. Whatever that does not take is read again with Python's own parser,
and judged field by field. That parser also knows numbers that no double holds, and texts with line
breaks or with bytes that are no UTF-8: a private cell must not refuse its user, nor others of the
same list. Such bytes become surrogates, which are in no name of ours: the cell is unreadable or of
an unknown level, and a key with some is refused by itself.
"""

import json
import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from capri.service.auth import RefusalError

LONGEST_KEY: Final = 200
LONGEST_ID: Final = 64
REPORT_SIZE: Final = 32

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
UserId = Key | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Item = TypeVar("Item", bound=Struct)
encode = msgspec.json.Encoder().encode

# What requests are made of holds nothing that holds it: the collector of cycles need not look.


class DecisionRequest(Struct, forbid_unknown_fields=True, gc=False):
    """Somebody is to be decided for.

    All of ``context`` and ``actions`` is private: whatever is there is served.
    """

    context: Any = None
    key: Key | None = None
    user: UserId | None = None
    actions: Any = UNSET
    chosen: Any = UNSET
    chosen_propensity: Any = UNSET
    detail: bool = False


class RewardRequest(Struct, forbid_unknown_fields=True, gc=False):
    """The reward of a decision. ``reward`` is private: one that is no number counts as missing."""

    id: Id
    reward: Any = None
    key: Key | None = None


class DecisionAnswer(Struct, omit_defaults=True, gc=False):
    """A decision, by names. ``index`` and ``features`` come where ``detail`` was asked for."""

    id: str
    action: str
    propensity: float
    epoch: int
    status: str
    marks: tuple[str, ...] = ()
    index: int | UnsetType = UNSET
    features: list[float] | UnsetType = UNSET


class RewardAnswer(Struct):
    """What became of a reward."""

    status: str


class ReportRequest(Struct, forbid_unknown_fields=True):
    """What a device uploads, as hexadecimal digits."""

    report: Annotated[str, Meta(pattern=f"^[0-9a-fA-F]{{{2 * REPORT_SIZE}}}$")]


class ReportAnswer(Struct):
    """What became of a report."""

    status: str


class ErrorDetail(Struct, omit_defaults=True):
    """Why something was refused: the field, and what is allowed. No value is ever quoted."""

    problem: str
    field: str = ""


class ErrorAnswer(Struct):
    """The answer to a request that was refused or failed."""

    error: ErrorDetail


class RefusedItem(Struct):
    """An item of a list that did not get through; others of the list did.

    ``status`` is ``refused``: it was not done; or ``in doubt``: it was done or not, and asking
    again with the same key settles it.
    """

    status: str
    error: ErrorDetail


class CatalogueRequest(Struct, forbid_unknown_fields=True):
    """A new version of the actions, from the next epoch on."""

    actions: list[Any]
    why: str = ""


class SettingsRequest(Struct, forbid_unknown_fields=True):
    """Tables as those of the policy file, of what is to change from the next epoch on."""

    settings: dict[str, Any]
    why: str = ""


class ModeRequest(Struct, forbid_unknown_fields=True):
    """Who decides from now on."""

    mode: str
    action: str | None = None
    why: str = ""


class CloseRequest(Struct, forbid_unknown_fields=True):
    """Close the epochs whose decisions are all taken; ``early``, also the one under way."""

    early: bool = False


class SumRequest(Struct, forbid_unknown_fields=True):
    """What the reports of an epoch add up to: the file that ``capri aggregate`` wrote."""

    format: str
    version: int
    digest: str
    epoch: int
    accepted: int
    replayed: int
    unknown: int
    malformed: int
    sum: list[str]
    set_aside: list[str] = []


# -- fields that may be refused --------------------------------------------------------------------

_KEY = f"must be a text of 1 to {LONGEST_KEY} characters"
_USER = f"{_KEY}, or a whole number below 2^63"
# What is allowed, in words; the types of the fields say the same.
_ALLOWED: dict[type, dict[str, str]] = {
    DecisionRequest: {"key": _KEY, "user": _USER, "detail": "must be true or false"},
    RewardRequest: {
        "id": "must be the id of a decision, as POST /v1/decisions gave it",
        "key": _KEY,
    },
}
_FIELDS = {
    kind: {each.name: each for each in msgspec.structs.fields(kind) if each.name in allowed}
    for kind, allowed in _ALLOWED.items()
}
# Items of the usual kind, of which reading by type has left nothing to be checked.
_PLAIN: dict[type, Callable[[Any], bool]] = {
    DecisionRequest: lambda item: item.key is None and item.user is None,
    RewardRequest: lambda item: item.key is None and item.id.isascii(),
}


def needed(fields: Sequence[str], item: Any) -> None:
    """Refuse an item that lacks a field which the policy asks for."""
    for field in fields:
        if getattr(item, field) is None:
            allowed = _ALLOWED[DecisionRequest][field]
            raise RefusalError(422, f"is needed by this policy and {allowed}", field)


def _check(item: Any, kind: type) -> None:
    """Refuse an item that was read by its type for a text with half a letter."""
    for field, allowed in _ALLOWED[kind].items():
        if not _is_whole(getattr(item, field)):
            raise RefusalError(422, allowed, field)


def _is_whole(value: object) -> bool:
    """Whether a text has no surrogate; whatever is no text has none."""
    if not isinstance(value, str) or value.isascii():
        return True
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _fits(value: object, kind: Any) -> bool:
    """Whether a value that Python's parser made is one of a type."""
    if not _is_whole(value):
        return False
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# -- reading ---------------------------------------------------------------------------------------

# How the reader of typed JSON says no; bytes that are no UTF-8 have an error of their own.
_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ONE: dict[type, Any] = {kind: msgspec.json.Decoder(kind) for kind in _ALLOWED}
_MANY: dict[type, Any] = {kind: msgspec.json.Decoder(list[kind]) for kind in _ALLOWED}  # type: ignore[valid-type]
_report = msgspec.json.Decoder(ReportRequest)
_reports = msgspec.json.Decoder(list[msgspec.Raw])
_REPORT = f"must be an object with the field report: {2 * REPORT_SIZE} hexadecimal digits"
# Levels of a body that is public, all of it.
_PUBLIC_DEPTH = 16
_SPACES = b" \t\r\n"


def is_list(body: bytes) -> bool:
    """Whether a body is a list, if it is JSON."""
    return body.lstrip(_SPACES).startswith(b"[")


def read_one(body: bytes, kind: type[Item], deepest: int) -> Item:
    """One item."""
    body = shallow(body, deepest)
    try:
        item: Item = _ONE[kind].decode(body)
    except _UNREAD:
        return _judged(_parsed(body), kind)
    if not _PLAIN[kind](item):
        _check(item, kind)
    return item


def read_many(body: bytes, kind: type[Item], deepest: int, most: int) -> list[Item | RefusalError]:
    """A list of items, each judged by itself."""
    body = shallow(body, deepest)
    usual = True
    try:
        items = _MANY[kind].decode(body)
    except _UNREAD:
        items, usual = _parsed(body), False
    if not isinstance(items, list):
        raise RefusalError(422, "must be a list of objects", "body")
    _check_count(len(items), most, "items")
    if usual and all(map(_PLAIN[kind], items)):  # their types say it all
        return items
    return [_one_of_many(item, kind) for item in items]


def _one_of_many(item: Any, kind: type[Item]) -> Item | RefusalError:
    try:
        if not isinstance(item, kind):
            return _judged(item, kind)
        _check(item, kind)
    except RefusalError as refusal:
        return refusal
    return item


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise RefusalError(413, f"at most {most} {what} may come at once", "body")


def _judged(value: Any, kind: type[Item]) -> Item:
    """An item from what Python's parser has made of it."""
    fields = kind.__struct_fields__
    if not isinstance(value, dict):
        raise RefusalError(422, f"must be an object with the fields {', '.join(fields)}", "body")
    if any(field not in fields for field in value):
        raise RefusalError(422, f"has an unknown field; allowed: {', '.join(fields)}", "body")
    for field, allowed in _ALLOWED[kind].items():
        info = _FIELDS[kind][field]
        if not _fits(value.get(field, info.default), info.type):
            raise RefusalError(422, allowed, field)
    return kind(**value)


def _parsed(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        return json.loads(text, parse_int=_whole, strict=False)
    except (ValueError, RecursionError):
        raise RefusalError(400, "must be JSON in UTF-8", "body") from None


def _whole(digits: str) -> int | float:
    """Numbers of any length: Python refuses to convert very long ones."""
    if len(digits) < 400:
        return int(digits)
    return -inf if digits.startswith("-") else inf


def read_public(body: bytes, kind: type[Item]) -> Item:
    """The body of an operator's call, all of it public."""
    _check_depth(body)
    allowed = f"must be an object with the fields {', '.join(kind.__struct_fields__)}"
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except _UNREAD:
        raise RefusalError(422, f"{allowed}, as /v1/openapi.json has them", "body") from None


def read_reports(
    body: bytes, most: int, *, binary: bool, size: int = REPORT_SIZE
) -> list[bytes | RefusalError]:
    """Reports one behind the other; or a report as JSON, or a list of them."""
    if binary:
        count, rest = divmod(len(body), size)
        if rest or not count:
            raise RefusalError(422, f"must be reports of {size} bytes each", "body")
        _check_count(count, most, "reports")
        return [body[start : start + size] for start in range(0, len(body), size)]
    _check_depth(body)
    if not is_list(body):
        return [_read_report(body)]
    try:
        listed = _reports.decode(body)
    except _UNREAD:
        raise RefusalError(400, "must be JSON in UTF-8", "body") from None
    _check_count(len(listed), most, "reports")
    items: list[bytes | RefusalError] = []
    for each in listed:
        try:
            items.append(_read_report(bytes(each)))
        except RefusalError as refusal:
            items.append(refusal)
    return items


def _read_report(text: bytes) -> bytes:
    try:
        return bytes.fromhex(_report.decode(text).report)
    except (*_UNREAD, ValueError):
        raise RefusalError(422, _REPORT, "report") from None


# -- depth -----------------------------------------------------------------------------------------

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def _check_depth(body: bytes) -> None:
    """Refuse a public body that is nested too deeply, before anything recurses into it."""
    if shallow(body, _PUBLIC_DEPTH) is not body:
        raise RefusalError(400, f"must not be nested deeper than {_PUBLIC_DEPTH} levels", "body")


def shallow(body: bytes, deepest: int) -> bytes:
    """The body with a 0 for whatever is nested deeper than that, before anything recurses into it.

    So deep only private values are, which may not refuse their user, nor others of the same list:
    what holds the 0 is no number, text or set, and is served and marked as such.

    >>> shallow(b'[{"context": {"age": [[1], 2]}}, {"context": {"age": 3}}]', 4)
    b'[{"context": {"age": [0, 2]}}, {"context": {"age": 3}}]'
    """
    if body.count(b"[") + body.count(b"{") <= deepest:
        return body
    plain = _ESCAPED.sub(b"..", body) if b"\\" in body else body
    left = _STRINGS.sub(b"", plain.translate(_ALIKE, _OTHERS))
    for _ in range(deepest):  # every turn takes the innermost level away
        left = left.replace(b"[]", b"")
        if not left:
            return body
    letters = np.frombuffer(plain, dtype=np.uint8)
    outside = np.cumsum(letters == ord('"')) % 2 == 0
    after = np.cumsum(_STEPS[letters] * outside, dtype=np.int64)
    before = np.concatenate(([0], after[:-1]))
    if after.max() <= deepest:
        return body  # not even JSON: the parser says so
    cut = np.frombuffer(body, dtype=np.uint8).copy()
    cut[(before == deepest) & (after > deepest)] = ord("0")
    return cut[before <= deepest].tobytes()
