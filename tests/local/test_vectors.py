"""The test vectors of the wire format, answered by this implementation."""

import json
import random
import subprocess
from pathlib import Path
from re import findall
from shutil import which

import pytest
import vectors

import capri
from capri.errors import BundleError
from capri.local import wire
from capri.privacy.sphere import DIGEST, positive_cells


@pytest.mark.parametrize("name", vectors.GROUPS)
def test_every_vector(name: str) -> None:
    wrong = [
        case
        for case in vectors.group(name)
        if not vectors.agree(
            case["operation"], vectors.OPERATIONS[case["operation"]](case), case["answer"]
        )
    ]
    assert not wrong, (len(wrong), json.dumps(wrong[0])[:500])


def test_every_operation_and_every_reason_occurs() -> None:
    """Positive and negative: nothing is listed that is not tried."""
    cases = [case for name in vectors.GROUPS for case in vectors.group(name)]
    assert {case["operation"] for case in cases} == set(vectors.OPERATIONS)
    asked = ("open", "renew")
    answers = {case["answer"] for case in cases if case["operation"] in asked}
    assert answers == {
        "ok", "not-a-bundle", "version", "damaged", "other-bundle", "malformed", "too-much-work",
        "too-costly", "too-large", "older",
    }  # fmt: skip
    statuses = {case["answer"] for case in cases if case["operation"] == "judge"}
    assert statuses == {"accepted", "stale", "unknown", "replayed", "malformed"}


@pytest.mark.parametrize("name", vectors.GROUPS)
def test_files_are_what_the_script_writes(name: str) -> None:
    """Their inputs: answers are compared above, by the rule of each operation."""
    cases, seed = vectors.GROUPS[name]
    stored = [{**case} for case in vectors.group(name)]
    for case in stored:
        del case["answer"]
    assert json.loads(json.dumps(list(cases(random.Random(seed))))) == stored


@pytest.mark.skipif(which("cc") is None, reason="no C compiler")
def test_directions_in_c(tmp_path: Path) -> None:
    """Written from the specification, with all optimisations and the processor's instructions."""
    program, table = tmp_path / "direction", tmp_path / "table"
    source = Path(__file__).with_name("direction.c")
    build = ["cc", "-O3", "-march=native", "-o", str(program), str(source), "-lm"]
    subprocess.run(build, check=True)
    table.write_bytes(positive_cells().astype("<u2").tobytes())
    cases = [case for case in vectors.group("directions") if case["operation"] == "direction"]
    lines = "".join(f"{case['token']} {case['row']} {case['dimension']}\n" for case in cases)
    run = [str(program), str(table)]
    told = subprocess.run(run, input=lines, capture_output=True, text=True, check=True).stdout
    found = [[int(number) for number in line.split()] for line in told.splitlines()]
    assert found == [case["answer"] for case in cases]


def test_specification_names_what_there_is() -> None:
    """Digest and ends of the table, operations, classes of reasons, statuses, versions."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()
    cells = positive_cells().tolist()
    first, last = (", ".join(map(str, some)) for some in (cells[:5], cells[-3:]))
    assert f"begins {first} and ends {last}" in page
    words = [
        DIGEST,
        "wire format, version 4",
        *(f"| `{name}` |" for name in vectors.OPERATIONS),
    ]
    words += [
        f"| `{reason}` |" for reason in findall("``([a-z-]+)``", BundleError.__doc__ or "")[1:]
    ]
    words += [f"`{status}`" for status in capri.ReportStatus if status]
    assert [word for word in words if word not in page] == []
    assert wire.VERSION == 4
