"""What a process counts of its requests: inside the trust boundary, and in memory alone."""

from bisect import bisect_left

_EDGES = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of seconds by size.

    >>> histogram = Histogram()
    >>> for seconds in (0.0005, 0.03, 60.0):
    ...     histogram.observe(seconds)
    >>> [count for _, count in histogram.buckets()][-3:], round(histogram.sum, 4)
    ([2, 2, 3], 60.0305)
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(_EDGES, seconds)] += 1
        self.sum += seconds

    def quantile(self, share: float) -> float:
        """About how long so many took at most: as if a bucket was evenly filled."""
        wanted, total = share * sum(self._counts), 0
        for place, count in enumerate(self._counts):
            if count and total + count >= wanted:
                low, high = (0.0, *_EDGES, _EDGES[-1])[place : place + 2]
                return low + (high - low) * (wanted - total) / count
            total += count
        return 0.0

    def buckets(self) -> list[tuple[str, int]]:
        """How many were at most so large."""
        total, found = 0, []
        for edge, count in zip((*map(str, _EDGES), "+Inf"), self._counts, strict=True):
            total += count
            found.append((edge, total))
        return found


class HttpCounts:
    """Requests of one process by route and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, Histogram] = {}

    def note(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        key = (route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        found = self.seconds.get(route)
        if found is None:
            found = self.seconds[route] = Histogram()
        found.observe(seconds)

    def milliseconds(self) -> dict[str, dict[str, float]]:
        """Quantiles of the time to answer, by route."""
        return {
            route: {
                name: round(1000 * found.quantile(share), 3)
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
            }
            for route, found in self.seconds.items()
        }
