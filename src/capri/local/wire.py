"""Reports on the wire: 32 bytes, whatever the dimension.

    byte 0      0xCA
    byte 1      format version, 4
    2 to 9      first 8 bytes of the digest of the bundle it answers
    10 to 25    one-time token, also the seed of the report's directions
    26, 27      the number of a direction
    28 to 31    CRC-32 of all before

All numbers are little-endian.
"""

from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray
from capri.privacy.directions import Words

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
