"""What a wrong kernel would cost: the told one against kernel "auto", on the same functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from capri.arrays import FloatArray
from capri.environments import TabularEnvironment
from capri.epoch.notice import unsaid
from capri.forecast.kinds import TOLD
from capri.forecast.result import KernelCost
from capri.forecast.ticker import Ticker
from capri.forecast.worlds import RandomFunctions
from capri.privacy.budget import Budget
from capri.simulation import simulate

# Kernels differ most while little is known: longer runs would cost more time than they tell.
_LONGEST = 10_000


@dataclass(frozen=True, eq=False)
class Duel:
    """One epsilon, one function of each kind, and what both kernels lost on each so far."""

    world: RandomFunctions
    epsilon: float
    budget: Budget | None
    rounds: int
    numbers: tuple[int, ...]
    _lost: list[tuple[str, float, float]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        world: RandomFunctions,
        budgets: Mapping[float, Budget | None],
        longest: int,
    ) -> "Duel | None":
        """At the policy's own epsilon where it is asked about, else at the middle one."""
        if not world.told:
            return None
        own = world.problem.budget
        epsilon = inf if own is None else own.epsilon
        if epsilon not in budgets:
            epsilon = [*budgets][len(budgets) // 2]
        kinds = [world.kind_of(number) for number in range(world.functions)]
        first = tuple(kinds.index(kind) for kind in dict.fromkeys(kinds))
        return cls(world, epsilon, budgets[epsilon], min(longest, _LONGEST), first)

    @property
    def all_rounds(self) -> int:
        """Rounds to be played."""
        return self.rounds * len(self.numbers)

    def play(
        self,
        epsilon: float,
        number: int,
        environment: TabularEnvironment,
        regret: FloatArray,
        ticker: Ticker,
    ) -> None:
        """Let "auto" play a function on which the told kernel had this regret, round by round."""
        if epsilon != self.epsilon or number not in self.numbers:
            return
        with unsaid():
            result = simulate(
                self.world.policy(self.budget, None, number, kernel="auto"),
                environment,
                self.rounds,
                seed=self.world.seed_of(number),
                progress=ticker,
            )
        ticker.next_run(self.rounds)
        uniform = self.rounds * environment.uniform_regret()
        told, auto = regret[self.rounds - 1] / uniform, result.regret[-1] / uniform
        self._lost.append((self.world.kind_of(number), float(told), float(auto)))

    def costs(self) -> tuple[KernelCost, ...]:
        """Of all kinds that the verdict is over, then of each kind."""
        counted = [each[1:] for each in self._lost if each[0] != TOLD or not self.world.others]
        told, auto = np.mean(counted, axis=0)
        found = [("all", len(counted), float(told), float(auto))]
        found += [(kind, 1, told, auto) for kind, told, auto in self._lost]
        return tuple(
            KernelCost(
                kind=kind,
                epsilon=self.epsilon,
                rounds=self.rounds,
                functions=count,
                told=told,
                auto=auto,
            )
            for kind, count, told, auto in found
        )
