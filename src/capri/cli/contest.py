"""The contest of the demo: CAPRI in both privacy models, without privacy, and uniform play."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cli.progress import Bar
from capri.environments import TabularEnvironment
from capri.joint.policy import Capri
from capri.kernels import Kernel
from capri.local.fleet import Fleet
from capri.privacy.budget import Budget
from capri.rivals import UniformPlay
from capri.simulation import Policy, SimulationResult, simulate
from capri.spaces import ContextPool


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to play: what it is called and, in words, what its users would be promised.

    ``estimate`` is what it believes of ``f``; None when it believes nothing. ``epsilon`` is None
    where there is no budget.
    """

    label: str
    promise: str
    policy: Policy
    epsilon: float | None = None
    estimate: Callable[[object], FloatArray] | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A contestant's result; ``errors`` is the true error of its estimate in each epoch.

    The root mean square over the pairs played in the epoch, where that is what the policy predicts;
    else the largest error over all pairs.
    """

    label: str
    promise: str
    result: SimulationResult
    errors: tuple[float, ...]
    seconds: float
    epsilon: float | None = None

    @property
    def full_label(self) -> str:
        """The label, with the epsilon where there is one."""
        return self.label if self.epsilon is None else f"{self.label}, epsilon {self.epsilon:g}"

    @property
    def active_share(self) -> float | None:
        """Share of pairs still in play at the end; None for a policy without epochs."""
        return self.result.epochs[-1].active_share if self.result.epochs else None


def contestants(
    environment: TabularEnvironment,
    kernel: Kernel,
    budget: Budget,
    *,
    local_epsilon: float,
    rounds: int,
    preset: str,
    seed: int,
) -> Iterator[Contestant]:
    """All with the same seed: they meet the same users and differ in nothing but the policy."""
    local = replace(budget, epsilon=local_epsilon)
    common: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": ContextPool(environment.contexts, weights=environment.weights),
        "reward_bound": environment.reward_bound,
        "horizon": rounds,
        "simulation_seed": seed,
    }
    policies: tuple[tuple[str, str, Budget | None, Capri | Fleet], ...] = (
        (
            "CAPRI joint",
            f"{_pair(budget)}, noise\nby the curator",
            budget,
            Capri(**common, preset=preset, budget=budget),
        ),
        # Devices run the practical preset; the paper has a local form of its own.
        (
            "CAPRI local",
            f"pure epsilon {local_epsilon:g},\non each device",
            local,
            Fleet.build(**common, budget=replace(local, delta=0.0)),
        )
        if preset == "practical"
        else (
            "CAPRI local",
            f"{_pair(local)}, noise\nby each user",
            local,
            Capri(**common, preset=preset, budget=local, model="local"),
        ),
        (
            "CAPRI non-private",
            "none: no noise",
            None,
            Capri(**common, preset=preset, budget=None),
        ),
    )
    for label, promise, own, policy in policies:
        yield Contestant(
            label=label,
            promise=promise,
            policy=policy,
            epsilon=None if own is None else own.epsilon,
            estimate=policy.estimate,
        )
    yield Contestant(
        label="uniform play",
        promise="perfect: no data",
        policy=UniformPlay(actions=environment.actions, horizon=rounds, simulation_seed=seed),
    )


def _pair(budget: Budget) -> str:
    return f"({budget.epsilon:g}, {budget.delta:g})"


class _Watched:
    """An environment that counts which pairs are played."""

    def __init__(self, inner: TabularEnvironment) -> None:
        self._inner = inner
        self.plays = np.zeros(inner.means.shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rewards(
        self, rng: np.random.Generator, context_index: IntArray, action_index: IntArray
    ) -> FloatArray:
        np.add.at(self.plays, (context_index, action_index), 1)
        return self._inner.rewards(rng, context_index, action_index)

    def error_of(self, estimate: FloatArray) -> float:
        """Root mean square over the plays since the last call, which is what policies predict."""
        squares = (estimate - self._inner.means) ** 2
        error = float(np.sqrt(np.sum(self.plays * squares) / self.plays.sum()))
        self.plays[:] = 0
        return error


def play(
    contestant: Contestant, environment: TabularEnvironment, rounds: int, seed: int, bar: Bar
) -> Run:
    """Simulate, and after each closed epoch measure how wrong the estimate is."""
    policy, estimate = contestant.policy, contestant.estimate
    watched = _Watched(environment)
    errors: list[float] = []
    measuring = 0.0

    def watch(rounds: int, regret: float) -> None:
        nonlocal measuring
        bar(rounds, regret)
        if estimate is not None and len(policy.epochs) > len(errors):
            started = perf_counter()
            values = estimate(environment.contexts)
            if policy.epochs[-1].predicted_error is None:
                errors.append(float(np.abs(values - environment.means).max()))
            else:
                errors.append(watched.error_of(values))
            measuring += perf_counter() - started

    bar.start()
    result = simulate(policy, watched, rounds, seed=seed, progress=watch)
    return Run(
        label=contestant.label,
        promise=contestant.promise,
        result=result,
        epsilon=contestant.epsilon,
        errors=tuple(errors),
        # The measurement belongs to the demo, not to the policy.
        seconds=result.seconds - measuring,
    )
