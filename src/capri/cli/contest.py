"""The contest of the demo: CAPRI in both privacy models, without privacy, and uniform play."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from capri.cli.progress import Bar
from capri.environments import TabularEnvironment
from capri.kernels import Kernel
from capri.policy import Capri
from capri.privacy.budget import Budget
from capri.rivals import UniformPlay
from capri.simulation import Policy, SimulationResult, simulate
from capri.spaces import ContextPool
from capri.typing import FloatArray


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to play: what it is called and, in words, what its users would be promised.

    ``estimate`` is what it believes of ``f``; None when it believes nothing.
    """

    label: str
    promise: str
    policy: Policy
    estimate: Callable[[object], FloatArray] | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A contestant's result; ``errors`` is the largest error of its estimate in each epoch."""

    label: str
    promise: str
    result: SimulationResult
    errors: tuple[float, ...]
    seconds: float

    @property
    def active_share(self) -> float | None:
        """Share of pairs still in play at the end; None for a policy without epochs."""
        return self.result.epochs[-1].active_share if self.result.epochs else None


def contestants(
    environment: TabularEnvironment,
    kernel: Kernel,
    budget: Budget,
    *,
    rounds: int,
    preset: str,
    seed: int,
) -> Iterator[Contestant]:
    """All with the same seed: they meet the same users and differ in nothing but the policy."""
    common: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": ContextPool(environment.contexts, weights=environment.weights),
        "reward_bound": environment.reward_bound,
        "horizon": rounds,
        "preset": preset,
        "simulation_seed": seed,
    }
    pair = f"({budget.epsilon:g}, {budget.delta:g})"
    for label, promise, choice in (
        (
            "CAPRI joint",
            f"{pair}, noise\nby the curator",
            {"budget": budget, "model": "joint"},
        ),
        (
            "CAPRI local",
            f"{pair}, noise\nby each user",
            {"budget": budget, "model": "local"},
        ),
        ("CAPRI non-private", "none: no noise", {"budget": None}),
    ):
        policy = Capri(**common, **choice)
        yield Contestant(label=label, promise=promise, policy=policy, estimate=policy.estimate)
    yield Contestant(
        label="uniform play",
        promise="perfect: no data",
        policy=UniformPlay(actions=environment.actions, horizon=rounds, simulation_seed=seed),
    )


def play(
    contestant: Contestant, environment: TabularEnvironment, rounds: int, seed: int, bar: Bar
) -> Run:
    """Simulate, and after each closed epoch measure how wrong the estimate is."""
    policy, estimate = contestant.policy, contestant.estimate
    errors: list[float] = []
    measuring = 0.0

    def watch(rounds: int, regret: float) -> None:
        nonlocal measuring
        bar(rounds, regret)
        if estimate is not None and len(policy.epochs) > len(errors):
            started = perf_counter()
            errors.append(float(np.abs(estimate(environment.contexts) - environment.means).max()))
            measuring += perf_counter() - started

    bar.start()
    result = simulate(policy, environment, rounds, seed=seed, progress=watch)
    return Run(
        label=contestant.label,
        promise=contestant.promise,
        result=result,
        errors=tuple(errors),
        # The measurement belongs to the demo, not to the policy.
        seconds=result.seconds - measuring,
    )
