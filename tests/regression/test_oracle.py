"""The oracle: with noise that ignores its input, all that is public is the same for any data.

Whatever differs would have come past the gate. The two worlds share shapes and types and nothing
else: one is tame, the other full of NaN, infinities, missing cells and numbers out of all bounds.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from capri import PrivateKernelClassifier, PrivateKernelQuantiles, PrivateKernelRidge
from capri.privacy import gate
from capri.privacy.layout import Norm
from capri.privacy.noise import NoiseSource
from capri.regression import estimator
from capri.regression.sources import Block

ROWS, COLUMNS = 900, 2
CUTS = (0, 1, 700, ROWS)
NAMES = ["a", "b"]


class Deaf(NoiseSource):
    """Noise without the values it was to hide."""

    private = True

    def __init__(self) -> None:
        self._generator = np.random.default_rng(7)

    def add(
        self, values: np.ndarray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> np.ndarray:
        drawn = self._generator.normal(0.0, scale, np.shape(values))
        return np.asarray(np.rint(drawn).astype(np.int64))


@pytest.fixture(autouse=True)
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the gate's noise, and of the choice that a sphere report is."""
    monkeypatch.setattr(estimator, "noise_source", lambda generator: Deaf())

    def choice(vectors: np.ndarray, norm_limit: int, sphere: Any, randomness: Any) -> Any:
        assert np.einsum("ij,ij->i", vectors, vectors).max() <= norm_limit**2
        generator = np.random.default_rng(11)
        tokens = generator.integers(0, 2**32, np.shape(randomness.seeds(len(vectors))))
        return tokens.astype(np.uint32), generator.integers(0, sphere.candidates, len(vectors))

    monkeypatch.setattr(gate, "randomized", choice)


def worlds(outputs: int) -> tuple[Block, Block]:
    """Tame rows, and rows of everything that may stand in a cell of a float column."""
    generator = np.random.default_rng(0)
    tame = generator.random((ROWS, COLUMNS)), generator.random((ROWS, outputs))
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, -0.0, 0.5, -3.0])
    wild = generator.choice(odd, (ROWS, COLUMNS)), generator.choice(odd, (ROWS, outputs))
    return tame, wild


def parts(X: np.ndarray, y: np.ndarray) -> Iterator[Block]:
    return ((X[a:b], y[a:b]) for a, b in pairwise(CUTS))


def with_missing(table: np.ndarray) -> np.ndarray:
    """The same as objects: None, NA and whole numbers too large for a float."""
    cells = table.astype(object)
    cells[np.isnan(table)] = None
    cells[np.isposinf(table)] = pd.NA
    cells[np.isneginf(table)] = -(10**400)
    return np.asarray(cells)


def array(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    return ridge.fit(X, y)


def objects(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    return ridge.fit(with_missing(X), with_missing(y))


def frame(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    return ridge.fit(pd.DataFrame(X, columns=NAMES).convert_dtypes(convert_integer=False), y)


def chunks(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    return ridge.fit(list(parts(X, y)))


def iterator(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    return ridge.fit(parts(X, y))


def stream(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    """Two releases, the second a stage of residuals."""
    for part in parts(X, y):
        ridge.partial_fit(*part)
    ridge.release()
    for part in parts(X, y):
        ridge.partial_fit(*part)
    return ridge.release()


def dask_array(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    import dask
    import dask.array as da

    sizes = tuple(np.diff(CUTS).tolist())
    with dask.config.set(scheduler="synchronous"):
        return ridge.fit(
            da.from_array(X, chunks=(sizes, COLUMNS)), da.from_array(y, chunks=(sizes, y.shape[1]))
        )


def dask_frame(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    import dask
    import dask.dataframe as dd

    targets = [f"y{i}" for i in range(y.shape[1])]
    table = pd.concat([pd.DataFrame(X, columns=NAMES), pd.DataFrame(y, columns=targets)], axis=1)
    with dask.config.set(scheduler="synchronous"):
        lazy = dd.from_pandas(table, npartitions=3)
        return ridge.fit(lazy[NAMES], lazy[targets])


def parquet(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    targets = [f"y{i}" for i in range(y.shape[1])]
    table = pd.concat([pd.DataFrame(X, columns=NAMES), pd.DataFrame(y, columns=targets)], axis=1)
    for number, (a, b) in enumerate(pairwise(CUTS)):
        table[a:b].to_parquet(folder / f"{number}.parquet", row_group_size=300)
    return ridge.fit(folder, targets)


def reports(ridge: PrivateKernelRidge, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    plan = ridge.report_plan(COLUMNS, reports=ROWS)
    made = plan.reports(X, y, epsilon=4.0)
    return ridge.fit_reports(plan, made), made


SOURCES: list[Callable[..., Any]] = [
    array,
    objects,
    frame,
    chunks,
    iterator,
    stream,
    dask_array,
    dask_frame,
    parquet,
    reports,
]


def seen(fitting: Callable[..., Any], X: np.ndarray, y: np.ndarray, folder: Path) -> bytes:
    """Everything that anybody sees of a fit, in bytes: warnings too."""
    folder.mkdir()
    bounds = ([-1.0] * y.shape[1], [1.0] * y.shape[1])
    ridge = PrivateKernelRidge(
        epsilon=4.0, X_bounds=(0, 1), y_bounds=bounds, random_state=3, stream_rows=ROWS
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = fitting(ridge, X, y, folder)
        test = np.linspace(-1, 2, 40).reshape(20, 2)
        if hasattr(ridge, "feature_names_in_"):
            test = pd.DataFrame(test, columns=ridge.feature_names_in_)
        mean, width = ridge.predict(test, return_std=True)
    events = [asdict(event) for event in ridge.ledger_.events] if ridge.ledger_ else []
    spent = asdict(ridge.ledger_.spent) if ridge.ledger_ else {}
    numbers = (mean, width, width.bias, width.sampling, width.privacy, ridge.tau_)
    estimates = [
        getattr(each, name).tobytes().hex()
        for each in ridge.model_.estimates
        for name in ("mean", "covariance")
    ]
    public = {
        "numbers": [np.asarray(each).tobytes().hex() for each in numbers],
        "estimates": estimates,
        "events": events,
        "spent": spent,
        "rows": [ridge.n_rows_, ridge.rank_, ridge.n_features_in_],
        "plans": [reading.result.plan.rows for reading in ridge._engine.readings],
        "kernel": ridge.kernel_.to_dict(),
        "attributes": sorted(vars(ridge)),
        "said": sorted(str(each.message) for each in said),
        "reports": [each.hex() for each in made[1]] if isinstance(made, tuple) else [],
    }
    return json.dumps(public, sort_keys=True).encode()


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("fitting", SOURCES, ids=lambda each: each.__name__)
def test_everything_public_is_the_same_for_any_data(
    fitting: Callable[..., Any], outputs: int, tmp_path: Path
) -> None:
    tame, wild = worlds(outputs)
    left = seen(fitting, *tame, tmp_path / "tame")
    right = seen(fitting, *wild, tmp_path / "wild")
    assert left == right
    assert json.loads(left)["rows"][0] == (2 if fitting is stream else 1) * ROWS


def test_stages_are_several_so_that_later_plans_are_seen_too(tmp_path: Path) -> None:
    (X, y), _ = worlds(1)
    public = json.loads(seen(array, X, y, tmp_path / "one"))
    assert len(public["events"]) == 1 + len(public["plans"]) > 2  # counts of columns first


@pytest.mark.parametrize("fitting", [array, reports], ids=lambda each: each.__name__)
def test_the_oracle_hears_a_dropped_row(fitting: Callable[..., Any], tmp_path: Path) -> None:
    """A pipeline that leaves bad rows out, as tables are usually cleaned, is told apart."""
    (X, y), (wild_X, wild_y) = worlds(1)
    keep = np.isfinite(wild_X).all(axis=1) & np.isfinite(wild_y).all(axis=1)
    left = seen(fitting, X, y, tmp_path / "tame")
    right = seen(fitting, wild_X[keep], wild_y[keep], tmp_path / "wild")
    assert left != right


@pytest.mark.parametrize(
    "model",
    [
        PrivateKernelQuantiles(epsilon=4.0, X_bounds=(0, 1), y_bounds=(-1, 1), random_state=3),
        PrivateKernelClassifier((0.5, -3.0), epsilon=4.0, X_bounds=(0, 1), random_state=3),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_made_of_ridges_is_the_same_for_any_data(model: Any) -> None:
    """Quantiles and classes: what they predict, what they said, and what they spent."""
    test = np.linspace(-1, 2, 40).reshape(20, 2)

    def public(X: np.ndarray, y: np.ndarray) -> tuple[object, ...]:
        fitted = clone(model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fitted.fit(X, y[:, 0])
            shown = fitted.predict(test)
        ridges = [each for each in vars(fitted).values() if isinstance(each, PrivateKernelRidge)]
        means = [each.model_.estimates[-1].mean.tobytes() for each in ridges]
        events = [event for each in ridges for event in each.ledger_.events]
        words = sorted(str(each.message) for each in said)
        return shown.tobytes(), means, events, words, sorted(vars(fitted))

    tame, wild = worlds(1)
    assert public(*tame) == public(*wild)
