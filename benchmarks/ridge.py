"""Accuracy of private regression against epsilon, and what a large fit costs.

    python benchmarks/ridge.py            # table and results/ridge.json: some ten minutes
    python benchmarks/ridge.py --fresh    # the price of privacy on functions not designed on
    python benchmarks/ridge.py --speed    # time and memory of a million rows

Errors are root-mean-square against the true function where it is known (diabetes: against held-out
targets), divided by the standard deviation of the truth: 1 is what a constant reaches. Intervals
are 95 % for the mean over fits that differ in noise and, but for diabetes, in data.
"""

import common  # isort: skip - sets one BLAS thread
import argparse
import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import calibration
import numpy as np
from calibration_worlds import WORLDS
from common import DELTA
from ridge_features import objective
from ridge_linear import diffprivlib
from scipy.stats import t as student
from sklearn.datasets import load_diabetes
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

import capri

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
REPEATS = 10
# Relative errors above this are not drawn.
CUT = 2.0


@dataclass(frozen=True)
class Task:
    """Training rows, test rows with the truth, and what is public about them."""

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    X_bounds: tuple[Any, Any]
    y_bounds: tuple[float, float]
    public: np.ndarray | None

    def scaled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows in [0, 1], targets in [-1, 1] and test rows by what is public."""
        low, high = (np.broadcast_to(b, self.X.shape[1]).astype(float) for b in self.X_bounds)
        middle, half = np.mean(self.y_bounds), np.ptp(self.y_bounds) / 2
        y = np.clip((self.y - middle) / half, -1, 1)
        return (self.X - low) / (high - low), y, (self.test - low) / (high - low)

    def back(self, predicted: np.ndarray) -> np.ndarray:
        return np.asarray(np.mean(self.y_bounds) + np.ptp(self.y_bounds) / 2 * predicted)


def diabetes(seed: int) -> Task:
    """442 patients, ten features; bounds as one would guess from the scaling of the features."""
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:342], order[342:]
    return Task(X[train], y[train], X[test], y[test], (-0.2, 0.2), (0.0, 400.0), None)


def california(seed: int) -> Task:
    """Like the California houses: 20,000 rows, eight skewed features, prices clipped at the top.

    Another state's rows (2,000, drawn from the same law) are public.
    """
    generator = np.random.default_rng(seed)

    def draw(count: int) -> np.ndarray:
        income = np.clip(generator.lognormal(1.2, 0.45, count), 0.5, 12)
        age = generator.uniform(1, 52, count)
        rooms = np.clip(generator.lognormal(1.6, 0.3, count), 1, 15)
        bedrooms = np.clip(rooms / 5 * generator.lognormal(0, 0.1, count), 0.3, 4)
        people = np.clip(generator.lognormal(1.05, 0.3, count), 1, 10)
        population = np.clip(generator.lognormal(7, 0.7, count), 10, 10_000) / 1000
        coast = generator.beta(2, 3, count)
        latitude = generator.beta(2, 2, count)
        return np.column_stack([income, age, rooms, bedrooms, people, population, coast, latitude])

    def price(X: np.ndarray) -> np.ndarray:
        income, age, rooms, _, people, _, coast, latitude = X.T
        value = 0.45 * income + 1.6 * np.exp(-3 * coast) * (0.5 + np.sin(3 * latitude))
        return np.clip(value + 0.01 * age + 0.08 * rooms / people - 0.4, 0.15, 5.0)

    X, test = draw(20_000), draw(4_000)
    y = price(X) + 0.4 * generator.standard_normal(len(X))
    low = np.array([0.5, 1, 1, 0.3, 1, 0.01, 0, 0])
    high = np.array([12, 52, 15, 4, 10, 10, 1, 1])
    return Task(X, y, test, price(test), (low, high), (0.0, 5.0), draw(2_000))


def plane(seed: int) -> Task:
    """A function of two variables with hills and valleys, 20,000 rows."""
    generator = np.random.default_rng(seed)

    def f(X: np.ndarray) -> np.ndarray:
        return np.asarray(0.7 * np.sin(5 * X[:, 0]) * np.cos(4 * X[:, 1]))

    X, test = generator.random((20_000, 2)), generator.random((4_000, 2))
    y = f(X) + 0.2 * generator.standard_normal(len(X))
    return Task(X, y, test, f(test), (0.0, 1.0), (-1.5, 1.5), None)


def smooth(noise: float) -> Callable[[int], Task]:
    """A smooth function of three variables, 100,000 rows."""

    def make(seed: int) -> Task:
        generator = np.random.default_rng(seed)

        def f(X: np.ndarray) -> np.ndarray:
            wave = 0.6 * np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
            return np.asarray(wave + 0.5 * X[:, 2] ** 2 - 0.3 * X[:, 0] * X[:, 2])

        X, test = generator.random((100_000, 3)), generator.random((4_000, 3))
        y = f(X) + noise * generator.standard_normal(len(X))
        return Task(X, y, test, f(test), (0.0, 1.0), (-2.0, 2.0), None)

    return make


TASKS: dict[str, tuple[str, Callable[[int], Task]]] = {
    "diabetes": ("diabetes, 342 rows, d = 10", diabetes),
    "california": ("California-like, 20,000 rows, d = 8", california),
    "plane": ("2-D function, 20,000 rows", plane),
    "smooth 0.3": ("smooth 3-D function, 100,000 rows, noise 0.3", smooth(0.3)),
    "smooth 0.1": ("smooth 3-D function, 100,000 rows, noise 0.1", smooth(0.1)),
}


# -- methods --------------------------------------------------------------------------------------


def ours(task: Task, epsilon: float, seed: int, *, public: bool = False) -> np.ndarray:
    ridge = capri.PrivateKernelRidge(
        epsilon=epsilon,
        delta=DELTA,
        X_bounds=task.X_bounds,
        y_bounds=task.y_bounds,
        public_X=task.public if public else None,
        random_state=seed,
    )
    return ridge.fit(task.X, task.y).predict(task.test)


def ours_free(task: Task, _: float, seed: int) -> np.ndarray:
    return ours(task, float("inf"), seed)


def ours_public(task: Task, epsilon: float, seed: int) -> np.ndarray:
    return ours(task, epsilon, seed, public=True)


def linear(task: Task, epsilon: float, seed: int) -> np.ndarray:
    """diffprivlib's LinearRegression, told the same bounds."""
    return task.back(diffprivlib(*task.scaled(), epsilon, seed))


def random_features(task: Task, epsilon: float, seed: int) -> np.ndarray:
    """Objective perturbation on random Fourier features, in `ridge_features.py`."""
    return task.back(objective(*task.scaled(), epsilon, seed))


def no_privacy(task: Task, _: float, seed: int) -> np.ndarray:
    """Kernel ridge without privacy (Nystroem, 300 components, above 5,000 rows).

    Of four ridges the one that is best on the truth: better than anybody could choose it.
    """
    gamma = 2 / task.X.shape[1]  # the lengthscale sqrt(d) / 2 of the private fit
    scaled, _, test = task.scaled()
    middle = np.mean(task.y_bounds)
    predictions = []
    for alpha in 10.0 ** np.arange(-3, 1):
        if len(task.X) <= 5_000:
            model: Any = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha)
        else:
            basis = Nystroem(gamma=gamma, n_components=300, random_state=seed)
            model = make_pipeline(basis, Ridge(alpha=alpha))
        predictions.append(model.fit(scaled, task.y - middle).predict(test) + middle)
    return min(predictions, key=lambda found: float(np.mean((found - task.truth) ** 2)))


METHODS: dict[str, Callable[[Task, Any, int], np.ndarray]] = {
    "PrivateKernelRidge": ours,
    "PrivateKernelRidge, public rows": ours_public,
    "diffprivlib LinearRegression": linear,
    "objective-perturbed random features": random_features,
    "PrivateKernelRidge at epsilon infinity": ours_free,
    "kernel ridge, no privacy, best ridge": no_privacy,
}


def one(job: tuple[str, str, float | None, int]) -> float:
    """Relative error of one fit."""
    task_name, method, epsilon, seed = job
    task = TASKS[task_name][1](seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = METHODS[method](task, epsilon, seed)
    return float(np.sqrt(np.mean((found - task.truth) ** 2)) / task.truth.std())


def interval(errors: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    spread = float(np.std(errors, ddof=1)) / np.sqrt(len(errors))
    return float(np.mean(errors)), spread * float(student.ppf(0.975, len(errors) - 1))


FREE = ("PrivateKernelRidge at epsilon infinity", "kernel ridge, no privacy, best ridge")


def accuracy(tasks: list[str], methods: list[str]) -> list[dict[str, Any]]:
    plan = []
    for task in tasks:
        epsilons = (1.0,) if task.startswith("smooth") else EPSILONS
        for method in methods:
            if method.endswith("public rows") and task != "california":
                continue
            for epsilon in (None,) if method in FREE else epsilons:
                plan.append((task, method, epsilon))
    jobs = [(*entry, seed) for entry in plan for seed in range(REPEATS)]
    with ProcessPoolExecutor(2) as pool:
        errors = list(pool.map(one, jobs, chunksize=REPEATS))
    rows = []
    for number, (task, method, epsilon) in enumerate(plan):
        mean, half = interval(errors[number * REPEATS : (number + 1) * REPEATS])
        rows.append(
            {
                "task": task,
                "method": method,
                "epsilon": epsilon,
                "error": mean,
                "interval": half,
                "errors": errors[number * REPEATS : (number + 1) * REPEATS],
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for task, (label, _) in TASKS.items():
        epsilons = (1.0,) if task.startswith("smooth") else EPSILONS
        lines += [f"| {label} | " + " | ".join(f"epsilon {e:g}" for e in epsilons) + " |"]
        lines += ["| --- |" + " --- |" * len(epsilons)]
        for method in METHODS:
            found = [r for r in rows if (r["task"], r["method"]) == (task, method)]
            if not found:
                continue
            cells = [f"{r['error']:.3g} ± {r['interval']:.1g}" for r in found]
            cells = cells * len(epsilons) if len(found) == 1 else cells
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def fresh() -> dict[str, list[float]]:
    """Error at epsilon 1 over error without privacy on functions that no choice was made on.

    The smooth functions of three variables of `calibration.py`, 100,000 rows each, with noise of
    0.3 and of 0.1 in the targets.
    """
    ratios: dict[str, list[float]] = {}
    for kind in ("smooth", "little noise"):
        found = ratios[kind] = []
        for seed in range(calibration.FIRST, calibration.FIRST + calibration.FUNCTIONS):
            world = WORLDS[kind](np.random.default_rng(seed))
            errors = []
            for epsilon in (1.0, float("inf")):
                ridge = capri.PrivateKernelRidge(
                    epsilon=epsilon, random_state=seed, **world.settings
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    guess = ridge.fit(world.X, world.y).predict(world.inside)
                errors.append(np.sqrt(np.mean((guess - world.truth(world.inside)) ** 2)))
            found.append(float(errors[0] / errors[1]))
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        print(kind, np.round(found, 2), f"{np.mean(found):.3f} ± {error:.3f}", flush=True)
    return ratios


# -- speed ----------------------------------------------------------------------------------------


class Rows:
    """Rows made up chunk by chunk, so that memory holds one chunk."""

    def __init__(self, count: int, columns: int) -> None:
        self.count, self.columns = count, columns

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, self.count, 50_000):
            shape = min(50_000, self.count - start), self.columns
            X = np.random.default_rng(start).random(shape)
            yield X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] - 0.5


def speed(sizes: list[str]) -> list[dict[str, float]]:
    """Sizes are rows x columns; rank 300, over chunks that every stage reads."""
    matrix = np.random.default_rng(0).random((4000, 4000))
    found = []
    for count, columns in ([int(part) for part in size.split("x")] for size in sizes):
        products = []
        for _ in range(3):
            started = perf_counter()
            matrix @ matrix
            products.append(perf_counter() - started)
        started = perf_counter()
        ridge = capri.PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1.5, 1.5), rank=300)
        ridge.fit(Rows(count, columns))
        seconds = perf_counter() - started
        for _ in range(3):
            started = perf_counter()
            matrix @ matrix
            products.append(perf_counter() - started)
        found.append(
            {
                "rows": count,
                "columns": columns,
                "seconds": seconds,
                "product": float(np.median(products)),
                "ratio": seconds / float(np.median(products)),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", nargs="+", metavar="ROWSxCOLUMNS", help="time and memory only")
    parser.add_argument("--fresh", action="store_true", help="the price of privacy, new functions")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    chosen = parser.parse_args()
    file = common.RESULTS / "ridge.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if chosen.speed:
        results["speed"] = speed(chosen.speed)
    elif chosen.fresh:
        results["fresh"] = fresh()
    else:
        kept = [
            row for row in results.get("accuracy", [])
            if row["task"] not in chosen.tasks or row["method"] not in chosen.methods
        ]  # fmt: skip
        results["accuracy"] = kept + accuracy(chosen.tasks, chosen.methods)
        print(table(results["accuracy"]))
    file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
