"""Reports on the wire.

    byte 0      0xCA
    byte 1      format version (high half) and randomizer (low half)
    2 to 9      first 8 bytes of the digest of the bundle it answers
    10 to 25    one-time token; to the sphere randomizer also the seed of its directions
    then        sphere: the number of a direction, 2 bytes; gaussian: m integers of 8 bytes
    last 4      CRC-32 of all before

All numbers are little-endian. A sphere report has 32 bytes whatever the dimension.
"""

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray
from capri.local.checksums import checksums
from capri.privacy.directions import Words
from capri.privacy.promise import Randomizer

VERSION = 2
MAGIC = 0xCA
DIGEST = slice(2, 10)
TOKEN = slice(10, 26)
_PAYLOAD, _CHECK = 26, 4
KINDS = {Randomizer.SPHERE: 1, Randomizer.GAUSSIAN: 2}

Messages = NDArray[np.uint8]


def report_size(randomizer: Randomizer, dimension: int) -> int:
    """Bytes of a report: 32, or 30 and 8 per coordinate."""
    payload = 2 if randomizer is Randomizer.SPHERE else 8 * dimension
    return _PAYLOAD + payload + _CHECK


def pack(randomizer: Randomizer, digest: bytes, tokens: Words, payload: IntArray) -> Messages:
    """Reports as rows of bytes; ``payload`` is ``(n,)`` numbers or ``(n, m)`` coordinates."""
    form = "<u2" if randomizer is Randomizer.SPHERE else "<i8"
    body = np.ascontiguousarray(payload.reshape(len(tokens), -1).astype(form)).view(np.uint8)
    messages = np.empty((len(tokens), _PAYLOAD + body.shape[1] + _CHECK), dtype=np.uint8)
    messages[:, 0] = MAGIC
    messages[:, 1] = VERSION << 4 | KINDS[randomizer]
    messages[:, DIGEST] = np.frombuffer(digest[:8], dtype=np.uint8)
    messages[:, TOKEN] = np.ascontiguousarray(tokens.astype("<u8")).view(np.uint8)
    messages[:, _PAYLOAD:-_CHECK] = body
    messages[:, -_CHECK:] = np.frombuffer(_checksums(messages), dtype=np.uint8).reshape(-1, 4)
    return messages


def _checksums(messages: Messages) -> bytes:
    return checksums(messages[:, :-_CHECK]).astype("<u4").tobytes()


def sound(messages: Messages) -> NDArray[np.bool_]:
    """Which rows carry a checksum that fits."""
    expected = np.frombuffer(_checksums(messages), dtype=np.uint8).reshape(-1, _CHECK)
    return np.asarray((messages[:, -_CHECK:] == expected).all(axis=1))


def tokens_of(messages: Messages) -> Words:
    """The one-time tokens, ``(n, 2)``."""
    return np.ascontiguousarray(messages[:, TOKEN]).view("<u8").astype(np.uint64)


def payload_of(messages: Messages, randomizer: Randomizer) -> IntArray:
    """Direction numbers ``(n, 1)``, or coordinates ``(n, m)``."""
    form = "<u2" if randomizer is Randomizer.SPHERE else "<i8"
    body = np.ascontiguousarray(messages[:, _PAYLOAD:-_CHECK])
    return body.view(form).astype(np.int64)
