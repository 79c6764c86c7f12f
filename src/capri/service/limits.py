"""How much one request, one key and one process may ask for. All of it is public."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds, a rate in items (decisions or rewards) a second and key.

    ``waiting`` items of ``waiting_bytes`` in all may wait in one lane. ``rewards_each``: of one
    decision, those that go on to what others share; a process counts by itself.
    """

    largest_body: int = 1 << 20
    largest_batch: int = 1000
    deepest: int = 32
    header_seconds: float = 10.0
    body_seconds: float = 10.0
    idle_seconds: float = 60.0
    answer_seconds: float = 10.0
    rate: float = 20_000.0
    waiting: int = 20_000
    waiting_bytes: int = 32 << 20
    rewards_each: int = 100

    @classmethod
    def defaults(cls) -> dict[str, float | int]:
        """What holds where nothing is said."""
        return asdict(cls())


class Bucket:
    """A rate with room for a burst of one second's worth: refilled as time goes by.

    >>> bucket = Bucket(2.0)
    >>> [bucket.take(1, now) for now in (0.0, 0.0, 0.0, 0.5)]
    [True, True, False, True]
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left, self._at = rate, 0.0

    def take(self, count: int, now: float) -> bool:
        """Whether so many items may come now. One request may borrow, and those after it wait."""
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < min(count, 1):
            return False
        self._left -= count
        return True
