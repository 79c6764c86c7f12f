"""Who may ask for what, and what nobody is told."""

import hmac
import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import capri
from capri.errors import ConfigurationError
from capri.service.app import ROUTES
from capri.service.auth import KeyRing, add_key, digest_of, read_keys
from capri.service.server import Start, serve
from capri.service.telemetry import log_to_standard_error, tell_warning
from service_process import PATIENT, SOMEBODY, Running, service
from waiting import PATIENCE, eventually

VISIT = {"context": SOMEBODY}


def refused(shop: Running, path: str, **more: Any) -> tuple[int, str]:
    status, said = shop.ask("POST", path, VISIT, **more)
    return status, said["error"].get("field", "")


def known(shop: Running, key: str) -> bool:
    return shop.ask("GET", "/v1/ledger", key=key)[0] != 401


def test_every_door_asks_for_its_role(shop: Running) -> None:
    keys = {
        role: add_key(shop.folder / "policy.keys", role, [role])
        for role in ("decide", "reward", "read", "operator")
    }
    for key in keys.values():  # a file of keys is looked at twice a second
        eventually(partial(known, shop, key))
    calls = {
        "/v1/decisions": ("POST", VISIT, {"decide"}),
        "/v1/rewards": ("POST", {"id": "x", "reward": 1}, {"reward"}),
        "/v1/ledger": ("GET", None, {"read", "operator"}),
        "/metrics": ("GET", None, {"read", "operator"}),
        "/v1/live": ("GET", None, {"operator"}),
        "/v1/admin/close": ("POST", {}, set()),
        "/healthz": ("GET", None, set(keys)),
        "/": ("GET", None, set(keys)),
    }
    for path, (method, body, allowed) in calls.items():
        for role, key in keys.items():
            expected = 200 if role in allowed else 403
            assert shop.ask(method, path, body, key=key)[0] == expected, (path, role)
    assert refused(shop, "/v1/decisions", key=None) == (401, "Authorization")
    assert refused(shop, "/v1/decisions", key="capri_wrong") == (401, "Authorization")
    basic = {"Authorization": f"Basic {shop.key}"}
    assert refused(shop, "/v1/decisions", key=None, headers=basic)[0] == 401


def test_the_table_of_routes_is_what_is_served(shop: Running) -> None:
    """Each with its method and its role; and the document, generated from it, names no other."""
    described = shop.get("/v1/openapi.json")["paths"]
    assert set(described) == {route.path for route in ROUTES}
    for route in ROUTES:
        assert list(described[route.path]) == [route.method.lower()]
        other, body = ("GET", None) if route.method == "POST" else ("POST", {})
        assert shop.ask(other, route.path, body)[0] == 405
        keyless = 429  # where tests before this one have tried many keys
        while keyless == 429:
            keyless = shop.ask(route.method, route.path, {} if route.body else None, key=None)[0]
        assert (keyless == 401) == (route.role is not None), route.path
        assert keyless in (200, 401, 409)


def test_a_key_is_changed_without_a_restart(shop: Running) -> None:
    file = shop.folder / "policy.keys"
    old = add_key(file, "rotated", ["decide"])
    new = add_key(file, "rotated", ["decide"])
    eventually(lambda: shop.ask("POST", "/v1/decisions", VISIT, key=new)[0] == 200)
    assert shop.ask("POST", "/v1/decisions", VISIT, key=old)[0] == 200
    lines = [line for line in file.read_text().splitlines() if digest_of(old) not in line]
    file.write_text("\n".join(lines) + "\n")
    eventually(lambda: shop.ask("POST", "/v1/decisions", VISIT, key=old)[0] == 401)
    assert shop.ask("POST", "/v1/decisions", VISIT, key=new)[0] == 200
    file.write_text("not a key\n" + file.read_text())  # damaged: the keys stay as they were
    time.sleep(0.6)  # from now on a request looks at the file, however late it comes
    assert shop.ask("POST", "/v1/decisions", VISIT, key=new)[0] == 200
    file.write_text("\n".join(lines) + "\n")


def test_keys_are_kept_as_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.keys"
    key = add_key(file, "ann", ["decide", "reward"])
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o77 == 0
    holder = KeyRing(file).holder(key.encode())
    assert holder is not None
    assert holder.roles == {"decide", "reward"}
    monkeypatch.setenv("CAPRI_KEYS", f"bob admin {digest_of('capri_b')};")
    assert KeyRing(None).holder(b"capri_b").roles >= {"admin", "operator", "read"}  # type: ignore[union-attr]
    assert KeyRing(None).holder(key.encode()) is None
    for text, said in (
        ("ann decide", "line 1"),
        (f"a cook {digest_of('k')}", "unknown role 'cook'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_keys(text, "file")


def test_every_key_is_compared_whatever_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In constant time each, and all of them: neither a place nor a prefix shows in the time."""
    file = tmp_path / "policy.keys"
    made = [add_key(file, f"holder{number}", ["read"]) for number in range(5)]
    ring, compared = KeyRing(file), list[int]()
    real = hmac.compare_digest

    def watched(known: bytes, given: bytes) -> bool:
        compared.append(len(given))
        return real(known, given)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    for key in (made[0], made[4], "capri_nobody", ""):
        compared.clear()
        ring.holder(key.encode())
        assert compared == [len(digest_of("x"))] * 5


def test_a_file_of_keys_that_is_gone_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.keys"
    key = add_key(file, "ann", ["read"])
    ring = KeyRing(file)
    file.unlink()
    monkeypatch.setattr("capri.service.auth._EVERY", -1.0)
    monkeypatch.setattr(logging.getLogger("capri"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        assert all(ring.holder(key.encode()) is not None for _ in range(3))
        file.write_bytes("# schlüssel".encode("latin-1"))
        assert all(ring.holder(key.encode()) is not None for _ in range(3))
    assert [record.getMessage() for record in caplog.records] == [
        "keys stay as they were: FileNotFoundError"
    ]


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"Host": "evil.example"}, 421, "Host"),
        ({"Content-Type": "text/plain"}, 415, "Content-Type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "Content-Type"),
        ({"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    ],
)
def test_envelopes_that_are_refused(
    shop: Running, headers: dict[str, str], status: int, field: str
) -> None:
    assert refused(shop, "/v1/decisions", headers=headers) == (status, field)


def test_who_looks_after_machines_asks_by_address(shop: Running) -> None:
    for path in ("/healthz", "/readyz"):
        line = f"GET {path} HTTP/1.1\nHost: 10.0.0.5:8017\nConnection: close\n"
        assert b" 200 " in spoken(shop, line)


def test_sizes_and_depths_are_limited(shop: Running) -> None:
    big = b'{"context": "' + b"x" * (1 << 20) + b'"}'
    assert shop.ask("POST", "/v1/decisions", big)[0] in (0, 413)  # hung up on, or told
    nested = b"[" * 100_000 + b"]" * 100_000
    assert shop.ask("POST", "/v1/decisions", nested)[0] == 422
    assert shop.ask("POST", "/v1/admin/close", nested)[0] == 400
    assert shop.ask("POST", "/v1/decisions:batch", [{}] * 1001)[0] == 413
    assert shop.ask("POST", "/v1/decisions", b"{")[0] == 400
    assert shop.ask("POST", "/v1/decisions", b'"\xff"')[0] == 422  # a text, and no object
    assert shop.ask("POST", "/v1/decisions", b"{}\xff")[0] == 400
    status, said = shop.ask("GET", "/v1/decisions")
    assert (status, said["error"]["field"]) == (405, "method")
    assert shop.ask("GET", "/v2")[0] == 404
    assert shop.ask("GET", "/..%2f..%2fetc/passwd")[0] == 404


def spoken(shop: Running, head: str, body: bytes = b"") -> bytes:
    """The first line that comes back on a connection of its own; nothing where it hangs up."""
    with socket.create_connection(("127.0.0.1", shop.port), timeout=PATIENCE) as wire:
        with suppress(OSError):  # hung up on while more is sent
            wire.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + body)
        with suppress(ConnectionResetError):
            return wire.recv(1 << 16).partition(b"\r\n")[0]
    return b""


def test_what_means_one_thing_is_sent_once(shop: Running) -> None:
    """Two hosts or keys: a proxy in front might have checked the other one."""
    line, key = "GET /v1/policy HTTP/1.1\n", f"Authorization: Bearer {shop.key}\n"
    sound = line + "Host: localhost\n" + key + "Connection: close\n"
    assert b" 200 " in spoken(shop, sound)
    for more in ("Host: localhost\n", key):
        assert spoken(shop, sound + more).startswith(b"HTTP/1.1 400 ")
    assert spoken(shop, line + key).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 "))  # no host


def test_answers_without_a_body_and_before_one(shop: Running) -> None:
    """What goes out with its body must not wait for one that never comes."""
    assert b" 405 " in spoken(shop, "HEAD /healthz HTTP/1.1\nHost: localhost\n")
    with socket.create_connection(("127.0.0.1", shop.port), timeout=PATIENCE) as wire:
        head = f"Content-Type: application/json\r\nAuthorization: Bearer {shop.key}\r\n"
        head += "Content-Length: 15\r\nExpect: 100-continue\r\n"
        wire.sendall(f"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        assert wire.recv(1 << 12) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.sendall(b'{"context": {}}')
        answer = wire.recv(1 << 12)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"}")


def test_a_body_in_pieces_is_counted(shop: Running) -> None:
    head = "POST /v1/decisions HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n"
    head += f"Content-Type: application/json\nAuthorization: Bearer {shop.key}\n"
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    before = shop.decided()
    said = spoken(shop, head, piece * 17)
    assert said == b"" or b" 413 " in said
    both = head + "Content-Length: 4\n"  # smuggling: which of them holds?
    said = spoken(shop, both, b"2\r\n{}\r\n0\r\n\r\n")
    assert said == b"" or b" 400 " in said
    assert shop.decided() == before


@pytest.mark.parametrize("as_json", [False, True])
def test_logs_hold_the_kind_of_a_failure_alone(
    capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    loggers = [logging.getLogger(name) for name in ("capri", "uvicorn.error", "asyncio")]
    before = [(log.handlers[:], log.propagate, log.level, log.filters[:]) for log in loggers]
    try:
        log_to_standard_error(as_json=as_json)
        for log in loggers[1:]:
            try:
                raise ValueError("age 41 of ann")
            except ValueError:
                log.exception("it failed\nfuture: <ValueError('age 41 of ann')>")
        tell_warning(UserWarning("age 41 of ann"), UserWarning, "file", 1)
    finally:
        for log, (handlers, propagate, level, filters) in zip(loggers, before, strict=True):
            log.handlers, log.propagate, log.filters = handlers, propagate, filters
            log.setLevel(level)
    said = capfd.readouterr().err
    assert said.count("it failed (ValueError)") == 2
    assert "UserWarning" in said
    assert "ann" not in said


def test_a_store_that_is_away_is_told_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from capri.service.endpoint import error_of

    now = [5.0]
    monkeypatch.setattr("capri.service.endpoint._noted", {})
    monkeypatch.setattr("capri.service.endpoint.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(logging.getLogger("capri"), "propagate", True)
    for lines in (1, 2):
        with caplog.at_level(logging.WARNING):
            assert {error_of(capri.StorageError("of ann"))[0] for _ in range(100)} == {503}
        told = [record.getMessage() for record in caplog.records]
        assert told == ["the store does not serve (StorageError)"] * lines
        now[0] += 1.0


def test_no_other_site_may_read(shop: Running) -> None:
    """No CORS header, no cookie; pages load from here alone, answers from nowhere."""
    import urllib.request

    for path, policy in (("/", "script-src 'self'"), ("/healthz", "default-src 'none'")):
        request = urllib.request.Request(
            shop.url + path, headers={"Origin": "https://evil.example"}
        )
        with urllib.request.urlopen(request) as response:
            names = {name.lower() for name in response.headers}
            assert policy in response.headers["Content-Security-Policy"]
            assert "unsafe" not in response.headers["Content-Security-Policy"]
        assert not any(name.startswith("access-control") for name in names)
        assert "set-cookie" not in names
        assert "server" not in names


def test_without_keys_only_this_machine_is_answered(folder: Path) -> None:
    with service(folder, "--insecure-local") as local:
        assert local.ask("POST", "/v1/decisions", VISIT)[0] == 200
        proxies = ("X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via")
        for header in (*proxies, "CF-Connecting-IP", "True-Client-IP", "X-Client-IP"):
            assert local.ask("POST", "/v1/decisions", VISIT, headers={header: "1.2.3.4"})[0] == 403
        site = {"Sec-Fetch-Site": "cross-site"}
        assert local.ask("POST", "/v1/decisions", VISIT, headers=site)[0] == 403
    start = Start(folder / "policy.toml", None, folder / "none.keys", insecure_local=True)
    with pytest.raises(ConfigurationError, match="this machine alone"):
        serve(start, host="0.0.0.0", port=0, workers=1)
    with pytest.raises(ConfigurationError, match="there is no key"):
        serve(replace(start, insecure_local=False), host="127.0.0.1", port=0, workers=1)


def test_slow_and_endless_requests_are_hung_up_on(folder: Path) -> None:
    limits = f"{PATIENT}header_seconds = 0.5\nbody_seconds = 0.5\nrate = 5"
    with service(folder, more=limits) as shop:
        head = "POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {shop.key}\r\n"
        body = "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        endless = "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "y" * 70_000
        sockets = [socket.create_connection(("127.0.0.1", shop.port)) for _ in range(4)]
        for each, sent in zip(sockets, ("", head, head + body, endless), strict=True):
            each.sendall(sent.encode())
        for each in sockets:
            each.settimeout(PATIENCE)
            with suppress(ConnectionResetError):  # hung up on while more was sent
                assert each.recv(1000) == b""
            each.close()

        def told(method: str, path: str, body: Any = None) -> int:
            """The status; on a busy machine we may be the slow ones, who are hung up on."""
            found = [0]
            eventually(lambda: found.append(shop.ask(method, path, body)[0]) or found[-1])
            return found[-1]

        assert [told("POST", "/v1/decisions", VISIT) for _ in range(4)] == [200] * 4
        # One may borrow: 200 seconds' worth.
        assert told("POST", "/v1/decisions:batch", [VISIT] * 1000) == 200
        assert told("POST", "/v1/decisions", VISIT) == 429
        assert told("GET", "/v1/ledger") == 429
        assert told("GET", "/healthz") == 200


class Redirects(BaseHTTPRequestHandler):
    """Sends everybody elsewhere, and notes who came with a key."""

    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.seen.append(self.path)
        self.send_response(307)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_client_takes_its_key_nowhere_else() -> None:
    server = HTTPServer(("127.0.0.1", 0), Redirects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = capri.Client(f"http://127.0.0.1:{server.server_port}", "capri_k")
    with pytest.raises(capri.ServiceError, match="307"):
        client.act(SOMEBODY)
    client.close()
    assert Redirects.seen == ["/v1/decisions"]
    server.shutdown()
    server.server_close()
    for url in ("http://bandit.example", "ftp://x", "https://user:word@x", "https://x?key=1"):
        with pytest.raises(ConfigurationError):
            capri.Client(url, "capri_k")
    assert "capri_k" not in repr(capri.Client("https://x", "capri_k"))


class Refuses(BaseHTTPRequestHandler):
    """Answers by the status that the path begins with."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_client_tells_what_was_not_done_from_what_is_in_doubt() -> None:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for status, kind in ((503, capri.AwayError), (504, capri.InDoubtError)):
        with (
            capri.Client(f"http://127.0.0.1:{server.server_port}/{status}", retries=0) as client,
            pytest.raises(kind),
        ):
            client.act(SOMEBODY)
    server.shutdown()
    server.server_close()


def test_the_client_tries_again_and_says_when_nobody_answers() -> None:
    with socket.socket() as taken:  # by a socket that does not listen
        taken.bind(("127.0.0.1", 0))
        client = capri.Client(f"http://127.0.0.1:{taken.getsockname()[1]}", retries=1, timeout=1)
        with pytest.raises(capri.StorageError, match="does not answer"):
            client.act(SOMEBODY)
