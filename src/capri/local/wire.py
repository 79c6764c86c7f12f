"""What travels: the header of a bundle, and reports of 32 bytes, whatever the dimension.

A report, all numbers little-endian:

    byte 0      0xCA
    byte 1      format version, 4
    2 to 9      first 8 bytes of the digest of the bundle it answers
    10 to 25    one-time token, also the seed of the report's directions
    26, 27      the number of a direction
    28 to 31    CRC-32 of all before

A header is JSON. Its numbers are IEEE doubles to most readers, who cannot tell ``1`` from ``1.0``.
So a whole number is one without a fraction, up to ``2^53 - 1``, however it is written; larger ones
are floats, and what has to be exact beyond that is written as text.
"""

import json
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray
from capri.errors import BundleError
from capri.privacy.sphere import Words

# One version for bundles and for reports. Earlier ones had a randomizer in byte 1.
VERSION = 4
MAGIC = 0xCA
SIZE = 32
DIGEST = slice(2, 10)
TOKEN = slice(10, 26)
_NUMBER, _CHECK = slice(26, 28), slice(28, 32)

Messages = NDArray[np.uint8]


def as_messages(content: bytes) -> Messages:
    """Reports that stand one after the other, as rows."""
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, SIZE)


def pack(digest: bytes, tokens: Words, numbers: IntArray) -> Messages:
    """Reports as rows of bytes; ``numbers``: of a direction each."""
    messages = np.empty((len(tokens), SIZE), dtype=np.uint8)
    messages[:, 0] = MAGIC
    messages[:, 1] = VERSION
    messages[:, DIGEST] = np.frombuffer(digest[:8], dtype=np.uint8)
    messages[:, TOKEN] = np.ascontiguousarray(tokens.astype("<u8")).view(np.uint8)
    messages[:, _NUMBER] = np.ascontiguousarray(numbers.astype("<u2")).view(np.uint8).reshape(-1, 2)
    messages[:, _CHECK] = _checksums(messages)
    return messages


def _checksums(messages: Messages) -> Messages:
    data = messages[:, : _CHECK.start].tobytes()
    starts = range(0, len(data), _CHECK.start)
    found = [crc32(data[start : start + _CHECK.start]) for start in starts]
    return np.array(found, dtype="<u4").view(np.uint8).reshape(-1, 4)


def are_reports(messages: Messages) -> NDArray[np.bool_]:
    """Which rows are undamaged reports of this version."""
    head = (messages[:, 0] == MAGIC) & (messages[:, 1] == VERSION)
    return np.asarray(head & (messages[:, _CHECK] == _checksums(messages)).all(axis=1))


def written_by(messages: Messages) -> NDArray[np.uint8]:
    """The format version of each row; up to version 2 it was the high half of its byte."""
    byte = messages[:, 1]
    return np.where(byte >= 16, byte >> 4, byte)


def tokens_of(messages: Messages) -> Words:
    """The one-time tokens, ``(n, 2)``."""
    return np.ascontiguousarray(messages[:, TOKEN]).view("<u8").astype(np.uint64)


def numbers_of(messages: Messages) -> IntArray:
    """The number of the direction in each report."""
    return np.ascontiguousarray(messages[:, _NUMBER]).view("<u2")[:, 0].astype(np.int64)


# -- the header of a bundle ------------------------------------------------------------------------

LARGEST_WHOLE = (1 << 53) - 1
# How deep lists and objects may be nested: far more than any honest header, and than a kernel.
_DEEPEST = 200


def read_header(data: bytes) -> dict[str, Any]:
    """Strict JSON in UTF-8: no byte order mark, no NaN, and an object on the outside."""
    header = json.loads(
        data.decode("utf-8"), parse_int=_number, parse_float=_number, parse_constant=_constant
    )
    _check_depth(header, 1)
    if not isinstance(header, dict):
        raise BundleError("the bundle is malformed: its header is no object")
    for name, kinds in _KINDS.items():
        if name in header and not isinstance(header[name], kinds):
            raise BundleError(f"the bundle is malformed: {name} is of another type")
    if not (
        isinstance(header["conduct"]["law"], dict)
        and all(isinstance(each, list) and len(each) in (2, 3) for each in header["arrays"])
        and all(isinstance(each[1], list) for each in header["arrays"])
    ):
        raise BundleError("the bundle is malformed: arrays and law are lists and an object")
    return header


_KINDS: dict[str, type | tuple[type, ...]] = {
    "arrays": list,
    "plan": dict,
    "conduct": dict,
    "grid": list,
    "kernel": dict,
    "span": dict,
    "sphere": list,
    "varying_actions": (list, type(None)),
    "action_names": (list, type(None)),
    "schema": (dict, type(None)),
}


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= LARGEST_WHOLE and value.is_integer() else value


def _constant(text: str) -> NoReturn:
    raise BundleError(f"the bundle is malformed: {text} is no number of JSON")


def _check_depth(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise BundleError(f"the bundle is malformed: nested more than {_DEEPEST} deep")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        if isinstance(each, dict | list):
            _check_depth(each, depth + 1)
