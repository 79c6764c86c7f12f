"""What a process says of its requests: counts, metrics, spans where asked for, and the log.

Which rewards come, when, and how long that takes is private in sum, so counts, metrics and spans of
requests are inside the trust boundary: for the role ``operator`` alone, as live counts are, and in
memory. Public figures are functions of releases, and for the role ``read``. The log goes to
standard error, as text or as JSON, and quotes no request: neither a context, a reward, an id of a
decision, a key nor a user. What is said of a request is its name (:data:`request_id`), which is
random.
"""

import json
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from capri.errors import KernelWarning, MissingExtraError, PrivacyLeakWarning

if TYPE_CHECKING:
    from capri.service.batch import MicroBatcher
    from capri.service.figures import Figures
    from capri.service.monitoring import LiveCounts

# The name of the request that is answered now, as the log has it.
request_id: ContextVar[bytes] = ContextVar("request_id", default=b"")

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


Traced = Callable[[str, int, float], None]


def tracer() -> Traced:
    """Sends a span for each request to where ``OTEL_EXPORTER_OTLP_ENDPOINT`` says.

    A span has the route, the status, the time, and the name that the log has. Nothing that a caller
    sent is in it, the caller's own trace neither. Times of rewards are private in sum: whoever
    collects spans is inside the trust boundary.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise MissingExtraError(
            "traces need OpenTelemetry: pip install 'capri-bandits[traces]'"
        ) from None
    return traced(BatchSpanProcessor(OTLPSpanExporter()))


def traced(processor: Any) -> Traced:
    """The same for any processor of spans."""
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource.create({"service.name": "capri"}))
    provider.add_span_processor(processor)
    made = provider.get_tracer("capri.service")

    def note(route: str, status: int, seconds: float) -> None:
        ended = time.time_ns()
        known: dict[str, Any] = {"http.route": route, "http.response.status_code": status}
        known["capri.request"] = request_id.get().decode()
        began = ended - int(1e9 * seconds)
        made.start_span(route, Context(), attributes=known, start_time=began).end(ended)

    return note


class HttpCounts:
    """Requests of one process by route and status, and how long they took."""

    def __init__(self, told: Traced | None = None) -> None:
        """``told``: of each request, too."""
        self._told = told
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
        if self._told is not None:
            self._told(route, status, seconds)

    def milliseconds(self) -> dict[str, dict[str, float]]:
        """Quantiles of the time to answer, by route."""
        return {
            route: {
                name: round(1000 * found.quantile(share), 3)
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
            }
            for route, found in self.seconds.items()
        }


# -- the log ---------------------------------------------------------------------------------------


class _Line(logging.Formatter):
    """A line as text."""

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record)
        name = request_id.get()
        return f"{said} [{name.decode()}]" if name else said


class _JsonLine(logging.Formatter):
    """A line as JSON: time, level, logger, message, and the request where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := request_id.get():
            line["request_id"] = name.decode()
        return json.dumps(line)


def log_to_standard_error(*, as_json: bool) -> None:
    """Set the loggers of this process up."""
    handler = logging.StreamHandler()
    text = _Line("%(asctime)s %(name)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLine() if as_json else text)
    for name in ("capri", "uvicorn.error", "asyncio"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.propagate = False
        log.setLevel(logging.WARNING)
        if name != "capri":
            log.addFilter(_without_traceback)


def tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Notices, which are public, as lines of the log; of any other warning its kind alone."""
    ours = issubclass(category, KernelWarning | PrivacyLeakWarning)
    said = str(message) if ours else category.__name__
    logging.getLogger("capri.service").warning("%s", said)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A traceback may quote what a request held: the kind of a failure is enough."""
    kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
    record.msg = record.getMessage().partition("\n")[0]
    record.args = ()
    if kind is not None:
        record.msg += f" ({kind.__name__})"
    record.exc_info = record.exc_text = None
    return True


# -- metrics in Prometheus's text ------------------------------------------------------------------


METRICS = b"text/plain; version=0.0.4; charset=utf-8"
Family = Any  # a metric family of prometheus_client, which is loaded when somebody asks
# Every metric: its type, its labels, and what it says. The reference is written from these.
PUBLIC: dict[str, tuple[str, tuple[str, ...], str]] = {
    "decisions": ("counter", (), "Decisions taken."),
    "releases": ("counter", (), "Epochs released."),
    "releases_missed": ("counter", (), "Releases not ready at their moment."),
    "epochs_waiting": ("gauge", (), "Epochs that wait for rewards."),
    "epoch_length": ("gauge", (), "Planned decisions of the epoch under way."),
    "epoch_taken": ("gauge", (), "Decisions of the epoch under way."),
    "horizon": ("gauge", (), "Decisions there may be."),
    "noise_scale": ("gauge", (), "Noise of the last release."),
    "width": ("gauge", (), "Typical width after the last release."),
    "active_share": ("gauge", (), "Share of pairs in play."),
    "response_rate": ("gauge", (), "Response rate, as released."),
    "epsilon_budget": ("gauge", (), "What each user is promised."),
    "epsilon_spent": ("gauge", (), "What a user can have lost."),
    "notices": ("gauge", (), "Things that do not fit."),
    "notice": ("gauge", ("kind",), "A notice by its kind."),
    "mode": ("gauge", ("mode",), "Who decides."),
}
LIVE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "http_requests": ("counter", ("route", "status"), "Requests answered."),
    "http_seconds": ("histogram", ("route",), "Time to answer."),
    "queue_items": ("gauge", ("queue",), "Items that wait."),
    "queue_bytes": ("gauge", ("queue",), "Bytes that they may take."),
    "queue_done": ("counter", ("queue",), "Items that were done."),
    "queue_refused": ("counter", ("queue",), "Requests told no."),
    "store_failures": ("counter", ("queue",), "Calls that failed."),
    "store_seconds": ("histogram", ("queue",), "Time of calls of the policy and its store."),
    "alarm": ("gauge", ("kind",), "An alarm by its kind."),
    "visits": ("counter", ("status",), "Visits by status."),
    "rewards": ("counter", ("status",), "Rewards by status."),
}


def public_text(figures: "Figures") -> bytes:
    """Figures that anybody with the role ``read`` may see."""
    return _text(_public(figures))


def live_text(
    figures: "Figures",
    http: HttpCounts,
    batchers: "Sequence[MicroBatcher]",
    live: "LiveCounts | None",
) -> bytes:
    """Those, and what this process has counted: for operators."""
    return _text((*_public(figures), *_http(http), *_queues(batchers), *_alarms(live)))


def _text(families: Iterable[Family]) -> bytes:
    from prometheus_client import generate_latest

    class Registry:
        def collect(self) -> Iterable[Family]:
            return families

    return bytes(generate_latest(Registry()))


def _family(name: str, samples: Iterable[tuple[Any, ...]]) -> Family:
    """A metric with its samples: the values of its labels, then what is measured."""
    from prometheus_client import core

    kind, labels, text = (PUBLIC | LIVE)[name]
    found = getattr(core, f"{kind.capitalize()}MetricFamily")(f"capri_{name}", text, labels=labels)
    for values, *measured in samples:
        found.add_metric([str(value) for value in values], *measured)
    return found


def _public(figures: "Figures") -> Iterator[Family]:
    progress, epochs, ledger = figures.progress(), figures.epochs(), figures.ledger()
    last, policy = epochs[-1] if epochs else {}, figures.policy()
    taking = [epoch for epoch in progress["under_way"] if epoch["open"]]
    values = {
        "decisions": progress["decided"],
        "releases": len(epochs),
        "releases_missed": progress.get("missed"),
        "epochs_waiting": len(progress["under_way"]) - len(taking),
        "epoch_length": taking[0]["length"] if taking else None,
        "epoch_taken": taking[0]["taken"] if taking else None,
        "horizon": policy["horizon"],
        **{name: last.get(name) for name in ("noise_scale", "width", "active_share")},
        "response_rate": last.get("response_rate"),
        "epsilon_budget": ledger["budget"]["epsilon"],
        "epsilon_spent": ledger["spent"]["epsilon"],
        "notices": len(policy["notices"]),
    }
    for name, value in values.items():
        if value is not None:
            yield _family(name, [((), value)])
    yield _family("notice", [((each["kind"],), 1) for each in policy["notices"]])
    yield _family("mode", [((policy["mode"],), 1)])


def _http(http: HttpCounts) -> Iterator[Family]:
    yield _family("http_requests", sorted(http.requests.items()))
    seconds = sorted(http.seconds.items())
    yield _family("http_seconds", [((at,), each.buckets(), each.sum) for at, each in seconds])


def _queues(batchers: "Sequence[MicroBatcher]") -> Iterator[Family]:
    yield _family("queue_items", [((each.name,), each.waiting) for each in batchers])
    yield _family("queue_bytes", [((each.name,), each.waiting_bytes) for each in batchers])
    counts = {"queue_done": "done", "queue_refused": "refused", "store_failures": "failed"}
    for name, key in counts.items():
        yield _family(name, [((each.name,), each.counts[key]) for each in batchers])
    seconds = [((each.name,), each.seconds.buckets(), each.seconds.sum) for each in batchers]
    yield _family("store_seconds", seconds)


def _alarms(live: "LiveCounts | None") -> Iterator[Family]:
    if live is None:
        return
    yield _family("alarm", [((each.kind,), 1) for each in live.alarms()])
    seen = live.seen()
    for name, counts in (("visits", seen.visits), ("rewards", seen.rewards)):
        yield _family(name, [((status,), count) for status, count in sorted(counts.items())])
