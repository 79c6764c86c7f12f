"""CAPRI that learns at horizons people run: pooled releases, a public belief, Thompson play.

Same guarantee as the paper's: one noisy vector per epoch, everything else a function of earlier
releases and public draws. Each epoch asks about what the belief does not know yet, encodes only
what the last estimate missed, and plays by the law of the best action under the belief.
"""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch import play
from capri.epoch.learner import Learner, Lesson, State
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, StorageError
from capri.features import NUMERICAL_RANK, Basis, LowRankFeatures, Predictor, spectral_basis
from capri.learners import widths
from capri.learners.belief import Belief, Observation, Posterior, posterior, prior_variance
from capri.learners.messages import Design, design_epoch, sigma_max
from capri.learners.options import PracticalOptions
from capri.learners.support import SUPPORT_PAIRS, Stage, predicted, support_of
from capri.privacy.grid import make_grid
from capri.privacy.promise import Randomizer
from capri.privacy.sphere import sphere
from capri.spaces import ContextPool

# Public pairs from which the basis is built, and pairs on which widths are rehearsed.
_BASIS_SAMPLE = 3000
_REHEARSAL_PAIRS = 2048
# Residuals are heavy-tailed when clipping cuts off more than this share of the clipping bound.
_HEAVY_TAILS = 0.3


class PracticalLearner(Learner):
    """Plans, learns and plays as described above; :class:`PracticalOptions` names the choices."""

    def __init__(
        self, problem: Problem, options: PracticalOptions, generator: np.random.Generator
    ) -> None:
        if options.widths != "calibrated" and problem.contexts.size is None:
            raise ConfigurationError(
                f"{options.widths} widths need a finite ContextPool: their union bound counts pairs"
            )
        if options.widths == "rigorous" and (problem.pairs or 0) > SUPPORT_PAIRS:
            raise ConfigurationError(
                "rigorous widths need exact expectations over the pool: "
                f"at most {SUPPORT_PAIRS:,} pairs, got {problem.pairs:,}"
            )
        if options.widths != "calibrated" and problem.randomizer is Randomizer.SPHERE:
            raise ConfigurationError(
                f"{options.widths} widths rest on Gaussian noise: use randomizer='gaussian' with "
                "them"
            )
        self._problem = problem
        self._options = options
        self._norm_bound = options.norm_bound or problem.reward_bound
        self._basis, self._spectrum = self._build_basis(generator)
        if not self._spectrum.max() > NUMERICAL_RANK:
            raise ConfigurationError("the kernel is 0 on all pairs: nothing can be learnt with it")
        self._rehearsal = self._rehearse(generator)
        self._belief = Belief.empty(self._basis.rank)
        self._posterior = self._infer(self._belief)
        self._conduct = play.Conduct(problem.actions, play.UniformLaw())
        self._stage = Stage.draw(problem, generator)
        self._design: Design | None = None

    def _build_basis(self, generator: np.random.Generator) -> tuple[Basis, FloatArray]:
        actions = self._problem.actions
        contexts, weights = self._problem.contexts.support(generator, _BASIS_SAMPLE)
        if len(contexts) * actions.count <= _BASIS_SAMPLE:
            pairs = actions.pairs(contexts)
            sample = pairs.reshape(-1, pairs.shape[-1])
        else:
            rows = generator.choice(len(contexts), size=_BASIS_SAMPLE, p=weights)
            chosen = generator.integers(actions.count, size=_BASIS_SAMPLE)
            sample = actions.chosen(contexts[rows], chosen)
        return spectral_basis(
            self._problem.kernel,
            sample,
            tolerance=self._options.rank_tolerance,
            max_rank=self._options.max_rank,
        )

    def _rehearse(self, generator: np.random.Generator) -> widths.Rehearsal:
        """Functions and contexts to calibrate widths on, drawn once."""
        actions = self._problem.actions
        contexts, _ = self._problem.contexts.support(generator, _REHEARSAL_PAIRS)
        count = max(1, min(len(contexts), _REHEARSAL_PAIRS // actions.count))
        chosen = generator.choice(len(contexts), size=count, replace=False)
        pairs = actions.pairs(contexts[chosen])
        return widths.Rehearsal.draw(self._basis, pairs, self._norm_bound, generator)

    def _infer(self, belief: Belief) -> Posterior:
        return posterior(
            belief,
            self._spectrum,
            smoothness=self._options.smoothness,
            norm_bound=self._norm_bound,
        )

    # -- planning and learning --------------------------------------------------------------------

    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Shape the messages of an epoch under the law it will be played with."""
        problem, options = self._problem, self._options
        support = support_of(problem, self._basis, self._stage, self._stage_law(), generator)
        shape, design = design_epoch(
            problem=problem,
            options=options,
            basis=self._basis,
            belief=self._belief,
            state=self._posterior,
            support=support,
            length=length,
            generator=generator,
        )
        self._design = design
        tau = design.tau or self._ridge(design.residual_variance)
        coordinates = shape.shape[1] + 1 + design.residual  # with moment and tail
        budget, on_sphere = problem.budget, None
        if budget is not None and problem.randomizer is Randomizer.SPHERE:
            on_sphere, budget = sphere(budget.epsilon, coordinates), None
        return EpochPlan(
            epoch=epoch,
            length=length,
            features=LowRankFeatures(self._basis, shape, tau),
            tau=tau,
            sigma_max=sigma_max(self._basis, support, length, tau),
            value_bound=design.value_bound,
            clip_norm=1.0,
            grid=make_grid(
                bound=design.value_bound,
                rank=coordinates,
                length=length,
                budget=budget,
                composition=problem.composition,
            ),
            calibration="analytic",
            baseline=self._predictor(design.observation.baseline) if design.residual else None,
            moment_share=options.moment_share,
            tail_share=options.tail_share if design.residual else 0.0,
            sphere=on_sphere,
        )

    def _ridge(self, residual_variance: float) -> float:
        """The ``tau`` of kernel ridge regression that the prior amounts to: noise over prior."""
        prior = prior_variance(
            self._spectrum, self._posterior.scale, self._options.smoothness, self._norm_bound
        )
        return residual_variance / float(prior.max())

    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Update the belief, the law and the tests that rule actions out."""
        options, design = self._options, self._design
        if design is None:
            raise ConfigurationError("a release needs the plan it was made with")
        before = self._belief
        if not options.pooling:
            nothing = Belief.empty(self._basis.rank)
            before = replace(before, information=nothing.information, vector=nothing.vector)
        rank = release.plan.features.rank
        released = release.vector[:rank] / design.main_share
        if self._cuts_off_too_much(release, design):
            belief = before.start_again()
        else:
            moment = self._measured_noise(release.plan, float(release.vector[rank]), design)
            belief = before.observe(design.observation, released, moment)
        state = self._infer(belief)
        expected = sqrt(float(np.trace(state.factor.T @ design.spread @ state.factor)))
        tests = self._next_tests(release.plan, design, released, belief, state, generator)
        law = self._next_law(state, expected, generator)
        stage = Stage.draw(self._problem, generator)
        # All or nothing: what failed half-way can be learnt again from the same release.
        self._belief, self._posterior = belief, state
        self._conduct = play.Conduct(self._problem.actions, law, tests)
        self._stage, self._design = stage, None
        covariance = design.observation.covariance
        return Lesson(
            width=tests[-1].width,
            active_share=float(np.count_nonzero(self._stage_law())) / self._stage_law().size,
            predicted_error=expected,
            noise_share=0.0
            if self._problem.budget is None
            else design.noise**2 * len(covariance) / float(np.trace(covariance)),
        )

    def _measured_noise(
        self, plan: EpochPlan, moment: float, design: Design
    ) -> tuple[float, float]:
        """Variance of the reward noise from the moment coordinate, and its precision.

        ``E[z^2] = B_r^2 (coordinate / (B_r s n) + 1) / 2`` minus what the belief expected of ``f``.
        The privacy noise gives it the deviation ``B_r sigma / (2 s n)``; the belief's expectation
        is trusted to 70 %, so that early, rough ones weigh little.
        """
        share, bound, length = self._options.moment_share, plan.value_bound, plan.length
        square = bound**2 * (moment / (bound * share * length) + 1) / 2
        deviation = bound * design.noise * design.main_share / (2 * share * length)
        variance = deviation**2 + (0.7 * design.signal_variance) ** 2
        return square - design.signal_variance, 1 / variance

    def _cuts_off_too_much(self, release: Release, design: Design) -> bool:
        """Whether clipped residuals lose so much that the estimate is biased (rare large rewards).

        The tail coordinate measures ``E[(|z| - B_r)_+] = B (coordinate / (B_r q n) + 1) / 2``; the
        measure must exceed its limit by 2.5 standard deviations of the privacy noise.
        """
        plan, share = release.plan, release.plan.tail_share
        if share == 0:
            return False
        bound = self._problem.reward_bound
        unit = plan.value_bound * share * plan.length
        cut_off = bound * (float(release.vector[-1]) / unit + 1) / 2
        deviation = bound * design.noise * design.main_share / (2 * unit)
        return cut_off > _HEAVY_TAILS * plan.value_bound + 2.5 * deviation

    def _next_law(self, state: Posterior, error: float, generator: np.random.Generator) -> play.Law:
        options = self._options
        if options.exploration == "uniform":
            return play.UniformLaw()
        if options.exploration == "inverse-gap":
            gamma = options.gap_scale * self._problem.actions.count / max(error, 1e-9)
            return play.InverseGapLaw(self._predictor(state.mean), gamma)
        xi = generator.standard_normal((self._basis.rank, options.draws))
        draws = state.mean[:, None] + options.thompson_scale * (state.factor @ xi)
        return play.ThompsonLaw(self._basis, draws)

    def _next_tests(
        self,
        plan: EpochPlan,
        design: Design,
        released: FloatArray,
        belief: Belief,
        state: Posterior,
        generator: np.random.Generator,
    ) -> tuple[play.EliminationTest, ...]:
        """The tests in force after this release."""
        problem, options = self._problem, self._options
        failure = widths.epoch_failure(options.failure_probability, plan.epoch)
        if options.widths == "calibrated":
            quantile = options.width_scale * self._rehearsal.quantile(
                belief, state, failure, generator
            )
            # The pooled belief contains all earlier releases, so one test is enough.
            return (widths.calibrated_test(self._basis, state, quantile, design.spread),)
        pairs = problem.pairs or 0
        test: play.EliminationTest
        if options.widths == "paper":
            width = options.width_scale * widths.paper_width(
                sigma_max=plan.sigma_max,
                reward_bound=problem.reward_bound,
                tau=plan.tau,
                budget=problem.budget,
                horizon=max(3, plan.length),
                pairs=pairs,
                failure_probability=failure,
                reports=problem.reports(plan.length),
            )
            # The lemma is about the estimate of one epoch; on the pooled one it is only a rule.
            test = play.CommonWidth(self._predictor(state.mean), width)
        else:
            test = widths.rigorous_test(
                basis=self._basis,
                design=design,
                released=released,
                spectrum=self._spectrum,
                smoothness=options.smoothness,
                norm_bound=self._norm_bound,
                problem=problem,
                length=plan.length,
                differences=pairs * problem.actions.count,
                failure=failure,
                width_scale=options.width_scale,
            )
        return (*self._conduct.tests, test)

    # -- playing ----------------------------------------------------------------------------------

    def _predictor(self, coefficients: FloatArray) -> Predictor:
        weights = self._basis.transform @ coefficients
        return Predictor(self._problem.kernel, self._basis.pivots, weights)

    def conduct(self) -> play.Conduct:
        """The law of the open epoch and the tests in force."""
        return self._conduct

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that no test has ruled out."""
        return self._conduct.active(contexts)

    def probabilities(self, contexts: FloatArray) -> FloatArray:
        """The law of the open epoch."""
        return self._conduct.probabilities(contexts)

    def _stage_law(self) -> FloatArray:
        """The law at the contexts the coming epoch is planned on, computed once."""
        law = self._stage.law
        if law is None:
            law = self.probabilities(self._stage.contexts)
            self._stage = replace(self._stage, law=law)
        return law

    def pool_law(self) -> FloatArray | None:
        """The law for every context of a pool that fits in a table."""
        return self._stage_law() if self._stage.is_pool else None

    def estimate(self, contexts: FloatArray) -> FloatArray:
        """Posterior mean of ``f``."""
        return predicted(self._predictor(self._posterior.mean), self._problem.actions, contexts)

    # -- storage ----------------------------------------------------------------------------------

    def state(self) -> State:
        """Basis, belief, law, tests, and the design of an open epoch."""
        plain, belief = _apart("belief", self._belief)
        values = {"belief": plain, "stage": {"is_pool": self._stage.is_pool}, "design": None}
        _, rehearsal = _apart("rehearsal", self._rehearsal)
        conduct_values, conduct = self._conduct.state()
        arrays = {
            "basis.pivots": self._basis.pivots,
            "basis.transform": self._basis.transform,
            "basis.spectrum": self._spectrum,
        }
        arrays |= rehearsal | belief | conduct
        if not self._stage.is_pool:
            arrays["stage.contexts"] = self._stage.contexts
            arrays["stage.weights"] = self._stage.weights
        if self._design is not None:
            values["design"], design = _apart("design", self._design)
            observation = self._design.observation
            arrays |= design
            arrays["design.matrix"] = observation.design
            arrays["design.covariance"] = observation.covariance
            arrays["design.baseline"] = observation.baseline
        return values | conduct_values, arrays

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
        values, arrays = state
        problem = self._problem
        self._basis = Basis(problem.kernel, arrays["basis.pivots"], arrays["basis.transform"])
        self._spectrum = arrays["basis.spectrum"]
        self._rehearsal = widths.Rehearsal(**_below("rehearsal", arrays))
        self._belief = Belief(**_below("belief", arrays), **values["belief"])
        self._posterior = self._infer(self._belief)
        self._conduct = play.Conduct.from_state(values, arrays, self._basis, problem.actions)
        if not values["stage"]["is_pool"]:
            self._stage = Stage(**_below("stage", arrays), is_pool=False)
        elif isinstance(problem.contexts, ContextPool):
            self._stage = Stage(problem.contexts.rows, problem.contexts.weights, True)
        else:
            raise StorageError("this policy was saved with a context pool")
        self._design = None
        if values["design"] is not None:
            parts = _below("design", arrays)
            observation = Observation(
                design=parts.pop("matrix"),
                covariance=parts.pop("covariance"),
                baseline=parts.pop("baseline"),
            )
            self._design = Design(observation=observation, **parts, **values["design"])


def _apart(name: str, thing: Belief | widths.Rehearsal | Design) -> State:
    """The fields of a dataclass: plain values, and arrays under ``name.field``."""
    values, arrays = {}, {}
    for field, value in vars(thing).items():
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{field}"] = value
        elif not isinstance(value, Observation):
            values[field] = value
    return values, arrays


def _below(name: str, arrays: dict[str, FloatArray]) -> dict[str, Any]:
    """The arrays of a dataclass, by field."""
    start = f"{name}."
    return {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}
