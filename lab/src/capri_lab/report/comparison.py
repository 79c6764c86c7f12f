"""Two policies on the same seeds: how much one loses to the other, and whether that is chance."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray

# All sign flips are tried up to this many seeds; beyond it, as many random ones.
_EXACT = 14
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mean difference over common seeds, its 95 % interval and the p-value of a sign-flip test.

    Interval and p-value are None where one seed is all there is.
    """

    seeds: int
    difference: float
    low: float | None
    high: float | None
    p: float | None


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison | None:
    """``first - second`` over the seeds both have; None where they share no seed.

    With differences ``d_1 .. d_n`` of mean ``m`` and standard deviation ``s``, the interval is
    Student's, ``m -+ t_{n-1, 0.975} s / sqrt(n)``, and the p-value is that of Fisher's sign-flip
    test: the share of signs ``e`` with ``|sum e_i d_i| >= |sum d_i|``. With ``n`` seeds no p-value
    is smaller than ``2 / 2^n``.

    >>> result = compare({0: 3.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0, 9: 7.0})
    >>> result.difference, result.seeds, result.p
    (2.0, 3, 0.25)
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    differences = np.array([first[seed] - second[seed] for seed in common])
    mean, count = float(differences.mean()), len(common)
    if count == 1:
        return Comparison(seeds=1, difference=mean, low=None, high=None, p=None)
    from scipy.stats import t

    reach = float(t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * float(differences.std(ddof=1))
    reach /= sqrt(count)
    low, high, p = mean - reach, mean + reach, _sign_flip_p(differences)
    return Comparison(seeds=count, difference=mean, low=low, high=high, p=p)


def _sign_flip_p(differences: FloatArray) -> float:
    count = len(differences)
    if count <= _EXACT:
        numbers = np.arange(1 << count)[:, None]
        signs = 1 - 2 * ((numbers >> np.arange(count)) & 1)
    else:
        # Signs depend on nothing but the number of seeds: the same report every time.
        signs = np.random.default_rng(0).choice((-1, 1), size=(1 << _EXACT, count))
        signs[0] = 1  # the observed signs belong to the null law; else p could be 0
    sums = np.abs(signs @ differences)
    # Equal sums may differ in their last bits.
    return float(np.mean(sums >= abs(differences.sum()) * (1 - 1e-9)))
