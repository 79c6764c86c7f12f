"""Every tutorial by its text alone: what it says to type is typed, in the order of the page."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
# What a shell has here already: the environment, and a folder to work in.
THERE = re.compile(r"python3 -m venv|pip install|mkdir")
SERVED = r"""capri serve policy.toml >> log 2>&1 & echo $! > pid
for _ in $(seq 300); do curl -sf http://127.0.0.1:8017/readyz > ready && break; sleep .1; done"""
pytestmark = pytest.mark.slow  # a service is started twice, an arena played twice


def typed(page: Path) -> str:
    """The blocks of a page as one shell script; those of Python in one file."""
    text = page.read_text()
    program = "\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    if page.name == "researcher.md":
        place = (DOCS / "howto" / "evaluate.md").read_text()
        (template,) = re.findall(r'```python\n("""A policy and an env.*?)```', place, re.DOTALL)
        Path("mine.py").write_text(template)
    lines, ran = [], False
    for kind, block in re.findall(r"```(sh|python|toml)\n(.*?)```", text, re.DOTALL):
        if kind == "toml":
            Path("own.toml").write_text(block)
        elif kind == "python" and not ran:
            Path("program.py").write_text(program)
            lines.append("python program.py")
            ran = True
        elif kind == "sh":
            lines += [each for each in block.splitlines() if not THERE.search(each)]
    script = "\n".join(lines)
    if "capri serve" in script:
        ended = "kill -9 $(cat pid); wait $(cat pid) || true"
        script = script.replace("capri serve policy.toml", SERVED)
        script = re.sub(
            r"(curl -s \S+/v1/decisions[^\0]*?\}')$", r"\1 | tee answer", script, flags=re.M
        )
        given = """$(python -c 'import json; print(json.load(open("answer"))["id"])')"""
        script = script.replace('"id": "ID"', f""""id": "'{given}'\"""")
        again = script[script.index("curl -s http://127.0.0.1:8017/v1/decisions") :].partition(
            " | tee"
        )
        script += f"\n{ended}\n{SERVED}\n{again[0]} | cmp - answer\n{ended}"
    return script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = typed(page)
    if "capri serve" in script:
        if shutil.which("curl") is None:
            pytest.skip("no curl")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        script = script.replace("8017", port).replace(
            "capri serve policy.toml", f"capri serve policy.toml --port {port}"
        )
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    made = {"privacy-officer": "certificate.html", "engineer": "certificate.html",
            "data-scientist": "privacy.html", "researcher": "results/own/report.html",
            "operator": "policy.db", "device": "program.py"}[page.stem]  # fmt: skip
    assert (tmp_path / made).stat().st_size > 1_000
    if page.stem == "operator":
        assert '"accepted"' in done.stdout
