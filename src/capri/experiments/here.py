"""Cells in this very process, one after the other: for small studies, notebooks and debuggers."""

from collections.abc import Generator, Iterator
from typing import final

from capri.experiments.cells import Cell
from capri.experiments.events import Event, Finished, Started, Stop
from capri.experiments.play import play


@final
class Here:
    """The backend without workers."""

    workers = 1

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play cell after cell."""
        for cell in cells:
            yield Started(cell)
            yield Finished(cell, play(cell))
            if stop.asked:
                return
