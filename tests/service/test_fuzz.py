"""Requests that nobody would write: no failure of ours, no change by what is refused, no echo.

Half of them are drawn by schemathesis from our own OpenAPI document, half are mutations of sound
requests. Every value carries a word that must not come back in any message nor be in the log.
"""

import http.client
import json
import random
import warnings
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from capri.service.app import document
from capri.service.auth import ServiceLimits, add_key
from service_process import PATIENT, Running, service
from waiting import PATIENCE

WORD = "Zq7canary"
# What a status may be: refusals of the envelope, never a failure.
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 409, 411, 413, 415, 421, 422, 429}


SEEN: dict[str, tuple[set[str], set[str]]] = {}


class Wire:
    """One connection, opened again where the service has hung up."""

    def __init__(self, shop: Running) -> None:
        self.shop = shop
        # Of all requests to this service: keys bring decisions of earlier tests back.
        self.ids, self.rewarded = SEEN.setdefault(shop.url, (set(), set()))
        self.sent = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=PATIENCE)

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Send, check what comes back, and note decisions; returns the status, 0 if hung up on."""
        self.sent += 1
        for _ in range(2):
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                said = response.read()
                break
            except (http.client.HTTPException, OSError):
                self._connection.close()
        else:
            return 0
        assert response.status in ALLOWED, (response.status, method, path, body, said)
        if response.status == 200 and path == "/v1/live":
            said = without_columns(said)
        self._check(response.status, said, method)
        if response.status == 200 and path.startswith("/v1/rewards"):
            text = body.decode("utf-8-sig", "surrogateescape")  # a private text may hold anything
            sent, told = json.loads(text, strict=False), json.loads(said)
            both = zip(sent, told, strict=True) if isinstance(sent, list) else [(sent, told)]
            self.rewarded |= {item["id"] for item, each in both if each["status"] == "accepted"}
        return response.status

    def _check(self, status: int, said: bytes, method: str) -> None:
        assert WORD.encode() not in said, said
        if status != 200:
            if said and method != "HEAD" and said.startswith(b"{"):
                error = json.loads(said)["error"]
                assert set(error) <= {"problem", "field"}
            return
        if not said.startswith((b"{", b"[")):
            return
        found = json.loads(said)
        for item in found if isinstance(found, list) else [found]:
            if isinstance(item, dict) and "propensity" in item:
                self.ids.add(item["id"])

    def learn(self, **more: Any) -> None:
        """Note the decision that the key of all visits brings back."""
        (made,) = self.shop.post("/v1/decisions:batch", [{"context": {}, "key": WORD, **more}])
        self.ids.add(made["id"])

    def check_rewards(self) -> None:
        """A reward that was accepted counts, and one that was refused does not."""
        for each in sorted(self.ids)[-200:]:
            status = self.shop.post("/v1/rewards", {"id": each, "reward": 0.5})["status"]
            assert status != ("accepted" if each in self.rewarded else "duplicate"), each
            self.rewarded.add(each)

    def close(self) -> None:
        self._connection.close()


def without_columns(said: bytes) -> bytes:
    """Live counts but for the alarm whose purpose is to name columns, to operators."""
    live = json.loads(said)
    live["alarms"] = [alarm for alarm in live["alarms"] if alarm["kind"] != "columns"]
    return json.dumps(live).encode()


def mutated(draw: random.Random, value: Any, depth: int = 0) -> Any:
    """A value with something changed in it."""
    odd: list[Any] = [
        None, True, -1, 0, 1.5, 2**63, -(2**70), 1e308, "", WORD, WORD * 40, "\ud800", "\x00", [],
        {}, [WORD], {WORD: WORD}, {"context": {}}, float("nan"), float("inf"), [[[WORD]]],
    ]  # fmt: skip
    if depth > 3 or draw.random() < 0.25:
        return draw.choice(odd)
    if isinstance(value, dict) and value:
        changed = dict(value)
        name = draw.choice(list(changed))
        action = draw.random()
        if action < 0.2:
            del changed[name]
        elif action < 0.4:
            changed[draw.choice([WORD, "", "Context", "detail", "key", "user"])] = draw.choice(odd)
        else:
            changed[name] = mutated(draw, changed[name], depth + 1)
        return changed
    if isinstance(value, list) and value:
        changed_list = list(value)
        place = draw.randrange(len(changed_list))
        changed_list[place] = mutated(draw, changed_list[place], depth + 1)
        return changed_list * draw.choice([1, 1, 1, 3])
    return draw.choice(odd)


VISIT = {"context": {"age": 41, "plan": WORD}, "key": WORD, "detail": True, "actions": [WORD]}
REWARD = {"id": "A" * 20, "reward": 0.5, "key": WORD}
SOUND: list[tuple[str, Any]] = [
    ("/v1/decisions", VISIT),
    ("/v1/decisions", {"context": {"age": 41}, "chosen": WORD, "chosen_propensity": WORD}),
    ("/v1/decisions:batch", [VISIT, {"context": {"age": WORD}}, {}]),
    ("/v1/rewards", REWARD),
    ("/v1/rewards", [REWARD, {"id": WORD, "reward": WORD}]),
    ("/v1/admin/catalogue", {"actions": [WORD]}),
    ("/v1/admin/mode", {"mode": WORD, "action": WORD}),
    ("/v1/admin/close", {"early": WORD}),
    ("/v1/policy", None),
    ("/v1/ledger", None),
    ("/metrics", None),
]


def strange(
    draw: random.Random, key: str, more: dict[str, Any], ids: list[str]
) -> tuple[str, str, bytes, dict[str, str]]:
    """One request: a sound one, mutated in its value, its bytes, its headers or its way."""
    path, value = draw.choice(SOUND)
    if path == "/v1/decisions":
        value = value | more
        if draw.random() < 0.5:  # a visit of its own, not the one that is known
            value = value | {"key": f"{WORD}{draw.getrandbits(40)}", "actions": ["mail", "call"]}
    elif value is REWARD and draw.random() < 0.7:
        value = REWARD | {"id": draw.choice(ids)}
    if value is not None and draw.random() < 0.8:
        value = mutated(draw, value)
    body = b"" if value is None else json.dumps(value).encode()
    if body and draw.random() < 0.25:
        place = draw.randrange(len(body))
        cut = draw.choice([b"", b"\xff", b'"', b"}", b"[[", bytes([draw.randrange(256)])])
        body = body[:place] + cut + body[place + draw.choice([0, 1, 5]) :]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    if draw.random() < 0.15:
        name = draw.choice(
            ["Content-Type", "Authorization", "Host", "Content-Encoding", "X-Forwarded-For"]
        )
        headers[name] = draw.choice([WORD, "", "Bearer", f"Bearer {WORD}", "text/plain", "gzip"])
    method = "GET" if value is None else "POST"
    if draw.random() < 0.1:
        method = draw.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
    if draw.random() < 0.1:
        path = draw.choice([path + "/", path + f"?{WORD}=1", f"/{WORD}", "//", path.upper()])
    return method, path, body, headers


def mutate(wire: Wire, seed: int, count: int, **more: Any) -> None:
    """So many strange requests; afterwards exactly what was answered has happened.

    ``more``: fields that every visit has.
    """
    shop = wire.shop
    key = add_key(shop.folder / "policy.keys", f"fuzz{seed}", ["decide", "reward", "read"])
    wire.learn(**more)
    before, known = shop.decided(), set(wire.ids)  # also waits until the key is known
    changed = shop.get("/v1/operations")
    draw = random.Random(seed)
    statuses = [wire.send(*strange(draw, key, more, sorted(wire.ids)[-50:])) for _ in range(count)]
    assert statuses.count(200) > count / 10
    assert sum(300 < status < 500 for status in statuses) > count / 10
    assert shop.decided() - before == len(wire.ids - known)
    assert shop.get("/v1/operations") == changed
    if not more:
        wire.check_rewards()
    assert WORD not in "".join(shop.said)


def test_mutations_of_sound_requests(shop: Running) -> None:
    with closing(Wire(shop)) as wire:
        mutate(wire, 3001, 300)


def draw_from_schema(wire: Wire, examples: int, method: str = "") -> None:
    """Requests that our own document allows, and some that it does not."""
    import schemathesis

    described = document(ServiceLimits())
    described["paths"] = {
        path: item for path, item in described["paths"].items() if "/admin/" not in path
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_dict(described)
        operations = [each.ok() for each in schema.get_all_operations()]
        operations = [each for each in operations if each.method.startswith(method)]
    wire.learn()
    shop = wire.shop
    before, known = shop.decided(), set(wire.ids)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {shop.key}"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        def send(case: Any) -> None:
            body = case.body
            data = json.dumps(body).encode() if isinstance(body, dict | list) else b""
            wire.send(case.method.upper(), case.path, data, headers)

        send()
    assert shop.decided() - before == len(wire.ids - known)


def test_requests_drawn_from_our_own_document(shop: Running) -> None:
    with closing(Wire(shop)) as wire:
        draw_from_schema(wire, 8, "post")


FAST = PATIENT + "rate = 1e9\n"
STRICT = (
    FAST
    + """
[users]
contributions = 3
[limits]
floor = { wait = 0.1 }
ceiling = { mail = 0.3 }
[limits.allowed]
call = { plan = ["pro"] }
"""
)


@pytest.mark.slow
def test_ten_thousand_strange_requests(folder: Any) -> None:
    with service(folder, more=FAST) as shop, closing(Wire(shop)) as wire:
        mutate(wire, 3002, 8500)
        draw_from_schema(wire, 150)
        for mode in ({"mode": "shadow"}, {"mode": "default", "action": "wait"}):
            shop.post("/v1/admin/mode", mode)
            mutate(wire, 3003 + len(mode), 1500)
        assert wire.sent >= 10_000


@pytest.mark.slow
def test_strange_requests_to_a_policy_that_limits_users_and_actions(folder: Any) -> None:
    """Here a user is needed, rewards have keys, and rules are kept."""
    with (
        service(folder, more=STRICT, reward='rule = "sum"') as shop,
        closing(Wire(shop)) as wire,
    ):
        mutate(wire, 3009, 2000, user=WORD)
