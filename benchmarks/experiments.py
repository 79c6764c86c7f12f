"""What running a study costs beside playing its cells: scheduling overhead and memory.

    python benchmarks/experiments.py [--cells 60] [--cluster]

Overhead: cells of about one second on one worker process, measured in the workers, against the
time from the first start of a cell to the last record on disk; and against the whole run, start of
the worker included. One worker, so that two cells never compete for a core. Memory: the largest
resident size of the run itself (not of its workers) for a hundred and some thousand quick cells.
Writes results/experiments.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import common

from capri_lab.experiments import Pool, Study, Watcher, read_results, run_study, study_from_text
from capri_lab.experiments.backends import Backend, Event, Finished

STUDY = """
name = "measured"
rounds = {rounds}
epsilons = 1.0
seeds = {seeds}
[[environments]]
name = "rkhs"
contexts = {contexts}
actions = {contexts}
[[policies]]
name = "{policy}"
"""


def study(policy: str, rounds: int, seeds: int, contexts: int) -> Study:
    return study_from_text(
        STUDY.format(policy=policy, rounds=rounds, seeds=seeds, contexts=contexts)
    )


class Timer(Watcher):
    first = last = 0.0

    def tell(self, event: Event) -> None:
        self.last = perf_counter()
        if isinstance(event, Finished) and not self.first:
            self.first = self.last
            self.seconds_of_first = event.record["measured"]["seconds"]


def overhead(cells: int, backend: Backend) -> dict[str, Any]:
    """Time beside the cells, per second of cells."""
    timer = Timer()
    with tempfile.TemporaryDirectory() as folder:
        started = perf_counter()
        run_study(study("gp-ucb", 4_000, cells, 30), folder, backend=backend, watcher=timer)
        whole = perf_counter() - started
        seconds = [
            record["measured"]["seconds"]
            for record in read_results(Path(folder) / "measured").records
        ]
    playing = sum(seconds)
    return {
        "cells": cells,
        "seconds_per_cell": playing / cells,
        "overhead_between_cells": (timer.last - timer.first) / (playing - timer.seconds_of_first)
        - 1,
        "overhead_of_the_run": whole / playing - 1,
    }


_MEMORY = """
import sys
sys.path.insert(0, {here!r})
from experiments import study
from capri_lab.experiments import Pool, run_study
from capri.simulation import PeakMemory
with PeakMemory() as memory:
    run_study(study("uniform", 100, {cells}, 5), {folder!r}, backend=Pool(2))
print(memory.peak_bytes)
"""


def memory(cells: int) -> int:
    """Peak of the process that runs the study."""
    with tempfile.TemporaryDirectory() as folder:
        code = _MEMORY.format(here=str(common.ROOT), cells=cells, folder=folder)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--cluster", action="store_true", help="measure Dask as well")
    arguments = parser.parse_args()
    results: dict[str, Any] = dict(common.about())
    results["processes"] = overhead(arguments.cells, Pool(1))
    if arguments.cluster:
        from capri_lab.experiments.on_dask import OnDask

        results["dask"] = overhead(arguments.cells, OnDask("local", workers=1))
    results["peak_bytes"] = {str(cells): memory(cells) for cells in (100, 1_000, 4_000)}
    print(json.dumps(results, indent=2))
    common.save_json("experiments", results)


if __name__ == "__main__":
    main()
