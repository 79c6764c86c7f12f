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
from functools import lru_cache
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray
from capri.errors import BundleError
from capri.privacy.sphere import Words

# Rows that are looked up at once, and the longest message that has tables: 256 KB for two bytes.
_ROWS = 1 << 15
_LONGEST = 64
_FEW = 64  # below it a row at a time is faster


def checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32 of each row, as zlib has it.

    A CRC is affine over the bits of a message: of two messages of one length, the checksums'
    exclusive or depends on that of the messages alone. So with ``z`` the checksum of zeros and
    ``t_i[w]`` that of the 16-bit word ``w`` at place ``i``, without ``z``,

        crc(message) = z ^ t_0[w_0] ^ t_1[w_1] ^ ...

    which is one look into a table for every two bytes, of all rows together.

    >>> rows = np.frombuffer(b"onetwo", dtype=np.uint8).reshape(2, 3)
    >>> checksums(rows).tolist() == [crc32(b"one"), crc32(b"two")]
    True
    """
    count, size = rows.shape
    if count < _FEW or not 1 < size <= _LONGEST:
        data = rows.tobytes()
        single = [crc32(data[start : start + size]) for start in range(0, len(data), size or 1)]
        return np.array(single, dtype=np.uint32)
    zeros, tables, last = _tables(size)
    sums = np.empty(count, dtype=np.uint32)
    for start in range(0, count, _ROWS):
        part = rows[start : start + _ROWS]
        words = np.ascontiguousarray(part[:, : size - size % 2]).view("<u2")
        found = np.full(len(part), zeros, dtype=np.uint32)
        for place, table in enumerate(tables):
            found ^= table.take(words[:, place])
        if size % 2:
            found ^= last.take(part[:, -1])
        sums[start : start + _ROWS] = found
    return sums


@lru_cache(maxsize=8)
def _tables(size: int) -> tuple[int, list[NDArray[np.uint32]], NDArray[np.uint32]]:
    """The checksum of zeros, a table for each two bytes, and one for a byte that is left over."""
    zeros = crc32(bytes(size))
    single = np.array(
        [
            [crc32(bytes(place) + bytes([value]) + bytes(size - place - 1)) for value in range(256)]
            for place in range(size)
        ],
        dtype=np.uint32,
    ) ^ np.uint32(zeros)
    # A word's low byte comes first.
    pairs = [
        (single[place + 1][:, None] ^ single[place][None]).ravel()
        for place in range(0, size - size % 2, 2)
    ]
    return zeros, pairs, single[-1]


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
    found = checksums(messages[:, : _CHECK.start]).astype("<u4")
    return np.frombuffer(found.tobytes(), dtype=np.uint8).reshape(-1, 4)


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
