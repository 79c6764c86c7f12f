"""Whether releases are what the belief expected: the chi-square of innovations.

Before a release is learnt from, the belief ``theta ~ N(m, P)`` predicts it, and with ``R`` the
covariance of privacy and sampling noise

    e = g - H (m - baseline),     S = H P H^T + R,     e^T S^-1 e ~ chi2(rank)

if kernel, prior, pool and noise are what the learner takes them for. Given the releases before it
an innovation is independent of theirs, so sums over releases are chi-square, too. A kernel that is
too smooth cannot express ``f``: the belief becomes certain of something wrong, and ``e`` is many
deviations long.

What the releases say of the known kernel with other lengthscales, or with a constant added.

Each candidate ``k'`` is a Gaussian prior on the coefficients of the one public basis. In ``L2`` of
uniform play, where ``e_j`` has norm ``lambda_j^1/2``, the known prior has covariance
``Lambda^(1 + smoothness)`` up to a factor. That of a candidate is, with its operator seen from the
basis,

    A = G^-1/2 E[v(w) k'(w, w') v(w')^T] G^-1/2,     G = E[v v^T],
    theta ~ N(0, G^-1/2 A^(1 + smoothness) G^-1/2),  scaled to E f^2 = 0.1 (s B)^2

for independent public pairs ``w``, ``w'``; ``k' = k`` gives ``A = Lambda`` and the known prior. The
basis is made for the known kernel: of a much shorter lengthscale it holds the smooth part only, so
evidence can call for a shorter one and understate by how much. Rewards with a large common level
look like a function of a long lengthscale; the candidate with a constant keeps these apart.

Whether those who come can have come from the public pool.

Every message of products carries combinations ``q`` of its own second moments, whatever its reward
is and whether one came: the one thing said of pairs that no reward is mixed with. Under the pool's
law they are known in advance,

    e = sum q - n E[q],     C = sigma^2 I + n Cov[q],     e^T C^-1 e ~ chi2(size),

and independent from release to release, so sums over releases are chi-square, too. With many users
any pool is found out, even one that is as good as a sample can be: an alarm also asks for a law
learnt from the moments that is far from the pool's.

Whether rewards still come when the wait is over: the rate of answers by how long was waited.

The last decision of an epoch is waited for as long as ``reward_wait`` says, the first one longer,
by as long as the epoch takes. With ``F(a)`` the share of rewards that come within ``a`` decisions,
an epoch of ``n`` decisions and wait ``w`` has the rate

    F(infinity) - (1/n) sum_{j < n} (F(infinity) - F(w + j))

which does not depend on ``n`` where the wait covers all delays, and rises with ``n`` where it does
not. Purchases that take longer than bounces are then lost more often than bounces, and estimates
are of those that were quick. Every epoch releases its rate where missing rewards are measured, so
comparing long epochs with the first ones is post-processing: it costs nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np
from scipy.special import chdtrc

from capri.arrays import FloatArray
from capri.epoch.plan import Release
from capri.features import NUMERICAL_RANK, Basis
from capri.kernels import Constant, Kernel, stretched
from capri.learners.active import epoch_failure
from capri.learners.belief import PRIOR_SCALES, Belief, Believed, Told, prior_moment, scale_penalty
from capri.learners.drift import innovation

# How often a policy whose model is right says that it is wrong, over all of its releases.
FALSE_ALARMS = 5e-3


@dataclass(frozen=True)
class Innovation:
    """``e^T S^-1 e`` of one release, and its degrees of freedom."""

    chi_square: float
    degrees: int

    @classmethod
    def of(cls, told: Iterable[Told], before: Believed) -> "Innovation":
        """The release against what was believed before it."""
        chi_square, _, degrees = innovation(told, before)
        return cls(chi_square, degrees)


@dataclass(frozen=True)
class Fit:
    """Innovations so far: their sum, its degrees of freedom, and how many they are."""

    chi_square: float = 0.0
    degrees: int = 0
    releases: int = 0

    def after(self, innovation: Innovation) -> "Fit":
        """With one more."""
        return Fit(
            self.chi_square + innovation.chi_square,
            self.degrees + innovation.degrees,
            self.releases + 1,
        )

    @property
    def ratio(self) -> float:
        """Chi-square per degree of freedom: about 1 where the model is right."""
        return self.chi_square / max(self.degrees, 1)

    def chance(self, newest: Innovation) -> float:
        """How often a right model would look this wrong at some release: at most so often.

        Release ``r`` has the share ``6/(pi r)^2`` of all false alarms, which sum to 1 over any
        number of releases; half of it for the release alone, half for the sum so far. A jump shows
        in the first, a drift that no single release tells in the second.
        """
        alone = float(chdtrc(newest.degrees, newest.chi_square))
        together = float(chdtrc(self.degrees, self.chi_square))
        return min(1.0, 2 * min(alone, together) / epoch_failure(1.0, self.releases))


@dataclass(frozen=True)
class PoolTest:
    """How far who came is from whom the pool says.

    ``mismatch``: total variation between the learnt law and the pool's. ``elsewhere``: the share of
    users that the pool has nobody like.
    """

    fit: Fit = field(default_factory=Fit)
    mismatch: float = 0.0
    elsewhere: float = 0.0

    def after(self, newest: Innovation, mismatch: float, elsewhere: float) -> "PoolTest":
        """With the moments of one more release."""
        return PoolTest(self.fit.after(newest), mismatch, elsewhere)


# Epochs of up to twice the length of the first are short, from six times on they are long.
_SHORT, _LONG = 2, 6


@dataclass(frozen=True)
class Rates:
    """Rates of answers of short and of long epochs, weighted by their precision."""

    first: int = 0
    short: float = 0.0
    short_precision: float = 0.0
    long: float = 0.0
    long_precision: float = 0.0

    def after(self, release: Release) -> "Rates":
        """With the rate of one more epoch, where it was measured."""
        layout, length = release.plan.asked, release.participants
        measured = {"count", "missing"} & set(layout.blocks)  # in all, or by cell
        if not measured or length == 0:
            return self
        missing = float(layout.part(release.vector, "count")[0])
        return self.measured(1 - missing / length, layout.deviation("count") / length, length)

    def measured(self, rate: float, deviation: float, length: int) -> "Rates":
        """``deviation`` is that of the privacy noise; who answers is a coin of its own."""
        first = self.first or length
        likely = min(max(rate, 0.05), 0.95)
        precision = 1 / (deviation**2 + likely * (1 - likely) / length)
        if length <= _SHORT * first:
            return replace(
                self,
                first=first,
                short=self.short + precision * rate,
                short_precision=self.short_precision + precision,
            )
        if length >= _LONG * first:
            return replace(
                self,
                long=self.long + precision * rate,
                long_precision=self.long_precision + precision,
            )
        return self

    @property
    def rise(self) -> tuple[float, float] | None:
        """How much higher the rate of long epochs is, and the standard deviation of that."""
        if not (self.short_precision and self.long_precision):
            return None
        higher = self.long / self.long_precision - self.short / self.short_precision
        return higher, sqrt(1 / self.short_precision + 1 / self.long_precision)


# What lengthscales are multiplied by.
FACTORS = (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel as a prior: ``root root^T`` is the covariance of coefficients with ``E f^2 = 1``.

    ``factor`` is what lengthscales are multiplied by, ``constant`` the variance that is added.
    """

    factor: float
    constant: float
    root: FloatArray

    def log_evidence(self, belief: Belief, norm_bound: float) -> float:
        """Of all releases, at the best prior scale ``s``, up to a constant that all share.

        With ``W = root^T J root = U diag(w) U^T`` and ``c = U^T root^T h``, and ``a`` the prior
        second moment at scale ``s``: ``sum_i (a c_i^2 / (1 + a w_i) - ln(1 + a w_i)) / 2``.
        """
        weights, vectors = np.linalg.eigh(self.root.T @ belief.information @ self.root)
        weights = np.maximum(weights, 0.0)
        squares = (vectors.T @ (self.root.T @ belief.vector)) ** 2
        moments = np.array([prior_moment(scale, norm_bound) for scale in PRIOR_SCALES])[:, None]
        grown = 1 + moments * weights
        evidence = 0.5 * (moments * squares / grown - np.log(grown)).sum(axis=1)
        penalties = np.array([scale_penalty(scale) for scale in PRIOR_SCALES])
        return float((evidence - penalties).max())


def candidates(
    kernel: Kernel, basis: Basis, pairs: FloatArray, smoothness: float
) -> tuple[Candidate, ...]:
    """The known kernel first, then what could stand in its place; none without a lengthscale."""
    others = [(1.0, 0.0, kernel)]
    for factor in FACTORS:
        if (other := stretched(kernel, factor)) is None:
            return ()
        others.append((factor, 0.0, other))
    level = float(kernel.diagonal(pairs).mean())
    others.append((1.0, level, kernel + Constant(max(level, NUMERICAL_RANK))))
    features = basis.coordinates(pairs)
    gram, axes = np.linalg.eigh(features.T @ features / len(pairs))
    kept = gram > NUMERICAL_RANK * gram[-1]
    # Coordinates in which uniform play is white: u = white^T v, and f = u^T x for theta = white x.
    white = axes[:, kept] / np.sqrt(gram[kept])
    seen = features @ white / len(pairs)
    return tuple(
        Candidate(factor, constant, white @ _root(seen.T @ other(pairs, pairs) @ seen, smoothness))
        for factor, constant, other in others
    )


def _root(operator: FloatArray, smoothness: float) -> FloatArray:
    """A root of ``A^(1 + smoothness)`` with trace 1."""
    values, vectors = np.linalg.eigh(operator)
    powers = np.maximum(values, 0.0) ** (1 + smoothness)
    return np.asarray(vectors * np.sqrt(powers / powers.sum()))
