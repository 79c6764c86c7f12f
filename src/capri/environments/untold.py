"""Worlds for policies that are told no kernel: many unrelated arms, and many dimensions."""

from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.checks import between, not_negative, positive, whole
from capri.environments.base import TabularEnvironment
from capri.environments.functions import random_rkhs
from capri.errors import ConfigurationError
from capri.kernels import Kernel, Matern
from capri.streams import ARMS_WORLD

# Of the functions of one arm: three bends from end to end.
_LENGTHSCALE = 0.3


def unrelated_arms(
    arms: int = 100,
    *,
    contexts: int = 50,
    context_dimension: int = 1,
    interaction: float = 0.5,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """``f(c, a) = sqrt(1 - s) m_a + sqrt(s) g_a(c)``: what one arm earns says nothing of another.

    ``m_a`` is standard normal and ``g_a`` a normal function of the Matern-5/2 kernel with
    lengthscale 0.3, one of each an arm; ``s`` is the ``interaction``, the share of the variance
    that depends on the context. With a half the best fixed arm leaves 0.12 of the regret of
    uniform play on average, 0 to 0.3 by seed. One factor brings all means within
    ``reward_bound - noise``. Actions are one-hot rows: they name arms.

    >>> unrelated_arms(5, contexts=4).actions.shape
    (5, 5)
    """
    count, users = whole("arms", arms, least=2), whole("contexts", contexts)
    share = between("interaction", interaction, 0.0, 1.0)
    room = positive("reward_bound", reward_bound) - not_negative("noise", noise)
    if room <= 0.0:
        raise ConfigurationError(
            f"noise must be less than reward_bound {reward_bound}, to leave room for the function, "
            f"got {noise}"
        )
    generator = np.random.default_rng([whole("seed", seed, least=0), ARMS_WORLD])
    rows = generator.random((users, whole("context_dimension", context_dimension)))
    own = _normal_functions(Matern(nu=2.5, lengthscale=_LENGTHSCALE), rows, count, generator)
    means = sqrt(1.0 - share) * generator.standard_normal(count) + sqrt(share) * own
    return TabularEnvironment(
        name="arms",
        contexts=rows,
        weights=np.full(users, 1.0 / users),
        actions=np.eye(count),
        means=means * (room / np.abs(means).max()),
        reward_bound=reward_bound,
        noise=noise,
        origin={"interaction": share, "seed": seed},
    )


def many_dimensions(dimension: int = 10, *, seed: int = 0) -> TabularEnvironment:
    """A random Matern-5/2 function of ``dimension`` coordinates, half context and half action.

    Distances in the unit cube grow as the root of the dimension, and so does the lengthscale,
    ``0.3 sqrt(d / 2)``, from that of the problem in 1 + 1 dimensions: a function as rough as there,
    seen from further away. 50 contexts times 50 actions, rewards ``f`` plus uniform noise of 0.1.

    >>> many_dimensions(20).contexts.shape
    (50, 10)
    """
    half = whole("dimension", dimension, least=2) // 2
    return random_rkhs(
        kernel_of_dimension(dimension),
        context_dimension=half,
        action_dimension=dimension - half,
        seed=seed,
    )


def kernel_of_dimension(dimension: int) -> Matern:
    """The kernel behind :func:`many_dimensions`.

    >>> kernel_of_dimension(8).lengthscale
    0.6
    """
    return Matern(nu=2.5, lengthscale=_LENGTHSCALE * sqrt(dimension / 2.0))


def _normal_functions(
    kernel: Kernel, rows: FloatArray, count: int, generator: np.random.Generator
) -> FloatArray:
    """``count`` draws of a normal function at these rows, one a column: ``K^(1/2) z``."""
    values, vectors = np.linalg.eigh(kernel(rows, rows))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(root @ generator.standard_normal((len(rows), count)))
