"""A policy's state in the memory of one process: arrays for what users did, small values else.

Every change replaces what it changes, so a unit of work that fails is undone by going back to the
state before it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from capri.epoch.ids import DecisionIds
from capri.epoch.modes import Operation, newest_mode
from capri.errors import ConfigurationError
from capri.privacy.randomness import Streams
from capri.store.codec import PlainCodec
from capri.store.memory_rows import MemoryRows
from capri.store.repository import Forgotten, OwnLock, Repository
from capri.store.view import LEARNT, OPEN, EpochRow, SegmentRow, View

Result = TypeVar("Result")
_NOTHING = nullcontext()


@dataclass(frozen=True)
class _Public:
    """All that is public, as of one unit of work."""

    generation: int = 0
    last_epoch: int = 0
    epochs: dict[int, EpochRow] = field(default_factory=dict)  # not learnt from yet
    plans: dict[int, Any] = field(default_factory=dict)
    segments: dict[tuple[int, int], Any] = field(default_factory=dict)
    laws: dict[int, Any] = field(default_factory=dict)
    releases: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, tuple[int | None, Any]] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()


class MemoryRepository(Repository[None]):
    """One policy in this process."""

    single_writer, synchronous = True, True
    rows: MemoryRows

    def __init__(self, columns: int, ids: DecisionIds, law: Any, actions: Any) -> None:
        """``law``: what is known before the first user; ``actions``: those of the first epoch."""
        self.codec, self.ids, self.own_law = PlainCodec(), ids, 0
        self.rows = MemoryRows(columns)
        self._issued = 0  # apart, since every decision changes it
        self._public = _Public(laws={0: law}, versions={0: (0, actions)})
        self._view: View | None = None
        self._lock = OwnLock()

    def __repr__(self) -> str:
        return "memory"

    # -- units of work ----------------------------------------------------------------------------

    def write(self, function: Callable[[None], Result]) -> Result:
        """Run a function; whatever it raises has changed nothing."""
        lock = self._lock
        lock.acquire()
        issued, before = self._issued, self._public
        try:
            self.rows.begin()
            return function(None)
        except BaseException:
            self._issued, self._public, self._view = issued, before, None
            self.rows.undo()
            raise
        finally:
            lock.release()

    def read(self, function: Callable[[None], Result]) -> Result:
        """Run a function that reads."""
        with self._lock:
            return function(None)

    def check_process(self) -> None:
        """A simulation may be forked; of others the policy itself refuses a copy."""

    def join(self, unit: None, epochs: Sequence[int]) -> tuple[int, int]:
        """Slots handed out and generation."""
        return self._issued, self._public.generation

    def hold(self, unit: None, epoch: int) -> None:
        """A unit of work is alone anyway."""

    def lock(self, unit: None) -> tuple[int, int]:
        """Slots handed out and generation."""
        return self._issued, self._public.generation

    def note(self) -> None:
        """Memory has no copies."""

    def certified(self) -> dict[str, Any] | None:
        """No copy of memory can be older than another."""
        return None

    @property
    def open_epoch(self) -> int | None:
        """The number of the epoch that takes decisions; None where there is none."""
        found = (epoch.number for epoch in self._public.epochs.values() if epoch.state == OPEN)
        return next(found, None)

    def snapshot(self, *, secret: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything for a file, as JSON values and arrays.

        Without what users did, only the epoch that takes decisions goes on: of those that wait
        nothing is left to be released, and its time begins with the first decision that counts.
        """
        public = self._public
        kept = [each for each in public.epochs.values() if secret or each.state == OPEN]
        if not secret:
            kept = [replace(each, began=None, filled=None) for each in kept]
        newest = max(public.laws)
        laws = {newest} | {each.segments[-1].law for each in kept if each.state == OPEN}
        # The configuration has the actions of now.
        current = public.laws[newest][0].get("catalogue", 0)
        arrays = self.rows.arrays(self._issued) if secret else {}

        def packed(name: str, value: Any) -> dict[str, Any]:
            values, own = value
            arrays.update({f"{name}/{key}": array for key, array in own.items()})
            return dict(values)

        played = [
            public.segments[each.number, part.number] for each in kept for part in each.segments
        ]
        return {
            "secret": secret,
            "issued": self._issued,
            "generation": public.generation,
            "last_epoch": public.last_epoch,
            "epochs": [asdict(each) for each in kept],
            "plans": [packed(f"plan.{each.number}", public.plans[each.number]) for each in kept],
            "segments": [packed(f"segment.{at}", each) for at, each in enumerate(played)],
            "laws": {at: packed(f"law.{at}", public.laws[at]) for at in sorted(laws)},
            "releases": {epoch: each[0] for epoch, each in public.releases.items()},
            "versions": {
                at: [first, None if at == current else packed(f"actions.{at}", each)]
                for at, (first, each) in public.versions.items()
            },
            "operations": [each.to_dict() for each in public.operations],
            "users": self.rows.users() if self.rows.counted else None,
        }, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, Any], actions: Any) -> None:
        """Go on from :meth:`snapshot`; ``actions``: those of now, which the configuration has."""

        def unpacked(name: str, own: dict[str, Any]) -> Any:
            start = f"{name}/"
            found = {
                key.removeprefix(start): arrays[key] for key in arrays if key.startswith(start)
            }
            return own, found

        rows = [
            EpochRow(**each | {"segments": tuple(SegmentRow(**part) for part in each["segments"])})
            for each in values["epochs"]
        ]
        places = [(row.number, part.number) for row in rows for part in row.segments]
        self._issued = int(values["issued"])
        self._public = _Public(
            generation=int(values["generation"]),
            last_epoch=int(values["last_epoch"]),
            epochs={row.number: row for row in rows},
            plans={
                row.number: unpacked(f"plan.{row.number}", own)
                for row, own in zip(rows, values["plans"], strict=True)
            },
            segments={
                place: unpacked(f"segment.{at}", own)
                for at, (place, own) in enumerate(zip(places, values["segments"], strict=True))
            },
            laws={int(at): unpacked(f"law.{at}", own) for at, own in values["laws"].items()},
            releases={int(epoch): (each, {}) for epoch, each in values["releases"].items()},
            versions={
                int(at): (first, actions if own is None else unpacked(f"actions.{at}", own))
                for at, (first, own) in values["versions"].items()
            },
            operations=tuple(Operation.from_dict(each) for each in values["operations"]),
        )
        self._view, self.own_law = None, max(self._public.laws)
        first = min((row.first for row in rows), default=self._issued)
        self.rows.restore(first, self._issued, arrays if values["secret"] else None)
        if values["users"] is not None:
            self.rows.restore_users(values["users"])

    def forget_user(self, digest: str) -> Forgotten:
        """In memory nothing that is kept says whose it is."""
        raise ConfigurationError(
            "only a store with contributions_per_user knows what belongs to whom: without "
            "ids of users nothing that is kept can be found, and goes with its release"
        )

    def overwrite(self) -> bool:
        """What was forgotten is overwritten at once."""
        return True

    def leave(self) -> None:
        """There is nobody to wait for."""

    def close(self) -> None:
        """Nothing is held."""

    # -- looking ----------------------------------------------------------------------------------

    def counter(self, seen: View) -> tuple[int, int]:
        """Slots handed out and generation."""
        return self._issued, self._public.generation

    def look(self, seen: View, known: Iterable[int]) -> tuple[int, View, dict[int, Any]]:
        """Slots handed out, the view of now, and versions of the actions that are not known."""
        public, view = self._public, self._view  # another thread may begin anew meanwhile
        if view is None or view.generation != public.generation:
            self._view = view = View(
                public.generation,
                max(public.laws),
                tuple(public.epochs.values()),
                "",
                tuple((version, first) for version, (first, _) in public.versions.items()),
                newest_mode(public.operations),
            )
        versions = frozenset(known)
        new = {each: kept for each, (_, kept) in public.versions.items() if each not in versions}
        return self._issued, view, new

    def law(self, generation: int) -> Any:
        """A law, None if no epoch plays it any more."""
        return self._public.laws.get(generation)

    def plan(self, epoch: int) -> Any:
        """The plan of an epoch."""
        return self._public.plans[epoch]

    def segment(self, epoch: int, number: int) -> Any:
        """A segment of an epoch."""
        return self._public.segments[epoch, number]

    def release_of(self, epoch: int) -> Any:
        """What an epoch has published; None where that is nothing."""
        return self._public.releases.get(epoch)

    def releases(self, unit: None) -> list[Any]:
        """What epochs have published, in the order of their releases."""
        return list(self._public.releases.values())

    def last_epoch(self) -> int:
        """The number of the epoch that was planned last; 0 before the first."""
        return self._public.last_epoch

    def missed(self) -> int:
        """A release is published when it is made: there is no moment to miss."""
        return 0

    def operations(self) -> tuple[Operation, ...]:
        """What operators did, in order."""
        return self._public.operations

    # -- publishing -------------------------------------------------------------------------------

    def _change(self, **values: Any) -> None:
        self._public = replace(self._public, **values)

    def publish(self, unit: None, generation: int, what: bytes) -> None:
        """Raise the generation."""
        self._change(generation=generation + 1)

    def note_operation(
        self, unit: None, generation: int, kind: str, record: dict[str, Any], made: float
    ) -> None:
        """One line in the history of operations."""
        done = Operation(kind, made, record)
        self._change(operations=(*self._public.operations, done), generation=generation + 1)

    def set_issued(self, unit: None, issued: int) -> None:
        """So many slots are handed out."""
        self._issued = issued

    def state_of(self, unit: None, epoch: int) -> str | None:
        """Where an epoch is in its life."""
        found = self._public.epochs.get(epoch)
        return None if found is None else found.state

    def move(self, unit: None, epoch: int, before: str, after: str) -> bool:
        """From one state to the next; an epoch that was learnt from goes."""
        if self.state_of(unit, epoch) != before:
            return False
        self._set(epoch, state=after)
        if after == LEARNT:
            public = self._public
            self._change(
                epochs=_without(public.epochs, epoch),
                plans=_without(public.plans, epoch),
                segments={at: each for at, each in public.segments.items() if at[0] != epoch},
            )
        return True

    def _set(self, epoch: int, **values: Any) -> None:
        row = replace(self._public.epochs[epoch], **values)
        self._change(epochs=self._public.epochs | {epoch: row})

    def set_epoch(self, unit: None, epoch: int, **values: Any) -> None:
        """Give an epoch some values by the names of their columns."""
        release, _ = values.pop("release", None), values.pop("missed", None)
        self._set(epoch, **values)
        if release is not None:
            self._change(releases=self._public.releases | {epoch: release})

    def add_epoch(self, unit: None, number: int, first: int, length: int, plan: Any) -> None:
        """A new epoch, open."""
        row = EpochRow(number, first, length, OPEN)
        plans = self._public.plans | {number: plan}
        self._change(epochs=self._public.epochs | {number: row}, plans=plans, last_epoch=number)

    def add_segment(
        self, unit: None, epoch: int, number: int, first: int, law: int, segment: Any
    ) -> None:
        """From this slot on an epoch plays this law."""
        row = self._public.epochs[epoch]
        self._set(epoch, segments=(*row.segments, SegmentRow(number, first, law)))
        self._change(segments=self._public.segments | {(epoch, number): segment})

    def add_law(self, unit: None, generation: int, law: Any) -> None:
        """What is known from a generation on."""
        self._change(laws=self._public.laws | {generation: law})

    def drop_laws(self, unit: None) -> None:
        """Laws that no epoch under way plays, the newest aside."""
        laws, epochs = self._public.laws, self._public.epochs.values()
        played = {each.law for epoch in epochs if epoch.accepts for each in epoch.segments}
        kept = played | {max(laws)}
        self._change(laws={each: law for each, law in laws.items() if each in kept})

    def offer(self, unit: None, version: int, actions: Any) -> None:
        """A version of the actions for the next epoch, in place of one that was never played."""
        begun = {at: each for at, each in self._public.versions.items() if each[0] is not None}
        self._change(versions=begun | {version: (None, actions)})

    def begin_version(self, unit: None, version: int, epoch: int) -> None:
        """The first epoch that plays a version of the actions."""
        versions = self._public.versions
        self._change(versions=versions | {version: (epoch, versions[version][1])})

    def drawing(self, streams: Streams) -> AbstractContextManager[None]:
        """What was drawn was drawn."""
        return _NOTHING

    def write_streams(self, unit: None, streams: Streams) -> None:
        """Generators live in memory, too."""


def rehearsed(repository: MemoryRepository, ids: DecisionIds) -> MemoryRepository:
    """A repository that goes on from what another one has published, with users of its own."""
    heir = copy(repository)
    heir.ids, heir._lock = ids, OwnLock()
    heir.rows = MemoryRows(repository.rows.columns)
    heir.rows.restore(repository._issued, repository._issued, None)
    heir._public = replace(repository._public, releases={})
    heir.own_law = max(heir._public.laws)
    return heir


def _without(values: dict[int, Any], key: int) -> dict[int, Any]:
    return {each: value for each, value in values.items() if each != key}
