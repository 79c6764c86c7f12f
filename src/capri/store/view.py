"""What is public of the epochs under way, as one process last read it.

A view holds for one generation of the store: whoever changes anything in it raises the generation.
Slots are the numbers of decisions. Which epoch and which segment a slot belongs to is committed
before the slot is handed out, and never changes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any

from capri.epoch.modes import Mode
from capri.store.codec import Codec
from capri.store.tables import Unit

# The life of an epoch. Open: takes decisions, and nobody knows yet where it ends. Waiting: its last
# slot is known, rewards still count. Closed: nothing counts any more, nothing is released yet.
OPEN, WAITING, CLOSED, RELEASED, LEARNT = "open", "waiting", "closed", "released", "learnt"


@dataclass(frozen=True)
class SegmentRow:
    """A segment: from which slot on it is in force, and the generation of the law it plays."""

    number: int
    first: int
    law: int


@dataclass(frozen=True)
class EpochRow:
    """One epoch that was not learnt from yet."""

    number: int
    first: int
    length: int
    state: str
    last: int | None = None
    began: float | None = None
    filled: float | None = None
    closes: int | None = None
    closes_at: float | None = None
    due: float | None = None
    released: int | None = None
    segments: tuple[SegmentRow, ...] = ()

    @property
    def accepts(self) -> bool:
        """Whether decisions and rewards may still count, deadlines aside."""
        return self.state in (OPEN, WAITING)

    def holds(self, slot: int) -> bool:
        """Whether a slot is one of this epoch's."""
        return self.first <= slot and (self.last is None or slot < self.last)

    def segment(self, slot: int) -> SegmentRow:
        """The segment of a slot."""
        return max(
            (each for each in self.segments if each.first <= slot), key=lambda each: each.number
        )

    def until(self, slot: int) -> int | None:
        """The slot at which the segment of this one ends; None where that is open."""
        number = self.segment(slot).number
        later = [each.first for each in self.segments if each.number > number]
        ends = [*later, *([] if self.last is None else [self.last])]
        return min(ends, default=None)

    def is_past(self, issued: int, now: float) -> bool:
        """Whether its rewards come too late: a slot beyond the wait was handed out, or by time."""
        if self.closes_at is not None:
            return now >= self.closes_at
        return self.closes is not None and issued > self.closes


@dataclass(frozen=True)
class View:
    """All epochs that were not learnt from yet, oldest first."""

    generation: int
    law: int  # the newest one
    epochs: tuple[EpochRow, ...]
    digest: str = ""  # of all that was published, up to this generation
    # Versions of the catalogue with the first epoch of each; None: of the next that is planned.
    catalogues: tuple[tuple[int, int | None], ...] = ()
    mode: Mode = field(default_factory=Mode)  # as it was last set

    @property
    def newest(self) -> EpochRow | None:
        """The epoch that was opened last, if its end is still open."""
        last = self.epochs[-1] if self.epochs else None
        return last if last is not None and last.state == OPEN else None

    def of(self, slot: int) -> EpochRow | None:
        """The epoch of a slot; None if it was learnt from, or is not planned yet."""
        return next((epoch for epoch in self.epochs if epoch.holds(slot)), None)

    def catalogue(self, epoch: int) -> int:
        """The version of the catalogue that an epoch plays."""
        begun = (
            version for version, first in self.catalogues if first is not None and first <= epoch
        )
        return max(begun, default=0)

    @property
    def coming(self) -> int | None:
        """The version that the next epoch to be planned begins with, where it is a new one."""
        return next((version for version, first in self.catalogues if first is None), None)

    @property
    def waiting(self) -> tuple[EpochRow, ...]:
        """Epochs that wait for rewards, oldest first."""
        return tuple(epoch for epoch in self.epochs if epoch.state == WAITING)


# The columns of a row, in the order of its fields.
_EPOCH = tuple(each.name for each in fields(EpochRow))[:-1]
_SEGMENT = tuple(each.name for each in fields(SegmentRow))


def read_digest(unit: Unit, generation: int) -> str | None:
    """The chained digest of a generation, None where the store has none."""
    found = unit.select("history", ("digest",), generation=generation)
    return str(found[0][0]) if found else None


def read_view(unit: Unit, codec: Codec, known: Collection[int]) -> tuple[int, View, dict[int, Any]]:
    """Slots handed out, the view of now, and versions of the actions that are not known."""
    issued, generation = unit.counter()
    rows = unit.select("epochs", _EPOCH, state=(OPEN, WAITING, CLOSED, RELEASED))
    segments: dict[int, list[SegmentRow]] = {row[0]: [] for row in rows}
    for epoch, *segment in unit.select("segments", ("epoch", *_SEGMENT), epoch=tuple(segments)):
        segments[epoch].append(SegmentRow(*segment))
    modes = unit.select("operations", ("record",), kind="mode")
    catalogues = unit.select("catalogues", ("version", "epoch"))
    new = tuple(version for version, _ in catalogues if version not in known)
    view = View(
        generation,
        unit.select("laws", ("generation",))[-1][0],
        tuple(EpochRow(*(*row, tuple(segments[row[0]]))) for row in rows),
        read_digest(unit, generation) or "",
        tuple((version, first) for version, first in catalogues),
        Mode.from_dict(codec.unpack(modes[-1][0])[0]) if modes else Mode(),
    )
    return issued, view, dict(unit.select("catalogues", ("version", "actions"), version=new))
