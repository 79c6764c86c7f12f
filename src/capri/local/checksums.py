"""CRC-32 of many rows of bytes at once.

A CRC is affine over the bits of a message: of two messages of one length, the checksums' exclusive
or depends on that of the messages alone. So with ``z`` the checksum of zeros and ``t_i[w]`` that of
the 16-bit word ``w`` at place ``i``, without ``z``,

    crc(message) = z ^ t_0[w_0] ^ t_1[w_1] ^ ...

which is one look into a table for every two bytes, of all rows together.
"""

from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

# Rows that are looked up at once, and the longest message that has tables: 256 KB for two bytes.
_ROWS = 1 << 15
_LONGEST = 64
_FEW = 64  # below it a row at a time is faster


def checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32 of each row, as zlib has it.

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
