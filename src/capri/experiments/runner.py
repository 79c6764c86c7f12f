"""Run a study: play what is missing, record each cell as soon as it is there."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from capri.experiments.backends import Backend, Event, Finished, Stop
from capri.experiments.cells import Cell
from capri.experiments.records import Records
from capri.experiments.study import Study

Group = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class ExpectedRegret:
    """What a run has before it: cells to play, by groups of about equal cost, and those it keeps.

    ``left_out`` says in words what is beyond a policy's reach.
    """

    folder: Path
    to_play: Counter[Group]
    kept: int
    kept_failed: int
    left_out: list[str]


class Clock:
    """How long the rest of a study takes, from what its cells took so far.

    Learns what cells of a group cost; unknown groups count like the average cell.

    >>> clock = Clock(Counter({("a", 10, "p"): 3, ("a", 10, "q"): 1}), workers=2)
    >>> clock.left() is None
    True
    >>> clock.finished(("a", 10, "p"), 4.0)
    >>> clock.left()
    6.0
    """

    def __init__(self, to_play: Counter[Group], workers: int) -> None:
        self._to_play = Counter(to_play)
        self._workers = max(1, workers)
        self._seconds: defaultdict[Group, float] = defaultdict(float)
        self._count: Counter[Group] = Counter()

    def finished(self, group: Group, seconds: float | None) -> None:
        """A cell of this group is done."""
        self._to_play[group] -= 1
        if seconds is not None:
            self._seconds[group] += seconds
            self._count[group] += 1

    def left(self) -> float | None:
        """Seconds of all cells to come over the number of workers; None before the first cell."""
        if not self._count:
            return None
        average = sum(self._seconds.values()) / self._count.total()
        ahead = 0.0
        for group, cells in self._to_play.items():
            count = self._count[group]
            ahead += cells * (self._seconds[group] / count if count else average)
        return ahead / self._workers


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run ended. ``stopped``: the user asked for it before all was played."""

    folder: Path
    played: int
    failed: int
    kept: int
    kept_failed: int
    stopped: bool


class Watcher:
    """Told how a run goes; this one does not listen."""

    def begin(self, outlook: ExpectedRegret, workers: int) -> None:
        """Before the first cell."""

    def tell(self, event: Event) -> None:
        """Whenever something happened; records are already on the disk."""

    def stopping(self) -> None:
        """The user asked for no new cells."""


def run_study(
    study: Study,
    output: str | PathLike[str] = "results",
    *,
    backend: Backend | None = None,
    retry: bool = False,
    watcher: Watcher | None = None,
) -> Summary:
    """Play the cells of a study that have no record in ``output/<name of the study>``.

    ``backend`` is by default a :class:`~capri.experiments.Pool` with a worker per core. Failed
    cells count as played unless ``retry``. The first Ctrl-C lets the cells under way finish, the
    second stops at once; nothing that was recorded is lost either way, and the next run goes on
    from there.
    """
    if backend is None:
        from capri.experiments.pool import Pool

        backend = Pool()
    if watcher is None:
        watcher = Watcher()
    folder = Path(output) / study.name
    with Records(folder, study) as records:

        def wanted(cell: Cell) -> bool:
            status = records.status(cell.hash)
            return status is None or (retry and status == "failed")

        outlook = _outlook(study, folder, records, wanted)
        watcher.begin(outlook, backend.workers)
        stop = Stop()
        played = failed = 0
        started: set[str] = set()

        def missing() -> Iterator[Cell]:
            for cell in study.cells():
                # Two labels may stand for the same cell: it is played once.
                if cell.hash not in started and wanted(cell):
                    started.add(cell.hash)
                    yield cell

        events = backend.play(missing(), stop)
        with _interruptible(stop, watcher.stopping), closing(events):
            for event in events:
                if isinstance(event, Finished):
                    records.append(event.record)
                    played += 1
                    failed += event.record["status"] == "failed"
                watcher.tell(event)
    return Summary(
        folder=folder,
        played=played,
        failed=failed,
        kept=outlook.kept,
        kept_failed=outlook.kept_failed,
        stopped=stop.asked and played < outlook.to_play.total(),
    )


def _outlook(
    study: Study, folder: Path, records: Records, wanted: Callable[[Cell], bool]
) -> ExpectedRegret:
    to_play: Counter[Group] = Counter()
    seen: set[str] = set()
    kept = kept_failed = 0
    for cell in study.cells():
        if cell.hash in seen:
            continue
        seen.add(cell.hash)
        if wanted(cell):
            to_play[cell.group] += 1
        else:
            kept += 1
            kept_failed += records.status(cell.hash) == "failed"
    return ExpectedRegret(
        folder=folder,
        to_play=to_play,
        kept=kept,
        kept_failed=kept_failed,
        left_out=study.left_out(),
    )


@contextmanager
def _interruptible(stop: Stop, stopping: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks to stop, the next one interrupts."""
    if current_thread() is not main_thread():
        yield  # only the main thread may listen to signals
        return

    def hear(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        stopping()

    former = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
