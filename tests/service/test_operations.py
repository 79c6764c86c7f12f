"""What operators change while a service runs: the catalogue, who decides; and users' own sets."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import capri
from capri.cli import app
from service_process import SOMEBODY, Running, service
from waiting import eventually


def names_played(shop: Running, count: int) -> set[str]:
    made = shop.post("/v1/decisions:batch", [{"context": SOMEBODY}] * count)
    return {item["action"] for item in made}


def test_a_new_catalogue_and_a_restart(folder: Path) -> None:
    with service(folder, first=40) as shop:
        assert names_played(shop, 40) == {"mail", "call", "wait"}
        told = shop.post("/v1/admin/catalogue", {"actions": ["call", "wait", "visit"]})
        assert told["effective"] == "from the next epoch on"
        eventually(lambda: "visit" in names_played(shop, 40))
        shop.stop()
        shop.start()  # by the file, which still has the first names
        played = names_played(shop, 60)
        assert "mail" not in played
        assert "visit" in shop.get("/v1/policy")["actions"]
        (line,) = [each for each in shop.get("/v1/operations") if each["kind"] == "catalogue"]
        assert line["made"] > 0


def test_default_and_shadow(folder: Path) -> None:
    with service(folder, top='mode = "default"\naction = "wait"', first=100) as shop:
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


LIMITS = """
[limits]
floor = { wait = 0.1 }
ceiling = { mail = 0.25 }
[limits.allowed]
call = { plan = ["pro"] }
"""


def test_sets_of_visitors_keep_to_the_limits_of_the_policy(folder: Path) -> None:
    with service(folder, more=LIMITS) as shop:
        assert shop.get("/v1/policy")["limits"]["ceiling"] == [["mail", 0.25]]

        def played(count: int, **visit: Any) -> dict[str, float]:
            made = shop.post("/v1/decisions:batch", [{"context": SOMEBODY} | visit] * count)
            assert {item["status"] for item in made} <= {"served", "invalid"}
            return {item["action"]: item["propensity"] for item in made}

        everything = played(200)
        assert set(everything) == {"mail", "call", "wait"}
        assert everything["mail"] <= 0.25
        assert everything["wait"] >= 0.1
        # Who may not be offered an action does not get it by asking.
        free = {"age": 41, "plan": "free"}
        assert set(played(60, context=free)) == {"mail", "wait"}
        assert set(played(60, context=free, actions=["call", "wait"])) == {"wait"}
        asked = played(200, actions=["mail", "call"])
        assert asked["mail"] <= 0.25
        assert set(asked) <= {"mail", "call"}


def test_a_restored_older_copy_is_refused_by_the_rollback_guard(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    top = 'rollback_guard = "elsewhere/guard.json"'
    with service(folder, top=top, first=30) as shop:
        shop.post("/v1/decisions:batch", [{"context": SOMEBODY}] * 20)
        assert shop.get("/v1/certificate")["digests"]["store"]["guarded"] is True
        copy = folder / "copy.db"
        made = CliRunner().invoke(app, ["backup", f"sqlite:///{folder / 'policy.db'}", str(copy)])
        assert made.exit_code == 0, made.output
        shop.post("/v1/admin/close", {"early": True})
        shop.stop()
        for file in folder.glob("policy.db*"):  # as a restore of the folder does
            file.unlink()
        shutil.copy(copy, folder / "policy.db")
        before = len(shop.said)
        with pytest.raises(AssertionError, match="older copy"):
            shop.start()
        assert len(shop.said) > before


def test_without_a_rollback_guard_the_certificate_says_so(shop: Running) -> None:
    certificate = shop.get("/v1/certificate")
    assert certificate["digests"]["store"]["guarded"] is False
    assert "There is no rollback guard outside of it" in str(certificate)


@pytest.mark.slow
def test_a_forecast_is_computed_beside_the_service(folder: Path) -> None:
    with service(folder, "--forecast", first=100) as shop:
        eventually(lambda: shop.get("/v1/forecast")["epochs"])
        told = shop.get("/v1/forecast")
        assert told["functions"] > 0
        assert told["epochs"][0]["length"] == 100
