"""A policy's state in the memory of one process: arrays for what users did, small rows else.

A unit of work notes what it changes, so one that fails is undone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Any, TypeVar

from capri.codec import below
from capri.epoch.decisions import DecisionIds
from capri.errors import ConfigurationError
from capri.store.codec import PlainCodec
from capri.store.memory_rows import MemoryRows
from capri.store.repository import Forgotten, OwnLock, Repository, drop_laws
from capri.store.tables import TABLES, Row, Unit
from capri.store.view import CLOSED, LEARNT, OPEN, RELEASED, WAITING, View, read_view
from capri.streams import Streams

Result = TypeVar("Result")
_PUBLIC = ("laws", "epochs", "segments", "catalogues", "operations", "history")


class MemoryUnit:
    """Public rows by the values of their keys: a :class:`~capri.store.tables.Unit`."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Row, Row]] = {name: {} for name in _PUBLIC}
        self.issued = self.generation = 0  # apart, since every decision changes them
        # The counter as the unit of work found it, and what takes its changes back, one by one.
        self.before = 0, 0
        self.undoing: list[Callable[[], object]] = []

    def undo(self) -> None:
        """Go back to where the unit began."""
        self.issued, self.generation = self.before
        while self.undoing:
            self.undoing.pop()()

    def changes(self, values: dict[Any, Any], key: Any) -> None:
        """A value is about to change: it goes back with the unit."""
        before = copy(values.get(key))
        self.undoing.append(
            partial(values.pop, key, None)
            if before is None
            else partial(values.__setitem__, key, before)
        )

    def copy(self) -> "MemoryUnit":
        """The same rows, apart."""
        twin = MemoryUnit()
        twin.tables = {name: dict(rows) for name, rows in self.tables.items()}
        twin.issued, twin.generation = self.issued, self.generation
        return twin

    def _found(self, table: str, where: Mapping[str, Any]) -> list[tuple[Row, Row]]:
        names = list(TABLES[table].columns)
        wanted = [
            (names.index(name), value if isinstance(value, tuple) else (value,))
            for name, value in where.items()
        ]
        return [
            (key, row)
            for key, row in sorted(self.tables[table].items())
            if all(row[place] in values for place, values in wanted)
        ]

    def _set(self, table: str, key: Row, row: Row | None) -> None:
        rows = self.tables[table]
        self.changes(rows, key)
        if row is None:
            del rows[key]
        else:
            rows[key] = row

    def select(self, table: str, columns: Sequence[str], **where: Any) -> list[Row]:
        """These columns of some rows, in the order of their keys."""
        names = list(TABLES[table].columns)
        places = [names.index(name) for name in columns]
        return [tuple(row[at] for at in places) for _, row in self._found(table, where)]

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """New rows."""
        names = list(TABLES[table].columns)
        places = [names.index(name) for name in TABLES[table].key]
        for row in rows:
            self._set(table, tuple(row[at] for at in places), tuple(row))

    def update(self, table: str, values: Mapping[str, Any], **where: Any) -> int:
        """Give some rows these values; how many there were."""
        found = self._found(table, where)
        for key, row in found:
            new = dict(zip(TABLES[table].columns, row, strict=True)) | dict(values)
            self._set(table, key, tuple(new.values()))
        return len(found)

    def delete(self, table: str, **where: Any) -> None:
        """Delete some rows."""
        for key, _ in self._found(table, where):
            self._set(table, key, None)

    def counter(self) -> tuple[int, int]:
        """Slots handed out, and the generation."""
        return self.issued, self.generation

    def set_counter(self, name: str, value: int) -> None:
        """So many are ``issued``, or this is the ``generation``."""
        setattr(self, name, value)

    lock = counter

    def join_epochs(self, epochs: Sequence[int]) -> tuple[int, int]:
        """A unit of work is alone anyway."""
        return self.issued, self.generation

    def hold_epoch(self, epoch: int) -> None:
        """A unit of work is alone anyway."""


class MemoryRepository(Repository):
    """One policy in this process."""

    single_writer, synchronous = True, True
    rows: MemoryRows

    def __init__(self, columns: int, ids: DecisionIds, law: Any, actions: Any) -> None:
        """``law``: what is known before the first user; ``actions``: those of the first epoch."""
        self.codec, self.ids, self.own_law = PlainCodec(), ids, 0
        self.rows, self._unit = MemoryRows(columns), MemoryUnit()
        self._unit.insert("laws", [(0, law)])
        self._unit.insert("catalogues", [(0, 0, actions)])
        self._lock = OwnLock()

    def __repr__(self) -> str:
        return "memory"

    # -- units of work ----------------------------------------------------------------------------

    def write(self, function: Callable[[Any], Result]) -> Result:
        """Run a function; whatever it raises has changed nothing."""
        lock, unit = self._lock, self._unit
        lock.acquire()
        try:
            unit.before = unit.issued, unit.generation
            return function(unit)
        except BaseException:
            unit.undo()
            raise
        finally:
            unit.undoing.clear()
            lock.release()

    def read(self, function: Callable[[Any], Result]) -> Result:
        """Run a function that reads."""
        with self._lock:
            return function(self._unit)

    def drawing(self, streams: Streams) -> AbstractContextManager[object]:
        """What was drawn was drawn."""
        return nullcontext()

    def write_streams(self, unit: Any, streams: Streams) -> None:
        """Generators live in memory, too."""

    def forget_user(self, digest: str) -> Forgotten:
        """In memory nothing that is kept says whose it is."""
        raise ConfigurationError(
            "only a store with contributions_per_user knows what belongs to whom: without "
            "ids of users nothing that is kept can be found, and goes with its release"
        )

    # -- public rows ------------------------------------------------------------------------------

    def counter(self, seen: View) -> tuple[int, int]:
        """Slots handed out and generation."""
        return self._unit.issued, self._unit.generation

    def look(self, seen: View, known: Collection[int]) -> tuple[int, View, dict[int, Any]]:
        """Slots handed out, the view of now, and versions of the actions that are not known."""
        return self.read(lambda unit: read_view(unit, self.codec, known))

    def publish(self, unit: Any, generation: int, what: bytes) -> None:
        """Raise the generation."""
        unit.generation = generation + 1

    def drop_learnt(self, unit: Unit, epoch: int) -> None:
        """Of an epoch that was learnt from plan and times go, and of its release the vector."""
        ((release,),) = unit.select("epochs", ("release",), number=epoch)
        rest: Any = None if release is None else (release[0], {})
        gone = dict.fromkeys(("plan", "began", "filled", "closes_at", "due"))
        unit.update("epochs", {**gone, "release": rest}, number=epoch)
        unit.delete("segments", epoch=epoch)

    # -- files ------------------------------------------------------------------------------------

    def snapshot(self, *, secret: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything for a file, as JSON values and arrays.

        Without what users did, only the epoch that takes decisions goes on: of those that wait
        nothing is left to be released, and its time begins with the first decision that counts.
        """
        unit = self._unit if secret else self._without_users()
        # The configuration has the actions of now.
        current = unit.select("laws", ("state",))[-1][0][0].get("catalogue", 0)
        arrays = self.rows.arrays(unit.issued) if secret else {}

        unit = unit.copy()
        unit.update("catalogues", {"actions": None}, version=current)
        tables: dict[str, list[dict[str, Any]]] = {name: [] for name in unit.tables}
        for name, rows in unit.tables.items():
            for key, row in sorted(rows.items()):
                tables[name].append(cells := dict(zip(TABLES[name].columns, row, strict=True)))
                for column in _blobs(name):
                    if cells[column] is not None:
                        cells[column], own = cells[column]
                        start = _place(name, key, column)
                        arrays |= {f"{start}/{each}": own[each] for each in own}
        users = self.rows.users() if self.rows.counted else None
        counter = {"issued": unit.issued, "generation": unit.generation}
        return {"secret": secret, **counter, "tables": tables, "users": users}, arrays

    def _without_users(self) -> MemoryUnit:
        unit = self._unit.copy()
        unit.update("epochs", {"began": None, "filled": None}, state=OPEN)
        for (number,) in unit.select("epochs", ("number",), state=(WAITING, CLOSED, RELEASED)):
            unit.update("epochs", {"state": LEARNT}, number=number)
            self.drop_learnt(unit, number)
        drop_laws(unit)
        return unit

    def restore(self, values: dict[str, Any], arrays: dict[str, Any], actions: Any) -> None:
        """Go on from :meth:`snapshot`; ``actions``: those of now, which the configuration has."""

        unit = self._unit = MemoryUnit()
        unit.issued, unit.generation = int(values["issued"]), int(values["generation"])
        for name, rows in values["tables"].items():
            for cells in rows:
                key = tuple(cells[each] for each in TABLES[name].key)
                for column in _blobs(name):
                    if cells[column] is not None:
                        own = below(_place(name, key, column), arrays, "/")
                        cells[column] = cells[column], own
                unit.insert(name, [tuple(cells[each] for each in TABLES[name].columns)])
        unit.update("catalogues", {"actions": actions}, actions=None)
        self.own_law = unit.select("laws", ("generation",))[-1][0]
        active = unit.select("epochs", ("first",), state=(OPEN, WAITING, CLOSED, RELEASED))
        first = min((each for (each,) in active), default=unit.issued)
        self.rows.restore(first, unit.issued, arrays if values["secret"] else None)
        if values["users"] is not None:
            self.rows.restore_users(values["users"])

    @property
    def open_epoch(self) -> int | None:
        """The number of the epoch that takes decisions; None where there is none."""
        found: int | None = self.value("epochs", "number", state=OPEN)
        return found


def _blobs(table: str) -> list[str]:
    """Columns of a table that hold values with arrays."""
    return [name for name, kind in TABLES[table].columns.items() if kind == "bytea"]


def _place(table: str, key: Row, column: str) -> str:
    """What the arrays of a value are called in a file."""
    return ".".join(map(str, (table, *key, column)))


def rehearsed(repository: MemoryRepository, ids: DecisionIds) -> MemoryRepository:
    """A repository that goes on from what another one has published, with users of its own."""
    heir = copy(repository)
    heir.ids, heir._lock, heir._unit = ids, OwnLock(), repository._unit.copy()
    heir.rows, issued = MemoryRows(repository.rows.columns), heir._unit.issued
    heir.rows.restore(issued, issued, None)
    heir._unit.update("epochs", {"release": None})
    heir.own_law = heir._unit.select("laws", ("generation",))[-1][0]
    return heir
