"""Reports on the wire: 32 bytes, whatever the dimension.

    byte 0      0xCA
    byte 1      format version, 4
    2 to 9      first 8 bytes of the digest of the bundle it answers
    10 to 25    one-time token, also the seed of the report's directions
    26, 27      the number of a direction
    28 to 31    CRC-32 of all before

All numbers are little-endian.
"""

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray
from capri.local.checksums import checksums
from capri.privacy.directions import Words

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
