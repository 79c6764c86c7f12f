"""A catalogue that changes: the part of the practical learner that goes on with other actions.

What was learnt passes to the new basis (:mod:`capri.learners.change_of_basis`). Of some new actions
the kernel then tells little, and where known ones are good, Thompson play would hardly try them:
its draws start from a prior around 0. So in the first epoch after a change a few draws are made in
which such an action is the best, and rewards are encoded whole: residuals of the others say nothing
of how large those of an unknown action are, and clipping would hide how good it is.
"""

from abc import abstractmethod
from copy import copy
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.features import Basis, Span
from capri.learners.active import DifferenceTest, Rehearsal, calibrated_test
from capri.learners.belief import Posterior
from capri.learners.change_of_basis import across, between
from capri.learners.codec import apart, prior_from, prior_state
from capri.learners.context_law import ContextLaw
from capri.learners.fit import Fit
from capri.learners.priors import Prior, ToldPrior
from capri.learners.start import Observed, head_start
from capri.learners.stored import StoredLearner
from capri.learners.support import Stage
from capri.learners.watch import Comers, Watch, level_of
from capri.spaces import context_chunks

# An action is unknown where its posterior variance is above this share of the prior one.
_UNKNOWN = 0.25
# Draws in which an unknown action is the best, and the share of draws that all of them may take.
_DRAWS_EACH, _SHARE = 2, 0.25


class Catalogue(StoredLearner):
    """Goes on with other actions; everything it touches is public."""

    _norm_bound: float
    _basis: Span
    _prior: Prior
    _posterior: Posterior
    _rehearsal: Rehearsal

    def begin(self, observed: Observed, generator: np.random.Generator) -> None:
        """Take in what is known before the first user, and play by it."""
        prior, basis = self._prior, self._basis
        self._head = head_start(observed, observed.design(basis), prior, prior.root)
        self._posterior = self._infer(self._belief, None)
        self._conduct = self._conducted(self._next_law(self._posterior, generator))
        self._stage = replace(self._stage, law=None)

    @abstractmethod
    def _sample_pairs(self, generator: np.random.Generator) -> FloatArray:
        """Public pairs under uniform play."""

    @abstractmethod
    def _build_basis(self, generator: np.random.Generator) -> tuple[Span, Prior]:
        """Coordinates for the actions of now, and what is believed of them before any release."""

    @abstractmethod
    def _rehearse(self, generator: np.random.Generator) -> Rehearsal:
        """Functions and contexts to calibrate active sets on."""

    @abstractmethod
    def _watched(self) -> Watch:
        """Guard rails around the basis of now."""

    @abstractmethod
    def _next_law(
        self,
        state: Posterior,
        generator: np.random.Generator,
        *,
        read: int | None = None,
    ) -> play.ThompsonLaw:
        """The law that a posterior is played by."""

    def adopt(self, problem: Problem, generator: np.random.Generator) -> None:
        """Go on with other actions from the next plan: what was learnt stays by the kernel."""
        self.accepts(problem)
        heir = copy(self)  # all or nothing
        heir._problem = problem
        sample = heir._sample_pairs(generator)
        if isinstance(self._basis, Basis):
            passage, spectrum = between(self._basis, sample, self._options)
            assert isinstance(self._prior, ToldPrior)
            heir._prior = replace(
                self._prior, spectrum=spectrum, level=level_of(problem, passage.basis)
            )
        else:
            heir._basis, heir._prior = heir._build_basis(generator)
            passage = across(
                self._basis, heir._basis, self._sample_pairs(generator), sample.shape[1]
            )
        heir._basis = passage.basis
        heir._belief = passage.belief(self._belief)
        heir._crowds = passage.crowds(self._crowds)
        heir._squares = passage.squares(self._squares)
        if self._head is not None:
            heir._head = passage.head(self._head)
        heir._posterior = heir._infer(heir._belief, self._posterior)
        heir._response = passage.response(self._response)
        heir._flights = {
            epoch: passage.legs(legs, problem.actions.dimension)
            for epoch, legs in self._flights.items()
        }
        heir._rehearsal = heir._rehearse(generator)
        heir._stage = Stage.draw(problem, generator)
        heir._conduct = heir._conduct_after_change(generator)
        heir._watch = heir._watched()
        vars(self).update(vars(heir))

    def _conduct_after_change(self, generator: np.random.Generator) -> play.Conduct:
        """The law of the first epoch with new actions."""
        belief = self._belief
        if belief.epochs == 0:
            return self._conducted(play.UniformLaw())
        law = self._next_law(self._posterior, generator)
        unknown = self._unknown(self._rehearsal.features)
        self._belief = replace(belief, curious=len(unknown) > 0)
        law = play.ThompsonLaw(self._basis, self._with_curiosity(law.draws, unknown))
        self._pass_over(generator)
        return self._conducted(law)

    @property
    def _learns_contexts(self) -> bool:
        """Every message of products tells who comes."""
        return self._problem.sends_products

    def _own_state(self) -> State:
        """Basis and prior, the rehearsal, and who comes."""
        values, arrays = prior_state(self._basis, self._prior, self._posterior)
        arrays |= apart("rehearsal", self._rehearsal)[1]
        if self._problem.sends_products:
            values["context_law"], law = self._context_law.state()
            values["comers"] = asdict(self._comers)
            arrays |= named("context_law", law)
        return values, arrays

    def _restore_own(
        self, values: dict[str, Any], arrays: dict[str, FloatArray]
    ) -> FloatArray | None:
        """The inverse of :meth:`_own_state`; the weights of candidates."""
        self._basis, self._prior, weights = prior_from(self._problem, self._prior, values, arrays)
        self._rehearsal = Rehearsal(**below("rehearsal", arrays))
        if "context_law" in values:
            learnt = below("context_law", arrays)
            self._context_law = ContextLaw.from_state(values["context_law"], learnt)
            comers = values["comers"]
            self._comers = Comers(**comers | {"fit": Fit(**comers["fit"])})
        self._watch = self._watched()
        return weights

    def _stakes(self, state: Posterior) -> float:
        """Over public pairs."""
        values = self._rehearsal.features @ state.mean
        return float(np.sqrt(values.var(axis=1).mean()))

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that may still be the best, by a test that is calibrated when it is asked for."""
        active = np.ones((len(contexts), self._problem.actions.count), dtype=np.bool_)
        if self._belief.epochs:
            test = self.difference_test()
            for part in context_chunks(*active.shape):
                active[part] = test.active(self._problem.actions.pairs(contexts[part]))
        return active

    def difference_test(self) -> DifferenceTest:
        """How far estimates of two actions must be apart to tell which is better."""
        belief, state = self._belief, self._posterior
        if self._head is not None:
            belief = self._head.added(belief, state.doubt)
        return calibrated_test(
            self._rehearsal, self._basis, belief, state, self._options.failure_probability
        )

    def _pass_over(self, generator: np.random.Generator) -> None:
        """Leave the public stream where a calibration at every release would leave it.

        Active sets are calibrated on demand from a stream of their own, and a run of a seed stays
        the same to the bit.
        """
        generator.standard_normal(self._rehearsal.coefficients.shape)

    def _with_curiosity(self, draws: FloatArray, unknown: IntArray) -> FloatArray:
        """Some of the draws lifted, so that in each of them an unknown action is the best.

        ``theta + c u`` with ``u`` the mean of ``v(c, x)`` over contexts: by the kernel no function
        of its norm is larger at the action, and ``c`` makes up for what the draw says of others.
        """
        features = self._rehearsal.features  # (contexts, actions, rank)
        count = min(_DRAWS_EACH * len(unknown), int(_SHARE * draws.shape[1]))
        if count == 0:
            return draws
        lifted = draws.copy()
        for place in range(count):
            action = unknown[place % len(unknown)]
            direction = features[:, action].mean(axis=0)
            values, push = features @ lifted[:, place], features @ direction
            rivals = np.delete(push, action, axis=1).max(axis=1, initial=0.0)
            margin = float((push[:, action] - rivals).mean())
            short = float((values.max(axis=1) - values[:, action]).max())
            if margin > 0:
                lifted[:, place] += 1.1 * short / margin * direction
        return lifted

    def _unknown(self, features: FloatArray) -> IntArray:
        """Actions of which the releases said little, in the order of how little."""
        prior = self._prior.variance(self._posterior)
        before = (features**2 @ prior).mean(axis=0)
        after = ((features @ self._posterior.factor) ** 2).sum(axis=2).mean(axis=0)
        share = after / np.maximum(before, np.finfo(np.float64).tiny)
        order = np.argsort(-share, kind="stable")
        return np.asarray(order[share[order] > _UNKNOWN])
