"""Reading bodies: only the envelope may be refused, field by field, and never by a private value.

The usual body is read in one pass by its type. Whatever that does not take is read again with
Python's own parser, and judged field by field. It also knows numbers that no double holds, and
texts with line breaks or with bytes that are no UTF-8: a private cell must not refuse its user, nor
others of the same list. Such bytes become surrogates, which are in no name of ours: the cell is
unreadable or of an unknown level, and a key with some is refused by itself.
"""

import json
import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeVar

import msgspec
import numpy as np

from capri.service.messages import LONGEST_ID, LONGEST_KEY, RefusalError, RewardItem, Visit

Item = TypeVar("Item")
# How the reader of typed JSON says no; bytes that are no UTF-8 have an error of their own.
_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_KEY = f"must be a text of 1 to {LONGEST_KEY} characters"
_USER = f"must be a text of 1 to {LONGEST_KEY} characters, or a whole number below 2^63"


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_user(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return _is_text(value, LONGEST_KEY)


# Of each field that may be refused: whether it is sound, and what is allowed, in words.
_Check = tuple[Callable[[Any], bool], str]
_VISIT: dict[str, _Check] = {
    "key": (lambda value: value is None or _is_text(value, LONGEST_KEY), _KEY),
    "user": (lambda value: value is None or _is_user(value), _USER),
    "detail": (lambda value: isinstance(value, bool), "must be true or false"),
}
_REWARD: dict[str, _Check] = {
    "id": (
        lambda value: _is_text(value, LONGEST_ID),
        "must be the id of a decision, as POST /v1/decisions gave it",
    ),
    "key": _VISIT["key"],
}
_RULES: dict[type, dict[str, _Check]] = {Visit: _VISIT, RewardItem: _REWARD}
# Items of the usual kind, of which reading by type has left nothing to be checked.
_PLAIN: dict[type, Callable[[Any], bool]] = {
    Visit: lambda item: item.key is None and item.user is None,
    RewardItem: lambda item: item.key is None and item.id.isascii(),
}
_DECODERS: dict[type, tuple[Any, Any]] = {
    kind: (msgspec.json.Decoder(kind), msgspec.json.Decoder(list[kind]))  # type: ignore[valid-type]
    for kind in (Visit, RewardItem)
}


def read_one(body: bytes, kind: type[Item], deepest: int) -> Item:
    """One item."""
    body = shallow(body, deepest)
    try:
        item = _DECODERS[kind][0].decode(body)
    except _UNREAD:
        return _judged(_parsed(body), kind)
    _check(item, kind)
    return item  # type: ignore[no-any-return]


def read_many(body: bytes, kind: type[Item], deepest: int, most: int) -> list[Item | RefusalError]:
    """A list of items, each judged by itself."""
    body = shallow(body, deepest)
    usual = True
    try:
        items = _DECODERS[kind][1].decode(body)
    except _UNREAD:
        items, usual = _parsed(body), False
    if not isinstance(items, list):
        raise RefusalError(422, "must be a list of objects", "body")
    if len(items) > most:
        raise RefusalError(413, f"at most {most} items may come at once", "body")
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


def read_as(body: bytes, kind: type[Item], deepest: int) -> Item:
    """The body of an operator's call, all of it public."""
    check_depth(body, deepest)
    fields = [field.name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
    allowed = f"must be an object with the fields {', '.join(fields)}"
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except _UNREAD:
        raise RefusalError(422, f"{allowed}, as /v1/openapi.json has them", "body") from None


def _check(item: Any, kind: type) -> None:
    for field, (sound, allowed) in _RULES[kind].items():
        if not sound(getattr(item, field)):
            raise RefusalError(422, allowed, field)


def _judged(value: Any, kind: type[Item]) -> Item:
    """An item from what Python's parser has made of it."""
    fields = kind.__struct_fields__  # type: ignore[attr-defined]
    if not isinstance(value, dict):
        raise RefusalError(422, f"must be an object with the fields {', '.join(fields)}", "body")
    if any(field not in fields for field in value):
        raise RefusalError(422, f"has an unknown field; allowed: {', '.join(fields)}", "body")
    for field, (sound, allowed) in _RULES[kind].items():
        given = value.get(field, getattr(_defaults(kind), field, None))
        if not sound(given):
            raise RefusalError(422, allowed, field)
    return kind(**value)


def _defaults(kind: type) -> Any:
    return Visit() if kind is Visit else None


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


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(body: bytes, deepest: int) -> None:
    """Refuse a public body that is nested deeper than that, before anything recurses into it.

    >>> check_depth(b'{"context": {"name": "[[["}}', 2)
    >>> check_depth(b"[[[]]]", 2)
    Traceback (most recent call last):
    capri.service.messages.RefusalError: must not be nested deeper than 2 levels
    """
    if shallow(body, deepest) is not body:
        raise RefusalError(400, f"must not be nested deeper than {deepest} levels", "body")


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


def needed(fields: Sequence[str], item: Any) -> None:
    """Refuse an item that lacks a field which the policy asks for."""
    for field in fields:
        if getattr(item, field) is None:
            raise RefusalError(422, f"is needed by this policy and {_VISIT[field][1]}", field)
