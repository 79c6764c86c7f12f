"""Tails of residuals in the local model, where every reading is mostly noise.

Reports carry noise of their own, so an epoch of them tells little of what clipping cuts off, and
there are many epochs: a test of each one would cry wolf, and the positive part of each measure
would add up to a bias. Readings are pooled instead: with the excess ``e = (|z| - B_r)_+``, the
share ``E[e] / B_r`` is averaged by inverse variance over all readings since the belief began.

What is known without looking is that residuals are clipped at ``r`` of their predicted deviations
``s``. Were they Gaussian, ``x = z/s``, clipping would leave the share

    g(r) = E min(x^2, r^2) = erf(r/sqrt 2) - r sqrt(2/pi) e^(-r^2/2) + r^2 erfc(r/sqrt 2)

of their mean square and take ``2 (phi(r)/r - Phi(-r))`` of the bound off their size. The measured
square is divided by the first, or bounds would shrink with every epoch; of the excess only what is
beyond the second counts.

How noisy rewards are is known late, too, and until then residuals could not be clipped: at epsilon
1 that would cost most of what the first ten thousand reports have to say. Once squares rule out
rewards at the ends of their range, where no residual is small, the noise variance is expected to be
``0.05 B^2``, give or take ``0.1 B^2``, before it is measured.
"""

from dataclasses import replace
from math import erf, erfc, exp, pi, sqrt

from capri.epoch.plan import Release
from capri.epoch.rewards import tail_bound
from capri.learners.belief import Believed, Squares
from capri.learners.reading import measured_excess, measured_moment
from capri.learners.segments import Design

# What is cut off is too much beyond this share of the bound, by so many standard deviations: the
# test is made after every reading.
_HEAVY_TAILS, _BEYOND_DOUBT = 0.3, 4.0
# Rewards may be at their ends where E y^2 may be above this share of B^2.
_MAYBE_AT_THE_ENDS = 0.7
# The noise variance that is expected then, and its deviation, in units of B^2.
_EXPECTED_NOISE, _DOUBTED_NOISE = 0.05, 0.1


def clipped_square(ratio: float) -> float:
    """``g(r)``: the mean square that is left of a Gaussian of deviation 1 clipped at ``r``."""
    inside = erf(ratio / sqrt(2))
    return inside - ratio * sqrt(2 / pi) * exp(-(ratio**2) / 2) + ratio**2 * (1 - inside)


def expected_excess(ratio: float) -> float:
    """What clipping a Gaussian at ``r`` deviations cuts off on average, in units of the bound."""
    return sqrt(2 / pi) * exp(-(ratio**2) / 2) / ratio - erfc(ratio / sqrt(2))


def pooled(squares: Squares, release: Release, design: Design, reward_bound: float) -> Squares:
    """With what this reading says of tails."""
    excess = measured_excess(release, design, reward_bound)
    if excess is None or not design.residual:
        return squares
    share, deviation = (value / design.value_bound for value in excess)
    weight = deviation**-2
    return replace(
        squares, cut=squares.cut + weight * share, cut_weight=squares.cut_weight + weight
    )


def too_heavy(squares: Squares) -> bool:
    """Whether clipping was seen to cut off so much that it biases the estimate."""
    if squares.cut_weight == 0:
        return False
    share, deviation = squares.cut / squares.cut_weight, sqrt(1 / squares.cut_weight)
    return share > _HEAVY_TAILS + _BEYOND_DOUBT * deviation


def restored_square(
    squares: Squares, release: Release, design: Design, reward_bound: float
) -> tuple[float, float]:
    """``E[z^2]`` of residuals before they were clipped, and its standard deviation."""
    square, deviation = measured_moment(release, design)
    if not design.residual:
        return square, deviation
    bound, variance = design.value_bound, design.residual_variance
    ratio = bound / sqrt(variance)
    left = clipped_square(ratio)
    square, deviation = square / left, deviation / left
    if squares.cut_weight > 0:
        share, doubt = squares.cut / squares.cut_weight, sqrt(1 / squares.cut_weight)
        beyond = max(share - doubt - expected_excess(ratio), 0.0)
        square += (tail_bound(reward_bound, bound) + bound) * bound * beyond
    return square, deviation


def noise_of(squares: Squares, state: Believed, reward_bound: float) -> tuple[float, float] | None:
    """The noise variance under a belief and the precision of it, with what is expected of it."""
    measured, size = squares.noise(state), squares.second_moment(state.mean)
    if measured is None or size is None or sum(size) > _MAYBE_AT_THE_ENDS * reward_bound**2:
        return measured
    value, precision = measured
    sure = (_DOUBTED_NOISE * reward_bound**2) ** -2
    expected = _EXPECTED_NOISE * reward_bound**2
    return (value * precision + expected * sure) / (precision + sure), precision + sure
