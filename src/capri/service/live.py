"""Live counts, inside the trust boundary: how many rewards came, with what status, how fast.

Whether and when rewards come is private, so these are for the role ``operator`` alone, and so are
the alarms that are made of them. They are of one process, in memory, and never in ``/metrics``.
"""

import time
from collections import Counter, deque
from typing import Any

from capri.epoch.rewards import RewardTerms
from capri.service.alarms import OUTSIDE, Columns, live_alarms

_KEPT = 2000  # latencies that quantiles are of
_MINUTES = 60


class Live:
    """Counts of one process since it started."""

    def __init__(self, terms: RewardTerms, columns: tuple[str, ...]) -> None:
        """``columns``: the names that contexts were declared with."""
        self._since, self._terms = time.time(), terms
        self.columns = Columns(columns)
        self._visits: Counter[str] = Counter()
        self._rewards: Counter[str] = Counter()
        self._seconds: dict[str, deque[float]] = {}
        self._minutes: deque[tuple[int, int]] = deque(maxlen=_MINUTES)

    def visits(self, statuses: list[str]) -> None:
        """Some visits were served."""
        self._visits.update(statuses)
        minute = int(time.time() // 60)
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1] = (minute, self._minutes[-1][1] + len(statuses))
        else:
            self._minutes.append((minute, len(statuses)))

    def rewards(self, statuses: list[str]) -> None:
        """Some rewards were judged."""
        self._rewards.update(statuses)

    def took(self, what: str, seconds: float) -> None:
        """How long a request took."""
        kept = self._seconds.get(what)
        if kept is None:
            kept = self._seconds[what] = deque(maxlen=_KEPT)
        kept.append(seconds)

    def to_dict(self) -> dict[str, Any]:
        """For an operator's eyes."""
        return {
            "trust": "inside the trust boundary: do not publish",
            "since": self._since,
            "visits": dict(self._visits),
            "rewards": dict(self._rewards),
            "alarms": [
                alarm.to_dict()
                for alarm in live_alarms(
                    self._terms,
                    self._visits,
                    self._rewards,
                    self.columns,
                    time.time() - self._since,
                )
            ],
            "alarms_mean": OUTSIDE,
            "minutes": [{"minute": minute, "decisions": count} for minute, count in self._minutes],
            "milliseconds": {
                what: dict(zip(("p50", "p90", "p99"), _quantiles(kept), strict=True))
                for what, kept in self._seconds.items()
            },
        }


def _quantiles(seconds: deque[float]) -> list[float]:
    ordered = sorted(seconds)
    return [
        round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
        for share in (0.5, 0.9, 0.99)
    ]
