"""The examples run as a reader would run them, in processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waiting import PATIENCE

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_local_demo_learns_from_reports_alone() -> None:
    """658 users close five epochs, each report has 32 bytes, and devices load NumPy only."""
    outcome = example("local_demo.py", "--users", "658", "--epsilon", "8", "--processes", "2")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stderr == ""
    rows = re.findall(
        r"^ +(\d+) +([\d,]+) +([\d,]+) +(\S+) +(\S+) +(\S+)", outcome.stdout, flags=re.MULTILINE
    )
    assert [int(row[0]) for row in rows] == [1, 2, 3, 4, 5]
    reports, size = (int(rows[-1][column].replace(",", "")) for column in (1, 2))
    assert (reports, size) == (658, 32 * 658)
    assert "of SciPy, OpenDP, Matplotlib: nothing." in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("Done in ")


def test_local_demo_refuses_what_it_cannot_do() -> None:
    outcome = example("local_demo.py", "--epsilon", "31")
    assert outcome.returncode == 2
    assert "epsilon must lie between 0.001 and 30" in outcome.stderr


@contextmanager
def heard_interrupts() -> Iterator[None]:
    """Whoever is started here hears Ctrl-C, as from a terminal.

    A shell starts its background jobs with SIGINT ignored, and children inherit that; what is
    caught is the default in a child.
    """
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def test_local_demo_ends_quietly_on_ctrl_c() -> None:
    """A terminal interrupts the whole group: nobody complains, and the shell learns why."""
    with heard_interrupts():
        demo = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "local_demo.py"), "--processes", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    with demo:
        assert demo.stdout is not None
        assert any(line.startswith("    1 ") for line in demo.stdout)  # the first epoch has closed
        os.killpg(demo.pid, signal.SIGINT)
        printed, complaints = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert complaints == ""
    assert "FAILED" not in printed
