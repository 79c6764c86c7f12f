"""Quantiles by regression: where targets are, then how they spread there; every row told once.

Rows are dealt into two parts by lot, whatever their order is. The first fits a mean ``m(x)`` and
the size of residuals, as any ridge does. Of the second, residuals ``y - m(x)`` are cut into
classes, and a ridge with one target for each class but one tells how probable they are at ``x``.
Nobody is in both parts, so each spends the full budget, like stages of one fit. What the first part
got wrong the second sees and mends: an error of ``m`` shifts its residuals.
"""

from math import sqrt
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import d2_pinball_score
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted

from capri.arrays import FloatArray, IntArray
from capri.cells import is_list
from capri.checks import between
from capri.errors import ConfigurationError, DataError
from capri.files import digest_of
from capri.privacy.certificate import Certificate, Declaration, certify_fit
from capri.regression.by_ridge import ByRidge, one_per_row
from capri.regression.digests import fit_digests
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.options import checked
from capri.regression.parameters import QuantileParameters
from capri.regression.refits import earlier_events, one_account
from capri.regression.residual_classes import Distributions, ResidualClasses
from capri.regression.tables import as_targets, as_weights, encoded, rows_at

# Share of the rows that fit the mean.
_FIRST = 0.7
# Classes of residuals.
_CLASSES = 8
# Edges are those of classes of equal probability under a Gaussian this much wider than residuals.
_STRETCH = 1.3


class PrivateKernelQuantiles(
    QuantileParameters,
    ByRidge,
    RegressorMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Quantiles of a target given its row, with differential privacy: every row is told once.

    Parameters are those of :class:`PrivateKernelRidge`, with one target, and

    quantiles : float or sequence of floats
        Those that ``predict`` gives, each between 0 and 1. The fit does not depend on them: any
        others can be had of the same release.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 400)[:, None]
    >>> model = PrivateKernelQuantiles((0.1, 0.9), X_bounds=(0, 1), y_bounds=(0, 1), epsilon=4.0)
    >>> model.fit(X, X[:, 0] ** 2).predict([[0.1], [0.5], [0.9]]).shape
    (3, 2)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on an array or a data frame, with one number per row."""
        _checked(self.quantiles)
        targets = one_per_row(y, "number", as_targets)
        # One generator for both: equal seeds would give both parts the same noise.
        random = None if self.random_state is None else check_random_state(self.random_state)
        ridge = self._ridge(y_bounds=self.y_bounds, random_state=random)
        # All rows are checked before any is released.
        options = checked(ridge)
        rows = encoded(X, options.schema, self)
        check_consistent_length(rows, targets)
        if is_list(X) and options.schema is None:  # read once: parts could differ in most lengths
            X = rows
        weights = np.ones(len(targets))
        if sample_weight is not None:
            weights = as_weights(sample_weight, options.weight_bound, len(targets))[:, 0]
        weights = weights * options.weight_bound
        seed = None if random is None else int(random.randint(2**31 - 1))
        first, second = _parts(len(targets), np.random.default_rng(seed))
        ridge.fit(rows_at(X, "X", first), targets[first], weights[first])
        ridge.past_events_ = earlier_events(getattr(self, "ridge_", None), ridge)
        X, targets = rows_at(X, "X", second), targets[second]
        scores = ndtri(np.arange(1, _CLASSES) / _CLASSES)
        classes = ResidualClasses(edges=_STRETCH * _size_of_residuals(ridge) * scores)
        with np.errstate(all="ignore"):  # a warning would tell of the row that overflows
            codes = classes.codes(targets - ridge.predict(X))
        spread = self._told_in_one_stage(
            X, codes, weights[second], lowest=-1.0, random_state=random
        )
        self.ridge_, self.spread_, self.residual_classes_ = ridge, spread, classes
        self._know_columns_of(ridge)
        return self

    def predict(self, X: Any) -> FloatArray:
        """One column per quantile, or a vector where ``quantiles`` is a number.

        They never cross. NaN for a row that is not made of numbers.
        """
        found = self._quantiles(X, _checked(self.quantiles))
        return found[:, 0] if np.ndim(self.quantiles) == 0 else found

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of where a new target at each row is with this probability.

        From quantile ``(1 - level) / 2`` to ``(1 + level) / 2``, as far as these are known. For
        what the mean may be, see :meth:`PrivateKernelRidge.predict_interval`.
        """
        level = between("level", level, 0.0, 1.0, open_ends=True)
        found = self._quantiles(X, np.array([0.5 - level / 2, 0.5 + level / 2]))
        return found[:, 0], found[:, 1]

    def predict_cdf(self, X: Any, values: Any) -> FloatArray:
        """The probability that a target is at most each of these values: one column each."""
        mean, residuals = self._distributions(X)
        asked = np.atleast_1d(np.asarray(values, dtype=np.float64))
        bounds = self.ridge_.model_.targets
        chances = np.where(asked < bounds.low, 0.0, residuals.chances(asked - mean))
        unknown = np.isnan(mean) | np.isnan(asked)
        return np.where(unknown, np.nan, np.where(asked < bounds.high, chances, 1.0))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """``1 - loss / loss of the best constant`` in pinball loss, the mean over quantiles.

        On rows that are not public it is not private.
        """
        asked, found = _checked(self.quantiles), self.predict(X)
        return float(
            np.mean(
                [
                    d2_pinball_score(y, each, alpha=alpha, sample_weight=sample_weight)
                    for alpha, each in zip(asked, found.reshape(-1, len(asked)).T, strict=True)
                ]
            )
        )

    def _quantiles(self, X: Any, quantiles: FloatArray) -> FloatArray:
        mean, residuals = self._distributions(X)
        bounds = self.ridge_.model_.targets
        return np.clip(mean + residuals.quantiles(quantiles), bounds.low, bounds.high)

    def _distributions(self, X: Any) -> tuple[FloatArray, Distributions]:
        """The mean at each row, and the law of what is added to it."""
        check_is_fitted(self, "spread_")
        residuals = self.residual_classes_.distributions(self.spread_.predict(X))
        return self.ridge_.predict(X)[:, None], residuals

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee of the fit, both parts together: no row is in both."""
        check_is_fitted(self, "spread_")
        ridges = self.ridge_, self.spread_
        digests = [fit_digests(each._engine) for each in ridges]
        return certify_fit(
            one_account([each.ledger_ for each in ridges]),
            private=all(each._private for each in ridges),
            from_data=self.ridge_._engine.from_data,
            called_by=self.ridge_._engine.called_by,
            declaration=declaration,
            audit=audit,
            digests={
                "configuration": digest_of({"parts": [d["configuration"] for d in digests]}, {}),
                "plans": [plan for each in digests for plan in each["plans"]],
            },
            earlier_fits=len(self.ridge_.past_events_),
        )


def _checked(quantiles: Any) -> FloatArray:
    """One or several numbers between 0 and 1."""
    listed = [quantiles] if np.ndim(quantiles) == 0 else list(quantiles)
    if not listed:
        raise ConfigurationError("quantiles must be at least one number between 0 and 1, got none")
    return np.array([between("quantiles", each, 0.0, 1.0, open_ends=True) for each in listed])


def _parts(rows: int, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """The places of the rows of each part, in an order of their own: stages go by it as well."""
    if rows < 2:
        raise DataError(f"quantiles need 2 rows or more, got n_samples = {rows}")
    order = generator.permutation(rows)
    first = min(max(1, round(_FIRST * rows)), rows - 1)
    return order[:first], order[first:]


def _size_of_residuals(ridge: PrivateKernelRidge) -> float:
    """The standard deviation of the residual of a further row, as far as releases tell."""
    half, estimate = ridge.model_.targets.half[0], ridge.model_.estimates[0]
    error = np.sum(ridge._engine.law.covariance * estimate.covariance)
    return float(half) * sqrt(estimate.noise_variance + error)
