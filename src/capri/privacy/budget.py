"""What a user is promised."""

import warnings
from dataclasses import dataclass

from capri.checks import is_number, positive
from capri.errors import ConfigurationError, PrivacyLeakWarning

# Above this delta a promise fails for people one can count.
_LARGE_DELTA = 0.01


@dataclass(frozen=True)
class Budget:
    """An ``(epsilon, delta)`` differential-privacy guarantee; ``delta = 0`` is pure privacy.

    >>> Budget(1.0, 1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    >>> Budget(epsilon=-1.0, delta=1e-5)
    Traceback (most recent call last):
    capri.errors.ConfigurationError: epsilon must be positive and finite, got -1.0
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        if not (is_number(self.delta) and 0 <= self.delta < 1):
            raise ConfigurationError(f"delta must be 0 or more and below 1, got {self.delta!r}")
        object.__setattr__(self, "delta", float(self.delta))


def warn_of_large_delta(budget: Budget, stacklevel: int) -> None:
    """Say aloud that a promise with such a delta fails for people one can count."""
    if budget.delta > _LARGE_DELTA:
        warnings.warn(
            f"delta = {budget.delta:g} is the chance that the promise fails altogether: one person "
            f"in {1 / budget.delta:.0f}. Take far less than one over the number of people",
            PrivacyLeakWarning,
            stacklevel=stacklevel + 1,
        )
