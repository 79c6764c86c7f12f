"""Quantiles by regression: where targets are, then how they spread there; every row told once.

Rows are dealt into two parts by a public permutation. The first fits a mean ``m(x)`` and the size
``s`` of residuals, as any ridge does. Of the second, ``u = (y - m(x)) / s`` is cut into ``K``
classes at fixed edges, and the release is that of a ridge with the targets ``t_j = H_j,class``,
the columns but the first of a Hadamard matrix. Then

    P(class c | x) = (1 + sum_j H_cj E[t_j | x]) / K,

and sums of it are the distribution function at the edges. Every target is 1 or -1, the most that
the gate lets it be, so with ``k = K - 1`` targets of noise ``sigma sqrt(k)`` each, ``F`` at edge
``i`` has the noise ``sigma sqrt(k i (K - i)) / K``: in the middle that of cumulative indicators,
``sigma sqrt(k) / 2``, and less at the ends, where most quantiles are asked for. Indicators of the
classes would have ``sqrt(K) / 2`` times as much or more.

Nobody is in both parts, so each spends the full budget, like stages of one fit. What the first
part got wrong the second sees and mends: an error of ``m`` shifts its residuals.
"""

from math import sqrt
from typing import Any, Self

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import d2_pinball_score
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted

from capri.arrays import FloatArray, IntArray
from capri.checks import between
from capri.errors import ConfigurationError, DataError
from capri.privacy.certificate import Certificate, Declaration, certify_fit
from capri.privacy.certificate.digests import digest_of
from capri.regression.by_ridge import ByRidge, one_per_row
from capri.regression.digests import fit_digests
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.parameters import QuantileParameters
from capri.regression.refits import one_account
from capri.regression.tables import as_targets

# Share of the rows that fit the mean.
_FIRST = 0.7
# Classes of residuals: more where rows times epsilon are at least the second number.
_CLASSES, _MORE_CLASSES, _MANY = 4, 8, 1e5
# Edges are those of classes of equal probability under a Gaussian this much wider than residuals.
_STRETCH = 1.6
# Probabilities closer to 0 or 1 than this are not told apart from it.
_LEAST = 0.002
# Added to the change of normal scores between two edges: a distribution has a density.
_STEEPER = 1e-3
# The score that stands for certainty.
_FAR = 8.0


class PrivateKernelQuantiles(
    QuantileParameters,
    ByRidge,
    RegressorMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Quantiles of a target given its row, with differential privacy: every row is told once.

    Parameters are those of :class:`PrivateKernelRidge`, with one target, and

    quantiles : float or sequence of floats
        Those that ``predict`` gives, each between 0 and 1. A choice of words, not of the fit: all
        others can be had of the same release.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 400)[:, None]
    >>> model = PrivateKernelQuantiles((0.1, 0.9), X_bounds=(0, 1), y_bounds=(0, 1), epsilon=4.0)
    >>> model.fit(X, X[:, 0] ** 2).predict([[0.1], [0.5], [0.9]]).shape
    (3, 2)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on an array or a data frame, with one number per row."""
        _checked_quantiles(self.quantiles)
        targets = one_per_row(y, "number", as_targets)
        check_consistent_length(X, targets, sample_weight)
        simulated = None if self.random_state is None else check_random_state(self.random_state)
        first, second = (
            (_safe_indexing(X, part), targets[part], _cut(sample_weight, part))
            for part in _parts(len(targets))
        )
        ridge = self._ridge(
            getattr(self, "ridge_", None), y_bounds=self.y_bounds, random_state=simulated
        ).fit(*first)
        classes = _CLASSES if len(targets) * self.epsilon < _MANY else _MORE_CLASSES
        edges = _STRETCH * _size_of_residuals(ridge) * ndtri(np.arange(1, classes) / classes)
        X, targets, weights = second
        codes = _codes(targets - ridge.predict(X), edges)
        ones = np.ones(classes - 1)
        spread = self._ridge(None, y_bounds=(-ones, ones), random_state=simulated)
        spread.fit(X, codes, weights)
        self.ridge_, self.spread_, self.edges_ = ridge, spread, edges
        self._know_columns_of(ridge)
        return self

    def predict(self, X: Any) -> FloatArray:
        """One column per quantile, or a vector where ``quantiles`` is a number.

        They never cross. NaN for a row that is not made of numbers.
        """
        found = self._quantiles(X, _checked_quantiles(self.quantiles))
        return found[:, 0] if np.ndim(self.quantiles) == 0 else found

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of where a new target at each row is with this probability.

        From quantile ``(1 - level) / 2`` to ``(1 + level) / 2``. It is as good as the estimate of
        these: for what the mean may be, see :meth:`PrivateKernelRidge.predict_interval`.
        """
        level = between("level", level, 0.0, 1.0, open_ends=True)
        found = self._quantiles(X, np.array([0.5 - level / 2, 0.5 + level / 2]))
        return found[:, 0], found[:, 1]

    def predict_cdf(self, X: Any, values: Any) -> FloatArray:
        """The probability that a target is at most each of these public values: one column each."""
        mean, scores, edges = self._distribution(X)
        at = np.atleast_1d(np.asarray(values, dtype=np.float64)) - mean
        bounds = self.ridge_.model_.targets
        chances = ndtr(_between(at, edges, scores))
        chances = np.where(
            at + mean < bounds.low, 0.0, np.where(at + mean >= bounds.high, 1.0, chances)
        )
        return np.where(np.isnan(mean), np.nan, chances)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean over quantiles of ``1 - loss / loss of the constant``, with the pinball loss.

        On rows that are not public it is not private.
        """
        found = self.predict(X).reshape(len(y), -1)
        return float(
            np.mean(
                [
                    d2_pinball_score(y, each, alpha=alpha, sample_weight=sample_weight)
                    for each, alpha in zip(found.T, _checked_quantiles(self.quantiles), strict=True)
                ]
            )
        )

    def _quantiles(self, X: Any, quantiles: FloatArray) -> FloatArray:
        mean, scores, edges = self._distribution(X)
        at = np.broadcast_to(ndtri(quantiles), (len(mean), len(quantiles)))
        bounds = self.ridge_.model_.targets
        return np.clip(mean + _between(at, scores, edges), bounds.low, bounds.high)

    def _distribution(self, X: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The mean at each row, and normal scores ``z`` with ``P(y <= mean + edge) = ndtr(z)``.

        Scores are linear in the edge between edges, which is exact for Gaussian targets, and go
        on beyond the last as from the middle to it. Sorted probabilities are nearer to those of any
        distribution than unsorted ones.
        """
        check_is_fitted(self, "spread_")
        mean = self.ridge_.predict(X)[:, None]
        edges = self.edges_
        signs = hadamard(len(edges) + 1, dtype=np.float64)[:, 1:]
        chances = (1 + self.spread_.predict(X) @ signs.T) / len(signs)
        below = np.sort(np.cumsum(chances, axis=1)[:, :-1], axis=1)
        scores = ndtri(np.clip(below, _LEAST, 1 - _LEAST)) + _STEEPER * np.arange(len(edges))
        middle = len(edges) // 2
        ends = np.array([edges[0], edges[-1]])
        outer = scores[:, [0, -1]]
        slopes = (ends - edges[middle]) / (outer - scores[:, [middle]])
        far = np.array([-_FAR, _FAR])
        beyond = ends + slopes * (far - outer)
        edges = np.tile(edges, (len(mean), 1))
        return (
            mean,
            np.column_stack([np.full(len(mean), -_FAR), scores, np.full(len(mean), _FAR)]),
            np.column_stack([beyond[:, 0], edges, beyond[:, 1]]),
        )

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee of the fit, both parts together: no row is in both."""
        check_is_fitted(self, "spread_")
        ridges = self.ridge_, self.spread_
        parts = [fit_digests(each._engine) for each in ridges]
        return certify_fit(
            one_account([each.ledger_ for each in ridges]),
            private=all(each._private for each in ridges),
            from_data=self.ridge_._engine.from_data,
            declaration=declaration,
            audit=audit,
            digests={
                "configuration": digest_of(
                    {"parts": [each["configuration"] for each in parts]}, {}
                ),
                "plans": [plan for each in parts for plan in each["plans"]],
            },
            earlier_fits=len(self.ridge_.past_events_),
        )


def _checked_quantiles(quantiles: Any) -> FloatArray:
    """One or several numbers between 0 and 1."""
    listed = [quantiles] if np.ndim(quantiles) == 0 else list(quantiles)
    if not listed:
        raise ConfigurationError("quantiles must be at least one, got none")
    return np.array([between("quantiles", each, 0.0, 1.0, open_ends=True) for each in listed])


def _parts(rows: int) -> tuple[IntArray, IntArray]:
    """The places of the rows of each part, known from their number alone."""
    if rows < 2:
        raise DataError(f"quantiles need 2 rows or more, got n_samples = {rows}")
    order = np.random.default_rng(rows).permutation(rows)
    first = min(max(1, round(_FIRST * rows)), rows - 1)
    return np.sort(order[:first]), np.sort(order[first:])


def _cut(weights: Any, part: IntArray) -> Any:
    return None if weights is None else _safe_indexing(weights, part)


def _size_of_residuals(ridge: PrivateKernelRidge) -> float:
    """The standard deviation of the residual of a further row, as far as releases tell."""
    model = ridge.model_
    estimate = model.estimates[0]
    error = float(np.sum(ridge._engine.law.covariance * estimate.covariance))
    variance = estimate.noise_variance + estimate.tail_variance + error
    return float(model.targets.half[0]) * sqrt(variance)


def _codes(residuals: FloatArray, edges: FloatArray) -> FloatArray:
    """The row of the Hadamard matrix of each residual's class; NaN where there is none."""
    signs = hadamard(len(edges) + 1, dtype=np.float64)[:, 1:]
    codes = signs[np.searchsorted(edges, residuals)]
    return np.where(np.isfinite(residuals)[:, None], codes, np.nan)


def _between(at: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Linear interpolation, row by row: each row has increasing knots of its own."""
    last = knots.shape[1] - 1
    right = np.clip((knots[:, :, None] <= at[:, None, :]).sum(axis=1), 1, last)
    low, high = (np.take_along_axis(knots, each, axis=1) for each in (right - 1, right))
    start, end = (np.take_along_axis(values, each, axis=1) for each in (right - 1, right))
    return np.asarray(start + np.clip((at - low) / (high - low), 0, 1) * (end - start))
