"""What operators see: names of requests, lines of the log, figures, a dashboard, and a runbook."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from capri.service.auth import Guard, ServiceLimits, add_key
from capri.service.endpoint import Endpoint, Request, Response, Route
from capri.service.telemetry import HttpCounts, _JsonLine, request_id, traced
from service_process import SOMEBODY, Running, service
from waiting import eventually

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
RUNBOOK = Path(__file__).parents[2] / "docs" / "howto" / "service.md"


def samples(text: str) -> dict[str, dict[str, float]]:
    """Values by name of the sample and its labels, as a client of Prometheus reads them."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("5f0c9a1e-7b1d-4c63-9a54-0f6de1f0a2b3", True),
        ("anna@example.org", True),
        ("a" * 500, False),
        ("", False),
    ],
)
def test_a_callers_name_of_a_request_goes_back_and_nowhere_else(
    shop: Running, given: str, echoed: bool
) -> None:
    """A name that callers choose says what they want it to: the log has one of ours."""
    names = set()
    for path in ("/healthz", "/", "/", "/nowhere"):
        request = urllib.request.Request(shop.url + path, headers={"X-Request-Id": given})
        try:
            answer = urllib.request.urlopen(request).headers
        except urllib.error.HTTPError as missing:
            answer = missing.headers
        (theirs,) = answer.get_all("x-request-id")
        own = answer["x-capri-request"] if echoed else theirs
        assert (theirs == given) is echoed
        assert re.fullmatch("[0-9a-f]{16}", own)
        names.add(own)
    assert len(names) == 4


def test_the_log_names_no_request_as_its_caller_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, reply = b"5f0c9a1e-7b1d-4c63-9a54-0f6de1f0a2b3", dict[bytes, bytes]()

    async def fail(_: Request) -> Response:
        raise ZeroDivisionError

    async def send(message: Any) -> None:
        reply.update(message.get("headers", []))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    formatted, lines = list[str](), _JsonLine()
    monkeypatch.setattr(  # the handler outlives the test
        caplog.handler, "emit", lambda record: formatted.append(lines.format(record))
    )
    guard = Guard(None, (), ServiceLimits())
    headers = [(b"host", b"localhost"), (b"x-request-id", given)]
    scope = {"type": "http", "path": "/", "method": "GET", "headers": headers}
    with caplog.at_level("ERROR", "capri.service"):
        asyncio.run(Endpoint(guard, fail, Route("GET", "/"))(scope, receive, send))
    (line,) = formatted
    assert json.loads(line)["request_id"] == reply[b"x-capri-request"].decode()
    assert given.decode() not in line
    assert reply[b"x-request-id"] == given


def test_spans_say_what_the_log_may_say(folder: Path) -> None:
    """Route, status, time and our own name of the request: no id, key or trace of a caller."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"traceparent", f"00-{theirs}-00f067aa0ba902b7-01".encode()),
        (b"x-request-id", theirs.encode()),
    ]
    guard, counts = Guard(None, (), ServiceLimits()), HttpCounts(traced(SimpleSpanProcessor(kept)))
    names = []

    async def answer(_: Request) -> Response:
        names.append(request_id.get().decode())
        return Response(b"{}")

    async def send(_: Any) -> None: ...

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"key":"anna"}'}

    endpoint = Endpoint(guard, answer, Route("POST", "/v1/decisions"), counts)
    scope = {"type": "http", "path": "/v1/decisions", "method": "POST", "headers": headers}
    headers.append((b"content-length", b"14"))
    asyncio.run(endpoint(scope, receive, send))
    (span,) = kept.get_finished_spans()
    assert span.name == "/v1/decisions"
    assert span.parent is None
    assert dict(span.attributes or {}) == {
        "http.route": "/v1/decisions",
        "http.response.status_code": 200,
        "capri.request": names[0],
    }
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" != theirs
    assert span.end_time - span.start_time < 60e9  # type: ignore[operator]


def test_figures_of_requests_are_for_operators(folder: Path) -> None:
    with service(folder, first=40) as shop:
        reader = add_key(shop.folder / "policy.keys", "reader", ["read"])
        made = shop.post("/v1/decisions:batch", [{"context": SOMEBODY}] * 30)
        shop.post("/v1/decisions", {"context": SOMEBODY, "key": "x" * 20})
        shop.post("/v1/rewards", [{"id": each["id"], "reward": 1} for each in made[:10]])
        assert shop.ask("POST", "/v1/rewards", {"id": 7})[0] == 422
        assert shop.decided() == 31
        live = samples(shop.ask("GET", "/metrics/live")[1])
        requests = live["capri_http_requests_total"]
        assert requests["route=/v1/decisions:batch,status=200"] == 1
        assert requests["route=/v1/rewards,status=422"] == 1
        assert live["capri_http_seconds_count"]["route=/v1/rewards"] == 2
        assert live["capri_visits_total"] == {"status=served": 31}
        assert live["capri_rewards_total"] == {"status=accepted": 10}
        assert live["capri_queue_done_total"]["queue=decide-keyed"] == 1
        assert live["capri_queue_items"]["queue=reward"] == 0
        assert live["capri_store_seconds_count"]["queue=reward"] == 1
        assert live["capri_mode"] == {"mode=active": 1}
        assert live["capri_decisions_total"] == {"": 31}

        eventually(lambda: shop.ask("GET", "/metrics", key=reader)[0] == 200)
        assert shop.ask("GET", "/metrics/live", key=reader)[0] == 403
        public = samples(shop.ask("GET", "/metrics", key=reader)[1])
        private = {"http", "queue", "store", "visits", "rewards", "alarm"}
        assert private.isdisjoint(name.split("_")[1] for name in public)
        assert public["capri_decisions_total"] == live["capri_decisions_total"]


def test_the_log_is_json_where_that_is_asked_for(folder: Path) -> None:
    with service(folder, "--log", "json", first=40) as shop:
        shop.post("/v1/decisions", {"context": SOMEBODY})
        (folder / "policy.keys").write_text("damaged\n")
        eventually(lambda: shop.ask("GET", "/healthz")[0] == 200 and _lines(shop))
        line = _lines(shop)[-1]
        assert set(line) >= {"time", "level", "logger", "message"}
        assert line["level"] == "warning"
        assert "keys stay as they were" in line["message"]
        assert re.fullmatch("[0-9a-f]{16}", line["request_id"])
        assert line["time"].endswith("+00:00")


def _lines(shop: Running) -> list[dict[str, str]]:
    shop.ask("GET", "/v1/policy")  # the file of keys is looked at again
    return [json.loads(line) for line in shop.said if line.startswith("{")]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all samples of a service that has met everything: a release, alarms, refusals."""
    with service(tmp_path_factory.mktemp("names"), top="horizon = 9000", first=40) as shop:
        shop.post("/v1/decisions:batch", [{"context": {"agee": 1}}] * 100)
        shop.post("/v1/rewards", [{"id": "A" * 20, "reward": 1}] * 60)
        shop.post("/v1/admin/close", {"early": True})
        shop.post("/v1/admin/settings", {"settings": {"horizon": 9500}})
        return set(samples(shop.ask("GET", "/metrics/live")[1]))


def used(text: str) -> set[str]:
    return set(re.findall(r"\bcapri_[a-z_]+", text))


def test_dashboard_and_rules_name_figures_that_there_are(names: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    raised = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(shown) >= 8
    assert len(raised) >= 6
    for expression in (*shown, *raised):
        assert used(expression), expression
        assert used(expression) <= names, used(expression) - names


def test_every_alarm_is_in_the_runbook() -> None:
    """Of the rules, of live counts, of releases, and the notices of docs/reference/glossary.md."""
    text = RUNBOOK.read_text()
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert f"`{rule['alert']}`" in text
            assert rule["annotations"]["runbook"].endswith("docs/howto/service.md#runbook")
            assert rule["labels"]["severity"] in ("page", "ticket")
    source = Path(__file__).parents[2] / "src" / "capri" / "service"
    written = (source / "monitoring.py").read_text() + (source / "figures.py").read_text()
    kinds = set(re.findall(r'Notice\(\s*kind="([^"]+)"', written))
    assert len(kinds) >= 7
    for kind in kinds:
        assert f"`{kind}`" in text, kind
