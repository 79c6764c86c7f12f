"""Memory of decisions whose rewards are still to come: one million at rank 300, in memory.

    python benchmarks/pending.py [--decisions 1000000] [--rank 300]

Every measurement is a process of its own, and the highest memory of the whole process counts: the
interpreter, the plan of the epoch and the decisions, all of them pending. Bytes a decision are what
the second half of the epoch adds. The second table changes how many actions every context brings
(`VaryingActions`): an open epoch keeps the pair that was played, not what else was on offer, so
bytes a decision must not follow. (Drawing from many actions takes scratch memory, once.)
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import capri
from capri.kernels import Matern
from capri.simulation import PeakMemory

GIGABYTE = 1e9
WIDTHS = (4, 16, 64)
BATCH = 1_000  # contexts at once: what they take themselves is small beside the epoch
# Bytes a decision of a wide and of a narrow epoch may differ by so many: pages, allocation.
SLACK = 16


def fixed(rank: int, decisions: int) -> tuple[capri.Capri, Any]:
    """A pool of contexts in two dimensions, rough enough for the rank."""
    rng = np.random.default_rng(0)
    pool = rng.random((400, 2))
    policy = capri.Capri(
        kernel=Matern(nu=0.5, lengthscale=0.1),
        actions=rng.random((20, 2)),
        contexts=capri.ContextPool(pool),
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        first_epoch=decisions,
        max_rank=rank,
        rank_tolerance=1e-6,
        reward_wait=decisions,
    )
    return policy, lambda count: pool[rng.integers(len(pool), size=count)]


def varying(width: int, decisions: int) -> tuple[capri.Capri, Any]:
    """Contexts of two numbers that bring so many actions of two numbers each."""
    rng = np.random.default_rng(0)
    columns = 2 + 2 * width

    def draw(generator: np.random.Generator, count: int) -> np.ndarray:
        return generator.random((count, columns))

    policy = capri.Capri(
        kernel=Matern(nu=1.5, lengthscale=0.5),
        actions=capri.VaryingActions(count=width, dimension=2),
        contexts=capri.ContextSampler(draw, columns),
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        first_epoch=decisions,
        max_rank=50,
        reward_wait=decisions,
    )
    return policy, lambda count: draw(rng, count)


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(kind: str, size: int, decisions: int) -> dict[str, Any]:
    """The highest memory of this process, and by how much the second half of the epoch adds."""
    marks = []
    with PeakMemory() as memory:
        policy, draw = (fixed if kind == "fixed" else varying)(size, decisions)
        plan = policy.plan()
        for _ in range(2):
            for _ in range(decisions // BATCH // 2):
                policy.act_many(draw(BATCH))
            marks.append(resident())
    each = (marks[1] - marks[0]) / (decisions // 2)
    return {"rank": plan.features.rank, "bytes": memory.peak_bytes, "each": each}


def apart(kind: str, size: int, decisions: int) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--only", kind, str(size), str(decisions)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {**json.loads(done.stdout), "decisions": decisions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--rank", type=int, default=300)
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, *numbers = options.only
        print(json.dumps(measure(kind, *map(int, numbers))))
        return
    found = apart("fixed", options.rank, options.decisions)
    print("| pending decisions | rank | whole process, GB | bytes a decision | bar, GB |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| {found['decisions']:,} | {found['rank']} | {found['bytes'] / GIGABYTE:.2f} "
        f"| {found['each']:.0f} | < 1 |"
    )
    wide = {width: apart("varying", width, options.decisions) for width in WIDTHS}
    print(
        "\n| actions a context brings | pending decisions | whole process, GB | bytes a decision |"
    )
    print("| --- | --- | --- | --- |")
    for width, row in wide.items():
        whole = row["bytes"] / GIGABYTE
        print(f"| {width} | {row['decisions']:,} | {whole:.2f} | {row['each']:.0f} |")
    failed = []
    if found["bytes"] >= GIGABYTE or found["rank"] < options.rank:
        failed.append(f"{found['decisions']:,} pending decisions at rank {options.rank}")
    growth = wide[WIDTHS[-1]]["each"] - wide[WIDTHS[0]]["each"]
    if growth > SLACK:
        failed.append(f"a wide context takes {growth:.0f} bytes more than a narrow one")
    if failed:
        raise SystemExit("over the bar: " + "; ".join(failed))


if __name__ == "__main__":
    main()
