"""How values are kept: public ones as one piece, and what users did as bytes of secret columns.

Public values are bytes in a database (:mod:`capri.codec`) and stay what they are in memory. Equal
values make equal bytes, so that digests of them can be compared.

What users did:

decision    status (1) | pool place (8) | action (8) | propensity (8) | context (8 each)
            [| owner (17)]; where contexts bring their actions, the pair in place of the context
keyed       the same, with the row of the action in place of the context
reward      what the rewards of one decision make together (8)
            [| digests of their keys, 6 each, with room for as many as count]

The owner is the digest of the user, where users have ids: what they did can be found and deleted
while it is here. It is 1 + 16 bytes, so that the length of a value tells whether it has one. A
visit in mode "shadow" has its weight where others have the propensity, and no pair.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import pack
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.codec import Arrays, Values, packed, unpacked
from capri.epoch.decisions import DEFAULT, FROZEN, SHADOW
from capri.epoch.rewards import MOST_REWARDS
from capri.errors import StorageError


class Codec(ABC):
    """How public values are kept. It crosses to another process, so it has no state."""

    @abstractmethod
    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """What is kept of some values."""

    @abstractmethod
    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""

    @abstractmethod
    def noted(self, kept: Any) -> bytes:
        """What a history of publications notes of it; of something large its :meth:`mark`."""

    def mark(self, kept: Any) -> bytes:
        """The digest of what is noted of it; nothing where nothing is."""
        found = self.noted(kept)
        return sha256(found).digest() if found else b""


class BytesCodec(Codec):
    """For databases."""

    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """One piece of bytes."""
        return packed(values, arrays)

    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""
        return unpacked(kept)

    def noted(self, kept: Any) -> bytes:
        """As it is."""
        return bytes(kept)


class PlainCodec(Codec):
    """For memory: values stay what they are, and nobody writes into them."""

    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """Both together."""
        return values, arrays or {}

    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""
        if kept is None:
            raise StorageError("a public value is missing")
        values, arrays = kept
        return values, arrays

    def noted(self, kept: Any) -> bytes:
        """No copy can be put in the place of memory: there is no history to keep."""
        return b""


# What the policy did not decide: it teaches nothing. A void one is in shadow mode and not counted.
VOID = 16
_OWNER = 17


@dataclass(eq=False, slots=True)
class Played:
    """Some decisions as arrays: one row each."""

    status: IntArray
    place: IntArray
    action: IntArray
    propensity: FloatArray
    numbers: FloatArray  # the context, the pair, or the action's row

    def __len__(self) -> int:
        return len(self.status)

    def blobs(self, columns: int | None = None) -> list[bytes]:
        """The rows as bytes, with so many of their numbers.

        >>> one = Played(np.array([2]), np.array([-1]), np.array([3]), np.ones(1), np.eye(1))
        >>> int(Played.read(one.blobs()).action[0])
        3
        """
        numbers = self.numbers[:, :columns]
        table = np.empty(len(self), dtype=_layout(numbers.shape[1]))
        for name in _NAMES:
            table[name] = numbers if name == "numbers" else getattr(self, name)
        content, width = table.tobytes(), table.itemsize
        return [content[start : start + width] for start in range(0, len(content), width)]

    @classmethod
    def read(cls, blobs: list[bytes]) -> "Played":
        """The inverse of :meth:`blobs`; where actions were replaced, short rows end in zeros."""
        blobs = [_without_owner(blob) for blob in blobs]
        width = max((len(blob) for blob in blobs), default=_HEAD)
        if any((len(blob) - _HEAD) % 8 for blob in blobs):
            raise StorageError("a decision of the store is damaged: restore the newest copy")
        blobs = [blob.ljust(width, b"\0") for blob in blobs]
        table = np.frombuffer(b"".join(blobs), dtype=_layout((width - _HEAD) // 8))
        return cls(
            table["status"].astype(np.int64),
            table["place"].astype(np.int64),
            table["action"].astype(np.int64),
            table["propensity"].astype(np.float64),
            table["numbers"].astype(np.float64),
        )


def is_counted(blob: bytes) -> bool:
    """Whether a reward for this decision counts, without reading the rest."""
    return blob[0] in (0, SHADOW)


def owned(blobs: list[bytes], owners: Sequence[str]) -> list[bytes]:
    """Values with the digests of their users behind them."""
    return [blob + b"u" + bytes.fromhex(owner) for blob, owner in zip(blobs, owners, strict=True)]


def owner_of(blob: bytes) -> str | None:
    """The digest of the user; None where a value has none."""
    return blob[-16:].hex() if (len(blob) - _HEAD) % 8 == 1 else None


def _without_owner(blob: bytes) -> bytes:
    return blob[:-_OWNER] if (len(blob) - _HEAD) % 8 == 1 else blob


def blank(blob: bytes) -> bytes:
    """A visit of which nothing is left: it keeps its slot and counts for nothing.

    In the modes in which visits do not teach it stays one of those, since their number is public.
    """
    status = blob[0]
    if status == SHADOW or status & VOID:
        status = VOID | 1
    elif status not in (DEFAULT, FROZEN):
        status = 1
    return bytes([status]) + bytes(len(_without_owner(blob)) - 1)


_NAMES = ("status", "place", "action", "propensity", "numbers")
_HEAD = 25


def _layout(columns: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("status", "u1"),
            ("place", "<i8"),
            ("action", "<i8"),
            ("propensity", "<f8"),
            ("numbers", "<f8", (columns,)),
        ]
    )


# Bytes of a digest: among 32 keys of a decision two are alike once in 10^11 decisions.
REWARD_DIGEST = 6


def reward_blob(value: float, digests: Sequence[bytes]) -> bytes:
    """What the rewards of a decision make together, with the keys they came under.

    All values have one length: how many rewards came is not for a file to tell.

    >>> read_reward(reward_blob(0.5, [b"6bytes"]))
    (0.5, (b'6bytes',))
    """
    return pack("<d", value) + b"".join(digests).ljust(MOST_REWARDS * REWARD_DIGEST, b"\0")


def read_reward(blob: bytes) -> tuple[float, tuple[bytes, ...]]:
    """The inverse of :func:`reward_blob`."""
    keys = blob[8:].rstrip(b"\0")
    starts = range(8, 8 + len(keys), REWARD_DIGEST)
    digests = (blob[start : start + REWARD_DIGEST] for start in starts)
    return float(reward_values([blob])[0]), tuple(digests)


def reward_values(blobs: Sequence[bytes]) -> FloatArray:
    """What the rewards of some decisions make together."""
    if any(len(blob) < 8 for blob in blobs):
        raise StorageError("a reward of the store is damaged: restore the newest copy")
    return np.frombuffer(b"".join([blob[:8] for blob in blobs]), dtype="<f8").astype(np.float64)
