"""A data set as a bandit: private rows are the users, public rows are what policies are told.

Users are drawn with replacement, or every one once in random order: then one round is one user.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import whole
from capri.environments import TabularEnvironment
from capri.errors import ConfigurationError, ShapeError
from capri.spaces import ContextPool
from capri_lab.streams import TABLE_ORDER


class _Rows:
    """Rewards of rows, looked up in a table. What a row and an action earn carries no noise.

    Unless the table holds chances: then a reward is 1 with that probability, else 0.
    """

    noise = 0.0
    # The same world for those who may know it all: the simulation.
    _table: TabularEnvironment

    @property
    def weights(self) -> FloatArray:
        """Every private row is as likely as any other; in one pass, if it has not come yet."""
        return self._table.weights

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """Reward of each action on its row."""
        return self._table.mean(context_index, action_index)

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """The same as :meth:`mean`, as there is no noise; or 0 and 1, where means are chances."""
        if self._table.bernoulli:
            return self._table.rewards(rng, context_index, action_index)
        return self._table.mean(context_index, action_index)

    def best(self, context_index: IntArray) -> FloatArray:
        """Reward of the best action on each row."""
        return self._table.best(context_index)

    def uniform_regret(self) -> float:
        """Expected regret per round of playing every action with equal probability."""
        return self._table.uniform_regret()


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class DataBandit(_Rows):
    """An environment made of rows: ``means[i, x]`` is what action ``x`` earns on private row ``i``.

    A round draws a private row, uniformly and with replacement: a row comes back, so the unit that
    a policy without user ids protects is one round, not one row. Rewards carry no noise; what makes
    them random to a policy is that a context does not tell the label. With ``bernoulli`` means are
    chances of the reward 1.

    Regret is against knowing every row's label, which no policy can reach where rows of the same
    context differ.

    Give policies ``pool`` (public rows), never ``contexts`` (private rows):
    :func:`capri.environments.public_pool` picks the right one.
    """

    name: str
    pool: ContextPool = field(repr=False)
    contexts: FloatArray = field(repr=False)
    actions: FloatArray = field(repr=False)
    action_names: tuple[str, ...]
    # "one-hot", "embedding" or "dose": what suggested_kernel goes by.
    features: str
    means: FloatArray = field(repr=False)
    reward_bound: float
    origin: Mapping[str, object] = field(default_factory=dict, repr=False)
    bernoulli: bool = False

    def __post_init__(self) -> None:
        count = len(np.asarray(self.contexts))
        table = TabularEnvironment(
            name=self.name,
            contexts=self.contexts,
            weights=np.full(count, 1.0 / max(count, 1)),
            actions=self.actions,
            means=self.means,
            reward_bound=self.reward_bound,
            noise=self.noise,
            origin=self.origin,
            bernoulli=self.bernoulli,
        )
        object.__setattr__(self, "_table", table)
        for name in ("contexts", "actions", "means"):
            object.__setattr__(self, name, getattr(table, name))
        if self.pool.dimension != table.contexts.shape[1]:
            raise ShapeError(
                f"pool and contexts must have the same columns, got {self.pool.dimension} and "
                f"{table.contexts.shape[1]}"
            )
        if len(self.action_names) != len(table.actions):
            raise ShapeError(
                f"one name per action is needed: {len(table.actions)}, got {len(self.action_names)}"
            )

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """Draw ``n`` private rows with replacement, as indices into ``contexts``."""
        return rng.integers(len(self.contexts), size=n)

    def parameters(self) -> dict[str, object]:
        """Name, sizes and origin, in values that JSON can hold."""
        return self._table.parameters() | {
            "public_contexts": self.pool.size,
            "features": self.features,
        }


@final
class OnePass(_Rows):
    """An environment in which each private row of a data set comes at most once.

    Drawing with replacement, as :class:`DataBandit` does, brings the same person back, and a
    promise per round is then weaker per person. One pass makes the two the same. It is used up by
    playing: make a new one for every run.
    """

    def __init__(self, bandit: DataBandit, *, seed: int = 0) -> None:
        self._bandit, self._table = bandit, bandit._table
        self.name, self.pool, self.reward_bound = bandit.name, bandit.pool, bandit.reward_bound
        self.actions, self.contexts = bandit.actions, bandit.contexts
        generator = np.random.default_rng([whole("seed", seed, least=0), TABLE_ORDER])
        self._order: IntArray = generator.permutation(len(bandit.contexts))
        self._drawn = 0

    @property
    def remaining(self) -> int:
        """Users who have not come yet."""
        return len(self._order) - self._drawn

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """The next ``n`` rows of the order, which ``seed`` fixed: ``rng`` is not used."""
        if n > self.remaining:
            raise ConfigurationError(
                f"{n} users were asked for, {self.remaining} of {len(self._order)} have not come "
                "yet: play fewer rounds, or draw with replacement"
            )
        self._drawn += n
        return self._order[self._drawn - n : self._drawn]

    def parameters(self) -> dict[str, object]:
        """Those of the data set."""
        return self._bandit.parameters() | {"replacement": False}
