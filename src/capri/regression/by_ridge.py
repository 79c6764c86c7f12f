"""What estimators have in common that ask a ridge, and make something else of its answer."""

import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning

from capri.arrays import FloatArray
from capri.errors import DataError
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.parameters import SharedParameters


class ByRidge(SharedParameters):
    """An estimator whose secrets all go through a :class:`PrivateKernelRidge` of its own."""

    def _ridge(self, **more: Any) -> PrivateKernelRidge:
        """One with the shared parameters, and more."""
        shared = {each.name: getattr(self, each.name) for each in fields(SharedParameters)}
        return PrivateKernelRidge(**shared | more)

    def _told_in_one_stage(
        self, X: Any, codes: FloatArray, weights: Any, *, lowest: float, **more: Any
    ) -> PrivateKernelRidge:
        """The means of codes, each 1 or ``lowest``, by a single release.

        Codes stay as large as they are however well their means are known. Later stages are there
        to encode smaller residuals with less noise: here they would only split the rows.
        """
        ones = np.ones(codes.shape[1])
        ridge = self._ridge(y_bounds=(lowest * ones, ones), stream_rows=max(1, len(codes)), **more)
        ridge._codes = True
        return ridge.partial_fit(X, codes, weights).release()

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
