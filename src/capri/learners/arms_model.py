"""Many blocks, one an arm: unrelated actions, each with coefficients of its own.

Cost grows with arms times the cube of the coordinates of one arm, and no arm is left out.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.errors import ConfigurationError
from capri.family import ArmBasis, ArmFeatures, Candidates, arms_of
from capri.features import ProjectedFeatures
from capri.learners.arm_draws import (
    Tries,
    boldness,
    number_of_draws,
    outlook_of,
    thompson_draws,
)
from capri.learners.arm_messages import (
    ArmParts,
    ArmSupport,
    MessageChoice,
    PlayedArms,
    lengthened,
)
from capri.learners.arm_prior import ArmPosterior, ArmPrior
from capri.learners.belief import Belief, Believed, Block
from capri.learners.change_of_basis import ChangeOfBasis, Lengthened
from capri.learners.context_law import ContextLaw
from capri.learners.messages import Message, Question
from capri.learners.model import Knowledge, Model
from capri.learners.moment_design import Coordinates
from capri.learners.options import PracticalOptions
from capri.learners.prior import Observed
from capri.learners.segments import PlannedSegment, Stage
from capri.learners.warm_start import LEAST, ROUNDS, WarmStart, discounted
from capri.spaces import Actions, FixedActions, context_chunks

# Coordinates of all arms together, of one arm at least and at most.
_COORDINATES, _NARROWEST, _WIDEST = 2400, 12, 60
# Contexts on which it is judged whether an arm is worth a try.
_TRIED_CONTEXTS = 256


@dataclass(frozen=True, eq=False)
class ArmsModel(Model):
    """``f(c, a) = u(c)^T theta_a``; an arm is known by the column of its indicator."""

    options: PracticalOptions
    basis: ArmBasis
    prior: ArmPrior

    # Many arms are sorted out in many short epochs.
    fastest_growth: ClassVar[float] = 1.3
    tries_others: ClassVar[bool] = True
    tells_contexts: ClassVar[bool] = False

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
        """An arm is known by its indicator, a new one starts from what all have in common."""
        actions = _arms(problem)
        offered = actions.rows.argmax(axis=1).astype(np.int64)
        basis = replace(self.basis, offered=offered, arms=actions.dimension)
        return replace(self, basis=basis), Lengthened(actions.dimension - self.basis.arms)

    def carried_over(self, start: WarmStart | None, belief: Belief, before: Believed) -> Believed:
        """Arms that were added say nothing of the weights: these stay, and so do all estimates."""
        if start is None:
            return self.prior.again(belief, before.weights)
        return super().carried_over(start, belief, before)

    def warm_start(self, observed: Observed) -> WarmStart:
        """From public rows, each of which speaks of one arm, with the noise of largest evidence."""
        if observed.matrix is not None:
            raise ConfigurationError(
                "a policy with one block for every action takes public rows beforehand, not "
                "releases: give blocks=False, or capri.Prior.from_rows"
            )
        u, arm = self.basis.split(observed.pairs)
        targets, shape = observed.targets, self.shape
        gram, image = np.zeros((*shape, shape[1])), np.zeros(shape)
        for number in np.unique(arm):
            own = u[arm == number]
            gram[number], image[number] = own.T @ own, own.T @ targets[arm == number]
        empty = replace(Belief.empty(*shape), epochs=1)
        whole = float(targets @ targets) / len(targets) + 1e-300
        variance, state = 0.25 * whole, None
        for _ in range(ROUNDS):
            belief = replace(empty, information=gram / variance, vector=image / variance)
            state = self.prior.infer(belief, state)
            taken = float(np.einsum("aij,aij->", gram / variance, state.covariance))
            residual = targets - np.einsum("ij,ij->i", u, state.mean[arm])
            left = max(len(targets) - taken, 1.0)
            variance = max(float(residual @ residual) / left, LEAST * whole)
        belief = replace(empty, information=gram / variance, vector=image / variance)
        state = self.prior.infer(belief, state)
        root = self.prior.root(state)[0]
        return discounted(belief.information, belief.vector, self.prior, root, state)

    # -- planning and reading ---------------------------------------------------------------------

    def unknown_contexts(self, law: ContextLaw, problem: Problem) -> float:
        """Features of contexts stay those of the pool."""
        return 0.0

    def played(
        self,
        stage: Stage,
        conduct: play.Conduct,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> PlayedArms:
        """All arms at all contexts."""
        return PlayedArms.of(self.basis, stage, conduct, elsewhere)

    def message(
        self, question: Question[ArmSupport], played: PlayedArms, law: ContextLaw, *, moments: bool
    ) -> Message:
        """All arms in cells, or none."""
        choice = MessageChoice(question.problem, self.options, question.value_bound, question.tail)
        found, kind = choice.best(
            question.support, question.unsettled, question.answers, question.mean_total
        )
        features = ArmFeatures(self.basis, found.shapes, found.sizes, question.tau, found.offsets)
        layout = choice.layout(kind.norm, features.rank, question.length)
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
        return ArmParts(features, support)

    def coordinates(
        self, features: ProjectedFeatures, played: PlayedArms, chosen: IntArray
    ) -> Coordinates:
        """Messages of arms carry no moments."""
        raise NotImplementedError

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
        outlook = outlook_of(known.problem, self.options, belief, state, length)
        tries = None
        if drift.begun:  # else all arms are alike
            u = self.basis.context(known.stage.contexts[:_TRIED_CONTEXTS])
            tries = Tries(u=u, offered=self.basis.offered, decisions=drift.begun)
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

    def opening(self, known: Knowledge, length: int, generator: np.random.Generator) -> play.Law:
        """Draws of what a first epoch can resolve."""
        return self.law(known, length, generator)

    def after_change(
        self,
        known: Knowledge,
        change: ChangeOfBasis,
        length: int,
        generator: np.random.Generator,
        *,
        awaited: FloatArray | None,
        waiting: int,
    ) -> tuple[play.Law, bool]:
        """New arms are drawn from what all have in common."""
        law = self.law(known, length, generator, awaited=awaited, waiting=waiting)
        return law, change.more > 0 and known.belief.epochs > 0

    def stakes(self, state: ArmPosterior) -> float:
        """Over arms."""
        return float(np.sqrt(state.mean.var(axis=0).sum()))

    def estimate(self, state: Believed, actions: Actions, contexts: FloatArray) -> FloatArray:
        """Features of a context are computed once for all of its arms."""
        values, weights = np.empty((len(contexts), actions.count)), state.mean.reshape(-1, 1)
        for part in context_chunks(len(contexts), actions.count):
            values[part] = self.basis.values_at(actions, contexts[part], weights)[:, :, 0]
        return values

    # -- storage ----------------------------------------------------------------------------------

    def state(self, posterior: ArmPosterior) -> State:
        """Basis and candidates."""
        values, basis = self.basis.state()
        candidates = self.prior.candidates
        basis |= {
            "covariances": candidates.covariances,
            "shares": candidates.shares,
            "weights": posterior.weights,
        }
        return {"basis": values, "candidates": list(candidates.names)}, named("basis", basis)

    def restored(
        self, problem: Problem, values: dict[str, Any], arrays: dict[str, FloatArray]
    ) -> tuple[Self, FloatArray | None]:
        """The inverse of :meth:`state`."""
        own, names = below("basis", arrays), tuple(values["candidates"])
        candidates = Candidates(own["covariances"], own["shares"], names)
        basis, prior = ArmBasis.from_state(values["basis"], own), self.prior
        found = replace(self, basis=basis, prior=replace(prior, candidates=candidates))
        return found, np.asarray(own["weights"])


def _arms(problem: Problem) -> FixedActions:
    actions = problem.actions
    if not (isinstance(actions, FixedActions) and actions.unrelated):
        raise ConfigurationError(
            "this policy was built for actions that are names or numbers: it goes on with "
            "others of that kind only. Build a new policy for actions with features"
        )
    return actions
