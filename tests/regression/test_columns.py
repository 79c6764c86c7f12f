"""Columns that people have: names, categories, bounds in many forms, weights, refits."""

import datetime
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from capri import (
    Budget,
    BudgetError,
    ConfigurationError,
    KernelWarning,
    OrganisationLedger,
    PrivacyLeakWarning,
    PrivateKernelClassifier,
    PrivateKernelQuantiles,
    PrivateKernelRidge,
    Schema,
)
from capri.errors import DataError
from capri.regression import PublicScaler
from capri.schema import Categorical, Numeric

COLUMNS = {"age": (18, 98), "plan": ["free", "pro", "team"], "member": bool}


def people(count: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": generator.uniform(18, 98, count),
            "plan": generator.choice(["free", "pro", "team"], count),
            "member": generator.random(count) < 0.5,
        }
    )
    return frame, truth(frame) + 0.1 * generator.standard_normal(count)


def truth(frame: pd.DataFrame) -> np.ndarray:
    level = frame["plan"].map({"free": -0.5, "pro": 0.2, "team": 0.6}).fillna(0.0)
    return np.asarray(level + 0.3 * np.sin(frame["age"] / 15) * frame["member"])


def ridge(**changes: Any) -> PrivateKernelRidge:
    given: dict[str, Any] = {"X_bounds": COLUMNS, "y_bounds": (-2, 2), "random_state": 0}
    return PrivateKernelRidge(**(given | changes))


def quiet(estimator: Any, *data: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return estimator.fit(*data, **more)


def test_frames_with_categories_are_learnt_and_cells_never_refused() -> None:
    """The error of the mean of all rows is 0.5; a seeded fit."""
    frame, y = people(5_000)
    model = quiet(ridge(), frame, y)
    test, _ = people(400, seed=1)
    error = np.sqrt(np.mean((model.predict(test) - truth(test)) ** 2))
    assert error < 0.12
    low, high = model.predict_interval(test)
    assert np.mean((low <= truth(test)) & (truth(test) <= high)) > 0.85
    assert list(model.feature_names_in_) == ["age", "plan", "member"]
    assert model.n_features_in_ == 3
    assert {"column age", "category plan", "column member"} <= set(model.parts_)
    odd = pd.DataFrame(
        {
            "age": [None, 1e300, 40, 50],
            "plan": ["gold", None, 7, "pro"],
            "member": [True, False, "x", 1],
        },
        dtype=object,
    )
    found = model.predict(odd)
    assert np.isnan(found[[0, 2]]).all()  # no age, and a member that is neither
    assert np.isfinite(found[[1, 3]]).all()
    mixed = pd.concat([frame[:300], odd], ignore_index=True)
    assert quiet(ridge(), mixed, np.append(y[:300], [0.0] * 4)).n_rows_ == 304
    with pytest.raises((DataError, ValueError), match="plan"):
        model.predict(frame.drop(columns="plan"))


def test_levels_come_from_public_rows_too() -> None:
    frame, y = people(600)
    model = quiet(ridge(X_bounds=None, public_X=people(100, seed=5)[0]), frame, y)
    assert [column.name for column in model.schema_.columns] == ["age", "plan", "member"]
    assert np.isfinite(model.predict(frame[:5])).all()
    plain = ridge(X_bounds=Schema([Numeric("age", 0, 100), Categorical("plan", ["a"])]))
    assert np.isfinite(quiet(plain, np.array([[1, "a"], [2, "b"]], dtype=object), [0, 1]).predict(
        np.array([[50, "z"]], dtype=object)
    )).all()  # fmt: skip


def test_chunks_and_streams_of_frames_give_the_same_bits() -> None:
    frame, y = people(600)
    whole = quiet(ridge(), frame, y).predict(frame[:9])
    chunks = [(frame[:250], y[:250]), (frame[250:], y[250:])]
    assert np.array_equal(quiet(ridge(), chunks).predict(frame[:9]), whole)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"age": 3}, "column 'age': X_bounds must say"),
        ({"age": Numeric("size", 0, 1)}, "under the name 'size'"),
        ({"age": (5, 1)}, "column 'age': low must be below high"),
    ],
)
def test_what_is_wrong_with_a_declaration_names_the_column(bounds: Any, message: str) -> None:
    frame, y = people(20)
    with pytest.raises(ConfigurationError, match=message):
        quiet(ridge(X_bounds=bounds), frame[["age"]], y)


def test_text_that_was_not_declared_counts_for_nothing_and_releases_tell_of_it() -> None:
    """A refusal would tell of a cell. No row counts: eight deviations below the limit."""
    frame, y = people(3_000)
    model = ridge(X_bounds=([18, 0, 0], [98, 1, 1]))
    with pytest.warns(KernelWarning, match="missing or of another type"):
        quiet(model, frame, y)
    assert np.isnan(model.predict(frame)).all()


def test_bounds_in_every_form_mean_the_same() -> None:
    X = np.random.default_rng(0).random((300, 3))
    y = X[:, 0]
    forms = [(0, 1), ([0, 0, 0], [1, 1, 1]), [(0, 1)] * 3, np.array([[0.0, 1.0]] * 3)]
    found = [quiet(ridge(X_bounds=form), X, y).predict(X[:5]) for form in forms]
    assert all(np.array_equal(each, found[0]) for each in found)
    with pytest.raises(ConfigurationError, match="column 1 has not"):
        quiet(ridge(X_bounds=[(0, 1), (1, 0), (0, 1)]), X, y)


def test_weights_are_bounded_and_private() -> None:
    """Rows of weight 0 say nothing; one beyond the bound counts like one at it; NaN counts as 0."""
    generator = np.random.default_rng(2)
    X = generator.random((4_000, 1))
    y = np.where(np.arange(4_000) % 2 == 0, 0.8, -0.8)
    half = np.where(y > 0, 1.0, 0.0)
    model = quiet(ridge(X_bounds=(0, 1)), X, y, half)
    assert model.predict([[0.5]])[0] > 0.5
    again = quiet(
        ridge(X_bounds=(0, 1), weight_bound=2.0),
        X, y, sample_weight=np.where(y > 0, 1e9, np.nan),
    )  # fmt: skip
    assert np.array_equal(again.predict(X[:9]), model.predict(X[:9]))
    plan = model._engine.readings[0].result.plan
    block = np.column_stack([y, half])
    features, targets = plan.contributions(X, block)
    plain, _ = plan.contributions(X, y[:, None])
    assert not features[half == 0].any()
    assert np.array_equal(features[half == 1], plain[half == 1])
    assert (np.linalg.norm(features, axis=1) <= 1 + 1e-12).all()
    assert (np.abs(targets) <= 1).all()
    with pytest.raises(DataError, match="one number per row"):
        quiet(ridge(X_bounds=(0, 1)), X, y, half[1:])
    with pytest.raises(ConfigurationError, match="weight_bound"):
        quiet(ridge(X_bounds=(0, 1), weight_bound=0.0), X, y, half)


def test_public_scaler_costs_no_certificate() -> None:
    generator = np.random.default_rng(3)
    X = generator.uniform(0, 50, (200, 2))
    private = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
        for scaler in (PublicScaler((0, 50)), PublicScaler(public_X=X[:20])):
            pipe = make_pipeline(scaler, clone(private)).fit(X, X[:, 0] / 50)
            assert pipe[-1].certificate().epsilon == 1.0
    assert np.allclose(PublicScaler((0, 50)).fit_transform(X), X / 50)
    for wrong in (PublicScaler(), PublicScaler((0, 1), public_X=X)):
        with pytest.raises(ConfigurationError, match="one of them"):
            wrong.fit(X)


def test_refits_add_up_and_are_stated() -> None:
    X = np.random.default_rng(4).random((100, 1))
    model = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    assert "earlier fits" not in model.certificate().to_text()
    with pytest.warns(PrivacyLeakWarning, match=r"fit 2 of one estimator.*epsilon 1\.\d"):
        model.fit(X, X[:, 0])
    with pytest.warns(PrivacyLeakWarning, match="fit 3 of one estimator"):
        model.fit(X, X[:, 0])
    assert len(model.past_events_) == 2
    assert "2 earlier fits" in model.certificate().to_text()
    assert not hasattr(clone(model), "past_events_")


def test_shows_itself_in_a_notebook() -> None:
    X = np.random.default_rng(5).random((100, 1))
    model = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    assert "noise on the vector" in repr(model.stages_)
    assert model.stages_._repr_html_().startswith("<table>")
    assert "<details>" in model.certificate()._repr_html_()
    shown = model._repr_html_()
    assert "PrivateKernelRidge" in shown
    assert "100 rows" in shown


def test_declared_columns_are_found_by_name_in_any_order() -> None:
    """Others have to come in the order of the fit, as scikit-learn asks, or are refused."""
    frame, y = people(300)
    model = quiet(ridge(), frame, y)
    turned = frame[["member", "age", "plan"]]
    assert np.array_equal(model.predict(turned), model.predict(frame))
    plain = frame.assign(plan=0.0, member=0.0)
    other = quiet(ridge(X_bounds=(0, 98)), plain, y)
    with pytest.raises(ValueError, match="same order"):
        other.predict(plain[["member", "age", "plan"]])


def of_pandas(cells: dict[str, list[Any]]) -> Any:
    return pd.DataFrame(cells)


def of_arrow(cells: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow").table(cells)


def of_polars(cells: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(cells)


def test_frames_of_every_library_give_the_same_bits() -> None:
    """Missing cells, dates where a number was meant, another order of columns, and no rows yet."""
    cells: dict[str, list[Any]] = {
        "age": [41, None, 67, 30] * 25,
        "plan": ["free", "pro", None, "gold"] * 25,
        "member": [True, None, False, True] * 25,
    }
    days = [datetime.date(2020, 1, 1), None] * 50
    bounds = {"age": (18, 98), "plan": ["free", "pro"], "member": bool}
    y = np.linspace(0, 1, 100)
    found = []
    for make in (of_pandas, of_arrow, of_polars):
        model = PrivateKernelRidge(X_bounds=bounds, y_bounds=(0, 1), random_state=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(make(cells), y)
            turned = model.predict(make({name: cells[name] for name in reversed(cells)}))
            dates = model.predict(make(cells | {"age": days}))
            spread = PrivateKernelQuantiles(X_bounds=bounds, y_bounds=(0, 1), random_state=3)
            quantiles = spread.fit(make(cells), y).predict(make(cells))
        assert np.array_equal(model.predict(make(cells)), turned, equal_nan=True)
        assert [*model.feature_names_in_] == [*bounds]
        found.append(np.column_stack([turned, dates, quantiles]))
    assert np.array_equal(found[0], found[1], equal_nan=True)
    assert np.array_equal(found[0], found[2], equal_nan=True)
    lazy = pytest.importorskip("polars").DataFrame(cells).lazy()
    with pytest.raises(DataError, match=r"call collect\(\) first"):
        model.fit(lazy, y)


def test_one_ledger_counts_fits_of_every_estimator(tmp_path: Path) -> None:
    """Two parts of the rows of quantiles are one source: nobody is in both."""
    with OrganisationLedger(f"sqlite:///{tmp_path}/ledger.db", organisation="Clinic") as ledger:
        ledger.add_population("patients-2026", Budget(3.0, 3e-6))
        place: dict[str, Any] = {"ledger": ledger, "population": "patients-2026"}
        place |= {"epsilon": Budget(1.0, 1e-6), "X_bounds": (0, 1)}
        X = np.random.default_rng(0).random((200, 1))
        labels = np.where(X[:, 0] < 0.5, "no", "yes")
        classes = PrivateKernelClassifier(classes=["no", "yes"], **place)
        classes.fit(X, labels)
        assert ledger.spent("patients-2026").epsilon == 1.0
        spread = PrivateKernelQuantiles(y_bounds=(0, 1), **place).fit(X, X[:, 0])
        assert ledger.spent("patients-2026").epsilon == 2.0
        for fit in (classes, spread):
            total = fit.certificate().in_total
            assert total is not None
            assert total["population"] == "patients-2026"
        with pytest.warns(PrivacyLeakWarning, match="fit 2 of one estimator"):
            classes.fit(X, labels)
        with pytest.raises(BudgetError, match="does not fit"):
            spread.fit(X, X[:, 0])
