"""The test vectors of the wire format, answered by this implementation."""

import json

import pytest
import vectors


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
    answers = {case["answer"] for case in cases if case["operation"] == "open"}
    assert answers == {
        "ok", "not-a-bundle", "version", "damaged", "other-bundle", "malformed", "too-much-work",
        "randomizer", "too-costly",
    }  # fmt: skip
    statuses = {case["answer"] for case in cases if case["operation"] == "judge"}
    assert statuses == {"accepted", "stale", "unknown", "replayed", "malformed"}


@pytest.mark.parametrize("name", vectors.GROUPS)
def test_files_are_what_the_script_writes(name: str) -> None:
    """Their inputs: answers are compared above, by the rule of each operation."""
    import random

    cases, seed = vectors.GROUPS[name]
    stored = [{**case} for case in vectors.group(name)]
    for case in stored:
        del case["answer"]
    assert json.loads(json.dumps(list(cases(random.Random(seed))))) == stored
