"""Worlds that papers published their experiments on."""

import numpy as np

from capri.environments.base import TabularEnvironment
from capri.environments.functions import HARTMANN4
from capri.kernels import RBF
from capri.streams import DUBEY_WORLD, USCA_WORLD

DUBEY_LENGTHSCALE = 0.3


def dubey_world(seed: int, *, sets: int = 400) -> TabularEnvironment:
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
    return TabularEnvironment(
        name="dubey-2021",
        contexts=rows.reshape(sets, 50),
        weights=np.full(sets, 1.0 / sets),
        actions=np.arange(25.0)[:, None],
        means=means / largest,
        reward_bound=1.0,
        noise=0.5,
        bernoulli=True,
        origin={"rewards": "Bernoulli"},
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
