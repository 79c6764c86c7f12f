"""How long the rest of a study takes, from what its cells took so far."""

from collections import Counter, defaultdict

Group = tuple[str, int, str]


class Clock:
    """Learns what cells of a group cost; unknown groups count like the average cell.

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
