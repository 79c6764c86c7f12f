"""Live progress of a study on stderr."""

from collections import Counter
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from capri_lab.experiments.backends import Event, Finished, Going, Started
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.runner import Clock, Outlook, Watcher

# More running cells than this are counted, not listed.
_LISTED = 8


class StudyProgress(Watcher):
    """A study: cells done, running and failed, time left, regret so far.

    Bars where somebody watches; in pipes and logs, failures only, each kind once.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._cells = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn(
                "{task.completed:,} of {task.total:,} cells, {task.fields[running]} running"
            ),
            TextColumn("{task.fields[failed]}", style="red"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
        )
        self._running = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[ratio]}"),
            console=self.console,
        )
        self._shown = Live(Group(self._cells, self._running), console=self.console, transient=True)
        self._bars: dict[str, TaskID] = {}
        self._active: set[str] = set()
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._task = self._cells.add_task("", total=1, running=0, failed="", left="")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._shown.stop()

    def begin(self, outlook: Outlook, workers: int) -> None:
        """Say what there is to do."""
        total = outlook.to_play.total()
        self._clock = Clock(outlook.to_play, workers)
        self._cells.update(self._task, total=total, description=outlook.folder.name)
        kept = f", {outlook.kept:,} are recorded already" if outlook.kept else ""
        self._say(f"{outlook.folder}: {total:,} cells to play on {workers} workers{kept}")
        for line in outlook.left_out:
            self._say(f"left out: {line}")

    def tell(self, event: Event) -> None:
        """Show it."""
        name = event.cell.hash
        if isinstance(event, Started):
            self._active.add(name)
            if len(self._bars) < _LISTED:
                self._bars[name] = self._running.add_task(
                    str(event.cell), total=event.cell.rounds, ratio=""
                )
        elif isinstance(event, Going):
            if name in self._bars:
                ratio = "" if event.ratio is None else f"regret / uniform {event.ratio:.3f}"
                self._running.update(self._bars[name], completed=event.rounds, ratio=ratio)
        else:
            self._finish(event.cell, event)
        self._cells.update(self._task, running=len(self._active))

    def _finish(self, cell: Cell, event: Finished) -> None:
        self._active.discard(cell.hash)
        if cell.hash in self._bars:
            self._running.remove_task(self._bars.pop(cell.hash))
        if event.record["status"] == "failed":
            kind = (cell.policy, cell.environment, event.record["error"])
            self._failures[kind] += 1
            if self._failures[kind] == 1:  # the same again is counted, not shown
                self._say(f"failed: {cell}: {event.record['error']}")
        self._clock.finished(cell.group, event.record["measured"]["seconds"])
        failed = self._failures.total()
        self._cells.update(
            self._task,
            advance=1,
            failed=f"{failed} failed" if failed else "",
            left=_in_words(self._clock.left()),
        )

    def stopping(self) -> None:
        """The first Ctrl-C."""
        self._say("stopping: cells under way are finished first; Ctrl-C again to stop at once")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)


def _in_words(seconds: float | None) -> str:
    """About how long, in one unit.

    >>> _in_words(100), _in_words(5.2), _in_words(9000)
    ('2 min left', '5 s left', '2.5 h left')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 3600 else f"{seconds / 3600:.1f} h left"
