"""Worlds of the laboratory: some change, some tell no kernel, some were published.

In a :class:`DriftingEnvironment` contexts and actions stay, the mean reward does not. Regret is
measured against the best action of the round it is played in.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import cos, pi, sin, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import between, not_negative, one_of, positive, whole
from capri.environments import TabularEnvironment, random_rkhs, tabulate
from capri.errors import ConfigurationError
from capri.kernels import RBF, Kernel, Matern, random_coefficients
from capri_lab.streams import ARMS_WORLD, DRIFT_WORLD, DUBEY_WORLD, USCA_WORLD
from capri_lab.surfaces import HARTMANN4

CHANGES = ("none", "flip", "new", "quarter-turn", "full-turn")
# A turn is made in so many steps.
_STEPS = 200
# Of the second function, as many as the first one has.
_CENTRES = 30
# Of the functions of one arm: three bends from end to end.
_LENGTHSCALE = 0.3
DUBEY_LENGTHSCALE = 0.3


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class DriftingEnvironment:
    """One table of means after the other: ``stages[i]`` from round ``starts[i]`` on.

    Asked for means without a round, it answers with those of the first stage.

    >>> early = TabularEnvironment(
    ...     name="coin", contexts=[[0.0]], weights=[1.0], actions=[[0.0], [1.0]],
    ...     means=[[0.25, 0.75]], reward_bound=1.0, noise=0.0,
    ... )
    >>> late = replace(early, means=[[0.5, 0.1]])
    >>> coin = DriftingEnvironment(name="coins", stages=(early, late), starts=(0, 10), rounds=20)
    >>> [float(stage.best(np.array([0]))[0]) for stage in (coin.stage(9), coin.stage(10))]
    [0.75, 0.5]
    >>> coin.until(3), coin.until(12)
    (10, None)
    """

    name: str
    stages: tuple[TabularEnvironment, ...] = field(repr=False)
    starts: tuple[int, ...] = field(repr=False)
    rounds: int
    origin: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = np.diff(self.starts)
        if len(self.starts) != len(self.stages) or self.starts[:1] != (0,) or (steps <= 0).any():
            raise ConfigurationError(
                "starts must be one round for each stage, from 0 on and increasing, got "
                f"{len(self.stages)} stages and starts {self.starts}"
            )
        whole("rounds", self.rounds, least=2)
        first = self.stages[0]
        for stage in self.stages[1:]:
            same = np.array_equal(stage.contexts, first.contexts)
            if not (same and np.array_equal(stage.actions, first.actions)):
                raise ConfigurationError("all stages must have the same contexts and actions")

    def stage(self, played: int) -> TabularEnvironment:
        """The world after so many rounds."""
        return self.stages[bisect_right(self.starts, played) - 1]

    def until(self, played: int) -> int | None:
        """The round with which the next stage begins; None in the last."""
        place = bisect_right(self.starts, played)
        return self.starts[place] if place < len(self.starts) else None

    @property
    def contexts(self) -> FloatArray:
        """Feature rows, ``(n_contexts, d_c)``."""
        return self.stages[0].contexts

    @property
    def actions(self) -> FloatArray:
        """Feature rows, ``(n_actions, d_x)``."""
        return self.stages[0].actions

    @property
    def weights(self) -> FloatArray:
        """The context law: one probability per context."""
        return self.stages[0].weights

    @property
    def reward_bound(self) -> float:
        """No reward exceeds this in absolute value."""
        return self.stages[0].reward_bound

    @property
    def noise(self) -> float:
        """Rewards are ``f`` plus uniform noise in ``[-noise, noise]``."""
        return self.stages[0].noise

    def draw_contexts(self, rng: np.random.Generator, n: int) -> IntArray:
        """Draw ``n`` contexts from the context law, which does not change."""
        return self.stages[0].draw_contexts(rng, n)

    def mean(self, context_index: IntArray, action_index: IntArray) -> FloatArray:
        """``f(c, x)`` of the first stage."""
        return self.stages[0].mean(context_index, action_index)

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        """Rewards of the first stage."""
        return self.stages[0].rewards(rng, context_index, action_index)

    def best(self, context_index: IntArray) -> FloatArray:
        """``max_x f(c, x)`` of the first stage."""
        return self.stages[0].best(context_index)

    def uniform_regret(self) -> float:
        """Expected regret per round of uniform play, the mean over all ``rounds``."""
        ends = (*self.starts[1:], max(self.rounds, self.starts[-1] + 1))
        lengths = np.diff((*self.starts, ends[-1]))
        return float(lengths @ [stage.uniform_regret() for stage in self.stages] / lengths.sum())

    def parameters(self) -> dict[str, object]:
        """Name, sizes, scales and origin, in values that JSON can hold."""
        return self.stages[0].parameters() | {"name": self.name, **self.origin}


def drifting(
    kernel: Kernel,
    *,
    change: str = "flip",
    rounds: int = 100_000,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int = 1,
    action_dimension: int = 1,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> DriftingEnvironment:
    """A random function ``f`` of a kernel that becomes another one within ``rounds``.

    ``change`` after half of the rounds: "flip" to ``-f``, or "new" to ``g``, drawn like ``f``.
    All along: "quarter-turn" and "full-turn", ``cos(a) f + sin(a) g`` with ``a`` from 0 to a
    quarter of a circle or once around. "none": nothing changes.

    >>> from capri.kernels import Matern
    >>> world = drifting(Matern(nu=2.5, lengthscale=0.3), change="flip", rounds=1000)
    >>> bool((world.stage(500).means == -world.stage(0).means).all())
    True
    """
    one_of("change", change, CHANGES)
    whole("rounds", rounds, least=2)
    size = {
        "contexts": contexts,
        "actions": actions,
        "context_dimension": context_dimension,
        "action_dimension": action_dimension,
    }
    world = random_rkhs(kernel, **size, noise=noise, reward_bound=reward_bound, seed=seed)
    f, starts = world.means, [0]
    tables = [f]
    if change == "flip":
        tables, starts = [f, -f], [0, rounds // 2]
    elif change != "none":
        g = _another(kernel, world, seed)
        if change == "new":
            tables, starts = [f, g], [0, rounds // 2]
        else:
            around = 2 * pi if change == "full-turn" else pi / 2
            steps = min(_STEPS, rounds)
            starts = [step * rounds // steps for step in range(steps)]
            angles = [around * (step + 0.5) / steps for step in range(steps)]
            tables = [cos(angle) * f + sin(angle) * g for angle in angles]
    return DriftingEnvironment(
        name="drifting",
        stages=tuple(replace(world, means=table) for table in tables),
        starts=tuple(starts),
        rounds=rounds,
        origin={"change": change, "rounds": rounds},
    )


def _another(kernel: Kernel, world: TabularEnvironment, seed: int) -> FloatArray:
    """A function drawn like that of ``world``, at its contexts and actions."""
    generator = np.random.default_rng([seed, DRIFT_WORLD])
    dimension = world.contexts.shape[1] + world.actions.shape[1]
    centres = generator.random((_CENTRES, dimension))
    coefficients = random_coefficients(kernel, centres, 1.0, generator)
    return tabulate(
        lambda rows: kernel(rows, centres) @ coefficients, world.contexts, world.actions
    )


def rare_clicks(rate: float = 0.02, *, seed: int = 0) -> TabularEnvironment:
    """Clicks with chance ``rate (1 + f)``, ``f`` a random Matern-5/2 function in ``[-1, 1]``.

    50 contexts times 50 actions, lengthscale 0.3. Rewards lie in ``[0, 1]``, which policies may be
    told as ``reward_range=(0, 1)``.

    >>> round(float(rare_clicks(0.1).means.max()), 3) <= 0.2
    True
    """
    table = random_rkhs(Matern(nu=2.5, lengthscale=0.3), seed=seed)
    share = between("rate", rate, 0.0, 0.5)
    return TabularEnvironment(
        name="clicks",
        contexts=table.contexts,
        weights=table.weights,
        actions=table.actions,
        means=np.clip(share * (1 + table.means), 0.0, 1.0),
        reward_bound=1.0,
        noise=0.0,
        origin={"rate": share, "seed": seed},
        bernoulli=True,
    )


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
