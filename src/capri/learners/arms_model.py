"""Many blocks, one an arm: unrelated actions, each with coefficients of its own.

Cost grows with arms times the cube of the coordinates of one arm, and no arm is left out.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch import play
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.family import ArmBasis, ArmFeatures, arms_of
from capri.features import ProjectedFeatures
from capri.learners.arm_messages import (
    ArmParts,
    ArmSupport,
    MessageChoice,
    PlayedArms,
    lengthened,
)
from capri.learners.arm_prior import ArmPosterior, ArmPrior
from capri.learners.belief import Believed, Block
from capri.learners.change_of_basis import ChangeOfBasis, Lengthened, Passage, least_squares
from capri.learners.context_law import ContextLaw
from capri.learners.draws import (
    Tries,
    boldness,
    number_of_draws,
    outlook_of,
    thompson_draws,
)
from capri.learners.messages import Message, Question
from capri.learners.model import BlockModel, Knowledge
from capri.learners.moment_design import Coordinates
from capri.learners.options import PracticalOptions
from capri.learners.prior import Observed
from capri.learners.segments import PlannedSegment, Stage
from capri.learners.warm_start import WarmStart, warm_start
from capri.spaces import FixedActions

# Coordinates of all arms together, of one arm at least and at most.
_COORDINATES, _NARROWEST, _WIDEST = 2400, 12, 60
# Contexts over which coefficients pass from old features of contexts to new ones.
_PASSAGE_CONTEXTS = 1024
# Contexts on which it is judged whether an arm is worth a try.
_TRIED_CONTEXTS = 256


@dataclass(frozen=True, eq=False)
class ArmsModel(BlockModel):
    """``f(c, a) = u(c)^T theta_a``; an arm is known by the column of its indicator."""

    options: PracticalOptions
    basis: ArmBasis
    prior: ArmPrior

    # Many arms are sorted out in many short epochs.
    fastest_growth: ClassVar[float] = 1.3
    tries_others: ClassVar[bool] = True
    draws_at_once: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        problem: Problem,
        options: PracticalOptions,
        law: ContextLaw,
        generator: np.random.Generator,
    ) -> Self:
        """For a problem, and those who come to it."""
        actions = _arms(problem)
        width = int(np.clip(_COORDINATES // actions.dimension, _NARROWEST, _WIDEST))
        contexts = law.contexts(problem.contexts)
        basis, candidates = arms_of(contexts, actions, width=width, generator=generator)
        norm_bound = options.norm_bound or problem.reward_bound
        bound = None if problem.scale.symmetric else problem.reward_bound
        return cls(options, basis, ArmPrior(candidates, norm_bound, bound))

    @property
    def shape(self) -> tuple[int, int]:
        """Coefficients of every arm."""
        return self.basis.arms, self.basis.width

    def accepts(self, problem: Problem) -> None:
        """Refuse actions with features."""
        _arms(problem)

    def changed(
        self, before: Problem, problem: Problem, law: ContextLaw, generator: np.random.Generator
    ) -> tuple[Self, ChangeOfBasis]:
        """An arm is known by its indicator, a new one starts from what all have in common.

        With the same arms it is the features of contexts that are made anew, for those who come.
        """
        if problem is before:
            heir = self.of(problem, self.options, law, generator)
            rows, _ = law.contexts(problem.contexts).support(generator, _PASSAGE_CONTEXTS)
            old, new = self.basis.context(rows), heir.basis.context(rows)
            return heir, Passage(heir.basis, least_squares(old, new))
        actions = _arms(problem)
        offered = actions.rows.argmax(axis=1).astype(np.int64)
        basis = replace(self.basis, offered=offered, arms=actions.dimension)
        return replace(self, basis=basis), Lengthened(actions.dimension - self.basis.arms)

    def warm_start(self, observed: Observed) -> WarmStart:
        """From public rows, each of which speaks of one arm, with the noise of largest evidence."""
        if observed.matrix is not None:
            raise ConfigurationError(
                "a policy with one block for every action takes public rows beforehand, not "
                "releases: give blocks=False, or capri.Prior.from_rows"
            )
        u, arm = self.basis.split(observed.pairs)
        rows: dict[Block, tuple[FloatArray, FloatArray]] = {
            int(each): (u[arm == each], observed.targets[arm == each]) for each in np.unique(arm)
        }
        return warm_start(rows, self.shape, self.prior)

    # -- planning and reading ---------------------------------------------------------------------

    def played(
        self,
        stage: Stage,
        behaviour: play.BehaviourPolicy,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> PlayedArms:
        """All arms at all contexts."""
        return PlayedArms.of(self.basis, stage, behaviour, elsewhere)

    def message(
        self, question: Question[ArmSupport], played: PlayedArms, law: ContextLaw, *, moments: bool
    ) -> Message:
        """All arms in cells, or none."""
        choice = MessageChoice(question, moments)
        found, kind = choice.best()
        features = ArmFeatures(self.basis, found.shapes, found.sizes, question.tau, found.offsets)
        layout = choice.layout(kind.norm, features, played, law)
        return Message(features, layout, kind.noise, kind.main_share)

    def readable(self, features: ProjectedFeatures) -> ArmFeatures:
        """With arms that were added since."""
        assert isinstance(features, ArmFeatures)
        more = self.basis.arms - features.basis.arms
        return lengthened(features, more) if more > 0 else features

    def places(self, features: ProjectedFeatures) -> dict[Block, slice]:
        """Arm after arm."""
        assert isinstance(features, ArmFeatures)
        ends = np.cumsum(features.sizes)
        return {
            arm: slice(int(end - size), int(end))
            for arm, (end, size) in enumerate(zip(ends, features.sizes, strict=True))
        }

    def parts(
        self, features: ProjectedFeatures, segment: PlannedSegment, support: ArmSupport
    ) -> ArmParts:
        """A part for every arm that was played."""
        assert isinstance(features, ArmFeatures)
        return ArmParts(features, support, segment.moved)

    def coordinates(
        self, features: ProjectedFeatures, played: PlayedArms, chosen: IntArray
    ) -> Coordinates:
        """At all pairs that may have any of them."""
        assert isinstance(features, ArmFeatures)
        return played.coordinates(features, chosen)

    def noise_at(self, known: Knowledge, estimate: FloatArray) -> float:
        """One number: an estimate of few plays is too rough to tell an arm's own noise by."""
        return known.belief.noise_variance(known.problem.reward_bound)

    # -- playing ----------------------------------------------------------------------------------

    def law(
        self,
        known: Knowledge,
        length: float,
        generator: np.random.Generator,
        *,
        awaited: FloatArray | None = None,
        waiting: int = 0,
    ) -> play.ThompsonLaw:
        """Draws of what an epoch of about this length can resolve and no other one will tell."""
        belief, drift, state = known.belief, known.drift, known.posterior
        assert isinstance(state, ArmPosterior)
        age = belief.epochs - drift.born + waiting
        unknown = float(np.trace(state.covariance.mean(axis=0)))
        outlook = outlook_of(known.problem, self.options, belief, unknown, length)
        tries = None
        if drift.begun:  # else all arms are alike
            u = self.basis.context(known.stage.contexts[:_TRIED_CONTEXTS])
            level = self.prior.level(state)
            tries = Tries(u=u, offered=self.basis.offered, decisions=drift.begun, level=level)
        draws = thompson_draws(
            state,
            outlook,
            number_of_draws(age, self.options.draws, outlook),
            self.options.thompson_scale * boldness(age),
            generator,
            awaited,
            tries,
        )
        return play.ThompsonLaw(self.basis, draws)

    def curious(
        self, known: Knowledge, law: play.ThompsonLaw, change: ChangeOfBasis
    ) -> tuple[play.ThompsonLaw, bool]:
        """New arms are drawn from what all have in common."""
        return law, change.more > 0

    def stakes(self, state: Believed) -> float:
        """Over arms."""
        return float(np.sqrt(state.mean.var(axis=0).sum()))


def _arms(problem: Problem) -> FixedActions:
    actions = problem.actions
    if not (isinstance(actions, FixedActions) and actions.unrelated):
        raise ConfigurationError(
            "this policy was built for actions that are names or numbers: it goes on with "
            "others of that kind only. Build a new policy for actions with features"
        )
    return actions
