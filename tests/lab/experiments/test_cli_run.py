"""``capri-lab run`` from the outside: messages, exit codes, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from capri_lab.cli import app
from small_studies import SMALL, cells_of
from waiting import eventually


def capri(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL.replace("[20, 60]", "20").replace("seeds = 2", "seeds = 3"))
    return file


def test_a_study_runs_and_says_where_its_results_are(study: Path, tmp_path: Path) -> None:
    done = capri("run", study, "--output", tmp_path / "out", "--workers", 0, "--parquet")
    assert done.exit_code == 0, done.output
    assert "12 cells to play" in done.stderr
    assert str(tmp_path / "out/small") in done.stderr
    assert "capri-joint" in done.stdout
    assert "promise" in done.stdout
    assert len(cells_of(tmp_path / "out/small")) == 12
    assert (tmp_path / "out/small/records.parquet").is_file()
    again = capri("run", study, "--output", tmp_path / "out", "--workers", 0)
    assert "0 cells to play on 1 workers, 12 are recorded already" in again.stderr


def test_fewer_seeds_are_the_first_ones(study: Path, tmp_path: Path) -> None:
    done = capri("run", study, "--output", tmp_path, "--workers", 0, "--seeds", 1)
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "small/records.jsonl").read_text().splitlines()
    assert {json.loads(line)["seed"] for line in lines} == {0}
    assert len(lines) == 4


def test_the_list_has_all_shipped_studies() -> None:
    done = capri("run", "--list")
    assert done.exit_code == 0
    for name in ("horizon", "epsilon", "ablation", "rivals", "context-law", "kernel"):
        assert f"\n{name} " in f"\n{done.stdout}"


def test_a_dry_run_plays_nothing(study: Path, tmp_path: Path) -> None:
    done = capri("run", study, "--output", tmp_path / "out", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "small: 12 cells\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("uniform", "unifrom", "line 20: unknown name 'unifrom' (did you mean 'uniform'?)"),
        ("branin", "brannin", "line 7: unknown name 'brannin'"),
        ("first_epoch", "first_epoc", "line 14: unknown option first_epoc"),
        ("[1.0, inf]", "-1", "line 3: epsilons must be positive"),
    ],
)
def test_bad_studies_are_refused_before_anything_is_written(
    study: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    study.write_text(study.read_text().replace(old, new))
    done = capri("run", study, "--output", tmp_path / "out")
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say which study to run"),
        (("nothing",), "no study nothing: neither a file nor one of ablation"),
        (("STUDY", "--cluster", "here"), "cluster must be 'local' or the address"),
        (("STUDY", "--cluster", "tcp://127.0.0.1:9", "--workers", "2"), "has its own"),
    ],
)
def test_bad_arguments_are_refused(
    study: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    given = [study if each == "STUDY" else each for each in arguments]
    done = capri("run", *given, "--output", tmp_path / "out")
    assert done.exit_code == 2
    assert words in done.stderr


def test_results_of_another_version_are_refused(study: Path, tmp_path: Path) -> None:
    capri("run", study, "--output", tmp_path, "--workers", 0, "--seeds", 1)
    about = tmp_path / "small/about.json"
    about.write_text(about.read_text().replace('"capri": "', '"capri": "9.'))
    done = capri("run", study, "--output", tmp_path, "--workers", 0)
    assert done.exit_code == 2
    assert "written by capri 9." in done.stderr
    assert len(cells_of(tmp_path / "small")) == 4


def test_an_output_that_is_no_folder_is_refused(study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = capri("run", study, "--output", tmp_path / "file", "--workers", 0)
    assert done.exit_code == 2
    assert "cannot write to" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_failed_cells_are_shown_and_have_an_exit_code(study: Path, tmp_path: Path) -> None:
    failing = '\n[[policies]]\nname = "capri"\nlabel = "fails"\nlaw_error = 0.4\n'
    study.write_text(study.read_text().replace("contexts = 6", "contexts = 1") + failing)
    for _ in range(2):  # the second time nothing is played, and the failures are still there
        done = capri("run", study, "--output", tmp_path, "--workers", 0)
        assert done.exit_code == 1
        assert "6 cells failed" in done.stderr
        assert done.stderr.count("failed: fails on branin, 6 cells: ") == 1
    assert len(cells_of(tmp_path / "small")) == 18


# A quick cell and one that takes seconds for every seed.
LONG = """\
name = "long"
rounds = 30_000
seeds = 20
[[environments]]
name = "branin"
[[policies]]
name = "uniform"
[[policies]]
name = "gp-ucb"
"""


def interrupted(tmp_path: Path, presses: int, where: list[str]) -> tuple[int, str, list[str]]:
    """Exit code, stderr and played policies; Ctrl-C comes once the first cell is recorded."""
    study = tmp_path / "long.toml"
    study.write_text(LONG.replace("30_000", "3_000" if presses == 1 else "100_000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "capri_lab", "run", study, "--output", tmp_path, *where],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    records, errors = tmp_path / "long/records.jsonl", ""
    with process:
        assert process.stderr is not None
        try:
            eventually(lambda: records.exists() and records.stat().st_size)
            for press in range(presses):
                while press and "Ctrl-C again" not in errors:  # it has heard the first one
                    errors += process.stderr.readline()
                os.killpg(process.pid, signal.SIGINT)  # all processes hear it, as from a terminal
            errors += process.stderr.read()
        finally:
            process.kill()
    played = [json.loads(line)["policy"] for line in records.read_text().splitlines()]
    return process.returncode, errors, played


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize(
    ("presses", "where"),
    [
        (1, ["--workers", "1"]),
        (2, ["--workers", "1"]),
        pytest.param(1, ["--cluster", "local"], marks=pytest.mark.slow),
        pytest.param(2, ["--cluster", "local"], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, presses: int, where: list[str]) -> None:
    code, errors, played = interrupted(tmp_path, presses, where)
    assert code == 130, errors
    assert "Ctrl-C again to stop at once" in errors
    assert "run the same command again to go on" in errors
    assert "Traceback" not in errors
    assert "uniform" in played
    # After one press the long cell under way is finished; after two it is not.
    assert ("gp-ucb" in played) == (presses == 1)
