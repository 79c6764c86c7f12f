"""Live progress on stderr."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """The bar of one run; :func:`capri.simulate` calls it with rounds and regret per round."""

    def __init__(self, progress: Progress, task: TaskID, uniform_regret: float) -> None:
        self._progress = progress
        self._task = task
        self._uniform_regret = uniform_regret

    def start(self) -> None:
        """Let the clock of this run tick."""
        self._progress.start_task(self._task)

    def __call__(self, rounds: int, regret: float) -> None:
        """Show how far the run is and how it compares to uniform play."""
        ratio = f"ratio {regret / self._uniform_regret:.2f}"
        self._progress.update(self._task, completed=rounds, ratio=ratio)


class Meter:
    """One bar that is told how much is done of how much. Silent where nobody watches."""

    def __init__(self, label: str, unit: str) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn(f"{{task.completed:>11,.0f}} of {{task.total:,.0f}} {unit}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(label, total=1)

    def __enter__(self) -> "Meter":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=done, total=total)


class Bars:
    """Bars for several runs. Silent where nobody watches: in pipes, logs and tests."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f} rounds"),
            TextColumn("{task.fields[ratio]:<10}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def add(self, label: str, rounds: int, uniform_regret: float) -> Bar:
        """A bar that waits until its run starts."""
        task = self._progress.add_task(label, start=False, total=rounds, ratio="")
        return Bar(self._progress, task, uniform_regret)
