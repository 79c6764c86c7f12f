"""What a user is promised."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real

from capri.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Budget:
    """An ``(epsilon, delta)`` differential-privacy guarantee; ``delta = 0`` is pure privacy.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    >>> Budget(epsilon=-1.0, delta=1e-5)
    Traceback (most recent call last):
    capri.errors.ConfigurationError: epsilon must be positive and finite, got -1.0
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ConfigurationError(f"{name} must be a number, got {type(value).__name__}")
        if not (isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigurationError(f"epsilon must be positive and finite, got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ConfigurationError(f"delta must be 0 or more and below 1, got {self.delta}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
