"""Settings that cannot be right: said of what is public or was released, before anybody trusts it.

Noise is drawn anew in every fit. What a right setting is said to be wrong with is below 5e-5 by the
rule itself; how likely a wrong one is missed is computed beside each test.
"""

import warnings
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from capri import KernelWarning, PrivateKernelClassifier, PrivateKernelQuantiles, PrivateKernelRidge
from capri.errors import DataError
from capri.regression.summary import _AT_ENDS, _LITTLE, _counted, _squares

ROWS = 6_000
X = np.random.default_rng(0).random((ROWS, 2))
Y = np.sin(5 * X[:, 0]) * X[:, 1]


def said(call: Any) -> list[str]:
    """The doubts of a fit; a warning of anything else is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert {each.category for each in caught} <= {KernelWarning}
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


# -- columns --------------------------------------------------------------------------------------

FRAME = pd.DataFrame({"age": [40.0, 50.0], "height": [1.7, 1.8], "plan": ["free", "pro"]})


@pytest.mark.parametrize("bounds", [{"age": (0, 120)}, {"plan": ["free", "pro"], "age": (0, 120)}])
def test_columns_that_bounds_leave_out_are_named(bounds: Any, tmp_path: Path) -> None:
    """Names are public: a part of the columns is refused at every door, before any release."""
    import dask.dataframe as dd

    ridge = PrivateKernelRidge(X_bounds=bounds, y_bounds=(0, 1))
    left_out = [name for name in FRAME.columns if name not in bounds]
    FRAME.assign(y=[0.0, 1.0]).to_parquet(tmp_path / "0.parquet")
    lazy = dd.from_pandas(FRAME.assign(y=[0.0, 1.0]), npartitions=1)
    for call in (
        lambda: ridge.fit(FRAME, [0.0, 1.0]),
        lambda: ridge.partial_fit(FRAME, [0.0, 1.0]),
        lambda: ridge.fit(pa.Table.from_pandas(FRAME), [0.0, 1.0]),
        lambda: ridge.fit([(FRAME, np.array([0.0, 1.0]))]),
        lambda: ridge.fit(tmp_path, "y"),
        lambda: ridge.fit(lazy[list(FRAME.columns)], lazy[["y"]]),
        lambda: ridge.fit(FRAME.to_records(index=False), [0.0, 1.0]),
        lambda: PrivateKernelQuantiles(X_bounds=bounds, y_bounds=(0, 1)).fit(FRAME, [0.0, 1.0]),
        lambda: PrivateKernelClassifier([0, 1], X_bounds=bounds).fit(FRAME, [0, 1]),
    ):
        with pytest.raises(DataError, match=f"nothing of column.* {', '.join(left_out)} of X"):
            call()
    assert not hasattr(ridge, "model_")
    kept = FRAME[list(bounds)]
    assert ridge.fit(kept, [0.0, 1.0]).predict(kept).shape == (2,)


# -- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        ([0, 1], np.where(Y > 0, "no", "yes").tolist()),
        (["no", "yes"], Y > 0),
        ("abc", np.full(ROWS, "A")),
    ],
)
def test_classes_that_match_no_label_are_told_of(classes: Any, labels: Any) -> None:
    """No row counts: what is found is noise, 14 deviations below the limit (missed: 1e-44)."""
    model = PrivateKernelClassifier(classes, X_bounds=(0, 1))
    (doubt,) = said(lambda: model.fit(X, labels))
    assert "count for less than half" in doubt
    assert "labels are none of the classes" in doubt
    assert model.certificate().epsilon == 1.0


def test_rows_that_are_missing_are_told_of() -> None:
    """Texts where numbers are meant: what is found is noise, 22 deviations below the limit."""
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    (doubt,) = said(lambda: ridge.fit(X, [f"{each:.3f}" for each in Y]))
    assert "values are missing or of another type" in doubt


# -- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bounds", "y"),
    [
        (PrivateKernelRidge, (-1, 1), 1000 * Y),  # cut at both ends
        (PrivateKernelRidge, (0, 1), 1000 * (Y + 2)),  # all at the upper end
        (PrivateKernelRidge, (0, 1_000_000), Y + 2),  # all at the lower end
        (PrivateKernelQuantiles, (0, 1), 1000 * (Y + 2)),
    ],
)
def test_bounds_in_another_unit_are_told_of(kind: Any, bounds: Any, y: np.ndarray) -> None:
    """Above the limit by 26 deviations of noise, for quantiles by 17 (missed: below 1e-60)."""
    model = kind(X_bounds=(0, 1), y_bounds=bounds)
    (doubt,) = said(lambda: model.fit(X, y))
    assert "nearly all targets lie at an end of y_bounds" in doubt
    assert f"({bounds[0]:g}, {bounds[1]:g})" in doubt
    assert model.certificate().epsilon == 1.0


def test_bounds_far_wider_than_targets_are_told_of() -> None:
    """Twenty thousand rows tell residuals of a two-hundredth of the range from noise, always."""
    generator = np.random.default_rng(0)
    X = generator.random((20_000, 3))
    y = np.sin(5 * X[:, 0]) * X[:, 1] + 0.1 * generator.standard_normal(len(X))
    (found,) = said(lambda: PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-100, 100)).fit(X, y))
    assert "narrower bounds" in found


def test_output_is_named_where_there_are_several() -> None:
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    (doubt,) = said(lambda: ridge.fit(X, np.stack([Y, 1000 * Y], axis=1)))
    assert "of output 1 lie at an end" in doubt


def test_right_settings_are_not_doubted() -> None:
    """Data that are 8 deviations of noise from either limit, or more: said below 1e-14 each."""
    labels = np.where(Y > 0, "no", "yes")
    for call in (
        lambda: PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, Y),
        lambda: PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X / 4, Y),
        lambda: PrivateKernelRidge("rbf", X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, Y),
        lambda: PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-2, 1)).fit(
            X, np.where(np.arange(ROWS) % 4, Y, np.nan)
        ),
        lambda: PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).partial_fit(X, Y).release(),
        lambda: PrivateKernelQuantiles(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, Y),
        lambda: PrivateKernelClassifier(["no", "yes"], X_bounds=(0, 1)).fit(X, labels),
    ):
        assert said(call) == []


@pytest.mark.slow
def test_noise_of_what_is_compared_is_what_is_claimed() -> None:
    """Of 150 releases of rows that count for nothing, the deviation of both statistics over what
    is claimed: within 0.25 of 1 (4.3 standard errors of 0.058: false alarm below 1e-4)."""
    found, claimed = [], []
    for _ in range(150):
        ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1), rank=3, stream_rows=50)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KernelWarning)
            ridge.partial_fit(X[:50], np.full(50, np.nan)).release()
        (result,) = (each.result for each in ridge._engine.readings)
        sample = ridge._engine.setting.law.sample
        ones = np.linalg.lstsq(sample, np.ones(len(sample)), rcond=None)[0]
        both = np.stack([_counted(result, sample, ones), _squares(result, sample, 0)])
        found.append(both[:, 0] / np.sqrt(both[:, 1]))
        claimed.append(both[:, 2])
    assert np.abs(np.std(found, axis=0) - 1).max() < 0.25
    # As if each of the 50 rows counted as those of the law: near 50, and never above it by much.
    assert (np.mean(claimed, axis=0) < 55).all()
    assert (np.mean(claimed, axis=0) > 20).all()
    assert 0 < _LITTLE < _AT_ENDS < 1
    assert NormalDist().cdf(-4.0) < 1e-4
