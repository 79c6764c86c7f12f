"""What a learner knows, and what its model of ``f`` has to say of it.

A learner is written once, over blocks of coefficients. What differs between one block with a
general design and many blocks, one an arm, is a :class:`BlockModel`: coordinates and prior, what a
segment plays, which messages an epoch sends, how a release is laid out, and draws of the law.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import chdtrc

from capri.arrays import FloatArray, IntArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.problem import Problem
from capri.features import ProjectedFeatures, Span
from capri.learners.active import DifferenceTest
from capri.learners.belief import Belief, Believed, Block, CoefficientPrior, Squares, Told
from capri.learners.boundary import noise_at
from capri.learners.change_of_basis import ChangeOfBasis
from capri.learners.context_law import ContextLaw, Moments
from capri.learners.context_support import ContextSupport
from capri.learners.crowd import Crowd
from capri.learners.drift import Drift
from capri.learners.fit import Fit, PoolTest, Rates
from capri.learners.messages import Message, Question
from capri.learners.moment_design import Coordinates
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.prior import Observed
from capri.learners.response import ResponseRate
from capri.learners.segments import (
    BlockPart,
    Design,
    Pending,
    PlannedSegment,
    SegmentPlay,
    Stage,
)
from capri.learners.warm_start import WarmStart
from capri.privacy.budget import PrivacyModel

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
    model: "BlockModel"
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


class BlockModel(ABC):
    """A function in public coordinates, of one block or many."""

    basis: Span
    prior: CoefficientPrior
    # Epochs grow by no more.
    fastest_growth: ClassVar[float] = inf
    # Whether an epoch has draws of its own where another one under way plays the law of now.
    tries_others: ClassVar[bool] = False
    # Whether the law is drawn before anything is known; else it is uniform.
    draws_at_once: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(
        cls,
        problem: Problem,
        options: PracticalOptions,
        law: ContextLaw,
        generator: np.random.Generator,
    ) -> Self:
        """For a problem, and those who come to it."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """That of the coefficients, blocks first."""

    @property
    def left_out(self) -> float:
        """Share of what is expected of ``f`` that the coordinates cannot express."""
        return 0.0

    @abstractmethod
    def accepts(self, problem: Problem) -> None:
        """Refuse a problem with actions that the model cannot go on with."""

    @abstractmethod
    def changed(
        self, before: Problem, problem: Problem, law: ContextLaw, generator: np.random.Generator
    ) -> tuple[Self, ChangeOfBasis]:
        """The model of a problem with other actions, and what becomes of coefficients."""

    @abstractmethod
    def warm_start(self, observed: Observed) -> WarmStart:
        """What was known before the first user."""

    # -- planning and reading ---------------------------------------------------------------------

    @abstractmethod
    def played(
        self,
        stage: Stage,
        behaviour: play.BehaviourPolicy,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> SegmentPlay:
        """What a segment may play, in contexts of the pool and elsewhere."""

    def played_again(
        self, segment: PlannedSegment, elsewhere: FloatArray, generator: np.random.Generator
    ) -> SegmentPlay:
        """What a planned segment played.

        Once the actions were replaced, its law is known where it was planned and nowhere else.
        """
        if segment.played is not None:
            return segment.played
        rows = elsewhere[:0] if segment.moved else elsewhere
        return self.played(segment.stage, segment.behaviour, rows, generator)

    @abstractmethod
    def message(
        self, question: Question[Any], played: Any, law: ContextLaw, *, moments: bool
    ) -> Message:
        """The messages that leave the least to learn.

        ``moments``: those that tell who comes, if there are any.
        """

    def readable(self, features: ProjectedFeatures) -> ProjectedFeatures:
        """The features of a plan in the blocks of now."""
        return features

    @abstractmethod
    def places(self, features: ProjectedFeatures) -> dict[Block, slice]:
        """Where messages speak of each block."""

    @abstractmethod
    def parts(
        self, features: ProjectedFeatures, segment: PlannedSegment, support: Any
    ) -> Iterable[BlockPart]:
        """What a segment is expected to send of each block."""

    @abstractmethod
    def coordinates(
        self, features: ProjectedFeatures, played: Any, chosen: IntArray
    ) -> Coordinates:
        """Some coordinates of messages at all that a segment may play."""

    def noise_at(self, known: Knowledge, estimate: FloatArray) -> FloatArray | float:
        """Variance of the reward noise at pairs of these estimates."""
        return noise_at(known.belief, estimate, known.problem.reward_bound)

    # -- playing ----------------------------------------------------------------------------------

    @abstractmethod
    def law(
        self,
        known: Knowledge,
        length: float,
        generator: np.random.Generator,
        *,
        awaited: FloatArray | None = None,
        waiting: int = 0,
    ) -> play.ThompsonLaw:
        """Draws for an epoch of about this length.

        ``awaited``: the information that so many epochs under way will give.
        """

    @abstractmethod
    def curious(
        self, known: Knowledge, law: play.ThompsonLaw, change: ChangeOfBasis
    ) -> tuple[play.ThompsonLaw, bool]:
        """The law after a change of actions, and whether there are some nothing is known of."""

    @abstractmethod
    def stakes(self, state: Any) -> float:
        """The spread of the estimate over actions, which is what there is to lose."""

    def difference_test(self, known: Knowledge) -> DifferenceTest | None:
        """How far estimates must be apart to tell which is better; None where nobody can say."""
        return None

    def pass_over(self, generator: np.random.Generator) -> None:  # noqa: B027
        """Leave the public stream where a calibration at every release would leave it."""

    # -- storage ----------------------------------------------------------------------------------

    @abstractmethod
    def state(self, posterior: Any) -> State:
        """Coordinates and prior, as JSON values and arrays."""

    @abstractmethod
    def restored(
        self, problem: Problem, values: dict[str, Any], arrays: dict[str, FloatArray]
    ) -> tuple[Self, FloatArray | None]:
        """The inverse of :meth:`state`, and the weights of candidates."""


def behaviour_of(problem: Problem, law: play.Law) -> play.BehaviourPolicy:
    """A law within the limits of a problem."""
    if problem.on_devices and isinstance(law, play.ThompsonLaw):
        law = law.rounded()
    behaviour = play.BehaviourPolicy(problem.actions, law, problem.bounds)
    if problem.bounds is None or problem.bounds.shares is None:
        return behaviour
    public = np.random.default_rng(0)  # no draw of others moves
    return play.priced(behaviour, *problem.contexts.support(public, _PRICED_CONTEXTS))
