"""A small study, really run: two problems, two horizons, two budgets, and a cell that fails."""

from pathlib import Path

import pytest

from capri_lab.experiments import Here, run_study, study_from_text
from capri_lab.experiments.play import failure
from capri_lab.experiments.records import Records

HOSTILE = "<img src=x onerror=alert(1)> & 'co'"

STUDY = f"""\
# </script><script>alert(2)</script>
name = "looks"
title = "A study to look at </title>"
description = "Small, but with everything: <b>promises</b>, budgets, horizons."
rounds = [60, 120]
epsilons = [2.0, 8.0, inf]
seeds = 3

[[environments]]
name = "branin"
contexts = 8
actions = 6

[[environments]]
name = "hartmann4"
label = "{HOSTILE}"
contexts = 6
actions = 5

[[policies]]
name = "capri"
[policies.options]
first_epoch = 10

[[policies]]
name = "capri"
model = "local"
label = "local {HOSTILE}"
epsilons = [2.0, 8.0]

[[policies]]
name = "batched-linear"
epsilons = [2.0, 8.0]

[[policies]]
name = "adap-ucb"
epsilons = [2.0, 8.0]

[[policies]]
name = "linucb"

[[policies]]
name = "uniform"
"""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study's results."""
    output = tmp_path_factory.mktemp("results")
    study = study_from_text(STUDY)
    run_study(study, output, backend=Here())
    with Records(output / study.name, study) as records:
        lost = next(cell for cell in study.cells() if cell.policy == "linucb" and cell.seed == 2)
        records.append(failure(lost, f"DataError: {HOSTILE}"))
    return output / study.name
