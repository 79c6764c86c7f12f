"""Score a client in any language: ``python clients/vectors/conformance.py COMMAND [ARGUMENT ...]``.

The command is started once and asked over its standard input, a line of JSON each:

    {"bundles": {name: base64, ...}}     once, first, without an answer
    {"operation": ..., ...}              a case of the vectors, without its answer

To every case it answers with a line of JSON on its standard output: the answer, or
``{"unsupported": true}``. docs/reference/wire.md says what the operations are. Python's standard
library is all that this needs; the exit code is 0 where no answer is wrong.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
GROUPS = ("directions", "numbers", "open", "judge", "device")


def flat(value: Any) -> list[Any]:
    """The numbers of nested lists."""
    return [each for inner in value for each in flat(inner)] if isinstance(value, list) else [value]


def agree(found: Any, wanted: Any, agreement: str) -> bool:
    """Whether an answer is right: exactly, by so much of the largest number, or within a unit."""
    if agreement == "exact":
        return bool(found == wanted)
    one, two = flat(found), flat(wanted)
    if len(one) != len(two) or not all(isinstance(each, int | float) for each in one):
        return False
    allowed = 1.0 if agreement == "1 unit" else 1e-9 * max(1e-300, *map(abs, two))
    return all(abs(x - y) <= allowed for x, y in zip(one, two, strict=True))


def main(command: list[str]) -> int:
    """Ask all cases; the number of wrong answers."""
    bundles = json.loads((FOLDER / "bundles.json").read_text())["bundles"]
    told: Counter[tuple[str, str]] = Counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        print(json.dumps({"bundles": bundles}), file=client.stdin, flush=True)
        for name in GROUPS:
            group = json.loads((FOLDER / f"{name}.json").read_text())
            for number, case in enumerate(group["cases"]):
                wanted, operation = case.pop("answer"), case["operation"]
                print(json.dumps(case), file=client.stdin, flush=True)
                line = client.stdout.readline()
                if not line:
                    sys.exit(f"the client ended at case {number} of {name}.json")
                found = json.loads(line)
                if isinstance(found, dict) and found.get("unsupported"):
                    told[operation, "unsupported"] += 1
                    continue
                right = agree(found, wanted, group["operations"][operation]["agreement"])
                told[operation, "right" if right else "wrong"] += 1
                if not right:
                    print(f"{name}.json, case {number}, {operation}: {line.strip()[:100]}")
        client.stdin.close()
    for operation in sorted({each for each, _ in told}):
        kinds = ("right", "wrong", "unsupported")
        counts = ", ".join(f"{told[operation, kind]} {kind}" for kind in kinds)
        print(f"{operation}: {counts}")
    total = {kind: sum(n for (_, each), n in told.items() if each == kind) for _, kind in told}
    print(f"score: {total.get('right', 0)} of {sum(told.values())}")
    return total.get("wrong", 0)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])) if sys.argv[1:] else __doc__)
