"""A function that changes: whether it did, what to keep, and how soon that can be seen.

Before a release is learnt from, two beliefs predict it: that of all releases so far, and an empty
one, the prior at its present scale. With ``e = g - H (m - baseline)``,

    log p = -(e^T S^-1 e + log det S) / 2,     S = a (H P H^T + R)

where ``a >= 1`` widens what was learnt by the chi-square of earlier innovations over their degrees
of freedom: a kernel that never fitted does not look like a change. If the empty belief is better by
``ALARM`` nats, the function has changed. Everything learnt is dropped, and that release with it:
it mixes two functions, and residuals were clipped around the old one. Epochs start short again.

All of it is post-processing of releases, and lengths of epochs are functions of releases alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, log, sqrt
from typing import TypeVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Observation, Posterior
from capri.learners.crowds import Crowds
from capri.learners.messages import Design
from capri.learners.reading import Leg
from capri.learners.squares import Squares

# By so many nats must the empty belief predict better.
ALARM = 25.0
# Shares of what was learnt that may be left when the function has wandered.
_KEEPS = (0.3, 0.1, 0.03)
# What speaks against that at first, in nats; each time it was believed makes it likelier.
_DOUBT, _LEAST_DOUBT = 6.0, 2.0
# No epoch is cut below so many first ones, nor below this share of what was played.
_FIRST_ONES, _SHARE = 8, 0.05
# Short epochs may cost so much of what is at stake, the spread of f over actions.
_PREMIUM = 0.005
# Releases that a belief is made from before it can be said to be out of date.
_SETTLED = 2
# After an alarm, clipping that cuts off too much is a sign of heavy tails for so many releases.
_PATIENCE = 5
# Deviation, in reward bounds squared, to which the noise variance outlives a change.
_NOISE_KEPT = 0.1


class Kind(Enum):
    """What a release is good for."""

    LEARNT = "it is learnt from"
    HEAVY = "clipping cut off too much of its rewards"
    CHANGE = "the function has changed"
    STALE = "it is about the function of before a change"


# Sums over releases, in beliefs, crowds and measured squares.
_SUMS = (
    "information", "vector", "informations", "vectors", "constants", "spread", "image", "constant",
    "total", "weight",
)  # fmt: skip
Fading = TypeVar("Fading", Belief, Crowds, Squares)


@dataclass(frozen=True)
class News:
    """What a release says of changes: its kind, the evidence in nats, and the innovation."""

    kind: Kind
    nats: float = 0.0
    chi_square: float = 0.0
    degrees: int = 0
    keep: float = 1.0

    @property
    def forgets(self) -> bool:
        """Whether what was learnt is dropped."""
        return self.kind in (Kind.CHANGE, Kind.HEAVY)


@dataclass(frozen=True)
class Drift:
    """What is known of changes, and how releases fitted since the last one.

    ``born``: releases before the last change. ``releases``: those that the present belief is made
    from. ``begun``: decisions in epochs that were planned since. ``changes``: alarms so far.
    """

    born: int = 0
    releases: int = 0
    begun: int = 0
    changes: int = 0
    forgot: int = 0
    suspected: bool = False
    chi_square: float = 0.0
    degrees: int = 0
    enough: float = inf

    @property
    def misfit(self) -> float:
        """``a``: how much wider innovations were than they should be, at least 1."""
        return max(1.0, self.chi_square / max(self.degrees, 1))

    @property
    def doubt(self) -> float:
        """What speaks against forgetting, in nats: less in a world where it was right before."""
        return max(_DOUBT - self.forgot - self.changes, _LEAST_DOUBT)

    @property
    def may_tell(self) -> bool:
        """Whether the next release could say that the function has changed."""
        return self.releases >= _SETTLED

    def least(self, first: int) -> float:
        """Decisions below which no epoch is cut."""
        return max(_FIRST_ONES * first, _SHARE * self.begun)

    def longest(self, first: int, growth: float) -> float:
        """Decisions of the next epoch at most."""
        cap = max(self.enough, self.least(first))
        if self.changes == 0 and not self.forgot:
            return cap
        return min(cap, first + (growth - 1) * self.begun)

    def stale(self, legs: Sequence[Leg], counts: Sequence[int]) -> bool:
        """Whether decisions of an epoch were made, and clipped, by a belief given up since."""
        return any(leg.learnt < self.born and n > 0 for leg, n in zip(legs, counts, strict=True))

    def news(
        self,
        observation: Observation,
        released: FloatArray,
        *,
        expected: Posterior,
        fade: Callable[[float], Posterior],
        root: FloatArray,
        stale: bool,
        heavy: bool,
    ) -> News:
        """``expected``: what was believed. ``root``: of the prior covariance around 0.

        A change looks like heavy tails, too: what was believed is wrong, and clipping cuts off the
        difference. It is taken for a change first, and for tails if it comes back at once.
        """
        if stale:
            return News(Kind.STALE)
        found = []
        for keep in (1.0, *(_KEEPS if self.may_tell else ())):
            state = expected if keep == 1 else fade(keep)
            chi_square, determinant = _innovation(observation, released, state.mean, state.factor)
            doubt = self.doubt * (keep < 1)
            found.append((0.5 * (chi_square + determinant) + doubt, chi_square, determinant, keep))
        _, chi_square, determinant, keep = min(found)
        empty = _innovation(observation, released, np.zeros(len(root)), root)
        degrees, misfit = len(released), self.misfit
        old = 0.5 * (chi_square / misfit + determinant + degrees * log(misfit))
        nats = old - 0.5 * sum(empty)
        kind, loud = Kind.LEARNT, self.may_tell and nats > ALARM
        if heavy and (self.releases <= _PATIENCE or (self.suspected and not loud)):
            kind = Kind.HEAVY
        elif heavy or loud:
            kind = Kind.CHANGE
        return News(kind, nats, chi_square, degrees, keep if kind is Kind.LEARNT else 0.0)

    def after(self, news: News, epochs: int) -> "Drift":
        """With a release, of so many."""
        if news.kind is Kind.STALE:
            return self
        if news.kind is Kind.CHANGE:
            return Drift(
                born=epochs, changes=self.changes + 1, suspected=news.nats <= ALARM
            )
        if news.kind is Kind.HEAVY:
            return replace(self, releases=0, chi_square=0.0, degrees=0)
        if self.releases == 0:  # the prior's scale is learnt from the first
            return replace(self, releases=1)
        return replace(
            self,
            releases=self.releases + 1,
            begun=int(news.keep * self.begun),
            forgot=self.forgot + (news.keep < 1),
            chi_square=self.chi_square + news.chi_square,
            degrees=self.degrees + news.degrees,
        )


def _innovation(
    observation: Observation, released: FloatArray, mean: FloatArray, factor: FloatArray
) -> tuple[float, float]:
    """``e^T S^-1 e`` and ``log det S``."""
    design = observation.design
    error = released - design @ (mean - observation.baseline)
    image = design @ factor
    lower = cho_factor(image @ image.T + observation.covariance)
    determinant = 2 * float(np.log(np.diag(lower[0])).sum())
    return float(error @ cho_solve(lower, error)), determinant


def enough(
    design: Design, state: Posterior, stakes: float, *, least: float, most: float, steady: bool
) -> float:
    """The shortest length at which epochs tell nearly as much as one of length ``most``.

    Noise at the gate is one for all decisions of an epoch, so many short epochs tell less than a
    long one. With ``h = H/n`` and ``c`` the sampling covariance of one decision, epochs of length
    ``n`` give the information ``h^T (sigma^2/n I + c)^-1 h`` a decision. Of ``most`` decisions in
    epochs of ``n`` an error ``e(n)`` is left; enough is ``e(n) - e(most) <= 0.005 stakes``. Where
    every decision has noise of its own (``steady``), all lengths tell the same.
    """
    if steady or most <= least:
        return least
    seen, factor = design.observation, state.factor
    assert seen.sampling is not None
    variances, vectors = np.linalg.eigh(seen.sampling / seen.participants)
    image = vectors.T @ seen.design @ factor / seen.participants
    inner = factor.T @ design.spread @ factor

    def error(length: float) -> float:
        weights = most / (design.noise**2 / length + np.maximum(variances, 0.0))
        known = (image * weights[:, None]).T @ image
        known[np.diag_indices_from(known)] += 1.0
        return sqrt(max(float(np.trace(np.linalg.solve(known, inner))), 0.0))

    length, limit = least, error(most) + _PREMIUM * stakes
    while length < most and error(length) > limit:
        length *= sqrt(2.0)
    return min(length, most)


def faded(thing: Fading, keep: float) -> Fading:
    """What is left of sums over releases when all of them count so much less."""
    if keep == 1:
        return thing
    sums = {
        name: keep * value
        for name, value in vars(thing).items()
        if name in _SUMS
    }
    return replace(thing, **sums)


def renewed(belief: Belief) -> Belief:
    """An empty belief after a change; how noisy rewards are is known roughly."""
    return replace(
        belief,
        information=np.zeros_like(belief.information),
        vector=np.zeros_like(belief.vector),
        epochs=belief.epochs + 1,
        heavy_tails=False,
    )


def noise_kept(squares: Squares, belief: Belief, reward_bound: float) -> Squares:
    """What is left of the measured squares after a change: the noise variance, roughly."""
    if belief.moment_precision == 0:
        return replace(squares, spread=np.zeros_like(squares.spread),
                       image=np.zeros_like(squares.image), constant=0.0, total=0.0, weight=0.0)
    weight = min(belief.moment_precision, (_NOISE_KEPT * reward_bound**2) ** -2)
    value = belief.moment / belief.moment_precision
    return replace(
        squares,
        spread=np.zeros_like(squares.spread),
        image=np.zeros_like(squares.image),
        constant=0.0,
        total=value * weight,
        weight=weight,
    )
