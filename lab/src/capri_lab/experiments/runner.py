"""Run a study: play what is missing, record each cell as soon as it is there."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from capri_lab.experiments.backends import Backend, Event, Finished, Pool, Stop, signals
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.records import Records
from capri_lab.experiments.study import Study

Group = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class Outlook:
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
        costs = {group: self._seconds[group] / count for group, count in self._count.items()}
        ahead = sum(cells * costs.get(group, average) for group, cells in self._to_play.items())
        return ahead / self._workers


@dataclass(frozen=True, kw_only=True)
class Summary(Outlook):
    """How a run ended. ``stopped``: the user asked for it before all was played."""

    played: int
    failed: int
    stopped: bool


class Watcher:
    """Told how a run goes; this one does not listen."""

    def begin(self, outlook: Outlook, workers: int) -> None:
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

    ``backend`` is by default a :class:`~capri_lab.experiments.Pool` with a worker per core. Failed
    cells count as played unless ``retry``. The first Ctrl-C lets the cells under way finish, the
    second stops at once; nothing that was recorded is lost either way, and the next run goes on
    from there.
    """
    backend = backend or Pool()
    told = watcher or Watcher()
    folder = Path(output) / study.name
    with Records(folder, study) as records:

        def wanted(cell: Cell) -> bool:
            status = records.status(cell.hash)
            return status is None or (retry and status == "failed")

        outlook = _outlook(study, folder, records, wanted)
        told.begin(outlook, backend.workers)
        stop = Stop()

        def hear(*_: object) -> None:
            """The first signal asks to stop, the next one interrupts."""
            if stop.asked:
                raise KeyboardInterrupt
            stop.asked = True
            told.stopping()

        played = failed = 0
        events = backend.play(filter(wanted, _different(study)), stop)
        with signals(hear, signal.SIGINT, signal.SIGTERM), closing(events):
            for event in events:
                if isinstance(event, Finished):
                    records.append(event.record)
                    played += 1
                    failed += event.record["status"] == "failed"
                told.tell(event)
    stopped = stop.asked and played < outlook.to_play.total()
    return Summary(**vars(outlook), played=played, failed=failed, stopped=stopped)


def _outlook(
    study: Study, folder: Path, records: Records, wanted: Callable[[Cell], bool]
) -> Outlook:
    to_play: Counter[Group] = Counter()
    kept: Counter[str | None] = Counter()
    for cell in _different(study):
        if wanted(cell):
            to_play[cell.group] += 1
        else:
            kept[records.status(cell.hash)] += 1
    return Outlook(
        folder=folder,
        to_play=to_play,
        kept=kept.total(),
        kept_failed=kept["failed"],
        left_out=study.left_out(),
    )


def _different(study: Study) -> Iterator[Cell]:
    """Two labels may stand for the same cell: it is played once."""
    seen: set[str] = set()
    for cell in study.cells():
        if cell.hash not in seen:
            seen.add(cell.hash)
            yield cell
