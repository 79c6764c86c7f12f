"""Private regression on tables against private rivals, each with its own promise.

    python benchmarks/ridge_rivals.py                       # plays the cells that are missing
    python benchmarks/ridge_rivals.py --again AdaSSP        # plays a method's cells again
    python benchmarks/ridge_rivals.py --sets fair --methods AdaSSP TukeyEM --epsilons 1
    python benchmarks/ridge_rivals.py --play none           # tables and pictures of what is stored
    python benchmarks/ridge_rivals.py --publish             # and writes them to docs/results.md

A cell is a set, a number of rows to learn from, a method, epsilon and a split; its row is appended
to results/ridge_rivals.jsonl as soon as it is played, so a run may be stopped at any time. Error:
root-mean-square on held-out rows over the spread of their targets, so 1 is what the mean reaches
without privacy. Predictions are cut at the bounds of the targets, which are public, for everybody.
Sets are in `ridge_sets.py`, methods and promises in `ridge_methods.py`.
"""

import common  # isort: skip - sets one BLAS thread
import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import ridge_tables
from ridge_methods import MEAN, METHODS, OURS
from ridge_sets import SETS, UNSEEN, Split, split_of

EPSILONS = (0.3, 1.0, 3.0)
# The first rows of each split, and the epsilons at which they are told.
FEW, FEW_EPSILONS = (400, 2_000), (0.1, 1.0)
# Seeds of the splits: nothing was chosen on them. Of large tables fewer splits differ by as little.
FIRST, SPLITS = 25, 5
LARGE, SPLITS_OF_LARGE = 50_000, 3
FILE = common.RESULTS / "ridge_rivals.jsonl"
KEY = ("set", "rows", "method", "epsilon", "split")


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def cells(rows: int, chosen: argparse.Namespace) -> Iterator[tuple[int, str, float]]:
    """Rows, method and epsilon of what is asked for: all rows, and the first few.

    Without privacy there is no epsilon. At the smallest epsilon few rows are held against a mean.
    """
    for method in chosen.methods:
        for epsilon in chosen.epsilons:
            if epsilon == 1.0 or METHODS[method].standing != "none":
                yield rows, method, epsilon
        for fewer in (each for each in FEW if each < rows and chosen.few):
            for epsilon in FEW_EPSILONS:
                if epsilon == 1.0 or method in (OURS, MEAN):
                    yield fewer, method, epsilon


def error_of(split: Split, method: str, epsilon: float, seed: int) -> float:
    rival = METHODS[method]
    split = split.for_lines() if rival.line else split
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guess = rival.run(split.X, split.y, split.test, epsilon, seed)
    missed = np.clip(guess, -1, 1) - split.truth
    return float(np.sqrt(np.mean(missed**2)) / split.truth.std())


def play(chosen: argparse.Namespace) -> None:
    """Play what is missing, row by row, until the seconds are over."""
    started, done = perf_counter(), {key(row) for row in stored()}
    for name in chosen.sets:
        for seed in range(FIRST, FIRST + SPLITS):
            split = split_of(name, seed)
            if len(split.y) > LARGE and seed >= FIRST + SPLITS_OF_LARGE:
                break
            for rows, method, epsilon in cells(len(split.y), chosen):
                if (name, rows, method, epsilon, seed) in done:
                    continue
                if perf_counter() - started > chosen.seconds:
                    print("out of time: run again for the rest")
                    return
                begun = perf_counter()
                error = error_of(split.first(rows), method, epsilon, seed)
                row = {
                    "set": name, "rows": rows, "method": method, "epsilon": epsilon, "split": seed,
                    "columns": split.X.shape[1], "error": error,
                    "seconds": round(perf_counter() - begun, 2),
                }  # fmt: skip
                with FILE.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def forget(chosen: argparse.Namespace) -> None:
    """Drop the stored cells that are to be played again."""
    kept = [
        row for row in stored()
        if not (row["method"] in chosen.again and row["set"] in chosen.sets
                and row["epsilon"] in chosen.epsilons)
    ]  # fmt: skip
    FILE.write_text("".join(json.dumps(row) + "\n" for row in kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=list(SETS),
        default=[name for name in SETS if name not in UNSEEN],
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--few", action=argparse.BooleanOptionalAction, default=True,
                        help="play the first rows of each split, too")  # fmt: skip
    parser.add_argument("--again", nargs="+", choices=list(METHODS), default=[], metavar="METHOD",
                        help="forget cells of a method, then play it alone")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=np.inf, help="start no cell after this")
    parser.add_argument("--play", choices=("missing", "none"), default="missing")
    parser.add_argument("--publish", action="store_true", help="write them to docs/results.md")
    chosen = parser.parse_args()
    if chosen.again:
        forget(chosen)
        chosen.methods = chosen.again
    if chosen.play == "missing":
        play(chosen)
    ridge_tables.show(stored(), publish=chosen.publish)


if __name__ == "__main__":
    sys.exit(main())
