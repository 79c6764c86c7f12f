"""What operators change while a service runs: the catalogue, who decides; and users' own sets."""

import time
from pathlib import Path

import capri
from service_process import SOMEBODY, Running, service


def names_played(shop: Running, count: int) -> set[str]:
    made = shop.post("/v1/decisions:batch", [{"context": SOMEBODY}] * count)
    return {item["action"] for item in made}


def test_a_new_catalogue_and_a_restart(folder: Path) -> None:
    with service(folder, first=40) as shop:
        assert names_played(shop, 40) == {"mail", "call", "wait"}
        told = shop.post("/v1/admin/catalogue", {"actions": ["call", "wait", "visit"]})
        assert told["effective"] == "from the next epoch on"
        for _ in range(100):
            if "visit" in names_played(shop, 40):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the new action is never played")
        shop.stop()
        shop.start()  # by the file, which still has the first names
        played = names_played(shop, 60)
        assert "mail" not in played
        assert "visit" in shop.get("/v1/policy")["actions"]
        (line,) = [each for each in shop.get("/v1/operations") if each["kind"] == "catalogue"]
        assert line["made"] > 0


def test_default_and_shadow(folder: Path) -> None:
    with service(folder, top='mode = "default"\naction = "wait"', first=60) as shop:
        assert shop.get("/v1/policy")["mode"] == "default"
        made = shop.post("/v1/decisions", {"context": SOMEBODY})
        assert (made["action"], made["propensity"]) == ("wait", 1.0)
        shop.post("/v1/admin/mode", {"mode": "shadow"})
        visits = [
            {"context": SOMEBODY, "chosen": "mail", "chosen_propensity": 0.5},
            {"context": SOMEBODY, "chosen": {"odd": 1}, "chosen_propensity": "much"},
            {"context": SOMEBODY},
        ] * 20
        made = shop.post("/v1/decisions:batch", visits)
        assert {item["action"] for item in made} <= {"mail", "call", "wait"}
        with capri.Client(shop.url, shop.key) as client:
            seen = client.act(SOMEBODY, chosen="mail", chosen_propensity=0.5)
            assert seen.status is capri.VisitStatus.SHADOW
            assert client.update(seen, 1.0) is capri.RewardStatus.ACCEPTED
        shop.post("/v1/rewards", [{"id": item["id"], "reward": 1.0} for item in made])
        shop.post("/v1/admin/close", {"early": True})
        (record,) = shop.get("/v1/shadow")
        assert record["visits"] == 61
        assert any(event.get("purpose") for event in shop.get("/v1/ledger")["releases"])
        shop.post("/v1/admin/mode", {"mode": "active"})
        status, said = shop.ask("POST", "/v1/admin/mode", {"mode": "default", "action": "nothing"})
        assert (status, said["error"]["field"]) == (422, "mode")
        assert [line["kind"] for line in shop.get("/v1/operations")] == ["mode"] * 3


def test_only_what_is_available_is_played(shop: Running) -> None:
    visit = {"context": SOMEBODY, "actions": ["call", "somewhere else"]}
    made = shop.post("/v1/decisions:batch", [visit] * 20 + [{"context": SOMEBODY}] * 20)
    assert {item["action"] for item in made[:20]} == {"call"}
    assert {item["propensity"] for item in made[:20]} == {1.0}
    assert len({item["action"] for item in made[20:]}) > 1
    for actions in ([], None, 7, "call", [[]], ["nobody"]):
        odd = shop.post("/v1/decisions", {"context": SOMEBODY, "actions": actions})
        assert odd["action"] in ("mail", "call", "wait")
