"""Live progress on stderr."""

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Shown:
    """Shown while it is entered. Silent where nobody watches: in pipes, logs and tests."""

    _shown: Progress | Live

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._shown.stop()


class Meter(Shown):
    """One bar that is told how much is done of how much."""

    def __init__(self, label: str, unit: str) -> None:
        super().__init__()
        self._shown = self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn(f"{{task.completed:>11,.0f}} of {{task.total:,.0f}} {unit}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._task = self._progress.add_task(label, total=1)

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=done, total=total)


class Bars(Shown):
    """Bars for several runs."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f} rounds"),
            TextColumn("{task.fields[ratio]:<10}"),
            TimeElapsedColumn(),
            console=self.console,
        )

    def add(self, label: str, rounds: int, uniform_regret: float) -> Callable[[int, float], None]:
        """A bar to call with rounds and regret per round, as :func:`capri.simulate` does.

        It waits until its run starts: the first call lets its clock tick.
        """
        task = self._progress.add_task(label, start=False, total=rounds, ratio="")

        def show(done: int, regret: float) -> None:
            self._progress.start_task(task)
            ratio = f"ratio {regret / uniform_regret:.2f}" if done else ""
            self._progress.update(task, completed=done, ratio=ratio)

        return show
