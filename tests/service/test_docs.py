"""The lines of docs/howto/service.md work as printed, against the example of `make serve`."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory import MEMORY
from node import find_node
from service_process import PATIENT, Running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "service.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def example() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        for file in ("policy.toml", "public.csv"):
            shutil.copy(ROOT / "examples" / "service" / file, name)
        with (Path(name) / "policy.toml").open("a") as file:
            file.write(PATIENT)
        running = Running(Path(name), ("--insecure-local",))
        running.start()
        yield running
        running.stop()


def test_make_serve_starts_this_example() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "capri serve examples/service/policy.toml --insecure-local" in makefile
    assert "make serve" in PAGE


def test_curl(example: Running) -> None:
    decide, reward, many = blocks("curl")

    def run(lines: str) -> Any:
        lines = lines.replace("127.0.0.1:8017", f"127.0.0.1:{example.port}")
        done = subprocess.run(["sh", "-c", lines], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    drawn, asked = decide.split("\n", 1)
    # The same key gives the same decision, and every caller draws another.
    made, again = run(f"{drawn}\necho [; {asked}\necho ,; {asked}\necho ]")
    assert made["status"] == "served"
    assert made == again
    assert run(decide)["id"] != made["id"]
    (shown,) = blocks("json")
    assert set(json.loads(shown)) == set(made)
    assert run(reward.replace(json.loads(shown)["id"], made["id"])) == {"status": "accepted"}
    assert run(reward) == {"status": "late"}
    listed = run(many)
    assert [item["marks"] for item in listed] == [["absent column"]] * 2


def test_limits(tmp_path: Path) -> None:
    from capri.service.settings import load_settings

    folder = ROOT / "examples" / "service"
    shutil.copy(folder / "public.csv", tmp_path)
    (block,) = blocks("toml")
    (tmp_path / "policy.toml").write_text((folder / "policy.toml").read_text() + block)
    limits = load_settings(tmp_path / "policy.toml").arguments["limits"]
    assert list(limits.allowed["10 % off"]) == ["member", "basket", "device"]


def test_python(example: Running) -> None:
    (code,) = blocks("python")
    exec(
        compile(code.replace("127.0.0.1:8017", f"127.0.0.1:{example.port}"), "service.md", "exec"),
        {},
    )


def test_javascript(example: Running) -> None:
    node = find_node()  # in CI named all the same: then this fails
    if node is None:
        pytest.skip("no Node: see tools/install_node.sh")
    (code,) = blocks("js")
    code = code.replace("127.0.0.1:8017", f"127.0.0.1:{example.port}")
    done = subprocess.run(
        [node, "--input-type=module", "-e", code + "console.log(decision.action, status);"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip().endswith("accepted")


def test_web_shop(example: Running) -> None:
    source = (ROOT / "examples" / "web_shop.py").read_text()
    assert len(source.splitlines()) < 40
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "web_shop.py"),
         "--visits", "120", "--url", example.url],
        capture_output=True, text=True, check=True, env={**os.environ},
    )  # fmt: skip
    assert done.stdout.startswith("offered most: ")


def test_every_status_and_mark_is_on_the_page() -> None:
    """Routes, fields, limits and keys are written into the reference from the code."""
    from capri.service.decisions import MARKS, REWARD_STATUSES, VISIT_STATUSES

    for word in (*MARKS, *REWARD_STATUSES, *VISIT_STATUSES):
        assert f"`{word}`" in PAGE, word


def test_the_tutorial_of_operators(tmp_path: Path) -> None:
    """Its lines in order: a file, two keys, a decision, its reward, a kill, and what is left."""
    page = (ROOT / "docs" / "tutorials" / "operator.md").read_text()
    _, init, keys, order, decide, reward = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    programs = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(lines: str) -> str:
        lines = lines.replace("127.0.0.1:8017", f"127.0.0.1:{running.port}")
        shell = ["sh", "-ec", lines]
        return subprocess.run(
            shell,
            cwd=tmp_path,
            env=os.environ | programs,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    running = Running(tmp_path)
    run(init)
    keys, start = keys.rsplit("capri serve policy.toml", 1)
    assert not start.strip()
    run(keys)
    run(order)
    with (tmp_path / "policy.toml").open("a") as file:
        file.write(PATIENT)
    running.start()
    try:
        made = json.loads(run(decide))
        assert made["action"] in ("article", "video", "game")
        assert json.loads(run(reward.replace('"ID"', f'"{made["id"]}"'))) == {"status": "accepted"}
        running.kill()
        running.start()
        assert json.loads(run(decide)) == made
    finally:
        running.stop()
