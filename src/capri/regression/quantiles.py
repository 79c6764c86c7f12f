"""Quantiles by regression: where targets are, then how they spread there; every row told once.

Rows are dealt into two parts by lot, whatever their order is. The first fits a mean ``m(x)`` and
the size of residuals, as any ridge does. Of the second, residuals ``y - m(x)`` are cut into ``K``
classes at fixed edges. Nobody is in both parts, so each spends the full budget, like stages of one
fit. What the first part got wrong the second sees and mends: an error of ``m`` shifts its
residuals.

A class is told by its row of a Hadamard matrix without the first column, ``k = K - 1`` targets that
are 1 or -1. Their means give

    P(class c) = (1 + sum_j H_cj E[t_j]) / K,

and sums of these the distribution function ``F`` at the edges. A target of size 1 is the most that
the gate takes, and costs no more than a smaller one. With noise ``sigma sqrt(k)`` on each, ``F`` at
edge ``i`` has the noise

    sigma sqrt(k i (K - i)) / K:

in the middle that of cumulative indicators, ``sigma sqrt(k) / 2`` at every edge, and less at the
ends. Indicators of the classes themselves have ``sqrt(K^2 / 4 k)`` times as much everywhere.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Self

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtr, ndtri
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
from capri.regression.classifier import ByRidge, one_per_row
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.options import checked
from capri.regression.scikit_learn import SharedParameters
from capri.regression.summary import earlier_events, fit_digests, one_account
from capri.regression.tables import as_targets, as_weights, encoded, rows_at

# Probabilities closer to 0 or 1 than this are not told apart from it.
_LEAST = 0.002
# Added to the change of normal scores between two edges: a distribution has a density.
_STEEPER = 1e-3
# The normal score that stands for certainty.
_FAR = 8.0
# Share of the rows that fit the mean.
_FIRST = 0.7
# Classes of residuals.
_CLASSES = 8
# Edges are those of classes of equal probability under a Gaussian this much wider than residuals.
_STRETCH = 1.3


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualClasses:
    """Classes between increasing edges; with those below and above them a power of 2."""

    edges: FloatArray

    @property
    def _signs(self) -> FloatArray:
        return np.asarray(hadamard(len(self.edges) + 1, dtype=np.float64)[:, 1:])

    def codes(self, residuals: FloatArray) -> FloatArray:
        """The targets that tell the class of each; NaN for what is not a finite number."""
        codes = self._signs[np.searchsorted(self.edges, residuals)]
        return np.where(np.isfinite(residuals)[:, None], codes, np.nan)

    def below(self, means: FloatArray) -> FloatArray:
        """``F`` at the edges, from means of the targets, one row for each distribution.

        Sorted: of noisy values of an increasing function that is never farther from it.
        """
        chances = (1 + means @ self._signs.T) / (len(self.edges) + 1)
        return np.sort(np.cumsum(chances, axis=1)[:, :-1], axis=1)

    def distributions(self, means: FloatArray) -> "Distributions":
        """Normal scores ``z = ndtri(F)``, linear between edges: exact where targets are Gaussian.

        Beyond the last edge they go on as from the middle to it.
        """
        edges, middle = self.edges, len(self.edges) // 2
        scores = ndtri(np.clip(self.below(means), _LEAST, 1 - _LEAST))
        scores += _STEEPER * (np.arange(len(edges)) - middle)
        ends, last, far = edges[[0, -1]], scores[:, [0, -1]], np.array([-_FAR, _FAR])
        beyond = ends + (ends - edges[middle]) / (last - scores[:, [middle]]) * (far - last)
        inner, outer = np.tile(edges, (len(means), 1)), np.tile(far, (len(means), 1))
        return Distributions(
            scores=np.column_stack([outer[:, 0], scores, outer[:, 1]]),
            values=np.column_stack([beyond[:, 0], inner, beyond[:, 1]]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Distributions:
    """One in each row: the values at which ``ndtri(F)`` has these scores, both increasing."""

    scores: FloatArray
    values: FloatArray

    def quantiles(self, chances: FloatArray) -> FloatArray:
        """The same quantiles of all: one column each."""
        at = np.broadcast_to(ndtri(chances), (len(self.scores), len(chances)))
        return _between(at, self.scores, self.values)

    def chances(self, values: FloatArray) -> FloatArray:
        """``F`` at values of each row."""
        return np.asarray(ndtr(_between(values, self.values, self.scores)))


def _between(at: FloatArray, knots: FloatArray, heights: FloatArray) -> FloatArray:
    """Linear interpolation; each row has knots of its own."""
    right = (knots[:, :, None] <= at[:, None, :]).sum(axis=1).clip(1, knots.shape[1] - 1)
    (low, start), (high, end) = (
        [np.take_along_axis(each, place, axis=1) for each in (knots, heights)]
        for place in (right - 1, right)
    )
    return np.asarray(start + np.clip((at - low) / (high - low), 0, 1) * (end - start))


@dataclass(eq=False, repr=False)
class PrivateKernelQuantiles(
    SharedParameters,
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

    quantiles: Any = (0.1, 0.5, 0.9)
    y_bounds: Any = field(default=None, kw_only=True)

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
        # Nobody is in both parts, so what the first has reserved is for either.
        alone = {"random_state": random, "ledger": None, "population": None}
        spread = self._told_in_one_stage(X, codes, weights[second], lowest=-1.0, **alone)
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
