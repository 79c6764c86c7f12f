"""Small seeded results are, bit for bit, those pinned in ``expected.json``: see ``compute.py``."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from waiting import PATIENCE

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
FAMILIES = sorted({name.split("/")[0] for name in EXPECTED["cases"]})
OUTSIDE = {"machine", "python"}  # of constraints.txt


def test_pinned_under_the_versions_of_the_constraints() -> None:
    lines = (HERE.parents[1] / "constraints.txt").read_text().split()
    constraints = dict(line.split("==") for line in lines)
    pinned = {name: each for name, each in EXPECTED["versions"].items() if name not in OUTSIDE}
    assert pinned == {name: constraints[name] for name in pinned}


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_pinned(family: str) -> None:
    check_versions()
    done = subprocess.run(
        [sys.executable, str(HERE / "compute.py"), f"{family}/*"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["cases"]
    pinned = {
        name: each for name, each in EXPECTED["cases"].items() if name.startswith(f"{family}/")
    }
    wrong = [
        f"{name}: {'not computed' if name not in found else 'not pinned'}"
        if name not in found or name not in pinned
        else f"{name}: {found[name][:12]} instead of {pinned[name][:12]}"
        for name in sorted(found.keys() | pinned.keys())
        if found.get(name) != pinned.get(name)
    ]
    assert not wrong, f"{len(wrong)} of {len(pinned)} results differ:\n" + "\n".join(wrong)


def check_versions() -> None:
    """Other versions may round otherwise, so nothing can be said: CI must not let that pass."""
    actual = {name: version(name) for name in EXPECTED["versions"] if name not in OUTSIDE}
    actual["machine"] = platform.machine()
    actual["python"] = ".".join(platform.python_version_tuple()[:2])
    differ = [
        f"{name} {actual[name]} instead of {pinned}"
        for name, pinned in EXPECTED["versions"].items()
        if actual[name] != pinned
    ]
    if not differ:
        return
    reason = f"the hashes were pinned under other versions: {', '.join(differ)}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}. Install those of constraints.txt, or pin anew")
    pytest.skip(reason)
