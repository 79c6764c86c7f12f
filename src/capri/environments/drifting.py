"""Worlds that change while somebody plays in them: at once, or little by little.

Contexts and actions stay, the mean reward does not. Regret is measured against the best action of
the round it is played in.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import cos, pi, sin
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import one_of, whole
from capri.environments.base import Environment, TabularEnvironment, tabulate
from capri.environments.functions import random_rkhs
from capri.errors import ConfigurationError
from capri.kernels import Kernel, random_coefficients
from capri.streams import DRIFT_WORLD

CHANGES = ("none", "flip", "new", "quarter-turn", "full-turn")
# A turn is made in so many steps.
_STEPS = 200
# Of the second function, as many as the first one has.
_CENTRES = 30


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


def stage_of(environment: Environment, played: int) -> tuple[Environment, int | None]:
    """The environment after so many rounds, and until which round it stays so."""
    if isinstance(environment, DriftingEnvironment):
        return environment.stage(played), environment.until(played)
    return environment, None


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
