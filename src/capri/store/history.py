"""The history of a private policy: which of its files came after which.

Two copies of one policy that both go on would count the same users twice and forget each other's
releases. A policy therefore carries an id, drawn when it is built, and a generation that every save
raises. It writes over the very file it has written or read last, and over no other.

What this notices: a save over a newer file, over another policy's, or a simulation over either; and
a second load of one file within a process. What it cannot: two copies that go on side by side, in
one process or in two, until the second of them saves. Give a policy one process at a time.
"""

import secrets
import warnings
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from capri.errors import StorageError

# Files of private policies that were loaded by this process, by id and generation.
_LOADED: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class History:
    """How far a private policy has come: its id, and how often it was saved."""

    policy_id: str
    generation: int

    @classmethod
    def new(cls) -> "History":
        """Of a policy that was just built."""
        return cls(secrets.token_hex(16), 0)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "History | None":
        """Of a saved file; None for a simulation."""
        stored = values.get("history")
        return None if stored is None else cls(str(stored["policy_id"]), int(stored["generation"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {"policy_id": self.policy_id, "generation": self.generation}

    def next(self) -> "History":
        """After one more save."""
        return replace(self, generation=self.generation + 1)


def make_room(
    path: str | PathLike[str], stored: dict[str, Any] | None, own: History | None
) -> None:
    """Refuse to write over a newer file of this policy; keep another policy's under a new name.

    ``stored`` are the values of the file that is there, None where there is none.
    """
    if stored is None or (found := History.of(stored)) is None:
        return
    if own is None or own.policy_id != found.policy_id:
        kept = Path(f"{path}.{found.policy_id[:8]}-{found.generation}")
        if kept.exists():
            raise StorageError(
                f"{path} holds another private policy, with its users and its ledger, and {kept} "
                "is there already: save elsewhere, or move one of them away"
            )
        Path(path).rename(kept)
        warnings.warn(
            f"{path} held another private policy, with its users and its ledger: it is kept as "
            f"{kept}",
            stacklevel=4,
        )
        return
    if own.generation != found.generation:
        raise StorageError(
            f"{path} has generation {found.generation} of this policy, and this copy goes on from "
            f"generation {own.generation}: another copy was saved since, and what it released "
            "would be forgotten. Load that file and go on with it"
        )


def note_load(path: str | PathLike[str], found: History | None, *, take_over: bool) -> History:
    """The history to go on with; refuses a second load of one file within a process."""
    if found is None:
        raise StorageError(f"{path} is damaged: it does not say which history it belongs to")
    key = (found.policy_id, found.generation)
    if key in _LOADED and not take_over:
        raise StorageError(
            f"{Path(path)} was loaded by this process before and not saved since: two policies of "
            "one history would count users twice. Go on with the first one; or, if it is gone and "
            "what it did is to be forgotten, load with take_over=True"
        )
    _LOADED.add(key)
    return found
