"""What scikit-learn does around the estimator: transformers that learnt from the same rows."""

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, StandardScaler

from capri import (
    ConfigurationError,
    PrivacyLeakWarning,
    PrivateKernelClassifier,
    PrivateKernelQuantiles,
    PrivateKernelRidge,
)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((40, 2))
Y = X[:, 0] / 2


class Halved(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer that says of itself that it learns nothing."""

    def fit(self, X: Any, y: Any = None) -> "Halved":
        return self

    def transform(self, X: Any) -> Any:
        return X / 2

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class Undeclared:
    """A transformer that is none of scikit-learn's and says nothing of itself."""

    def fit(self, X: Any, y: Any = None) -> "Undeclared":
        return self

    def transform(self, X: Any) -> Any:
        return X


def ridge() -> PrivateKernelRidge:
    return PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))


def last(model: Any) -> PrivateKernelRidge:
    """The private estimator inside pipelines and regressors on transformed targets."""
    while not isinstance(model, PrivateKernelRidge):
        model = model.regressor_ if hasattr(model, "regressor_") else model.steps[-1][1]
    return model


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        make_pipeline(Normalizer(), StandardScaler()),
        FeatureUnion([("as", FunctionTransformer()), ("scaled", StandardScaler())]),
        ColumnTransformer([("first", StandardScaler(), [0])], remainder="passthrough"),
        ColumnTransformer([("first", "passthrough", [0])], remainder=StandardScaler()),
    ],
)
def test_transformer_that_learns_from_the_rows_costs_the_certificate(step: Any) -> None:
    pipe = make_pipeline(FunctionTransformer(), step, ridge())
    with pytest.warns(PrivacyLeakWarning, match="^StandardScaler of the pipeline learnt"):
        pipe.fit(X, Y)
    with pytest.raises(ConfigurationError, match="StandardScaler that was not fitted on these"):
        last(pipe).certificate()


def test_scaler_around_an_inner_pipeline_and_around_targets_is_found() -> None:
    outer = make_pipeline(StandardScaler(), make_pipeline(Normalizer(), ridge()))
    targets = TransformedTargetRegressor(ridge(), transformer=MinMaxScaler())
    unknown = make_pipeline(Undeclared(), ridge())
    for model, name in (
        (outer, "StandardScaler"),
        (targets, "MinMaxScaler"),
        (unknown, "Undeclared"),
    ):
        with pytest.warns(PrivacyLeakWarning, match=f"^{name} of the pipeline learnt"):
            model.fit(X, Y)
        with pytest.raises(ConfigurationError, match=name):
            last(model).certificate()


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(FunctionTransformer(), ridge()),
        make_pipeline("passthrough", Normalizer(), Halved(), ridge()),
        make_pipeline(FrozenEstimator(StandardScaler().fit([[0, 0], [1, 1]])), ridge()),
        make_pipeline(ColumnTransformer([("all", Normalizer(), [0, 1])]), ridge()),
        make_pipeline(ridge()),
        TransformedTargetRegressor(ridge(), func=np.cbrt, inverse_func=lambda y: y**3),
    ],
)
def test_what_learns_nothing_keeps_it(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        model.fit(X, Y)
    assert last(model).certificate().epsilon == 1.0


def test_fit_after_one_in_a_pipeline_is_judged_by_itself() -> None:
    estimator = ridge()
    pipe = make_pipeline(StandardScaler(), estimator)
    with pytest.warns(PrivacyLeakWarning, match="StandardScaler"):
        pipe.fit(X, Y)
    with pytest.warns(PrivacyLeakWarning, match="fit 2 of one estimator"):
        assert estimator.fit(X, Y).certificate().epsilon == 1.0


def test_large_delta_is_said_aloud_at_the_line_of_the_fit() -> None:
    large = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1), delta=0.5)
    for call in (large.fit, PrivateKernelRidge(**large.get_params()).partial_fit):
        with pytest.warns(PrivacyLeakWarning, match=r"delta = 0.5 is the chance") as caught:
            call(X, Y)
        assert len(caught) == 1
    with pytest.warns(PrivacyLeakWarning) as caught:
        large.fit(X, Y)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large.report_plan(2, reports=100)  # reports have a delta of 0


def test_warnings_of_classes_and_quantiles_point_at_the_line_that_fits() -> None:
    """At a line of this package, the second model of a process would not be warned of."""
    for model in (PrivateKernelClassifier(), PrivateKernelQuantiles()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, (Y > 0.2).astype(int))
        assert caught
        assert {each.filename for each in caught} == {__file__}
