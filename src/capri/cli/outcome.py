"""What commands write and show while and after they run: progress, JSON, tables, pictures.

Commands load this, and Rich with it, when they run.
"""

import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from capri.errors import ConfigurationError
from capri.files import check_writable, to_json, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capri.simulation import SimulationResult

PRIVACY_CLAIM = "none: this is a seeded simulation"

# What the numbers depend on.
_LIBRARIES = ("capri-bandits", "numpy", "scipy", "opendp")


def mean(results: "Sequence[SimulationResult]") -> dict[str, Any]:
    """Means over seeds; the standard error of the ratio is None for a single seed."""
    ratios = [result.ratio for result in results]
    return {
        "regret_per_round": fmean(result.regret_per_round for result in results),
        "uniform_regret_per_round": fmean(result.uniform_regret_per_round for result in results),
        "ratio": fmean(ratios),
        "ratio_standard_error": (
            stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
        ),
        "seconds": fmean(result.seconds for result in results),
        "peak_memory_bytes": fmean(result.peak_memory_bytes for result in results),
        "epochs": fmean(len(result.epochs) for result in results),
    }


def versions(*others: str) -> dict[str, str | None]:
    """Of Python and of the libraries behind the numbers."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*_LIBRARIES, *others):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # running from a source tree
            versions[name] = None
    return versions


def check_json(target: str | None) -> None:
    """Refuse a file that could not be written when a long run is over; - is standard output."""
    if target is not None and target != "-":
        check_writable(Path(target))


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written, or is of no known kind."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigurationError(f"the picture must end in .png, .svg or .pdf, got {path}")
    check_writable(path)


def put_picture(path: Path, figure: "Figure") -> None:
    """Write a picture of the kind that the file name asks for."""
    from capri.plots import to_bytes

    write_atomically(path, to_bytes(figure, path.suffix.lower().removeprefix(".")))


def put_json(target: str | None, document: Mapping[str, Any]) -> None:
    """Write a document where it was asked for. With -, it is all that standard output holds."""
    if target == "-":
        typer.echo(to_json(document), nl=False)
    elif target is not None:
        write_atomically(Path(target), to_json(document).encode())


def console(json: str | None) -> Console:
    """Where tables go: standard error when JSON has the standard output."""
    return Console(stderr=json == "-", highlight=False)


class Output:
    """Where a command puts what it found: files and the shell.

    Files that could not be written when a long run is over are refused at once.
    """

    def __init__(self, json: str | None = None, picture: Path | None = None) -> None:
        if picture is not None:
            check_picture(picture)
        check_json(json)
        self._json, self._picture = json, picture

    def put(
        self, *shown: object, document: Mapping[str, Any], figure: "Figure | None" = None
    ) -> None:
        """Write the files, show the rest, and say which files there are."""
        # Files first: they are there even if nobody reads the tables to their end.
        if self._picture is not None and figure is not None:
            put_picture(self._picture, figure)
        put_json(self._json, document)
        shell = console(self._json)
        for part in shown:
            shell.print(part)
        for what, path in (("Picture", self._picture), ("Results", self._json)):
            if path is not None and path != "-":
                shell.print(f"{what}: {path}", soft_wrap=True, markup=False)


def a_table(columns: Iterable[str], *, left: Sequence[str] = (), **options: Any) -> Table:
    """An empty table in the style of all commands: columns of numbers, and of texts on the left."""
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    style |= {"title_justify": "left", "title_style": "bold", "caption_justify": "left"}
    headers = [
        Column(name) if name in left else Column(name, justify="right", no_wrap=True)
        for name in columns
    ]
    return Table(*headers, **style | options)


def _watched(transient: bool = False) -> dict[str, Any]:
    """Bars on standard error. Silent where nobody watches: in pipes, logs and tests."""
    shell = Console(stderr=True, highlight=False)
    return {"console": shell, "disable": not shell.is_terminal, "transient": transient}


class Meter(Progress):
    """One bar that is told how much is done of how much."""

    def __init__(self, label: str, unit: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn(f"{{task.completed:>11,.0f}} of {{task.total:,.0f}} {unit}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            **_watched(transient=True),
        )
        self._task = self.add_task(label, total=1)

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        self.update(self._task, completed=done, total=total)


class RegretBars(Progress):
    """A bar for each of several runs."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f} rounds"),
            TextColumn("{task.fields[ratio]:<10}"),
            TimeElapsedColumn(),
            **_watched(),
        )

    def begin(self, label: str, rounds: int, uniform_regret: float) -> Callable[[int, float], None]:
        """A bar to call with rounds and regret per round, as :func:`capri.simulate` does.

        It waits until its run starts: the first call lets its clock tick.
        """
        task = self.add_task(label, start=False, total=rounds, ratio="")

        def show(done: int, regret: float) -> None:
            self.start_task(task)
            ratio = f"ratio {regret / uniform_regret:.2f}" if done else ""
            self.update(task, completed=done, ratio=ratio)

        return show
