"""The record on disk: whole lines, repaired after a crash, never mixed with other versions."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capri.errors import StorageError
from capri_lab.experiments import read_results
from capri_lab.experiments.records import Records
from small_studies import SMALL, small


def record(cell: str, status: str = "done", **more: Any) -> dict[str, Any]:
    return {"cell": cell, "status": status, **more}


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    with Records(tmp_path, small()) as records:
        assert records.status("a") is None
        records.append(record("a"))
        records.append(record("b", "failed"))
        assert (records.status("a"), records.status("b")) == ("done", "failed")
    with Records(tmp_path, small()) as records:
        assert (records.status("a"), records.status("b")) == ("done", "failed")
        records.append(record("b"))
        assert records.status("b") == "done"
    assert (tmp_path / "study.toml").read_text() == SMALL


@pytest.mark.parametrize("rest", [b"{", b'{"cell":"b","stat', b'{"cell":"b","status":"done"}'])
@pytest.mark.parametrize("long", [False, True])
def test_a_line_cut_short_is_removed(tmp_path: Path, rest: bytes, long: bool) -> None:
    with Records(tmp_path, small()) as records:
        records.append(record("a"))
    file = tmp_path / "records.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + rest + b" " * (200_000 if long else 0))
    assert read_results(tmp_path).missing == 16  # reading does not mind, and repairs nothing
    assert file.read_bytes() != whole
    with Records(tmp_path, small()) as records:
        assert (records.status("a"), records.status("b")) == ("done", None)
    assert file.read_bytes() == whole


def test_a_record_that_is_only_a_rest_becomes_empty(tmp_path: Path) -> None:
    with Records(tmp_path, small()):
        pass
    (tmp_path / "records.jsonl").write_bytes(b'{"cell"')
    with Records(tmp_path, small()) as records:
        assert records.status("a") is None
    assert (tmp_path / "records.jsonl").read_bytes() == b""


def test_damage_in_the_middle_is_named_and_kept(tmp_path: Path) -> None:
    with Records(tmp_path, small()) as records:
        records.append(record("a"))
    file = tmp_path / "records.jsonl"
    damaged = file.read_bytes() + b"rubbish\n" + file.read_bytes()
    file.write_bytes(damaged)
    with pytest.raises(StorageError, match="line 2 is damaged: delete that line"):
        Records(tmp_path, small())
    assert file.read_bytes() == damaged


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        Records(tmp_path, small()),
        pytest.raises(StorageError, match="another run is writing"),
    ):
        Records(tmp_path, small())
    with Records(tmp_path, small()) as records:
        records.append(record("a"))


@pytest.mark.parametrize(
    "about", ['{"format": 2, "capri": "9.9.9"}', '{"format": 1, "capri": "0.1.0"}', "[]", "?", None]
)
def test_results_of_another_version_are_left_alone(tmp_path: Path, about: str | None) -> None:
    with Records(tmp_path, small()) as records:
        records.append(record("a"))
    if about is None:
        (tmp_path / "about.json").unlink()
    else:
        (tmp_path / "about.json").write_text(about)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(StorageError, match="Nothing was changed there: choose another folder"):
        Records(tmp_path, small(seeds="5"))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_version_of_the_same_format_can_be_read(tmp_path: Path) -> None:
    with Records(tmp_path, small()):
        pass
    (tmp_path / "about.json").write_text('{"format": 2, "capri": "9.9.9"}')
    assert read_results(tmp_path).missing == 16
    (tmp_path / "about.json").write_text('{"format": 1, "capri": "9.9.9"}')
    with pytest.raises(StorageError, match=r"written by capri 9.9.9 in format 1"):
        read_results(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no results"):
        read_results(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_so(tmp_path: Path) -> None:
    with Records(tmp_path, small()) as records:
        records.append(record("a"))
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, records._file)  # from here on the kernel says that there is no room
        os.close(full)
        with pytest.raises(StorageError, match=r"No space left on device.*make room"):
            records.append(record("b"))
        assert (records.status("a"), records.status("b")) == ("done", None)


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from small_studies import small
from capri.errors import StorageError
from capri_lab.experiments.records import Records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Records(Path(sys.argv[1]), small()) as records:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for cell in range(100):
        try:
            records.append({"cell": str(cell), "status": "done", "text": "x" * 120})
        except StorageError as problem:
            print(cell, problem)
            break
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    """The kernel writes what fits and refuses the rest, as on a full disk."""
    helpers = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(helpers)},
    )  # fmt: skip
    assert done.stdout.startswith("6 cannot write to"), done.stdout + done.stderr
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["cell"] for line in lines] == ["0", "1", "2", "3", "4", "5"]
    assert lines[-1].endswith(b"\n")
