"""One private pick after learning: the exponential mechanism, USCA and Kusner et al."""

from math import log, pi, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import positive, whole
from capri.errors import BudgetError, ConfigurationError
from capri.features import LowRankFeatures, spectral_basis
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Positive, Rival
from capri_lab.rivals.kernel.optimism import KernelRival, PosteriorPlay
from capri_lab.rivals.kernel.posterior import Posterior

# Pairs that the features of USCA are computed from, and how many features at most.
_SAMPLE, _MAX_RANK = 2000, 100


def exponential_law(scores: FloatArray, sensitivity: float, epsilon: float | None) -> FloatArray:
    """``P(x) ~ exp(eps score(x) / (2 sensitivity))`` along the last axis, pure eps.

    Without an epsilon all mass is on the first best.

    >>> exponential_law(np.array([0.0, 1.0]), 1.0, 2 * np.log(3)).round(3)
    array([0.25, 0.75])
    """
    if epsilon is None:
        return np.asarray(np.eye(scores.shape[-1])[scores.argmax(axis=-1)])
    best = scores.max(axis=-1, keepdims=True)
    weights = np.exp(epsilon * (scores - best) / (2 * sensitivity))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def draw_rows(law: FloatArray, generator: np.random.Generator) -> IntArray:
    """One position per row of probabilities."""
    uniform = generator.random((*law.shape[:-1], 1))
    place = (np.cumsum(law, axis=-1) < uniform * law.sum(axis=-1, keepdims=True)).sum(axis=-1)
    return np.asarray(np.minimum(place, law.shape[-1] - 1))


def _learning_rounds(rival: Rival, explore: int | None, share: int) -> int:
    """Rounds before the pick: a share of the horizon unless said, and never beyond it."""
    rounds = max(1, rival.horizon // share) if explore is None else whole("explore", explore)
    return min(rounds, rival.horizon)


@final
class USCA(KernelRival):
    """Plays uniformly while it learns; then picks an action by the exponential mechanism.

    Reference: N. Pavlovic, S. Salgia, Q. Zhao, "Differentially Private Kernelized Contextual
    Bandits", 2025, arXiv 2501.07046. We know the algorithm from its abstract and from the paper
    that CAPRI implements, not line by line: uniform, data-independent queries; an estimate that
    weighs rewards with a covariance computed from public draws of the context law, so that a
    reward's weight does not depend on the other users; one draw of the exponential mechanism.

        mean(w) = psi(w)^T sum_i y_i psi(w_i),   psi = (n E[v v^T] + ridge I)^-1/2 v

    with ``v`` kernel features and the expectation over the pool's law and uniform actions.
    Replacing a user moves ``mean(w)`` by at most ``2 B max_{w, w'} |psi(w)^T psi(w')|``, which is
    ``2 B max_w |psi(w)|^2``, computed over all pairs: the sensitivity of the mechanism. Pure
    epsilon.

    The promise is for **one** pick and the figure of merit is simple regret: with
    ``explore=horizon`` all rounds learn, and :meth:`recommend` picks for one context at the full
    budget. To be played on (half of the horizon unless said), every context of the pool needs a
    pick, all from the same data: each then gets ``epsilon / contexts`` (basic composition).

    Limits: all learning rounds regret as much as uniform play; with many contexts the picks are
    close to uniform. ``budget=None`` picks the best estimate.
    """

    name = "usca"
    promise = Promise(model="joint", kind="pure")
    reference = "Pavlovic, Salgia & Zhao 2025"
    reach = 10_000_000

    explore: int | None = None  # rounds of uniform play, at most the horizon, before the picks
    ridge: Positive = 1.0

    def _start(self) -> int:
        self._rounds = _learning_rounds(self, self.explore, share=2)
        self._psi = self._whitened(self.ridge)
        # |y| <= 1; no product exceeds the largest square.
        self.sensitivity = 2.0 * float(np.sum(self._psi**2, axis=1).max())
        self._estimate = np.zeros(len(self._psi))
        self._table: IntArray | None = None
        self._asked: int | None = None
        return self._rounds

    def _whitened(self, ridge: float) -> FloatArray:
        """``psi`` of all pairs: public, as the pool's law is."""
        pairs, actions = self._pairs, self._actions.count
        sample = pairs
        if len(pairs) > _SAMPLE:
            sample = self._public.choice(pairs, _SAMPLE, replace=False)
        basis, _ = spectral_basis(self.kernel, sample, tolerance=1e-4, max_rank=_MAX_RANK)
        v = basis.coordinates(pairs)
        weights = np.repeat(self.contexts.weights / actions, actions)
        gram = self._rounds * (v * weights[:, None]).T @ v
        return np.asarray(v @ LowRankFeatures.from_covariance(basis, gram, ridge).whitening)

    @property
    def _picks(self) -> int:
        """Picks that share the budget: one per context if they are played, else one in all."""
        return self.contexts.size if self._rounds < self.horizon else 1

    def law(self) -> FloatArray:
        """Probabilities ``(contexts, actions)`` of a pick, for the analyst of a simulation."""
        scores = self._estimate.reshape(self.contexts.size, self._actions.count)
        epsilon = None if self._epsilon is None else self._epsilon / self._picks
        return exponential_law(scores, self.sensitivity, epsilon)

    def recommend(self, context: int) -> int:
        """The action picked for a context. If all rounds learn, the budget allows one context."""
        if self._table is None:
            raise ConfigurationError(
                f"nothing is learnt before round {self._rounds}: play these rounds first"
            )
        if self._picks < self.contexts.size and self._asked not in (None, context):
            raise BudgetError("the budget was spent on another context's pick: one is all it pays")
        self._asked = context
        return int(self._table[context])

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._table is not None:
            return np.asarray(self._table[context]), np.ones(len(context))
        return self._uniformly(context)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        if self._table is None:
            self._estimate = self.estimate(context, action, reward)
            self._table = draw_rows(self.law(), self._noise)
        return self.horizon

    def estimate(self, context: IntArray, action: IntArray, targets: FloatArray) -> FloatArray:
        """``mean`` of all pairs, without noise: secret until a pick is drawn from it."""
        rows = self._psi[context * self._actions.count + action]
        return np.asarray(self._psi @ (targets @ rows))


def published_sensitivity(points: int, rounds: int, delta: float, similarity: float) -> float:
    """``2 sqrt(beta_{T+1}) + c``, ``beta_t = 2 ln(|L| t^2 pi^2 / (3 delta))`` and
    ``c = 2 sqrt((1 - k(V, V')) ln(3 |L| / delta))``: how far the posterior mean of neighbouring
    data sets may lie apart, with probability ``1 - delta`` under their Gaussian-process model.
    """
    beta = 2 * log(points * (rounds + 1) ** 2 * pi**2 / (3 * delta))
    return 2 * sqrt(beta) + 2 * sqrt((1 - similarity) * log(3 * points / delta))


@final
class Kusner(KernelRival, PosteriorPlay):
    """GP-UCB without noise; then one action is released by the exponential mechanism and played.

    Reference: M. Kusner, J. Gardner, R. Garnett, K. Weinberger, "Differentially Private Bayesian
    Optimization", ICML 2015, arXiv 1501.04080, Algorithm 1 (noisy observations): GP-UCB, then
    ``P(x) ~ exp(eps mean(x) / (2 (2 sqrt(beta) + c)))``. Their second output, the best value with
    Laplace noise, is not used here.

    The promise is unlike the others'. What is protected is one record of a data set (a validation
    set) on which all rewards are computed, against those who see the released parameters; the
    rounds played while learning are the curator's own and not released. That the sensitivity
    bounds neighbours' posterior means is proved under a Gaussian-process model of the two data
    sets' functions with correlation ``similarity`` and cannot be checked on data: the mechanism can
    be audited at that sensitivity, the claim itself cannot. No calibration is recomputed.

    One action is released for all contexts, by the mean over the pool. ``explore`` rounds (a tenth
    of the horizon unless said) come first. ``sensitivity`` replaces the published bound.

    Limits: at epsilon 1 the released action is close to uniform for rewards in [-1, 1], as the
    published sensitivity exceeds 10. ``budget=None`` releases the best posterior mean.
    """

    name = "kusner"
    promise = Promise(
        model="central",
        kind="approximate",
        protects="the data set behind the rewards (released parameters only)",
        unit="one record of that data set",
    )
    reference = "Kusner et al. 2015"

    explore: int | None = None
    beta: Positive = 1.0  # the multiple of the standard deviation while exploring
    noise: Positive = 0.06
    similarity: Positive = 0.99
    sensitivity: float | None = None

    def _prior(self) -> Posterior:
        self._rounds = _learning_rounds(self, self.explore, share=10)
        self._multiple = self.beta
        delta = 0.5 if self.budget is None else self.budget.delta
        if self.sensitivity is None:
            self.sensitivity = published_sensitivity(
                self._actions.count, self._rounds, delta, min(self.similarity, 1.0)
            )
        self._spread = positive("sensitivity", self.sensitivity)
        self._released: int | None = None
        return self._ridged(self.noise**2)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._released is not None:
            return np.full(len(context), self._released), np.ones(len(context))
        return super()._choose(context)

    def scores(self) -> FloatArray:
        """Posterior mean of each action over the pool."""
        means = np.array([self._posterior.at(context)[0] for context in range(self.contexts.size)])
        return np.asarray(self.contexts.weights @ means)

    def recommend(self, context: int) -> int:
        """The released action, the same for every context."""
        if self._released is None:
            raise ConfigurationError(
                f"nothing is released before round {self._rounds}: play these rounds first"
            )
        return self._released

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        if self._released is None:
            super()._learn(context, action, reward)
            if self._decided < self._rounds:
                return 1
            law = exponential_law(self.scores(), self._spread, self._epsilon)
            self._released = int(draw_rows(law, self._noise))
        return self.horizon
