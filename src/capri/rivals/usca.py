"""Uniform sampling, a low-sensitivity estimate, one private pick: USCA, Pavlovic et al. (2025)."""

from typing import Any, ClassVar, Literal, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError, ConfigurationError
from capri.features import LowRankFeatures, spectral_basis
from capri.kernels import Kernel
from capri.privacy.budget import Budget
from capri.rivals.base import Promise, Rival, positive, whole
from capri.rivals.exponential import draw_rows, exponential_law
from capri.spaces import ContextPool

# Pairs that the features are computed from, and how many features at most.
_SAMPLE, _MAX_RANK = 2000, 100


@final
class USCA(Rival):
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

    name: ClassVar[str] = "usca"
    promise: ClassVar[Promise] = Promise(model="joint", kind="pure")
    reference: ClassVar[str] = "Pavlovic, Salgia & Zhao 2025"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "kernel"
    reach: ClassVar[int] = 10_000_000

    def __init__(
        self,
        *,
        kernel: Kernel,
        contexts: ContextPool,
        horizon: int,
        budget: Budget | None = None,
        explore: int | None = None,
        ridge: float = 1.0,
        **setting: Any,
    ) -> None:
        """``explore`` rounds of uniform play, at most the horizon, before the picks."""
        rounds = whole("horizon", horizon)
        explore = max(1, rounds // 2) if explore is None else whole("explore", explore)
        self._explore = min(explore, rounds)
        super().__init__(
            contexts=contexts, horizon=horizon, budget=budget, first_batch=self._explore, **setting
        )
        self._psi = self._whitened(kernel, positive("ridge", ridge))
        # Rewards are divided by their bound, |y| <= 1; no product exceeds the largest square.
        self.sensitivity = 2.0 * float(np.sum(self._psi**2, axis=1).max())
        self._estimate = np.zeros(len(self._psi))
        self._table: IntArray | None = None
        self._asked: int | None = None

    def _whitened(self, kernel: Kernel, ridge: float) -> FloatArray:
        """``psi`` of all pairs: public, as the pool's law is."""
        pairs, actions = self._pairs, self._actions.count
        sample = pairs
        if len(pairs) > _SAMPLE:
            sample = self._public.choice(pairs, _SAMPLE, replace=False)
        basis, _ = spectral_basis(kernel, sample, tolerance=1e-4, max_rank=_MAX_RANK)
        v = basis.coordinates(pairs)
        weights = np.repeat(self._pool.weights / actions, actions)
        gram = self._explore * (v * weights[:, None]).T @ v
        return np.asarray(v @ LowRankFeatures.from_covariance(basis, gram, ridge).whitening)

    @property
    def _picks(self) -> int:
        """Picks that share the budget: one per context if they are played, else one in all."""
        return self._pool.size if self._explore < self._horizon else 1

    def law(self) -> FloatArray:
        """Probabilities ``(contexts, actions)`` of a pick, for the analyst of a simulation."""
        scores = self._estimate.reshape(self._pool.size, self._actions.count)
        epsilon = None if self._budget is None else self._budget.epsilon / self._picks
        return exponential_law(scores, self.sensitivity, epsilon)

    def recommend(self, context: int) -> int:
        """The action picked for a context. If all rounds learn, the budget allows one context."""
        if self._table is None:
            raise ConfigurationError(
                f"nothing is learnt before round {self._explore}: play these rounds first"
            )
        if self._picks < self._pool.size and self._asked not in (None, context):
            raise BudgetError("the budget was spent on another context's pick: one is all it pays")
        self._asked = context
        return int(self._table[context])

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        if self._table is not None:
            return np.asarray(self._table[context]), np.ones(len(context))
        count = self._actions.count
        action = self._draws.integers(count, size=len(context))
        return action, np.full(len(context), 1 / count)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        if self._table is None:
            self._estimate = self.estimate(context, action, reward / self._bound)
            self._table = draw_rows(self.law(), self._noise)
        return self._horizon

    def estimate(self, context: IntArray, action: IntArray, targets: FloatArray) -> FloatArray:
        """``mean`` of all pairs, without noise: secret until a pick is drawn from it."""
        rows = self._psi[context * self._actions.count + action]
        return np.asarray(self._psi @ (targets @ rows))
