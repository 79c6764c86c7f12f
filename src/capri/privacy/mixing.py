"""The shuffle model: a central budget, kept by the size of a batch and a local epsilon for it.

A user is in one batch. For a batch of ``n`` reports the local epsilon is the largest one whose
mixed batch keeps the central budget, and never above ``most``, which every device promises to its
user without trusting anybody. Small batches hide little, so their reports carry more noise; even
one alone may spend the central epsilon itself.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from capri.checks import between
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.shuffle import blanket_delta, central_epsilon
from capri.privacy.sphere import Sphere, sphere

# The local epsilon hardly depends on the number of coordinates: it is searched for at this one, and
# what is found for another is checked there.
_TYPICAL_DIMENSION = 32
# Local epsilons that are tried, so many to a unit: plans of all lengths share their randomizers.
_PER_UNIT = 50
_LARGEST_LOCAL = 16.0


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Reports are mixed before the aggregator sees them.

    ``most``: the local epsilon that no device is asked to exceed, whoever reads its report.
    ``honest``: the share of the reports of a batch that surely come from people who follow the
    protocol and that surely are in it; the central budget is accounted for so many alone.

    >>> shuffle = Shuffle(most=8.0)
    >>> best = shuffle.randomizer(Budget(1.0, 1e-6), reports=10_000, dimension=12)
    >>> 5.5 < best.epsilon < 5.7
    True
    >>> [shuffle.keeps(Budget(1.0, 1e-6), best, reports) for reports in (10_000, 5_000)]
    [True, False]
    """

    most: float = 8.0
    honest: float = 1.0

    def __post_init__(self) -> None:
        between("most", self.most, 0.0, _LARGEST_LOCAL, open_ends=True)
        between("honest", self.honest, 0.0, 1.0)
        if self.honest == 0:
            raise ConfigurationError("honest must be above 0: nobody hides among nobody")

    def check(self, budget: Budget) -> None:
        """Refuse a budget that mixing cannot keep."""
        if budget.delta == 0:
            raise ConfigurationError(
                "mixed reports need delta above 0, such as Budget(epsilon=1.0, delta=1e-6): what "
                "others hide is a matter of chance"
            )

    def counted(self, reports: int) -> int:
        """Reports of a batch that a user is accounted to hide among, the user's own included."""
        return max(1, int(self.honest * reports))

    def local_epsilon(self, budget: Budget, reports: int) -> float:
        """What a report may spend in a batch of so many, by and large.

        At least the central epsilon, which needs no batch, unless ``most`` is less.
        """
        if self.most <= budget.epsilon:
            return self.most
        return _largest(self, budget, self.counted(reports))

    def randomizer(self, budget: Budget, reports: int, dimension: int) -> Sphere:
        """The sphere of so many coordinates that keeps the budget in a batch of so many reports."""
        spent, sure = self.local_epsilon(budget, reports), min(budget.epsilon, self.most)
        while not self.keeps(budget, found := sphere(spent, dimension), reports):
            spent = max(spent - 1 / _PER_UNIT, sure)
        return found

    def keeps(self, budget: Budget, local: Sphere, reports: int) -> bool:
        """Whether a batch of so many reports keeps both promises."""
        if not local.keeps(self.most):
            return False
        if local.keeps(budget.epsilon):
            return True
        return blanket_delta(local, self.counted(reports), budget.epsilon) <= budget.delta

    def central_epsilon(self, budget: Budget, local: Sphere, reports: int) -> float:
        """What a batch of so many reports really costs at the delta of the budget."""
        return central_epsilon(local, self.counted(reports), budget.delta)


@lru_cache(maxsize=1024)
def _largest(shuffle: Shuffle, budget: Budget, counted: int) -> float:
    """By bisection among the local epsilons that are tried, at the typical dimension."""
    central = budget.epsilon
    if _hidden(shuffle.most, budget, counted):
        return shuffle.most
    spent, low, high = central, int(central * _PER_UNIT), ceil(shuffle.most * _PER_UNIT)
    while high - low > 1:
        middle = (low + high) // 2
        if _hidden(middle / _PER_UNIT, budget, counted):
            spent, low = middle / _PER_UNIT, middle
        else:
            high = middle
    return max(spent, central)


def _hidden(spent: float, budget: Budget, counted: int) -> bool:
    """Whether so many reports of a local epsilon keep the budget, at the typical dimension."""
    mechanism = sphere(spent, _TYPICAL_DIMENSION)
    return blanket_delta(mechanism, counted, budget.epsilon) <= budget.delta
