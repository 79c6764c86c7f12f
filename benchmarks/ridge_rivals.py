"""Private regression on real tables against private rivals, each with its own promise.

    python benchmarks/ridge_rivals.py             # eight sets, five splits, three budgets
    python benchmarks/ridge_rivals.py --picture   # draw the stored results again

Error: root-mean-square on held-out rows over the spread of their targets, so 1 is what the mean
reaches without privacy. Bounds are those of each set, rounded outwards, and the same for everybody.
Tables ship inside packages (scikit-learn, statsmodels, lifelines, river) and are read from disk.

Promises: replace one row, (epsilon, 1e-5), for ours, AdaSSP, noisy gradients and TukeyEM; add or
remove a row for objective perturbation and random projections; targets only for cloaking;
diffprivlib promises pure epsilon (and noises the squares of columns by their lower bound alone).
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
from sklearn.metrics.pairwise import rbf_kernel
from statsmodels import datasets

import capri
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier

DELTA = 1e-5
EPSILONS = (0.1, 1.0, 10.0)
SPLITS = 5
# Seeds of the splits: nothing was chosen on them.
FIRST = 10
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
    return B @ _perturbed(A, y, epsilon, generator)


def tukey(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """TukeyEM (Amin, Joseph, Ribero & Vassilvitskii 2022), half of epsilon for each of its parts.

    Least squares on ``m`` disjoint parts of the rows; a test that boxes of approximate Tukey depth
    are stable (propose, test, release), then a point of them by the exponential mechanism. Where
    the test fails nothing is released: the middle of the bounds is predicted. Replacing a row
    replaces one of the models.
    """
    generator = np.random.default_rng(seed)
    A = np.column_stack([np.ones(len(X)), 2 * X - 1])
    B = np.column_stack([np.ones(len(test)), 2 * test - 1])
    count = min(1000, len(A) // (A.shape[1] + 1))
    parts = np.array_split(generator.permutation(len(A)), count)
    models = np.array([np.linalg.lstsq(A[part], y[part], rcond=None)[0] for part in parts])
    models = np.sort(models + 1e-10 * generator.random(models.shape), axis=0).T
    half, deepest = epsilon / 2, count // 2
    widths = (models[:, ::-1] - models)[:, :deepest]
    volumes = np.log(np.maximum(widths, 1e-300)).sum(axis=0)  # of depth above i
    t = deepest // 2

    def safe(k: int) -> bool:
        """Some g with V(t - k - 1) / V(t + k + g + 1) e^(-half g / 2) <= delta / (8 e^half)."""
        if t - k - 2 < 0 or t + k + 2 >= deepest:
            return False
        further = volumes[t + k + 1 : deepest - 1]
        terms = volumes[t - k - 2] - further - half / 2 * np.arange(1, len(further) + 1)
        return bool(len(terms) and terms.min() <= np.log(DELTA / (8 * np.exp(half))))

    distance = -1
    while safe(distance + 1):
        distance += 1
    if distance + generator.laplace(scale=1 / half) <= np.log(1 / (2 * DELTA)) / half:
        return np.zeros(len(test))
    inner = models[:, t - 1 : count - t + 1]
    depths = (inner.shape[1] + 1) // 2
    sizes = np.log(np.maximum((inner[:, ::-1] - inner)[:, :depths], 1e-300)).sum(axis=0)
    shells = sizes + np.log1p(-np.exp(np.append(sizes[1:], -np.inf) - sizes))
    depth = int(np.argmax(shells + half * np.arange(depths) + generator.gumbel(size=depths)))
    low, high = inner[:, depth], inner[:, inner.shape[1] - 1 - depth]
    return B @ generator.uniform(low, high)  # the inner boxes are a small part of the shell


def cloaking(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Smith, Alvarez, Zwiessele & Lawrence 2018: a Gaussian process whose targets are private.

    Predictions ``C y`` at the given test rows with noise of covariance ``M``, the smallest
    ellipsoid with ``c_i^T M^-1 c_i <= 1`` for every column of ``C`` (a D-optimal design). Rows are
    public: only targets are protected, and at no other row may it be asked. At most 400 rows.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(X))[:400]
    X, y = X[chosen], y[chosen]
    gamma = 2 / X.shape[1]
    # A ridge that grows with the noise of the gate: a prior of variance 0.1 against noise in y.
    gram = rbf_kernel(X, X, gamma=gamma) + np.eye(len(X)) * (1 + 30 / epsilon) + 1.0
    cloak = np.linalg.solve(gram, (rbf_kernel(test, X, gamma=gamma) + 1.0).T).T
    left, values, right = np.linalg.svd(cloak, full_matrices=False)
    kept = values > 1e-3 * values[0]
    points = (values[kept, None] * right[kept]).T  # in the space that predictions move in
    shares, rank = np.full(len(points), 1 / len(points)), int(kept.sum())
    for _ in range(60):
        inverse = np.linalg.inv((points * shares[:, None]).T @ points)
        shares = shares * np.einsum("ij,jk,ik->i", points, inverse, points) / rank
    inverse = np.linalg.inv((points * shares[:, None]).T @ points)
    most = float(np.einsum("ij,jk,ik->i", points, inverse, points).max())
    root = np.linalg.cholesky(most * np.linalg.inv(inverse))
    noise = 2 / _mu(epsilon) * root @ generator.standard_normal(rank)  # a target moves by 2
    return cloak @ y + left[:, kept] @ noise


def random_projection(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """After Lee, Park & Ahn 2025: objective perturbation on projections by random functions.

    Features are paths of a Gaussian process with the kernel, ``h_1(x), ..., h_30(x)``; ridge
    regression on them by objective perturbation, rows of norm above 1 scaled down to it. Adding or
    removing a row; the paths are drawn by 2,000 random waves each.
    """
    generator = np.random.default_rng(seed)
    sampler = RBFSampler(gamma=2 / X.shape[1], n_components=2000, random_state=seed)
    paths = generator.standard_normal((2000, 30)) / np.sqrt(30)
    A, B = sampler.fit_transform(X) @ paths, sampler.transform(test) @ paths
    A, B = (each / np.maximum(1, np.linalg.norm(each, axis=1))[:, None] for each in (A, B))
    return B @ _perturbed(A, y, epsilon, generator)


def _perturbed(A: Any, y: Any, epsilon: float, generator: np.random.Generator) -> Any:
    """Kifer, Smith & Thakurta 2012 for squared loss, |theta| <= 1 and |phi| <= 1."""
    scale = 2 * np.sqrt(8 * np.log(2 / DELTA) + 4 * epsilon) / epsilon
    target = A.T @ y - scale * generator.standard_normal(A.shape[1])
    theta = np.linalg.solve(A.T @ A + (2 / epsilon + 1.0) * np.eye(A.shape[1]), target)
    return theta / max(1.0, float(np.linalg.norm(theta)))


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
    "TukeyEM": tukey,
    "cloaking (targets only)": cloaking,
    "random projections": random_projection,
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
    colours = (common.BLUE, common.GREY, common.GREEN, common.PINK, common.YELLOW, "#56B4E9",
               "#000000", "#999933", common.ORANGE)  # fmt: skip
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
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    chosen = parser.parse_args()
    rows = json.loads(FILE.read_text()) if FILE.exists() else []
    if not chosen.picture:
        rows = [row for row in rows if row["epsilon"] not in chosen.epsilons]
        for epsilon in chosen.epsilons:
            for split in range(FIRST, FIRST + SPLITS):
                for name in SETS:
                    rows += one(name, split, epsilon)
                    FILE.write_text(json.dumps(rows, indent=0) + "\n")
    print(summary(rows))
    picture(rows)


if __name__ == "__main__":
    sys.exit(main())
