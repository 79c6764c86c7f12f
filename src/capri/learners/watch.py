"""Whether those who come can have come from the public pool.

Every message of the joint model carries combinations ``q`` of its own second moments, whatever its
reward is and whether one came: the one thing said of pairs that no reward is mixed with. Under the
pool's law they are known in advance,

    e = sum q - n E[q],     C = sigma^2 I + n Cov[q],     e^T C^-1 e ~ chi2(size),

and independent from release to release, so sums over releases are chi-square, too. With many users
any pool is found out, even one that is as good as a sample can be: an alarm also asks for a law
learnt from the moments that is far from the pool's. Post-processing.

Whether rewards still come when the wait is over: the rate of answers by how long was waited.

The last decision of an epoch is waited for as long as ``reward_wait`` says, the first one longer,
by as long as the epoch takes. With ``F(a)`` the share of rewards that come within ``a`` decisions,
an epoch of ``n`` decisions and wait ``w`` has the rate

    F(infinity) - (1/n) sum_{j < n} (F(infinity) - F(w + j))

which does not depend on ``n`` where the wait covers all delays, and rises with ``n`` where it does
not. Purchases that take longer than bounces are then lost more often than bounces, and estimates
are of those that were quick. Every epoch releases its rate where missing rewards are measured, so
comparing long epochs with the first ones is post-processing: it costs nothing.

All guard rails of the practical learner together: what they look at, and when.

Everything here is a function of options, public rows, plans and releases: post-processing. Nothing
that is planned, played or released depends on it, and it takes no draw from anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Protocol

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.notice import Notice
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.features import Basis, Span
from capri.learners import words
from capri.learners.belief import Belief, Told
from capri.learners.boundary import Level
from capri.learners.context_law import Moments
from capri.learners.drift import Believed
from capri.learners.fit import Candidate, Fit, Innovation, candidates
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Crowds


@dataclass(frozen=True)
class Comers:
    """How far who came is from whom the pool says.

    ``mismatch``: total variation between the learnt law and the pool's. ``elsewhere``: the share of
    users that the pool has nobody like.
    """

    fit: Fit = field(default_factory=Fit)
    mismatch: float = 0.0
    elsewhere: float = 0.0

    def after(
        self, moments: Moments | None, mismatch: float, elsewhere: float
    ) -> tuple["Comers", Notice | None]:
        """With one more release; ``moments`` None where it tells nothing of who came."""
        if moments is None:
            return self, None
        newest = Innovation(moments.chi_square, moments.degrees)
        seen = Comers(self.fit.after(newest), mismatch, elsewhere)
        return seen, words.pool(seen.fit, newest, mismatch, elsewhere)


# Epochs of up to twice the length of the first are short, from six times on they are long.
_SHORT, _LONG = 2, 6
# A rise of the rate by less costs little; beyond it, so many standard deviations count.
_RISE, _DEVIATIONS = 0.03, 4.5


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
        layout, length = release.plan.layout, release.participants
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

    def notice(self) -> Notice | None:
        """Rewards that come after the wait, said beyond doubt."""
        if self.rise is None:
            return None
        higher, deviation = self.rise
        if not higher > _RISE + _DEVIATIONS * deviation:
            return None
        short, long = self.short / self.short_precision, self.long / self.long_precision
        return Notice(
            kind="wait",
            text=(
                f"{long:.0%} of decisions have a reward where the epoch was long and hence the "
                f"wait, {short:.0%} where it was short: rewards still come when reward_wait is "
                "over. If it depends on the outcome how long they take, as with purchases and "
                "bounces, estimates are of the quick ones. Wait longer. (Else people answer more "
                "often since better actions are played, and all is well.)"
            ),
            numbers={"short": short, "long": long, "deviation": deviation},
        )


# Public pairs on which kernels are compared: matrices of so many rows squared.
_PAIRS = 600


class Scaled(Protocol):
    """A posterior that knows the scale of its prior."""

    @property
    def scale(self) -> float: ...  # noqa: D102 - as in Posterior


@dataclass(frozen=True, eq=False)
class Watch:
    """Guard rails around one configuration and one basis."""

    problem: Problem
    options: PracticalOptions
    norm_bound: float
    basis: Span
    left_out: float = 0.0  # of what is expected of f, where no kernel was told

    @cached_property
    def _pairs(self) -> FloatArray:
        return public_pairs(self.problem)

    @cached_property
    def _kernels(self) -> tuple[Candidate, ...]:
        """The told kernel and its other lengthscales: made once, when the first release is in."""
        if not isinstance(self.basis, Basis):
            return ()
        return candidates(self.problem.kernel, self.basis, self._pairs, self.options.smoothness)

    @cached_property
    def opening(self) -> tuple[Notice, ...]:
        """What can be said before any user."""
        if not isinstance(self.basis, Basis):  # columns are scaled from the pool
            notice = words.products(self.options, self.left_out)
            return () if notice is None else (notice,)
        found = (
            words.scales(self.problem, self._pairs),
            words.rank(self.options, self.basis, self._pairs),
        )
        return tuple(notice for notice in found if notice is not None)

    def after(
        self,
        fit: Fit,
        told: Sequence[Told],
        *,
        before: Belief,
        expected: Believed,
        belief: Belief,
        state: Scaled,
        crowds: Crowds,
    ) -> tuple[Fit, tuple[Notice, ...]]:
        """What a release says: innovations with it, and notices.

        ``before`` and ``expected`` are what was believed until it came, ``belief`` and ``state``
        what is believed now. The first release is held against the prior alone, whose scale is
        learnt from it: how large ``f`` is nobody has to know in advance. So innovations count from
        the second on. A belief that starts again, as rewards with heavy tails were cut off, was
        wrong for a reason of its own, and innovations start again with it.
        """
        if belief.moment_precision == 0:
            return Fit(), ()
        found = [
            words.prior_scale(state.scale, self.norm_bound),
            words.another_kernel(belief, self._kernels, self.norm_bound),
            words.people(crowds),
        ]
        if before.moment_precision > 0:
            known = isinstance(self.basis, Basis)
            if not known:  # what is left of a misfit when the crowd has explained what it can
                told = [(block, crowds.seen(each), part) for block, each, part in told]
            newest = Innovation.of(told, expected)
            fit = fit.after(newest)
            if known or crowds.likeliest == 0:  # else few people are what explains it
                found.append(words.misfit(fit, newest, told=known))
        return fit, tuple(notice for notice in found if notice is not None)


def level_of(problem: Problem, basis: Span) -> Level | None:
    """The common level of rewards that have a range; None where they may have either sign."""
    if problem.scale.symmetric:
        return None
    return Level.of(basis.coordinates(public_pairs(problem)), problem.reward_bound)


def public_pairs(problem: Problem) -> FloatArray:
    """Public pairs under uniform play, the same whenever they are asked for.

    From draws of their own, so that guard rails move no other draw, and a policy that was loaded
    sees the pairs that it saw before.
    """
    generator, actions = np.random.default_rng(0), problem.actions
    contexts, weights = problem.contexts.support(generator, _PAIRS)
    if len(contexts) * actions.count <= _PAIRS:
        pairs = actions.pairs(contexts)
        return np.asarray(pairs.reshape(-1, pairs.shape[-1]))
    rows = generator.choice(len(contexts), size=_PAIRS, p=weights)
    return actions.chosen(contexts[rows], generator.integers(actions.count, size=_PAIRS))
