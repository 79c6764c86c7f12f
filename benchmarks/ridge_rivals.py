"""Private regression on real tables against private rivals, each with its own promise.

    python benchmarks/ridge_rivals.py             # eight sets, five splits, three budgets
    python benchmarks/ridge_rivals.py --picture   # draw the stored results again

Error: root-mean-square on held-out rows over the spread of their targets, so 1 is what the mean
reaches without privacy. Bounds are those of each set, rounded outwards, and the same for everybody.
Tables ship inside packages (scikit-learn, statsmodels, lifelines, river) and are read from disk.

Promises: replace one row, (epsilon, 1e-5), for ours, AdaSSP, noisy gradients and objective
perturbation; diffprivlib promises pure epsilon.
"""

import common  # isort: skip - sets one BLAS thread
import argparse
import gzip
import io
import json
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.kernel_approximation import RBFSampler
from statsmodels import datasets

import capri
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier

DELTA = 1e-5
EPSILONS = (0.1, 1.0, 10.0)
SPLITS = 5
FILE = common.RESULTS / "ridge_rivals.json"


def table(package: str, path: str) -> pd.DataFrame:
    # Found without importing the package, which may need others.
    (place, *_) = find_spec(package).submodule_search_locations
    data = Path(place, path).read_bytes()
    data = gzip.decompress(data) if path.endswith(".gz") else data
    return pd.read_csv(io.BytesIO(data))


def _set(frame: pd.DataFrame, target: str, drop: tuple[str, ...] = ()) -> tuple[Any, Any]:
    frame = frame.drop(columns=list(drop)).dropna()
    features = pd.get_dummies(frame.drop(columns=target)).to_numpy(dtype=float)
    return features, frame[target].to_numpy(dtype=float)


def randhie() -> tuple[Any, Any]:
    X, y = _set(table("statsmodels", "datasets/randhie/randhie.csv"), "mdvis")
    return X, np.log1p(y)


SETS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "randhie": randhie,
    "fair": lambda: _set(table("statsmodels", "datasets/fair/fair.csv"), "rate_marriage"),
    "anes96": lambda: _set(datasets.anes96.load_pandas().data, "selfLR"),
    "modechoice": lambda: _set(datasets.modechoice.load_pandas().data, "gc", ("individual",)),
    "ACTG175": lambda: _set(
        table("lifelines", "datasets/ACTG175.csv").iloc[:, 1:], "cd420",
        ("cd820", "cd496", "days", "cens", "pidnum")),
    "gbsg2": lambda: _set(table("lifelines", "datasets/gbsg2.csv"), "time", ("cens",)),
    "occupancy": lambda: _set(
        table("river", "drift/datasets/occupancy.csv").select_dtypes("number"), "V4"),
}  # fmt: skip


def bounds_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The range, a twentieth wider: what a data sheet would say."""
    low, high = values.min(axis=0), values.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return low - 0.05 * width, high + 0.05 * width


# -- methods: scaled rows in [0, 1], targets in [-1, 1] --------------------------------------------


def ours(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    ridge = capri.PrivateKernelRidge(
        epsilon=epsilon, delta=DELTA, X_bounds=(0, 1), y_bounds=(-1, 1), random_state=seed
    )
    return ridge.fit(X, y).predict(test)


def private_mean(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    noise = 2 * analytic_multiplier(Budget(epsilon=epsilon, delta=DELTA)) / len(y)
    return np.full(len(test), y.mean() + noise * np.random.default_rng(seed).standard_normal())


def _mu(epsilon: float) -> float:
    return 1 / analytic_multiplier(Budget(epsilon=epsilon, delta=DELTA))


def adassp(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Wang 2018, Algorithm 2, with a column of ones; replace one, so sensitivities are doubled in
    the squared sense: three Gaussian releases of mu / sqrt(3) each."""
    generator = np.random.default_rng(seed)
    A = np.column_stack([np.ones(len(X)), 2 * X - 1])
    B = np.column_stack([np.ones(len(test)), 2 * test - 1])
    radius2 = float(A.shape[1])
    scale = np.sqrt(3) / _mu(epsilon)
    gram, vector, d = A.T @ A, A.T @ y, A.shape[1]
    smallest = max(0.0, float(np.linalg.eigvalsh(gram)[0]) + radius2 * scale
                   * (generator.standard_normal() - 1.96))  # fmt: skip
    ridge = max(0.0, np.sqrt(d) * radius2 * scale * 2.0 - smallest)
    noise = generator.standard_normal((d, d))
    noise = (np.triu(noise) + np.triu(noise, 1).T) * radius2 * np.sqrt(2) * scale
    noisy = vector + 2 * np.sqrt(radius2) * scale * generator.standard_normal(d)
    return B @ np.linalg.lstsq(gram + noise + ridge * np.eye(d), noisy, rcond=None)[0]


def _features(X: Any, test: Any, count: int, seed: int) -> tuple[Any, Any]:
    sampler = RBFSampler(gamma=2 / X.shape[1], n_components=count, random_state=seed)
    return sampler.fit_transform(X) / np.sqrt(2), sampler.transform(test) / np.sqrt(2)


def noisy_gradients(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Gradient descent on 100 random features, 30 full steps, each row's gradient clipped to 1.

    Replace one: a sum of clipped gradients moves by 2; 30 Gaussian releases of mu / sqrt(30).
    """
    generator = np.random.default_rng(seed)
    A, B = _features(X, test, 100, seed)
    steps, theta = 30, np.zeros(101)
    A, B = np.column_stack([np.ones(len(A)), A]), np.column_stack([np.ones(len(B)), B])
    noise = 2 * np.sqrt(steps) / _mu(epsilon)
    for _ in range(steps):
        gradients = A * (A @ theta - y)[:, None]
        norms = np.maximum(np.linalg.norm(gradients, axis=1), 1.0)
        total = (gradients / norms[:, None]).sum(axis=0)
        theta = theta - 0.5 * (total + noise * generator.standard_normal(101)) / len(A)
    return B @ theta


def objective(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Objective perturbation on 30 random features (Kifer, Smith & Thakurta 2012)."""
    generator = np.random.default_rng(seed)
    A, B = _features(X, test, 30, seed)
    scale = 2 * np.sqrt(8 * np.log(2 / DELTA) + 4 * epsilon) / epsilon
    target = A.T @ y - scale * generator.standard_normal(30)
    theta = np.linalg.solve(A.T @ A + (2 / epsilon + 1.0) * np.eye(30), target)
    return B @ (theta / max(1.0, float(np.linalg.norm(theta))))


def diffprivlib(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    import sklearn.tree._tree as tree

    for name, kind in (("DOUBLE", np.float64), ("DTYPE", np.float32)):
        if not hasattr(tree, name):
            setattr(tree, name, kind)
    from diffprivlib.models import LinearRegression

    low, high = np.zeros(X.shape[1]), np.ones(X.shape[1])
    model = LinearRegression(
        epsilon=epsilon, bounds_X=(low, high), bounds_y=(-1, 1), random_state=seed
    )
    return model.fit(X, y).predict(test)


METHODS: dict[str, Callable[[Any, Any, Any, float, int], Any]] = {
    "PrivateKernelRidge": ours,
    "private mean": private_mean,
    "AdaSSP": adassp,
    "noisy gradients on random features": noisy_gradients,
    "objective perturbation on random features": objective,
    "diffprivlib LinearRegression (pure epsilon)": diffprivlib,
}


def one(name: str, split: int, epsilon: float) -> list[dict[str, Any]]:
    X, y = SETS[name]()
    low, high = bounds_of(X)
    X = (X - low) / (high - low)
    low, high = bounds_of(y)
    y = 2 * (y - low) / (high - low) - 1
    order = np.random.default_rng(split).permutation(len(y))
    cut = max(len(y) * 3 // 4, len(y) - 5000)
    train, test = order[:cut], order[cut:]
    found = []
    for method, run in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            guess = run(X[train], y[train], X[test], epsilon, split)
        error = float(np.sqrt(np.mean((guess - y[test]) ** 2)) / y[test].std())
        found.append({"set": name, "rows": len(train), "columns": X.shape[1], "split": split,
                      "epsilon": epsilon, "method": method, "error": error})  # fmt: skip
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    lines = []
    for epsilon in EPSILONS:
        at = [row for row in rows if row["epsilon"] == epsilon]
        if not at:
            continue
        lines += [f"| epsilon {epsilon:g} | " + " | ".join(METHODS) + " |"]
        lines += ["| --- |" + " --- |" * len(METHODS)]
        for name in SETS:
            cells = []
            for method in METHODS:
                errors = [r["error"] for r in at if (r["set"], r["method"]) == (name, method)]
                if errors:
                    half = np.std(errors, ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else 0
                    shown = f"{np.mean(errors):.3g} ± {half:.1g}"
                    cells.append("above 10" if np.mean(errors) > 10 else shown)
            about = next((r for r in at if r["set"] == name), None)
            if about:
                label = f"{name}, {about['rows']:,} rows, {about['columns']} columns"
                lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def picture(rows: list[dict[str, Any]]) -> None:
    from capri.plots.style import new_figure, prepare, to_bytes

    figure = new_figure(
        13.0,
        7.0,
        "Private regression on real tables",
        f"Error on held-out rows over the spread of targets, against epsilon; mean of {SPLITS} "
        "splits; above 2 is cut off.",
    )
    colours = (common.BLUE, common.GREY, common.GREEN, common.PINK, common.YELLOW, common.ORANGE)
    for place, name in enumerate(SETS):
        axes = figure.add_subplot(2, 4, place + 1)
        prepare(axes, name, "relative error" if place % 4 == 0 else "")
        for method, colour in zip(METHODS, colours, strict=True):
            values = [
                np.mean([r["error"] for r in rows
                         if (r["set"], r["method"], r["epsilon"]) == (name, method, epsilon)])
                for epsilon in EPSILONS
            ]  # fmt: skip
            axes.plot(EPSILONS, values, "o-", color=colour, markersize=4, label=method)
        axes.set_xscale("log")
        axes.set_ylim(0.2, 2.0)
        if place >= 4:
            axes.set_xlabel("epsilon")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.subplots_adjust(left=0.05, right=0.98, wspace=0.25, hspace=0.75, bottom=0.22, top=0.84)
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.05), ncol=3,
                  frameon=False, fontsize=9)  # fmt: skip
    (common.FIGURES / "ridge-rivals.png").write_bytes(to_bytes(figure, "png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", action="store_true", help="draw the stored results again")
    chosen = parser.parse_args()
    rows = json.loads(FILE.read_text()) if chosen.picture else []
    if not chosen.picture:
        for epsilon in (1.0, 0.1, 10.0):
            for split in range(SPLITS):
                for name in SETS:
                    rows += one(name, split, epsilon)
                    FILE.write_text(json.dumps(rows, indent=0) + "\n")
    print(summary(rows))
    picture(rows)


if __name__ == "__main__":
    sys.exit(main())
