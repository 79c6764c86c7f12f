"""How far a policy has come, as anybody may know it: decisions taken, epochs under way."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """An epoch that is not released yet.

    ``taken`` of about ``length`` decisions; ``open`` while it takes more, then it waits for
    rewards until decision ``closes`` or the time ``closes_at`` (seconds since 1970). Where epochs
    also end by the clock, an open one does so at ``ends_at``.
    """

    epoch: int
    length: int
    taken: int
    open: bool
    closes: int | None = None
    closes_at: float | None = None
    ends_at: float | None = None


def end_by_clock(began: float | None, lasts: timedelta | None) -> float | None:
    """When an epoch ends by the clock; None where it does not, or has no decision yet."""
    return None if began is None or lasts is None else began + lasts.total_seconds()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Decisions taken so far, releases, and the epochs under way, oldest first.

    ``missed``: releases of a store that were not ready at the moment that was fixed for them.
    """

    decided: int
    released: int
    under_way: tuple[UnderWay, ...]
    missed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"under_way": [asdict(epoch) for epoch in self.under_way]}
