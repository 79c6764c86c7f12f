"""The sphere randomizer: one unit vector as a seed and a number, pure epsilon privacy.

The seed names ``M`` public directions ``+-V_1, ..., +-V_(M/2)`` and never depends on the data. The
device ranks them by their product with its unit vector ``u`` and reports the number of one
direction: one of the ``k`` nearest with probability ``p``, one of the others with probability
``1 - p``. Every number has therefore probability

    p / k                  if it is among the k nearest to u,
    (1 - p) / (M - k)      if it is not,

whatever ``u`` is, and ``p`` is the largest number that keeps their ratio within ``e^epsilon``. The
proof counts: it needs neither a property of the generator nor exact arithmetic in the ranking, and
``p`` is a whole number of ``2^-63``, so that floating point cannot leak. ``M = 2`` is the sampler
of Duchi, Jordan & Wainwright 2018; as ``M`` grows with ``k/M`` fixed it becomes PrivUnit (Bhowmick
et al. 2018): ``k/M`` plays the part of its threshold.

Everybody expands the same seed to the same direction, to the bit: on any processor, with any
instruction set and in any language, because nothing is used but integers, a table of integers and
IEEE 754 square root, division, product and rounding, which are exact to the last bit everywhere.

    word_j = hash(seed, row, j)                     64 bits
    v      = four entries of the table of each word, from its low to its high 16 bits
    V      = rint(v * (2^24 / sqrt(v . v)))         whole numbers, of length 2^24

The table is the normal law in 4,096 equal cells. Cell ``i`` of the positive half lies between the
quantiles ``z_i`` and ``z_(i+1)`` of the standard normal law, ``Phi(z_i) = 1/2 + i/4096``; its entry
is the mean of the law in it,

    rint(2^13 * 4096 (phi(z_i) - phi(z_(i+1)))),    i = 0, ..., 2047.

A cell's mean rather than its middle: the variance that is lost is that within cells, and nothing
else. The table is part of the wire format. No entry is nearer than 7e-5 to a tie of that rounding,
thousands of times farther than the last bit of anybody's quantiles, and its digest is checked.

Privacy does not rest on this generator, only the absence of bias does: it has to look uniform, not
to be unpredictable. docs/reference/wire.md has the formulas for other languages,
docs/proofs/sphere.md the bias.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from hashlib import sha256
from math import inf, log1p, nextafter, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.local.device import DeviceRandomness

Words = NDArray[np.uint64]

# Probabilities are whole multiples of 2^-63, so that a coin is one comparison of integers.
COIN = 1 << 63
# Directions a seed may stand for: what a device has to compare with.
_LARGEST = 256
# A smaller number of directions is taken when it costs at most this share of variance.
_GOOD_ENOUGH = 1.05
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-3, 30.0
# Weyl increments (odd, near 2^64 / golden ratio and relatives) that keep counters apart.
_COUNTER, _ROW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
# Directions are summed as integers, so that a sum depends on neither order nor machine.
DIRECTION_UNITS = 1 << 24
# Numbers expanded at once: stays within the processor's cache.
_CHUNK = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Sphere:
    """Public parameters: ``dimension`` of ``u``, ``candidates`` ``M``, ``near`` ``k``, coin ``p``.

    ``chance`` is ``p`` in units of ``2^-63``.
    """

    dimension: int
    candidates: int
    near: int
    chance: int

    def __post_init__(self) -> None:
        for name in ("dimension", "candidates", "near", "chance"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigurationError(f"{name} must be a whole number, got {value!r}")
        if not 2 <= self.dimension <= 1 << 16:
            raise ConfigurationError(f"dimension must lie in 2 to 65536, got {self.dimension}")
        if not 2 <= self.candidates <= 1 << 12 or self.candidates % 2:
            raise ConfigurationError(
                f"candidates must be even and lie in 2 to 4096, got {self.candidates}"
            )
        if not 1 <= self.near <= self.candidates // 2:
            raise ConfigurationError(
                f"near must lie in 1 to {self.candidates // 2}, got {self.near}"
            )
        if not self.near * COIN <= self.chance * self.candidates < self.candidates * COIN:
            raise ConfigurationError(
                f"chance must be at least near/candidates and below 1, got {self.chance / COIN}"
            )

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """Exact probability of one direction among the nearest, and of one that is not."""
        far = self.candidates - self.near
        return Fraction(self.chance, COIN * self.near), Fraction(COIN - self.chance, COIN * far)

    @property
    def ratio(self) -> Fraction:
        """Largest ratio of the probabilities of a report under two data: ``e^epsilon``, exactly."""
        near, far = self.probabilities
        return near / far

    @property
    def epsilon(self) -> float:
        """What a report costs, rounded up: ``ln(ratio)``."""
        return nextafter(nextafter(log1p(self.ratio - 1), inf), inf)

    def keeps(self, epsilon: float) -> bool:
        """Whether a report costs at most ``epsilon``, compared in exact fractions."""
        return self.ratio <= _exponential_from_below(epsilon)

    def nearest(self, seeds: Words, vectors: IntArray) -> IntArray:
        """The ``k`` nearest directions of each seed to its vector ``q``, as numbers ``(n, k)``.

        Number ``2 i`` is ``V_i`` and ``2 i + 1`` is ``-V_i``; of each pair at most one is near. In
        the order of their pairs; of pairs that are equally near the first ones count. Vectors are
        whole numbers, so that the ranking is the same to the bit wherever it is made.
        """
        products = projections(seeds, self.candidates // 2, vectors)
        ranked = np.argsort(-np.abs(products), axis=1, kind="stable")
        rows = np.sort(ranked[:, : self.near], axis=1)
        behind = np.take_along_axis(products, rows, axis=1) < 0
        return np.asarray(2 * rows + behind)

    def choose(self, nearest: IntArray, coin: BoolArray, pick: IntArray) -> IntArray:
        """The number to report: the ``pick``-th of the nearest where the coin fell so, else of the
        others, which are the opposites of the nearest and both ends of all further pairs."""
        users = np.arange(len(nearest))
        inside = nearest[users, np.minimum(pick, self.near - 1)]
        taken = np.zeros((len(nearest), self.candidates // 2), dtype=np.bool_)
        np.put_along_axis(taken, nearest // 2, True, axis=1)
        rest = np.argsort(taken, axis=1, kind="stable")  # pairs that are not near come first
        beyond = np.maximum(pick - self.near, 0)
        outside = np.where(pick < self.near, inside ^ 1, 2 * rest[users, beyond // 2] + beyond % 2)
        return np.asarray(np.where(coin, inside, outside))

    def choices(self, coin: BoolArray) -> IntArray:
        """How many numbers the pick is made among."""
        return np.where(coin, self.near, self.candidates - self.near)

    @property
    def shrinkage(self) -> float:
        """``E<V, u>`` of the reported direction: dividing by it makes a report unbiased.

        ``(p - (1 - p) k / (M - k)) t`` with ``t`` the mean product of the ``k`` nearest: the
        directions of a seed sum to zero, so the others average ``-k t / (M - k)``. Directions
        come from a table. Averaged over all ``u`` that changes nothing to eight digits: the product
        of a unit vector with a uniform ``u`` has the law below whatever the table is. The proof,
        and what is left at a single ``u``, are in docs/proofs/sphere.md.
        """
        p = self.chance / COIN
        balance = p - (1 - p) * self.near / (self.candidates - self.near)
        return balance * _mean_of_nearest(self.dimension, self.candidates // 2, self.near)

    @property
    def inflation(self) -> float:
        """``q = m E<V, u>^2`` of the reported direction: 1 if it had nothing to do with ``u``.

        It is uniform on all numbers with probability ``g = M (1 - p) / (M - k)``, else one of the
        ``k`` nearest.
        """
        blanket = self.candidates * (1 - self.chance / COIN) / (self.candidates - self.near)
        nearest = _mean_of_nearest(self.dimension, self.candidates // 2, self.near, 2)
        return blanket + (1 - blanket) * self.dimension * nearest

    @property
    def leverage(self) -> float:
        """What a report weighs whose maker takes the best of its directions, on average.

        In honest ones of the largest reward at one place: ``E max_i |<V_i, w>|`` over shrinkage.
        """
        best = _mean_of_nearest(self.dimension, self.candidates // 2, 1)
        return best / self.shrinkage

    @property
    def deviation(self) -> float:
        """Root mean square of a coordinate of an unbiased report, ``1 / (shrinkage sqrt(m))``."""
        return 1 / (self.shrinkage * sqrt(self.dimension))


def randomized(
    vectors: IntArray, norm_limit: int, sphere: Sphere, randomness: "DeviceRandomness"
) -> tuple[Words, IntArray]:
    """A seed and the number of a direction for each vector: all that may leave a device.

    From whole numbers on, nothing is left to the processor: the same draws give the same report.
    """
    count = len(vectors)
    tokens = randomness.seeds(count)
    signed = on_sphere(vectors, norm_limit, randomness.rounding(count))
    coin = randomness.coin(count, sphere.chance)
    pick = randomness.below(sphere.choices(coin))
    return tokens, sphere.choose(sphere.nearest(tokens, signed), coin, pick)


def on_sphere(vectors: IntArray, norm_limit: int, uniform: FloatArray) -> IntArray:
    """Vectors whose directions have mean ``z = q / L``: ``q`` or its opposite.

    ``q`` with probability ``(1 + |q| / L) / 2``, else ``-q``; at 0 the first axis. The squared norm
    is exact, and rounded once before its square root.
    """
    vectors = vectors.copy()
    squares = np.einsum("ij,ij->i", vectors, vectors)
    vectors[squares == 0, 0] = 1
    forward = uniform < (1.0 + np.sqrt(squares.astype(np.float64)) / norm_limit) / 2.0
    return np.where(forward[:, None], vectors, -vectors)


def reported_sum(tokens: Words, numbers: IntArray, dimension: int) -> IntArray:
    """What reports add up to, in units of ``1 / DIRECTION_UNITS``; exact, any order the same."""
    return direction_sum(tokens, numbers // 2, 1 - 2 * (numbers % 2), dimension)


def unbiased_sum(tokens: Words, numbers: IntArray, sphere: Sphere) -> FloatArray:
    """Estimate of the sum of the vectors behind some reports: ``sum +-V / shrinkage``."""
    total = reported_sum(tokens, numbers, sphere.dimension)
    return np.asarray(total / (DIRECTION_UNITS * sphere.shrinkage))


@lru_cache(maxsize=4096)
def sphere(epsilon: float, dimension: int, *, ticketed: bool = False) -> Sphere:
    """The randomizer of smallest variance, or nearly: fewer directions where that costs under 5 %.

    ``k`` and ``M`` are the threshold of PrivUnit in another form, optimised for epsilon.

    ``ticketed``: seeds cannot be searched for, so a report that was made up weighs as much as the
    best of the directions of one seed. Few directions give it little choice: smallest is variance
    times :attr:`Sphere.leverage`.

    >>> best = sphere(4.0, 50)
    >>> best.candidates, best.near, best.keeps(4.0), best.keeps(3.999)
    (64, 5, True, False)
    """
    if not _SMALLEST_EPSILON <= epsilon <= _LARGEST_EPSILON:
        raise ConfigurationError(
            f"the sphere randomizer needs epsilon between {_SMALLEST_EPSILON} and "
            f"{_LARGEST_EPSILON:g}, got {epsilon}"
        )
    limit = _exponential_from_below(epsilon)
    found = least_of(partial(_with_coin, limit, dimension), ticketed=ticketed)
    assert found is not None
    return found


def least_of(
    of: Callable[[int, int], Sphere],
    allowed: Callable[[Sphere], bool] = lambda _: True,
    *,
    ticketed: bool = False,
) -> Sphere | None:
    """The best of all numbers of directions, and of near ones, that are allowed, if any is."""

    def worth(option: Sphere) -> float:
        return option.shrinkage**2 / (option.leverage if ticketed else 1.0)

    found: list[Sphere] = []
    candidates = 2
    while candidates <= _LARGEST:
        options = [of(candidates, near) for near in _thresholds(candidates)]
        if options := [each for each in options if allowed(each)]:
            found.append(max(options, key=worth))
        candidates *= 2
    best = max(map(worth, found), default=0.0)
    enough = best if ticketed else best / _GOOD_ENOUGH
    return next((each for each in found if worth(each) >= enough), None)


def _thresholds(candidates: int) -> list[int]:
    """Values of ``k`` to try: all up to 20, then in steps of 5 %."""
    half = candidates // 2
    return [near for near in range(1, half + 1) if near <= 20 or near % (near // 20) == 0]


def _with_coin(limit: Fraction, dimension: int, candidates: int, near: int) -> Sphere:
    """The largest ``p`` with ``p (M - k) <= e^epsilon (1 - p) k``, rounded down."""
    odds = limit * near / (candidates - near)
    return Sphere(
        dimension=dimension,
        candidates=candidates,
        near=near,
        chance=int(COIN * odds / (1 + odds)),
    )


@lru_cache(maxsize=256)
def _exponential_from_below(epsilon: float) -> Fraction:
    """A number at most ``e^epsilon``, and less by a part of 2^-115: the same in every language.

    Its series in whole numbers, in units of ``2^-128``, every term rounded down. ``math.exp`` may
    differ in its last bit from one library to the next, and then a device would refuse what an
    aggregator planned. No randomizer has a ratio above ``e^64``.
    """
    top, bottom = min(epsilon, 64.0).as_integer_ratio()
    total, term, place = 0, 1 << 128, 0
    while term:
        total, place = total + term, place + 1
        term = term * top // (bottom * place)
    return Fraction(total, 1 << 128)


@lru_cache(maxsize=4096)
def _mean_of_nearest(dimension: int, pairs: int, near: int, power: int = 1) -> float:
    """Expected mean of the ``k`` largest of ``h`` independent ``|<V, u>|``, to a power ``r``.

    With ``|<V, u>| = sin a``, of density ``2 cos^(m-2) a / B(1/2, (m-1)/2)`` on ``[0, pi/2]`` and
    upper tail ``Q(a)``: ``h/k  int sin^r a  P(Bin(h-1, Q(a)) < k)  density(a) da``.
    """
    from scipy.special import bdtr, betainc, betaln

    end = min(pi / 2, 16 / sqrt(dimension))  # beyond lies less than e^-100
    nodes, weights = _quadrature()
    angle, weights = end * (nodes + 1) / 2, weights * end / 2
    sine = np.sin(angle)
    tail = 1 - betainc(0.5, (dimension - 1) / 2, sine**2)
    density = 2 * np.exp((dimension - 2) * np.log(np.cos(angle)) - betaln(0.5, (dimension - 1) / 2))
    among = 1.0 if pairs == 1 else bdtr(near - 1, pairs - 1, tail)
    return float(pairs / near * np.sum(weights * sine**power * among * density))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(300)
    return nodes, weights


# -- directions ------------------------------------------------------------------------------------


def mix(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that mixes all bits."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def hashed(first: Words, second: Words, row: Words | IntArray, counter: IntArray) -> Words:
    """64 bits for a 128-bit key ``(first, second)``, a row and a counter; arguments broadcast."""
    inner = mix(first + counter.astype(np.uint64) * _COUNTER)
    return mix(inner ^ (second + (np.asarray(row).astype(np.uint64) + np.uint64(1)) * _ROW))


def raw_vectors(seeds: Words, rows: IntArray, dimension: int) -> FloatArray:
    """Vectors of table entries: ``(n, 2)`` seeds and ``(n, r)`` rows give ``(n, r, dimension)``.

    Whole numbers of at most 15 bits, nearly normal with deviation ``2^13``. The high 12 of every 16
    bits choose: ``cell + 2048 * negative``.
    """
    words = hashed(
        seeds[:, 0, None, None],
        seeds[:, 1, None, None],
        rows[:, :, None],
        np.arange((dimension + 3) // 4),
    )
    lanes = words.astype("<u8", copy=False).view("<u2")
    return _CELLS.take(lanes >> np.uint16(4), mode="wrap")[:, :, :dimension]


def projections(seeds: Words, count: int, vectors: IntArray) -> FloatArray:
    """``<v_i, q> / |v_i|`` of the first ``count`` rows of each seed with its vector ``q``.

    Up to 4,098 coordinates and ``|q| < 2^31`` all sums of products are whole numbers below
    ``|v| |q| < 2^53``, hence exact in any order: what is left are a square root and a division.
    """
    users, dimension = vectors.shape
    found = np.empty((users, count))
    rows = np.arange(count)[None]
    step = max(1, _CHUNK // (count * dimension))
    for start in range(0, users, step):
        part = slice(start, start + step)
        raw = raw_vectors(seeds[part], rows, dimension)
        norms = np.sqrt(np.einsum("nhm,nhm->nh", raw, raw))
        own = vectors[part].astype(np.float64)
        found[part] = np.einsum("nhm,nm->nh", raw, own) / norms
    return found


def directions(seeds: Words, rows: IntArray, dimension: int) -> IntArray:
    """The unit vectors that reports name, in units of ``1 / DIRECTION_UNITS``, one per report."""
    found = np.empty((len(seeds), dimension), dtype=np.int64)
    for part, scaled in _scaled(seeds, rows, dimension):
        found[part] = scaled
    return found


def direction_sum(seeds: Words, rows: IntArray, signs: IntArray, dimension: int) -> IntArray:
    """``sum_i sign_i V_i`` in units of ``1 / DIRECTION_UNITS``, exact and in any order the same."""
    total = np.zeros(dimension, dtype=np.int64)
    for part, scaled in _scaled(seeds, rows, dimension):
        # Whole numbers below 2^53 add up in float64 without rounding.
        total += (signs[part].astype(np.float64) @ scaled).astype(np.int64)
    return total


def _scaled(seeds: Words, rows: IntArray, dimension: int) -> Iterator[tuple[slice, FloatArray]]:
    """Chunks of unit vectors, multiplied by ``DIRECTION_UNITS`` and rounded, halves to even.

    The squared norm is a whole number below ``2^46``: exact in float64, in any order.
    """
    step = max(1, _CHUNK // dimension)
    for start in range(0, len(seeds), step):
        part = slice(start, start + step)
        vectors = raw_vectors(seeds[part], rows[part, None], dimension)[:, 0]
        squares = np.einsum("nm,nm->n", vectors, vectors)
        vectors *= (DIRECTION_UNITS / np.sqrt(squares))[:, None]
        yield part, np.rint(vectors, out=vectors)


# -- the table -------------------------------------------------------------------------------------

# Of the entries as 2,048 little-endian numbers of 16 bits.
DIGEST: Final = "964fc31079a24fff1446b70b804d81094fe7f7f52fc275786bd652c7695ac67f"


def positive_cells() -> IntArray:
    """The 2,048 entries, ascending, in units of ``2^-13``."""
    normal = NormalDist()
    heights = [normal.pdf(normal.inv_cdf(0.5 + cell / 4096)) for cell in range(2048)]
    entries = np.rint(-np.diff([*heights, 0.0]) * 2.0**25).astype(np.int64)
    if sha256(entries.astype("<u2").tobytes()).hexdigest() != DIGEST:
        raise ImportError("the table of normal cells is not the one of the wire format")
    return entries


# By the high 12 bits of 16: a sign and a cell. Symmetric and without 0, so no vector is 0 and a
# token chosen with malice still stands for a unit vector.
_CELLS: FloatArray = np.outer([1.0, -1.0], positive_cells()).ravel()
