"""Which copy is the newest: rollback guards of stores, histories of private policies' files.

Every publication (a close, a release, a plan) raises the generation by one and chains a digest:

    digest(0) = H(store id),    digest(g) = H(digest(g - 1), what was published at g)

A copy is older than one already seen if its generation is lower; it went another way if its digest
at the generation seen is another one. Going on with either would release data twice, and forget
what users have spent. What was seen is remembered by the process, beside an SQLite file, and in
certificates.

A store that is put back from a copy brings its own past with it, and so does the small file beside
it. Only what is kept elsewhere can tell: a rollback guard, which is a file or a table
``capri_rollback_guard`` in some other database. It holds checkpoints alone, all of which are
public, and one guard serves any number of stores. It is read before a store is, and written after
every publication: a process that dies in between leaves it one publication behind, which the next
one makes up for.

A guard that knows nothing of a store that has published something is the wrong one, an empty
folder in the place of a share, or a lost one. It is refused, and never begun anew in silence
(:meth:`capri.store.sql.SqlRepository.note`). Reading makes neither file nor table.

**Files of private policies** have a history of their own. Two copies of one policy that both go on
would count the same users twice and forget each other's releases. A policy therefore carries an id,
drawn when it is built, and a generation that every save raises. It writes over the very file it has
written or read last, and over no other.

What this notices: a save over a newer file, over another policy's, or a simulation over either; and
a second load of one file within a process. What it cannot: two copies that go on side by side, in
one process or in two, until the second of them saves. Give a policy one process at a time.
"""

import json
import os
import secrets
import sqlite3
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

from capri.errors import AwayError, ConfigurationError, StorageError, warn_of_leak
from capri.files import write_atomically
from capri.store.transaction import POSTGRES, SQLITE

# What this process has seen, by store.
_SEEN: dict[str, "Checkpoint"] = {}
_LOCK = Lock()


@dataclass(frozen=True)
class Checkpoint:
    """How far the history of a store had come."""

    store_id: str
    generation: int
    digest: str


def first_digest(store_id: str) -> str:
    """Of a store that has published nothing."""
    return sha256(f"capri store {store_id}".encode()).hexdigest()


def next_digest(before: str, published: bytes) -> str:
    """The chain with one more link."""
    return sha256(bytes.fromhex(before) + sha256(published).digest()).hexdigest()


def check_newest(
    where: str,
    now: Checkpoint,
    digest_at: Callable[[int], str | None],
    *others: Checkpoint | None,
) -> None:
    """Refuse a store that is behind what was seen of it, or went another way.

    ``digest_at`` gives the store's own digest of a generation, None where it has none. ``others``
    must have been known before the store was read: it may go on at any time.
    """
    for seen in others:
        if seen is None or seen.store_id != now.store_id:
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


def recalled(store_id: str) -> Checkpoint | None:
    """How far this process has seen the store come."""
    with _LOCK:
        return _SEEN.get(store_id)


def remember(now: Checkpoint) -> None:
    """Let this process know how far the store has come."""
    with _LOCK:
        known = _SEEN.get(now.store_id)
        if known is None or known.generation < now.generation:
            _SEEN[now.store_id] = now


class RollbackGuard(ABC):
    """Remembers how far stores have come."""

    kind: str

    @abstractmethod
    def read(self, store_id: str) -> Checkpoint | None:
        """What was seen of a store; None where nothing was. Makes nothing."""

    @abstractmethod
    def write(self, now: Checkpoint) -> None:
        """Note how far a store has come, unless more is known."""


def unknown_store(rollback_guard: RollbackGuard, where: str) -> StorageError:
    """For a store that has a past of which its rollback guard has seen nothing."""
    return StorageError(
        f"the rollback guard {rollback_guard!r} knows nothing of {where}, which has a past: "
        "nothing was changed. "
        "Look whether its share is mounted and its address is right. Only if you know that the "
        "store is the newest copy, begin a new guard, once: --new-rollback-guard, or "
        "new_rollback_guard=True"
    )


def warn_unguarded(where: str) -> None:
    """For a store with a guard that was opened without it, at the line that opened it."""
    warn_of_leak(
        f"{where} has a rollback guard and was opened without it: an older copy would not be "
        "noticed, and release data again. Give rollback_guard="
    )


def open_guard(where: object, store: str) -> RollbackGuard | None:
    """The rollback guard at an address; None for none. It must not be the store itself."""
    if where is None:
        return None
    if not isinstance(where, str | Path) or not str(where):
        raise ConfigurationError(
            "rollback_guard must be a file, 'sqlite:///other.db', 'postgresql://...' or None, got "
            f"{type(where).__name__}"
        )
    if str(where) == store:
        raise ConfigurationError(
            "the rollback guard must be outside of the store: give another place"
        )
    text = str(where)
    if text.startswith(SQLITE):
        path = Path(text.removeprefix(SQLITE))
        return TableGuard("sqlite", str(path), lambda make: _sqlite(path, make))
    if text.startswith(POSTGRES):
        shown = text.rpartition("@")[2]
        return TableGuard("postgres", shown, lambda make: _postgres(text, shown))
    return FileGuard(Path(text))


class FileGuard(RollbackGuard):
    """A small JSON file, written as a whole; the file beside an SQLite store is one, too."""

    kind = "file"

    def __init__(self, path: Path, *, forgiving: bool = False) -> None:
        """``forgiving``: a file that cannot be read says nothing, and is written anew."""
        self._path, self._forgiving = path, forgiving

    def __repr__(self) -> str:
        return f"FileGuard({str(self._path)!r})"

    def read(self, store_id: str) -> Checkpoint | None:
        """A file that is there and cannot be read says nothing true: it is refused."""
        found = self._notes().get(store_id)
        if found is None:
            return None
        return Checkpoint(store_id, found["generation"], str(found["digest"]))

    def write(self, now: Checkpoint) -> None:
        """Under a lock of the folder, since others write the same file."""
        with _alone_in(self._path.parent):
            notes = self._notes()
            known = notes.get(now.store_id)
            if known is None or known["generation"] < now.generation:
                notes[now.store_id] = {"generation": now.generation, "digest": now.digest}
                write_atomically(self._path, json.dumps(notes).encode(), confidential=True)

    def _notes(self) -> dict[str, Any]:
        try:
            notes = json.loads(self._path.read_text())
            if all(
                isinstance(each["generation"], int) and each["digest"] for each in notes.values()
            ):
                return dict(notes)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        if self._forgiving:
            return {}
        raise StorageError(
            f"the rollback guard {self._path} cannot be read or is damaged: nothing was changed. "
            "Mend it; removing it means trusting that the store is the newest copy"
        )


def beside(path: Path) -> FileGuard:
    """The small file beside an SQLite file; checkpoints of older stores stay in it."""
    return FileGuard(path.with_name(f"{path.name}-seen"), forgiving=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes, where the system can."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: the last one to write wins, and the next makes up for it
        yield
        return
    try:
        place = os.open(folder, os.O_RDONLY)
    except OSError as problem:
        raise StorageError(f"the rollback guard's folder {folder}: {problem.strerror}") from None
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


_CREATE = (
    "CREATE TABLE IF NOT EXISTS capri_rollback_guard "
    "(store_id TEXT PRIMARY KEY, generation BIGINT NOT NULL, digest TEXT NOT NULL)"
)
_READ = "SELECT generation, digest FROM capri_rollback_guard WHERE store_id = ?"
# Never back: processes write in any order.
_WRITE = (
    "INSERT INTO capri_rollback_guard (store_id, generation, digest) VALUES (?, ?, ?) "
    "ON CONFLICT (store_id) DO UPDATE SET generation = excluded.generation, "
    "digest = excluded.digest WHERE capri_rollback_guard.generation < excluded.generation"
)
_THERE = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'capri_rollback_guard'",
    "postgres": "SELECT 1 WHERE to_regclass('capri_rollback_guard') IS NOT NULL",
}
_PATIENCE = 10.0
Execute = Callable[..., Any]


class TableGuard(RollbackGuard):
    """A table in another database."""

    def __init__(
        self, database: str, shown: str, opened: Callable[[bool], AbstractContextManager[Execute]]
    ) -> None:
        """``opened`` gives one transaction, of a file that may be made first."""
        self.kind, self._there = f"{database} table", _THERE[database]
        self._shown, self._opened = shown, opened

    def __repr__(self) -> str:
        return f"TableGuard({self._shown!r})"

    def read(self, store_id: str) -> Checkpoint | None:
        """One row of a table that is there."""
        with self._opened(False) as execute:
            if execute(self._there).fetchone() is None:
                return None
            found = execute(_READ, (store_id,)).fetchone()
        return None if found is None else Checkpoint(store_id, int(found[0]), str(found[1]))

    def write(self, now: Checkpoint) -> None:
        """One row, never back."""
        with self._opened(True) as execute:
            if execute(self._there).fetchone() is None:
                execute(_CREATE)
            execute(_WRITE, (now.store_id, now.generation, now.digest))


@contextmanager
def _sqlite(path: Path, make: bool) -> Iterator[Execute]:
    """One transaction on a file; on nothing where there is no file to read."""
    there = make or path.exists()
    address = f"{path.absolute().as_uri()}?mode={'rwc' if make else 'rw'}" if there else ":memory:"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as file, file:
            yield file.execute
    except sqlite3.Error:
        raise _away(str(path)) from None


@contextmanager
def _postgres(url: str, shown: str) -> Iterator[Execute]:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=int(_PATIENCE)) as server:
            yield lambda sql, values=(): server.execute(sql.replace("?", "%s"), values)
    except psycopg.Error:
        raise _away(shown) from None


def _away(name: str) -> AwayError:
    return AwayError(
        f"the rollback guard {name} cannot be reached: nothing was changed. Without it nobody "
        "knows whether the store is the newest copy"
    )


# -- files of private policies --------------------------------------------------------------------

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
