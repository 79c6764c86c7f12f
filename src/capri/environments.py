"""Environments: a context distribution, actions and a mean reward that is known exactly.

Rewards are random functions of a kernel; the laboratory has published test functions and more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, final, runtime_checkable

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import not_negative, positive, whole
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import Kernel, random_coefficients
from capri.spaces import CHUNK_PAIRS, ContextPool, as_rows


@runtime_checkable
class Environment(Protocol):
    """Finitely many contexts and actions, and a mean reward ``f(c, x)`` for each pair."""

    @property
    def name(self) -> str:
        """Short name, as the shell spells it."""

    @property
    def actions(self) -> FloatArray:
        """Feature rows, ``(n_actions, d_x)``."""

    @property
    def contexts(self) -> FloatArray:
        """Feature rows, ``(n_contexts, d_c)``."""

    @property
    def weights(self) -> FloatArray:
        """The context distribution: one probability per context."""

    @property
    def reward_bound(self) -> float:
        """No reward exceeds this in absolute value."""

    @property
    def noise(self) -> float:
        """Rewards are ``f`` plus uniform noise in ``[-noise, noise]``."""

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """Draw ``n`` contexts from the context distribution, as indices into ``contexts``."""

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """``f(c, x)`` for each pair of indices."""

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """One noisy, clipped reward for each pair of indices."""

    def best(self, context_index: IntArray) -> FloatArray:
        """``max_x f(c, x)`` for each context index."""

    def uniform_regret(self) -> float:
        """Expected regret per round of playing every action with equal probability."""

    def parameters(self) -> dict[str, object]:
        """What the environment was made from, in values that JSON can hold."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TabularEnvironment:
    """An environment that knows ``f`` as the table ``means[context, action]``.

    With ``bernoulli`` rewards are 1 with probability ``f(c, x)``, else 0, and ``noise`` is no more
    than what policies may be told.

    >>> coin = TabularEnvironment(
    ...     name="coin", contexts=[[0.0]], weights=[1.0], actions=[[0.0], [1.0]],
    ...     means=[[0.25, 0.75]], reward_bound=1.0, noise=0.0,
    ... )
    >>> coin.uniform_regret()
    0.25
    >>> coin.rewards(np.random.default_rng(0), np.array([0, 0]), np.array([1, 0]))
    array([0.75, 0.25])
    """

    name: str
    contexts: FloatArray = field(repr=False)
    weights: FloatArray = field(repr=False)
    actions: FloatArray = field(repr=False)
    means: FloatArray = field(repr=False)
    reward_bound: float
    noise: float
    origin: Mapping[str, object] = field(default_factory=dict)
    bernoulli: bool = False

    def __post_init__(self) -> None:
        contexts, actions = as_rows(self.contexts, "contexts"), as_rows(self.actions, "actions")
        means = as_rows(self.means, "means")
        if means.shape != (len(contexts), len(actions)):
            raise ShapeError(
                f"means must have shape ({len(contexts)}, {len(actions)}), one row per context "
                f"and one column per action, got {means.shape}"
            )
        checked = {
            "contexts": contexts,
            "actions": actions,
            "means": means,
            "weights": _distribution(self.weights, len(contexts)),
            "reward_bound": positive("reward_bound", self.reward_bound),
            "noise": not_negative("noise", self.noise),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """Draw ``n`` contexts from the context distribution, as indices into ``contexts``."""
        return rng.choice(len(self.contexts), size=n, p=self.weights).astype(np.int64)

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """``f(c, x)`` for each pair of indices."""
        return np.asarray(self.means[context_index, action_index])

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """``clip(f(c, x) + uniform(-noise, noise), -reward_bound, reward_bound)``, or 0 and 1."""
        mean = self.mean(context_index, action_index)
        if self.bernoulli:
            return (rng.random(np.shape(mean)) < mean).astype(np.float64)
        noisy = mean + rng.uniform(-self.noise, self.noise, size=np.shape(mean))
        return np.clip(noisy, -self.reward_bound, self.reward_bound)

    def best(self, context_index: IntArray) -> FloatArray:
        """``max_x f(c, x)`` for each context index."""
        return np.asarray(self._best[context_index])

    def uniform_regret(self) -> float:
        """``E_c [max_x f(c, x) - mean_x f(c, x)]`` under the context distribution."""
        return float(np.sum(self.weights * (self._best - self.means.mean(axis=1))))

    def parameters(self) -> dict[str, object]:
        """Name, sizes, scales and origin, in values that JSON can hold."""
        return {
            "name": self.name,
            "contexts": len(self.contexts),
            "actions": len(self.actions),
            "context_dimension": self.contexts.shape[1],
            "action_dimension": self.actions.shape[1],
            "reward_bound": self.reward_bound,
            "noise": self.noise,
            **self.origin,
        }

    @cached_property
    def _best(self) -> FloatArray:
        return np.asarray(self.means.max(axis=1))


def public_pool(environment: Environment) -> ContextPool:
    """What policies may be told of who comes: the environment's own ``pool`` where it has one.

    A synthetic environment is public altogether, so its contexts are the pool. One made of rows of
    data tells policies of its public rows only.
    """
    pool = getattr(environment, "pool", None)
    if isinstance(pool, ContextPool):
        return pool
    return ContextPool(environment.contexts, weights=environment.weights)


def tabulate(
    function: Callable[[FloatArray], FloatArray], contexts: FloatArray, actions: FloatArray
) -> FloatArray:
    """Table of ``function`` over rows ``(c, x)``, computed in chunks of bounded size.

    >>> tabulate(lambda rows: rows[:, 0] - rows[:, 1], np.array([[1.0]]), np.array([[2.0], [5.0]]))
    array([[-1., -4.]])
    """
    table = np.empty(len(contexts) * len(actions))
    for start in range(0, table.size, CHUNK_PAIRS):
        context, action = np.divmod(
            np.arange(start, min(start + CHUNK_PAIRS, table.size)), len(actions)
        )
        rows = np.hstack([contexts[context], actions[action]])
        table[start : start + len(rows)] = function(rows)
    return table.reshape(len(contexts), len(actions))


def _distribution(weights: FloatArray, count: int) -> FloatArray:
    """Probabilities of the contexts, checked."""
    chances = np.array(weights, dtype=np.float64)
    if chances.shape != (count,):
        raise ShapeError(
            f"weights must have shape ({count},), one per context, got {chances.shape}"
        )
    if not (chances >= 0.0).all() or abs(chances.sum() - 1.0) > 1e-9:
        raise ConfigurationError(
            "weights must be zero or more and sum to 1, "
            f"got smallest {chances.min()}, sum {chances.sum()}"
        )
    chances.flags.writeable = False
    return chances


def _unit_cube(
    rng: np.random.Generator, contexts: int, actions: int, split: tuple[int, int]
) -> tuple[FloatArray, FloatArray]:
    """Rows of contexts and of actions, uniform."""
    return (
        rng.random((whole("contexts", contexts), split[0])),
        rng.random((whole("actions", actions), split[1])),
    )


def random_rkhs(
    kernel: Kernel,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int = 1,
    action_dimension: int = 1,
    norm: float = 1.0,
    centres: int = 30,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """``f = sum_j a_j k(., z_j)`` with ``a^T K a = norm^2``, everything uniform in the unit cube.

    With ``k(w, w) <= 1`` the means stay within ``norm``. Rewards are clipped at the bound, so where
    ``|f| + noise`` exceeds it their expectation is a little less extreme than ``f``.

    >>> from capri.kernels import Matern
    >>> random_rkhs(Matern(nu=2.5, lengthscale=0.3), contexts=4, actions=3).means.shape
    (4, 3)
    """
    positive("reward_bound", reward_bound)
    not_negative("noise", noise)
    split = (
        whole("context_dimension", context_dimension),
        whole("action_dimension", action_dimension),
    )
    positive("norm", norm)
    rng = np.random.default_rng(seed)
    rows = _unit_cube(rng, contexts, actions, split)
    centre_rows = rng.random((whole("centres", centres), sum(split)))
    coefficients = random_coefficients(kernel, centre_rows, norm, rng)
    return TabularEnvironment(
        name="rkhs",
        contexts=rows[0],
        weights=np.full(contexts, 1.0 / contexts),
        actions=rows[1],
        means=tabulate(lambda pairs: kernel(pairs, centre_rows) @ coefficients, *rows),
        reward_bound=reward_bound,
        noise=noise,
        origin={
            "kernel": kernel.to_dict(),
            "norm": float(norm),
            "centres": int(centres),
            "seed": seed,
        },
    )
