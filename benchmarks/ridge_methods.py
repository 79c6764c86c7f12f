"""`PrivateKernelRidge` and its rivals, each with its own promise, for `ridge_rivals.py`.

A method takes scaled rows and targets, test rows, epsilon and a seed, and predicts. The order of
promises: "same" is replace one row, (epsilon, 1e-5); "weaker" protects less for the same epsilon;
"stronger" more; "none" is no privacy, for comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from common import BLUE, DELTA, GREEN, GREY, ORANGE, PINK, YELLOW
from ridge_features import cloaking, noisy_gradients, objective, projection
from ridge_linear import adassp, diffprivlib, private_mean, tukey
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV

import capri

Method = Callable[[Any, Any, Any, float, int], Any]


def ours(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    ridge = capri.PrivateKernelRidge(
        epsilon=epsilon, delta=DELTA, X_bounds=(0, 1), y_bounds=(-1, 1), random_state=seed
    )
    return ridge.fit(X, y).predict(test)


def no_privacy(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Ridge on 300 Nystroem components beside the columns, strength by cross-validation."""
    X, y = X[:50_000], y[:50_000]
    basis = Nystroem(gamma=2 / X.shape[1], n_components=min(300, len(X)), random_state=seed).fit(X)

    def features(X: Any) -> Any:
        return np.hstack([X, basis.transform(X)])

    model = RidgeCV(alphas=10.0 ** np.arange(-4, 3)).fit(features(X), y)
    return model.predict(features(test))


def boosting(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Its noise is not seeded: it draws from the operating system."""
    if find_spec("interpret") is None:
        raise SystemExit(
            "DP-EBM is of the package interpret-core, which is not installed: "
            "pip install 'capri-bandits[benchmarks]', or leave it out by --methods"
        )
    private: Any = import_module("interpret.privacy")
    model = private.DPExplainableBoostingRegressor(
        epsilon=epsilon,
        delta=DELTA,
        privacy_bounds=np.tile([0.0, 1.0], (X.shape[1], 1)),
        privacy_target_min=-1.0,
        privacy_target_max=1.0,
        n_jobs=1,
    )
    return model.fit(X, y).predict(test)


@dataclass(frozen=True)
class Rival:
    """A method, how it is drawn, and what it promises."""

    run: Method
    colour: str
    standing: str
    promise: str
    settings: str
    line: bool = False


OURS, MEAN = "PrivateKernelRidge", "private mean"
METHODS: dict[str, Rival] = {
    OURS: Rival(ours, BLUE, "same", "replace one row, (epsilon, delta)", "default"),
    MEAN: Rival(private_mean, GREY, "same", "the same", "one Gaussian release"),
    "AdaSSP": Rival(
        adassp, GREEN, "same", "the same",
        "Wang 2018; a constant beside columns centred by their bounds, rows scaled down to 0.75, "
        "0.9 or 1 of the longest; three releases, composed exactly; exact sensitivities",
        line=True,
    ),
    "noisy gradients": Rival(
        noisy_gradients, PINK, "same", "the same",
        "DP-SGD with full batches on 100 or 200 random features and a constant: 5 to 200 steps "
        "with momentum, residuals clipped at 0.1 to 1, composed exactly",
    ),
    "TukeyEM": Rival(
        tukey, "#56B4E9", "same", "the same",
        "Amin and others 2022; 1,000 models or as many as rows allow; half of epsilon for its "
        "test, half for the draw; where the test fails it releases nothing and the middle of the "
        "bounds is counted",
        line=True,
    ),
    "objective perturbation": Rival(
        objective, YELLOW, "weaker", "add or remove a row: weaker",
        "Kifer and others 2012 with the noise of Redberg and others 2023; 10 or 100 random "
        "features and a constant, coefficients of norm up to 1, 2, 4 or 8",
    ),
    "random projections": Rival(
        projection, "#999933", "weaker", "add or remove a row: weaker",
        "after Lee, Park and Ahn 2025; the same on 10, 30 or 100 random paths of a Gaussian "
        "process with the kernel and a constant",
    ),
    "DP-EBM": Rival(
        boosting, "#882255", "weaker",
        "add or remove a row, with noise in floating-point numbers: weaker",
        "Nori and others 2021, `DPExplainableBoostingRegressor` of interpret-core, default",
    ),
    "cloaking": Rival(
        cloaking, "#000000", "weaker",
        "targets only, rows are public: much weaker",
        "Smith and others 2018 on 4 to 256 eigenfunctions of the kernel on all rows, read by the "
        "posterior mean",
    ),
    "diffprivlib": Rival(
        diffprivlib, ORANGE, "stronger", "pure epsilon: stronger, in name",
        "`LinearRegression`, default", line=True,
    ),
    "no privacy": Rival(
        no_privacy, "#BBBBBB", "none", "none",
        "ridge on 300 Nystroem components and the columns, at most 50,000 rows",
    ),
}  # fmt: skip
