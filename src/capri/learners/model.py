"""What a learner knows, and what its model of ``f`` has to say of it.

A learner is written once, over blocks of coefficients. What differs between one block with a
general design and many blocks, one an arm, is a :class:`Model`: coordinates and prior, what a
segment plays, which messages an epoch sends, how a release is laid out, and draws of the law.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.problem import Problem
from capri.features import ProjectedFeatures, Span
from capri.learners.active import DifferenceTest
from capri.learners.belief import Belief, Believed, Block, Squares
from capri.learners.boundary import noise_at
from capri.learners.change_of_basis import ChangeOfBasis
from capri.learners.context_law import ContextLaw
from capri.learners.drift import Drift
from capri.learners.fit import Fit, PoolTest, Rates
from capri.learners.messages import Message, Question
from capri.learners.moment_design import Coordinates
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.prior import Observed
from capri.learners.priors import CoefficientPrior
from capri.learners.response import Response
from capri.learners.segments import (
    Design,
    Part,
    Pending,
    PlannedSegment,
    Played,
    Stage,
)
from capri.learners.warm_start import WarmStart


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Public through and through: the problem, and what the releases made of it.

    ``conduct`` is the law of the open epoch and ``stage`` the public contexts that the next one is
    planned on. ``warm_start``: what was known before the first user, None for nothing.
    """

    problem: Problem
    options: PracticalOptions
    model: "Model"
    belief: Belief
    posterior: Believed
    overdispersion: Overdispersion
    squares: Squares
    response: Response
    context_law: ContextLaw
    conduct: play.Conduct
    stage: Stage
    drift: Drift = field(default_factory=Drift)
    fit: Fit = field(default_factory=Fit)
    rates: Rates = field(default_factory=Rates)
    pool_test: PoolTest = field(default_factory=PoolTest)
    warm_start: WarmStart | None = None
    pending: Pending

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


class Model(ABC):
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
        conduct: play.Conduct,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> Played:
        """What a segment may play, in contexts of the pool and elsewhere."""

    def played_again(
        self, segment: PlannedSegment, elsewhere: FloatArray, generator: np.random.Generator
    ) -> Played:
        """What a planned segment played.

        Once the actions were replaced, its law is known where it was planned and nowhere else.
        """
        if segment.played is not None:
            return segment.played
        rows = elsewhere[:0] if segment.moved else elsewhere
        return self.played(segment.stage, segment.conduct, rows, generator)

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
    ) -> Iterable[Part]:
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
