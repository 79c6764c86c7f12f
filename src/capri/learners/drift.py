"""A function that changes: whether it did, what to keep, and how soon that can be seen.

The belief is a state space. Between epochs coefficients may have wandered, so that only a share
``k`` of the information ``J`` and of its vector still counts, or everything may be new. Before a
release is learnt from, each of these predicts it: with ``e = g - H (m_k - baseline)``,

    log p_k = -(e^T S_k^-1 e + log det S_k) / 2,     S_k = H P_k H^T + R

for ``k`` in 1, 0.3, 0.1, 0.03. The best one, less a doubt about forgetting, is kept: a world that
stands still loses nothing, and one that turns slowly is followed. Where even this is worse by
``ALARM`` nats than the prior at its present scale, the function has changed. For this comparison
``S_k`` is widened by the chi-square of earlier innovations over their degrees of freedom: a kernel
that never fitted does not look like a change. Then everything learnt is dropped, that release with
it: it mixes two functions, and residuals were clipped around the old one. Epochs start short again.

All of it is post-processing of releases, and lengths of epochs are functions of releases alone.

How long epochs must be: noise at the gate is one for all decisions of an epoch.

So many short epochs tell less than a long one, and show a change sooner. With ``h = H/n``, ``c``
the sampling covariance of one decision and ``sigma`` the noise of a release, epochs of length ``n``
give the information

    h^T (sigma^2/n I + c)^-1 h

a decision. After ``most`` decisions in epochs of ``n`` an error ``e(n)`` is left of the estimate.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import exp, inf, log, sqrt
from typing import TypeVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import chdtrc

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Believed, Observation, Squares, Told
from capri.learners.overdispersion import Overdispersion
from capri.learners.segments import PlannedSegment

# By so many nats must an empty belief predict better.
ALARM = 25.0
# Shares of what was learnt that may be left when the function has wandered.
_KEEPS = (0.3, 0.1, 0.03)
# Releases that are learnt from before it may be so again: nothing wanders far in a short time.
_RESTED = 4  # no fewer than _SETTLED, or lengths would change that were promised
# What speaks against that at first, in nats; each time it was believed makes it likelier.
_DOUBT, _LEAST_DOUBT = 6.0, 2.0
# No epoch is cut below so many first ones, nor below this share of what was played.
_FIRST_ONES, _SHARE = 8, 0.05
# A told memory has room for so many epochs.
_EPOCHS_IN_MEMORY = 8
# Releases that a belief is made from before it can be said to be out of date.
_SETTLED = 4
# In a belief of so few releases, clipping that cuts off too much is a sign of heavy tails.
_YOUNG = 5
# Else clipping tells of a change where an innovation as long as this one is so rare.
_ODD = 1e-4
# Deviation, in reward bounds squared, to which the noise variance outlives a change.
_NOISE_KEPT = 0.1


class Kind(Enum):
    """What a release is good for."""

    LEARNT = "it is learnt from"
    HEAVY = "clipping cut off too much of its rewards"
    CHANGE = "the function has changed"
    STALE = "it is about the function of before a change"


@dataclass(frozen=True, eq=False)
class Nothing:
    """What a belief is without any release: the prior around 0."""

    mean: FloatArray
    factor: FloatArray


@dataclass(frozen=True)
class News:
    """What a release says of changes.

    ``nats`` speak for one, ``keep`` is the share of what was learnt that stays, ``chi_square`` the
    innovation of all that was learnt, over so many ``degrees`` of freedom.
    """

    kind: Kind
    nats: float = 0.0
    keep: float = 1.0
    chi_square: float = 0.0
    degrees: int = 0


@dataclass(frozen=True)
class Drift:
    """What is known of changes, and how releases fitted since the last one.

    ``born``: releases before the last change. ``releases``: those that the present belief is made
    from. ``begun``: decisions of epochs planned since, as far as they still count; ``read``: of
    those that were read. ``changes`` and ``forgot``: how often everything was dropped, and how
    often a part of it. ``enough``: see :func:`~capri.learners.drift.enough`.
    """

    born: int = 0
    releases: int = 0
    begun: float = 0.0
    read: float = 0.0
    changes: int = 0
    forgot: int = 0
    rested: int = 0
    chi_square: float = 0.0
    degrees: int = 0
    enough: float | None = None

    @property
    def misfit(self) -> float:
        """How much wider innovations were than they should be, at least 1."""
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
        """Decisions below which no epoch is cut for the sake of seeing changes soon."""
        return max(_FIRST_ONES * first, _SHARE * self.begun)

    def longest(self, first: int, growth: float, memory: float | None) -> float:
        """Decisions of the next epoch at most: enough, and short again after a change."""
        if memory == inf:
            return inf
        most = inf if self.enough is None else max(self.enough, self.least(first))
        if memory is not None:
            most = min(most, max(first, memory / _EPOCHS_IN_MEMORY))
        if self.changes == 0 and self.forgot == 0:
            return most
        return min(most, first + (growth - 1) * self.begun)

    def shortest(self, length: int, first: int) -> int:
        """What is left of a length when a release is learnt from that is due before it."""
        return int(min(length, first if self.may_tell else self.least(first)))

    def planned(self, length: int) -> "Drift":
        """With an epoch that begins."""
        return replace(self, begun=self.begun + length)

    def stale(self, segments: Sequence[PlannedSegment], counts: Sequence[int]) -> bool:
        """Whether decisions of an epoch were made, and clipped, by a belief given up since."""
        return any(
            each.learnt < self.born and n > 0 for each, n in zip(segments, counts, strict=True)
        )

    def obsolete(self, segments: Sequence[PlannedSegment]) -> bool:
        """Whether an epoch began with a belief given up since."""
        return any(each.learnt < self.born for each in segments)

    def news(
        self,
        told: Iterable[Told],
        *,
        expected: Believed,
        fade: Callable[[float], Believed],
        empty: Nothing,
        heavy: bool,
        whole: bool = True,
    ) -> News:
        """``expected``: what was believed; ``fade``: the same with a share of what was learnt.

        ``whole``: the basis can hold the function. Else misfit is what is to be expected, and
        forgetting has to do better than a belief that is widened by it.

        A change looks like heavy tails, too: what was believed is wrong, and clipping cuts off the
        difference. Tails alone leave the innovation as it should be, and they show early.
        """
        told = list(told)
        chi_square, wide, degrees = innovation(told, expected)
        used = 1.0 if whole else self.misfit
        best = 0.5 * (chi_square / used + wide + degrees * log(used))
        keep, likeliest = 1.0, (chi_square, wide)
        for share in _KEEPS if self.rested >= _RESTED else ():
            own = innovation(told, fade(share))[:2]
            loss = 0.5 * sum(own) + self.doubt
            if loss < best:
                best, keep, likeliest = loss, share, own
        misfit = self.misfit
        nats = 0.5 * (likeliest[0] / misfit + likeliest[1] + degrees * log(misfit))
        nats -= 0.5 * sum(innovation(told, empty)[:2])
        odd = float(chdtrc(degrees, chi_square / misfit)) < _ODD
        kind = Kind.LEARNT
        if heavy:
            kind = Kind.CHANGE if odd and self.releases > _YOUNG else Kind.HEAVY
        elif self.may_tell and nats > ALARM:
            kind = Kind.CHANGE
        return News(kind, nats, keep, chi_square, degrees)

    def after(self, news: News, epochs: int) -> "Drift":
        """With the newest of so many releases."""
        if news.kind is Kind.STALE:
            return self
        if news.kind is Kind.CHANGE:
            return Drift(born=epochs, changes=self.changes + 1)
        if news.kind is Kind.HEAVY:
            return replace(self, releases=0, rested=0, chi_square=0.0, degrees=0)
        if self.releases == 0:  # the prior's scale is learnt from the first
            return replace(self, releases=1, rested=1)
        return replace(
            self,
            releases=self.releases + 1,
            begun=news.keep * self.begun,
            read=news.keep * self.read,
            forgot=self.forgot + (news.keep < 1),
            rested=self.rested + 1 if news.keep == 1 else 0,
            chi_square=self.chi_square + news.chi_square,
            degrees=self.degrees + news.degrees,
        )

    def remembered(self, decisions: int, memory: float | None) -> tuple["Drift", float]:
        """With so many more decisions read; and the share of the rest that a told memory leaves."""
        keep = 1.0 if memory is None else exp(-decisions / memory)
        read = keep * self.read + decisions
        return replace(self, begun=keep * self.begun, read=read), keep


def innovation(told: Iterable[Told], state: "Believed | Nothing") -> tuple[float, float, int]:
    """``e^T S^-1 e``, ``log det S`` and their degrees of freedom, summed over blocks."""
    chi_square, determinant, degrees = 0.0, 0.0, 0
    for block, observation, released in told:
        design = observation.design
        error = released - design @ (state.mean[block] - observation.baseline)
        image = design @ state.factor[block]
        lower = cho_factor(image @ image.T + observation.covariance)
        chi_square += float(error @ cho_solve(lower, error))
        determinant += 2 * float(np.log(np.diag(lower[0])).sum())
        degrees += len(error)
    return chi_square, determinant, degrees


# Sums over releases, in beliefs, crowds and measured squares.
_SUMS = (
    "information", "vector", "informations", "vectors", "constants", "spread", "image", "constant",
    "total", "weight", "cut", "cut_weight",
)  # fmt: skip
Fading = TypeVar("Fading", Belief, Overdispersion, Squares)


def faded(thing: Fading, keep: float) -> Fading:
    """What is left of sums over releases when all of them count so much less."""
    if keep == 1:
        return thing
    return replace(
        thing, **{name: keep * vars(thing)[name] for name in _SUMS if name in vars(thing)}
    )


def renewed(belief: Belief) -> Belief:
    """An empty belief after a change: rewards that looked heavy-tailed may have been changing."""
    return replace(faded(belief, 0.0), epochs=belief.epochs + 1, heavy_tails=False)


def noise_kept(squares: Squares, belief: Belief, reward_bound: float) -> Squares:
    """What is left of the measured squares after a change: the noise variance, roughly."""
    nothing = faded(squares, 0.0)
    if belief.moment_precision == 0:
        return nothing
    weight = min(belief.moment_precision, (_NOISE_KEPT * reward_bound**2) ** -2)
    value = belief.moment / belief.moment_precision
    return replace(nothing, total=value * weight, weight=weight)


# Short epochs may cost so much of what is at stake, the spread of f over actions.
_PREMIUM = 0.005


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an epoch tells of a block: an observation, a root of what is unknown, ``E[v v^T]``."""

    observation: Observation
    factor: FloatArray
    spread: FloatArray


def enough(
    blocks: Sequence[Outcome], stakes: float, *, noise: float, least: float, most: float
) -> float:
    """The shortest length with ``e(n) - e(most) <= 0.005 stakes``, between ``least`` and ``most``.

    ``stakes``: the spread of the estimate over actions, which is what there is to lose.
    """
    if most <= least:
        return least
    prepared = [_prepared(block) for block in blocks]

    def error(length: float) -> float:
        total = 0.0
        for image, variances, inner in prepared:
            weights = most / (noise**2 / length + variances)
            known = (image * weights[:, None]).T @ image
            known[np.diag_indices_from(known)] += 1.0
            total += float(np.trace(np.linalg.solve(known, inner)))
        return sqrt(max(total, 0.0))

    length, limit = least, error(most) + _PREMIUM * stakes
    while length < most and error(length) > limit:
        length *= sqrt(2.0)
    return min(length, most)


def _prepared(block: Outcome) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``h`` in the eigenvectors of ``c``, their variances, and ``F^T S F``."""
    seen, factor = block.observation, block.factor
    sampling = np.zeros_like(seen.covariance) if seen.sampling is None else seen.sampling
    variances, vectors = np.linalg.eigh(sampling / seen.participants)
    image = vectors.T @ seen.design @ factor / seen.participants
    return image, np.maximum(variances, 0.0), factor.T @ block.spread @ factor
