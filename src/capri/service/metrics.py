"""Figures in Prometheus's text: public ones, and what this process counts of its requests.

Which rewards come, when, and how long that takes is private in sum, so counts and times of requests
are for the role ``operator`` alone, as live counts are: they stay in memory and inside the trust
boundary. Public figures are functions of releases, and for the role ``read``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from capri.service.batch import MicroBatcher
from capri.service.monitoring import LiveCounts
from capri.service.telemetry import HttpCounts

if TYPE_CHECKING:
    from capri.service.figures import Figures

KIND = b"text/plain; version=0.0.4; charset=utf-8"
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
    batchers: Sequence[MicroBatcher],
    live: LiveCounts | None,
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


def _queues(batchers: Sequence[MicroBatcher]) -> Iterator[Family]:
    yield _family("queue_items", [((each.name,), each.waiting) for each in batchers])
    yield _family("queue_bytes", [((each.name,), each.waiting_bytes) for each in batchers])
    counts = {"queue_done": "done", "queue_refused": "refused", "store_failures": "failed"}
    for name, key in counts.items():
        yield _family(name, [((each.name,), each.counts[key]) for each in batchers])
    seconds = [((each.name,), each.seconds.buckets(), each.seconds.sum) for each in batchers]
    yield _family("store_seconds", seconds)


def _alarms(live: LiveCounts | None) -> Iterator[Family]:
    if live is None:
        return
    yield _family("alarm", [((each.kind,), 1) for each in live.alarms()])
    seen = live.seen()
    for name, counts in (("visits", seen.visits), ("rewards", seen.rewards)):
        yield _family(name, [((status,), count) for status, count in sorted(counts.items())])
