"""Decisions by the caller's key, in memory: the same key, the same decision, while it is kept."""

import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from capri.epoch.decide import Decisions
from capri.errors import ConfigurationError, ShapeError

_ARRAYS = ("number", "action_index", "action", "propensity", "status")


def checked_keys(keys: Sequence[str] | None, count: int) -> Sequence[str] | None:
    """One text a visit. Keys are the caller's and never shown."""
    if keys is None:
        return None
    if isinstance(keys, str | bytes) or len(keys) != count:
        raise ShapeError(f"one key per context is needed, {count} in all")
    if not all(isinstance(key, str) for key in keys):
        raise ConfigurationError("the key of a decision must be a text")
    return keys


class KeyBook:
    """Decisions of this process under salted digests of their keys."""

    def __init__(self, retention: float) -> None:
        """``retention``: seconds for which a key is kept."""
        self._retention = retention
        self._salt = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[float, int, dict[str, Any]]] = {}

    def __repr__(self) -> str:
        return "KeyBook()"

    def digests(self, keys: Sequence[str]) -> list[bytes]:
        """What stands for the keys here."""
        return [
            blake2b(key.encode("utf-8", "surrogatepass"), key=self._salt, digest_size=16).digest()
            for key in keys
        ]

    def fresh(self, digests: Sequence[bytes], now: float) -> list[int]:
        """Places of keys that nothing is known of, each the first time it comes."""
        self._forget(now)
        seen: set[bytes] = set()
        places = []
        for place, digest in enumerate(digests):
            if digest not in self._known and digest not in seen:
                seen.add(digest)
                places.append(place)
        return places

    def note(self, digests: Sequence[bytes], decisions: Decisions, now: float) -> None:
        """Keep new decisions."""
        for place, digest in enumerate(digests):
            row = {name: getattr(decisions, name)[place] for name in _ARRAYS}
            row["called"] = decisions.name_of(place)
            self._known[digest] = (now + self._retention, decisions.epoch, row)

    def recall(self, digests: Sequence[bytes], make: Callable[..., Decisions]) -> Decisions:
        """The decisions of some keys, all of which are known."""
        found = [self._known[digest] for digest in digests]
        epochs = np.array([epoch for _, epoch, _ in found], dtype=np.int64)
        # Indicators of actions that were replaced may be shorter: what they lack are zeros.
        widest = max(len(row["action"]) for _, _, row in found)
        rows = [
            {**row, "action": np.pad(row["action"], (0, widest - len(row["action"])))}
            for _, _, row in found
        ]
        columns = {name: np.array([row[name] for row in rows]) for name in _ARRAYS}
        called = tuple(row["called"] for row in rows)
        return make(
            epoch=int(epochs.max()),
            epochs=epochs,
            called=None if None in called else called,
            **columns,
        )

    def _forget(self, now: float) -> None:
        """Drop what was kept long enough; keys come in the order of their time."""
        while self._known:
            digest = next(iter(self._known))
            if self._known[digest][0] > now:
                return
            del self._known[digest]
