"""``model = "local"``: a bundle for everybody, reports from anybody, and nothing else of them."""

import gzip
import http.client
import json
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from typer.testing import CliRunner

import capri
from capri.cli import app
from capri.errors import ConfigurationError, HorizonError, StorageError
from capri.local import tickets
from capri.local.reports import ReportStatus
from capri.local.summing import aggregate, report_files
from capri.local.tickets import Tickets
from capri.service.auth import add_key
from capri.service.settings import load_settings
from service_process import PATIENT, Running, workers_of
from waiting import PATIENCE, eventually

POLICY = """
name = "reading list"
model = "local"
kernel = "matern52"
actions = ["poem", "novel", "essay"]
{top}
[budget]
epsilon = 4.0
[reward]
range = [0, 1]
{reward}
[[context]]
name = "mood"
kind = "numeric"
low = 0
high = 1
{more}
[options]
first_epoch = 40
"""
BUDGET = capri.Budget(epsilon=4.0)
OK = "accepted"


def write(folder: Path, **parts: str) -> Path:
    path = folder / "policy.toml"
    text = POLICY.format(**({"top": "", "reward": "wait = 0", "more": ""} | parts))
    path.write_text(text + PATIENT)
    return path


def reports(bundle: bytes, count: int, first: int = 0) -> list[bytes]:
    made = []
    for user in range(first, first + count):
        client = capri.LocalClient(bundle, BUDGET, simulation=(9, user))
        client.act({"mood": user % 7 / 7})
        made.append(client.report(user % 2))
    return made


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("devices")
    write(folder)
    running = Running(folder, key=add_key(folder / "policy.keys", "tests", ["admin"]))
    running.start()
    yield running
    running.stop()


def ask(
    running: Running, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """As a browser on another site asks: no key, an origin."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    elsewhere = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    connection.request(method, path, body, elsewhere | named)
    answer = connection.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    found = answer.status, told, answer.read()
    connection.close()
    return found


BINARY = {"Content_Type": "application/octet-stream"}
JSON = {"Content_Type": "application/json"}


def post(running: Running, body: bytes, **headers: str) -> Any:
    status, _, said = ask(running, "POST", "/v1/reports", body, **(headers or BINARY))
    assert status == 200, said
    return json.loads(said)


def test_reports_of_both_forms_are_judged_one_by_one(devices: Running) -> None:
    _, _, bundle = ask(devices, "GET", "/v1/bundle")
    made = reports(bundle, 6)
    assert post(devices, made[0]) == {"status": OK}
    assert post(devices, made[0]) == {"status": "replayed"}
    assert post(devices, bytes(32)) == {"status": "malformed"}
    assert [each["status"] for each in post(devices, made[0] + made[1])] == ["replayed", OK]
    assert post(devices, json.dumps({"report": made[2].hex()}).encode(), **JSON) == {"status": OK}
    listed = [{"report": made[3].hex()}, {"report": "zz"}, 7, {"report": made[3].hex()}]
    told = post(devices, json.dumps(listed).encode(), **JSON)
    assert [each["status"] for each in told] == [OK, "refused", "refused", "replayed"]
    assert told[1]["error"]["field"] == "report"
    progress = devices.get("/v1/policy")["progress"]
    assert progress["under_way"][0] == {"epoch": 1, "length": 40, "taken": 4, "open": True}


@pytest.mark.parametrize(
    ("body", "headers", "status", "field"),
    [
        (b"x" * 31, BINARY, 422, "body"),
        (b"", BINARY, 422, "body"),
        (bytes(32 * 1001), BINARY, 413, "body"),
        (b"x" * 32, {"Content_Type": "text/plain"}, 415, "Content-Type"),
        (b"{", JSON, 422, "report"),
        (b"[[", JSON, 400, "body"),
        (b"[" * 99, JSON, 400, "body"),
        (b'{"report": "secret-word"}', JSON, 422, "report"),
        (b'{"report": "", "user": "secret-word"}', JSON, 422, "report"),
    ],
)
def test_the_envelope_alone_is_refused_and_never_quoted(
    devices: Running, body: bytes, headers: dict[str, str], status: int, field: str
) -> None:
    found, told, said = ask(devices, "POST", "/v1/reports", body, **headers)
    assert (found, json.loads(said)["error"]["field"]) == (status, field)
    assert told["access-control-allow-origin"] == "*"
    assert b"secret" not in said


def test_a_bundle_is_compressed_and_sent_once(devices: Running) -> None:
    """As it is, or in gzip with a tag of its own; with either tag 304 and no body."""
    _, plain, bundle = ask(devices, "GET", "/v1/bundle")
    _, told, data = ask(devices, "GET", "/v1/bundle", Accept_Encoding="br, gzip")
    assert told["content-encoding"] == "gzip"
    assert gzip.decompress(data) == bundle
    assert len(data) < len(bundle)
    assert plain["etag"] != told["etag"]
    for tag in (plain["etag"], told["etag"], f'W/{told["etag"]}, "another"'):
        status, headers, body = ask(devices, "GET", "/v1/bundle", If_None_Match=tag)
        assert (status, body) == (304, b"")
        assert headers["etag"] == plain["etag"]
        assert headers["cache-control"] == "no-cache"
        assert headers["vary"] == "accept-encoding"
        assert headers["access-control-allow-origin"] == "*"
    assert ask(devices, "GET", "/v1/bundle", If_None_Match='"another"')[0] == 200


def test_digests_of_all_bundles_are_listed(devices: Running) -> None:
    _, _, bundle = ask(devices, "GET", "/v1/bundle")
    status, _, said = ask(devices, "GET", "/v1/digests")
    assert status == 200
    assert json.loads(said)[-1] == bundle[-32:].hex()


def test_strange_bodies_change_nothing(devices: Running) -> None:
    """500 mutations of sound ones: no failure, no state, and no word of theirs comes back."""
    draw = random.Random(5)
    _, _, bundle = ask(devices, "GET", "/v1/bundle")
    sound = reports(bundle, 2, first=900)
    forms = [
        (b"".join(sound), "application/octet-stream"),
        (json.dumps({"report": sound[0].hex(), "zq7": "zq7"}).encode(), "application/json"),
        (json.dumps([{"report": each.hex()} for each in sound]).encode(), "application/json"),
    ]
    before = devices.get("/v1/policy")["progress"]
    connection = http.client.HTTPConnection("127.0.0.1", devices.port, timeout=PATIENCE)
    for _ in range(500):
        text, kind = draw.choice(forms)
        body = bytearray(text)
        for _ in range(draw.choice((1, 1, 3))):
            place = draw.randrange(len(body))
            match draw.randrange(4):
                case 0:
                    body[place] ^= 1 << draw.randrange(8)
                case 1:
                    del body[place : place + draw.randrange(1, 9)]
                case 2:
                    body[place:place] = draw.choice((b"[", b'"', b"\\u0000", b"\xff", b"zq7", b"}"))
                case _:
                    body[place:] = body[: draw.randrange(len(body))]
            body = body or bytearray(b"x")
        # What is left whole would count.
        if any(each in body or each.hex().encode() in body.lower() for each in sound):
            continue
        connection.request("POST", "/v1/reports", bytes(body), {"Content-Type": kind})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 400, 413, 422), (answer.status, bytes(body))
        assert b"zq7" not in said
    connection.close()
    assert devices.get("/v1/policy")["progress"] == before


def test_other_sites_may_ask_for_these_three_alone(devices: Running) -> None:
    theirs = {"/v1/bundle": "GET", "/v1/digests": "GET", "/v1/reports": "POST"}
    for path, method in theirs.items():
        status, told, _ = ask(devices, "OPTIONS", path)
        assert status == 204
        assert told["access-control-allow-origin"] == "*"
        assert told["access-control-allow-methods"] == method
        assert told["access-control-allow-headers"] == "content-type"
        assert "access-control-allow-credentials" not in told
        assert ask(devices, "DELETE", path)[0] == 405
    for path in devices.get("/v1/openapi.json")["paths"]:
        if path not in theirs:
            for method in ("OPTIONS", "GET", "POST"):
                told = ask(devices, method, path, b"{}" if method == "POST" else None, **JSON)[1]
                assert "access-control-allow-origin" not in told, path


def test_what_is_done_elsewhere_says_where(devices: Running, shop: Running) -> None:
    for path in ("/v1/decisions", "/v1/decisions:batch", "/v1/rewards", "/v1/admin/mode"):
        status, said = devices.ask("POST", path, {})
        assert status == 409
        assert "/v1/bundle" in said["error"]["problem"]
    for path in ("/v1/shadow", "/v1/forecast", "/v1/operations", "/v1/live"):
        assert devices.ask("GET", path)[0] == 409
    assert shop.ask("GET", "/v1/bundle", key=None)[0] == 409
    status, said = shop.ask("POST", "/v1/reports", {}, key=None)
    assert (status, "/v1/decisions" in said["error"]["problem"]) == (409, True)


def test_figures_need_a_key_and_the_page_has_what_it_asks_for(devices: Running) -> None:
    for path in ("policy", "epochs", "estimate", "explanation", "certificate", "ledger"):
        assert devices.ask("GET", f"/v1/{path}", key=None)[0] == 401
        assert devices.ask("GET", f"/v1/{path}")[0] == 200
    assert "local privacy" in devices.get("/v1/policy")["guarantee"]
    assert devices.get("/v1/ledger")["budget"] == {"epsilon": 4.0, "delta": 0.0}
    assert "capri_decisions_total" in devices.get("/metrics")


def test_with_a_key_of_tickets_reports_need_one(tmp_path: Path) -> None:
    write(tmp_path)
    key = os.urandom(32)
    secret, issuer = os.urandom(16), Tickets(key)
    caller = add_key(tmp_path / "policy.keys", "tests", ["admin"])
    running = Running(tmp_path, environment={"CAPRI_TICKET_KEY": key.hex()}, key=caller)
    running.start()
    _, _, bundle = ask(running, "GET", "/v1/bundle")
    token = tickets.token(secret, issuer.issue(tickets.commitment(secret, bundle[-32:])))
    (made,) = reports(bundle, 1)
    body = made[:10] + token + made[26:28]
    upload = body + crc32(body).to_bytes(4, "little") + secret
    assert post(running, upload) == {"status": OK}
    told = post(running, upload + made + secret)
    assert [each["status"] for each in told] == ["replayed", "malformed"]
    assert post(running, json.dumps({"report": made.hex()}).encode(), **JSON) == {
        "status": "malformed"
    }
    assert ask(running, "POST", "/v1/reports", made, **BINARY)[0] == 422
    running.stop()


def test_an_epoch_takes_its_number_and_survives_a_kill(devices: Running) -> None:
    """The rest of a crowd is stale; what was answered is there after a crash, bundle and all."""
    status, said = devices.ask("POST", "/v1/admin/close", {})
    assert (status, "still to come" in said["error"]["problem"]) == (409, True)
    assert devices.post("/v1/admin/close", {"early": True})["status"] == "closed"
    _, _, bundle = ask(devices, "GET", "/v1/bundle")
    length = devices.get("/v1/policy")["progress"]["under_way"][0]["length"]
    crowd = reports(bundle, length + 5, first=100)
    told = post(devices, b"".join(crowd))
    assert Counter(each["status"] for each in told) == {OK: length, "stale": 5}
    _, headers, newer = ask(devices, "GET", "/v1/bundle")
    assert headers["etag"].strip('"') == newer[-32:].hex() != bundle[-32:].hex()
    few = reports(newer, 3, first=500)
    address = "203.0.113.77"
    status, _, _ = ask(
        devices, "POST", "/v1/reports", b"".join(few),
        X_Forwarded_For=address, User_Agent="a-rare-browser", **BINARY,
    )  # fmt: skip
    assert status == 200
    before = devices.get("/v1/policy")["progress"]
    devices.kill()
    files = [path.read_bytes() for path in devices.folder.glob("policy.db*")]
    devices.start()
    assert ask(devices, "GET", "/v1/bundle")[2] == newer
    assert devices.get("/v1/policy")["progress"] == before
    assert [each["status"] for each in post(devices, b"".join(few))] == ["replayed"] * 3
    # Nothing is left of who came: neither in files nor in what was printed.
    assert any(few[0] in content for content in files)
    for word in (address, "a-rare-browser", "elsewhere.example", "127.0.0.1"):
        assert not any(word.encode() in content for content in files)
    assert all(line.startswith("capri: reading list at ") for line in devices.said)


def test_a_sum_of_files_ends_an_epoch(devices: Running, tmp_path: Path) -> None:
    """What ``capri aggregate`` wrote, once, by whoever may; nothing else changes anything."""
    devices.post("/v1/admin/close", {"early": True})
    before = len(devices.get("/v1/epochs"))
    _, _, bundle = ask(devices, "GET", "/v1/bundle")
    made = reports(bundle, 50, first=900)
    (tmp_path / "one").write_bytes(b"".join(made))
    added = aggregate(bundle, report_files([tmp_path])).to_dict()
    path, far = "/v1/admin/sums", ["1" * 18] * len(added["sum"])
    for wrong in (added | {"accepted": -1}, {"format": "x"}, added | {"sum": far}, {}, [added]):
        assert devices.ask("POST", path, wrong)[0] == 422
    assert ask(devices, "POST", path, json.dumps(added).encode(), **JSON)[0] == 401
    assert ask(devices, "GET", "/v1/bundle")[2] == bundle
    assert devices.post(path, added) == {"status": "accepted", "releases": before + 1}
    status, said = devices.ask("POST", path, added)
    assert (status, "taken up before" in said["error"]["problem"]) == (422, True)
    assert post(devices, made[0]) == {"status": "stale"}
    _, _, newer = ask(devices, "GET", "/v1/bundle")
    assert newer != bundle


# -- what is kept ---------------------------------------------------------------------------------


def collector(folder: Path, **parts: str) -> capri.LocalCapri:
    return load_settings(write(folder, **parts)).aggregator(f"sqlite:///{folder}/kept.db")


def test_a_restart_goes_on_to_the_bit(tmp_path: Path) -> None:
    kept = collector(tmp_path, reward="wait = 30")
    length = kept.remaining
    made = reports(kept.bundle(), length + 20)
    kept.receive_many(made[:length])
    kept.close()
    again = collector(tmp_path, reward="wait = 30")
    assert (len(again.epochs), again.reports) == (1, length)
    statuses = Counter(again.receive_many(made[length - 5 :]).tolist())  # late ones count
    assert statuses == {ReportStatus.REPLAYED: 5, ReportStatus.ACCEPTED: 20}
    bundle = again.bundle()
    again.close()
    third = collector(tmp_path, reward="wait = 30")
    assert third.bundle() == bundle
    third.replace_actions(["poem", "novel", "saga"])
    third.close_epoch(early=True)
    assert list(third.actions.names or ()) == ["poem", "novel", "saga"]
    bundle = third.bundle()
    third.close()
    fourth = collector(tmp_path, reward="wait = 30")
    assert fourth.bundle() == bundle
    fourth.close()


def test_times_are_not_kept_where_nothing_needs_them(tmp_path: Path) -> None:
    kept = collector(tmp_path)
    kept.receive_many(reports(kept.bundle(), 45))
    kept.close()
    with sqlite3.connect(tmp_path / "kept.db") as file:
        found = file.execute("SELECT began, filled, closes_at, due FROM epochs").fetchall()
    assert found == [(None,) * 4] * 2


def test_the_horizon_ends_bundles(tmp_path: Path) -> None:
    kept = collector(tmp_path, top="horizon = 40")
    made = reports(kept.bundle(), 41)
    statuses = Counter(kept.receive_many(made).tolist())
    assert statuses == {ReportStatus.ACCEPTED: 40, ReportStatus.STALE: 1}
    with pytest.raises(HorizonError, match="horizon"):
        kept.bundle()
    kept.close()
    again = collector(tmp_path, top="horizon = 40")
    with pytest.raises(HorizonError, match="horizon"):
        again.bundle()
    again.close()


def test_a_store_of_others_is_refused(tmp_path: Path) -> None:
    collector(tmp_path).close()
    with pytest.raises(StorageError, match="another configuration"):
        collector(tmp_path, reward="wait = 0\nmissing = 0.5")
    with sqlite3.connect(tmp_path / "other.db") as file:
        file.execute("CREATE TABLE something (id INTEGER)")
    settings = load_settings(tmp_path / "policy.toml")
    with pytest.raises(StorageError, match="another program"):
        settings.aggregator(f"sqlite:///{tmp_path}/other.db")


def kill_one(running: Running) -> None:
    """Kill a worker, and wait until it is gone: another takes its place."""
    victim = workers_of(running.process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in workers_of(running.process.pid))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_workers_are_one_aggregator(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Reports to both, most of them twice; one of them is killed. Each counts once."""
    write(tmp_path)
    running = Running(
        tmp_path,
        ("--workers", "2"),
        key=add_key(tmp_path / "policy.keys", "tests", ["admin"]),
        environment={}
        if kind == "sqlite"
        else {"CAPRI_STORE": request.getfixturevalue("postgres_url")},
    )
    running.start()
    try:
        _, _, bundle = ask(running, "GET", "/v1/bundle")
        made = reports(bundle, 45)
        told = Counter[str]()
        for start in range(0, 40, 4):
            batch = made[start : start + 4] + made[max(0, start - 4) : start]
            told.update(each["status"] for each in post(running, b"".join(batch)))
            if start == 20:
                kill_one(running)
        assert told == {OK: 40, "replayed": 32, "stale": 4}
        assert post(running, made[40]) == {"status": "stale"}
        # A new connection may end at either: both have the bundle of the reading.
        newer = {ask(running, "GET", "/v1/bundle")[2] for _ in range(20)}
        assert len(newer) == 1
        assert newer != {bundle}
        assert running.get("/v1/policy")["progress"]["decided"] == 40
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("parts", "line", "words"),
    [
        ({"top": 'mode = "shadow"'}, 6, "devices decide"),
        ({"reward": 'rule = "sum"'}, 11, "reports once"),
        ({"more": "[users]\ncontributions = 3"}, 18, "each of which reports once"),
    ],
)
def test_what_a_local_policy_cannot_be(
    tmp_path: Path, parts: dict[str, str], line: int, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as told:
        load_settings(write(tmp_path, **parts))
    assert f"line {line}:" in str(told.value)


def test_waits_are_in_reports_or_times(tmp_path: Path) -> None:
    found = load_settings(write(tmp_path, reward='wait = "2 hours"')).arguments
    assert found["reward_wait"] == timedelta(hours=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--forecast"], "--forecast"),
        (["--rollback-guard", "guard.json"], "--rollback-guard"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, more: list[str], words: str) -> None:
    write(tmp_path)
    asked = ["serve", str(tmp_path / "policy.toml"), "--insecure-local", *more]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code != 0
    assert words in told.output + str(told.exception)
