"""Play a policy against an environment and count the regret beside that of uniform play."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_number_rows
from capri.checks import whole
from capri.choices import as_actions, as_wanted
from capri.environments import Environment
from capri.epoch.decisions import Decisions
from capri.epoch.plan import EpochRecord
from capri.errors import ConfigurationError, HorizonError
from capri.files import html_table, in_short
from capri.privacy.budget import PERFECT, Promise
from capri.spaces import as_contexts
from capri.streams import ENVIRONMENT, Streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Policy(Protocol):
    """What :func:`simulate` needs of a policy."""

    @property
    def remaining(self) -> int:
        """Decisions that may be asked for at once; 0 when the policy is done."""

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Records of closed epochs."""

    def act_many(self, contexts: object) -> Decisions:
        """Decide for many contexts."""

    def update_many(self, decisions: Decisions, rewards: object) -> object:
        """Take in the rewards of these decisions."""


@runtime_checkable
class ClosesEpochs(Protocol):
    """A policy whose last epoch has to be closed when no further decision comes."""

    def close_full_epoch(self) -> None:
        """Close the open epoch if its decisions are all taken."""
        ...


@runtime_checkable
class ChangingEnvironment(Protocol):
    """An environment whose mean rewards change while a policy plays in it."""

    def stage(self, played: int) -> Environment:
        """The environment after so many rounds."""
        ...

    def until(self, played: int) -> int | None:
        """The round with which the next stage begins; None in the last."""
        ...


def _stage_of(environment: Environment, played: int) -> tuple[Environment, int | None]:
    """The environment after so many rounds, and until which round it stays so."""
    if isinstance(environment, ChangingEnvironment):
        return environment.stage(played), environment.until(played)
    return environment, None


# Called with the number of rounds played and the mean regret per round so far.
Progress = Callable[[int, float], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationResult:
    """What a simulation measured.

    ``regret`` is the cumulative expected regret ``sum_t f(c_t, best) - f(c_t, x_t)`` after each
    round; the ratio of regret per round to that of uniform play is what studies compare. Where the
    world changes, ``uniform_regret`` is that of uniform play after each round, and the best action
    is that of the round.
    """

    rounds: int
    regret: FloatArray
    uniform_regret_per_round: float
    seconds: float
    peak_memory_bytes: int
    epochs: tuple[EpochRecord, ...]
    uniform_regret: FloatArray | None = None

    @property
    def regret_per_round(self) -> float:
        """Mean regret over all rounds."""
        return float(self.regret[-1]) / self.rounds

    @property
    def ratio(self) -> float:
        """Regret per round divided by that of uniform play: 1 is no better than chance.

        NaN where uniform play has nothing to regret.
        """
        uniform = self.uniform_regret_per_round
        return self.regret_per_round / uniform if uniform > 0 else float("nan")

    @property
    def halves(self) -> tuple[float, float]:
        """The ratio of the first half of all rounds, and that of the second."""
        middle = self.rounds // 2
        return self.ratio_between(0, middle), self.ratio_between(middle, self.rounds)

    def ratio_between(self, first: int, last: int) -> float:
        """The ratio of the rounds after ``first`` and up to ``last``."""
        uniform = self.uniform_regret
        if uniform is None:
            gone = self.uniform_regret_per_round * (last - first)
        else:
            gone = _sum_between(uniform, first, last)
        return _sum_between(self.regret, first, last) / gone if gone > 0 else float("nan")

    def _facts(self) -> dict[str, float]:
        return {
            "rounds": self.rounds,
            "regret per round": self.regret_per_round,
            "ratio to uniform play": self.ratio,
            "epochs": len(self.epochs),
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {in_short(value)}" for name, value in self._facts().items())
        return f"SimulationResult({facts})"

    def _repr_html_(self) -> str:
        return html_table([self._facts()])

    def plot(self) -> "Figure":
        """A picture of the run, shown by a notebook; ``.savefig(path)`` writes it."""
        from capri.plots import run_figure

        return run_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; the regret curve is left out."""
        return {
            "rounds": self.rounds,
            "regret_per_round": self.regret_per_round,
            "uniform_regret_per_round": self.uniform_regret_per_round,
            "ratio": self.ratio,
            "halves": list(self.halves),
            "seconds": self.seconds,
            "peak_memory_bytes": self.peak_memory_bytes,
            "epochs": [record.to_dict() for record in self.epochs],
        }


def _sum_between(cumulative: FloatArray, first: int, last: int) -> float:
    """What was added after ``first`` rounds and up to ``last``."""
    before = float(cumulative[first - 1]) if first > 0 else 0.0
    return float(cumulative[last - 1]) - before if last > first else 0.0


# Rounds handed to a policy at once: bounds memory however long an epoch is.
_BATCH = 1 << 16


def play(
    policy: Policy, environment: Environment, rounds: int, *, seed: int, salt: int
) -> Iterator[tuple[IntArray, Decisions, FloatArray]]:
    """Play in batches; yields contexts, decisions and rewards of each, which the policy has."""
    context_generator, reward_generator = (
        np.random.default_rng(child) for child in np.random.SeedSequence([seed, salt]).spawn(2)
    )
    played = 0
    while played < rounds:
        world, until = _stage_of(environment, played)
        count = min(policy.remaining, (until or rounds) - played, rounds - played, _BATCH)
        if count == 0:
            raise ConfigurationError(
                f"the policy is done after {played} rounds, {rounds} were asked for: "
                "build it with a longer horizon"
            )
        context = world.draw_contexts(context_generator, count)
        decisions = policy.act_many(world.contexts[context])
        rewards = world.rewards(reward_generator, context, decisions.action_index)
        policy.update_many(decisions, rewards)
        played += count
        yield context, decisions, rewards


def simulate(
    policy: Policy,
    environment: Environment,
    rounds: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> SimulationResult:
    """Play ``rounds`` rounds; contexts and reward noise of the environment come from ``seed``.

    Rounds are vectorised within an epoch, where decisions do not depend on rewards.
    """
    rounds = whole("rounds", rounds)
    regret, uniform = np.empty(rounds), np.empty(rounds)
    played, total = 0, 0.0
    started = perf_counter()
    with PeakMemory() as memory:
        for context, decisions, _ in play(policy, environment, rounds, seed=seed, salt=ENVIRONMENT):
            world, _ = _stage_of(environment, played)
            lost = world.best(context) - world.mean(context, decisions.action_index)
            regret[played : played + len(lost)] = lost
            uniform[played : played + len(lost)] = world.uniform_regret()
            played += len(lost)
            if progress is not None:
                total += float(lost.sum())
                progress(played, total / played)
        if isinstance(policy, ClosesEpochs):
            policy.close_full_epoch()  # else it would wait for a decision that never comes
    changes = isinstance(environment, ChangingEnvironment)
    return SimulationResult(
        rounds=rounds,
        regret=np.cumsum(regret),
        uniform_regret_per_round=float(uniform.mean()) if changes else environment.uniform_regret(),
        seconds=perf_counter() - started,
        peak_memory_bytes=memory.peak_bytes,
        epochs=policy.epochs,
        uniform_regret=np.cumsum(uniform) if changes else None,
    )


class Blind(ABC):
    """Plays by an action distribution that neither contexts nor rewards change.

    Policies that look at nothing and learn nothing have this in common.
    """

    promise: ClassVar[Promise]
    guarantee: ClassVar[str]

    def __init__(
        self, *, actions: object, horizon: int, simulation_seed: int | None = None
    ) -> None:
        self.horizon = whole("horizon", horizon)
        self._actions = as_actions(actions)
        self._decided = 0
        self._streams = Streams(simulation_seed)

    @property
    def remaining(self) -> int:
        """Decisions left."""
        return self.horizon - self._decided

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Nothing is planned and nothing released: there are no epochs."""
        return ()

    def act_many(self, contexts: object) -> Decisions:
        """Draw one action per context row."""
        rows = self._rows(contexts)
        return self._note(rows, self._draw(len(rows)))

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made."""
        rows = self._rows(contexts)
        wanted = as_wanted(action_index, len(rows), self._actions.count)
        chosen = self._draw(len(rows))
        kept = chosen == wanted
        return self._note(rows[kept], chosen[kept]), kept

    def update_many(self, decisions: Decisions, rewards: object) -> None:
        """Forget the rewards."""
        del decisions, rewards

    def _rows(self, contexts: object) -> FloatArray:
        rows = as_number_rows(contexts)
        # Any dimension will do: the context is not looked at.
        rows = as_contexts(rows, rows.shape[-1] if rows.ndim == 2 else 1)
        if len(rows) > self.remaining:
            raise HorizonError(
                f"{len(rows)} decisions were asked for, {self.remaining} of {self.horizon} "
                "are left: build the policy with a longer horizon"
            )
        return rows

    @abstractmethod
    def _draw(self, count: int) -> IntArray:
        """So many actions."""

    @abstractmethod
    def _chance(self) -> float:
        """With which probability an action that was drawn is drawn."""

    def _note(self, rows: FloatArray, chosen: IntArray) -> Decisions:
        ids = np.arange(self._decided, self._decided + len(rows))
        self._decided += len(rows)
        features = self._actions.features_of(rows, chosen)
        propensity = np.full(len(rows), self._chance())
        return Decisions.simulated(ids, 1, chosen, features, propensity, self._actions.names)


@final
class UniformPlay(Blind):
    """Plays every action with equal probability: the yardstick that every regret is divided by.

    >>> policy = UniformPlay(actions=[[0.0], [1.0]], horizon=3, simulation_seed=0)
    >>> policy.act_many([[0.5], [0.7]]).propensity
    array([0.5, 0.5])
    >>> policy.remaining
    1
    """

    name: ClassVar[str] = "uniform"
    promise: ClassVar[Promise] = PERFECT
    guarantee: ClassVar[str] = "perfect privacy: contexts and rewards are never used"

    def _draw(self, count: int) -> IntArray:
        return self._streams.actions.integers(self._actions.count, size=count)

    def _chance(self) -> float:
        return 1.0 / self._actions.count


class PeakMemory:
    """Largest resident memory between entry and exit.

    Linux can reset the high-water mark of a process; elsewhere the mark covers its whole life.

    >>> with PeakMemory() as memory:
    ...     _ = bytearray(10_000_000)
    >>> memory.peak_bytes > 10_000_000
    True
    """

    peak_bytes: int = 0

    def __enter__(self) -> "PeakMemory":
        with suppress(OSError):
            _CLEAR.write_text("5")  # see proc(5): resets VmHWM
        return self

    def __exit__(self, *_: object) -> None:
        self.peak_bytes = _high_water_mark()


def _high_water_mark() -> int:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on every platform, and not needed where /proc is

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
