"""UCB on truncated, locally private rewards: Zhou & Tan (2021)."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Positive, Whole, Width
from capri_lab.rivals.linear.least_squares import moments, packed_size
from capri_lab.rivals.linear.moments import FeatureBlocks

# Only rewards are noisy: more exploration pays than where the matrix is noisy too.
_PRACTICAL = 0.1


def private_rewards(
    rewards: FloatArray, epsilon: float | None, generator: np.random.Generator
) -> FloatArray:
    """``y + Laplace(2 / eps)`` for rewards in [-1, 1]: replacing one moves it by 2."""
    if epsilon is None:
        return rewards
    return np.asarray(rewards + generator.laplace(scale=2 / epsilon, size=rewards.shape))


def truncated(rewards: FloatArray, rounds: IntArray, moment: float) -> FloatArray:
    """``y`` where ``|y| <= sqrt(v) t^(1/4)``, else 0, with ``v`` a bound on ``E y^2``."""
    return np.asarray(np.where(np.abs(rewards) <= np.sqrt(moment) * rounds**0.25, rewards, 0.0))


@final
class ZhouTan(FeatureBlocks):
    """GP-UCB in feature space on Laplace rewards, truncated at a growing level.

    Reference: X. Zhou, J. Tan, "Local Differential Privacy for Bayesian Optimization", AAAI 2021,
    arXiv 2010.06709, the truncated variant of their GP-UCB with Laplace rewards: noise makes
    rewards heavy-tailed, and truncation at ``b_t`` tames them. With second moments,
    ``b_t = sqrt(v) t^(1/4)`` and ``v = 1 + 2 (2 / eps)^2`` for rewards in [-1, 1].

    Only the reward is protected: the server sees context and action. The Laplace scale is that of
    rewards in [-bound, bound] that are replaced, pure eps.

    What differs. The posterior is that of ridge regression on the features chosen; updates come in
    ``blocks``. Their third variant, median of means, plays a point several times in a row, which
    users with contexts of their own do not allow.

    Limits: contexts are public. ``budget=None`` is LinUCB with the same blocks (nothing is
    truncated, as ``b_t >= 1``).
    """

    name = "zhou-tan"
    promise = Promise(model="local", kind="pure", protects="rewards only")
    reference = "Zhou & Tan 2021"

    blocks: Whole = 256
    bonus: Width = "practical"
    ridge: Positive = 0.1

    def _believe(self, batches: int) -> None:
        self._moment = 1.0 if self._epsilon is None else 1.0 + 8.0 / self._epsilon**2
        self._sum = np.zeros(packed_size(self.dimension))
        self._seen = 0
        self._resolve()

    def _resolve(self) -> None:
        # Rewards this much noisier ask for as much more ridge and exploration.
        bonus = _PRACTICAL if self.bonus == "practical" else self.bonus
        self._solve(self._sum, bonus, self.ridge * self._moment, vector_size=0.0)
        if bonus == "theory":
            self._width *= float(np.sqrt(self._moment))

    def _revise(self, features: FloatArray, targets: FloatArray) -> None:
        rounds = self._seen + 1 + np.arange(len(targets))
        sent = private_rewards(targets, self._epsilon, self._noise)
        self._sum += moments(features, truncated(sent, rounds, self._moment))
        self._seen += len(targets)
        self._resolve()
