"""A policy file, its store, and what operators change while a service runs."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capri.cli import app
from capri.service.changes import Difference
from service_process import SOMEBODY, Running, service
from waiting import eventually


def command(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, (done.output, done.exception)
    return " ".join(done.output.split())


def rewrite(folder: Path, old: str, new: str) -> None:
    file = folder / "policy.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def visit(shop: Running, count: int) -> list[dict[str, Any]]:
    return [
        made
        for start in range(0, count, 20)
        for made in shop.post(
            "/v1/decisions:batch", [{"context": SOMEBODY}] * min(20, count - start)
        )
    ]


def differences(shop: Running) -> list[str]:
    notices = shop.get("/v1/policy")["notices"]
    return [each["text"] for each in notices if each["kind"] == "policy file"]


def test_a_change_by_the_interface_is_named_until_the_file_agrees(folder: Path) -> None:
    with service(folder, reward="wait = 0", first=40) as shop:
        assert differences(shop) == []
        asked = {"reward": {"wait": 500}, "limits": {"floor": {"wait": 0.2}}, "horizon": 9000}
        told = shop.post("/v1/admin/settings", {"settings": asked, "why": "orders ship late"})
        assert told["effective"] == "from the next epoch on"
        (text,) = differences(shop)
        assert "reward.wait: 500 in the store, 0 in the file" in text
        assert "horizon: 9000 in the store, None in the file" in text
        file = str(folder / "policy.toml")
        assert "would change reward.wait: 500" in command("diff", file, code=1)
        # What is played now: the epoch under way keeps its wait, later ones have the new one.
        eventually(lambda: visit(shop, 40)[-1]["epoch"] >= 3)
        late = visit(shop, 1)
        visit(shop, 300)
        statuses = shop.post("/v1/rewards", [{"id": each["id"], "reward": 1} for each in late])
        assert [each["status"] for each in statuses] == ["accepted"]
        policy = shop.get("/v1/policy")
        assert (policy["rewards"]["wait"], policy["horizon"]) == (500, 9000)
        assert policy["limits"]["floor"] == [["wait", 0.2]]
        (line,) = shop.get("/v1/operations")
        assert (line["kind"], line["by"], line["why"]) == ("settings", "tests", "orders ship late")
        # The old file starts it, by what the store says; a file that agrees does, too.
        shop.stop()
        shop.start()
        assert len(differences(shop)) == 1
        assert shop.get("/v1/policy")["rewards"]["wait"] == 500
        shop.stop()
        rewrite(folder, "wait = 0", "wait = 500")
        rewrite(folder, 'name = "shop"', 'name = "shop"\nhorizon = 9000')
        with (folder / "policy.toml").open("a") as out:
            out.write("\n[limits]\nfloor = { wait = 0.2 }\n")
        shop.start()
        assert differences(shop) == []
        assert "say the same" in command("diff", file)


def test_a_file_is_applied_to_a_service_that_runs(folder: Path) -> None:
    with service(folder, first=30) as shop:
        visit(shop, 10)
        rewrite(folder, '"mail", "call", "wait"', '"mail", "call", "visit"')
        rewrite(folder, "first_epoch = 30", "first_epoch = 35")
        file = str(folder / "policy.toml")
        assert "actions: mail, call, wait in the store" in command("diff", file, code=1)
        said = command("apply", file, "--why", "nobody waits")
        assert "settings" in said
        assert "nobody waits" in said
        eventually(lambda: "visit" in {each["action"] for each in visit(shop, 20)})
        eventually(lambda: differences(shop) == [])
        line = shop.get("/v1/operations")[-1]
        assert line["why"] == "nobody waits"
        assert line["by"].endswith("at a shell")
        assert "say the same" in command("apply", file)
        # A change that would loosen the promise: nothing of the file is applied.
        rewrite(folder, "epsilon = 2.0", "epsilon = 4.0")
        rewrite(folder, "first_epoch = 35", "first_epoch = 45")
        assert "cannot budget" in command("diff", file, code=1)
        refused = command("apply", file, code=2)
        assert "nothing was changed" in refused
        assert "what users were promised" in refused
        assert shop.get("/v1/operations")[-1] == line


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "nothing is to change"),
        ({"budget": {"epsilon": 9.0}}, "budget.epsilon cannot be changed"),
        ({"users": {"contributions": 9}}, "cannot be changed"),
        ({"reward": {"wait": "soon"}}, "must be a time"),
        ({"reward": {"wait": 10, "range": [0, 2]}}, "reward.range cannot be changed"),
        ({"limits": {"floor": {"nobody": 0.1}}}, "nobody"),
        ({"horizon": "far"}, "horizon"),
        ({"actions": ["one"]}, "at least two"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    shop: Running, settings: dict[str, Any], says: str
) -> None:
    before = shop.get("/v1/operations")
    status, said = shop.ask("POST", "/v1/admin/settings", {"settings": settings})
    assert (status, said["error"]["field"]) == (422, "settings")
    assert says in said["error"]["problem"]
    assert shop.get("/v1/operations") == before


def test_beyond_the_horizon_it_decides_and_learns_nothing(folder: Path) -> None:
    with service(folder, top="horizon = 50", first=30) as shop:
        made = visit(shop, 90)
        statuses = [each["status"] for each in made]
        assert statuses == ["served"] * 50 + ["frozen"] * 40
        assert shop.ask("GET", "/readyz") == (200, {"status": "ready", "mode": "frozen"})
        assert shop.get("/v1/policy")["mode"] == "frozen"
        (line,) = shop.get("/v1/operations")
        assert (line["mode"], line["by"]) == ("frozen", "capri")
        assert line["why"] == "the horizon of 50 decisions is reached"
        last = {"id": made[-1]["id"], "reward": 1}
        assert shop.post("/v1/rewards", last) == {"status": "uncounted"}
        shop.post("/v1/admin/close", {"early": True})
        taught = sum(each["length"] for each in shop.get("/v1/epochs"))
        assert taught == 50
        shop.stop()
        shop.start()  # and it goes on so
        assert visit(shop, 1)[0]["status"] == "frozen"
        shop.post("/v1/admin/settings", {"settings": {"horizon": 10_000}})
        shop.post("/v1/admin/mode", {"mode": "active", "why": "a new season"})
        assert visit(shop, 1)[0]["status"] == "served"


def test_times_are_told_as_a_file_has_them() -> None:
    told = Difference("reward_wait", timedelta(days=2), timedelta(minutes=90))
    assert str(told) == "reward.wait: 2 days in the store, 90 minutes in the file"
