"""What a user is promised: numbers, whom to trust, how often to come, in words to compare."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from numbers import Integral
from typing import Literal

from capri.checks import is_number, positive, whole
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


class PrivacyModel(StrEnum):
    """Whom a user has to trust: the curator (joint) or nobody (local)."""

    JOINT = "joint"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a policy promises to a user. Only equal promises may be compared without a word.

    ``model`` is who is trusted, ``unit`` what one user is, ``protects`` which of their data,
    ``kind`` whether a delta is involved.

    >>> print(Promise(model="joint", kind="approximate", protects="contexts and rewards"))
    joint, approximate, one round, contexts and rewards
    """

    model: Literal["none", "perfect", "joint", "local", "shuffle", "central"]
    kind: Literal["none", "pure", "approximate"]
    protects: str = "contexts and rewards"
    unit: str = "one round"

    def __str__(self) -> str:
        if self.model == "none":
            return "none"
        if self.model == "perfect":
            return "perfect: no data are used"
        return f"{self.model}, {self.kind}, {self.unit}, {self.protects}"


NOTHING = Promise(model="none", kind="none", protects="nothing")
PERFECT = Promise(model="perfect", kind="pure")


UserId = str | int


@dataclass(frozen=True, kw_only=True)
class UserLimit:
    """At most ``total`` contributions per user, at most ``per_epoch`` of them in one epoch.

    >>> UserLimit(total=4).composition()
    2.0
    >>> UserLimit(total=4, per_epoch=4).composition()
    4.0
    """

    total: int
    per_epoch: int = 1

    def __post_init__(self) -> None:
        for name in ("total", "per_epoch"):
            whole(f"{name} contributions", getattr(self, name))
        if self.per_epoch > self.total:
            raise ConfigurationError(
                f"per_epoch contributions ({self.per_epoch}) cannot exceed the total ({self.total})"
            )

    def composition(self, *, local: bool = False) -> float:
        """How much more noise such a user needs than one who contributes once.

        ``a_e`` contributions to epoch ``e`` have sensitivity ``a_e`` times that of one, and
        Gaussian releases compose as ``mu^2 = sum_e (a_e mu_1)^2`` (Dong, Roth & Su 2019, Cor. 3.3;
        with ``a_e`` chosen as one goes: Smith & Thakurta 2022, arXiv 2210.17520). The worst split
        of ``total`` under ``a_e <= per_epoch`` fills epochs to the brim. In the local model every
        report carries noise of its own: ``sqrt(total)``.
        """
        if local:
            return sqrt(self.total)
        full, rest = divmod(self.total, self.per_epoch)
        return sqrt(full * self.per_epoch**2 + rest**2)


def user_digest(user: UserId, salt: bytes) -> str:
    """What stands for a user: nobody can guess it without the salt."""
    if isinstance(user, Integral):
        user = int(user)  # NumPy's integers are the same users as Python's
    text = f"{'int' if isinstance(user, int) else 'str'}:{user}"
    # "surrogatepass": any string is an id, and no error may carry one.
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=salt, digest_size=16).hexdigest()


def check_users(users: Sequence[UserId]) -> None:
    """Refuse ids of other types, before anything happens."""
    for user in users:
        if isinstance(user, bool) or not isinstance(user, str | Integral):
            raise ConfigurationError(
                f"a user id must be a string or an integer, got {type(user).__name__}"
            )
