"""What estimators have in common that ask a ridge, and make something else of its answer."""

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from typing import Any

from sklearn.exceptions import DataConversionWarning

from capri.errors import DataError
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.parameters import SharedParameters


class ByRidge(SharedParameters):
    """An estimator whose secrets all go through a :class:`PrivateKernelRidge` of its own."""

    def _ridge(self, before: PrivateKernelRidge | None, **more: Any) -> PrivateKernelRidge:
        """One with the shared parameters; what it was ``before`` counts among its earlier fits."""
        shared = {each.name: getattr(self, each.name) for each in fields(SharedParameters)}
        ridge = PrivateKernelRidge() if before is None else copy(before)
        ridge.set_params(**shared | more)
        return ridge

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
