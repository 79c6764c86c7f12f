"""What users did, as bytes for the secret columns.

decision    status (1) | pool place (8) | action (8) | propensity (8) | pair (8 each)
keyed       the same, with the row of the action in place of the pair
reward      value (8) | when it came, to order those of one decision (8)
"""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import StorageError


@dataclass(frozen=True, eq=False)
class Played:
    """Some decisions as arrays: one row each."""

    status: IntArray
    place: IntArray
    action: IntArray
    propensity: FloatArray
    numbers: FloatArray  # the pair, or the action's row

    def __len__(self) -> int:
        return len(self.status)

    def blobs(self) -> list[bytes]:
        """The rows as bytes.

        >>> one = Played(np.array([2]), np.array([-1]), np.array([3]), np.ones(1), np.eye(1))
        >>> int(Played.read(one.blobs()).action[0])
        3
        """
        table = np.empty(len(self), dtype=_layout(self.numbers.shape[1]))
        for name in _NAMES:
            table[name] = getattr(self, name)
        content, width = table.tobytes(), table.itemsize
        return [content[start : start + width] for start in range(0, len(content), width)]

    @classmethod
    def read(cls, blobs: list[bytes]) -> "Played":
        """The inverse of :meth:`blobs`; all rows have as many numbers."""
        width = len(blobs[0]) if blobs else _HEAD
        if width < _HEAD or (width - _HEAD) % 8 or any(len(blob) != width for blob in blobs):
            raise StorageError("a decision of the store is damaged: restore the newest copy")
        table = np.frombuffer(b"".join(blobs), dtype=_layout((width - _HEAD) // 8))
        return cls(
            table["status"].astype(np.int64),
            table["place"].astype(np.int64),
            table["action"].astype(np.int64),
            table["propensity"].astype(np.float64),
            table["numbers"].astype(np.float64),
        )


def status_of(blob: bytes) -> int:
    """How the visit was served, without reading the rest."""
    return blob[0]


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


_REWARD = np.dtype([("value", "<f8"), ("order", "<i8")])


def reward_blobs(values: FloatArray, orders: IntArray) -> list[bytes]:
    """Rewards as bytes."""
    table = np.empty(len(values), dtype=_REWARD)
    table["value"], table["order"] = values, orders
    content = table.tobytes()
    return [content[start : start + 16] for start in range(0, len(content), 16)]


def read_rewards(blobs: list[bytes]) -> tuple[FloatArray, IntArray]:
    """Values and orders."""
    if any(len(blob) != _REWARD.itemsize for blob in blobs):
        raise StorageError("a reward of the store is damaged: restore the newest copy")
    table = np.frombuffer(b"".join(blobs), dtype=_REWARD)
    return table["value"].astype(np.float64), table["order"].astype(np.int64)
