"""The interface of a real service: names in, names out, item by item, each counted once."""

import http.client
import json
from typing import Any

import numpy as np
import pytest

import capri
from odd_cells import HELD
from service_process import SOMEBODY, Running


def test_a_decision_and_its_reward(shop: Running) -> None:
    made = shop.post("/v1/decisions", {"context": SOMEBODY})
    assert set(made) == {"id", "action", "propensity", "epoch", "status"}
    assert made["action"] in ("mail", "call", "wait")
    assert (made["propensity"], made["epoch"], made["status"]) == (1 / 3, 1, "served")
    reward = {"id": made["id"], "reward": 1.0}
    assert shop.post("/v1/rewards", reward) == {"status": "accepted"}
    assert shop.post("/v1/rewards", reward) == {"status": "duplicate"}


def test_the_same_key_gives_the_same_decision(shop: Running) -> None:
    first = shop.post("/v1/decisions", {"context": SOMEBODY, "key": "order 1"})
    for context in ({"age": 90, "plan": "free"}, None):
        again = shop.post("/v1/decisions", {"context": context, "key": "order 1"})
        again.pop("marks", None)
        assert again == first
    others = [{"context": SOMEBODY, "key": f"order {number}"} for number in (1, 2, 2)]
    listed = shop.post("/v1/decisions:batch", others)
    assert listed[0] == first
    assert listed[1] == listed[2] != first


def test_a_list_is_judged_item_by_item(shop: Running) -> None:
    made = shop.post(
        "/v1/decisions:batch",
        [
            {"context": SOMEBODY},
            {"context": SOMEBODY, "key": ""},
            7,
            {"context": 1, "detail": True},
        ],
    )
    assert [item["status"] for item in made] == ["served", "refused", "refused", "invalid"]
    assert made[1]["error"]["field"] == "key"
    assert made[3]["marks"] == ["no record"]
    assert made[3]["features"][made[3]["index"]] == 1.0
    told = shop.post(
        "/v1/rewards",
        [
            {"id": made[0]["id"], "reward": "much"},
            {"id": made[0]["id"], "reward": 0.5},
            {"id": made[3]["id"], "reward": 0.5},
            {"id": "A" * 20, "reward": 0.5},
            {"reward": 0.5},
        ],
    )
    statuses = [item["status"] for item in told]
    assert statuses == ["invalid", "accepted", "uncounted", "late", "refused"]


def test_whatever_is_in_a_context_is_served_and_takes_a_slot(shop: Running) -> None:
    before = shop.decided()
    contexts = [
        b"null", b"[]", b'"text"', b"{}", b'{"age": 1e999, "plan": "pro"}', b'{"age": {}}',
        b'{"age": 41, "plan": "gold"}', b'{"age": 41, "plan": "pro", "name": "Ann"}',
        b'{"age": NaN, "plan": "pro"}', b'{"age": ' + b"9" * 5000 + b', "plan": "pro"}',
        b'{"age": -0.0, "plan": ["pro"]}', b'{"age": true, "plan": 3}',
        b'{"age": ' + b"[" * 40 + b"]" * 40 + b', "plan": "pro"}',
        b'{"age": ' + b"9" * 390 + b', "plan": "pro"}',
        b'{"age": "\xff", "plan": "pro"}', b'{"age": -Infinity, "plan": "pro"}',
    ]  # fmt: skip
    made = [shop.post("/v1/decisions", b'{"context": %s}' % context) for context in contexts]
    marks = [item.get("marks", []) for item in made]
    assert marks[:4] == [["no record"]] * 3 + [["absent column"]]
    assert marks[4] == ["unreadable value"]
    assert marks[6:8] == [["unknown level"], ["unknown column"]]
    assert marks[-4:] == [["unreadable value"]] * 4
    assert all(item["status"] in ("served", "invalid") for item in made)
    # All in one list, beside one that is sound: nobody's value moves another's outcome.
    everybody = [*contexts, b'{"age": 1, "plan": "pro"}']
    body = b",".join(b'{"context": %s}' % context for context in everybody)
    together = shop.post("/v1/decisions:batch", b"[" + body + b"]")
    assert [item.get("marks", []) for item in together] == [*marks, []]
    assert shop.decided() == before + 2 * len(contexts) + 1


def test_bytes_that_are_no_utf8_are_the_matter_of_one_cell(shop: Running) -> None:
    """In a private text they refuse nobody; in a key its own item, and outside of texts all."""
    made = shop.post(
        "/v1/decisions:batch",
        b'[{"context": {"age": 41, "plan": "\xc3("}}, {"context": {"age": 41, "plan": "a\nb"}}, '
        b'{"context": {"age": 41, "\xff": 1, "plan": "pro"}}, '
        b'{"context": "\xff", "chosen": "\xfe"}, '
        b'{"context": {"age": 41, "plan": "pro"}, "key": "\xff"}, '
        b'{"context": {"age": 41, "plan": "pro"}, "actions": ["\xff", "mail"]}]',
    )
    marks = [item.get("marks", []) for item in made]
    odd = [["unknown level"], ["unknown level"], ["unknown column"], ["no record"]]
    assert marks == [*odd, [], []]
    assert [item["status"] for item in made[4:]] == ["refused", "served"]
    assert (made[4]["error"]["field"], made[5]["action"]) == ("key", "mail")
    ids = [made[place]["id"].encode() for place in (0, 1, 2)]
    body = (
        b'[{"id": "%s", "reward": "\xff"}, {"id": "%s", "reward": 1}, {"id": "%s", "reward": NaN}]'
    )
    told = shop.post("/v1/rewards", body % tuple(ids))
    assert [item["status"] for item in told] == ["invalid", "accepted", "invalid"]
    status, said = shop.ask("POST", "/v1/decisions", b'{"context": \xff}')
    assert (status, said["error"]["field"]) == (400, "body")


def test_public_figures(shop: Running) -> None:
    policy = shop.get("/v1/policy")
    assert policy["actions"] == ["mail", "call", "wait"]
    assert [column["name"] for column in policy["context"]] == ["age", "plan"]
    assert shop.get("/v1/epochs") == []
    assert {row["name"] for row in shop.get("/v1/estimate")["actions"]} == {"mail", "call", "wait"}
    assert shop.get("/v1/ledger")["spent"]["epsilon"] == 0
    certificate = shop.get("/v1/certificate")
    assert "store" in certificate["digests"]
    assert shop.get("/v1/explanation")["releases"] == 0
    metrics = shop.ask("GET", "/metrics")[1]
    assert "capri_decisions_total" in metrics
    assert "reward" not in metrics.replace("Epochs that wait for rewards", "")
    assert shop.get("/v1/live")["trust"].startswith("inside the trust boundary")
    assert shop.get("/healthz") == {"status": "alive"}


def test_admin_closes_an_epoch_and_refuses_what_cannot_be(shop: Running) -> None:
    status, said = shop.ask("POST", "/v1/admin/close", {})
    assert status == 409
    assert "early" in said["error"]["problem"]
    status, said = shop.ask("POST", "/v1/admin/catalogue", {"actions": ["one"]})
    assert (status, said["error"]["field"]) == (422, "actions")


def test_client_sends_any_cell_and_serves_the_others(shop: Running) -> None:
    """One cell that JSON has no form of refused the whole list, before it was sent."""
    with capri.Client(shop.url, shop.key) as client:
        for held in HELD:
            records: list[Any] = [SOMEBODY, held.cell, SOMEBODY | {"age": held.cell}]
            made = client.act_many(records, actions=[["mail"], held.cell, [held.cell, "call"]])
            assert made[0].action_name == "mail"
            told = client.update_many(made, [1.0, held.cell, held.cell])
            assert told[0] is capri.RewardStatus.ACCEPTED


def test_client_speaks_the_types_of_the_library(shop: Running) -> None:
    with capri.Client(shop.url, shop.key) as client:
        decision = client.act(SOMEBODY, key="by client")
        assert isinstance(decision, capri.Decision)
        assert decision.action_name == ("mail", "call", "wait")[decision.action_index]
        assert decision == client.act(SOMEBODY, key="by client")
        assert client.update(decision, 1.0) is capri.RewardStatus.ACCEPTED
        assert client.update(decision.id, 1.0) is capri.RewardStatus.DUPLICATE
        many = client.act_many([SOMEBODY, {}, SOMEBODY])
        assert [str(each.status) for each in many] == ["served", "served", "served"]
        told = client.update_many(many, [0.0, None, float("nan")])
        assert [str(each) for each in told] == ["accepted", "invalid", "invalid"]
        with pytest.raises(capri.client.ServiceError, match="key") as refused:
            client.act_many([{"age": np.int64(41)}, SOMEBODY], keys=["x" * 999, "kept"])
        assert refused.value.outcomes == (None, client.act(SOMEBODY, key="kept"))
        assert client.act({}, actions=None).action_index < 3
        (unset,) = shop.post("/v1/decisions:batch", [{"context": SOMEBODY, "actions": None}])
        assert unset["status"] == "served"
        assert client.policy()["name"] == "shop"
        assert client.epochs() == []


def test_one_connection_serves_many_requests(shop: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {shop.key}"}
    for _ in range(3):
        connection.request("POST", "/v1/decisions", json.dumps({"context": SOMEBODY}), headers)
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["status"] == "served"
    connection.close()
