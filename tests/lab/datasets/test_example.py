"""The example runs as a reader would run it, and its estimates enclose the truth it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_example_runs() -> None:
    """Intervals at 95 % are widened fourfold: each then errs with probability 1e-14."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples/dataset_bandit.py"), "--rounds=2000"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    regret = [float(each) for each in re.findall(r"regret (\d\.\d+) of uniform", done.stdout)]
    assert len(regret) == 2
    assert max(regret) < 0.5
    (truth,) = (float(each) for each in re.findall(r"over all users: (\S+);", done.stdout))
    found = re.findall(r"(\S+)  \((\S+) to (\S+) at 95%\)", done.stdout)
    assert len(found) == 3
    for value, low, high in ((float(a), float(b), float(c)) for a, b, c in found):
        assert abs(value - truth) < 4 * max(value - low, high - value)
