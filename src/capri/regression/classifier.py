"""Classes by regression: one target per class, all of them in one release.

One-vs-rest on indicators: the release is that of a regression with ``k`` outputs, or with one where
there are two classes. The mean of an indicator is the
probability of its class, so regression is calibrated where it is right; what noise makes of it is
projected back on probabilities. For the log loss the width of each mean matters too:

    p_c ~ E[clip(f_c + width_c Z, 0, 1)],   divided by their sum,

the mean of a probability that is known up to a Gaussian error. It moves towards the middle where
little is known and never says 0 or 1 for sure.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import erf, nan, pi, sqrt
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from capri.arrays import FloatArray
from capri.cells import as_number_rows, is_list, plain
from capri.errors import ConfigurationError, DataError, warn_of_leak
from capri.privacy.certificate import Certificate, Declaration
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.scikit_learn import SharedParameters
from capri.regression.summary import earlier_events
from capri.regression.tables import CellTypeError

_erf = np.vectorize(erf, otypes=[np.float64])


class ByRidge:
    """An estimator whose secrets all go through a :class:`PrivateKernelRidge` of its own."""

    def _ridge(self, **more: Any) -> PrivateKernelRidge:
        """One with the shared parameters, and more."""
        shared = {each.name: getattr(self, each.name) for each in fields(SharedParameters)}
        return PrivateKernelRidge(**shared | more)

    def _told_in_one_stage(
        self, X: Any, codes: FloatArray, weights: Any, *, lowest: float, **more: Any
    ) -> PrivateKernelRidge:
        """The means of codes, each 1 or ``lowest``, by a single release beside counts of columns.

        Codes stay as large as they are however well their means are known. Later stages are there
        to encode smaller residuals with less noise: here they would only split the budget.
        """
        ones = np.ones(codes.shape[1])
        ridge = self._ridge(y_bounds=(lowest * ones, ones), **more)
        ridge._codes = True
        return ridge.fit(X, codes, weights)

    def _know_columns_of(self, ridge: PrivateKernelRidge) -> None:
        """Number and names of the columns, as scikit-learn asks for them."""
        self.n_features_in_ = ridge.n_features_in_
        self.__dict__.pop("feature_names_in_", None)  # of a fit on other rows
        if hasattr(ridge, "feature_names_in_"):
            self.feature_names_in_ = ridge.feature_names_in_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True  # a refusal would tell of the row
        for kind in (tags.classifier_tags, tags.regressor_tags):
            if kind is not None:
                kind.poor_score = True  # noise at default epsilon hides toy data
        return tags


def one_per_row(y: Any, what: str, read: Callable[[Any], Any]) -> Any:
    """Targets as ``read`` reads them: a vector, or one column, with scikit-learn's warning."""
    if y is None:
        raise DataError("requires y to be passed, but the target y is None")
    values = read(y)
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected",
            DataConversionWarning,
            stacklevel=3,
        )
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"y must be one {what} per row, got shape {values.shape}")
    return values


@dataclass(eq=False, repr=False)
class PrivateKernelClassifier(
    SharedParameters,
    ByRidge,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Kernel classification with differential privacy: one-vs-rest, one release.

    Parameters are those of :class:`PrivateKernelRidge` without ``y_bounds``, and

    classes : sequence, optional
        All classes there may be, known without looking at the data. A row of any other class, or
        of none, counts for nothing. Without it they are taken from the data, with a
        :class:`PrivacyLeakWarning` and without a certificate.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 400)[:, None]
    >>> model = PrivateKernelClassifier(classes=["low", "high"], X_bounds=(0, 1), epsilon=4.0)
    >>> model.fit(X, np.where(X[:, 0] < 0.5, "low", "high")).predict_proba([[0.1]]).shape
    (1, 2)
    """

    classes: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on an array or a data frame, with one class per row."""
        if self.classes is None:
            labels = one_per_row(y, "class", _as_array)
            check_classification_targets(labels)
            known = _checked(np.unique(labels))
            if self.epsilon != float("inf"):
                warn_of_leak(
                    "classes not given: taken from the data, which is not private. Give classes "
                    "that are known without looking at the data"
                )
        else:
            known = _checked(self.classes)
            texts = any(isinstance(each, str) for each in known)
            labels = one_per_row(y, "class", lambda given: _cells(given, texts=texts))
        classes = np.asarray(known)
        if classes.tolist() != known:  # NumPy would make texts of numbers beside a text
            classes = np.array(known, dtype=object)
        # Two classes need one target: the other is what is left.
        wanted = classes[1:] if len(classes) == 2 else classes
        codes = _indicators(labels.tolist(), known)[:, -len(wanted) :]
        ridge = self._told_in_one_stage(X, codes, sample_weight, lowest=0.0)
        ridge.past_events_ = earlier_events(getattr(self, "ridge_", None), ridge)
        self.ridge_, self.classes_ = ridge, classes
        self._know_columns_of(ridge)
        self._from_data = self.classes is None
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """The probability of each class; NaN for a row that is not made of numbers."""
        mean, width = self._means(X)
        chances = _mean_of_clipped(mean, np.maximum(width, 1e-6))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def decision_function(self, X: Any) -> FloatArray:
        """The probabilities; for two classes by how much the second exceeds the first."""
        chances = self.predict_proba(X)
        return np.asarray(chances[:, 1] - chances[:, 0]) if len(self.classes_) == 2 else chances

    def predict(self, X: Any) -> Any:
        """The most probable class."""
        chances = np.nan_to_num(self.predict_proba(X))
        return self.classes_[chances.argmax(axis=1)]

    def _means(self, X: Any) -> tuple[FloatArray, FloatArray]:
        check_is_fitted(self, "ridge_")
        mean, width = self.ridge_.predict(X, return_std=True)
        mean, width = mean.reshape(len(mean), -1), np.asarray(width).reshape(len(mean), -1)
        if len(self.classes_) == 2:
            return np.hstack([1 - mean, mean]), np.hstack([width, width])
        return mean, width

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee of the fit; refused where classes were taken from the data."""
        check_is_fitted(self, "ridge_")
        if self._from_data:
            raise ConfigurationError(
                "no certificate: classes were taken from the data, which is not private. Give "
                "classes, known without looking at the data, and fit again"
            )
        return self.ridge_.certificate(declaration=declaration, audit=audit)


def _checked(classes: Any) -> list[Any]:
    """Classes as Python has them: texts, numbers or truth values, each once."""
    known = [plain(each, None) for each in classes]
    if not known or None in known or len(set(known)) != len(known):
        raise ConfigurationError(
            "classes must be at least one text, number or truth value, each once"
        )
    return known


def _as_array(y: Any) -> Any:
    """Labels as NumPy reads them: for whoever takes classes from the data."""
    return np.asanyarray(y.to_numpy() if hasattr(y, "to_numpy") else y)


def _cells(y: Any, *, texts: bool) -> Any:
    """Every label by itself, as an object: a text or a number, None for anything else.

    ``texts``: whether a class is one. An array of texts is refused where none is: NumPy has made
    all labels alike, and where one of them was a text, the others are lost.
    """
    if not is_list(y):
        array = _as_array(y)
        if array.dtype.kind not in f"biufcO{'US' * texts}":
            raise CellTypeError(
                f"y is an array of type {array.dtype.type.__name__}, and no class is a text: give "
                "a list, an array of objects or a data frame"
            )
        if array.dtype.kind == "c":  # a single complex label makes complex numbers of all
            array = np.where(array.imag == 0, array.real, nan)
        cells, shape = array.ravel().tolist(), array.shape
    else:
        cells, shape = list(y), (len(y),)
        if 2 * sum(map(is_list, cells)) > len(cells):  # a list for each row, as a column has them
            shape = as_number_rows(cells).shape
            cells = [each[0] if is_list(each) and len(each) == 1 else each for each in cells]
            if shape[1] != 1:
                return np.empty(shape)  # refused by its shape
    return np.array([plain(each, None) for each in cells], dtype=object).reshape(shape)


def _indicators(labels: list[Any], classes: list[Any]) -> FloatArray:
    """1 for the class of a row, 0 for the others; NaN for a row of no declared class."""
    hits = np.array([[label == each for label in labels] for each in classes])
    return np.where(hits.any(axis=0), hits, np.nan).T


def _mean_of_clipped(mean: FloatArray, width: FloatArray) -> FloatArray:
    """``E[clip(mean + width Z, 0, 1)]``, in closed form."""

    def above(edge: float) -> FloatArray:
        """``E[(f - edge)_+]``."""
        z = (mean - edge) / width
        density = np.exp(-0.5 * z**2) / sqrt(2 * pi)
        return np.asarray(width * density + (mean - edge) * 0.5 * (1 + _erf(z / sqrt(2))))

    return np.maximum(above(0.0) - above(1.0), 1e-12)
