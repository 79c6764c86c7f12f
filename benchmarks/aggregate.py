"""Adding up an epoch's reports from files: time, memory and disk, with one worker and two.

    python benchmarks/aggregate.py [--reports 1e6,1e7,1e8] [--workers 1,2] [--folder DIR]

Reports are synthetic and streamed to 20 files (32 bytes each); every file but the first ends with
500 reports that stand in other files already, and all of them must be found. Every measurement is
a process of its own. Time is that of the work, without starting Dask; memory is the highest of any
worker, and of the process that hands out the work; disk is what the scratch files take at most.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import capri
from capri.local import wire
from capri.local.on_dask import dask_cluster
from capri.local.summing import add_up, aggregate, epoch_of

FILES, PLANTED, STREAMED = 20, 500, 1 << 20


def bundle() -> bytes:
    """That of 50 contexts and 50 actions, as in the tables of docs/results.md."""
    rows = np.linspace(0, 1, 50)[:, None]
    return capri.LocalCapri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        actions=rows,
        contexts=capri.ContextPool(rows),
        budget=capri.Budget(epsilon=1.0),
        public_seed=0,
        first_epoch=10_000_000,
    ).bundle()


def make(folder: Path, count: int) -> None:
    """Reports that devices could have sent, a million at a time, and replays across files."""
    data = bundle()
    (folder / "bundle").write_bytes(data)
    (folder / "reports").mkdir()
    epoch = epoch_of(data)
    draw = np.random.default_rng(count)
    known = np.empty((0, wire.SIZE), dtype=np.uint8)
    for number in range(FILES):
        left = count * (number + 1) // FILES - count * number // FILES
        with (folder / "reports" / f"{number:02}").open("wb") as file:
            if number:
                replayed = draw.permutation(len(known))[:PLANTED]
                known[replayed].tofile(file)
                left -= len(replayed)
                known = np.delete(known, replayed, axis=0)
            while left:
                taken = min(left, STREAMED)
                rows = wire.pack(
                    epoch.digest,
                    draw.integers(0, 2**64, (taken, 2), dtype=np.uint64),
                    draw.integers(0, epoch.sphere.candidates, taken),
                )
                rows.tofile(file)
                left -= taken
            known = np.concatenate([known, rows[:PLANTED]])


def measure(folder: Path, workers: int, piece: int | None) -> dict[str, Any]:
    """One aggregation in this process and so many workers."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    data = (folder / "bundle").read_bytes()
    files = sorted((folder / "reports").iterdir())
    disk = 0
    with dask_cluster(workers) as run:
        list(run(partial(add_up, data, [], 1), range(4 * workers)))  # loads what they work with

        def watched(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            nonlocal disk
            yield from run(function, tasks)
            disk = max(disk, sum(each.stat().st_size for each in scratch.rglob("*.spill")))

        began = time.perf_counter()
        made = aggregate(data, files, scratch=scratch, run=watched, piece=piece)
        seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "processor": used.ru_utime + used.ru_stime,
        "worker": used.ru_maxrss * 1024,
        "driver": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "disk": disk,
        "sum": made.to_dict(),
    }


def compare(counts: list[int], workers: list[int], folder: Path, piece: int, *, keep: bool) -> None:
    """A row for each number of reports and workers."""
    print(f"{epoch_of(bundle()).plan.dimension} coordinates")
    print("| reports | workers | s | processor s | worker MB | driver MB | disk GB | replays |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for count in counts:
        here = folder / str(count)
        if not here.exists():
            here.mkdir(parents=True)
            make(here, count)
        found = []
        for number in workers:
            command = [sys.executable, __file__, "--one", str(here), str(number), str(piece)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(one := json.loads(done.stdout))
            told = one["sum"]
            print(
                f"| {count:.0e} | {number} | {one['seconds']:.1f} "
                f"| {one['processor']:.1f} | {one['worker'] / 1e6:.0f} "
                f"| {one['driver'] / 1e6:.0f} | {one['disk'] / 1e9:.3f} | {told['replayed']} |",
                flush=True,
            )
            assert told["replayed"] == (FILES - 1) * PLANTED
            assert told["accepted"] == count - told["replayed"]
            assert told == found[0]["sum"], "the bits depend on the workers"
        if len(found) > 1:
            print(f"{found[0]['seconds'] / found[-1]['seconds']:.2f} times as fast", flush=True)
        if not keep:
            shutil.rmtree(here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", default="1e6,1e7,1e8")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--make", action="store_true", help="only write the files")
    parser.add_argument("--piece", type=int, default=0, help="reports that a worker holds")
    parser.add_argument("--one", nargs=3)
    asked = parser.parse_args()
    if asked.one:
        folder, workers, piece = asked.one
        print(json.dumps(measure(Path(folder), int(workers), int(piece) or None)))
        return
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="capri-benchmark-"))
    counts = [int(float(each)) for each in asked.reports.split(",")]
    if asked.make:
        for count in counts:
            (folder / str(count)).mkdir(parents=True)
            make(folder / str(count), count)
    else:
        workers = [int(each) for each in asked.workers.split(",")]
        compare(counts, workers, folder, asked.piece, keep=asked.keep)


if __name__ == "__main__":
    main()
