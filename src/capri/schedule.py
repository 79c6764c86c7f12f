"""Lengths of the epochs, decided before any data."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import floor, isfinite, isqrt

from capri.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ScheduleTerms:
    """What an operator asks of a schedule: ``first_epoch`` None for what the learner finds best."""

    first_epoch: int | None
    growth: float
    horizon: int | None


@dataclass(frozen=True)
class Schedule:
    """Epoch lengths ``T_1, growth T_1, growth^2 T_1, ...`` that add up to the horizon.

    The last epoch is truncated to the horizon (the paper prints "log T" epochs; with doubling there
    are ``ceil(log2(T / T_1 + 1))``). Without a horizon the lengths never end.

    >>> list(Schedule.paper(100))
    [10, 20, 40, 30]
    >>> from itertools import islice
    >>> list(islice(Schedule(first=100, growth=1.5), 4))
    [100, 150, 225, 337]
    """

    first: int
    growth: float = 2.0
    horizon: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1:
            raise ConfigurationError(f"the first epoch needs at least 1 round, got {self.first}")
        if not (isfinite(self.growth) and self.growth >= 1.0):
            raise ConfigurationError(f"epoch growth must be at least 1, got {self.growth}")
        if self.horizon is not None and self.horizon < 2:
            raise ConfigurationError(f"horizon must be at least 2, got {self.horizon}")

    @classmethod
    def paper(cls, horizon: int) -> "Schedule":
        """``T_1 = ceil(sqrt T)`` and doubling (Alg. 1, lines 2 and 20)."""
        return cls(first=isqrt(max(horizon, 1) - 1) + 1, growth=2.0, horizon=horizon)

    def __iter__(self) -> Iterator[int]:
        """Yield the length of each epoch in turn."""
        total, ideal = 0, float(self.first)
        while self.horizon is None or total < self.horizon:
            length = floor(ideal)
            if self.horizon is not None:
                length = min(length, self.horizon - total)
            yield length
            total += length
            ideal *= self.growth

    def length(self, epoch: int) -> int:
        """Length of epoch ``epoch`` (counted from 1), or 0 beyond the horizon.

        >>> Schedule.paper(100).length(4), Schedule.paper(100).length(5)
        (30, 0)
        """
        return next(islice(self, epoch - 1, None), 0)

    def after(self, decided: int, epoch: int) -> int:
        """Length of epoch ``epoch`` when it begins after so many decisions; 0 at the horizon.

        As scheduled where epochs were as long as planned, else ``first + (growth - 1) decided``:
        the same lengths, for epochs that ended early or began while others wait.

        >>> schedule = Schedule(first=100, growth=1.5)
        >>> schedule.after(250, 3), schedule.after(40, 2)
        (225, 120)
        """
        if self._as_scheduled(decided, epoch):
            return self.length(epoch)
        length = floor(self.first + (self.growth - 1) * decided)
        return length if self.horizon is None else max(0, min(length, self.horizon - decided))

    def _as_scheduled(self, decided: int, epoch: int) -> bool:
        """Whether the epochs before this one have so many decisions by the schedule."""
        total = 0
        for length in islice(self, epoch - 1):
            total += length
            if total > decided:  # long before lengths that grow for ever leave the numbers
                return False
        return total == decided
