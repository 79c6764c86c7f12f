"""What scikit-learn does around the estimator: transformers that learn, and fits once more."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingRegressor,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_validate
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)

from capri import (
    ConfigurationError,
    KernelWarning,
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


def by_rows_of_the_batch(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows - rows.mean(axis=0))


def halved(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / 2)


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(FunctionTransformer(by_rows_of_the_batch), ridge()),
        make_pipeline(FunctionTransformer(halved), ridge()),
        make_pipeline(FunctionTransformer(np.cumsum, kw_args={"axis": 0}), ridge()),
        make_pipeline(ColumnTransformer([("all", FunctionTransformer(halved), [0, 1])]), ridge()),
        TransformedTargetRegressor(
            ridge(), func=by_rows_of_the_batch, inverse_func=halved, check_inverse=False
        ),
    ],
)
def test_function_that_may_look_at_the_batch_costs_the_certificate(model: Any) -> None:
    """Whether it takes each row by itself cannot be seen: whoever knows declares it."""
    with pytest.warns(PrivacyLeakWarning, match=r"^FunctionTransformer of the pipeline .* or may"):
        model.fit(X, Y)
    with pytest.raises(ConfigurationError, match=r"Give FrozenEstimator\(FunctionTr") as no:
        last(model).certificate()
    assert "ufunc" in str(no.value)
    assert "not fitted on these rows" not in str(no.value)


def test_function_that_is_declared_or_known_to_take_cells_keeps_it() -> None:
    declared = FrozenEstimator(FunctionTransformer(halved))
    declared_with_inverse = FrozenEstimator(FunctionTransformer(halved, np.positive))
    for model in (
        make_pipeline(declared, ridge()),
        make_pipeline(FunctionTransformer(np.log1p), ridge()),
        TransformedTargetRegressor(
            ridge(), transformer=make_pipeline(declared_with_inverse), check_inverse=False
        ),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
            model.fit(X, Y)
        assert last(model).certificate().epsilon == 1.0


# -- estimators around ----------------------------------------------------------------------------


class Twice(BaseEstimator):  # type: ignore[misc]
    """An estimator around another that nobody here has heard of."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def fit(self, X: Any, y: Any) -> "Twice":
        self.inner_ = [clone(self.inner).fit(X, y) for _ in range(2)]
        return self


class OwnPipeline(Pipeline):  # type: ignore[misc]
    """Whatever else a subclass does."""


def classifier(*classes: str) -> PrivateKernelClassifier:
    return PrivateKernelClassifier(classes, X_bounds=(0, 1))


def quantiles() -> PrivateKernelQuantiles:
    return PrivateKernelQuantiles((0.5,), X_bounds=(0, 1), y_bounds=(-1, 1))


LABELS = np.array(["a", "b", "c"])[np.arange(40) % 3]
AROUND: list[tuple[Any, Any]] = [
    (GridSearchCV(ridge(), {"tau": [0.1, 1.0]}, cv=2), Y),
    (RandomizedSearchCV(quantiles(), {"tau": [0.1, 1.0]}, n_iter=1, cv=2), Y),
    (GridSearchCV(make_pipeline(ridge()), {"privatekernelridge__tau": [0.1]}, cv=2), Y),
    (MultiOutputRegressor(ridge()), X),
    (RegressorChain(ridge()), X),
    (VotingRegressor([("one", ridge()), ("two", quantiles())]), Y),
    (StackingRegressor([("one", ridge())], final_estimator=ridge(), cv=2), Y),
    (BaggingRegressor(ridge(), n_estimators=2), Y),
    (OneVsRestClassifier(classifier("0", "1")), LABELS),
    (OneVsOneClassifier(classifier("0", "1")), LABELS),
    (CalibratedClassifierCV(classifier("a", "b", "c"), cv=2), LABELS),
    (VotingClassifier([("one", classifier("a", "b", "c"))]), LABELS),
    (SelectFromModel(ridge(), importance_getter=lambda model: np.ones(2)), Y),
    (Twice(ridge()), Y),
    (OwnPipeline([("last", ridge())]), Y),
]


def fitted(model: Any) -> Iterator[Any]:
    """Every fitted private estimator in a model, however deep."""
    if isinstance(model, PrivateKernelRidge | PrivateKernelClassifier | PrivateKernelQuantiles):
        if hasattr(model, "n_features_in_"):
            yield model
    elif isinstance(model, list | tuple):
        for each in model:
            yield from fitted(each)
    elif isinstance(model, BaseEstimator) or type(model).__module__.startswith("sklearn."):
        for each in vars(model).values():
            yield from fitted(each)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "y"), AROUND, ids=lambda each: type(each).__name__)
def test_estimator_around_costs_the_certificate(model: Any, y: Any) -> None:
    """GridSearchCV's best estimator said epsilon 1 where its rows had spent 2.95."""
    name = type(model).__name__
    with pytest.warns(PrivacyLeakWarning, match=f"^{name} calls this fit, so there is no certif"):
        model.fit(X, y)
    found = list(fitted(model))
    assert found
    for each in found:
        # Bagging seeds its estimators, which costs the certificate as well.
        with pytest.raises(ConfigurationError, match=f"{name} called this fit|seeded noise"):
            each.certificate()


def test_functions_and_worker_processes_are_seen_too() -> None:
    with pytest.warns(PrivacyLeakWarning, match="^cross_validate calls this fit"):
        found = cross_validate(ridge(), X, Y, cv=2, return_estimator=True)["estimator"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apart = MultiOutputRegressor(ridge(), n_jobs=2).fit(X, X)
    for each in (*found, *apart.estimators_):
        with pytest.raises(ConfigurationError, match=r"(cross_validate|multioutput) called"):
            each.certificate()
        assert each.as_prior()._observed.event.epsilon is None


def test_parts_after_the_first_are_looked_at_too() -> None:
    class Feeding(BaseEstimator):  # type: ignore[misc]
        def fit(self, estimator: Any) -> None:
            estimator.partial_fit(X, Y)

    estimator = ridge().partial_fit(X, Y)
    Feeding().fit(estimator)
    with pytest.raises(ConfigurationError, match="Feeding called this fit"):
        estimator.certificate()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"categories": [["a", "b"]], "handle_unknown": "ignore"}, True),
        ({"categories": [["a", "b"]]}, False),  # refuses, and quotes, any other level
        ({"handle_unknown": "ignore"}, False),  # learns its levels
        ({"categories": [["a", "b"]], "handle_unknown": "ignore", "min_frequency": 9}, False),
    ],
)
def test_encoder_of_public_levels_keeps_the_certificate(
    options: dict[str, Any], kept: bool
) -> None:
    estimator = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1))
    pipe = make_pipeline(OneHotEncoder(sparse_output=False, **options), estimator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipe.fit(np.where(X[:, :1] < 0.5, "a", "b").astype(object), Y)
    leaks = [each for each in caught if issubclass(each.category, PrivacyLeakWarning)]
    assert (not leaks) is kept
    if kept:
        assert estimator.certificate().epsilon == 1.0
    else:
        with pytest.raises(ConfigurationError, match="OneHotEncoder"):
            estimator.certificate()


def test_own_subclass_and_own_functions_keep_it() -> None:
    class Own(PrivateKernelRidge):
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "Own":
            super().fit(X, y, sample_weight)
            return self

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
        own = Own(X_bounds=(0, 1), y_bounds=(-1, 1)).fit(X, Y)
    assert own.certificate().epsilon == 1.0


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
