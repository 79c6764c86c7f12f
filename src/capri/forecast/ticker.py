"""Progress of a forecast, over all of its runs."""

from collections.abc import Callable

# Called with the rounds played so far and the rounds of all runs together.
Progress = Callable[[int, int], None]


class Ticker:
    """Adds up the rounds of runs that each report their own."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._before = progress, total, 0

    def __call__(self, rounds: int, _: float) -> None:
        """So many rounds of this run are played."""
        if self._progress is not None:
            self._progress(self._before + rounds, self._total)

    def next_run(self, rounds: int) -> None:
        """A run of so many rounds is over."""
        self._before += rounds
