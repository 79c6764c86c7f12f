"""Published set-ups, with CAPRI beside the rival they were made for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from time import perf_counter
from typing import Protocol, final, runtime_checkable

import numpy as np

from capri.arena.contest import Entry, Result, build, contest, entries
from capri.arena.problems import ArenaProblem
from capri.arrays import FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.environments import TabularEnvironment
from capri.environments.functions import HARTMANN4
from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.kernels import RBF, Matern
from capri.memory import PeakMemory
from capri.rivals import promise_of
from capri.rivals.kernel import release
from capri.simulation import Policy, simulate
from capri.spaces import VaryingActions
from capri.streams import DUBEY_WORLD, USCA_WORLD

Progress = Callable[[int, int, str], None]


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
            weights=np.full(sets, 1.0 / sets),
            actions=np.arange(25.0)[:, None],
            means=means / largest,
            reward_bound=1.0,
            noise=0.0,
        )
    )


DUBEY_LENGTHSCALE = 0.3
DUBEY = ArenaProblem(
    name="dubey-2021",
    world=dubey_world,
    kernel=RBF(lengthscale=DUBEY_LENGTHSCALE),
    noise=0.5,
    actions=VaryingActions(count=25, dimension=2),
)


def usca_world(seed: int, *, points: int = 256) -> TabularEnvironment:
    """Hartmann-4 at ``points`` random points, without contexts (one that says nothing)."""
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


USCA = ArenaProblem(
    name="usca-2025",
    world=usca_world,
    kernel=Matern(nu=2.5, lengthscale=0.5),
    noise=0.1,
    options={
        "usca": {"explore": 50},  # one pick after all rounds
        "capri-joint": {"norm_bound": 2.0},  # picked on these draws: see docs/rivals.md
    },
)


@runtime_checkable
class Recommends(Protocol):
    """A policy that names one action when its rounds are over."""

    def recommend(self, context: int) -> int:
        """The action to keep, for a context of the pool."""
        ...


def recommendation(policy: Policy, world: TabularEnvironment) -> FloatArray:
    """The law of the action a policy would keep after its run, in the only context there is."""
    if isinstance(policy, release.USCA):
        return np.asarray(policy.law()[0])
    if isinstance(policy, Capri):
        kept = int(policy.estimate(world.contexts)[0].argmax())
    elif isinstance(policy, Recommends):
        kept = policy.recommend(0)
    else:
        raise ConfigurationError(f"{type(policy).__name__} recommends no action")
    return np.asarray(np.eye(len(world.actions))[kept])


def simple_regret(
    problem: ArenaProblem, entry: Entry, *, rounds: int, seeds: Sequence[int]
) -> Result:
    """``(max f - E f(recommended)) / (max f - mean f)``: 1 is a random recommendation."""
    ratios, regrets, seconds, peak = [], [], [], 0
    with one_blas_thread():
        for seed in seeds:
            world = usca_world(seed)
            with PeakMemory() as before:
                pass
            started = perf_counter()
            policy, note = build(entry, problem, world, rounds=rounds, seed=seed, delta=1e-5)
            result = simulate(policy, world, rounds, seed=seed)
            seconds.append(perf_counter() - started)
            peak = max(peak, result.peak_memory_bytes - before.peak_bytes)
            lost = float(world.means[0].max() - recommendation(policy, world) @ world.means[0])
            regrets.append(lost)
            ratios.append(lost / world.uniform_regret())
    return Result(
        problem=problem.name,
        rounds=rounds,
        policy=entry.policy,
        epsilon=entry.epsilon if entry.private else None,
        promise=promise_of(policy),
        seeds=len(seeds),
        ratio=fmean(ratios),
        ratio_standard_error=stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None,
        regret_per_round=fmean(regrets),
        seconds=fmean(seconds),
        peak_memory_bytes=peak,
        note=note,
    )


def _dubey(seeds: Sequence[int], progress: Progress | None) -> list[Result]:
    """Cumulative regret at T = 1024."""
    field = entries(
        ["capri-joint", "capri-local", "dubey-joint", "dubey-local", "gp-ucb", "uniform"],
        [0.1, 0.5, 1.0, 10.0, math.inf],
    )
    return list(contest([DUBEY], field, rounds=[1024], seeds=seeds, progress=progress))


def _usca(seeds: Sequence[int], progress: Progress | None) -> list[Result]:
    """Simple regret at T = 50."""
    field = entries(["capri-joint", "usca", "gp-ucb"], [0.1, 0.5, 1.0, 5.0, 10.0, 50.0, math.inf])
    results = []
    for number, entry in enumerate(field):
        if progress is not None:
            progress(number, len(field), entry.policy)
        result = simple_regret(USCA, entry, rounds=50, seeds=seeds)
        results.append(replace(result, problem="usca-2025, simple regret"))
    return results


_EXPERIMENTS = {"dubey-2021": _dubey, "usca-2025": _usca}
EXPERIMENT_NAMES = tuple(_EXPERIMENTS)


def experiment(
    name: str, *, seeds: Sequence[int], progress: Progress | None = None
) -> list[Result]:
    """Play a published set-up.

    - "dubey-2021": RBF kernel in two dimensions, four centres, 25 random actions per round,
      Bernoulli rewards, T = 1024, epsilon 0.1 to 10 (Dubey 2021, AISTATS, Section 6);
    - "usca-2025": Hartmann-4, T = 50, simple regret, epsilon 0.1 to 50 (Pavlovic, Salgia and Zhao
      2025).
    """
    if name not in _EXPERIMENTS:
        raise ConfigurationError(
            f"experiment must be one of {', '.join(EXPERIMENT_NAMES)}, got {name!r}"
        )
    return _EXPERIMENTS[name](seeds, progress)
