"""What backends are, what they tell while they play cells, and the one without workers."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import Any, Protocol, final

from capri_lab.experiments.cells import Cell
from capri_lab.experiments.play import play


@dataclass(frozen=True)
class Started:
    """A worker took a cell."""

    cell: Cell


@dataclass(frozen=True)
class Going:
    """A cell is under way: rounds played, and regret over that of uniform play so far."""

    cell: Cell
    rounds: int
    ratio: float | None


@dataclass(frozen=True)
class Finished:
    """A cell has its record."""

    cell: Cell
    record: dict[str, Any]


Event = Started | Going | Finished


class Stop:
    """Says whether the user wants no new cells to be started."""

    asked = False


@contextmanager
def signals(handler: Callable[..., None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Another handler for these signals; only in the main thread, which alone may set one."""
    if current_thread() is not main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, own in former.items():
            signal.signal(number, own)


class Backend(Protocol):
    """Plays cells somewhere. Takes them from the iterator as workers come free, never all at once.

    Ending the iteration early ends all workers.
    """

    @property
    def workers(self) -> int:
        """How many cells are played at once."""
        ...

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play all cells; once ``stop`` is asked for, only those that are under way."""
        ...


@final
class Here:
    """Cells in this very process, one after the other: for small studies and debuggers."""

    workers = 1

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play cell after cell."""
        for cell in cells:
            yield Started(cell)
            yield Finished(cell, play(cell))
            if stop.asked:
                return
