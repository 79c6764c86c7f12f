"""What a learner knows, and what its model of ``f`` has to say of it.

A learner is written once, over blocks of coefficients. What differs between one block with a
general design and many blocks, one an arm, is a model: coordinates and prior, what a segment plays,
which messages an epoch sends, how a release is laid out, and draws of the law.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from scipy.special import chdtrc

from capri.arrays import FloatArray
from capri.epoch import play
from capri.epoch.problem import Problem
from capri.features import ProjectedFeatures, Span
from capri.learners.active import DifferenceTest
from capri.learners.belief import Belief, Believed, CoefficientPrior, Squares, Told
from capri.learners.boundary import noise_at
from capri.learners.context_law import ContextLaw, Moments
from capri.learners.context_support import ContextSupport
from capri.learners.crowd import Crowd
from capri.learners.drift import Drift
from capri.learners.fit import Fit, PoolTest, Rates
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.response import ResponseRate
from capri.learners.segments import (
    Design,
    Pending,
    Stage,
)
from capri.learners.warm_start import WarmStart
from capri.privacy.budget import PrivacyModel

if TYPE_CHECKING:
    from capri.learners.arms_model import ArmsModel
    from capri.learners.dense_model import DenseModel

Model: TypeAlias = "DenseModel | ArmsModel"
# Contexts of a sampler on which shares are priced.
_PRICED_CONTEXTS = 512
# Innovations so long have at most this probability where pool, kernel and noise are right.
_SUSPICIOUS = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Public through and through: the problem, and what the releases made of it.

    ``behaviour`` plays the open epoch and ``stage`` are the public contexts that the next one is
    planned on. ``warm_start``: what was known before the first user, None for nothing.
    """

    problem: Problem
    options: PracticalOptions
    model: Model
    belief: Belief
    posterior: Believed
    overdispersion: Overdispersion
    squares: Squares
    response: ResponseRate
    context_law: ContextLaw
    behaviour: play.BehaviourPolicy
    stage: Stage
    drift: Drift = field(default_factory=Drift)
    fit: Fit = field(default_factory=Fit)
    rates: Rates = field(default_factory=Rates)
    pool_test: PoolTest = field(default_factory=PoolTest)
    crowd: Crowd
    warm_start: WarmStart | None = None
    pending: Pending

    def under_way(self, read: int | None = None) -> list[int]:
        """Epochs but the one that was read just now and the one that still takes decisions."""
        return sorted(set(self.pending) - {read})[:-1]

    def awaited(self, epochs: Iterable[int]) -> FloatArray | None:
        """The information that these epochs will give, as their plans expect it; None for none.

        Reports are read as they come.
        """
        if self.problem.model is PrivacyModel.LOCAL:
            return None
        found = [self.pending[epoch][0].information for epoch in sorted(epochs)]
        promised = [each for each in found if each is not None]
        return np.sum(promised, axis=0) if promised else None

    def plays_again(self, epochs: Iterable[int]) -> bool:
        """Whether one of these plays the law of now: the next one had better try others."""
        segments = (each for epoch in epochs for each in self.pending[epoch])
        again = (each.learnt == self.belief.epochs for each in segments)
        return self.model.tries_others and any(again)

    def asks_who_comes(self, epoch: int) -> bool:
        """Whether second moments are worth more than less noise: only dense messages carry them.

        On every second epoch once the pool is known, or may be suspected, not to be those who
        come: releases that do not fit are a sign of that, too.
        """
        drift = self.drift
        odd = drift.degrees > 0 and float(chdtrc(drift.degrees, drift.chi_square)) < _SUSPICIOUS
        doubted = odd or drift.changes > 0 or drift.forgot > 0
        return (doubted or self.context_law.kind > 0) and epoch % 2 == 0

    @property
    def begun(self) -> bool:
        """Whether anything is known of rewards, or about to be."""
        return bool(self.belief.epochs or self.pending or self.warm_start)

    def keeping(self, epoch: int | None) -> "Knowledge":
        """Awaiting nothing of epochs that are lost, and of this one what is still to come."""
        segments = self.pending.get(epoch or 0, ())
        lost = tuple(replace(each, design=None, promised=None) for each in segments)
        pending = {epoch: lost} if epoch is not None and lost else {}
        crowd = self.crowd if self.crowd.waiting == epoch else self.crowd.unheard()
        return replace(self, pending=pending, crowd=crowd)

    def without(self, epoch: int) -> "Knowledge":
        """Without an epoch that will never be released."""
        pending = {number: each for number, each in self.pending.items() if number != epoch}
        crowd = self.crowd.unheard() if self.crowd.waiting == epoch else self.crowd
        return replace(self, pending=pending, crowd=crowd)

    def among(self, problem: Problem) -> "Knowledge":
        """With the law of other contexts; segments that were planned keep the contexts of then."""
        law = ContextLaw.trusting(ContextSupport.of(problem))
        pending = {
            epoch: tuple(replace(each, stage=replace(each.stage, is_pool=False)) for each in own)
            for epoch, own in self.pending.items()
        }
        return replace(self, context_law=law, pending=pending)

    @property
    def design(self) -> Design | None:
        """What the plan of the newest epoch expects; None where none is open."""
        return self.pending[max(self.pending)][0].design if self.pending else None

    @property
    def basis(self) -> Span:
        """The coordinates."""
        return self.model.basis

    @property
    def prior(self) -> CoefficientPrior:
        """What was believed before any release."""
        return self.model.prior


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A release as the learner takes it in.

    ``design``: what was expected of it; ``told``: what it says, block by block. ``whole``: the
    basis can hold the function. ``response``: who answers; ``law``: who comes, and what ``moments``
    of it say so.
    """

    design: Design
    told: Sequence[Told]
    response: ResponseRate
    law: ContextLaw
    moments: Moments | None = None
    whole: bool = True


class BlockModel:
    """What models of one block and of many have in common unless they say otherwise."""

    # Epochs grow by no more.
    fastest_growth: ClassVar[float] = inf
    # Whether an epoch has draws of its own where another one under way plays the law of now.
    tries_others: ClassVar[bool] = False
    # Whether the law is drawn before anything is known; else it is uniform.
    draws_at_once: ClassVar[bool] = False

    @property
    def left_out(self) -> float:
        """Share of what is expected of ``f`` that the coordinates cannot express."""
        return 0.0

    def readable(self, features: ProjectedFeatures) -> ProjectedFeatures:
        """The features of a plan in the blocks of now."""
        return features

    def noise_at(self, known: Knowledge, estimate: FloatArray) -> FloatArray | float:
        """Variance of the reward noise at pairs of these estimates."""
        return noise_at(known.belief, estimate, known.problem.reward_bound)

    def difference_test(self, known: Knowledge) -> DifferenceTest | None:
        """How far estimates must be apart to tell which is better; None where nobody can say."""
        return None

    def pass_over(self, generator: np.random.Generator) -> None:
        """Leave the public stream where a calibration at every release would leave it."""


def behaviour_of(problem: Problem, law: play.Law) -> play.BehaviourPolicy:
    """A law within the limits of a problem."""
    if problem.on_devices and isinstance(law, play.ThompsonLaw):
        law = law.rounded()
    behaviour = play.BehaviourPolicy(problem.actions, law, problem.bounds)
    if problem.bounds is None or problem.bounds.shares is None:
        return behaviour
    public = np.random.default_rng(0)  # no draw of others moves
    return play.priced(behaviour, *problem.contexts.support(public, _PRICED_CONTEXTS))
