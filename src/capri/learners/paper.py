"""CAPRI as published: Algorithm 1 of the paper, line by line, with its own constants.

Faithful, hence a reference: with these constants ``4 Delta_r`` exceeds the range of any estimate
until horizons nobody runs, so nothing is eliminated and play stays uniform.
"""

from copy import copy
from dataclasses import dataclass
from math import log, sqrt
from typing import Self

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import between, one_of, positive, whole
from capri.codec import State, TreeCodec
from capri.dense_features import DenseFeatures
from capri.epoch.learner import Learner, Lesson
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.features import LowRankFeatures, Predictor, ProjectedFeatures
from capri.learners.segments import predicted
from capri.privacy.budget import Budget
from capri.privacy.calibration import paper_noise_scale
from capri.privacy.vector import vector_layout
from capri.spaces import context_chunks

# Contexts that stand for a sampler's law where the paper takes a maximum over its support.
_SUPPORT_SAMPLE = 1024


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """What the paper leaves open.

    ``tau``: the ridge. ``failure_probability``: delta_ERR of Alg. 1, line 1. ``calibration``:
    "paper" for the noise as printed, "analytic" for the least noise that keeps the budget.
    ``features``: "low-rank" or "dense" (reference). ``rank_tolerance``: the low-rank basis leaves
    at most this share of ``1 / T_r`` of ``sigma~^2`` outside its span, up to ``max_rank`` points.
    """

    tau: float = 1.0
    failure_probability: float = 0.05
    calibration: str = "paper"
    features: str = "low-rank"
    rank_tolerance: float = 1e-2
    max_rank: int = 2000

    def __post_init__(self) -> None:
        _check_ridge(self.tau)
        between("failure_probability", self.failure_probability, 0, 1, open_ends=True)
        one_of("calibration", self.calibration, ("paper", "analytic"))
        one_of("features", self.features, ("low-rank", "dense"))
        if self.rank_tolerance != 0:
            positive("rank_tolerance", self.rank_tolerance)
        whole("max_rank", self.max_rank)


def _check_ridge(value: object) -> None:
    """``tau``: positive, and large enough to keep matrices invertible in float64."""
    if positive("tau", value) < 1e-9:
        raise ConfigurationError(f"tau must be at least 1e-9, got {value!r}")


def paper_beta(*, reward_bound: float, tau: float, horizon: int, failure: float) -> float:
    """Confidence parameter ``beta(delta)`` of the lemma in Appendix A.

    ``90 B sqrt(ln(168 T/d)) + 52 B sqrt(ln(168 T/d) ln(12/d)) / sqrt(tau)
    + 3 B sqrt(2 ln(6/d)) + sqrt(24 tau)``
    """
    covariance = log(168 * horizon / failure)
    return (
        90 * reward_bound * sqrt(covariance)
        + 52 * reward_bound * sqrt(covariance * log(12 / failure)) / sqrt(tau)
        + 3 * reward_bound * sqrt(2 * log(6 / failure))
        + sqrt(24 * tau)
    )


def paper_beta_privacy(
    *, reward_bound: float, budget: Budget, horizon: int, failure: float, reports: int = 1
) -> float:
    """Confidence parameter ``beta_1`` of the lemma in Appendix A, for the privacy noise.

    ``(8 B ln T / eps) ln(3/d) sqrt(ln(1.25 ln T / delta_DP))``, times ``sqrt(reports)`` in the
    local model, where each of the epoch's reports carries noise. (Eqn prunning_sets in the main
    text prints another, smaller ``beta_1``, which under-covers.)
    """
    log_horizon = log(horizon)
    return (
        8 * reward_bound * log_horizon / budget.epsilon
        * log(3 / failure)
        * sqrt(log(1.25 * log_horizon / budget.delta))
        * sqrt(reports)
    )  # fmt: skip


def paper_width(
    *,
    sigma_max: float,
    reward_bound: float,
    tau: float,
    budget: Budget | None,
    horizon: int,
    pairs: int,
    failure_probability: float,
    reports: int = 1,
) -> float:
    """``Delta_r = beta(d') sigma~_max + beta_1(d') sigma~_max^2`` with ``d' = d / (|W| T ln T)``.

    Eqn prunning_sets. Without privacy there is no noise and ``beta_1`` is 0.
    """
    failure = failure_probability / (pairs * horizon * log(horizon))
    width = sigma_max * paper_beta(
        reward_bound=reward_bound, tau=tau, horizon=horizon, failure=failure
    )
    if budget is not None:
        width += sigma_max**2 * paper_beta_privacy(
            reward_bound=reward_bound,
            budget=budget,
            horizon=horizon,
            failure=failure,
            reports=reports,
        )
    return width


@dataclass(frozen=True, kw_only=True, eq=False)
class _Release:
    """The estimate of a closed epoch and its width."""

    predictor: Predictor
    width: float
    # False when 4 Delta exceeds the range any estimate of this release can have.
    may_eliminate: bool


_RELEASES = TreeCodec(classes=(_Release, Predictor), apart={Predictor: ("kernel",)}, forms={})


class PaperLearner(Learner):
    """Plans and learns as in Algorithm 1."""

    def __init__(self, problem: Problem, horizon: int, options: PaperOptions) -> None:
        if problem.budget is not None and problem.budget.delta == 0:
            raise ConfigurationError(
                "preset 'paper' adds Gaussian noise, which needs delta above 0: give "
                f"Budget(epsilon={problem.budget.epsilon:g}, delta=1e-5), or leave the preset out"
            )
        if problem.budget is not None and options.calibration == "paper":
            # Refuses a delta the printed formula has no noise for, before the first user comes.
            paper_noise_scale(problem.budget, sigma_max=1.0, reward_bound=1.0, horizon=horizon)
        self._problem = problem
        self._horizon = horizon
        self._options = options
        self._releases: list[_Release] = []
        # Releases that the law in force rests on: an epoch keeps to the law it was planned with,
        # whatever is released while it plays.
        self._playing: list[_Release] = []
        self._planned: frozenset[int] = frozenset()

    @property
    def problem(self) -> Problem:
        """What it plays."""
        return self._problem

    def on(self, problem: Problem) -> Self:
        """A copy for a problem with other actions."""
        heir = copy(self)
        heir._problem = problem
        return heir

    def amend(self, problem: Problem) -> None:
        """Go on with the same actions on other terms."""
        self._problem = problem

    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Draw the copies S and R and fix features, sensitivity and noise."""
        self._playing = self._releases
        # Alg. 1, lines 4-8 (first epoch) and 21-25 (later ones): S and R of size T_r.
        basis_copy = self._draw_pairs(generator, length)
        covariance_copy = self._draw_pairs(generator, length)
        features = self._features(basis_copy, covariance_copy)
        # Alg. 1, lines 9 and 26.
        sigma_max, clip_norm = self._largest(features, generator)
        problem = self._problem
        noise_scale = 0.0
        if self._options.calibration == "paper":
            # |psi(w)| <= sigma~(w) <= sigma~_max (Step 3 of the lemma, read the right way round).
            clip_norm = sigma_max
            if problem.budget is not None:
                noise_scale = problem.composition * paper_noise_scale(
                    problem.budget,
                    sigma_max=sigma_max,
                    reward_bound=problem.reward_bound,
                    horizon=self._horizon,
                )
        layout = vector_layout(
            value_bound=problem.reward_bound,
            clip_norm=clip_norm,
            rank=features.rank,
            length=length,
            budget=problem.budget,
            noise_scale=noise_scale,
            composition=problem.composition,
            calibration=self._options.calibration,
        )
        self._planned |= {epoch}
        return EpochPlan(
            epoch=epoch,
            length=length,
            features=features,
            tau=self._options.tau,
            sigma_max=sigma_max,
            value_bound=problem.reward_bound,
            clip_norm=clip_norm,
            layout=layout,
        )

    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Decode the release and shrink the active sets."""
        problem, options, plan = self._problem, self._options, release.plan
        vector = release.vector
        ratio = plan.length / release.participants
        if ratio != 1:  # the copies stand for as many as were planned
            vector = vector * ratio
        # Alg. 1, line 18: mu_r(.) = k_S(.)^T (K_SR K_RS + tau K_SS)^-1/2 g.
        predictor = Predictor(problem.kernel, *plan.features.decoder(vector))
        # |W| of the union bound; with a sampler, the pairs that can occur in T rounds.
        pairs = problem.pairs or self._horizon * problem.actions.count
        width = paper_width(
            sigma_max=plan.sigma_max,
            reward_bound=problem.reward_bound,
            tau=plan.tau,
            budget=problem.budget,
            horizon=self._horizon,
            pairs=pairs,
            failure_probability=options.failure_probability,
            reports=problem.reports(release.participants),
        )
        width *= max(1.0, ratio)  # noise and sampling error are scaled with the vector
        # |psi(w)| <= sqrt(k(w,w) / tau) bounds the range of the estimate by 2 |g| / sqrt(tau).
        spread = 2 * float(np.linalg.norm(vector)) / np.sqrt(plan.tau)
        learnt = _Release(predictor=predictor, width=width, may_eliminate=bool(4 * width < spread))
        self._releases = [*self._releases, learnt]  # not in place: a copy goes its own way
        self.drop(plan.epoch)
        return Lesson(width=width, active_share=self._active_share(generator))

    def drop(self, epoch: int) -> None:
        """An epoch is over; when none is under way, the law follows the newest release."""
        self._planned -= {epoch}
        if not self._planned:
            self._playing = self._releases

    def keep(self, epoch: int | None) -> None:
        """Epochs whose data were lost are over."""
        for number in self._planned - {epoch}:
            self.drop(number)

    def active(self, contexts: FloatArray) -> BoolArray:
        """``X_{r+1}(c)`` by Eqn prunning_sets, one release after the other (Alg. 1, line 19)."""
        return self._active(contexts, self._releases)

    def _active(self, contexts: FloatArray, releases: list[_Release]) -> BoolArray:
        active = np.ones((len(contexts), self._problem.actions.count), dtype=np.bool_)
        eliminating = [release for release in releases if release.may_eliminate]
        if eliminating:
            for part in context_chunks(len(contexts), self._problem.actions.count):
                pairs = self._problem.actions.pairs(contexts[part])
                for release in eliminating:
                    value = np.where(active[part], release.predictor(pairs), -np.inf)
                    best = value.max(axis=1, keepdims=True)
                    active[part] &= value >= best - 4 * release.width
        return active

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """Uniform on the active set (Alg. 1, line 12)."""
        active = self._active(contexts, self._playing)
        return np.asarray(active / active.sum(axis=1, keepdims=True))

    def pool_law(self) -> FloatArray | None:
        """Left to the caller."""
        return None

    def estimate(self, contexts: FloatArray) -> FloatArray:
        """The estimate of the last closed epoch; 0 before the first."""
        actions = self._problem.actions
        if not self._releases:
            return np.zeros((len(contexts), actions.count))
        return predicted(self._releases[-1].predictor, actions, contexts)

    def _draw_pairs(self, generator: np.random.Generator, count: int) -> FloatArray:
        """``count`` pairs ``c ~ kappa, x ~ Unif(X_r(c))`` (Alg. 1, lines 5-6 and 22-23)."""
        rows, index = self._problem.contexts.draw(generator, count)
        uniform = generator.random(count)
        used, place = np.unique(index, return_inverse=True)
        by_context = np.argsort(place, kind="stable")
        boundaries = np.searchsorted(place[by_context], np.arange(len(used) + 1))
        actions = np.empty(count, dtype=np.int64)
        for part in context_chunks(len(used), self._problem.actions.count):
            active = self.active(rows[used[part]])
            # The k-th active action of a context, k uniform: rank the active ones first.
            order = np.argsort(~active, axis=1, kind="stable")
            draws = by_context[boundaries[part.start] : boundaries[part.stop]]
            local = place[draws] - part.start
            chosen = np.floor(uniform[draws] * active.sum(axis=1)[local]).astype(np.int64)
            actions[draws] = order[local, chosen]
        return self._problem.actions.chosen(rows[index], actions)

    def _features(self, basis_copy: FloatArray, covariance_copy: FloatArray) -> ProjectedFeatures:
        options, kernel = self._options, self._problem.kernel
        if options.features == "dense":
            return DenseFeatures(kernel, basis_copy, covariance_copy, options.tau)
        return LowRankFeatures.from_copies(
            kernel,
            basis_copy,
            covariance_copy,
            options.tau,
            tolerance=options.rank_tolerance * options.tau / len(basis_copy),
            max_rank=options.max_rank,
        )

    def _largest(
        self, features: ProjectedFeatures, generator: np.random.Generator
    ) -> tuple[float, float]:
        """``sigma~_max = max sqrt(sigma~^2(w))`` and ``max |psi(w)|`` over the law's support.

        With the square root of Eqn projected_variance, which the lemma and Appendix B drop. For a
        context sampler the maximum is over a public sample; clipping makes it a bound for everyone.
        """
        variance = norm = 0.0
        rows, _ = self._problem.contexts.support(generator, _SUPPORT_SAMPLE)
        for part in context_chunks(len(rows), self._problem.actions.count):
            pairs = self._problem.actions.pairs(rows[part])[self.active(rows[part])]
            variance = max(variance, float(features.projected_variance(pairs).max()))
            psi = features.whitened_block(pairs)
            norm = max(norm, float(np.einsum("ij,ij->i", psi, psi).max()))
        return float(np.sqrt(variance)), float(np.sqrt(norm))

    def _active_share(self, generator: np.random.Generator) -> float:
        if not any(release.may_eliminate for release in self._releases):
            return 1.0
        rows, _ = self._problem.contexts.support(generator, _SUPPORT_SAMPLE)
        return float(self.active(rows).mean())

    def state(self) -> State:
        """All releases: points, weights, widths."""
        values, arrays = _RELEASES.write(self._releases, "releases")
        planned = sorted(self._planned)
        return {"releases": values, "planned": planned, "playing": len(self._playing)}, arrays

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
        values, arrays = state
        kind, kernel = tuple[_Release, ...], self._problem.kernel
        found = _RELEASES.read(kind, values["releases"], arrays, "releases", kernel=kernel)
        self._releases = list(found)
        self._planned = frozenset(values["planned"])
        self._playing = self._releases[: values["playing"]]
