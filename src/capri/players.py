"""The policies that simulations play, and the contest of the demo between four of them.

CAPRI under each privacy model, CAPRI without privacy, and uniform play. How they play, and what
that shows in a few words computed from the records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import one_of
from capri.environments import Environment, TabularEnvironment, public_pool
from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.kernels import Kernel
from capri.local.simulator import DeviceSimulator
from capri.privacy.budget import Budget
from capri.privacy.shuffle import Shuffle
from capri.simulation import Policy, Progress, SimulationResult, UniformPlay, simulate

CAPRI, UNIFORM = "capri", UniformPlay.name
# A ratio counts as better than uniform play from this far below 1, and not by chance: chance moves
# it by so many standard errors less than once in 10,000 runs.
_MARGIN = 0.05
_STANDARD_ERRORS = 4.0


def make_capri(
    *,
    model: str,
    preset: str,
    budget: Budget | None,
    shuffle: Shuffle | None = None,
    **settings: Any,
) -> Capri | DeviceSimulator:
    """CAPRI with a curator, or devices and an aggregator; the paper has its own local form."""
    if (model, preset) == ("local", "practical"):
        if budget is not None:
            return DeviceSimulator.build(budget=budget, **settings)
        model = "joint"  # without a budget nothing has to be hidden from a curator
    if model == "shuffle":
        if budget is None or preset != "practical":
            raise ConfigurationError("model shuffle needs preset practical and a finite epsilon")
        return DeviceSimulator.build(budget=budget, shuffle=shuffle or Shuffle(), **settings)
    return Capri(budget=budget, model=model, preset=preset, **settings)


def make_player(
    name: str,
    environment: Environment,
    *,
    kernel: Kernel,
    budget: Budget | None,
    rounds: int,
    seed: int,
    **settings: Any,
) -> Capri | DeviceSimulator | UniformPlay:
    """A policy for an environment, with a seed; ``settings`` are those of :func:`make_capri`."""
    one_of("policy", name, (CAPRI, UNIFORM))
    if name == UNIFORM:
        return UniformPlay(actions=environment.actions, horizon=rounds, simulation_seed=seed)
    return make_capri(
        kernel=kernel,
        actions=environment.actions,
        contexts=public_pool(environment),
        reward_bound=environment.reward_bound,
        budget=budget,
        horizon=rounds,
        simulation_seed=seed,
        **settings,
    )


# -- the contest ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to play: what it is called and, in words, what its users would be promised.

    ``epsilon`` is None where there is no budget.
    """

    label: str
    promise: str
    policy: Policy
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class ContestRun:
    """A contestant's result; ``errors`` holds the true error of each epoch's estimate.

    Where the policy predicts its error, the root mean square over the pairs it played, which is
    what it predicts; else the largest error over all pairs, which the paper's width bounds.
    """

    label: str
    result: SimulationResult
    promise: str = ""
    seconds: float = 0.0
    epsilon: float | None = None
    errors: tuple[float, ...] = ()
    reference: bool = False

    @property
    def predicted(self) -> tuple[float, ...]:
        """The error the policy expected in each epoch; empty where it does not say."""
        errors = [record.predicted_error for record in self.result.epochs]
        return tuple(error for error in errors if error is not None)

    @property
    def full_label(self) -> str:
        """The label, with the epsilon where there is one."""
        return self.label if self.epsilon is None else f"{self.label}, epsilon {self.epsilon:g}"

    @property
    def told_label(self) -> str:
        """The same within a sentence: no regret is told without its epsilon."""
        return self.full_label.replace(", epsilon", " at epsilon")

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
) -> list[Contestant]:
    """All with the same seed: they meet the same users and differ in nothing but the policy."""
    local = replace(budget, epsilon=local_epsilon)
    noise = f"{_pair(local)}, noise\nby each user"
    if preset == "practical":
        # What devices promise is pure; the paper has a local form of its own.
        local = replace(local, delta=0.0)
        noise = f"pure epsilon {local_epsilon:g},\non each device"

    def contestant(
        label: str, promise: str, own: Budget | None, name: str = CAPRI, **player: str
    ) -> Contestant:
        policy = make_player(
            name, environment, kernel=kernel, budget=own, rounds=rounds, seed=seed, **player
        )
        epsilon = None if own is None else own.epsilon
        return Contestant(label=label, promise=promise, policy=policy, epsilon=epsilon)

    capri = {"preset": preset, "model": "joint"}
    devices = capri | {"model": "local"}
    curated = f"{_pair(budget)}, noise\nby the curator"
    return [
        contestant("CAPRI joint", curated, budget, **capri),
        contestant("CAPRI local", noise, local, **devices),
        contestant("CAPRI non-private", "none: no noise", None, **capri),
        contestant("uniform play", "perfect: no data", None, UNIFORM),
    ]


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
    contestant: Contestant, environment: TabularEnvironment, rounds: int, seed: int, bar: Progress
) -> ContestRun:
    """Simulate, and after each closed epoch measure how wrong the estimate of ``f`` is."""
    policy = contestant.policy
    watched = _Watched(environment)
    errors: list[float] = []
    measuring = 0.0

    def watch(rounds: int, regret: float) -> None:
        nonlocal measuring
        bar(rounds, regret)
        if isinstance(policy, Capri | DeviceSimulator) and len(policy.epochs) > len(errors):
            started = perf_counter()
            values = policy.estimate(environment.contexts)
            if policy.epochs[-1].predicted_error is None:
                errors.append(float(np.abs(values - environment.means).max()))
            else:
                errors.append(watched.error_of(values))
            measuring += perf_counter() - started

    bar(0, 0.0)
    result = simulate(policy, watched, rounds, seed=seed, progress=watch)
    return ContestRun(
        label=contestant.label,
        promise=contestant.promise,
        result=result,
        epsilon=contestant.epsilon,
        errors=tuple(errors),
        reference=not result.epochs,
        # The measurement belongs to the demo, not to the policy.
        seconds=result.seconds - measuring,
    )


def finding(runs: Sequence[ContestRun], reward_range: float) -> str:
    """Who beat uniform play, and why the others did not."""
    learners = [run for run in runs if run.result.epochs]
    better = [run for run in learners if _beats_uniform_play(run)]
    alike = [run for run in learners if run not in better]
    parts = []
    if better:
        cuts = [f"{run.told_label} ({1 - run.result.ratio:.0%})" for run in better]
        parts.append(f"Less regret than uniform play: {_listed(cuts)}")
    if alike:
        names = _listed([run.told_label for run in alike])
        parts.append(f"No better than uniform play: {names}{_reason(alike, reward_range)}")
    return ". ".join(parts) + "."


def price_of_trust(trusting: ContestRun, wary: ContestRun) -> str | None:
    """What noise by each user costs against noise by a curator; None where it costs nothing."""
    if not _beats_uniform_play(trusting):
        return None
    times = wary.result.ratio / trusting.result.ratio
    if times < 1 + _MARGIN or trusting.epsilon is None or wary.epsilon is None:
        return None
    shown = f"{times:.1f}" if times < 10 else f"{times:.0f}"
    if wary.epsilon == trusting.epsilon:
        return (
            f"At the same epsilon, trusting nobody costs {shown} times the regret of trusting the "
            "curator."
        )
    start = "Even at" if wary.epsilon > trusting.epsilon else "At"
    return (
        f"{start} epsilon {wary.epsilon:g}, trusting nobody costs {shown} times the regret of "
        f"trusting the curator at epsilon {trusting.epsilon:g}."
    )


def _beats_uniform_play(run: ContestRun) -> bool:
    result = run.result
    losses = np.diff(result.regret, prepend=0.0) / result.uniform_regret_per_round
    chance = _STANDARD_ERRORS * float(losses.std()) / math.sqrt(result.rounds)
    return result.ratio < 1 - max(_MARGIN, chance)


def _reason(runs: Sequence[ContestRun], reward_range: float) -> str:
    """Why nothing was learnt, as far as the records tell."""
    records = [record for run in runs for record in run.result.epochs]
    predicted = [record.predicted_error for record in records if record.predicted_error is not None]
    if predicted:
        gap = runs[0].result.uniform_regret_per_round
        if min(predicted) < gap / 2:
            return ""
        return (
            f"; the expected error of the estimate, never below {min(predicted):.2g}, hides the "
            f"mean gap between an action and the best, {gap:.2g}"
        )
    if any(run.active_share != 1.0 for run in runs):
        return ""
    smallest = min(4 * record.width for record in records)
    shown = f"{smallest:,.0f}" if smallest >= 100 else f"{smallest:.3g}"
    return (
        "; nothing was eliminated, as an action must trail by 4 x width, "
        f"never below {shown}, and rewards span {reward_range:g}"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
