"""The first hour: what `capri init` makes learns from late rewards, and mistakes are named."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import capri
from capri.cli import app
from capri.epoch.rewards import RewardScale, RewardTerms
from capri.schema import Numeric, Schema
from capri.service.auth import add_key
from capri.service.decisions import ABSENT, UNKNOWN_COLUMN, UNREADABLE, BulkPolicy
from capri.service.messages import DecisionRequest, RewardRequest
from capri.service.monitoring import ColumnCounts, LiveCounts, Seen, live_alarms, released_alarms
from capri.service.settings import load_settings
from service_process import PATIENT, Running
from waiting import PATIENCE

ROWS = "age,plan\n20,free\n40,pro\n60,free\n80,pro\n"
VISITOR = {"age": 41, "plan": "pro"}
SCHEMA = Schema([Numeric("age", 0, 100)])


def made_file(folder: Path, *flags: str, first: int) -> Path:
    """A policy file from a CSV of public rows and nothing else; epochs are short for the test."""
    (folder / "rows.csv").write_text(ROWS)
    output = folder / "policy.toml"
    command = ["init", str(folder / "rows.csv"), "--actions", "mail,call", "--output", str(output)]
    made = CliRunner().invoke(app, [*command, *flags])
    assert made.exit_code == 0, made.output
    with output.open("a") as file:
        file.write(f"\n[options]\nfirst_epoch = {first}\n{PATIENT}")
    return output


@contextmanager
def made_by_init(folder: Path, *flags: str, first: int = 60) -> Iterator[Running]:
    """A service of a file that `init` made."""
    made_file(folder, *flags, first=first)
    running = Running(folder, key=add_key(folder / "policy.keys", "tests", ["admin"]))
    running.start()
    try:
        yield running
    finally:
        running.stop()


def visit(shop: Running, count: int, context: Any = None) -> list[str]:
    """The ids of some decisions."""
    visits = [{"context": VISITOR if context is None else context}] * count
    return [made["id"] for made in shop.post("/v1/decisions:batch", visits)]


def reward(shop: Running, ids: list[str]) -> set[str]:
    """Statuses of rewards for these decisions."""
    items = [{"id": each, "reward": 1.0} for each in ids]
    return {item["status"] for item in shop.post("/v1/rewards", items)}


def alarms(shop: Running) -> dict[str, str]:
    """What operators are told, by kind."""
    return {alarm["kind"]: alarm["text"] for alarm in shop.get("/v1/live")["alarms"]}


def test_late_rewards_count_with_the_defaults_of_init(tmp_path: Path) -> None:
    with made_by_init(tmp_path) as shop:
        assert shop.get("/v1/policy")["rewards"]["wait"] >= 1000
        early = visit(shop, 60)
        visit(shop, 500)  # epochs come and go
        assert reward(shop, early) == {"accepted"}
        assert alarms(shop) == {}


def test_rewards_after_the_wait_are_named_as_the_cause(tmp_path: Path) -> None:
    with made_by_init(tmp_path, "--reward-wait", "0") as shop:
        early = visit(shop, 60)
        shop.post("/v1/admin/close", {"early": True})
        last = visit(shop, 40)
        assert reward(shop, early) == {"late"}
        assert reward(shop, last) == {"accepted"}
        told = alarms(shop)
        assert list(told) == ["late rewards"]
        assert told["late rewards"].startswith(
            "60 % of 100 rewards came after the wait of 0 decisions"
        )
        live = shop.get("/v1/live")
        assert "outside of the theorem" in live["alarms_mean"]


def test_no_rewards_at_all_are_named(tmp_path: Path) -> None:
    with made_by_init(tmp_path, "--reward-wait", "100") as shop:
        visit(shop, 500)
        assert alarms(shop) == {}  # they may still come
        ids = visit(shop, 150)
        assert alarms(shop)["no rewards"].startswith("None of 650 decisions has a reward")
        reward(shop, ids[:1])
        assert "no rewards" not in alarms(shop)


def test_misspelled_column_is_named(tmp_path: Path) -> None:
    with made_by_init(tmp_path) as shop:
        visit(shop, 100, {"agee": 41, "plan": "pro", "<b>": 1})
        visit(shop, 100)
        told = alarms(shop)["columns"]
        assert told.startswith("50 % of 200 visits")
        assert "'agee' (100)" in told  # unknown
        assert "'age' (100)" in told  # missing
        assert "'plan'" not in told.partition("Declared")[0]
        assert "'age', 'plan'" in told.partition("Declared")[2]


def test_names_of_columns_are_few_and_short(tmp_path: Path) -> None:
    """Whoever decides may send any names: what is kept of them is bounded."""
    with made_by_init(tmp_path) as shop:
        for start in range(0, 100, 20):
            names = {f"{start + place}{'x' * 200}": 1 for place in range(20)}
            visit(shop, 60, VISITOR | names)
        told = alarms(shop)["columns"]
        assert len(told) < 1200
        assert told.count("x" * 30) == 16
        assert "x" * 40 not in told


def test_alarms_of_private_counts_are_for_operators(tmp_path: Path) -> None:
    with made_by_init(tmp_path, "--reward-wait", "0") as shop:
        early = visit(shop, 60)
        shop.post("/v1/admin/close", {"early": True})
        visit(shop, 60, {"agee": 1})
        reward(shop, early)
        assert set(alarms(shop)) == {"late rewards", "columns"}
        reader = add_key(shop.folder / "policy.keys", "reader", ["read", "decide", "reward"])
        shop.decided()  # half a second: the file of keys is read again
        assert shop.ask("GET", "/v1/live", key=reader)[0] == 403
        for path in ("/v1/policy", "/metrics", "/v1/epochs"):
            said = str(shop.ask("GET", path, key=reader)[1])
            assert "agee" not in said
            assert "late rewards" not in said
        public = {notice["kind"] for notice in shop.get("/v1/policy")["notices"]}
        assert public.isdisjoint(alarms(shop))


def test_silence_that_was_released_is_told_to_everybody(tmp_path: Path) -> None:
    """With missing = "as-estimated" the response rate leaves through the gate.

    Its noise has a deviation of at most 8.45 / .72 = 11.7 of 1,000 decisions, and is to stay below
    50 - 1: 4.2 deviations, which happens in 1.3e-5 of runs.
    """
    with made_by_init(
        tmp_path, "--reward-wait", "0", "--missing", "as-estimated", first=1000
    ) as shop:
        visit(shop, 1000)
        shop.post("/v1/admin/close", {"early": True})
        (silence,) = [
            each for each in shop.get("/v1/policy")["notices"] if each["kind"] == "silence"
        ]
        rate = shop.get("/v1/epochs")[0]["response_rate"]
        assert silence["numbers"] == {"response_rate": rate}
        assert "wait of 0 decisions" in silence["text"]
        told = len(shop.get("/v1/policy")["notices"])  # the pool may not fit, either
        assert f"capri_notices {told}.0\n" in shop.ask("GET", "/metrics")[1]


def test_releases_that_miss_their_moment_are_told_to_everybody() -> None:
    """One in twenty is what a busy machine may do now and then."""
    record = capri.EpochRecord(
        epoch=1, length=8, rank=3, tau=1.0, sigma_max=1.0, noise_scale=1.0, width=1.0,
        active_share=1.0, seconds=None,
    )  # fmt: skip
    epochs, terms = (record,) * 40, RewardTerms()
    assert [list(released_alarms(terms, epochs, missed)) for missed in (0, 2)] == [[], []]
    (late,) = released_alarms(terms, epochs, 3)
    assert (late.kind, late.numbers) == ("late releases", {"missed": 3.0})
    assert "3 of 40 releases" in late.text


def told_of(visits: dict[str, int], rewards: dict[str, int], **more: Any) -> list[str]:
    """Kinds of alarms of some counts."""
    seen = Seen(visits=visits, rewards=rewards, **({"columns": ColumnCounts(SCHEMA)} | more))
    return [alarm.kind for alarm in live_alarms(RewardTerms(wait=10), RewardScale(0, 1), seen)]


def test_what_is_in_doubt_was_not_judged() -> None:
    """Neither a late reward nor one that came, and no visit that was looked at."""
    columns = ColumnCounts(SCHEMA)
    for _ in range(8):
        columns.note([(ABSENT, "age"), (UNKNOWN_COLUMN, "agee")])
    doubtful = {"in doubt": 1000, "refused": 1000}
    visits, rewards = {"served": 50} | doubtful, {"late": 8, "accepted": 42} | doubtful
    assert told_of(visits, rewards, columns=columns) == ["late rewards", "columns"]
    assert told_of({"served": 510}, doubtful) == ["no rewards"]


def test_few_of_many_raise_no_alarm() -> None:
    """Honest services have a reward that comes late, or a client of last year, now and then."""
    assert told_of({"served": 1000}, {"late": 60, "accepted": 940}, outside=60) == []
    assert told_of({"served": 1000}, {"late": 80, "accepted": 920}, outside=80) == [
        "late rewards",
        "reward range",
    ]


def test_a_column_that_may_be_missing_may_be_left_out() -> None:
    columns = ColumnCounts(Schema([Numeric("age", 0, 100, missing="own"), Numeric("sum", 0, 9)]))
    for _ in range(60):
        columns.note([(ABSENT, "age")])
    assert told_of({"served": 60}, {"accepted": 1}, columns=columns) == []
    for _ in range(60):
        columns.note([(ABSENT, "sum"), (UNREADABLE, "age")])
    assert told_of({"served": 120}, {"accepted": 1}, columns=columns) == ["columns"]
    assert columns.said() == "missing 'sum' (60); unreadable 'age' (60)"


# -- first hours, played in this process -----------------------------------------------------------

WAIT, FIRST = 150, 200


def first_hour(file: Path, seed: int, mistake: str = "") -> list[str]:
    """Alarms after the wait and two epochs of what `init` makes; rewards come 100 decisions late.

    Half of the decisions bring a reward, and one in a hundred of these comes after the wait.
    """
    policy = load_settings(file, thorough=False).policy(store=None, simulation_seed=seed)
    schema = policy.contexts.schema
    assert schema is not None
    live = LiveCounts(lambda: policy.problem, schema)
    bulk = BulkPolicy(policy, live.columns.note, live.outside)
    draws, sent = np.random.default_rng(seed), list[tuple[int, str]]()
    end = WAIT + FIRST + FIRST * 3 // 2 + 200
    for place in range(0, end, 50):
        contexts = [
            {"age": float(age), "plan": ("free", "pro")[int(age) % 2]}
            for age in draws.integers(20, 80, 50)
        ]
        if mistake == "columns":
            contexts = [{"agee": each["age"], "plan": each["plan"]} for each in contexts]
        elif mistake == "texts":
            contexts = [each | {"age": str(each["age"])} for each in contexts]
        made = bulk.decide([DecisionRequest(context=each) for each in contexts])
        live.visits([each.status for each in made])
        late = {"late rewards": 500}.get(mistake, 100)
        sent += [
            (place + (900 if draws.random() < 0.01 else late), each.id)
            for each in made
            if draws.random() < 0.5 and mistake != "no rewards"
        ]
        due = [number for at, number in sent if at <= place]
        sent = [each for each in sent if each[0] > place]
        value = 100.0 if mistake == "reward range" else 1.0
        if due:
            items = [RewardRequest(id=number, reward=value) for number in due]
            live.rewards([each.status for each in bulk.reward(items)])
    return [alarm.kind for alarm in live.alarms()]


@pytest.fixture(scope="module")
def file_of_init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    return made_file(folder, "--reward-wait", str(WAIT), first=FIRST)


@pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning", "ignore::capri.KernelWarning")
@pytest.mark.parametrize("mistake", ["late rewards", "no rewards", "columns", "reward range"])
def test_each_mistake_has_its_own_alarm(mistake: str, file_of_init: Path) -> None:
    for seed in range(20):
        assert first_hour(file_of_init, seed, mistake) == [mistake]


@pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning", "ignore::capri.KernelWarning")
def test_numbers_sent_as_texts_are_named(file_of_init: Path) -> None:
    assert first_hour(file_of_init, 1, "texts") == ["columns"]


@pytest.mark.filterwarnings("ignore::capri.RewardIgnoredWarning", "ignore::capri.KernelWarning")
@pytest.mark.parametrize("hours", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_honest_hours_raise_no_alarm(hours: int, file_of_init: Path) -> None:
    for seed in range(hours):
        assert first_hour(file_of_init, seed) == []


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ((), ["wait = 2000 ", "missing = 0.0 "]),
        (("--reward-wait", "2d"), ['wait = "2 days" ']),
        (("--reward-wait", "90m"), ['wait = "90 minutes" ']),
        (("--reward-wait", "1.5 hours"), ['wait = "1.5 hours" ']),
        (("--reward-wait", "1000", "--missing", "as-estimated"),
         ["wait = 1000 ", 'missing = "as-estimated" ']),
        (("--missing", "0.25"), ["missing = 0.25 "]),
    ],
)  # fmt: skip
def test_init_takes_what_it_asks_for(
    flags: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    output = tmp_path / "policy.toml"
    command = ["init", str(tmp_path / "rows.csv"), "--output", str(output), *flags]
    made = CliRunner().invoke(app, command)  # no terminal: nothing is asked, nothing hangs
    assert made.exit_code == 0
    assert ("--reward-wait" in made.output) == ("--reward-wait" not in flags)
    text = output.read_text()
    for line in lines:
        assert f"\n{line}" in text
    load_settings(output)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--reward-wait", "soon"), "--reward-wait must be a number of decisions or a time"),
        (("--reward-wait", "-5"), "got '-5'"),
        (("--missing", "nothing"), "--missing must be a number from 0 to 1 or 'as-estimated'"),
        (("--missing", "7"), "got '7'"),
    ],
)
def test_init_says_what_is_allowed(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    output = tmp_path / "policy.toml"
    made = CliRunner().invoke(
        app, ["init", str(tmp_path / "rows.csv"), "--output", str(output), *flags]
    )
    assert made.exit_code == 2
    assert says in " ".join(made.output.split())
    assert not output.exists()


def test_init_asks_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "capri", "init", "rows.csv"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    for question, answer in ((b"[2000]:", b"2d\n"), (b"[0]:", b"as-estimated\n")):
        while question not in said:
            said += os.read(ours, 1000)
        os.write(ours, answer)
    with suppress(OSError):  # a terminal whose other end was closed
        while os.read(ours, 1000):
            pass
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    settings = load_settings(tmp_path / "policy.toml")
    assert settings.arguments["reward_wait"] == timedelta(days=2)
    assert settings.arguments["missing_reward"] == "as-estimated"
