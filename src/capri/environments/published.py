"""Worlds that papers published their experiments on."""

from dataclasses import dataclass
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.environments.base import TabularEnvironment, uniform_law
from capri.environments.functions import HARTMANN4
from capri.kernels import RBF
from capri.streams import DUBEY_WORLD, USCA_WORLD

DUBEY_LENGTHSCALE = 0.3


@final
@dataclass(frozen=True)
class BernoulliWorld:
    """An environment whose rewards are 1 with probability ``f(c, x)``, else 0."""

    inner: TabularEnvironment
    name: str = "bernoulli"
    noise: float = 0.5

    @property
    def actions(self) -> FloatArray:
        """Numbers of the actions."""
        return self.inner.actions

    @property
    def contexts(self) -> FloatArray:
        """Feature rows of the contexts."""
        return self.inner.contexts

    @property
    def weights(self) -> FloatArray:
        """The context law."""
        return self.inner.weights

    @property
    def reward_bound(self) -> float:
        """Rewards are 0 or 1."""
        return 1.0

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """Draw contexts from their law."""
        return self.inner.draw_contexts(rng, n)

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """The probability of a reward of 1."""
        return self.inner.mean(context_index, action_index)

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """1 with probability ``f(c, x)``, else 0."""
        mean = self.mean(context_index, action_index)
        return (rng.random(np.shape(mean)) < mean).astype(np.float64)

    def best(self, context_index: IntArray) -> FloatArray:
        """The largest probability in each context."""
        return self.inner.best(context_index)

    def uniform_regret(self) -> float:
        """Of playing every action with equal probability."""
        return self.inner.uniform_regret()

    def parameters(self) -> dict[str, object]:
        """What the environment was made from."""
        return self.inner.parameters() | {"name": self.name, "rewards": "Bernoulli"}


def dubey_world(seed: int, *, sets: int = 400) -> BernoulliWorld:
    """Four centres in the unit square, 25 fresh random actions per round, Bernoulli rewards.

    That of A. Dubey, AISTATS 2021, Section 6.

    ``f = sum_j a_j k(., z_j)`` with an RBF kernel, positive ``a`` and the largest value 1. "Fresh"
    is drawing one of ``sets`` sets of actions, each a context of its own.
    """
    generator = np.random.default_rng([seed, DUBEY_WORLD])
    kernel = RBF(lengthscale=DUBEY_LENGTHSCALE)
    centres, weights = generator.random((4, 2)), generator.random(4)
    rows = generator.random((sets, 25, 2))
    means = (kernel(rows.reshape(-1, 2), centres) @ weights).reshape(sets, 25)
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 41)] * 2), axis=-1).reshape(-1, 2)
    largest = max(float(means.max()), float((kernel(grid, centres) @ weights).max()))
    return BernoulliWorld(
        TabularEnvironment(
            name="dubey-2021",
            contexts=rows.reshape(sets, 50),
            weights=uniform_law(sets),
            actions=np.arange(25.0)[:, None],
            means=means / largest,
            reward_bound=1.0,
            noise=0.0,
        )
    )


def usca_world(seed: int, *, points: int = 256) -> TabularEnvironment:
    """Hartmann-4 at ``points`` random points, without contexts (one that says nothing).

    That of Pavlovic, Salgia and Zhao 2025.
    """
    generator = np.random.default_rng([seed, USCA_WORLD])
    actions = generator.random((points, 4))
    return TabularEnvironment(
        name="usca-2025",
        contexts=np.zeros((1, 1)),
        weights=np.ones(1),
        actions=actions,
        means=HARTMANN4.reward(actions, 0.9)[None, :],
        reward_bound=1.0,
        noise=0.1,
    )
