"""What an engine asks of the place where its state lives: arrays in memory, or a database.

A unit of work is a function that is given its :class:`~capri.store.tables.Unit`. All of its changes
are made together; it may be run again, so it touches nothing else. Public state (epochs, segments,
laws, versions of the actions, operations) are rows that the unit selects and changes; what users
did is in :class:`Rows`.
"""

from _thread import RLock
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.decisions import DecisionIds
from capri.epoch.modes import Operation
from capri.errors import StorageError
from capri.privacy.budget import UserLimit
from capri.store.codec import REWARD_DIGEST, Codec, Played
from capri.store.rollback import Checkpoint
from capri.store.tables import Unit
from capri.store.view import OPEN, WAITING, View
from capri.streams import Streams

OwnUnit = TypeVar("OwnUnit")
Result = TypeVar("Result")


# How often in a row a call or a step may be overtaken: others at work account for a few times, and
# a store that never agrees with what was read of it must not be asked for ever.
TURNS = 1000


class OvertakenError(Exception):
    """Another process has published something since the view was read: look again."""


def repeated(repository: "Repository", step: Callable[[], Result]) -> Result:
    """Take a step, again where another process was faster."""
    for _ in range(TURNS):
        try:
            return step()
        except OvertakenError:
            continue
    raise never_current(repository)


def never_current(repository: "Repository") -> StorageError:
    """What to say after :data:`TURNS`."""
    return StorageError(
        f"{repository!r} was never as it had just been read, {TURNS} times in a row: nothing was "
        "changed. Check that nobody replaces or restores it, and open it again"
    )


@dataclass(frozen=True)
class Forgotten:
    """What was deleted of a user.

    ``too_late``: decisions of epochs that are closed and about to be released. ``unowned``:
    decisions under way that do not say whose they are.
    """

    decisions: int = 0
    rewards: int = 0
    keys: int = 0
    too_late: int = 0
    unowned: int = 0

    @property
    def anything(self) -> bool:
        """Whether the store had anything of the user."""
        return bool(self.decisions or self.rewards or self.keys or self.too_late)


class OwnLock(RLock):  # type: ignore[misc]  # final in stubs alone
    """A lock that no copy shares."""

    def __reduce__(self) -> tuple[type["OwnLock"], tuple[()]]:
        return OwnLock, ()


class Remembered(NamedTuple):
    """The decision of a key."""

    number: int
    epoch: int
    kept: bytes


class Combined(NamedTuple):
    """What the rewards of a decision make together, under which keys; ``stored`` as it lies."""

    total: float
    digests: tuple[bytes, ...]
    stored: Any = None


class EpochPart(NamedTuple):
    """Some slots of an epoch: decisions, and the rewards of those that have one."""

    numbers: IntArray
    played: Played
    rewarded: IntArray
    rewards: FloatArray


class ReportRow(NamedTuple):
    """Reports of the local model that counted, one after the other, to one bundle.

    ``messages`` are their bytes. Where they were added up elsewhere, ``total`` is all there is.
    """

    first: int
    epoch: int
    size: int  # how many
    messages: bytes
    total: bytes | None = None


class Rows(ABC, Generic[OwnUnit]):
    """What users did, until their epoch is released."""

    salt: bytes
    columns: int  # numbers that are kept of a visit, the first of its pair

    def key_digests(self, keys: Sequence[str]) -> list[str]:
        """What stands for the keys of decisions: nobody can guess it without the salt."""
        return [self._digest(f"key:{key}", 16).hex() for key in keys]

    def reward_digests(self, keys: Sequence[str]) -> list[bytes]:
        """The same for the keys of rewards, which are told apart within one decision only."""
        return [self._digest(f"reward:{key}", REWARD_DIGEST) for key in keys]

    def _digest(self, text: str, size: int) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return blake2b(data, key=self.salt, digest_size=size).digest()

    @abstractmethod
    def prepared(self, played: Played, owners: Sequence[str] | None) -> Any:
        """Decisions as they are kept, made before their unit; ``owners`` are digests of users."""

    @abstractmethod
    def write_decisions(self, unit: OwnUnit, numbers: IntArray, prepared: Any) -> None:
        """New decisions."""

    @abstractmethod
    def fill(
        self, unit: OwnUnit, epoch: int, generation: int, numbers: IntArray, prepared: Any
    ) -> bool:
        """New decisions of an epoch, which is joined; False if the generation is another now."""

    @abstractmethod
    def first_statuses(self, unit: OwnUnit, numbers: IntArray) -> IntArray:
        """What a first reward for each decision meets: accepted, uncounted, or unknown."""

    @abstractmethod
    def rewarded(self, unit: OwnUnit, numbers: IntArray) -> BoolArray:
        """Which decisions have a reward."""

    @abstractmethod
    def write_first(self, unit: OwnUnit, numbers: IntArray, rewards: FloatArray) -> bool:
        """Rewards of decisions that have none; False if another process was faster."""

    @abstractmethod
    def combined(self, unit: OwnUnit, numbers: IntArray) -> dict[int, Combined]:
        """What came for some decisions so far."""

    @abstractmethod
    def write_combined(
        self, unit: OwnUnit, totals: dict[int, Combined], before: dict[int, Combined]
    ) -> bool:
        """One value a decision, in place of the one before; False if that is not there any more."""

    @abstractmethod
    def parts(self, first: int, last: int) -> Iterable[EpochPart]:
        """The data of an epoch's slots, part by part."""

    @abstractmethod
    def any_from(self, first: int) -> bool:
        """Whether there is a decision from this slot on."""

    @abstractmethod
    def forget(self, unit: OwnUnit, epoch: int, first: int, last: int, now: float) -> None:
        """Delete what the users of an epoch did."""

    @abstractmethod
    def draw_of(self, unit: OwnUnit, epoch: int) -> Any:
        """What a closed epoch will publish, None while nothing was drawn."""

    @abstractmethod
    def write_draw(self, unit: OwnUnit, epoch: int, kept: Any) -> None:
        """Keep what was drawn."""

    @abstractmethod
    def reports(self, unit: OwnUnit, first: int) -> list[ReportRow]:
        """Reports of the local model from a number on, in the order of their numbers."""

    @abstractmethod
    def write_reports(self, unit: OwnUnit, rows: Sequence[ReportRow]) -> None:
        """Reports that count from here on."""

    @abstractmethod
    def drop_reports(self, unit: OwnUnit, epoch: int) -> None:
        """An epoch takes no more reports, and all of them were read."""

    @abstractmethod
    def count_known(self, digests: Sequence[str], now: float) -> int:
        """How many of some different keys have a decision."""

    @abstractmethod
    def known_keys(
        self, unit: OwnUnit, digests: Sequence[str], now: float
    ) -> dict[str, Remembered]:
        """Decisions of keys that are kept; expired ones are dropped."""

    @abstractmethod
    def write_keys(
        self,
        unit: OwnUnit,
        digests: Sequence[str],
        numbers: IntArray,
        epoch: int,
        kept: Sequence[bytes],
        expires: float,
    ) -> bool:
        """Decisions under new keys; False if another process was faster with one of them."""

    @abstractmethod
    def has_expired_keys(self, now: float) -> bool:
        """Whether there are keys that were kept long enough."""

    @abstractmethod
    def drop_keys(self, unit: OwnUnit, now: float) -> None:
        """Delete keys that were kept long enough, no more than one unit has time for."""

    @abstractmethod
    def reserve(
        self, unit: OwnUnit, digests: Sequence[str], epoch: int, limit: UserLimit
    ) -> BoolArray:
        """Count a visit of each user in turn; which of them are within their limit."""

    @abstractmethod
    def visits_of(self, digest: str) -> dict[int, int]:
        """Contributions of a user by epoch."""


class RunUnit(Protocol):
    """Runs a function as one unit of work."""

    def __call__(self, function: Callable[[Unit], Result]) -> Result:
        """What the function returns."""


class Repository(ABC):
    """One policy's state. What a single process has no need of does nothing by default."""

    codec: Codec
    rows: Rows[Any]
    ids: DecisionIds
    # Whether all that is due is done before the next decision, by who asks for it.
    synchronous: bool
    # The law that a policy stands at when it is built; -1 where it has to be read first.
    own_law: int
    # Where writers never overlap, slots are exact and need no lease.
    single_writer: bool

    # -- units of work ----------------------------------------------------------------------------

    write: "RunUnit"  # a function as one unit of work, done and kept on return
    read: "RunUnit"  # a function that reads, all of it at one point in time

    # Refuses a forked child, before a lock is taken; None where the policy itself does.
    check_process: Callable[[], None] | None = None

    # Whether no other process computes the next step; then this one does, until it ends it.
    begin_step: Callable[[], bool]
    end_step: Callable[[], None]

    def note(self) -> Checkpoint | None:
        """Remember how far this has come, after checking that no newer copy was seen.

        None where there is nothing to compare: memory has no copies.
        """
        return None

    def certified(self) -> dict[str, Any] | None:
        """What a certificate says of how far this has come; None where there is nothing to say."""
        return None

    @abstractmethod
    def snapshot(self, *, secret: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything for a file, as JSON values and arrays; ``secret``: with what users did."""

    @abstractmethod
    def forget_user(self, digest: str) -> Forgotten:
        """Delete what is kept of a user, as far as that can be."""

    def overwrite(self) -> bool:
        """Make deleted rows unreadable; False if others stood in the way: try again.

        What is forgotten in memory is overwritten at once.
        """
        return True

    def leave(self) -> None:
        """Before closing: nobody waits any more for a server that is away."""
        return

    def close(self) -> None:
        """Give back what is held; a closed repository refuses everything."""
        return

    @abstractmethod
    def drawing(self, streams: Streams) -> AbstractContextManager[object]:
        """Around whatever is drawn: what fails leaves generators as they are kept."""

    @abstractmethod
    def write_streams(self, unit: Any, streams: Streams) -> None:
        """Where a simulation's generators stand, with what they drew."""

    # -- public rows ------------------------------------------------------------------------------

    @abstractmethod
    def counter(self, seen: View) -> tuple[int, int]:
        """Slots handed out and generation; refuses a copy that is older than the view."""

    @abstractmethod
    def look(self, seen: View, known: Collection[int]) -> tuple[int, View, dict[int, Any]]:
        """Slots handed out, the view of now, and versions of the actions that are not known."""

    @abstractmethod
    def publish(self, unit: Any, generation: int, what: bytes) -> None:
        """Raise the generation from the one that is locked, and chain what is published."""

    @abstractmethod
    def drop_learnt(self, unit: Any, epoch: int) -> None:
        """Forget what nobody needs of an epoch that was learnt from, where room is scarce."""

    def value(self, table: str, column: str, **where: Any) -> Any:
        """One public value, None where there is no such row."""
        found = self.read(lambda unit: unit.select(table, (column,), **where))
        return found[0][0] if found else None

    def releases(self, unit: Unit) -> list[Any]:
        """What epochs have published, in the order of their releases."""
        rows = unit.select("epochs", ("released", "release"))
        made = [row for row in rows if row[1] is not None]
        return [release for _, release in sorted(made, key=lambda row: int(row[0]))]

    def epoch_values(self, column: str) -> list[Any]:
        """One column of all epochs, oldest first."""
        rows = self.read(lambda unit: unit.select("epochs", (column,)))
        return [value for (value,) in rows]

    def operations(self) -> tuple[Operation, ...]:
        """What operators did, in order."""
        columns = ("kind", "made", "record")
        rows = self.read(lambda unit: unit.select("operations", columns))
        return tuple(
            Operation(kind, made, self.codec.unpack(record)[0]) for kind, made, record in rows
        )

    def reconfigure(self, unit: Unit, before: Any, configuration: Any) -> None:  # noqa: B027
        """Keep what the policy is built from now on; ``before``: the first version of its terms.

        In memory the policy itself knows.
        """

    def note_operation(
        self, unit: Unit, generation: int, kind: str, record: dict[str, Any], made: float
    ) -> None:
        """One line in the history of operations, published with the generation that follows."""
        kept = self.codec.pack(record)
        unit.insert("operations", [(generation + 1, made, kind, kept)])
        self.publish(unit, generation, kind.encode() + b" " + self.codec.noted(kept))


def drop_laws(unit: Unit) -> None:
    """Delete laws that no epoch under way plays, the newest aside."""
    epochs = tuple(
        number for (number,) in unit.select("epochs", ("number",), state=(OPEN, WAITING))
    )
    played = {law for (law,) in unit.select("segments", ("law",), epoch=epochs)}
    known = [generation for (generation,) in unit.select("laws", ("generation",))]
    if old := tuple(each for each in known[:-1] if each not in played):
        unit.delete("laws", generation=old)
