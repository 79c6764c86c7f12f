"""Every private row once, in random order: then one round is one user."""

from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.datasets.bandit import DataBandit
from capri.errors import ConfigurationError
from capri.spaces import ContextPool
from capri.streams import TABLE_ORDER


@final
class OnePass:
    """An environment in which each private row of a data set comes at most once.

    Drawing with replacement, as :class:`DataBandit` does, brings the same person back, and a
    promise per round is then weaker per person. One pass makes the two the same. It is used up by
    playing: make a new one for every run.
    """

    noise = 0.0

    def __init__(self, bandit: DataBandit, *, seed: int = 0) -> None:
        self._bandit = bandit
        order = np.random.default_rng([seed, TABLE_ORDER]).permutation(len(bandit.contexts))
        self._order: IntArray = order
        self._drawn = 0

    @property
    def name(self) -> str:
        """The data set's."""
        return self._bandit.name

    @property
    def remaining(self) -> int:
        """Users who have not come yet."""
        return len(self._order) - self._drawn

    @property
    def pool(self) -> ContextPool:
        """Public rows."""
        return self._bandit.pool

    @property
    def actions(self) -> FloatArray:
        """Feature rows of the actions."""
        return self._bandit.actions

    @property
    def contexts(self) -> FloatArray:
        """Private rows."""
        return self._bandit.contexts

    @property
    def weights(self) -> FloatArray:
        """Every private row is as likely as any other to come next, if it has not come yet."""
        return self._bandit.weights

    @property
    def reward_bound(self) -> float:
        """No reward exceeds this in absolute value."""
        return self._bandit.reward_bound

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """The next ``n`` rows of the order, which ``seed`` fixed: ``rng`` is not used."""
        if n > self.remaining:
            raise ConfigurationError(
                f"{n} users were asked for, {self.remaining} of {len(self._order)} have not come "
                "yet: play fewer rounds, or draw with replacement"
            )
        self._drawn += n
        return self._order[self._drawn - n : self._drawn]

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """Reward of each action on its row."""
        return self._bandit.mean(context_index, action_index)

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """The same as :meth:`mean`: there is no noise."""
        return self._bandit.mean(context_index, action_index)

    def best(self, context_index: IntArray) -> FloatArray:
        """Reward of the best action on each row."""
        return self._bandit.best(context_index)

    def uniform_regret(self) -> float:
        """Expected regret per round of playing every action with equal probability."""
        return self._bandit.uniform_regret()

    def parameters(self) -> dict[str, object]:
        """Those of the data set."""
        return self._bandit.parameters() | {"replacement": False}
