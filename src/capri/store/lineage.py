"""Which copy of a store is the newest that was seen.

Every publication (a close, a release, a plan) raises the generation by one and chains a digest:

    digest(0) = H(line),    digest(g) = H(digest(g - 1), what was published at g)

A copy is older than one already seen if its generation is lower; it went another way if its digest
at the generation seen is another one. Going on with either would release data twice, and forget
what users have spent. What was seen is remembered by the process, beside an SQLite file, and in
certificates.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock

from capri.errors import StorageError
from capri.files import write_atomically

# What this process has seen, by line.
_SEEN: dict[str, "Seen"] = {}
_LOCK = Lock()


@dataclass(frozen=True)
class Seen:
    """How far a line of history had come."""

    line: str
    generation: int
    digest: str


def first_digest(line: str) -> str:
    """Of a store that has published nothing."""
    return sha256(f"capri store {line}".encode()).hexdigest()


def next_digest(before: str, published: bytes) -> str:
    """The chain with one more link."""
    return sha256(bytes.fromhex(before) + sha256(published).digest()).hexdigest()


def check_newest(
    where: str, now: Seen, digest_at: Callable[[int], str | None], *others: Seen | None
) -> None:
    """Refuse a store that is behind what was seen of its line, or went another way.

    ``digest_at`` gives the store's own digest of a generation, None where it has none. ``others``
    must have been known before the store was read: it may go on at any time.
    """
    for seen in others:
        if seen is None or seen.line != now.line:
            continue
        if now.generation < seen.generation:
            raise StorageError(
                f"{where} is an older copy: it has generation {now.generation}, and generation "
                f"{seen.generation} of the same policy was seen. What was released since would be "
                "released again. Restore the newest copy, or begin a new store with new users"
            )
        if digest_at(seen.generation) != seen.digest:
            raise StorageError(
                f"{where} went another way than a copy that was seen: both are at or beyond "
                f"generation {seen.generation} and differ there. Two copies of one policy were "
                "used side by side: go on with the other one, or begin a new store"
            )


def recalled(line: str) -> Seen | None:
    """How far this process has seen the line come."""
    with _LOCK:
        return _SEEN.get(line)


def remember(now: Seen) -> None:
    """Let this process know how far the line has come."""
    with _LOCK:
        known = _SEEN.get(now.line)
        if known is None or known.generation < now.generation:
            _SEEN[now.line] = now


def read_beside(path: Path, line: str) -> Seen | None:
    """What the small file beside an SQLite file has seen of a line."""
    try:
        found = json.loads(_beside(path).read_text())[line]
        return Seen(line, int(found["generation"]), str(found["digest"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no such file, or one that says nothing of this line


def write_beside(path: Path, now: Seen) -> None:
    """Note in the small file how far the line has come; lines of older stores stay."""
    place = _beside(path)
    with _LOCK:
        try:
            notes = json.loads(place.read_text())
        except (OSError, ValueError):
            notes = {}
        known = notes.get(now.line)
        if known is None or known["generation"] < now.generation:
            notes[now.line] = {"generation": now.generation, "digest": now.digest}
            write_atomically(place, json.dumps(notes).encode(), confidential=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-seen")
