"""Play entries on problems and keep, with every number, the promise it was reached under."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from capri.arena.problems import ArenaProblem
from capri.blas import one_blas_thread
from capri.environments import Environment, public_pool
from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.kernels import RBF, Kernel, Matern
from capri.local.fleet import Fleet
from capri.memory import PeakMemory
from capri.privacy.budget import Budget
from capri.rivals import RIVAL_NAMES, Promise, promise_of, reach_of, rival
from capri.rivals.catalogue import BY_NAME, UNIFORM
from capri.simulation import Policy, simulate

# CAPRI under each trust model, beside the rivals.
CAPRI_NAMES = ("capri-joint", "capri-local")
ENTRY_NAMES = (*CAPRI_NAMES, *RIVAL_NAMES)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Who plays, and with which epsilon; infinity is no noise."""

    policy: str
    epsilon: float

    @property
    def private(self) -> bool:
        """Whether the budget makes a difference to this policy."""
        return self.policy in CAPRI_NAMES or (
            self.policy in BY_NAME and BY_NAME[self.policy].promise.model != "none"
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an entry reached on a problem, averaged over seeds.

    ``ratio`` is regret per round over that of uniform play; None with a ``note`` where the entry
    could not play. ``seconds`` and ``peak_memory_bytes`` are those of building and playing; memory
    is what came on top of the process's own before, the largest over seeds.
    """

    problem: str
    rounds: int
    policy: str
    epsilon: float | None
    promise: Promise
    seeds: int
    ratio: float | None
    ratio_standard_error: float | None
    regret_per_round: float | None
    seconds: float | None
    peak_memory_bytes: int | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def entries(
    policies: Sequence[str] = ENTRY_NAMES, epsilons: Sequence[float] = (1.0, math.inf)
) -> list[Entry]:
    """Every policy under every epsilon; once for those that spend no budget.

    >>> [entry.epsilon for entry in entries(["gp-ucb", "capri-joint"], [1.0])]
    [inf, 1.0]
    """
    for name in policies:
        if name not in ENTRY_NAMES:
            raise ConfigurationError(
                f"policies must be among {', '.join(ENTRY_NAMES)}, got {name!r}"
            )
    for epsilon in epsilons:
        if not epsilon > 0:
            raise ConfigurationError(f"epsilon must be positive, got {epsilon}")
    found = []
    for name in policies:
        if not Entry(policy=name, epsilon=math.inf).private:
            found.append(Entry(policy=name, epsilon=math.inf))
            continue
        # CAPRI without noise is the same in both models.
        own = [each for each in epsilons if name != "capri-local" or each < math.inf]
        found += [Entry(policy=name, epsilon=each) for each in own]
    return found


def build(
    entry: Entry, problem: ArenaProblem, world: Environment, *, rounds: int, seed: int, delta: float
) -> tuple[Policy, str]:
    """The policy of an entry, and a note where it is not played with the problem's own kernel."""
    budget = None
    if entry.private and math.isfinite(entry.epsilon):
        budget = Budget(epsilon=entry.epsilon, delta=delta)
    options: dict[str, Any] = dict(problem.options.get(entry.policy, {}))
    if entry.policy in CAPRI_NAMES:
        options |= {
            "kernel": problem.kernel,
            "actions": world.actions if problem.actions is None else problem.actions,
            "contexts": public_pool(world),
            "reward_bound": world.reward_bound,
            "horizon": rounds,
            "simulation_seed": seed,
        }
        if entry.policy == "capri-local" and budget is not None:
            return Fleet.build(budget=budget, **options), ""
        return Capri(budget=budget, **options), ""
    if entry.policy != UNIFORM:
        count = max(problem.features, BY_NAME[entry.policy].feature_count)
        options["feature_options"] = {"count": count}
    if problem.noise is not None and entry.policy != UNIFORM:
        accepted = inspect.signature(BY_NAME[entry.policy].__init__).parameters
        if "noise" in accepted:
            options["noise"] = problem.noise

    def make(kernel: Kernel) -> Policy:
        return rival(
            entry.policy,
            world,
            kernel=kernel,
            horizon=rounds,
            simulation_seed=seed,
            budget=budget,
            actions=problem.actions,
            **options,
        )

    try:
        return make(problem.kernel), ""
    except ConfigurationError:
        if not isinstance(problem.kernel, Matern):
            raise
        # Some rivals exist for the RBF kernel only: they play with it, and the table says so.
        return make(RBF(lengthscale=problem.kernel.lengthscale)), "with an RBF kernel"


def contest(
    problems: Iterable[ArenaProblem],
    field: Sequence[Entry],
    *,
    rounds: Sequence[int],
    seeds: Sequence[int],
    delta: float = 1e-5,
    progress: Callable[[int, int, str], None] | None = None,
) -> Iterator[Result]:
    """Results, one after the other; an entry beyond its reach is noted, not played."""
    tasks = [
        (problem, horizon, entry) for problem in problems for horizon in rounds for entry in field
    ]
    for number, (problem, horizon, entry) in enumerate(tasks):
        if progress is not None:
            progress(number, len(tasks), f"{entry.policy} on {problem.name}, T = {horizon:g}")
        yield play(problem, entry, rounds=horizon, seeds=seeds, delta=delta)
    if progress is not None:
        progress(len(tasks), len(tasks), "done")


def play(
    problem: ArenaProblem, entry: Entry, *, rounds: int, seeds: Sequence[int], delta: float
) -> Result:
    """One entry on one problem, over all seeds."""
    epsilon = entry.epsilon if entry.private else None
    reach = reach_of(entry.policy) if entry.policy in RIVAL_NAMES else 10**9
    if rounds > reach:
        promise = _promise_in_words(entry)
        note = f"reaches T = {reach:g}"
        return Result(
            problem=problem.name, rounds=rounds, policy=entry.policy, epsilon=epsilon,
            promise=promise, seeds=0, ratio=None, ratio_standard_error=None,
            regret_per_round=None, seconds=None, peak_memory_bytes=None, note=note,
        )  # fmt: skip
    ratios, regrets, seconds, peak = [], [], [], 0
    with one_blas_thread():
        for seed in seeds:
            world = problem.world(seed)
            with PeakMemory() as before:
                pass
            started = perf_counter()
            try:
                with PeakMemory() as memory:
                    policy, note = build(
                        entry, problem, world, rounds=rounds, seed=seed, delta=delta
                    )
            except ConfigurationError as error:
                return Result(
                    problem=problem.name, rounds=rounds, policy=entry.policy, epsilon=epsilon,
                    promise=_promise_in_words(entry), seeds=0, ratio=None,
                    ratio_standard_error=None, regret_per_round=None, seconds=None,
                    peak_memory_bytes=None, note=f"cannot play: {error}",
                )  # fmt: skip
            result = simulate(policy, world, rounds, seed=seed)
            seconds.append(perf_counter() - started)
            highest = max(memory.peak_bytes, result.peak_memory_bytes)
            peak = max(peak, highest - before.peak_bytes)
            ratios.append(result.ratio)
            regrets.append(result.regret_per_round)
    return Result(
        problem=problem.name,
        rounds=rounds,
        policy=entry.policy,
        epsilon=epsilon,
        promise=promise_of(policy),
        seeds=len(seeds),
        ratio=fmean(ratios),
        ratio_standard_error=stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None,
        regret_per_round=fmean(regrets),
        seconds=fmean(seconds),
        peak_memory_bytes=peak,
        note=note,
    )


def _promise_in_words(entry: Entry) -> Promise:
    """The promise of an entry that is not built."""
    if entry.policy in BY_NAME and math.isfinite(entry.epsilon):
        return BY_NAME[entry.policy].promise
    return Promise(model="none", kind="none", protects="nothing")
