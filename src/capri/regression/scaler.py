"""A scaler that learns from nobody."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.regression.options import checked_bounds
from capri.regression.tables import as_matrix


class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Columns to [0, 1] by public bounds, or by the range of public rows: the right way to scale.

    Fitting it looks at no row, so in a pipeline before a private estimator it costs neither a
    warning nor the certificate, unlike a scaler that learns from the data.

    >>> scaler = PublicScaler(bounds=(0, 10))
    >>> scaler.fit([[100.0]]).transform([[5.0], [20.0]]).ravel()
    array([0.5, 2. ])
    """

    def __init__(self, bounds: Any = None, *, public_X: Any = None) -> None:
        self.bounds = bounds
        self.public_X = public_X

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Nothing is learnt; the columns are counted."""
        if (self.bounds is None) == (self.public_X is None):
            raise ConfigurationError("PublicScaler needs bounds or public_X, one of them")
        if X is not None:
            self.n_features_in_ = as_matrix(X, "X").shape[1]
        return self

    def transform(self, X: Any) -> FloatArray:
        """``(x - low) / (high - low)``, beyond [0, 1] where a value is beyond its bounds."""
        self.fit()
        rows = as_matrix(X, "X")
        if self.bounds is not None:
            low, high = checked_bounds("bounds", self.bounds, rows.shape[1])
        else:
            public = as_matrix(self.public_X, "public_X")
            low, high = np.nanmin(public, axis=0), np.nanmax(public, axis=0)
            high = np.where(high > low, high, low + 1.0)
        with np.errstate(all="ignore"):
            return np.asarray((rows - low) / (high - low))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags
