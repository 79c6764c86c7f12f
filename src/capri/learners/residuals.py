"""How large residuals were, and what clipping cut off of them: what every release measures.

**In the local model** every reading is mostly noise. Reports carry noise of their own, so an epoch
of them tells little of what clipping cuts off, and there are many epochs: a test of each one would
cry wolf, and the positive part of each measure would add up to a bias. Readings are pooled instead:
with the excess ``e = (|z| - B_r)_+``, the share ``E[e] / B_r`` is averaged by inverse variance over
all readings since the belief began.

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
from capri.learners.segments import Design
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout

# Residuals are heavy-tailed when clipping cuts off more than this share of the clipping bound.
_HEAVY_TAILS = 0.3
# Noise alone is as many deviations beyond its mean once in a thousand releases: Gaussian, Laplace.
_RARE_GAUSSIAN, _RARE_LAPLACE = 3.1, 4.4
# Parts of an epoch below one in so many are not asked about tails.
_TELLING = 4
# Where reports are private by themselves it is too much by so many standard deviations: the test is
# made after every reading.
_BEYOND_DOUBT = 4.0
# Rewards may be at their ends where E y^2 may be above this share of B^2.
_MAYBE_AT_THE_ENDS = 0.7
# The noise variance that is expected then, and its deviation, in units of B^2.
_EXPECTED_NOISE, _DOUBTED_NOISE = 0.05, 0.1


def measured_square(release: Release, design: Design, reward_bound: float) -> tuple[float, float]:
    """``E[z^2]`` of the residuals from the moment coordinate, and its standard deviation.

    Of clipped residuals it is ``B_r^2 (coordinate / (B_r s n) + 1) / 2``, to which the privacy
    noise gives the deviation ``B_r sigma / (2 s n)``. With segments, ``B_r^2`` is the mean by which
    squares were divided. What clipping cut off is added back, or bounds would shrink with every
    epoch: an excess ``|z| - B_r`` takes ``(|z| + B_r)`` times itself off the square, and rare
    residuals that large are about ``B``, or as large as is measured. One standard deviation of the
    measure counts for nothing.
    """
    square, deviation = measured_moment(release, design)
    excess = measured_excess(release, design, reward_bound)
    if excess is None or not design.residual:
        return square, deviation
    most = tail_bound(reward_bound, design.value_bound)
    lost = (most + design.value_bound) * max(excess[0] - excess[1], 0.0)
    return square + lost, deviation


def measured_moment(release: Release, design: Design) -> tuple[float, float]:
    """``E[z^2]`` of clipped residuals, and its standard deviation."""
    plan = release.plan
    answers = release.participants if design.answers is None else design.answers
    bound = plan.value_bound if design.moment_bound is None else design.moment_bound
    layout, moment = plan.asked, float(plan.asked.part(release.vector, "moment")[0])
    if isinstance(layout, HistogramLayout):
        mean, noise = layout.mean_square(release.vector, release.participants, answers)
        return bound**2 * mean, bound**2 * max(noise, 1 / answers)
    square = bound**2 * (moment / (layout.scale("moment") * answers) + 1) / 2
    if isinstance(layout, ProductLayout):
        deviation = bound**2 * layout.deviation("moment") / (2 * answers)
    else:
        deviation = bound * design.noise * design.main_share / (2 * layout.moment_share * answers)
        deviation *= bound / plan.value_bound
    return square, max(deviation, bound**2 / answers)


def measured_excess(
    release: Release, design: Design, reward_bound: float
) -> tuple[float, float] | None:
    """``E[(|z| - B_r)_+]``, what clipping cuts off, and its standard deviation.

    ``E (coordinate / (B_r q n) + 1) / 2`` of the tail coordinate, ``E`` the largest excess that is
    measured; None where there is none.
    """
    layout = release.plan.asked
    if "tail" not in layout.blocks:
        return None
    answers = release.participants if design.answers is None else design.answers
    if isinstance(layout, HistogramLayout):
        mean, noise = layout.mean_excess(release.vector, answers)
        most = tail_bound(reward_bound, design.value_bound)
        return most * mean, most * noise
    unit = layout.scale("tail") * answers
    mean = float(layout.part(release.vector, "tail")[0]) / unit
    noise = design.noise * design.main_share / unit
    if isinstance(layout, ProductLayout):
        noise = layout.deviation("tail") / unit
    most = tail_bound(reward_bound, design.value_bound)
    return most * (mean + 1) / 2, most * noise / 2


def cuts_off_too_much(release: Release, design: Design, reward_bound: float) -> bool:
    """Whether clipped residuals lose so much that the estimate is biased (rare large rewards).

    The measure must exceed its limit by what the privacy noise reaches once in a thousand releases.
    A few late reports, or an epoch that hardly began, are all noise: many such parts would cry wolf
    sooner or later, and everything learnt so far would go.
    """
    excess = measured_excess(release, design, reward_bound)
    if excess is None or _TELLING * release.participants < release.plan.length:
        return False
    laplace = isinstance(release.plan.asked, HistogramLayout)
    rare = _RARE_LAPLACE if laplace else _RARE_GAUSSIAN
    return excess[0] > _HEAVY_TAILS * design.value_bound + rare * excess[1]


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
