"""Small studies and comparisons that the tests of this folder share."""

import json
from pathlib import Path
from typing import Any

from capri_lab.experiments import Study, read_results, study_from_text

SMALL = """\
name = "small"
rounds = [20, 60]
epsilons = [1.0, inf]
seeds = 2

[[environments]]
name = "branin"
contexts = 6
actions = 5

[[policies]]
name = "capri"
[policies.options]
first_epoch = 10

[[policies]]
name = "gp-ucb"

[[policies]]
name = "uniform"
"""


def small(**changes: str) -> Study:
    """The small study with lines replaced: ``small(seeds="3")``."""
    lines = SMALL.splitlines()
    for key, value in changes.items():
        place = next(n for n, line in enumerate(lines) if line.startswith(f"{key} ="))
        lines[place] = f"{key} = {value}"
    return study_from_text("\n".join(lines) + "\n")


def results_of(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder in the order of the study, without what was measured."""
    records = list(read_results(folder).records)
    for record in records:
        del record["measured"]
    return records


def cells_of(folder: Path) -> list[str]:
    """The cells in the order in which they were written."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line)["cell"] for line in lines]
