"""The shuffle model: the central epsilon of a batch of local reports whose order is lost.

Somebody who mixes the reports of an epoch before anybody else sees them hides each among the
others. Every bound here is on the privacy of one person, whose datum is replaced by any other,
against whoever sees the mixed batch and nothing else; all others may hold any data.

A user is in one batch. For a batch of ``n`` reports the local epsilon is the largest one whose
mixed batch keeps the central budget, and never above ``most``, which every device promises to its
user without trusting anybody. Small batches hide little, so their reports carry more noise; even
one alone may spend the central epsilon itself.

**The sphere's own blanket** (Balle, Bell, Gascon & Nissim 2019). A report is uniform on its ``M``
numbers with probability ``gamma = M (1 - p) / (M - k)``, whatever the datum, and otherwise uniform
on the ``k`` nearest. With ``n`` reports

    delta(epsilon) <= E[(L_1 + ... + L_N)_+] / (gamma n),    N ~ Bin(n, gamma),

where ``L = M (P(j | u) - e^epsilon P(j | u'))`` for a uniform number ``j``. Disjoint near sets are
the worst. Two numbers that are near to one datum each give ``L`` the values ``a`` and ``b``; were
one of them near to both and the other to none, ``d`` and ``c``. Now ``a + b = c + d`` and ``b <= c,
d <= a``, so the former law is the more spread out, and so is the sum, of which a convex function is
taken. The same holds for every seed, and rounding to the sphere mixes such laws.

Sums over counts are cut and rounded to the private side. The bound does not grow with ``n``, so
that of ``_MOST_REPORTS`` holds for all larger batches: given the sum ``S_(n+1)`` of all, the mean
of ``S_n / n`` is ``S_(n+1) / (n + 1)``, and the positive part is convex (Jensen).

**Which sphere.** The one of smallest variance for its local epsilon is not that for its batch
(Liew & Takagi 2026, arXiv 2604.28032). In a large batch what is given away is a Gaussian's, with

    mu^2 = S / n,    S = E[(r - r')^2] / b = 2 (k/M) (a - b)^2 / b

of the densities ``a`` of near numbers and ``b`` of others against uniform ones: among spheres of
one ``S`` there are better ones, with fewer near directions and a larger local epsilon. They are
proposed by ``S``, and taken where the bound above keeps the budget.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, expm1, sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.sphere import COIN, Sphere, least_of, sphere

# Counts farther than this many deviations from their mean are bounded, not added up.
_DEVIATIONS = 9.0
# Deviations in a block that a count is rounded in: rounds epsilon up by a part of a thousand.
_BLOCK = 0.25
# What binomial tails of SciPy are wrong by, and more.
_ROUNDING = 1e-6
# Up to here logarithms of binomial chances are right to a part of ``_ROUNDING``.
_MOST_REPORTS = 10**8
# A bisection ends within this share of its result.
_CLOSE = 1e-4
# The local epsilon hardly depends on the number of coordinates: it is searched for at this one, and
# what is found for another is checked there.
_TYPICAL_DIMENSION = 32
# Local epsilons that are tried, so many to a unit: plans of all lengths share their randomizers.
_PER_UNIT = 50
LARGEST_LOCAL = 16.0
# What a batch gives away is proposed this much above that of the local optimum, and then less.
_MORE, _LESS = 1.15, 0.97


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Reports are mixed before the aggregator sees them.

    ``most``: the local epsilon that no device is asked to exceed, whoever reads its report.
    ``honest``: the share of the reports of a batch that surely come from people who follow the
    protocol and that surely are in it; the central budget is accounted for so many alone.

    >>> shuffle = Shuffle(most=8.0)
    >>> best = shuffle.randomizer(Budget(1.0, 1e-6), reports=10_000, dimension=12)
    >>> 5.5 < best.epsilon < 5.7
    True
    >>> [shuffle.keeps(Budget(1.0, 1e-6), best, reports) for reports in (10_000, 5_000)]
    [True, False]
    """

    most: float = 8.0
    honest: float = 1.0

    def __post_init__(self) -> None:
        between("most", self.most, 1e-3, LARGEST_LOCAL)
        between("honest", self.honest, 0.0, 1.0)
        if self.honest == 0:
            raise ConfigurationError("honest must be above 0: nobody hides among nobody")

    def check(self, budget: Budget) -> None:
        """Refuse a budget that mixing cannot keep."""
        if budget.delta == 0:
            raise ConfigurationError(
                "mixed reports need delta above 0, such as Budget(epsilon=1.0, delta=1e-6): what "
                "others hide is a matter of chance"
            )

    def counted(self, reports: int) -> int:
        """Reports of a batch that a user is accounted to hide among, the user's own included."""
        return max(1, int(self.honest * reports))

    def local_epsilon(self, budget: Budget, reports: int) -> float:
        """What a report may spend in a batch of so many, by and large.

        At least the central epsilon, which needs no batch, unless ``most`` is less.
        """
        if self.most <= budget.epsilon:
            return self.most
        return _largest(self, budget, self.counted(reports))

    def randomizer(self, budget: Budget, reports: int, dimension: int) -> Sphere:
        """The sphere of so many coordinates that keeps the budget in a batch of so many reports."""
        spent, sure = self.local_epsilon(budget, reports), min(budget.epsilon, self.most)
        while not self.keeps(budget, found := sphere(spent, dimension), reports):
            spent = max(spent - 1 / _PER_UNIT, sure)
        if found.keeps(budget.epsilon):
            return found  # alone, without a batch
        leak = _MORE * _leak(found)
        while (better := mixing_sphere(leak, self.most, dimension)) is not None:
            if better.deviation >= found.deviation:
                break
            if self.keeps(budget, better, reports):
                return better
            leak *= _LESS
        return found

    def keeps(self, budget: Budget, local: Sphere, reports: int) -> bool:
        """Whether a batch of so many reports keeps both promises."""
        if not local.keeps(self.most):
            return False
        if local.keeps(budget.epsilon):
            return True
        return blanket_delta(local, self.counted(reports), budget.epsilon) <= budget.delta

    def central_epsilon(self, budget: Budget, local: Sphere, reports: int) -> float:
        """What a batch of so many reports really costs at the delta of the budget."""
        return central_epsilon(local, self.counted(reports), budget.delta)


def _leak(local: Sphere) -> float:
    """``S``, of which ``S / n`` is given away by a batch."""
    near, far = (local.candidates * float(each) for each in local.probabilities)
    return 2 * local.near / local.candidates * (near - far) ** 2 / far


@lru_cache(maxsize=4096)
def mixing_sphere(leak: float, most: float, dimension: int) -> Sphere | None:
    """The sphere of smallest variance, or nearly, that gives so much away to who sees a batch.

    With ``q = k/M``, ``a q + b (1 - q) = 1`` and ``S``: ``(1 - b)^2 / b = q S / 2``. None where all
    would cost more than ``most`` alone.
    """

    def of(candidates: int, near: int) -> Sphere:
        share = near / candidates
        half = leak * share / 4
        far = 1 + half - sqrt(half * (half + 2))
        chance = max(-(-COIN * near // candidates), int(COIN * (1 - far * (1 - share))))
        return Sphere(dimension=dimension, candidates=candidates, near=near, chance=chance)

    return least_of(of, lambda each: each.keeps(most))


@lru_cache(maxsize=1024)
def _largest(shuffle: Shuffle, budget: Budget, counted: int) -> float:
    """By bisection among the local epsilons that are tried, at the typical dimension."""
    central = budget.epsilon
    if _hidden(shuffle.most, budget, counted):
        return shuffle.most
    spent, low, high = central, int(central * _PER_UNIT), ceil(shuffle.most * _PER_UNIT)
    while high - low > 1:
        middle = (low + high) // 2
        if _hidden(middle / _PER_UNIT, budget, counted):
            spent, low = middle / _PER_UNIT, middle
        else:
            high = middle
    return max(spent, central)


def _hidden(spent: float, budget: Budget, counted: int) -> bool:
    """Whether so many reports of a local epsilon keep the budget, at the typical dimension."""
    mechanism = sphere(spent, _TYPICAL_DIMENSION)
    return blanket_delta(mechanism, counted, budget.epsilon) <= budget.delta


# -- what a batch gives away -----------------------------------------------------------------------


def central_epsilon(local: Sphere, reports: int, delta: float) -> float:
    """The smallest epsilon of so many mixed reports at ``delta``; at most the local one.

    >>> round(central_epsilon(sphere(4.0, 50), 100_000, 1e-6), 3)
    0.107
    """
    reports = whole("reports", reports)
    delta = between("delta", delta, 0.0, 1.0, open_ends=True)
    low, high = 0.0, local.epsilon
    while high - low > _CLOSE * high and high > 1e-9:
        middle = (low + high) / 2
        if blanket_delta(local, reports, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=1024)  # plans, shuffler and certificate ask for the same batch
def blanket_delta(mechanism: Sphere, reports: int, epsilon: float) -> float:
    """``E[(sum L)_+] / (gamma n)``, rounded up; 0 from the local epsilon on.

    Of ``n`` reports ``K ~ Bin(n, 2 gamma k / M)`` fall on near numbers of either datum, ``A ~
    Bin(K, 1/2)`` of them on the one's, and ``C`` of the others on the rest: the sum is ``a A + b (K
    - A) + c C``. Given ``K`` and ``C`` its positive part is a tail of ``A``.
    """
    if epsilon >= mechanism.epsilon:
        return 0.0
    reports = min(reports, _MOST_REPORTS)
    near, far = (mechanism.candidates * float(each) for each in mechanism.probabilities)
    share, gamma = mechanism.near / mechanism.candidates, far  # M (1 - p) / (M - k)
    grown, lost = exp(epsilon), -expm1(epsilon)
    high, low, rest = near - grown * far, far - grown * near, far * lost
    hit = 2 * gamma * share
    other = gamma * (1 - 2 * share) / (1 - hit)
    first, last = _range(reports, hit)
    total = high * _expected_outside(reports, hit, first, last)
    block = max(1, int(2 * _BLOCK * sqrt(reports * hit * (1 - hit))))
    for start in range(first, last + 1, block):
        hits = np.arange(start, min(start + block, last + 1)).astype(np.float64)
        # C is rounded down in blocks, and so is the number of trials it is counted in: c <= 0, so
        # the sum is rounded up. What lies below all blocks counts as 0.
        trials = reports - int(hits[-1])
        least, most = _range(trials, other)
        step = max(1, int(_BLOCK * sqrt(trials * other * (1 - other))))
        edges = np.arange(least, most + 1, step).astype(np.float64)
        # P(C < edge), by the tail of the reports that are no such C.
        below = np.append(_at_least(trials - edges + 1, float(trials), 1 - other), 1.0)
        mass = np.append(below[0], np.diff(below))
        parts = _positive_part(high, low, hits[:, None], rest * np.append(0.0, edges)[None])
        total += float(_binomial(reports, hit, hits) @ (parts @ mass))
    return total / (gamma * reports) * (1 + _ROUNDING)


def _positive_part(high: float, low: float, hits: FloatArray, shift: FloatArray) -> FloatArray:
    """``E[(high A + low (K - A) + shift)_+]`` for ``A ~ Bin(K, 1/2)``, hits by shifts.

    With ``t`` the least ``A`` at which it is positive, ``slope E[A; A >= t] + offset P(A >= t)``,
    and ``E[A; A >= t] = K/2 P(Bin(K - 1, 1/2) >= t - 1)``. Neighbouring shifts share their ``t``.
    """
    slope, offset = high - low, low * hits + shift
    least = np.maximum(np.ceil(-offset / slope), 0.0)
    # One number for each pair of a count and its t, from their least: below 2^53 for any counts.
    fewest, lowest = int(hits.min()), int(least.min())
    spread = int(least.max()) - lowest + 1
    keys = (hits.astype(np.int64) - fewest) * spread + (least.astype(np.int64) - lowest)
    keys, place = np.unique(keys, return_inverse=True)
    counts = (keys // spread + fewest).astype(np.float64)
    tails = (keys % spread + lowest).astype(np.float64)
    fewer = np.where(counts > 0, _at_least(tails - 1, counts - 1), 0.0)[place].reshape(least.shape)
    reached = _at_least(tails, counts)[place].reshape(least.shape)
    return np.asarray(np.maximum(slope * hits / 2 * fewer + offset * reached, 0.0))


def _at_least(least: FloatArray, trials: FloatArray | float, share: float = 0.5) -> FloatArray:
    """``P(Bin(trials, share) >= least)``, an incomplete beta function."""
    from scipy.special import betainc

    inside = (least > 0) & (least <= trials)
    first = np.where(inside, least, 1.0)
    second = np.where(inside, trials - least + 1.0, 1.0)
    return np.where(inside, betainc(first, second, share), (least <= 0).astype(np.float64))


def _range(trials: int, share: float) -> tuple[int, int]:
    """Counts within some deviations of their mean."""
    mean, width = trials * share, _DEVIATIONS * (sqrt(trials * share * (1 - share)) + _DEVIATIONS)
    return max(0, int(mean - width)), min(trials, int(mean + width) + 1)


def _binomial(trials: int, share: float, counts: FloatArray) -> FloatArray:
    """Probabilities of counts."""
    from scipy.special import betaln, xlog1py, xlogy

    logarithm = -betaln(counts + 1.0, trials - counts + 1.0) - np.log(trials + 1.0)
    return np.asarray(np.exp(logarithm + xlogy(counts, share) + xlog1py(trials - counts, -share)))


def _expected_outside(trials: int, share: float, first: int, last: int) -> float:
    """``E[K; K < first or K > last]`` of a binomial count: ``n q P(Bin(n - 1, q) ...)``."""
    fewer = float(trials - 1)
    below = _at_least(np.array([fewer - first + 2]), fewer, 1 - share)[0]
    above = _at_least(np.array([float(last)]), fewer, share)[0]
    return trials * share * float(below * (first > 1) + above * (last < trials))
