"""Figures in Prometheus's text: public ones, and what this process counts of its requests.

Which rewards come, when, and how long that takes is private in sum, so counts and times of requests
are for the role ``operator`` alone, as live counts are: they stay in memory and inside the trust
boundary. Public figures are functions of releases, and for the role ``read``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from capri.service.batch import MicroBatcher
from capri.service.counts import HttpCounts
from capri.service.monitoring import LiveCounts

if TYPE_CHECKING:
    from capri.service.figures import Figures

KIND = b"text/plain; version=0.0.4; charset=utf-8"
Family = Any  # a metric family of prometheus_client, which is loaded when somebody asks


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


def _public(figures: "Figures") -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    progress, epochs, ledger = figures.progress(), figures.epochs(), figures.ledger()
    last, policy = epochs[-1] if epochs else {}, figures.policy()
    taking = [epoch for epoch in progress["under_way"] if epoch["open"]]
    counters = [
        ("decisions", "Decisions taken.", progress["decided"]),
        ("releases", "Epochs released.", len(epochs)),
        ("releases_missed", "Releases not ready at their moment.", progress.get("missed")),
    ]
    gauges = [
        ("epochs_waiting", "Epochs that wait for rewards.",
         len(progress["under_way"]) - len(taking)),
        ("epoch_length", "Planned decisions of the epoch under way.",
         taking[0]["length"] if taking else None),
        ("epoch_taken", "Decisions of the epoch under way.",
         taking[0]["taken"] if taking else None),
        ("horizon", "Decisions there may be.", policy["horizon"]),
        ("noise_scale", "Noise of the last release.", last.get("noise_scale")),
        ("width", "Typical width after the last release.", last.get("width")),
        ("active_share", "Share of pairs in play.", last.get("active_share")),
        ("response_rate", "Response rate, as released.", last.get("response_rate")),
        ("epsilon_budget", "What each user is promised.", ledger["budget"]["epsilon"]),
        ("epsilon_spent", "What a user can have lost.", ledger["spent"]["epsilon"]),
        ("notices", "Things that do not fit.", len(policy["notices"])),
    ]  # fmt: skip
    for kind, found in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, text, value in found:
            if value is not None:
                yield kind(f"capri_{name}", text, value)
    notice = GaugeMetricFamily("capri_notice", "A notice by its kind.", labels=["kind"])
    for each in policy["notices"]:
        notice.add_metric([each["kind"]], 1)
    mode = GaugeMetricFamily("capri_mode", "Who decides.", labels=["mode"])
    mode.add_metric([policy["mode"]], 1)
    yield from (notice, mode)


def _http(http: HttpCounts) -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    labels = ["route", "status"]
    requests = CounterMetricFamily("capri_http_requests", "Requests answered.", labels=labels)
    for (route, status), count in sorted(http.requests.items()):
        requests.add_metric([route, str(status)], count)
    seconds = HistogramMetricFamily("capri_http_seconds", "Time to answer.", labels=["route"])
    for route, found in sorted(http.seconds.items()):
        seconds.add_metric([route], found.buckets(), found.sum)
    yield from (requests, seconds)


def _queues(batchers: Sequence[MicroBatcher]) -> Iterator[Family]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    label = ["queue"]
    items = GaugeMetricFamily("capri_queue_items", "Items that wait.", labels=label)
    size = GaugeMetricFamily("capri_queue_bytes", "Bytes that they may take.", labels=label)
    done = CounterMetricFamily("capri_queue_done", "Items that were done.", labels=label)
    refused = CounterMetricFamily("capri_queue_refused", "Requests told no.", labels=label)
    failed = CounterMetricFamily("capri_store_failures", "Calls that failed.", labels=label)
    text = "Time of calls of the policy and its store."
    seconds = HistogramMetricFamily("capri_store_seconds", text, labels=label)
    for each in batchers:
        own = [each.name]
        items.add_metric(own, each.waiting)
        size.add_metric(own, each.waiting_bytes)
        done.add_metric(own, each.counts["done"])
        refused.add_metric(own, each.counts["refused"])
        failed.add_metric(own, each.counts["failed"])
        seconds.add_metric(own, each.seconds.buckets(), each.seconds.sum)
    yield from (items, size, done, refused, failed, seconds)


def _alarms(live: LiveCounts | None) -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if live is None:
        return
    alarm = GaugeMetricFamily("capri_alarm", "An alarm by its kind.", labels=["kind"])
    for each in live.alarms():
        alarm.add_metric([each.kind], 1)
    seen, label = live.seen(), ["status"]
    visits = CounterMetricFamily("capri_visits", "Visits by status.", labels=label)
    rewards = CounterMetricFamily("capri_rewards", "Rewards by status.", labels=label)
    for family, counts in ((visits, seen.visits), (rewards, seen.rewards)):
        for status, count in sorted(counts.items()):
            family.add_metric([status], count)
    yield from (alarm, visits, rewards)
